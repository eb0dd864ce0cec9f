import bz2
import gzip
import itertools
import json
import lzma

import pytest
import zstandard

from encoderjax.data.documents import detect_form
from encoderjax.data.sources import Reading, Trouble, read_source, source_pieces
from encoderjax.errors import UserError

COMPRESSORS = {
    ".gz": gzip.compress,
    ".zst": zstandard.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}
LINES = "The first sentence.\nThe second one.\n\nAnother document.\nIt ends here.\n"
WRAPPED = "A paragraph that is\nwrapped over lines. It\nhas two sentences.\n\nMore.\n"


def documents(source, **options):
    return list(read_source(source, Reading(**options), Trouble()))


def sentences_of(source, **options):
    return [document.sentences() for document in documents(str(source), **options)]


def test_lines_form_has_a_document_a_block(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text(LINES)
    (first, second) = documents(str(path))
    assert first.sentences() == ["The first sentence.", "The second one."]
    assert second.sentences() == ["Another document.", "It ends here."]
    assert (first.origin.sentences, first.origin.documents) == ("lines", "blank_line")


def test_prose_has_a_document_a_file(tmp_path):
    (tmp_path / "b.txt").write_text(WRAPPED)
    (tmp_path / "a.txt").write_text("One. Two.")
    expected = ["A paragraph that is wrapped over lines.", "It has two sentences."]
    assert sentences_of(tmp_path) == [["One.", "Two."], [*expected, "More."]]


@pytest.mark.parametrize(
    ("form", "count"), [("blank_line", 2), ("file", 1), ("line", 4)]
)
def test_documents_forms_of_text(tmp_path, form, count):
    path = tmp_path / "a.txt"
    path.write_text(LINES)
    found = sentences_of(path, documents=form)
    assert len(found) == count
    assert list(itertools.chain(*found)) == [line for line in LINES.split("\n") if line]


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (LINES, "lines"),
        (WRAPPED, "split"),
        ("One sentence. And two.\nThree here. Four.\nFive. Six.\n", "split"),
        ("A line.\n\nA line.\n\nA line.\n\n", "split"),
        ("One line only.\n", "split"),
    ],
)
def test_detected_form(text, form):
    assert detect_form(text) == form


def test_json_lines_are_documents(tmp_path):
    path = tmp_path / "a.jsonl"
    records = [{"body": "One. Two."}, {"body": " "}, {"body": "Three\u2028Four."}]
    path.write_text("\n".join(json.dumps(r, ensure_ascii=False) for r in records))
    assert sentences_of(path, text_key="body") == [["One.", "Two."], ["Three Four."]]


def test_half_a_surrogate_pair_is_replaced(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(r'{"text": "a \ud800 b \ud83d\ude00"}')
    assert sentences_of(path) == [["a \ufffd b \U0001f600"]]


def test_compressed_files_read_the_same(tmp_path):
    data = ("\ufeff" + "À la carte. Oui.\n" * 5000).encode()
    (tmp_path / "a.txt").write_bytes(data)
    half = len(data) // 2  # two frames, as parallel compressors write
    for suffix, compress in COMPRESSORS.items():
        frames = [compress(part) for part in (data[:half], data[half:])]
        (tmp_path / f"a.txt{suffix}").write_bytes(b"".join(frames))
    plain, *others = sentences_of(tmp_path)
    assert len(others) == len(COMPRESSORS)
    assert all(other == plain for other in others)
    assert plain[:2] == ["À la carte.", "Oui."]


def test_files_are_sorted_and_taken_once(tmp_path):
    for name in ("b.txt", "a.txt", "c.md", ".hidden.txt", "sub/d.jsonl.gz"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("Text.")

    def names(source):
        return [piece.name for piece in source_pieces(source, Reading())]

    assert names(str(tmp_path)) == ["a.txt", "b.txt", "d.jsonl.gz"]
    assert names(f"{tmp_path}/*.md,{tmp_path}/*.txt") == ["c.md", "a.txt", "b.txt"]
    assert names(f"{tmp_path}/b.txt,{tmp_path}/[ab].txt") == ["b.txt", "a.txt"]
    assert names(f"{tmp_path}/**/*.gz") == ["d.jsonl.gz"]


def test_a_file_without_end_is_cut_at_a_line(tmp_path, monkeypatch):
    monkeypatch.setattr("encoderjax.data.documents.MAX_DOCUMENT", 1000)
    path = tmp_path / "a.txt"
    path.write_text("Some text here. And\nmore of it there.\n" * 100)
    found = documents(str(path))
    assert "".join(document.text for document in found) == path.read_text()
    assert len(found) > 2
    assert all(len(document.text) < 1100 for document in found)


def test_demo_has_the_published_number_of_addresses():
    found = documents("demo")
    assert len(found) == 249
    assert sum(len(document.text.encode()) for document in found) == 12_185_751


@pytest.mark.parametrize(
    ("source", "options", "part"),
    [
        ("none.txt", {}, "does not exist"),
        ("*.none", {}, "matches no file"),
        ("", {}, "names no files"),
        (".", {}, "folder without"),
        ("a", {"sentences": "words"}, "--sentences=words"),
        ("a", {"documents": "page"}, "--documents=page"),
    ],
)
def test_unusable_sources_are_refused(tmp_path, monkeypatch, source, options, part):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=part):
        documents(source, **options)


def test_archives_are_refused(tmp_path):
    for name in ("a.tar.xz", "a.zip"):
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(UserError, match="is an archive"):
            documents(f"{tmp_path}/{name}")


def test_json_lines_refuse_other_documents(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}')
    with pytest.raises(UserError, match="--documents=file does not fit"):
        documents(str(path), documents="file")
