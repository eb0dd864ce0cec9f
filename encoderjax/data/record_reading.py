"""Documents of records, whatever holds them: JSON lines, rows, examples."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from encoderjax.data import documents
from encoderjax.data.documents import (
    Document,
    Origin,
    Reading,
    detect_form,
    is_language,
    take_head,
)
from encoderjax.data.trouble import Kind, Notes, Trouble
from encoderjax.errors import UserError

# Numbered records; what cannot be read is noted. Text is str, or bytes of UTF-8.
Records = Callable[[Notes], Iterable[tuple[int, Any]]]

_PATIENCE = 10_000  # records that may lack a field before one has it


def read_records(
    records: Records,
    reading: Reading,
    language: str | None,
    notes: Notes,
    beginning: Records | None = None,
) -> Iterator[Document]:
    """Yields the documents of the records of a file, or of a range of it.

    Args:
      language: of all of them; None takes each from its own field.
      beginning: for a range, the records from the beginning of the file, which show
        the form of all.
    """
    if reading.documents not in ("auto", "line"):
        raise UserError(
            f"--documents={reading.documents} does not fit {notes.path}: "
            "a record is one document; use auto or line"
        )
    texts = _texts(records, reading, language, notes, is_whole=beginning is None)
    if beginning is None:
        head = _head(texts)
        texts = itertools.chain(head, texts)
    else:
        silent = Notes(notes.path, Trouble(), strict=False, unit=notes.unit)
        head = _head(_texts(beginning, reading, language, silent, is_whole=True))
    sentences = reading.sentences
    if sentences == "auto":
        sentences = detect_form("\n\n".join(text for text, _ in head))
    origin = Origin(notes.path, sentences, "line")
    for text, language_of_text in texts:
        is_cut = len(text) > documents.MAX_DOCUMENT
        for piece in _pieces(text):
            yield Document(piece, origin, language_of_text, is_cut)


def _head(texts: Iterator[tuple[str, str]]) -> list[tuple[str, str]]:
    taken: list[tuple[str, str]] = []

    def seen() -> Iterator[str]:
        for item in texts:
            taken.append(item)
            yield item[0]

    take_head(seen())
    return taken


def _texts(
    records: Records,
    reading: Reading,
    language: str | None,
    notes: Notes,
    is_whole: bool,
) -> Iterator[tuple[str, str]]:
    """Yields text and language of the records that have them, no text blank.

    A whole file where not one record has the fields is a user's mistake, and so are
    many records at its beginning.
    """
    needed = {"text_key": reading.text_keys}
    if language is None:
        needed["language_key"] = (reading.language_key,)
    number = found = 0
    lacks = ""
    for number, record in records(notes):
        if missing := _missing(record, needed):
            lacks = lacks or missing
            flag = missing.partition("=")[0]
            kind = Kind.NO_TEXT if flag == "--text_key" else Kind.NO_LANGUAGE
            notes.add(kind, number, missing)
            if is_whole and not found and number >= _PATIENCE:
                raise UserError(
                    f"{notes.path}: none of its first {number:,} {notes.unit}s has a "
                    f"text for {lacks}"
                )
            continue
        found += 1
        keys = reading.text_keys + (needed.get("language_key") or ())
        values = _decoded([record[key] or "" for key in keys], notes, number)
        if values is None:
            continue
        named = values[-1].strip() if language is None else language
        if language is None and not is_language(named):
            notes.add(Kind.BAD_LANGUAGE, number, repr(named))
            continue
        values = values[: len(reading.text_keys)]
        if reading.sentences == "fields":
            # Each on a line of its own; where one is blank, nothing is translated.
            values = [" ".join(value.split()) for value in values]
            values = values if all(values) else []
        text = _joined(values, notes, number)
        if len(text) > documents.MAX_DOCUMENT:
            notes.add(Kind.CUT, number)
        if text:
            yield text, named
    if is_whole and lacks and not found:
        raise UserError(f"{notes.path}: no {notes.unit} has a text for {lacks}")
    if is_whole and not number and not notes.count:
        notes.add(Kind.EMPTY_FILE)


def _missing(record: Any, needed: dict[str, tuple[str, ...]]) -> str:
    """Returns the flag and field that a record lacks, and what it has; or nothing.

    Of several fields for the text some may be null.
    """
    values = record if isinstance(record, dict) else {}
    for flag, keys in needed.items():
        some = any(isinstance(values.get(key), str | bytes) for key in keys)
        for key in keys:
            value = values.get(key, 0)
            is_there = some and value is None
            if isinstance(value, str | bytes):
                is_there = flag == "text_key" or bool(value.strip())
            if not is_there:
                return f"--{flag}={key} (its fields: {', '.join(values) or 'none'})"
    return ""


def _decoded(values: list[str | bytes], notes: Notes, number: int) -> list[str] | None:
    try:
        return [v if isinstance(v, str) else v.decode() for v in values]
    except UnicodeDecodeError as error:
        notes.add(Kind.NOT_UTF8, number, error)
        return None


def _joined(parts: list[str], notes: Notes, number: int) -> str:
    """Returns the fields as paragraphs of one text, or nothing when all are blank."""
    text = "\n\n".join(part for part in parts if part.strip())
    if "\0" in text:
        notes.add(Kind.NUL, number)
        text = text.replace("\0", "")
    if not text.strip():
        notes.add(Kind.EMPTY, number)
        return ""
    try:
        text.encode()
    except UnicodeEncodeError:
        # JSON can spell half a surrogate pair, which no encoding can hold.
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _pieces(text: str) -> Iterator[str]:
    """Cuts a text that is too long after a line, or a word, or anywhere."""
    limit = documents.MAX_DOCUMENT
    while len(text) > limit:
        cut = 1 + text.rfind("\n", 0, limit) or 1 + text.rfind(" ", 0, limit) or limit
        if text[:cut].strip():
            yield text[:cut]
        text = text[cut:]
    if text.strip():
        yield text
