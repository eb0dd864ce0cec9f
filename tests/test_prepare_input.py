"""Input of a preparation: cut texts, missing fields, many parts, and progress."""

import json
import os
import resource

import numpy as np
import pytest
import zstandard

from encoderjax import prepare as command
from encoderjax.data import meter, preparation
from encoderjax.data.documents import Reading
from encoderjax.data.selection import Selection
from encoderjax.data.sharding import Job, Task, write_shards
from encoderjax.data.sources import Trouble, read_source, source_parts
from encoderjax.data.tokenizers import load_tokenizer
from encoderjax.data.trouble import Kind
from encoderjax.errors import UserError
from tests.test_prepare_again import prepared, write_texts, write_vocabulary


@pytest.fixture
def letters(tmp_path):
    return write_vocabulary(tmp_path / "vocab.txt")


def test_pieces_of_a_text_that_was_cut_are_too_long(tmp_path, monkeypatch):
    monkeypatch.setattr("encoderjax.data.documents.MAX_DOCUMENT", 100)
    long, short = "word " * 45, "word " * 3
    (tmp_path / "a.jsonl").write_text(
        "\n".join(json.dumps({"text": text}) for text in (short, long, short))
    )
    (tmp_path / "b.txt").write_text(f"{short}\n{long}\n{short}")
    lines = "word word word word\n"
    (tmp_path / "c.txt").write_text(f"{lines}\n{lines * 9}\n{lines}")
    selection = Selection(max_chars=90)
    for name, form in (("a.jsonl", "line"), ("b.txt", "line"), ("c.txt", "blank_line")):
        trouble = Trouble()
        path = tmp_path / name
        reading = Reading(documents=form)
        found = list(read_source(str(path), reading, trouble))
        taken = [d.text for d in found if selection.takes(d, 0, 0)]
        assert len(found) > 3
        assert taken == [found[0].text, found[-1].text]
        assert trouble.counts() == {(str(path), Kind.CUT): 1}


def test_a_wrong_field_is_told_before_the_end_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr("encoderjax.data.record_reading._PATIENCE", 10)
    path = tmp_path / "a.jsonl"
    records = [{"body": "words"}] * 10 + [{"text": "words"}]
    path.write_text("\n".join(map(json.dumps, records)))
    with pytest.raises(UserError, match="none of its first 10 lines"):
        list(read_source(str(path), Reading(), Trouble()))
    path.write_text("\n".join(map(json.dumps, records[1:])))
    assert len(list(read_source(str(path), Reading(), Trouble()))) == 1


def test_a_field_that_is_null_is_left_out(tmp_path):
    path = tmp_path / "A.JSONL"
    rows = [{"title": None, "text": "a"}, {"title": "T", "text": "b"}]
    rows += [{"title": None, "text": None}, {"text": "c"}]
    path.write_text("\n".join(map(json.dumps, rows)))
    trouble = Trouble()
    found = read_source(str(path), Reading(text_key="title,text"), trouble)
    assert [document.text for document in found] == ["a", "T\n\nb"]
    assert trouble.counts() == {(str(path), Kind.NO_TEXT): 2}


def test_zstd_with_a_long_window_is_read(tmp_path):
    parameters = zstandard.ZstdCompressionParameters(window_log=28)
    compressor = zstandard.ZstdCompressor(compression_params=parameters)
    stream = compressor.compressobj()  # of unknown size, so the window is kept
    content = stream.compress(b"Some words.") + stream.flush()
    (tmp_path / "a.txt.zst").write_bytes(content)
    found = read_source(f"{tmp_path}/a.txt.zst", Reading(), Trouble())
    assert [document.text for document in found] == ["Some words."]


def test_a_divided_file_is_counted_once(letters, tmp_path, monkeypatch):
    parts = preparation.sources.source_parts
    monkeypatch.setattr(
        preparation.sources,
        "source_parts",
        lambda *args, **options: parts(*args, **options, part_bytes=500),
    )
    source = write_texts(tmp_path / "a.jsonl", ["words"] * 100)
    lines = prepared(source, tmp_path / "out", letters)
    assert any(line.startswith("1 file: ") for line in lines)


def test_duplicates_of_more_parts_than_files_may_be_open(
    letters, tmp_path, monkeypatch
):
    parts = preparation.sources.source_parts
    monkeypatch.setattr(
        preparation.sources,
        "source_parts",
        lambda *args, **options: parts(*args, **options, part_bytes=100),
    )
    source = write_texts(tmp_path / "a.jsonl", ["words"] * 300)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = len(os.listdir("/dev/fd")) + 30
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
    try:
        lines = prepared(source, tmp_path / "out", letters, deduplicate=True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "299 of 300 documents repeat an earlier one" in lines


def test_shards_that_lie_there_count_as_progress(letters, tmp_path):
    reading = Reading()
    source = write_texts(tmp_path / "a.jsonl", ["wörter"] * 20)
    out = tmp_path / "out"
    out.mkdir()
    load_tokenizer(letters).save(out)
    job = Job(
        out=str(out),
        parts=tuple(source_parts(str(source), reading)),
        reading=reading,
        selection=Selection(),
        shard_size=50,
        validation=0.0,
        seed=0,
    )
    for _ in range(2):
        done = [0, 0]
        for stripe in range(2):
            told = []
            write_shards(job, Task(0, stripe, 2), told.append)
            done[stripe] = sum(told)
        assert sum(done) == 20 * len("wörter".encode())
        assert all(done)


def test_cores_are_counted_where_there_is_no_affinity(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert command._num_cores() == os.cpu_count()


def test_the_meter_keeps_its_speed_in_a_silence(monkeypatch):
    clock = iter(np.cumsum([0, 10, 10, 200, 10]).tolist())
    monkeypatch.setattr(meter.time, "perf_counter", lambda: next(clock))
    lines = []
    measured = meter.Meter("tokens", 2000 * 10**6, lines.append)
    for megabytes in (100, 100, 400, 0):
        measured.add(megabytes * 10**6)
    speeds = [float(line.partition(" MB, ")[2].partition(" ")[0]) for line in lines]
    # 100 MB in 10 s; 400 MB in 200 s; nothing new.
    assert speeds[:3] == [10.0, 10.0, 2.0]
    assert speeds[3] > 0
