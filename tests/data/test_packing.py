"""Packed rows: fill, coverage, and what is told of each place."""

import itertools
import time

import numpy as np
import pytest

from encoderjax.data.packing import packing_plan
from tests.data.cut_rows import CLS, PAD, SEP, XLNET, documents_of, source_of
from tests.small_corpus import split_of


def short_documents(seed=0, number=3000, shards=2):
    """Returns documents of a few sentences: some longer than a row, most shorter."""
    rng = np.random.default_rng(seed)
    return [
        [
            rng.integers(1, 20, max(1, round(rng.exponential(4)))).tolist()
            for _ in range(number)
        ]
        for _ in range(shards)
    ]


@pytest.fixture(scope="module")
def shards():
    return short_documents()


@pytest.fixture(scope="module")
def split(shards, tmp_path_factory):
    return split_of(tmp_path_factory.mktemp("packed"), shards)


LENGTH = 128


def all_rows(split, **changes):
    source = source_of(split, form="packed", length=LENGTH, **changes)
    rows = np.arange(len(source.index.passes[0]))
    return source, source.rows(np.zeros_like(rows), rows)


def test_rows_hold_whole_chunks_of_documents_side_by_side(shards, split):
    source, batch = all_rows(split)
    found = []
    for ids, documents, positions, mask in zip(
        *(batch[name].tolist() for name in ("ids", "documents", "positions", "mask")),
        strict=True,
    ):
        used = sum(mask)
        assert mask == [True] * used + [False] * (LENGTH - used)
        assert ids[used:] == [PAD] * (LENGTH - used)
        assert documents[used:] == positions[used:] == [0] * (LENGTH - used)
        at, number = 0, 0
        while at < used:
            number += 1
            size = ids.index(SEP, at) + 1 - at
            assert ids[at] == CLS
            assert documents[at : at + size] == [number] * size
            assert positions[at : at + size] == list(range(size))
            found.append(ids[at + 1 : at + size - 1])
            at += size
        assert at == used
    expected = []
    for document in itertools.chain(*documents_of(shards)):
        tokens = list(itertools.chain(*document))
        expected += [tokens[i : i + 126] for i in range(0, len(tokens), 126)]
    assert sorted(found) == sorted(expected)
    for name in ("documents", "positions", "ids", "segments"):
        assert batch[name].dtype == np.int32, name
    assert not batch["segments"].any()
    assert not batch["paired"].any()
    assert batch["row_weights"].all()
    assert batch["mask"].mean() >= 0.98
    assert source.index.mean_tokens == pytest.approx(batch["mask"].sum(axis=1).mean())


def test_rows_stay_in_their_shard(shards, split):
    _, batch = all_rows(split)
    first = sum(map(sum, itertools.chain(shards[0])))
    text = (batch["ids"] < PAD) & batch["mask"]
    own = text & (batch["ids"] < first)
    assert (own.any(axis=1) != (text & ~own).any(axis=1)).all()


def test_best_fit_of_decreasing_lengths():
    """Against one chunk at a time, each to the fullest row that has room."""
    rng = np.random.default_rng(0)
    size = 40
    for case in range(60):
        shape = rng.integers(1, size + 1, rng.integers(1, 200))
        lengths = shape if case % 2 else rng.choice(shape[:3], 200)
        rows = []
        for length in sorted(lengths.tolist(), reverse=True):
            fitting = [row for row in rows if sum(row) + length <= size]
            if fitting:
                max(fitting, key=sum).append(length)
            else:
                rows.append([length])
        plan = packing_plan(np.bincount(lengths, minlength=size + 1), size)
        found = [
            [length for length, times in parts for _ in range(times)]
            for number, parts in plan
            for _ in range(number)
        ]
        assert sorted(map(sum, found)) == sorted(map(sum, rows))
        assert sorted(itertools.chain(*found)) == sorted(lengths.tolist())


@pytest.mark.parametrize("mean", [0.03, 0.2, 0.5])
def test_short_documents_fill_rows(mean):
    size = 512
    rng = np.random.default_rng(1)
    lengths = np.clip(rng.exponential(mean * size, 20_000), 3, size).astype(int)
    plan = packing_plan(np.bincount(lengths, minlength=size + 1), size)
    rows = sum(number for number, _ in plan)
    assert lengths.sum() / (rows * size) >= (0.99 if mean < 0.5 else 0.98)


def test_the_plan_costs_the_same_for_any_number_of_chunks():
    histogram = np.random.default_rng(0).integers(1, 50, 1025)
    histogram[0] = 0

    def seconds(times):
        start = time.perf_counter()
        plan = packing_plan(histogram * times, 1024)
        assert sum(
            number * length * count for number, parts in plan for length, count in parts
        ) == times * int((histogram * np.arange(1025)).sum())
        return time.perf_counter() - start

    small = min(seconds(1) for _ in range(3))
    assert min(seconds(10_000_000) for _ in range(3)) < 5 * small


def test_equal_documents_share_rows_and_partners_are_drawn(tmp_path):
    split = split_of(tmp_path / "equal", [[[8]] * 1000])
    source = source_of(split, form="packed", length=40, dupe_factor=2)
    partners = []
    for number in range(2):
        rows = source.index.passes[number]
        assert len(rows) == 250
        starts = rows.pieces_S["start"][:, 0].reshape(250, 4) // 8
        assert sorted(starts.ravel()) == list(range(1000))
        partners.append({frozenset(row) for row in starts.tolist()})
    assert len(partners[0] & partners[1]) < 5
    # Not those that lie side by side.
    assert np.abs(np.diff(starts)).mean() > 100
    again = source_of(split, form="packed", length=40, dupe_factor=2)
    assert np.array_equal(again.index.passes[1].pieces_S, rows.pieces_S)
    other = source_of(split, form="packed", length=40, seed=1)
    assert not np.array_equal(other.index.passes[0].pieces_S, rows.pieces_S)


def test_batches_are_the_same_in_any_parts_and_passes(split):
    source = source_of(
        split, form="packed", length=LENGTH, dupe_factor=3, batch_size=64
    )
    # A step with rows of two passes.
    step = len(source.index.passes[0]) // 64
    assert len(set(source.places(step, slice(None))[0].tolist())) == 2
    whole = source.batch(step)
    assert (whole["documents"].max(axis=1) > 1).any()
    for part in (slice(0, 32), slice(32, 64), np.array([9, 63, 0])):
        batch = source.batch(step, part)
        assert all(np.array_equal(batch[name], whole[name][part]) for name in whole)


def test_padding_on_the_left_and_segments_of_other_layouts(split):
    _, batch = all_rows(split, layout=XLNET)
    for row in (0, -1):
        used = int(batch["mask"][row].sum())
        assert batch["mask"][row].tolist() == [False] * (LENGTH - used) + [True] * used
        documents = batch["documents"][row, LENGTH - used :]
        ends = np.flatnonzero(np.diff(documents, append=documents[-1] + 1))
        segments = np.zeros(used, int)
        segments[ends] = 2  # each document has its own last token
        assert batch["segments"][row, LENGTH - used :].tolist() == segments.tolist()
        assert (batch["segments"][row, : LENGTH - used] == 3).all()
        assert (batch["positions"][row, LENGTH - used :][ends[:-1] + 1] == 0).all()
