"""The selectors against plain walks of the published algorithms, and their shares."""

import itertools
import math

import numpy as np
import pytest

from encoderjax.objectives.masking import select_tokens, select_words
from encoderjax.objectives.mlm import MaskedLM
from encoderjax.objectives.ngrams import (
    draw_lengths,
    select_ngram_windows,
    select_ngrams,
)
from encoderjax.objectives.replacement import MASKED, REPLACED, Replacement
from encoderjax.objectives.sampling import select_weighted, select_with_replacement
from encoderjax.objectives.spans import SpanLengths, select_spans
from tests.objectives.masking_cases import (
    CLS,
    KINDS,
    MASK,
    PAD,
    SEP,
    UNK,
    candidates_of,
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


# ---- plain walks ----


def bert_count(batch, row, rate, slots):
    return min(slots, max(1, round(rate * int(batch["mask"][row].sum()))))


def walk_order(bits, words):
    return np.argsort(bits[: len(words)], kind="stable")


def walk_words(batch, row, rate, slots, lexicon, bits):
    words, chosen = words_of(batch, row, lexicon), []
    for number in walk_order(bits, words):
        if len(chosen) + len(words[number]) <= bert_count(batch, row, rate, slots):
            chosen += words[number]
    return chosen


def walk_ngrams(batch, row, rate, slots, lexicon, bits, lengths):
    words, chosen = words_of(batch, row, lexicon), []
    count = bert_count(batch, row, rate, slots)
    for step, number in enumerate(walk_order(bits, words)):
        if len(chosen) >= count:
            break
        n = lengths[step]
        gram = list(itertools.chain(*words[number : number + n]))
        while len(chosen) + len(gram) > count and n > 1:
            n -= 1
            gram = list(itertools.chain(*words[number : number + n]))
        if len(chosen) + len(gram) <= count and not set(gram) & set(chosen):
            chosen += gram
    return chosen


def walk_windows(batch, row, rate, slots, lexicon, bits, lengths, max_ngram):
    excluded = (CLS, SEP, UNK, MASK, PAD)
    words = words_of(batch, row, lexicon, excluded)
    if max_ngram == 1:
        words = [[place] for place in candidates_of(batch, row, excluded)]
    marked, offset, step = set(), 0, 0
    while offset < len(words):
        n = lengths[step]
        window = min(n * int(1 / rate), len(words) - offset)
        begin = offset + (int(bits[step]) * window >> 32)
        end = min(begin + n, len(words))
        marked |= set(range(begin, end))
        offset, step = max(offset + window, end), step + 1
    chosen = []
    for number in sorted(marked):
        if len(chosen) >= bert_count(batch, row, rate, slots):
            break
        chosen += words[number]
    return chosen


def walk_spans(batch, row, rate, lexicon, anchors, lengths):
    words = words_of(batch, row, lexicon)
    tokens = [(number, place) for number, word in enumerate(words) for place in word]
    count, chosen, step = math.ceil(rate * len(tokens)), set(), 0
    while len(chosen) < count:
        number, place = tokens[anchors[step]]
        if place not in chosen:
            for word in words[number : number + lengths[step]]:
                for piece in word:
                    if len(chosen) < count:
                        chosen.add(piece)
        step += 1
    return sorted(chosen)


def assert_same(selected, expected):
    positions, weights = selected
    for row, places in enumerate(expected):
        assert positions[row][weights[row] > 0].tolist() == sorted(places), row


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rate", [0.15, 0.4])
def test_words_are_berts_walk(kind, rate, mixed):
    lexicon, rows, slots = make_lexicon(kind), len(mixed["ids"]), 45
    bits = draws(rows).bits("mlm/select", 128)
    found = select_words(mixed, rate, slots, draws(rows), lexicon)
    walk = lambda row: walk_words(mixed, row, rate, slots, lexicon, bits[row])
    assert_same(found, map(walk, range(rows)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rate", "max_ngram"), [(0.15, 3), (0.4, 3), (0.15, 1)])
def test_ngrams_are_alberts_walk(kind, rate, max_ngram, mixed):
    lexicon, rows, slots = make_lexicon(kind), len(mixed["ids"]), 45
    bits = draws(rows).bits("mlm/select", 128)
    lengths = draw_lengths(draws(rows), 128, max_ngram)
    found = select_ngrams(mixed, rate, slots, draws(rows), lexicon, max_ngram=max_ngram)
    walk = lambda row: walk_ngrams(
        mixed, row, rate, slots, lexicon, bits[row], lengths[row]
    )
    assert_same(found, map(walk, range(rows)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rate", "max_ngram"), [(0.15, 3), (0.4, 3), (0.15, 1)])
def test_windows_are_debertas_walk(kind, rate, max_ngram, mixed):
    lexicon, rows = make_lexicon(kind), len(mixed["ids"])
    bits = draws(rows).bits("mlm/select", 128)
    lengths = draw_lengths(draws(rows), 128, max_ngram)
    found = select_ngram_windows(
        mixed, rate, 128, draws(rows), lexicon, max_ngram=max_ngram
    )
    walk = lambda row: walk_windows(
        mixed, row, rate, 128, lexicon, bits[row], lengths[row], max_ngram
    )
    assert_same(found, map(walk, range(rows)))
    assert found.dropped_B.sum() == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rate", [0.15, 0.5, 1.0])
def test_spans_are_spanberts_walk(kind, rate, mixed):
    lexicon, rows = make_lexicon(kind), len(mixed["ids"])
    numbers = [sum(map(len, words_of(mixed, row, lexicon))) for row in range(rows)]
    bound, blocks = np.array(numbers)[:, None], range(80)
    anchors, lengths = (
        np.concatenate(parts, axis=1)
        for parts in (
            [draws(rows).integers(f"mlm/anchor/{b}", 32, bound) for b in blocks],
            [SpanLengths().draw(draws(rows), f"mlm/span/{b}", 32) for b in blocks],
        )
    )
    found = select_spans(mixed, rate, 128, draws(rows), lexicon)
    walk = lambda row: walk_spans(mixed, row, rate, lexicon, anchors[row], lengths[row])
    assert_same(found, map(walk, range(rows)))
    exact = [math.ceil(rate * number) for number in numbers]
    assert found.weights_BP.sum(axis=1).tolist() == exact


# ---- the published probabilities ----


def test_ngram_lengths_are_alberts():
    lengths = draw_lengths(draws(2000), 50, 3)
    counts = np.bincount(lengths.ravel(), minlength=4)[1:]
    assert chi_square_fits(counts, [6 / 11, 3 / 11, 2 / 11])


def test_span_lengths_are_renormalised_not_clipped():
    spans = SpanLengths()
    published = [0.2241, 0.1792, 0.1434, 0.1147, 0.0918]
    published += [0.0734, 0.0587, 0.0470, 0.0376, 0.0301]
    assert np.allclose(spans.probabilities_S, published, atol=1e-4)
    lengths = spans.draw(draws(2000), "mlm/span/0", 50)
    counts = np.bincount(lengths.ravel(), minlength=11)[1:]
    assert chi_square_fits(counts, spans.probabilities_S)
    assert lengths.mean() == pytest.approx(3.797, abs=0.05)


def test_electra_draws_with_replacement():
    batch, lexicon = make_batch([128] * 2000), make_lexicon()
    positions, weights = select_with_replacement(batch, 0.15, 19, draws(2000), lexicon)
    assert weights.sum() == 2000 * 19
    unique = np.array([len(np.unique(row)) for row in positions])
    among, number = 125, 19
    expected = among * (1 - (1 - 1 / among) ** number)
    deviation = unique.std() / math.sqrt(2000)
    assert abs(unique.mean() - expected) < 5 * deviation
    assert not np.isin(np.take_along_axis(batch["ids"], positions, 1), [CLS, SEP]).any()
    assert 0.135 < unique.mean() / 128 < 0.14  # what the paper calls 15 %


def test_a_place_drawn_twice_is_decided_once_and_counts_twice():
    batch, lexicon = make_batch([24] * 4000, width=24), make_lexicon()
    replace = Replacement(mask=0.85, random=0.0)
    objective = MaskedLM(
        select="with_replacement", rate=0.5, max_predictions=12, replace=replace
    )
    out = objective.corrupt(batch, draws(4000), lexicon)
    kinds, positions = out["mlm/kinds"], out["mlm/positions"]
    twice = positions[:, 1:] == positions[:, :-1]
    assert twice.sum() > 1000
    assert (kinds[:, 1:] == kinds[:, :-1])[twice].all()
    assert out["mlm/weights"].sum() == 4000 * 12
    first = np.concatenate([np.ones((4000, 1), bool), ~twice], axis=1)
    assert within(np.mean(kinds[first] == MASKED), 0.85, first.sum())
    assert (kinds != REPLACED).all()
    new = np.take_along_axis(out["ids"], positions, axis=1)
    assert ((new == MASK) == (kinds == MASKED)).all()


def test_distilbert_goes_by_the_root_of_the_frequency():
    lexicon = make_lexicon()
    ids = np.tile(np.array([CLS, 10, 20, 50, 190, UNK, SEP], np.int32), (20_000, 1))
    batch = {"ids": ids, "mask": np.ones_like(ids, bool)}
    positions, weights = select_weighted(batch, 1 / 7, 1, draws(20_000), lexicon)
    assert weights.sum() == 20_000
    counts = np.bincount(positions[:, 0], minlength=7)
    assert counts[[0, 5, 6]].sum() == 0
    weight = lexicon.unigrams_V[[10, 20, 50, 190]] ** -0.7
    assert chi_square_fits(counts[1:5], weight / weight.sum())
    # Two of them: the second by the weights of what the first left.
    positions, _ = select_weighted(batch, 2 / 7, 2, draws(20_000), lexicon)
    share = weight / weight.sum()
    pair = share[2] * share[3] * (1 / (1 - share[2]) + 1 / (1 - share[3]))
    found = np.mean((positions == [3, 4]).all(axis=1))
    assert within(found, pair, 20_000)


def test_without_smoothing_all_tokens_are_alike():
    lexicon, batch = make_lexicon(), make_batch([40] * 4000, width=40)
    batch["ids"][batch["ids"] == UNK] = 7
    positions, weights = select_weighted(
        batch, 0.15, 6, draws(4000), lexicon, smoothing=0.0
    )
    counts = np.bincount(positions[weights > 0], minlength=40)
    ordinary = np.setdiff1d(np.arange(40), [0, 20, 39])
    assert counts.sum() == counts[ordinary].sum() == 4000 * 6
    assert chi_square_fits(counts[ordinary], np.full(37, 1 / 37))


@pytest.mark.parametrize("specials", [False, True])
def test_bernoulli_decides_for_each_token(specials):
    lexicon, batch = make_lexicon(), make_batch([128] * 2000)
    found = select_tokens(
        batch, 0.3, 128, draws(2000), lexicon, count="bernoulli", specials=specials
    )
    positions, weights = found
    places = 128 if specials else 125
    counts = weights.sum(axis=1)
    assert within(counts.sum() / (2000 * places), 0.3, 2000 * places)
    assert counts.var() == pytest.approx(places * 0.3 * 0.7, rel=0.2)
    ids = np.take_along_axis(batch["ids"], positions, axis=1)[weights > 0]
    share = np.isin(ids, [CLS, SEP]).sum() / (2000 * 3)
    assert within(share, 0.3, 6000) if specials else share == 0
    assert found.dropped_B.sum() == 0


@pytest.mark.parametrize("length", [20, 31, 128])
def test_fairseq_rounds_at_random_and_may_mask_special_tokens(length):
    lexicon, batch = make_lexicon(), make_batch([length] * 4000, width=128)
    positions, weights = select_tokens(
        batch, 0.15, 20, draws(4000), lexicon, count="probabilistic", specials=True
    )
    counts, mean = weights.sum(axis=1), 0.15 * length
    assert set(counts) <= {math.floor(mean), math.ceil(mean)}
    up = mean - math.floor(mean)
    assert up == 0 or within(np.mean(counts > mean), up, 4000)
    first = np.sum((positions == 0) & (weights > 0)) / 4000
    assert within(first, 0.15, 4000)


def test_fairseq_counts_words_and_special_tokens_among_them():
    lexicon, batch = make_lexicon("bytelevel"), make_batch([128] * 500)
    found = select_words(
        batch, 0.15, 128, draws(500), lexicon, count="probabilistic", specials=True
    )
    for row in range(500):
        words = words_of(batch, row, lexicon, excluded=())
        chosen = set(found.positions_BP[row][found.weights_BP[row] > 0].tolist())
        taken = [word for word in words if chosen & set(word)]
        assert sum(map(len, taken)) == len(chosen)  # whole
        assert len(taken) in (
            math.floor(0.15 * len(words)),
            math.ceil(0.15 * len(words)),
        )


def test_an_ngram_may_straddle_a_separator():
    ids = np.array([[CLS, 10, 11, SEP, 12, 13, SEP]], np.int32)
    batch = {"ids": ids, "mask": np.ones((1, 7), bool)}
    straddling = 0
    for epoch in range(60):
        drawn = draws(1, epoch)
        selected = select_ngrams(batch, 0.3, 2, drawn, make_lexicon())  # count 2
        chosen = selected.positions_BP[0].tolist()
        assert not {0, 3, 6} & set(chosen)
        first = drawn.bits("mlm/select", 4)[0].argmin()
        if first == 1 and draw_lengths(drawn, 4, 3)[0, 0] > 1:
            assert chosen == [2, 4]  # 11 and 12 are neighbours among the words
            straddling += 1
    assert straddling > 3


@pytest.mark.parametrize("length", [20, 27, 128])
def test_distilberts_share_of_a_batch_is_that_of_its_rows(length):
    """The reference counts over a batch: here each row has its share, and rounds."""
    lexicon, batch = make_lexicon(), make_batch([length] * 4000)
    selected = select_weighted(batch, 0.15, 40, draws(4000), lexicon)
    counts, mean = selected.weights_BP.sum(axis=1), 0.15 * length
    assert set(counts) <= {math.floor(mean), math.ceil(mean)}
    up = mean - math.floor(mean)
    assert up == 0 or within(np.mean(counts > mean), up, 4000)
