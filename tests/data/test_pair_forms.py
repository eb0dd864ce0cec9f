"""Pairs of sentences, pure swaps, and ELECTRA's halves."""

import collections
import itertools
import math

import numpy as np
import pytest

from tests.data.cut_rows import (
    BERT,
    CLS,
    SEP,
    documents_of,
    index_of,
    prose,
    source_of,
    texts_of,
)
from tests.data.test_segment_pairs import reference_truncation
from tests.small_corpus import split_of


def within(found, share, number, deviations=5):
    return abs(found - share) < deviations * math.sqrt(share * (1 - share) / number)


def full(lengths):
    """Returns the lengths without empty sentences."""
    return [[[n or 1 for n in document] for document in shard] for shard in lengths]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    shards = full(prose(3, documents=120))
    folder = tmp_path_factory.mktemp("pairs")
    return split_of(folder, shards), documents_of(shards)


def places(shards):
    """Returns token -> (document, sentence), and the documents."""
    documents = list(itertools.chain(*shards))
    return documents, {
        token: (d, s)
        for d, document in enumerate(documents)
        for s, sentence in enumerate(document)
        for token in sentence
    }


@pytest.mark.parametrize("second", ["random", "next", "swapped", "swapped_only"])
def test_sentence_pairs_walk_through_the_text(text, second):
    """Without truncation all that a pair holds can be read off its tokens."""
    split, shards = text
    documents, place = places(shards)
    index = index_of(split, form="sentence_pair", second=second, length=64)
    records = index.passes[0].pieces_S
    expected = collections.Counter({d: 0 for d in range(len(documents))})
    odd = free = 0
    for (a, b), label in zip(texts_of(index), records["label"].tolist(), strict=True):
        first, other = place[a[0]], place[b[0]] if b else None
        swapped = label == 1 and other is not None and other[0] == first[0]
        if swapped:
            a, b, first, other = b, a, other, first
        document, sentence = first
        assert sentence == expected[document]  # where the last pair stopped
        assert a == documents[document][sentence]
        alone = sentence == len(documents[document]) - 1
        expected[document] += 1
        if other is None:
            assert alone
            assert second in ("next", "swapped_only")
            assert label == 0
            continue
        assert b == documents[other[0]][other[1]]  # one sentence, whole
        if label == 0 or swapped:
            assert other == (document, sentence + 1)
            expected[document] += 1
        else:
            assert other[0] != document
            assert second == "random" or (second == "swapped" and alone)
        if not alone:
            odd, free = odd + label, free + 1
    assert all(expected[d] == len(documents[d]) for d in expected)
    assert within(odd / free, 0.5, free) if second != "next" else not odd


def test_long_sentence_pairs_are_cut_as_berts(tmp_path):
    lengths = np.random.default_rng(0).integers(1, 60, (300, 2)).tolist()
    split = split_of(tmp_path / "long", [lengths])
    index = index_of(split, form="sentence_pair", second="next", length=43)
    found = index.passes[0].pieces_S["length"].tolist()
    assert found == [list(reference_truncation(a, b, 40)) for a, b in lengths]


def test_short_sentence_pairs_are_cut_to_the_target_of_their_document(tmp_path):
    split = split_of(tmp_path / "short", [[[30, 30]] * 400])
    index = index_of(
        split, form="sentence_pair", second="next", length=43, short_rate=0.5
    )
    totals = index.passes[0].pieces_S["length"].sum(axis=1)
    assert within((totals < 40).mean(), 0.5 * 38 / 39, 400)
    assert totals.min() >= 2


@pytest.mark.parametrize("form", ["segment_pair", "sentence_pair"])
def test_pure_swaps_leave_single_sentences_alone(text, form):
    split, shards = text
    _, place = places(shards)
    index = index_of(split, form=form, second="swapped_only", length=40, short_rate=0.0)
    records = index.passes[0].pieces_S
    single = records["length"][:, 1] == 0
    assert 0 < single.mean() < 0.5
    assert not records["label"][single].any()
    assert within(records["label"][~single].mean(), 0.5, (~single).sum())
    for (a, b), label in zip(texts_of(index), records["label"], strict=True):
        if b:
            assert place[a[0]][0] == place[b[0]][0]
            assert (b[0] < a[0]) == label
    source = source_of(
        split, form=form, second="swapped_only", length=40, short_rate=0.0
    )
    rows = np.arange(len(records))
    batch = source.rows(np.zeros_like(rows), rows)
    assert np.array_equal(batch["paired"], (~single).astype(np.float32))
    assert not batch["segments"][single].any()


def halves(sentences, target, length, side):
    """Returns the lengths of A and B by ELECTRA's rule; None asks for one segment.

    What follows the first sentence of B stays with it.
    """
    half = 10**9 if side is None else (target - 3) // 2
    a = b = 0
    for sentence in sentences:
        below = a + sentence < half
        if b == 0 and (a == 0 or below or (a < half and side)):
            a += sentence
        else:
            b += sentence
    a = min(a, length - 2)
    return a, min(b, max(0, length - a - 3))


def test_halves_follow_the_rule_of_electra(text):
    split, shards = text
    length, sides = 48, collections.Counter()
    index = index_of(split, form="segment_halves", length=length, short_rate=0.0)
    found = zip(texts_of(index), index.passes[0].pieces_S, strict=True)
    for document in itertools.chain(*shards):
        rest = document
        while rest:
            taken = 0
            while taken < len(rest) and sum(map(len, rest[:taken])) < length:
                taken += 1
            chunk, rest = rest[:taken], rest[taken:]
            (a, b), record = next(found)
            lengths = [len(sentence) for sentence in chunk]
            tokens = list(itertools.chain(*chunk))
            one, left, right = (
                halves(lengths, length, length, side) for side in (None, True, False)
            )
            pair = (len(a), len(b))
            assert pair in (one, left, right)
            begin = tokens.index(b[0]) if b else 0  # in the text before it was cut
            assert (a, b) == (tokens[: len(a)], tokens[begin : begin + len(b)])
            assert record["label"] == 0
            if len({one, left, right}) == 3:
                sides[(one, left, right).index(pair)] += 1
    assert next(found, None) is None
    total = sides.total()
    assert total > 200
    assert within(sides[0] / total, 0.1, total)
    assert within(sides[1] / total, 0.45, total)


def test_lengths_of_examples_and_shares_are_those_of_electra(tmp_path):
    """Sentences of one token: an example has exactly its target."""
    split = split_of(tmp_path / "tokens", [[[1] * 100_000, [1] * 60_000]])
    length = 34
    index = index_of(split, form="segment_halves", length=length)
    records = index.passes[0].pieces_S
    starts = np.append(records["start"][:, 0], split.num_tokens)
    targets = np.diff(starts)
    inner = np.ones(len(targets), bool)
    inner[-1] = inner[np.searchsorted(starts, 100_000) - 1] = False  # documents end
    targets, number = targets[inner], inner.sum()
    assert targets.max() == length
    assert targets.min() == 5
    assert within((targets < length).mean(), 0.05 * 29 / 30, number)
    assert len(np.unique(targets)) == 30
    lengths = records["length"][inner].astype(int)
    assert within((lengths[:, 1] == 0).mean(), 0.1, number)
    # Either side of the half takes the token that would reach it.
    pairs = lengths[(lengths[:, 1] > 0) & (targets == length)]
    assert set(pairs[:, 0]) == {14, 15}
    assert within((pairs[:, 0] == 15).mean(), 0.5, len(pairs))
    assert set(pairs.sum(axis=1)) == {length - BERT.num_special(2)}


def test_cuts_of_halves_differ_between_passes_and_repeat_for_a_seed(text):
    split, _ = text
    settings = dict(form="segment_halves", length=48)
    first = index_of(split, **settings, dupe_factor=2)
    again = index_of(split, **settings, dupe_factor=2)
    one, other = (rows.pieces_S for rows in first.passes)
    assert np.array_equal(again.passes[1].pieces_S, other)
    assert not np.array_equal(one, other)


def test_swapped_segments_are_numbered_by_their_places(text):
    """0 is what stands first, whichever was written first."""
    split, shards = text
    _, place = places(shards)
    settings = dict(form="segment_pair", second="swapped", length=48)
    index = index_of(split, **settings)
    rows = np.arange(len(index.passes[0].pieces_S))
    batch = source_of(split, **settings).rows(np.zeros_like(rows), rows)
    swaps = 0
    for row, (a, b) in enumerate(texts_of(index)):
        swapped = place[a[0]][0] == place[b[0]][0] and b[0] < a[0]
        assert swapped <= batch["second"][row]
        swaps += swapped
        real = batch["mask"][row]
        assert batch["ids"][row, real].tolist() == [CLS, *a, SEP, *b, SEP]
        segments = [0] * (len(a) + 2) + [1] * (len(b) + 1)
        assert batch["segments"][row, real].tolist() == segments
    assert swaps > 100
