"""Languages of a preparation: their names, rare ones, and those not found."""

import json

import pytest

from encoderjax.data import preparation, vocabularies
from encoderjax.data.beginning import begin
from encoderjax.data.corpus import Corpus
from encoderjax.data.documents import Reading, is_language
from encoderjax.data.preparation import prepare
from encoderjax.data.selection import Selection
from encoderjax.data.sharding import Job
from encoderjax.data.sources import Trouble, read_source, source_parts
from encoderjax.data.workers import InPlace, Processes
from encoderjax.errors import UserError
from tests.test_prepare_again import files_of, write_vocabulary

BAD = ["..", ".", "../x", "/tmp/x", "a/b", "a\0b", "\ud800", "x" * 300, ".work"]
BAD += ["tokenizer.json", "a\nb", "a\\b"]


@pytest.fixture
def letters(tmp_path):
    return write_vocabulary(tmp_path / "vocab.txt")


def write_records(path, pairs):
    lines = [json.dumps({"text": text, "lang": lang}) for text, lang in pairs]
    path.write_text("\n".join(lines))
    return path


def prepared(source, out, tokenizer, **options):
    lines = []
    options = {"language_key": "lang"} | options
    prepare(
        source=str(source),
        out=out,
        tokenizer=tokenizer,
        report=lines.append,
        **options,
    )
    return json.loads((out / "mixture.json").read_text())["members"], lines


def test_a_language_that_cannot_name_a_folder_is_skipped(letters, tmp_path):
    good = ["work", "en", "zh-Hant", "中文", "wiki.en"]
    source = write_records(tmp_path / "a.jsonl", [("words", n) for n in BAD + good])
    members, lines = prepared(source, tmp_path / "out", letters)
    assert members == sorted(good)
    assert any(f"{len(BAD)} records whose languages" in line for line in lines)
    assert Corpus.open(tmp_path / "out" / "work").split("train").num_documents == 1
    assert not any(map(is_language, [*BAD, ""]))


def test_languages_by_path_are_checked(tmp_path, monkeypatch):
    folder = tmp_path / "en"
    folder.mkdir()
    (folder / "a.txt").write_text("Some words.")
    monkeypatch.chdir(folder)
    reading = Reading(language_key="folder")
    assert [d.language for d in read_source("a.txt", reading, Trouble())] == ["en"]
    (folder / ".hidden.txt").write_text("Some words.")
    with pytest.raises(UserError, match=r"--language_key=file: ''"):
        source_parts(f"{folder}/.hidden.txt", Reading(language_key="file"))


def test_a_rare_language_is_trained_on(letters, tmp_path, monkeypatch):
    # Each language has one document, and each file is a part.
    parts = preparation.sources.source_parts
    monkeypatch.setattr(
        preparation.sources,
        "source_parts",
        lambda *args, **options: parts(*args, **options, part_bytes=20),
    )
    folder = tmp_path / "source"
    folder.mkdir()
    names = [f"l{i}" for i in range(12)]
    for name in names:
        write_records(folder / f"{name}.jsonl", [("words", name)])
    write_records(folder / "none.jsonl", [("\u200b", "none")])
    options = {"validation": 0.5}
    members, lines = prepared(folder, tmp_path / "out", letters, **options)
    assert members == sorted(names)
    for name in names:
        corpus = Corpus.open(tmp_path / "out" / name)
        corpus.verify()
        assert corpus.split("train").num_documents == 1
        assert corpus.unigrams_V.sum() == len("words")
    assert any("none is left out" in line for line in lines)
    assert not (tmp_path / "out" / "none").exists()
    prepared(folder, tmp_path / "two", letters, **options, workers=Processes(2))
    assert files_of(tmp_path / "two") == files_of(tmp_path / "out")
    # Interrupted after some of the languages were finished.
    mixture = json.loads((tmp_path / "two" / "mixture.json").read_text())
    (tmp_path / "two" / "mixture.json").unlink()
    begin(
        tmp_path / "begun",
        mixture["settings"],
        preparation.sources.source_parts(str(folder), Reading(language_key="lang")),
    )
    (tmp_path / "begun" / "preparing.json").rename(tmp_path / "two" / "preparing.json")
    for name in names[::2]:
        for path in (tmp_path / "two" / name).glob("*.json"):
            path.unlink()
    prepared(folder, tmp_path / "two", letters, **options)
    assert files_of(tmp_path / "two") == files_of(tmp_path / "out")
    with pytest.raises(UserError, match="has no tokens to train on"):
        prepared(folder / "none.jsonl", tmp_path / "empty", letters)


def test_a_small_language_in_one_of_many_parts_is_sampled(tmp_path, monkeypatch):
    monkeypatch.setattr(vocabularies, "_SAMPLE", 64_000)
    folder = tmp_path / "source"
    folder.mkdir()
    for i in range(64):
        write_records(folder / f"{i:02d}.jsonl", [("x" * 99, "en")] * 100)
    small = [(f"{i:02d}" * 50, "fr") for i in range(30)]  # 3,000 characters
    write_records(folder / "00.jsonl", [("x" * 99, "en")] * 100 + small)
    reading = Reading(language_key="lang")
    job = Job(
        out=str(tmp_path / "out"),
        parts=tuple(source_parts(str(folder), reading, 20_000)),
        reading=reading,
        selection=Selection(),
        shard_size=10**6,
        validation=0.0,
        seed=0,
    )
    assert len(job.parts) > 30
    sample = vocabularies._sampled(job, InPlace(), lambda line: None)
    kept = sample.texts_by_language(10**6)
    assert sorted(kept["fr"]) == sorted(text for text, _ in small)


def test_languages_that_are_asked_for_and_not_there(letters, tmp_path):
    pairs = [("words", "en"), ("words", "fr"), ("words", "de")]
    source = write_records(tmp_path / "a.jsonl", pairs)
    members, lines = prepared(source, tmp_path / "out", letters, languages="en, fr,it")
    assert members == ["en", "fr"]
    assert "warning: no document of language it was found" in lines
    with pytest.raises(UserError, match="3 documents were read and none was taken"):
        prepared(source, tmp_path / "none", letters, languages="it")
