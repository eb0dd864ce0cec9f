"""Places of pieces in their text, next to the tokenizers of transformers."""

import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.test_tokenizer_kinds import HARD, SPELLED, transformers_tokenizer
from tests.data.trained_kinds import KINDS, TEXTS, tokenizer_of

MORE = [
    "Tôi ở Việt Nam; re\u0301sume\u0301 Å\u0323 \u1e69",
    "Straße ﬃ ﷺ ㎏ ⅷ x²",
    "“Smart” quotes\u2019—dash… tele\u00adphone",
    "a",
    " a ",
    "a``b'' ``c",
    "x" * 300 + " end",
]


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def trained(kind):
    return tokenizer_of(kind)


@pytest.fixture(scope="module")
def theirs(kind, trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    trained.save(folder)
    return transformers_tokenizer(folder, KINDS[kind][0])


def trimmed(text, start, end):
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return start, end


def check(trained, theirs, text):
    pieces = trained.encode_with_offsets(text)
    assert pieces.ids.tolist() == trained.encode([text])[0].tolist()
    wanted = theirs(text, add_special_tokens=False, return_offsets_mapping=True)
    assert pieces.ids.tolist() == wanted["input_ids"]
    found = list(zip(pieces.starts.tolist(), pieces.ends.tolist(), strict=True))
    covered = {c for start, end in wanted["offset_mapping"] for c in range(start, end)}
    covered -= {c for c, letter in enumerate(text) if letter == "▁"}  # a space, to some
    for ours, (start, end) in zip(found, wanted["offset_mapping"], strict=True):
        start, end = trimmed(text, start, end)
        if ours[0] == ours[1]:  # theirs may have the letter after a space
            assert not text[start : ours[0]].strip()
            assert end - start <= 1
            continue
        # Beyond theirs come only characters that no piece of theirs has.
        assert ours[0] <= start < end <= ours[1], text
        assert covered.isdisjoint((*range(ours[0], start), *range(end, ours[1])))
        assert trimmed(text, *ours) == ours
    return pieces


def test_offsets_are_those_of_transformers(trained, theirs):
    for text in HARD + MORE + TEXTS[::40]:
        check(trained, theirs, text)


def test_offsets_of_any_text(trained, theirs):
    often = st.sampled_from("the ship AÉe\u0301``''中\u3000\u00a0\t\n ﬁ½▁,\u200d😀")
    alphabet = st.one_of(often, st.characters(exclude_categories=["Cs"]))

    @settings(max_examples=60, deadline=None, database=None)
    @given(st.text(alphabet, max_size=60))
    def any_text(text):
        check(trained, theirs, text.translate({ord(c): None for c in "<>[]"}))

    any_text()


def test_spelled_out_specials_are_text(trained):
    pieces = trained.encode_with_offsets(SPELLED)
    assert pieces.ids.tolist() == trained.encode([SPELLED])[0].tolist()


def test_accents_and_quotes_belong_to_their_letters(trained):
    text = "the cafe\u0301 ``ship'' re\u0301sume\u0301."
    pieces = trained.encode_with_offsets(text)
    covered = {
        c
        for start, end in zip(pieces.starts, pieces.ends, strict=True)
        for c in range(start, end)
    }
    assert covered == {c for c, letter in enumerate(text) if letter != " "}
    inside = pieces.within(4, 9)
    assert text[pieces.starts[inside[0]] : pieces.ends[inside[-1]]] == "cafe\u0301"


def test_a_piece_is_the_text_that_it_stands_for():
    text = "  The ÉTÉ near the  harbour,\told"
    for kind in KINDS:
        trained = tokenizer_of(kind)
        pieces = trained.encode_with_offsets(text)
        for i, start, end in zip(pieces.ids, pieces.starts, pieces.ends, strict=True):
            (entry,) = trained.tokens([i])
            shown = entry.removeprefix("##").strip("▁Ġĉ")
            if not shown.isascii() or not shown or i == trained.vocabulary.unk_id:
                continue
            there = unicodedata.normalize("NFD", text[start:end])
            there = "".join(c for c in there if not unicodedata.combining(c))
            assert shown == (there.lower() if trained.lowercase else there), kind


def test_words_are_what_stands_between_white_space(trained):
    text = " the  old ship,\nnear\u3000war "
    pieces = trained.encode_with_offsets(text)
    spans = [(1, 4), (6, 9), (10, 15), (16, 20), (21, 24)]
    for number, (start, end) in enumerate(spans):
        own = np.flatnonzero((pieces.words == number) & (pieces.ends > pieces.starts))
        assert (pieces.starts[own[0]], pieces.ends[own[-1]]) == (start, end)
    assert set(pieces.words[pieces.ends > pieces.starts]) == set(range(5))


def test_given_words_keep_their_numbers(trained):
    words = ["the", "New\u00a0York", "", "\u200b", "ship's", "中文", "a b", "old"]
    text = " ".join(words)
    pieces = trained.encode_words(words)
    assert pieces.ids.tolist() == trained.encode([text])[0].tolist()
    begin = 0
    for number, word in enumerate(words):
        own = np.flatnonzero((pieces.words == number) & (pieces.ends > pieces.starts))
        if word.isascii() and word:
            assert pieces.starts[own[0]] == begin
            assert pieces.ends[own[-1]] == begin + len(word)
        begin += len(word) + 1
    assert len(trained.encode_words([])) == 0


def test_words_are_split_as_transformers_splits_lists_of_words(trained, theirs):
    words = ["The", "sailor", "'s", "naïve", "ship", ",", "don't", "1,234.56", "!"]
    wanted = theirs(words, is_split_into_words=True, add_special_tokens=False)
    pieces = trained.encode_words(words)
    assert pieces.ids.tolist() == wanted["input_ids"]
    assert pieces.words.tolist() == wanted.word_ids()


def test_long_and_empty_texts(trained):
    text = "old ship " * 5000
    pieces = trained.encode_with_offsets(text)
    assert pieces.words[pieces.ends > pieces.starts].max() == 9999
    assert pieces.ends[pieces.ends > pieces.starts].max() == len(text) - 1
    for empty in ("", "  \n "):
        assert (trained.encode_with_offsets(empty).words == -1).all()


def test_pieces_within_a_range():
    pieces = tokenizer_of("bbpe").encode_with_offsets("the 漢 war")
    inside = pieces.within(4, 5)
    assert len(inside) > 1
    assert not pieces.within(3, 4)
    assert pieces.starts[pieces.within(0, 3)[0]] == 0
