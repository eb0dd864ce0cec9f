"""Phrases of a list as units: the longest first, never in part (ERNIE)."""

import dataclasses

import numpy as np
import pytest

from encoderjax.data.pipeline import DataConfig
from encoderjax.data.random import Draws
from encoderjax.data.token_sequences import TokenSequences
from encoderjax.errors import UserError
from encoderjax.models.families import preset
from encoderjax.objectives.masking import prediction_counts
from encoderjax.objectives.mlm import MaskedLM
from encoderjax.objectives.phrases import find_phrases, select_phrases
from tests.objectives.masking_cases import (
    CLS,
    KINDS,
    SEP,
    draws,
    make_batch,
    make_lexicon,
    mixed_batch,
    within,
    words_of,
)


def lexicon_with(phrases, kind="wordpiece"):
    known = TokenSequences.of(np.asarray(ids) for ids in phrases)
    return dataclasses.replace(make_lexicon(kind), phrases=known)


def phrases_of(batch, row, words, phrases):
    """A plain walk: the longest phrases first, each from the left."""
    ids, taken, found = batch["ids"][row], set(), []
    starts, ends = {w[0] for w in words}, {w[-1] for w in words}
    text = {place for word in words for place in word}
    for size in sorted({len(p) for p in phrases}, reverse=True):
        known = {tuple(p) for p in phrases if len(p) == size}
        for first in range(len(ids) - size + 1):
            places = range(first, first + size)
            if tuple(ids[first : first + size].tolist()) not in known:
                continue
            if first not in starts or places[-1] not in ends:
                continue
            if taken.isdisjoint(places) and text.issuperset(places):
                taken.update(places)
                found.append(tuple(places))
    return sorted(found)


def some_phrases(batch, seed=3, number=150):
    """Pieces of the rows themselves, so that they are found."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(number):
        row, size = rng.integers(len(batch["ids"])), rng.integers(1, 7)
        first = rng.integers(1, max(2, batch["mask"][row].sum() - size))
        ids = batch["ids"][row, first : first + size]
        if not np.isin(ids, [0, CLS, SEP]).any():
            found.append(ids.tolist())
    return found


def few_tokens(batch, kind="bytelevel"):
    """The same rows of a few tokens, in which phrases overlap."""
    ids = batch["ids"].copy()
    text = ids > 4
    ids[text] = KINDS[kind] - 12 + ids[text] % 17  # five of which continue words
    return batch | {"ids": ids}


@pytest.mark.parametrize("kind", ["wordpiece", "bytelevel"])
def test_phrases_are_those_of_a_plain_walk(kind):
    batch = few_tokens(mixed_batch(), kind)
    phrases = some_phrases(batch)
    lexicon = lexicon_with(phrases, kind)
    starts, ends = np.zeros((2, *batch["ids"].shape), bool)
    walks = [words_of(batch, row, lexicon) for row in range(len(starts))]
    for row, words in enumerate(walks):
        starts[row, [word[0] for word in words]] = True
        ends[row, [word[-1] for word in words]] = True
    begins, inside = find_phrases(batch["ids"], starts, ends, lexicon.phrases)
    number = 0
    for row, words in enumerate(walks):
        expected = phrases_of(batch, row, words, phrases)
        covered = {place for places in expected for place in places[1:]}
        assert np.flatnonzero(begins[row]).tolist() == [p[0] for p in expected]
        assert set(np.flatnonzero(inside[row]).tolist()) == covered
        number += len(expected)
    assert number > 200


@pytest.mark.parametrize("share", [None, 0.0, 0.5, 1.0])
def test_units_are_never_cut_and_the_budget_is_kept(share):
    batch = few_tokens(make_batch([128] * 300))
    phrases = some_phrases(batch, number=60)
    lexicon = lexicon_with(phrases, "bytelevel")
    out = select_phrases(batch, 0.15, 19, draws(300), lexicon, phrase_share=share)
    counts = prediction_counts(batch["mask"], 0.15, 19)
    used = out.weights_BP.sum(axis=1)
    assert (used <= counts).all()
    assert used.sum() > 0.98 * counts.sum()
    inside_phrases = 0
    for row in range(300):
        chosen = set(out.positions_BP[row][out.weights_BP[row] > 0].tolist())
        words = words_of(batch, row, lexicon)
        found = phrases_of(batch, row, words, phrases)
        for unit in (*found, *words):
            assert len(chosen & set(unit)) in (0, len(unit))
        listed = sum(len(p) for p in found if set(p) <= chosen)
        assert listed == out.phrases_B[row]
        inside_phrases += listed
    if share is not None:
        # A phrase that does not fit is passed over, so a little is left.
        assert inside_phrases <= share * used.sum() + 300
        assert inside_phrases >= (share - 0.1) * used.sum()


def test_without_a_share_each_unit_is_as_likely():
    lexicon = lexicon_with([[10, 11, 12]])
    ids = np.arange(20, 148)[None].repeat(4000, axis=0).astype(np.int32)
    ids[:, 0], ids[:, -1] = CLS, SEP
    ids[:, 50:53] = 10, 11, 12
    batch = {"ids": ids, "mask": np.ones_like(ids, bool)}
    out = select_phrases(batch, 0.15, 19, draws(4000), lexicon)
    selected = np.zeros_like(ids, bool)
    row, slot = np.nonzero(out.weights_BP)
    selected[row, out.positions_BP[row, slot]] = True
    assert (selected[:, 50] == selected[:, 51]).all()
    # 19 tokens out of 126, in 124 units.
    assert within(selected[:, 50].mean(), 19 / 125, 4000)
    assert within(selected[:, 90].mean(), 19 / 126, 4000)


def test_without_phrases_words_are_selected_as_ever():
    batch, lexicon = mixed_batch(), make_lexicon("bytelevel")
    rows = len(batch["ids"])
    ours = MaskedLM(select="phrases", max_predictions=19)
    plain = MaskedLM(select="words", max_predictions=19)
    found = ours.corrupt(batch, draws(rows), lexicon)
    expected = plain.corrupt(batch, draws(rows), lexicon)
    for name, value in expected.items():
        assert np.array_equal(found[name], value), name


def test_a_row_does_not_depend_on_the_others():
    batch = few_tokens(mixed_batch())
    lexicon = lexicon_with(some_phrases(batch), "bytelevel")
    objective = MaskedLM(select="phrases", phrase_share=0.4, max_predictions=19)
    whole = objective.corrupt(batch, draws(len(batch["ids"])), lexicon)
    some = np.array([3, 61, 17])
    part = {name: value[some] for name, value in batch.items()}
    alone = objective.corrupt(part, Draws(0, np.zeros(3, int), some), lexicon)
    for name, value in alone.items():
        assert np.array_equal(value, whole[name][some]), name


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"phrases": "a.txt"}, "phrases=a.txt is not read with select='tokens'"),
        ({"select": "phrases", "phrase_share": 1.5}, "phrase_share=1.5 must be in"),
        ({"phrase_share": 0.5}, "phrase_share=0.5 has no meaning.*select phrases"),
    ],
)
def test_what_has_no_meaning_is_refused(fields, message):
    with pytest.raises(UserError, match=message):
        MaskedLM(**fields)


def test_a_list_is_asked_for():
    data = DataConfig(corpus="x", length=128, batch_size=8)
    with pytest.raises(UserError, match=r"needs objectives\.mlm\.phrases: a file"):
        MaskedLM(select="phrases").resolved(data, preset("bert", "tiny"))
