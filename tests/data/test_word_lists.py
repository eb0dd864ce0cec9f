"""Lists of phrases and of similar words: what is found, and what a file may hold."""

import numpy as np
import pytest

from encoderjax.data.token_sequences import TokenSequences
from encoderjax.data.tokenizers import load_tokenizer, make_tokenizer
from encoderjax.data.word_lists import (
    NEIGHBOURS,
    neighbours,
    read_phrases,
    read_similar_words,
)
from encoderjax.errors import UserError
from tests.objectives.masking_cases import make_lexicon
from tests.small_corpus import documents


def test_sequences_are_found_wherever_they_stand():
    rng = np.random.default_rng(0)
    sequences = [rng.integers(0, 6, size) for size in rng.integers(1, 7, 400)]
    known = TokenSequences.of(sequences)
    assert len(known) == len({tuple(ids) for ids in sequences})
    ids = rng.integers(0, 6, (30, 40)).astype(np.int32)
    found = dict(known.matches(ids))
    assert list(found) == [1, 2, 3, 4, 5, 6]
    numbers = {tuple(s): n for n, s in enumerate(dict.fromkeys(map(tuple, sequences)))}
    for size, number in found.items():
        for row in range(30):
            for column in range(40):
                here = tuple(ids[row, column : column + size].tolist())
                expected = numbers.get(here, -1) if len(here) == size else -1
                assert number[row, column] == expected
    assert list(TokenSequences.of(()).matches(ids)) == []


def spelled(tokenizer, similar):
    """Returns {word: its similar words}, decoded."""
    words, found = similar.words, {}
    for n, size in enumerate(words.sizes_N.tolist()):
        first = similar.starts_N[n]
        others = similar.ids_T[first : first + similar.counts_N[n] * size]
        word = words.ids_T[words.starts_N[n] : words.starts_N[n + 1]]
        decoded = [tokenizer.decode(ids).strip() for ids in others.reshape(-1, size)]
        found.setdefault(tokenizer.decode(word).strip(), []).extend(decoded)
    return found


@pytest.fixture(scope="module", params=["wordpiece:180", "bbpe:420", "unigram:90"])
def tokenizer(request):
    return make_tokenizer(request.param, lambda: documents(30))


def size(tokenizer, word):
    return len(tokenizer.encode([f" {word}"])[0])


def test_similar_words_have_as_many_pieces(tokenizer):
    content = "ship\tboat\tharbour\twave\nqueen king\n\nthe old,\n"
    content += "judge court lawyer ship judge\n"
    found, left_out = read_similar_words(content.encode(), "similar", tokenizer)
    asked = {
        "ship": ("boat", "harbour", "wave"),
        "queen": ("king",),
        "the": ("old,",),
        "judge": ("court", "lawyer", "ship"),
    }
    expected = {}
    for word, others in asked.items():
        alike = [o for o in others if size(tokenizer, o) == size(tokenizer, word)]
        if alike and "," not in "".join(alike):  # a comma is a word of its own
            expected[word] = alike
    got = {word: set(others) for word, others in spelled(tokenizer, found).items()}
    for word, others in expected.items():
        assert got[word] == set(others)
    assert left_out <= len(asked) - len(expected)
    lines = '{"word": "judge", "similar": ["court", "lawyer", "ship"]}\n'
    again, _ = read_similar_words(lines.encode(), "similar.jsonl", tokenizer)
    assert set(spelled(tokenizer, again)["judge"]) == got["judge"]


def test_phrases_are_read_as_they_stand_in_text(tokenizer):
    content = "the old ship\n  near the judge  \n\nthe old ship\n\u4e2d\u6587\n"
    found, left_out = read_phrases(content.encode(), "phrases", tokenizer)
    (text,) = tokenizer.encode(["He sees the old ship near the judge."])
    ends = []
    for length, number in found.matches(text[None]):
        for column in np.flatnonzero(number[0] >= 0).tolist():
            ends.append(tokenizer.decode(text[column : column + length]).strip())
    assert ends.count("the old ship") == ends.count("near the judge") == 1
    byte_level = left_out == 0  # which spells everything
    assert left_out == (0 if byte_level else 1)


def test_chinese_phrases_are_found_between_characters(tmp_path):
    characters = "\u6211\u4eec\u5728\u5317\u4eac\u5927\u5b66"
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *characters]
    (tmp_path / "vocab.txt").write_text("\n".join(entries), encoding="utf-8")
    tokenizer = load_tokenizer(tmp_path / "vocab.txt")
    content = "\u5317\u4eac\n\u5317\u4eac\u5927\u5b66\n\u4e0a\u6d77\n"
    found, left_out = read_phrases(content.encode(), "phrases", tokenizer)
    assert left_out == 1  # characters that the vocabulary lacks
    (text,) = tokenizer.encode([characters])
    begins = {
        n: np.flatnonzero(f[0] >= 0).tolist() for n, f in found.matches(text[None])
    }
    assert begins == {2: [3], 4: [3]}


def test_neighbours_are_those_of_the_largest_cosine():
    lexicon = make_lexicon()
    vocabulary = lexicon.vocabulary
    table = np.random.default_rng(0).normal(size=(200, 12)).astype(np.float32)
    table[7] = table[9] * 3 + 1e-3  # nearly the same direction
    found = neighbours(table, vocabulary)
    words = np.flatnonzero(~vocabulary.special_V & ~vocabulary.continues_word_V)
    assert found.words.ids_T.tolist() == words.tolist()
    assert (found.counts_N == NEIGHBOURS).all()
    rows = table.astype(np.float64) / np.linalg.norm(table, axis=1, keepdims=True)
    cosines = rows[words] @ rows[words].T
    np.fill_diagonal(cosines, -2)
    expected = words[np.argsort(-cosines, axis=1, kind="stable")[:, :NEIGHBOURS]]
    assert np.array_equal(found.ids_T.reshape(-1, NEIGHBOURS), expected)
    assert found.ids_T.reshape(-1, NEIGHBOURS)[words.tolist().index(7), 0] == 9


@pytest.mark.parametrize(
    ("content", "where", "message"),
    [
        (b"alone\n", "similar=a", "line 1 of text: it must be a word and"),
        (b'{"word": "a"}', "similar=a.jsonl", 'must be {"word"'),
        (b'{"word": "a", "similar": [1]}', "similar=a.jsonl", 'must be {"word"'),
        (b"\xff\xfe", "similar=a", "is not UTF-8"),
        ("\u4e2d \u6587".encode(), "similar=a", "no word with another of as many"),
    ],
)
def test_what_is_no_list_is_refused(content, where, message):
    tokenizer = make_tokenizer("wordpiece:180", lambda: documents(30))
    with pytest.raises(UserError, match=message):
        read_similar_words(content, where, tokenizer)
    if where == "similar=a" and b"alone" not in content:
        with pytest.raises(UserError, match=r"similar=a (is|has)"):
            read_phrases(content, where, tokenizer)
