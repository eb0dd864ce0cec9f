"""Similar words in whole-word n-grams (MacBERT)."""

import dataclasses

import numpy as np
import pytest

from encoderjax.data.random import Draws
from encoderjax.data.word_lists import SimilarWords
from encoderjax.errors import UserError
from encoderjax.objectives.mlm import MaskedLM
from encoderjax.objectives.replacement import (
    KEPT,
    MASKED,
    REPLACED,
    SIMILAR,
    Replacement,
)
from tests.objectives.masking_cases import (
    chi_square_fits,
    draws,
    make_batch,
    make_lexicon,
    within,
    words_of,
)

MACBERT = Replacement(mask=0.0, similar=0.8, similar_words="a", unit="word")
SHARES = (0.4, 0.3, 0.2, 0.1)


def objective(**fields):
    settings = {"select": "ngrams", "max_ngram": 4, "ngram_shares": SHARES}
    settings |= {"replace": MACBERT, "max_predictions": 19} | fields
    return MaskedLM(**settings)


def words_in(batch, lexicon):
    """Returns the tokens of the words of all rows, each once, in their order."""
    ids = batch["ids"]
    words = {
        tuple(ids[row, word].tolist()): None
        for row in range(len(ids))
        for word in words_of(batch, row, lexicon)
    }
    return list(words)


def listed(batch, lexicon, every=1):
    """Gives words one, two or three others of their size; all, or one in so many."""
    words = words_in(batch, lexicon)
    by_size = {}
    for word in words:
        by_size.setdefault(len(word), []).append(word)
    similar = {}
    for number, word in enumerate(words):
        peers = [w for w in by_size[len(word)] if w != word]
        if number % every == 0 and peers:
            start = number % max(1, len(peers) - 3)
            similar[word] = tuple(peers[start : start + 1 + number % 3])
    return similar


@pytest.fixture(scope="module")
def case():
    lexicon, batch = make_lexicon("wordpiece"), make_batch([128] * 1200)
    similar = listed(batch, lexicon)
    lexicon = dataclasses.replace(lexicon, similar=SimilarWords.of(similar))
    return batch, lexicon, similar, objective().corrupt(batch, draws(1200), lexicon)


def walked(batch, lexicon, out):
    """Yields (its tokens, the new ones, what was done) of each selected word.

    Not of those that a separator parts: each part is then a word by itself.
    """
    for row in range(len(batch["ids"])):
        live = out["mlm/weights"][row] > 0
        places = out["mlm/positions"][row][live].tolist()
        kinds = dict(zip(places, out["mlm/kinds"][row][live].tolist(), strict=True))
        for word in words_of(batch, row, lexicon):
            if word[0] in kinds:
                assert set(word) <= kinds.keys()  # never split
                if word[-1] - word[0] >= len(word):
                    continue
                (kind,) = {kinds[place] for place in word}  # one choice for a word
                old, new = batch["ids"][row, word], out["ids"][row, word]
                yield tuple(old.tolist()), tuple(new.tolist()), kind


def test_a_listed_word_gives_way_to_one_like_it(case):
    batch, lexicon, similar, out = case
    kinds, drawn = [], {}
    for old, new, kind in walked(batch, lexicon, out):
        kinds.append(kind)
        if kind == SIMILAR:
            assert new in similar[old]
            drawn.setdefault(old, []).append(new)
        elif kind == KEPT:
            assert new == old
    kinds = np.array(kinds)
    alone = [w for w in words_in(batch, lexicon) if w not in similar]
    lost = len(alone) > 0  # words so long that no other has as many pieces
    assert (kinds != MASKED).all()
    assert within(np.mean(kinds == KEPT), 0.1, len(kinds))
    found = np.mean(kinds == SIMILAR)
    assert within(found, 0.8, len(kinds)) or (lost and 0.7 < found < 0.8)
    assert within(np.mean((kinds == SIMILAR) | (kinds == REPLACED)), 0.9, len(kinds))
    # Each of those like a word is as likely.
    word = max((w for w in drawn if len(similar[w]) == 3), key=lambda w: len(drawn[w]))
    counts = np.array([drawn[word].count(other) for other in similar[word]])
    assert counts.sum() > 30
    assert chi_square_fits(counts, np.full(3, 1 / 3))


def test_a_word_without_one_like_it_becomes_random(case):
    batch, lexicon, _, _ = case
    similar = listed(batch, lexicon, every=2)
    lexicon = dataclasses.replace(lexicon, similar=SimilarWords.of(similar))
    out = objective().corrupt(batch, draws(1200), lexicon)
    known, unknown = [], []
    for old, _, kind in walked(batch, lexicon, out):
        (known if old in similar else unknown).append(kind)
    known, unknown = np.array(known), np.array(unknown)
    assert within(np.mean(known == SIMILAR), 0.8, len(known))
    assert within(np.mean(known == REPLACED), 0.1, len(known))
    assert within(np.mean(unknown == REPLACED), 0.9, len(unknown))
    assert within(np.mean(unknown == KEPT), 0.1, len(unknown))


def test_n_grams_have_the_given_shares(case):
    *_, out = case
    assert chi_square_fits(out["mlm/drawn"].sum(axis=0), SHARES)


def test_a_row_does_not_depend_on_the_others(case):
    batch, lexicon, _, whole = case
    some = np.array([1100, 3, 17])
    part = {name: value[some] for name, value in batch.items()}
    alone = objective().corrupt(part, Draws(0, np.zeros(3, int), some), lexicon)
    for name, value in alone.items():
        assert np.array_equal(value, whole[name][some]), name
    later = objective().corrupt(batch, draws(1200, epoch=1), lexicon)
    assert not np.array_equal(later["ids"], whole["ids"])


def test_other_replacements_draw_as_before():
    """A share of 0 changes no draw."""
    batch, lexicon = make_batch([128] * 200), make_lexicon()
    similar = dataclasses.replace(MACBERT, mask=0.8, similar=1e-9, random=0.1)
    plain = Replacement(unit="word")
    ours = objective(replace=similar).corrupt(batch, draws(200), lexicon)
    expected = objective(replace=plain).corrupt(batch, draws(200), lexicon)
    assert np.array_equal(ours["ids"], expected["ids"])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"similar": 0.8}, "mask=0.8, similar=0.8 and random=0.1 must not"),
        ({"mask": 0.0, "similar": 0.8}, "similar=0.8 and similar_words=None go"),
        ({"similar_words": "a"}, "similar=0.0 and similar_words='a' go together"),
        (
            {"mask": 0.0, "similar": 0.8, "similar_words": "a"},
            "unit='token' cannot be with similar=0.8",
        ),
    ],
)
def test_half_a_replacement_is_refused(fields, message):
    with pytest.raises(UserError, match=message):
        Replacement(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ngram_shares": (0.5, 0.5)}, r"ngram_shares=\(0.5, 0.5\) must be a share of"),
        ({"ngram_shares": (1, 1, 1, -1)}, "none below 0"),
        (
            {"select": "spans", "max_ngram": 3, "ngram_shares": None},
            "similar=0.8 needs whole words, which select='spans'",
        ),
        ({"select": "words", "max_ngram": 3, "ngram_shares": (1, 1, 1)}, "no meaning"),
    ],
)
def test_what_does_not_go_together_is_refused(fields, message):
    with pytest.raises(UserError, match=message):
        objective(**fields)
