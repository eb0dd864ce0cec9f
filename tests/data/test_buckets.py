"""Rows by length: which bucket a row comes in, and that each comes once an epoch."""

import dataclasses

import numpy as np
import pytest

from encoderjax.data.pipeline import DataConfig
from encoderjax.errors import UserError
from encoderjax.experiment import Experiment
from encoderjax.phases import open_stages
from tests.small_runs import small_config

SILENT = lambda text: None
BUCKETS = {"data__buckets": "(20, 26)", "data__form": "sentence_pair"}


def experiment(folder, **changes):
    return Experiment.open(small_config(folder, **BUCKETS | changes), SILENT)


@pytest.mark.parametrize("mixed", [False, True])
def test_rows_stand_in_the_shortest_bucket_that_holds_them(group, mixed):
    source = experiment(group if mixed else group / "de").train_source()
    seen = set()
    for step in range(30):
        batch = source.batch(step)
        length = batch["ids"].shape[1]
        tokens = batch["mask"].sum(axis=1)
        shorter = {20: 0, 26: 20, 32: 26}[length]
        assert np.all((shorter < tokens) & (tokens <= length))
        assert batch["ids"].shape[0] == 16  # as many rows whatever the bucket
        seen.add(length)
    assert seen == {20, 26, 32}


def test_rows_are_those_of_the_corpus_padded_less(group):
    """The same tokens, masks and draws as at the full length."""
    run = experiment(group)
    source = run.train_source()
    plain = experiment(group, data__buckets=None).train_source()
    for step in range(12):
        batch = source.batch(step)
        whole = plain.rows(*source.places(step, slice(None)), step=step)
        length, slots = batch["ids"].shape[1], batch["mlm/positions"].shape[1]
        for name in ("ids", "mask", "segments"):
            assert np.array_equal(batch[name], whole[name][:, :length])
            assert not whole["mask"][:, length:].any()
        for name in ("mlm/positions", "mlm/labels", "mlm/weights"):
            assert np.array_equal(batch[name], whole[name][:, :slots])
        assert not whole["mlm/weights"][:, slots:].any()


@pytest.mark.parametrize("mixed", [False, True])
def test_every_row_comes_once_an_epoch_of_its_bucket(group, mixed):
    run = experiment(group if mixed else group / "sw", data__dupe_factor=2)
    source, index = run.train_source(), run.train_index
    indexes = index.indexes if mixed else (index,)
    steps = range(2 * index.num_rows // source.batch_size)
    places = [source.places(step, slice(None)) for step in steps]
    epochs, rows = (np.concatenate(part) for part in zip(*places, strict=True))
    pairs = list(zip(epochs.tolist(), rows.tolist(), strict=True))
    assert len(set(pairs)) == len(pairs)  # none doubled
    lengths = np.concatenate([[source.batch(s)["ids"].shape[1]] * 16 for s in steps])
    firsts = index.first_M if mixed else [0]
    checked = 0
    for member, first in zip(indexes, firsts, strict=True):
        for number, by_length in enumerate(member.by_length):
            for low, high in ((0, 20), (20, 26), (26, 32)):
                expected = set((first + by_length.between(low, high)).tolist())
                here = lengths == high
                own = (rows >= first) & (rows < first + len(member.passes[number]))
                own &= here
                if not (epochs[own] > number).any():
                    continue  # this epoch is not over yet
                assert set(rows[own & (epochs == number)].tolist()) == expected
                checked += 1
    assert checked >= 3


def test_steps_of_a_bucket_are_as_many_as_its_rows(group):
    run = experiment(group, data__alpha=1.0)
    source = run.train_source()
    shares = {bucket.length: bucket.share for bucket in run.buckets}
    lengths = [source.batch(step, slice(1))["ids"].shape[1] for step in range(500)]
    found = {length: lengths.count(length) / 500 for length in shares}
    assert found == pytest.approx(shares, abs=0.01)
    # Members keep their shares, and each the lengths of its own rows.
    rows = np.concatenate([source.places(s, slice(None))[1] for s in range(500)])
    members = np.bincount(run.train_index.members_of(rows)) / len(rows)
    assert members.tolist() == pytest.approx(list(run.corpus.shares.values()), abs=0.01)


def test_slots_follow_the_length_of_the_bucket(group):
    run = experiment(group, objectives__mlm__max_predictions=5)
    slots = {b.length: b.objectives[0].max_predictions for b in run.buckets}
    assert slots == {20: 3, 26: 4, 32: 5}  # 0.15 of the length, and what was asked for
    run = experiment(group, objectives__mlm__max_predictions=None)
    slots = {b.length: b.objectives[0].max_predictions for b in run.buckets}
    assert slots == {20: 3, 26: 4, 32: 5}


def test_a_bucket_without_rows_is_left_out(group):
    run = experiment(group, data__buckets="(8, 20, 26)")
    assert [bucket.length for bucket in run.buckets] == [20, 26, 32]
    assert sum(bucket.share for bucket in run.buckets) == pytest.approx(1)


def test_rows_by_length_are_found_once_and_kept(group, tmp_path):
    changes = {"data__cache_dir": tmp_path}
    first = experiment(group / "en", **changes).train_source()
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npy")}
    assert any("by-length" in path.parent.name for path in stamps)
    again = experiment(group / "en", data__buckets="(18,)", **changes)
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.npy")} == stamps
    kept = again.train_index.by_length
    assert all(isinstance(rows.rows_R, np.memmap) for rows in kept)
    for path in tmp_path.rglob("*.rows.npy"):
        path.write_bytes(path.read_bytes()[:-8])
    mended = experiment(group / "en", **changes).train_source()
    assert np.array_equal(mended.batch(3)["ids"], first.batch(3)["ids"])


def test_arithmetic_of_a_step_is_the_mean_over_buckets(group):
    run = lambda **changes: small_config(group, **BUCKETS | changes)
    (bucketed,) = open_stages(run(), SILENT, None)
    (whole,) = open_stages(run(data__buckets=None), SILENT, None)
    assert 0.4 * whole.flops_per_step < bucketed.flops_per_step < whole.flops_per_step


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"buckets": (64, 32)}, "must ascend"),
        ({"buckets": (32, 32)}, "must ascend"),
        ({"buckets": (128,)}, "below data.length=128"),
        ({"buckets": (4, 32)}, "from 8 on"),
        ({"buckets": (32,), "form": "packed"}, "whose rows are full"),
        (
            {"buckets": (32,), "form": "reuse_pair", "second": "next"},
            "go on from step to step",
        ),
    ],
)
def test_buckets_that_cannot_be_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        DataConfig(**{"corpus": "x", "batch_size": 8, "length": 128} | changes)


def test_no_buckets_are_one():
    data = DataConfig(corpus="x", batch_size=8, length=64)
    assert data.bucket_lengths == (64,)
    assert dataclasses.replace(data, buckets=(16,)).bucket_lengths == (16, 64)
    assert dataclasses.replace(data, buckets=()) == data
