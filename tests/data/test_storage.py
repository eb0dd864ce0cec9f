"""Files by URL: the same as by path."""

import gzip
import hashlib
import json
import pathlib
import sys
import threading
import uuid

import pyarrow as pa
import pyarrow.parquet
import pytest

from encoderjax.data import storage
from encoderjax.data.corpus import Corpus
from encoderjax.data.local_copies import local_copy
from encoderjax.data.opening import open_corpus
from encoderjax.data.pipeline import DataConfig
from encoderjax.data.preparation import prepare, prepare_corpus
from encoderjax.data.sources import Reading, Trouble, read_source
from encoderjax.errors import UserError


@pytest.fixture
def url():
    """A folder of its own in the storage that fsspec keeps in memory."""
    return f"memory://{uuid.uuid4().hex}"


def copy_to(url, folder):
    for path in pathlib.Path(folder).rglob("*"):
        if path.is_file():
            name = path.relative_to(folder).as_posix()
            storage.write_file(storage.join(url, name), [path.read_bytes()])


@pytest.mark.parametrize("kind", ["path", "file", "memory"])
def test_files_are_the_same_everywhere(tmp_path, url, kind):
    folder = {"path": str(tmp_path), "file": f"file://{tmp_path}", "memory": url}[kind]
    path = storage.join(folder, "sub/a.txt")
    assert storage.find_file(path) is None
    storage.make_folder(storage.join(folder, "sub"))
    written = storage.write_file(path, [b"one ", memoryview(b"two")])
    assert written == {
        "sha256": hashlib.sha256(b"one two").hexdigest(),
        "bytes": 7,
    }
    storage.write_file(storage.join(folder, "b.txt"), [b"b"])
    assert storage.read_bytes(path) == b"one two"
    assert storage.find_file(path).size == 7
    assert storage.find_file(folder) is None
    assert storage.is_folder(folder)
    assert not storage.is_folder(path)
    for found in (storage.files_under(folder), storage.matching_files(f"{folder}/**")):
        assert [(storage.name_of(f.path), f.size) for f in found] == [
            ("b.txt", 1),
            ("a.txt", 7),
        ]
        assert [storage.read_bytes(f.path) for f in found] == [b"b", b"one two"]
    with storage.open_file(path) as file:
        file.seek(4)
        assert file.read() == b"two"
    for _ in range(2):
        storage.remove_file(path)
    assert storage.find_file(path) is None


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("memory://none/a.txt", "cannot read memory://none/a.txt"),
        ("/none/a.txt", "cannot read /none/a.txt: No such file"),
        ("nothing://a", "no storage is known under nothing://"),
    ],
)
def test_what_cannot_be_read_is_named(path, part):
    with pytest.raises(UserError, match=part):
        storage.read_bytes(path)


@pytest.mark.parametrize(("protocol", "package"), [("gs", "gcsfs"), ("s3", "s3fs")])
def test_a_missing_package_is_named(monkeypatch, protocol, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=f"pip install {package}"):
        storage.read_bytes(f"{protocol}://bucket/a.txt")


def test_a_source_is_the_same_by_url(tmp_path, url):
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.txt").write_text("One text. And more.\n")
    records = "".join(json.dumps({"text": f"Number {i}."}) + "\n" for i in range(99))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(records.encode()))
    (tmp_path / "sub" / "c.jsonl").write_text(records)
    (tmp_path / ".hidden.txt").write_text("No.")
    table = pa.table({"text": [f"Row {i}." for i in range(99)]})
    pa.parquet.write_table(table, tmp_path / "d.parquet", row_group_size=9)
    copy_to(url, tmp_path)

    def read(source, **options):
        documents = read_source(source, Reading(**options), Trouble())
        return [(d.text, d.language) for d in documents]

    for place in (url, f"file://{tmp_path}"):
        assert read(place) == read(str(tmp_path))
        assert len(read(place)) == 1 + 3 * 99
        assert read(f"{place}/*.gz") == read(f"{tmp_path}/*.gz")
        languages = read(f"{place}/sub", language_key="folder")
        assert {language for _, language in languages} == {"sub"}
    with pytest.raises(UserError, match="does not exist"):
        read(f"{url}/none.txt")


# ---- copies of a corpus ----


def silent(line):
    pass


@pytest.fixture(scope="module")
def corpus_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("remote")
    source = folder / "source.jsonl"
    lines = [json.dumps({"text": f"Some words, number {i}."}) for i in range(300)]
    source.write_text("\n".join(lines))
    prepare_corpus(
        source=str(source), out=folder / "out", tokenizer="wordpiece:60", report=silent
    )
    return folder / "out"


def files_of(folder):
    return {p.name: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_copy_is_made_once_and_announced(corpus_folder, tmp_path, url):
    copy_to(url, corpus_folder)
    lines = []
    folder = local_copy(url, tmp_path, lines.append)
    size = sum(f["bytes"] for f in Corpus.open(folder).manifest["files"].values())
    assert lines[0].endswith(f": {size / 1e6:,.1f} MB")
    Corpus.open(folder).verify()
    needed = {*Corpus.open(folder).manifest["files"], "manifest.json"}
    assert files_of(folder) == {
        name: content
        for name, content in files_of(corpus_folder).items()
        if name in needed
    }
    lines.clear()
    assert local_copy(url, tmp_path, lines.append) == folder
    assert not lines


def test_an_interrupted_copy_goes_on(corpus_folder, tmp_path, url):
    copy_to(url, corpus_folder)
    folder = local_copy(url, tmp_path, silent)
    whole = files_of(folder)
    (folder / "manifest.json").unlink()
    (folder / "tokenizer.json").unlink()
    tokens = next(folder.glob("train-*.tokens.npy"))
    tokens.write_bytes(tokens.read_bytes()[:100])
    kept = folder / "unigrams.npy"
    before = kept.stat().st_mtime_ns
    lines = []
    assert local_copy(url, tmp_path, lines.append) == folder
    assert "MB are there" in lines[0]
    assert files_of(folder) == whole
    assert kept.stat().st_mtime_ns == before


def test_several_copy_at_once(corpus_folder, tmp_path, url):
    copy_to(url, corpus_folder)
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(local_copy(url, tmp_path, silent)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert len(set(found)) == 1
    Corpus.open(found[0]).verify()
    assert not list(found[0].glob("*.partial"))


def test_a_corpus_prepared_anew_is_another_copy(corpus_folder, tmp_path, url):
    copy_to(url, corpus_folder)
    first = local_copy(url, tmp_path, silent)
    path = storage.join(url, "manifest.json")
    storage.write_file(path, [storage.read_bytes(path) + b"\n"])
    assert local_copy(url, tmp_path, silent) != first


@pytest.mark.parametrize("what", ["size", "content", "missing", "unfinished"])
def test_a_remote_corpus_that_is_not_whole_is_refused(
    corpus_folder, tmp_path, url, what
):
    copy_to(url, corpus_folder)
    path = storage.join(url, "unigrams.npy")
    content = storage.read_bytes(path)
    if what == "size":
        storage.write_file(path, [content[:-1]])
    elif what == "content":
        storage.write_file(path, [bytes([content[0] ^ 1]) + content[1:]])
    elif what == "missing":
        storage.remove_file(path)
    else:
        storage.remove_file(storage.join(url, "manifest.json"))
    part = {
        "size": "unigrams.npy has .* bytes, the manifest says",
        "content": "unigrams.npy is damaged",
        "missing": "unigrams.npy is missing",
        "unfinished": "has no manifest.json",
    }[what]
    with pytest.raises(UserError, match=part):
        local_copy(url, tmp_path, silent)
    assert not list(tmp_path.rglob("manifest.json"))
    assert not list(tmp_path.rglob("unigrams.npy*"))


def test_a_run_reads_a_remote_corpus(corpus_folder, url, cache):
    copy_to(url, corpus_folder)
    opened = open_corpus(DataConfig(corpus=url, batch_size=8), silent)
    (member,) = opened.members
    assert member.corpus.folder.is_relative_to(cache)
    assert member.corpus.fingerprint == Corpus.open(corpus_folder).fingerprint


def test_languages_are_copied_together(tmp_path, url):
    for language in ("de", "fr"):
        lines = [json.dumps({"text": f"{language} {i} words."}) for i in range(50)]
        (tmp_path / f"{language}.jsonl").write_text("\n".join(lines))
    options = {"tokenizer": "wordpiece:50", "language_key": "file", "report": silent}
    prepare(source=str(tmp_path), out=tmp_path / "out", **options)
    copy_to(url, tmp_path / "out")
    folder = local_copy(url, tmp_path / "cache", silent)
    assert (folder / "mixture.json").is_file()
    for language in ("de", "fr"):
        Corpus.open(folder / language).verify()


def test_a_source_and_a_corpus_by_url(tmp_path, url):
    """Prepared from and to an object store: the bytes of local folders."""
    lines = [json.dumps({"text": f"Some words, number {i}."}) for i in range(300)]
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.jsonl").write_text("\n".join(lines))
    copy_to(f"{url}/source", tmp_path / "source")
    options = {"tokenizer": "wordpiece:60", "report": silent}
    prepare(source=str(tmp_path / "source"), out=tmp_path / "out", **options)
    prepare(source=f"{url}/source", out=f"{url}/out", **options)
    folder = local_copy(f"{url}/out", tmp_path / "cache", silent)
    both = Corpus.open(folder), Corpus.open(tmp_path / "out")
    assert both[0].fingerprint == both[1].fingerprint
