"""Preparation that is begun again: with other settings, other files, or finished."""

import json
import os
import shutil

import fsspec
import pytest

from encoderjax import prepare as command
from encoderjax.data.corpus import Corpus
from encoderjax.data.preparation import prepare
from encoderjax.errors import UserError

MARKS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def write_vocabulary(path, letters=LETTERS):
    path.write_text("\n".join([*MARKS, ".", *letters, *(f"##{c}" for c in letters)]))
    return str(path)


@pytest.fixture
def letters(tmp_path):
    return write_vocabulary(tmp_path / "vocab.txt")


def write_texts(path, texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def prepared(source, out, tokenizer, **options):
    lines = []
    report = options.pop("report", lines.append)
    prepare(source=str(source), out=out, tokenizer=tokenizer, report=report, **options)
    return lines


def files_of(folder):
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def test_lists_of_duplicates_are_not_those_of_other_settings(letters, tmp_path):
    source = write_texts(tmp_path / "a.jsonl", ["one", "one", "two"])
    out, options = tmp_path / "out", {"deduplicate": True, "validation": 0.0}
    with pytest.raises(UserError, match="ask for at most"):
        prepared(source, out, "wordpiece:9000", **options)
    write_texts(source, ["one", "two", "three", "four"])
    lines = prepared(source, out, letters, **options)
    assert "0 of 4 documents repeat an earlier one" in lines
    assert Corpus.open(out).split("train").num_documents == 4


def test_another_tokenizer_in_the_same_folder_gives_its_own_ids(letters, tmp_path):
    source = write_texts(tmp_path / "a.jsonl", ["some words", "more words"])
    other = write_vocabulary(tmp_path / "other.txt", LETTERS[::-1])
    prepared(source, tmp_path / "out", letters)
    shutil.rmtree(tmp_path / "out")
    prepared(source, tmp_path / "out", other)
    prepared(source, tmp_path / "fresh", other)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "fresh")


def test_files_may_not_change_before_the_end(letters, tmp_path):
    source, out = tmp_path / "a.jsonl", tmp_path / "out"
    source.write_text('{"text": "words"}\n{"text": \n')
    with pytest.raises(UserError, match="not JSON"):
        prepared(source, out, letters, strict=True)
    assert (out / "preparing.json").exists()
    source.write_text('{"text": "other"}\n{"text": \n')  # of the same size
    os.utime(source, ns=(1, 1))
    with pytest.raises(UserError, match="files of another time"):
        prepared(source, out, letters)
    shutil.rmtree(out)

    def touch(line):
        if line.startswith("tokenizer:"):
            os.utime(source, ns=(2, 2))

    with pytest.raises(UserError, match="files of another time"):
        prepared(source, out, letters, report=touch)
    assert not (out / "manifest.json").exists()
    shutil.rmtree(out)
    prepared(source, out, letters)
    os.utime(source, ns=(3, 3))  # a finished corpus does not mind a copy
    assert prepared(source, out, letters) == [f"{out} is already prepared"]


def test_a_finished_folder_is_tidied_and_keeps_its_tokenizer(letters, tmp_path):
    source = write_texts(tmp_path / "a.jsonl", ["some words", "more words"])
    out = tmp_path / "out"
    prepared(source, out, letters)
    files = files_of(out)
    # What is left by a kill between the manifest and the end.
    (out / ".work").mkdir()
    (out / ".work" / "repeats-00000.npy").write_bytes(b"")
    (out / "preparing.json").write_text("{}")
    assert prepared(source, out, letters) == [f"{out} is already prepared"]
    assert files_of(out) == files
    assert not (out / ".work").exists()
    write_vocabulary(tmp_path / "vocab.txt", LETTERS[::-1])
    with pytest.raises(UserError, match=r"vocab.txt has changed"):
        prepared(source, out, letters)


@pytest.mark.parametrize("tokenizer", ["none.txt", "wordpiece:many"])
def test_the_tokenizer_is_looked_for_before_anything_is_made(tmp_path, tokenizer):
    source = write_texts(tmp_path / "a.jsonl", ["some words", "more words"])
    with pytest.raises(UserError, match=f"--tokenizer={tokenizer}"):
        prepared(source, tmp_path / "out", tokenizer, deduplicate=True)
    assert not (tmp_path / "out").exists()


def test_out_may_lie_in_the_source(letters, tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    write_texts(folder / "a.jsonl", ["some words", "more words"])
    out = folder / "out"
    prepared(folder, out, letters)  # writes a vocab.txt, which is text by its name
    assert prepared(folder, out, letters) == [f"{out} is already prepared"]


def test_verify_reads_every_spelling_of_a_folder(
    letters, tmp_path, monkeypatch, capsys
):
    source = write_texts(tmp_path / "a.jsonl", ["some words", "more words"])
    out = tmp_path / "out"
    prepared(source, out, letters)
    monkeypatch.setenv("HOME", str(tmp_path))
    store = fsspec.filesystem("memory")
    remote = f"memory://verified-{os.getpid()}"
    store.put(str(out), remote, recursive=True)
    for spelling in (out, f"file://{out}", "~/out", remote):
        command.main([f"--out={spelling}", "--verify"])
        assert "as they were written" in capsys.readouterr().out
    store.pipe_file(f"{remote}/vocab.txt", b"other")
    with pytest.raises(UserError, match=r"vocab.txt is damaged"):
        command.main([f"--out={remote}", "--verify"])
    store.rm(remote, recursive=True)
    for content in ("{", "{}", "[]"):
        (out / "mixture.json").write_text(content)
        with pytest.raises(UserError, match=r"mixture.json is damaged"):
            command.main([f"--out={out}", "--verify"])


def test_what_was_read_and_not_taken_is_said(letters, tmp_path):
    source = write_texts(tmp_path / "a.jsonl", ["some words", "more words"])
    with pytest.raises(UserError, match="2 documents were read and none was taken"):
        prepared(source, tmp_path / "out", letters, min_chars=1000)
    with pytest.raises(UserError, match=r"--seed=1000.* is not a number from 0"):
        prepared(source, tmp_path / "out", letters, seed=10**20)


@pytest.mark.parametrize(
    ("validation", "period"),
    [(0.01, 100), (0.05, 20), (0.1, 10), (0.2, 5), (0.4, 3), (0.5, 2)],
)
def test_the_nearest_share_is_held_out(letters, tmp_path, validation, period):
    source = write_texts(tmp_path / "a.jsonl", ["words"] * 300)
    prepared(source, tmp_path / "out", letters, validation=validation)
    held_out = Corpus.open(tmp_path / "out").split("validation")
    assert held_out.num_documents == 300 // period
