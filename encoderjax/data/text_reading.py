"""Lines of text files, and the documents and records that are made of them."""

import codecs
import itertools
import json
from collections.abc import Iterable, Iterator
from typing import Any

from encoderjax.data import documents
from encoderjax.data.decompression import read_blocks
from encoderjax.data.documents import Document, Origin, Reading, detect_form, take_head
from encoderjax.data.trouble import Kind, Notes
from encoderjax.errors import UserError

_BYTE_ORDER_MARK = "\ufeff"
_ESCAPED = 4  # bytes of a JSON line to a character of a document, at most


def read_text(
    path: str, reading: Reading, language: str, notes: Notes
) -> Iterator[Document]:
    """Yields the documents of a text file."""
    lines = _text_lines(read_blocks(path, notes), notes)
    head = take_head(lines)
    sentences, form = reading.sentences, reading.documents
    if sentences == "fields":
        raise UserError(
            f"--sentences=fields does not fit {path}, which has no records; give JSON "
            "lines, Parquet or a data set of tfds"
        )
    if sentences == "auto":
        sentences = detect_form("".join(head))
    if form == "auto":
        form = "blank_line" if sentences == "lines" else "file"
    origin = Origin(path, sentences, form)
    text = None
    for text, is_cut in _cut_documents(itertools.chain(head, lines), form, notes):
        yield Document(text, origin, language, is_cut)
    if text is None and not notes.count:
        notes.add(Kind.EMPTY_FILE)


def read_json_lines(
    path: str, notes: Notes, start: int = 0, stop: int | None = None
) -> Iterator[tuple[int, Any]]:
    """Yields the values of JSON lines, each with its number.

    Args:
      start, stop: limit the lines to those that start at these bytes of the file;
        numbers then count from there.
    """
    for number, line in enumerate(_lines_between(path, notes, start, stop), 1):
        if line is None:
            notes.add(Kind.TOO_LONG, number)
            continue
        cut_off = notes.damaged and not line.endswith(b"\n")
        if cut_off or not line.strip():
            continue
        if (text := _decoded(line, notes, number)) is None:
            continue
        try:
            yield number, json.loads(text.removeprefix(_BYTE_ORDER_MARK))
        except (ValueError, RecursionError) as error:
            notes.add(Kind.NOT_JSON, number, error)


# ---- documents ----


def _cut_documents(
    lines: Iterable[str], form: str, notes: Notes
) -> Iterator[tuple[str, bool]]:
    """Yields the texts of the documents, none of them blank, and which are pieces."""
    kept: list[str] = []
    size = 0
    is_cut = False
    for line, following in itertools.pairwise(itertools.chain(lines, [""])):
        blank = not line.strip()
        if kept and size + len(line) > documents.MAX_DOCUMENT:
            if not is_cut and kept[-1].endswith("\n"):  # else the line was noted
                notes.add(Kind.CUT)
            is_cut = True
            yield "".join(kept), is_cut
            kept, size = [], 0
        if not blank or kept:
            kept.append(line)
            size += len(line)
        goes_on = form == "line" and bool(following) and not line.endswith("\n")
        if form == "line" or (blank and form == "blank_line"):
            if kept:
                yield "".join(kept), is_cut or goes_on
            kept, size, is_cut = [], 0, goes_on
    if kept:
        yield "".join(kept), is_cut


# ---- lines ----


def _text_lines(blocks: Iterable[bytes], notes: Notes) -> Iterator[str]:
    """Yields decoded lines with their ends, none empty; a long one in pieces."""
    number, first, cut = 1, True, False
    for piece, ends in _pieces(blocks, documents.MAX_DOCUMENT):
        if not (ends or cut):
            notes.add(Kind.CUT, number)
        cut = not ends
        text = _decoded(piece, notes, number)
        if text is not None:
            if "\0" in text:
                notes.add(Kind.NUL, number)
                text = text.replace("\0", "")
            text = text.removeprefix(_BYTE_ORDER_MARK) if first else text
            if text:
                yield text
        number += ends
        first = False


def _decoded(line: bytes, notes: Notes, number: int) -> str | None:
    # Where the file was damaged, half a character may be the end of what is left.
    is_whole = not notes.damaged or line.endswith(b"\n")
    try:
        return codecs.utf_8_decode(line, "strict", is_whole)[0]
    except UnicodeDecodeError as error:
        notes.add(Kind.NOT_UTF8, number, error)
        return None


def _lines_between(
    path: str, notes: Notes, start: int, stop: int | None
) -> Iterator[bytes | None]:
    """Yields the lines that start in a range of bytes; None for one that is too long.

    Reading begins a byte early: a line that starts at `start` is told by the end of
    the one before.
    """
    limit = _ESCAPED * documents.MAX_DOCUMENT
    offset = max(start - 1, 0)
    passed = start == 0  # the line in which the range begins
    begun, whole = offset, True
    for piece, ends in _pieces(read_blocks(path, notes, offset), limit):
        if stop is not None and begun >= stop:
            return
        offset += len(piece)
        if not ends:
            whole = False
            continue
        if passed:
            yield piece if whole else None
        passed, begun, whole = True, offset, True


def _pieces(blocks: Iterable[bytes], limit: int) -> Iterator[tuple[bytes, bool]]:
    """Yields lines with their ends, in pieces of at most `limit` bytes before the end.

    With each piece comes whether the line ends with it. Where a line is cut depends
    on its bytes alone, not on those of the blocks.
    """
    rest = b""
    for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            while len(line) > limit:
                piece, line = _cut_line(line, limit)
                yield piece, False
            yield line + b"\n", True
        while len(rest) > limit:
            piece, rest = _cut_line(rest, limit)
            yield piece, False
    if rest:
        yield rest, True


def _cut_line(line: bytes, limit: int) -> tuple[bytes, bytes]:
    """Cuts after the last white space that fits, or else between two characters."""
    cut = 1 + max(line.rfind(mark, 0, limit) for mark in (b" ", b"\t", b"\r"))
    if cut == 0:
        cut = limit
        while cut > 1 and line[cut] & 0xC0 == 0x80:  # inside a character
            cut -= 1
    return line[:cut], line[cut:]
