"""Words and pieces, next to plain loops and to the tokenizers of transformers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from encoderjax.errors import UserError
from encoderjax.tasks.encoding import Encoding, most_context
from encoderjax.tasks.entities import Entity, entities_of, tags_of
from encoderjax.tasks.tagging import (
    piece_labels,
    spread_labels,
    word_labels,
    word_scores,
)
from tests.data.test_tokenizer_kinds import transformers_tokenizer
from tests.data.trained_kinds import KINDS, tokenizer_of

LAYOUTS = ("wordpiece_cased", "bbpe", "unigram", "unigram/xlnet")
# A control has no piece, 中文 several or none that is known.
WORDS = [
    "Naïve",
    "café",
    "\u0007",
    "don't",
    "harbour",
    "中文",
    "1,234.56",
    "a",
    "island",
]
LABELS_W = np.arange(10, 10 + len(WORDS))


@pytest.fixture(scope="module", params=LAYOUTS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def tokenizer(kind):
    return tokenizer_of(kind)


def pieces_of_word(pieces, word):
    """The numbers of the pieces with a character of a word."""
    return [
        n
        for n in range(len(pieces))
        if pieces.words[n] == word and pieces.starts[n] < pieces.ends[n]
    ]


def test_labels_stand_on_the_first_piece(tokenizer):
    pieces = tokenizer.encode_words(WORDS)
    (row,) = Encoding(tokenizer, 200).rows(pieces)
    found = piece_labels(row, pieces, LABELS_W)
    assert found.dtype == np.int32
    wanted = np.full(len(row), -1)
    for word, label in enumerate(LABELS_W):
        numbers = pieces_of_word(pieces, word)
        if numbers:
            wanted[(row.texts == 0) & (row.pieces == numbers[0])] = label
    assert found.tolist() == wanted.tolist()
    assert len(WORDS) - 1 <= (found >= 0).sum() <= len(WORDS)


def test_labels_stand_where_transformers_has_words(kind, tokenizer, tmp_path):
    """Where no space is split off, the first piece is that of `word_ids`."""
    tokenizer.save(tmp_path)
    theirs = transformers_tokenizer(tmp_path, KINDS[kind][0])
    words = ["The", "old", "sailor", "sees", "island"]
    pieces = tokenizer.encode_words(words)
    if (pieces.starts == pieces.ends).any():
        words = ["the", "old", "the"]
        pieces = tokenizer.encode_words(words)
    assert (pieces.starts < pieces.ends).all()
    (row,) = Encoding(tokenizer, 200).rows(pieces)
    encoding = theirs(" ".join(words))
    assert encoding["input_ids"] == row.ids.tolist()
    ids = encoding.word_ids()
    wanted = [
        -1 if word is None or word in ids[:place] else word
        for place, word in enumerate(ids)
    ]
    assert piece_labels(row, pieces, np.arange(len(words))).tolist() == wanted


def test_every_piece_has_a_label(tokenizer):
    pieces = tokenizer.encode_words(WORDS)
    (row,) = Encoding(tokenizer, 200).rows(pieces)
    found = piece_labels(row, pieces, LABELS_W, on="every")
    for place, label in enumerate(found):
        n = row.pieces[place]
        shown = row.texts[place] == 0 and pieces.starts[n] < pieces.ends[n]
        assert label == (LABELS_W[pieces.words[n]] if shown else -1)


def test_words_that_were_cut_are_left_out(tokenizer):
    pieces = tokenizer.encode_words(WORDS)
    whole = Encoding(tokenizer, 200).rows(pieces)[0]
    for on in ("first", "every"):
        labels = piece_labels(whole, pieces, LABELS_W, on=on)
        by_piece = dict(zip(whole.pieces.tolist(), labels.tolist(), strict=True))
        for cut in ("head", "tail", "both", "windows"):
            for row in Encoding(tokenizer, 12, cut, stride=3).rows(pieces):
                found = piece_labels(row, pieces, LABELS_W, on=on)
                assert found.tolist() == [
                    by_piece[n] if text == 0 else -1
                    for n, text in zip(row.pieces, row.texts, strict=True)
                ]


# ---- letters of pieces ----


@settings(max_examples=300, deadline=None)
@given(st.data(), st.sampled_from(["IOB1", "IOB2", "BIOES"]))
def test_pieces_are_spelled_as_words_would_be(data, scheme):
    """Entities of pieces are those of words, in the same scheme."""
    words = data.draw(
        st.lists(st.sampled_from(["a", "island", "1,234.56"]), max_size=7)
    )
    kinds = data.draw(st.lists(st.sampled_from("-PL"), min_size=len(words)))
    entities = [
        Entity(k, w, w + 1) for w, k in enumerate(kinds[: len(words)]) if k != "-"
    ]
    if len(words) > 2 and kinds[0] == kinds[1] == "P":
        entities[:2] = [Entity("P", 0, 2)]
    letters = "BIES" if scheme == "BIOES" else "BI"
    names = ["O", *(f"{letter}-{kind}" for letter in letters for kind in "PL")]
    labels = [names.index(tag) for tag in tags_of(entities, len(words), scheme)]
    tokenizer = tokenizer_of("wordpiece_cased")
    pieces = tokenizer.encode_words(words)
    (row,) = Encoding(tokenizer, 200).rows(pieces)
    found = piece_labels(
        row, pieces, np.array(labels, int), on="every", inside=spread_labels(names)
    )
    tags = [names[label] for label in found[found >= 0]]
    wanted = [
        Entity(e.type, *np.searchsorted(pieces.words, [e.start, e.end]).tolist())
        for e in entities
    ]
    assert entities_of(tags) == wanted
    assert tags == tags_of(wanted, len(pieces), scheme)


def test_labels_that_are_not_there():
    names = ["O", "B-P", "I-P", "B-L"]
    assert spread_labels(names).tolist() == [[0, 1, 2, 3], [0, 2, 2, 3], [0, 2, 2, 3]]
    assert spread_labels(["NOUN", "B-P"]).tolist() == [[0, 1]] * 3
    bilou = ["O", "B-P", "I-P", "L-P", "U-P"]
    assert spread_labels(bilou)[:, 4].tolist() == [1, 2, 3]
    row = Encoding(tokenizer_of("bbpe"), 9).rows(tokenizer_of("bbpe").encode_words("a"))
    with pytest.raises(UserError, match="on='last' must be one of first, every"):
        piece_labels(row[0], tokenizer_of("bbpe").encode_words("a"), [1], on="last")


# ---- back to words ----


@pytest.mark.parametrize("cut", ["windows", "head", "tail"])
def test_scores_are_those_of_the_first_piece_in_the_best_window(tokenizer, cut):
    rng = np.random.default_rng(0)
    words = WORDS * 3
    pieces = tokenizer.encode_words(words)
    rows = Encoding(tokenizer, 24, cut, stride=7).rows(pieces)
    scores = [rng.normal(size=(len(row), 4)).astype(np.float32) for row in rows]
    found = word_scores(rows, pieces, most_context(rows, 0), scores, len(words))
    assert found.shape == (len(words), 4)
    assert len(rows) > 2 or cut != "windows"
    for word in range(len(words)):
        numbers = pieces_of_word(pieces, word)
        held = []
        for row, scores_RC in zip(rows, scores, strict=True):
            places = row.places(0)
            for i, place in enumerate(places):
                if numbers and row.pieces[place] == numbers[0]:
                    poorer = min(i, len(places) - 1 - i) + 0.01 * len(places)
                    held.append((poorer, scores_RC[place]))
        if held:
            wanted = max(held, key=lambda pair: pair[0])[1]
            assert found[word].tolist() == wanted.tolist()
        else:
            assert np.isnan(found[word]).all()
            assert cut != "windows" or not numbers


def test_words_of_which_nothing_is_left():
    tokenizer = tokenizer_of("wordpiece_cased")
    words = ["the", "\u0007", "ship"]
    pieces = tokenizer.encode_words(words)
    rows = Encoding(tokenizer, 20).rows(pieces)
    best = most_context(rows, 0)
    scores = [np.tile(np.array([0.0, 1.0, 3.0]), (len(rows[0]), 1))]
    scores_WC = word_scores(rows, pieces, best, scores, len(words))
    assert np.isnan(scores_WC).any(-1).tolist() == [False, True, False]
    assert word_labels(scores_WC, ["B-P", "O", "I-P"]).tolist() == [2, 1, 2]
    assert word_labels(scores_WC, ["NOUN", "VERB", "ADP"]).tolist() == [2, 2, 2]
    assert word_labels(scores_WC[1:2], ["NOUN", "VERB", "ADP"]).tolist() == [0]
    nothing = tokenizer.encode_words([])
    rows = Encoding(tokenizer, 20).rows(nothing)
    scores = [np.zeros((len(rows[0]), 3))]
    found = word_scores(rows, nothing, most_context(rows, 0), scores, 0)
    assert found.shape == (0, 3)
    assert word_labels(found, ["O"]).shape == (0,)
