"""Slots, rates and replacement of every selector."""

import dataclasses
import math

import numpy as np
import pytest

from encoderjax.data.pipeline import DataConfig
from encoderjax.data.random import Draws
from encoderjax.errors import UserError
from encoderjax.models.families import preset
from encoderjax.objectives.masking import select_tokens, select_words
from encoderjax.objectives.mlm import MaskedLM
from encoderjax.objectives.replacement import (
    KEPT,
    MASKED,
    REPLACED,
    Replacement,
    replace_selected,
)
from encoderjax.objectives.selectors import SELECTORS
from encoderjax.objectives.spans import SpanLengths
from tests.objectives.masking_cases import (
    CLS,
    MASK,
    PAD,
    SEP,
    VOCAB,
    chi_square_fits,
    draws,
    make_batch,
    make_lexicon,
    mixed_batch,
    within,
    words_of,
)


@pytest.fixture
def mixed():
    return mixed_batch()


# ---- slots ----


def test_a_random_subset_stays_where_slots_are_short():
    lexicon, batch = make_lexicon(), make_batch([40] * 4000, width=40)
    objective = MaskedLM(rate=0.3, count="bernoulli", max_predictions=6)
    out = objective.corrupt(batch, draws(4000), lexicon)
    wide = dataclasses.replace(objective, max_predictions=40)
    wanted = wide.corrupt(batch, draws(4000), lexicon)["mlm/weights"].sum(axis=1)
    used = out["mlm/weights"] > 0
    assert np.array_equal(used.sum(axis=1), np.minimum(wanted, 6))
    assert np.array_equal(out["mlm/dropped"], np.maximum(wanted - 6, 0))
    counts = np.bincount(out["mlm/positions"][used], minlength=40)
    ordinary = np.setdiff1d(np.arange(40), [0, 20, 39])
    assert chi_square_fits(counts[ordinary], np.full(37, 1 / 37))
    changed = (out["ids"] != batch["ids"]).sum(axis=1)
    assert (changed <= used.sum(axis=1)).all()  # the dropped ones stay as they are


def test_words_that_do_not_fit_the_slots_are_dropped_whole():
    lexicon, batch = make_lexicon("bytelevel"), make_batch([128] * 200)
    few = select_words(batch, 0.4, 20, draws(200), lexicon, count="bernoulli")
    all_ = select_words(batch, 0.4, 128, draws(200), lexicon, count="bernoulli")
    assert few.dropped_B.min() > 0
    total = few.weights_BP.sum(axis=1) + few.dropped_B
    assert np.array_equal(total, all_.weights_BP.sum(axis=1))
    for row in range(200):
        chosen = set(few.positions_BP[row][few.weights_BP[row] > 0].tolist())
        for word in words_of(batch, row, lexicon):
            assert len(chosen & set(word)) in (0, len(word))


@pytest.mark.parametrize(
    ("fields", "slots"),
    [
        ({}, 77),
        ({"select": "ngrams"}, 77),
        ({"select": "ngram_windows"}, 84),
        ({"select": "spans"}, 77),
        ({"select": "weighted"}, 77),
        ({"count": "probabilistic"}, 77),
        ({"count": "bernoulli"}, 126),  # 76.8 + 6 x 8.08
        ({"count": "bernoulli", "rate": (0.1, 0.3)}, 216),
        ({"rate": "density"}, 115),
        ({"rate": 1.0, "select": "spans"}, 512),
    ],
)
def test_slots_are_enough(fields, slots):
    data = DataConfig(corpus="x", length=512, batch_size=8)
    objective = MaskedLM(**fields).resolved(data, preset("bert", "tiny"))
    assert objective.max_predictions == slots


# ---- rates ----


def test_a_range_is_drawn_for_each_row():
    lexicon, batch = make_lexicon(), make_batch([128] * 2000)
    objective = MaskedLM(rate=(0.1, 0.3), max_predictions=40)
    used = objective.corrupt(batch, draws(2000), lexicon)["mlm/weights"].sum(axis=1)
    assert (used.min(), used.max()) == (13, 38)
    assert abs(used.mean() / 128 - 0.2) < 5 * 0.2 / math.sqrt(12 * 2000)


def test_dense_text_gets_a_lower_rate():
    lexicon = make_lexicon()
    ids = np.full((3, 102), 8, np.int32)
    ids[1], ids[2] = (
        100,
        np.random.default_rng(0).choice(
            VOCAB, 102, p=lexicon.unigrams_V / lexicon.unigrams_V.sum()
        ),
    )
    ids[:, 0], ids[:, -1] = CLS, SEP
    batch = {"ids": ids, "mask": np.ones_like(ids, bool)}
    batch["row_weights"] = np.ones(3, np.float32)
    objective = MaskedLM(rate="density", max_predictions=40)
    out = objective.corrupt(batch, draws(3), lexicon)
    common, rare, usual = out["mlm/weights"].sum(axis=1)
    assert rare < usual < common
    assert usual == pytest.approx(0.15 * 102, abs=2)


# ---- replacement ----


@pytest.mark.parametrize("unit", ["word", "span"])
def test_one_choice_for_a_word_or_a_span(unit):
    lexicon, batch = make_lexicon("bytelevel"), make_batch([128] * 1500)
    objective = MaskedLM(
        select="spans",
        max_predictions=20,
        replace=Replacement(unit=unit, distribution="unigram"),
    )
    out = objective.corrupt(batch, draws(1500), lexicon)
    positions, kinds = out["mlm/positions"], out["mlm/kinds"]
    used = out["mlm/weights"] > 0
    joined = used[:, 1:] & (np.diff(positions, axis=1) == 1)
    if unit == "word":
        joined &= lexicon.vocabulary.continues_word_V[out["mlm/labels"]][:, 1:]
    same = kinds[:, 1:] == kinds[:, :-1]
    assert joined.sum() > 5000
    assert same[joined].all()
    assert not same[used[:, 1:] & ~joined].all()
    first = used.copy()
    first[:, 1:] &= ~joined
    for kind, share in ((MASKED, 0.8), (REPLACED, 0.1), (KEPT, 0.1)):
        assert within(np.mean(kinds[first] == kind), share, first.sum())
    # Random tokens are drawn for each place, from the text.
    new = np.take_along_axis(out["ids"], positions, axis=1)
    random = used & (kinds == REPLACED)
    both = random[:, 1:] & random[:, :-1] & joined
    assert np.mean(new[:, 1:][both] == new[:, :-1][both]) < 0.2
    assert (lexicon.unigrams_V[new[random]] > 0).all()


def test_fairseq_never_puts_the_first_four():
    lexicon, batch = make_lexicon(), make_batch([128] * 1000)
    positions, weights = select_tokens(batch, 0.15, 19, draws(1000), lexicon)
    replacement = Replacement(mask=0.0, random=1.0, skip_first=4)
    ids, _ = replace_selected(
        batch["ids"], positions, weights, replacement, draws(1000), lexicon
    )
    new = np.take_along_axis(ids, positions, axis=1)
    counts = np.bincount(new.ravel(), minlength=VOCAB)
    assert counts[:4].sum() == 0 < counts[MASK]
    assert chi_square_fits(counts[4:], np.full(VOCAB - 4, 1 / (VOCAB - 4)))


# ---- all of them ----

VARIANTS = [{"select": select} for select in SELECTORS]
VARIANTS += [
    {"select": select, "count": count, "specials": True}
    for select in ("tokens", "words")
    for count in ("bernoulli", "probabilistic")
]
VARIANTS += [{"rate": (0.1, 0.4)}, {"rate": "density", "select": "spans"}]


@pytest.mark.parametrize("fields", VARIANTS, ids=str)
def test_a_row_does_not_depend_on_the_others(fields, mixed):
    """Nor is the input modified: hosts see different rows of one batch."""
    lexicon, rows = make_lexicon("bytelevel"), len(mixed["ids"])
    objective = MaskedLM(**fields, max_predictions=30)
    before = {name: value.copy() for name, value in mixed.items()}
    whole = objective.corrupt(mixed, draws(rows), lexicon)
    assert all(np.array_equal(mixed[name], before[name]) for name in before)
    some = np.array([3, 61, 17])
    part = {name: value[some] for name, value in mixed.items()}
    alone = objective.corrupt(part, Draws(0, np.zeros(3, int), some), lexicon)
    assert whole.keys() == alone.keys()
    for name, value in alone.items():
        assert np.array_equal(value, whole[name][some]), name
    used = whole["mlm/weights"] > 0
    assert used.any()
    assert (used.sum(axis=1) <= 30).all()
    assert not (~used[:, :-1] & used[:, 1:]).any()  # used slots come first
    ids = np.take_along_axis(mixed["ids"], whole["mlm/positions"], axis=1)
    assert np.array_equal(whole["mlm/labels"], ids)
    if not objective.specials:
        assert not np.isin(ids[used], [CLS, SEP, PAD]).any()


@pytest.mark.parametrize("fields", VARIANTS, ids=str)
def test_rows_without_text_are_left_alone(fields):
    ids = np.full((2, 16), PAD, np.int32)
    ids[:, 0] = ids[:, 1] = CLS
    batch = {"ids": ids, "mask": ids == CLS, "row_weights": np.ones(2, np.float32)}
    objective = MaskedLM(**fields, max_predictions=4)
    out = objective.corrupt(batch, draws(2), make_lexicon())
    if not objective.specials:
        assert out["mlm/weights"].sum() == 0
        assert np.array_equal(out["ids"], ids)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rate": (0.3, 0.1)}, r"rate=\(0.3, 0.1\) must be"),
        ({"rate": "dense"}, "rate=dense must be"),
        ({"rate": True}, "rate=True must be"),
        ({"max_ngram": 2}, "max_ngram=2 has no meaning with select='tokens'.*ngrams"),
        ({"select": "ngrams", "max_ngram": 0}, "max_ngram=0 must be"),
        ({"select": "spans", "count": "bernoulli"}, "count=bernoulli has no meaning"),
        ({"select": "weighted", "smoothing": -1.0}, "smoothing=-1.0 must be"),
        ({"select": "words", "span": SpanLengths(p=0.5)}, "span=.* has no meaning"),
    ],
)
def test_what_has_no_meaning_is_refused(fields, message):
    with pytest.raises(UserError, match=message):
        MaskedLM(**fields)


def test_impossible_parts_are_refused():
    with pytest.raises(UserError, match="skip_first=4"):
        Replacement(skip_first=4, distribution="unigram")
    with pytest.raises(UserError, match="longest=0"):
        SpanLengths(longest=0)


def test_spans_keep_their_length():
    """Each token of a span has its own [MASK], random token or itself (SpanBERT)."""
    lexicon, batch = make_lexicon("bytelevel"), mixed_batch()
    replace = Replacement(unit="span", distribution="unigram")
    objective = MaskedLM(select="spans", max_predictions=20, replace=replace)
    out = objective.corrupt(batch, draws(len(batch["ids"])), lexicon)
    assert np.array_equal(out["mask"], batch["mask"])
    selected, masked = np.zeros_like(batch["mask"]), np.zeros_like(batch["mask"])
    row, slot = np.nonzero(out["mlm/weights"])
    place = out["mlm/positions"][row, slot]
    selected[row, place] = True
    masked[row, place] = out["mlm/kinds"][row, slot] == MASKED
    assert np.array_equal(out["ids"] == MASK, masked)  # as many as there were tokens
    assert (masked[:, 1:] & masked[:, :-1]).sum() > 100
    assert np.array_equal(out["ids"][~selected], batch["ids"][~selected])
