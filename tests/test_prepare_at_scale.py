"""Preparation by several workers, of chosen documents, in several languages."""

# ruff: noqa: SIM905 (a list of words reads best as text)
import array
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter

import fsspec
import numpy as np
import pytest

from encoderjax import prepare as command
from encoderjax.data.corpus import Corpus
from encoderjax.data.documents import Reading
from encoderjax.data.preparation import prepare, prepare_corpus
from encoderjax.data.selection import (
    DIGEST,
    Selection,
    digest_of,
    repeated,
    sorted_digests,
)
from encoderjax.data.sharding import Job
from encoderjax.data.sources import source_parts
from encoderjax.data.vocabularies import _sampled
from encoderjax.data.workers import InPlace, Processes
from encoderjax.errors import UserError
from tests.small_corpus import documents

WORDS = (
    "harbour judge meadow cannon whale statute orchard siege anchor verdict plough "
    "retreat tide appeal barn soldier island clause shepherd truce captain witness"
).split()


def files_of(folder):
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def write_jsonl(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def invented(count, size, seed=0):
    """Returns documents of about `size` characters, a sentence of ten words each."""
    rng = np.random.default_rng(seed)
    lines = [" ".join(rng.choice(WORDS, 10)).capitalize() + "." for _ in range(2000)]
    return [" ".join(rng.choice(lines, size // 70)) for _ in range(count)]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Three files: 3.6 MB in all, some documents twice."""
    folder = tmp_path_factory.mktemp("source")
    for number in range(3):
        texts = invented(60, 20_000, seed=number)
        write_jsonl(
            folder / f"{number}.jsonl", [{"text": t} for t in [*texts, texts[0]]]
        )
    return folder


def prepared(source, out, **options):
    defaults = {"tokenizer": "wordpiece:120", "shard_mb": 1, "validation": 0.1}
    lines = []
    prepare(source=str(source), out=out, report=lines.append, **(defaults | options))
    return files_of(out), lines


@pytest.fixture(scope="module")
def alone(source, tmp_path_factory):
    return prepared(source, tmp_path_factory.mktemp("alone") / "out")[0]


@pytest.mark.parametrize("workers", [2, 3])
def test_any_number_of_workers_writes_the_same_bytes(source, alone, tmp_path, workers):
    # One part and several shards: they take turns in it.
    out = tmp_path / "out"
    assert sum(name.startswith("shard-") for name in alone) >= 3
    assert prepared(source, out, workers=Processes(workers))[0] == alone


def test_parts_are_shared_among_workers(source, tmp_path, monkeypatch):
    import encoderjax.data.preparation as preparation

    parts = preparation.sources.source_parts
    monkeypatch.setattr(
        preparation.sources,
        "source_parts",
        lambda *args, **options: parts(*args, **options, part_bytes=2 * 10**6),
    )
    one, _ = prepared(source, tmp_path / "one")
    assert {name[6:11] for name in one if name.startswith("shard-")} >= {
        "00000",
        "00002",
    }
    assert prepared(source, tmp_path / "two", workers=Processes(2))[0] == one


def test_killed_in_the_middle_it_goes_on_to_the_same_bytes(source, alone, tmp_path):
    out = tmp_path / "out"
    flags = [f"--source={source}", f"--out={out}", "--shard_mb=1", "--workers=2"]
    flags += ["--tokenizer=wordpiece:120", "--validation=0.1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "encoderjax.prepare", *flags],
        stdout=subprocess.DEVNULL,
    )
    while process.poll() is None and not any(out.glob("shard-*")):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (out / "manifest.json").exists()
    assert prepared(source, out, workers=Processes(2))[0] == alone


def test_a_worker_that_fails_ends_the_command(source, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "One. Two."}\n{"text": \n')
    with pytest.raises(UserError, match=r"a.jsonl, line 2: .* not JSON"):
        prepared(
            f"{source}/0.jsonl,{tmp_path}/a.jsonl",
            tmp_path / "out",
            strict=True,
            workers=Processes(2),
        )


@pytest.mark.parametrize(
    ("language_key", "read"),
    [("", {"word0", "word2"}), ("file", set(map("word{}".format, range(4))))],
)
def test_some_parts_of_a_large_source_are_enough_for_a_vocabulary(
    tmp_path, monkeypatch, language_key, read
):
    """But not with languages, which may lie in any of them."""
    monkeypatch.setattr("encoderjax.data.vocabularies._PARTS", 2)
    for number in range(4):
        write_jsonl(tmp_path / f"{number}.jsonl", [{"text": f"word{number}"}])
    reading = Reading(language_key=language_key)
    job = Job(
        out=str(tmp_path / "out"),
        parts=tuple(source_parts(str(tmp_path), reading, part_bytes=1)),
        reading=reading,
        selection=Selection(),
        shard_size=10**6,
        validation=0.0,
        seed=0,
    )
    assert set(_sampled(job, InPlace(), lambda line: None).texts()) == read


# ---- chosen documents ----


def texts_of(folder):
    """Returns the decoded documents of a corpus."""
    corpus = Corpus.open(folder)
    found = []
    for name in ("train", "validation"):
        split = corpus.split(name)
        starts = split.document_starts.slice(0, split.num_documents + 1)
        bounds = split.sentence_starts.take(starts)
        for a, b in itertools.pairwise(bounds):
            found.append(corpus.tokenizer.decode(split.tokens.slice(a, b)))
    return found


def test_the_first_of_equal_documents_stays(source, tmp_path):
    _, lines = prepared(
        source, tmp_path / "out", deduplicate=True, workers=Processes(2)
    )
    assert "3 of 183 documents repeat an earlier one" in lines
    counts = Counter(texts_of(tmp_path / "out"))
    assert len(counts) == 180
    assert set(counts.values()) == {1}


@pytest.mark.parametrize("bucket", [2**28, 200])
def test_repeats_are_found_across_parts(monkeypatch, bucket):
    monkeypatch.setattr("encoderjax.data.selection._BUCKET", bucket)
    rng = np.random.default_rng(0)
    texts = [[str(i) for i in rng.integers(0, 60, size)] for size in (40, 0, 30, 50)]
    digests = [
        sorted_digests(
            array.array(
                "Q",
                [n for i, t in enumerate(part) for n in (*digest_of(f" {t}\n"), i)],
            )
        )
        for part in texts
    ]
    assert all(part.dtype == DIGEST for part in digests)
    seen, expected = set(), []
    for part in texts:
        expected.append([i for i, t in enumerate(part) if t in seen or seen.add(t)])
    assert [found.tolist() for found in repeated(digests)] == expected


def test_documents_are_chosen_by_length_and_at_random(tmp_path):
    texts = ["short one", *invented(400, 700), "long " * 4000]
    write_jsonl(tmp_path / "a.jsonl", [{"text": text} for text in texts])
    options = {"min_chars": 100, "max_chars": 5000, "sample": 0.25}
    prepared(tmp_path / "a.jsonl", tmp_path / "out", **options)
    found = texts_of(tmp_path / "out")
    assert len(found) == pytest.approx(100, abs=4 * (400 * 0.25 * 0.75) ** 0.5)
    assert not any("short" in text or "long" in text for text in found)
    again, _ = prepared(tmp_path / "a.jsonl", tmp_path / "again", **options)
    assert again == files_of(tmp_path / "out")
    prepared(tmp_path / "a.jsonl", tmp_path / "other", **options, seed=1)
    assert set(texts_of(tmp_path / "other")) != set(found)


# ---- languages ----


@pytest.fixture(scope="module")
def polyglot(tmp_path_factory):
    """One file of English, German and a little French."""
    path = tmp_path_factory.mktemp("polyglot") / "all.jsonl"
    texts = documents(60)
    rows = [{"text": text, "lang": "en"} for text in texts[:40]]
    rows += [{"text": t.replace("The", "Der"), "lang": "de"} for t in texts[40:57]]
    rows += [{"text": t.replace("The", "La"), "lang": "fr"} for t in texts[57:]]
    order = np.random.default_rng(0).permutation(len(rows))
    write_jsonl(path, [rows[i] for i in order])
    return path


def test_each_language_becomes_a_corpus(polyglot, tmp_path):
    out = tmp_path / "out"
    options = {"language_key": "lang", "tokenizer": "wordpiece:180"}
    files, lines = prepared(polyglot, out, **options)
    mixture = json.loads(files["mixture.json"])
    assert mixture["members"] == ["de", "en", "fr"]
    corpora = {name: Corpus.open(out / name) for name in mixture["members"]}
    assert {name: len(texts_of(out / name)) for name in corpora} == {
        "de": 17,
        "en": 40,
        "fr": 3,
    }
    for name, article in (("de", "der "), ("en", "the "), ("fr", "la ")):
        assert all(text.startswith(article) for text in texts_of(out / name))
    assert len({corpus.tokenizer.sha256 for corpus in corpora.values()}) == 1
    # What alpha does to each, beside a tokenizer trained without it.
    header = next(line for line in lines if line.startswith("language"))
    assert "alpha=0.3" in header
    assert "alpha=1" in header
    # By two workers, and by name of the file.
    again, _ = prepared(polyglot, tmp_path / "two", **options, workers=Processes(2))
    assert again == files
    assert prepared(polyglot, out, **options)[1] == [f"{out} is already prepared"]
    command.main([f"--out={out}", "--verify"])


def test_some_languages_may_be_taken(polyglot, tmp_path):
    options = {"language_key": "lang", "tokenizer": "wordpiece:150"}
    files, _ = prepared(polyglot, tmp_path / "out", **options, languages="fr,de")
    assert json.loads(files["mixture.json"])["members"] == ["de", "fr"]


def test_many_open_languages_take_the_memory_of_two(tmp_path):
    rows = [
        {"text": text, "lang": f"l{i % 5}"}
        for i, text in enumerate(invented(150, 20_000))
    ]
    write_jsonl(tmp_path / "a.jsonl", rows)
    options = {"language_key": "lang", "tokenizer": "wordpiece:120", "shard_mb": 1}
    files, _ = prepared(tmp_path / "a.jsonl", tmp_path / "out", **options)
    # 0.6 MB of each, of which none ever has a megabyte: the largest is closed whenever
    # all have two together.
    assert 5 < sum("/shard-" in name for name in files) < 10
    assert sum(len(texts_of(tmp_path / "out" / f"l{i}")) for i in range(5)) == 150


# ---- elsewhere ----


def test_a_corpus_is_written_to_an_object_store(source, alone):
    name = f"prepared-{os.getpid()}"
    prepare(
        source=str(source),
        out=f"memory://{name}",
        tokenizer="wordpiece:120",
        shard_mb=1,
        validation=0.1,
        report=lambda line: None,
    )
    store = fsspec.filesystem("memory")
    found = {
        path.removeprefix(f"/{name}/"): store.cat_file(path)
        for path in store.find(f"/{name}")
    }
    store.rm(f"/{name}", recursive=True)
    assert found == alone


@pytest.mark.beam
def test_apache_beam_writes_the_same_bytes(source, alone, tmp_path):
    out = tmp_path / "out"
    flags = [f"--source={source}", f"--out={out}", "--shard_mb=1", "--runner=beam"]
    flags += ["--tokenizer=wordpiece:120", "--validation=0.1", "--workers=2"]
    flags += ["--beam_options=--direct_num_workers=2"]
    command.main(flags)
    assert files_of(out) == alone


def test_beam_is_asked_for_by_name_where_it_is_missing(source, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)  # as if not installed
    with pytest.raises(UserError, match=r"--runner=beam needs .*apache-beam"):
        command.main([f"--source={source}", f"--out={tmp_path}/o", "--runner=beam"])
    with pytest.raises(UserError, match=r"--beam_options='--x=1' needs --runner=beam"):
        command.main(
            [f"--source={source}", f"--out={tmp_path}/o", "--beam_options=--x=1"]
        )


def test_rows_are_cut_ahead_of_a_run(source, tmp_path, capsys):
    corpus = prepare_corpus(
        source=str(source),
        out=tmp_path / "out",
        tokenizer="wordpiece:120",
        report=lambda line: None,
    )
    flags = [f"--out={corpus.folder}", "--rows_for=configs/bert_base.py:tiny"]
    command.main([*flags, "--config.phases.long.data.length=96"])
    assert "long: rows of 96 are cut" in capsys.readouterr().out
    cut = {path.name for path in (corpus.folder / "rows").iterdir()}
    assert len(cut) == 4  # two lengths, two splits
    for flag in ("--config.data.lenght=9", "--lenght=9"):
        with pytest.raises(UserError, match=r"lenght"):
            command.main([*flags, flag])
