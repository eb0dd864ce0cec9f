import dataclasses
import os
import resource
import threading
import time

import numpy as np
import pytest

from encoderjax.data.assembly import assemble
from encoderjax.data.pipeline import (
    BatchSource,
    DataConfig,
    Lexicon,
    prefetched,
    rows_for_tokens,
)
from encoderjax.data.records import ROW
from encoderjax.data.rows import EpochOrder, open_row_index
from encoderjax.data.stream import TextStream
from encoderjax.data.tokenizers import Layout
from encoderjax.errors import UserError
from encoderjax.objectives.mlm import MaskedLM

SILENT = lambda text: None


def source_of(corpus, *, batch_size=16, seed=0, select="tokens", **data_changes):
    data = DataConfig(
        **{"corpus": "x", "length": 32, "batch_size": batch_size, "dupe_factor": 3}
        | data_changes
    )
    index = open_row_index(corpus, "train", data.row_settings(seed), report=SILENT)
    return BatchSource(
        index=index,
        order=index.order(seed),
        lexicon=Lexicon(corpus.tokenizer.vocabulary, corpus.unigrams_V),
        corruptions=(MaskedLM(max_predictions=5, select=select),),
        batch_size=batch_size,
        seed=seed,
        static_epochs=data.dupe_factor if data.masking == "static" else None,
    )


def equal(first, second):
    return first.keys() == second.keys() and all(
        np.array_equal(first[name], second[name]) for name in first
    )


@pytest.mark.parametrize("select", ["tokens", "words"])
@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_batches_are_the_same_for_any_number_of_hosts(corpus, hosts, select):
    source = source_of(corpus, select=select)
    part = source.batch_size // hosts
    for step in range(10):
        whole = source.batch(step)
        parts = [
            source.batch(step, slice(host * part, (host + 1) * part))
            for host in range(hosts)
        ]
        joined = {name: np.concatenate([p[name] for p in parts]) for name in whole}
        assert equal(whole, joined)


def test_rows_of_a_batch_may_be_any(corpus):
    source = source_of(corpus)
    rows = np.array([9, 2, 15])
    expected = {name: array[rows] for name, array in source.batch(3).items()}
    assert equal(source.batch(3, rows), expected)


def test_a_restarted_source_gives_the_same_batch(corpus):
    assert equal(source_of(corpus).batch(7), source_of(corpus).batch(7))
    assert not equal(source_of(corpus).batch(7), source_of(corpus, seed=1).batch(7))


def best_seconds(make, steps):
    """Returns the shortest time that one of `steps` takes."""

    def seconds(step):
        start = time.perf_counter()
        make(step)
        return time.perf_counter() - start

    return min(map(seconds, steps))


def test_step_a_million_costs_no_more_than_step_zero(corpus):
    source = source_of(corpus)
    source.batch(0)
    near = best_seconds(source.batch, range(1, 8))
    assert best_seconds(source.batch, range(1_000_000, 1_000_007)) < 5 * near


def test_place_in_a_large_corpus_costs_no_more_than_in_a_middling_one():
    """Nothing of the length of an epoch is made, nor are epochs counted through."""
    at = lambda order: lambda step: order.at(np.arange(4096) + 4096 * step)
    near = best_seconds(at(EpochOrder((100_000,), 0)), range(20))
    large = at(EpochOrder((10**9, 10**9 + 1), 0))
    for first in (0, 10**5, 10**9):
        assert best_seconds(large, range(first, first + 20)) < 5 * near


def test_order_of_a_large_corpus_repeats_no_row():
    order = EpochOrder((10**9, 10**9 + 1), 0)
    epochs, rows = order.at(np.arange(10**9 - 50_000, 10**9 + 50_000))
    for epoch in (0, 1):
        found = rows[epochs == epoch]
        assert len(np.unique(found)) == len(found) == 50_000
        assert 0 <= found.min() < found.max() < 10**9 + epoch


def test_every_row_comes_once_an_epoch(corpus):
    source = source_of(corpus)
    sizes = source.order.rows_by_pass
    epochs, rows = source.order.at(np.arange(sum(sizes) + sizes[0]))
    assert np.all(np.diff(epochs) >= 0)
    for epoch, size in enumerate((*sizes, sizes[0])):
        assert sorted(rows[epochs == epoch]) == list(range(size))
    # The second time round the first cut, the order is another one.
    assert not np.array_equal(rows[epochs == 0], rows[epochs == 3])


def test_dynamic_masks_change_with_the_epoch_and_static_ones_repeat(corpus):
    for masking in ("dynamic", "static"):
        source = source_of(corpus, masking=masking)
        rows = np.arange(16)
        first, later = (source.rows(np.full(16, epoch), rows) for epoch in (0, 3))
        # Epoch 3 reads the same cut as epoch 0.
        assert np.array_equal(first["segments"], later["segments"])
        same = np.array_equal(first["mlm/positions"], later["mlm/positions"])
        assert same == (masking == "static")


def laid_out(corpus, layout, records, length):
    stream, pad_id = (
        TextStream(corpus.split("train")),
        corpus.tokenizer.vocabulary.pad_id,
    )
    pieces = (records, np.arange(len(records)))
    return assemble(stream, layout, pad_id, pieces, (len(records), length))


def test_rows_are_laid_out_with_special_tokens_and_segments(corpus):
    split, vocabulary = corpus.split("train"), corpus.tokenizer.vocabulary
    record = np.zeros(2, ROW)
    record["start"], record["length"] = [[5, 50], [7, 0]], [[3, 2], [4, 0]]
    batch = laid_out(corpus, corpus.tokenizer.layout, record, 12)
    text = split.tokens.slice(0, 60).tolist()
    cls, sep, pad = vocabulary.cls_id, vocabulary.sep_id, vocabulary.pad_id
    assert batch["ids"].tolist() == [
        [cls, *text[5:8], sep, *text[50:52], sep, *[pad] * 4],
        [cls, *text[7:11], sep, *[pad] * 6],
    ]
    assert batch["mask"].sum(axis=1).tolist() == [8, 6]
    assert batch["segments"].tolist() == [[0] * 5 + [1] * 3 + [0] * 4, [0] * 12]


def test_rows_follow_the_layout_of_the_tokenizer(corpus):
    """RoBERTa's two separators in one segment; XLNet's last token and left padding."""
    split, vocabulary = corpus.split("train"), corpus.tokenizer.vocabulary
    record = np.zeros(2, ROW)
    record["start"], record["length"] = [[5, 50], [7, 0]], [[3, 2], [4, 0]]
    text, pad = split.tokens.slice(0, 60).tolist(), vocabulary.pad_id
    a, b, alone = text[5:8], text[50:52], text[7:11]

    roberta = Layout((1,), (2, 2), (2,), second=0)
    batch = laid_out(corpus, roberta, record, 12)
    assert batch["ids"].tolist() == [
        [1, *a, 2, 2, *b, 2, *[pad] * 3],
        [1, *alone, 2, *[pad] * 6],
    ]
    assert not batch["segments"].any()

    xlnet = Layout((), (4,), (4, 3), final=2, pads_left=True, pad=3)
    batch = laid_out(corpus, xlnet, record, 12)
    assert batch["ids"].tolist() == [
        [*[pad] * 4, *a, 4, *b, 4, 3],
        [*[pad] * 6, *alone, 4, 3],
    ]
    assert batch["mask"].tolist() == [
        [False] * 4 + [True] * 8,
        [False] * 6 + [True] * 6,
    ]
    assert batch["segments"].tolist() == [
        [3] * 4 + [0] * 4 + [1] * 3 + [2],
        [3] * 6 + [0] * 5 + [2],
    ]
    assert batch["segments"].dtype == np.int32


def test_batches_hold_the_text_of_the_corpus(corpus):
    """Undoes the masking and finds each segment in the corpus."""
    source = source_of(corpus)
    split = corpus.split("train")
    stream = split.tokens.slice(0, split.num_tokens).astype(np.uint16).tobytes()
    batch = source.batch(3)
    for row in range(16):
        ids = batch["ids"][row].copy()
        used = batch["mlm/weights"][row] > 0
        ids[batch["mlm/positions"][row][used]] = batch["mlm/labels"][row][used]
        separators = np.flatnonzero(ids == corpus.tokenizer.vocabulary.sep_id)
        assert len(separators) == 2
        a, b = ids[1 : separators[0]], ids[separators[0] + 1 : separators[1]]
        for segment in (a, b):
            assert segment.astype(np.uint16).tobytes() in stream


def test_switching_the_objectives_off_leaves_the_rows_unchanged(corpus):
    source = source_of(corpus)
    plain = dataclasses.replace(source, corruptions=()).batch(2)
    masked = source.batch(2)
    for name in ("segments", "mask", "row", "second"):
        assert np.array_equal(plain[name], masked[name])


def test_a_source_may_begin_at_any_place_and_step(corpus):
    source = source_of(corpus)
    later = dataclasses.replace(source, first_step=100, first_place=3 * 16)
    for step in (0, 5):
        assert equal(later.batch(100 + step), source.batch(3 + step))
    between = dataclasses.replace(source, first_place=8)
    joined = [source.batch(0, slice(8, 16)), source.batch(1, slice(8))]
    expected = {n: np.concatenate([part[n] for part in joined]) for n in joined[0]}
    assert equal(between.batch(0), expected)


class SeesTheStep:
    """A corruption that keeps what it was told."""

    def corrupt(self, batch, draws, lexicon):
        bits = draws.bits("site", 4)
        return batch | {"told": draws.step, "bits": bits}


def test_corruptions_are_told_the_step_and_draw_the_same(corpus):
    source = dataclasses.replace(source_of(corpus), corruptions=(SeesTheStep(),))
    batch = source.batch(7)
    held_out = source.rows(*source.places(7, slice(None)))
    assert (batch["told"], held_out["told"]) == (7, None)
    assert np.array_equal(batch["bits"], held_out["bits"])


def test_fillers_have_no_weight(corpus):
    source = source_of(corpus)
    batch = source.rows(np.zeros(3, int), np.array([4, -1, 5]))
    assert batch["row_weights"].tolist() == batch["paired"].tolist() == [1, 0, 1]


def test_batch_tokens_counts_real_tokens(corpus):
    source = source_of(corpus)
    rows = rows_for_tokens(1000, source.index)
    assert rows % 8 == 0
    sized = dataclasses.replace(source, batch_size=rows)
    real = np.mean([sized.batch(step)["mask"].sum() for step in range(10)])
    assert abs(real - 1000) < 4 * source.index.mean_tokens + 50
    nearest, mean = rows_for_tokens(1000, source.index, 1), source.index.mean_tokens
    assert abs(nearest * mean - 1000) <= mean / 2


def test_the_row_index_is_cut_once_and_kept(corpus, tmp_path):
    data = DataConfig(corpus="x", length=32, batch_size=8)
    settings = data.row_settings(5)
    first = open_row_index(
        corpus, "train", settings, cache_dir=str(tmp_path), report=SILENT
    )
    (folder,) = tmp_path.iterdir()
    stamps = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    again = open_row_index(
        corpus, "train", settings, cache_dir=str(tmp_path), report=SILENT
    )
    assert {p.name: p.stat().st_mtime_ns for p in folder.iterdir()} == stamps
    for old, new in zip(first.passes, again.passes, strict=True):
        assert isinstance(new.pieces_S, np.memmap)
        assert np.array_equal(old.pieces_S, new.pieces_S)
    other = dataclasses.replace(settings, length=64)
    open_row_index(corpus, "train", other, cache_dir=str(tmp_path), report=SILENT)
    assert len(list(tmp_path.iterdir())) == 2


def row_files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("damage", ["cut off", "gone", "header", "index", "no sizes"])
def test_a_damaged_row_index_is_cut_anew(corpus, tmp_path, damage):
    settings = DataConfig(corpus="x", length=32, batch_size=8, dupe_factor=2)
    arguments = (corpus, "train", settings.row_settings(0))
    lines = []
    options = {"cache_dir": str(tmp_path), "report": lines.append}
    first = open_row_index(*arguments, **options)
    expected = [rows.pieces_S.tobytes() for rows in first.passes]
    (folder,) = tmp_path.iterdir()
    files = row_files(folder)
    path, index = folder / "pass-001.npy", folder / "index.json"
    if damage == "cut off":
        path.write_bytes(files[path.name][:-7])
    elif damage == "gone":
        path.unlink()
    elif damage == "header":
        path.write_bytes(bytes(len(files[path.name])))
    elif damage == "index":
        index.write_text("{")
    else:
        index.write_text('{"rows": [1, 1]}')
    assert not lines
    again = open_row_index(*arguments, **options)
    assert [rows.pieces_S.tobytes() for rows in again.passes] == expected
    assert [str(folder) in line for line in lines] == [True]
    assert row_files(folder) == files
    assert list(tmp_path.iterdir()) == [folder]


def test_what_killed_cuts_left_goes_after_a_day(corpus, tmp_path):
    for name, hours in (("old", 25), ("young", 23)):
        folder = tmp_path / f".cutting-{name}"
        folder.mkdir()
        (folder / "pass-000.npy").write_bytes(b"half")
        then = time.time() - hours * 3600
        os.utime(folder, (then, then))
    settings = DataConfig(corpus="x", length=32, batch_size=8, dupe_factor=1)
    rows = settings.row_settings(0)
    open_row_index(corpus, "train", rows, cache_dir=str(tmp_path), report=SILENT)
    hidden = [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]
    assert hidden == [".cutting-young"]


def test_a_full_disk_names_the_cache_folder(corpus, tmp_path):
    settings = DataConfig(corpus="x", length=32, batch_size=8, dupe_factor=1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(UserError, match=r"another data\.cache_dir"):
            open_row_index(
                corpus, "train", settings.row_settings(0), cache_dir=str(tmp_path)
            )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


def test_a_long_cut_is_announced(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr("encoderjax.data.rows._LONG_CUT", 100)
    settings = DataConfig(corpus="x", length=32, batch_size=8, dupe_factor=1)
    lines = []
    for _ in range(2):
        open_row_index(
            corpus,
            "train",
            settings.row_settings(0),
            cache_dir=str(tmp_path),
            report=lines.append,
        )
    (line,) = lines
    assert f"{corpus.split('train').num_sentences:,} sentences" in line


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"corpus": ""}, "data.corpus=''"),
        ({"length": 4}, "data.length=4"),
        ({"batch_size": None}, "exactly one"),
        ({"batch_tokens": 100}, "exactly one"),
        ({"batch_size": 0}, "data.batch_size=0"),
        ({"short_rate": 2.0}, "data.short_rate=2.0"),
        ({"dupe_factor": 0}, "data.dupe_factor=0"),
    ],
)
def test_bad_settings_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        DataConfig(**{"corpus": "x", "batch_size": 8} | changes)


def test_prefetching_keeps_order_raises_errors_and_ends_its_thread():
    def make(step):
        if step == 5:
            raise UserError("broken")
        return step

    assert list(prefetched(make, range(5))) == list(range(5))
    seen = []
    with pytest.raises(UserError, match="broken"):
        seen.extend(prefetched(make, range(10)))
    batches = prefetched(make, range(5))
    assert next(batches) == 0
    batches.close()
    assert "batches" not in {thread.name for thread in threading.enumerate()}
