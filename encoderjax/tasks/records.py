"""Examples of a task: CSV, TSV, JSON, CoNLL's columns, SQuAD's JSON, TFDS, files.

Whatever the form, a record gives for each role the value of a column: text, or a list
or mapping where the file has one. Numbers are text as well, so that labels are the
same in all forms. What is broken is never skipped: every example counts in a metric.
"""

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from encoderjax.data import tfds_reading
from encoderjax.data.decompression import COMPRESSED, bare_suffix, read_blocks
from encoderjax.data.trouble import Kind, Notes, Trouble
from encoderjax.errors import UserError
from encoderjax.tasks.class_files import class_texts
from encoderjax.tasks.conll import sentences
from encoderjax.tasks.tables import csv_rows, missing_column, tsv_rows

Form = Literal["csv", "tsv", "jsonl", "json", "conll", "tfds", "classes", "lines"]
Columns = Mapping[str, str | None]

_FORMS: dict[str, Form] = {
    **{".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl"},
    **{".json": "json", ".conll": "conll", ".conllu": "conll", ".bio": "conll"},
    **{".bioes": "conll", ".iob": "conll", ".iob2": "conll", ".zip": "classes"},
}
# JSON can spell half a pair, and bytes of arguments that are not UTF-8 are such.
_SURROGATES = re.compile("[\ud800-\udfff]")


class Record(dict[str, Any]):
    """The values of an example by role, and where it was read: file:line.

    The place in the file is a line, a number, or the id of a question.
    """

    def __init__(self, values: Mapping[str, Any], path: str, place: object):
        super().__init__(values)
        self.where = f"{path}:{place}"
        self.place = place

    def text(self, role: str) -> str:
        """Returns a value that has to be text."""
        if not isinstance(self[role], str):
            raise UserError(
                f"{self.where}: {role}={_short(self[role])} is not text; name another "
                "column"
            )
        return self[role]

    def structure(self, role: str) -> Any:
        """Returns a list or mapping; tables have them as JSON or Python writes them.

        What is neither is returned as it is.
        """
        value = self[role]
        if not isinstance(value, str) or value.strip()[:1] not in ("[", "{"):
            return value
        for read in (json.loads, ast.literal_eval):
            try:
                return _plain(read(value.strip()))
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                continue
        return value


def read_records(path: str, columns: Columns, form: Form | None = None) -> list[Record]:
    """Returns the records of a file, or of `tfds:NAME[/CONFIG][:VERSION][@SPLIT]`.

    Args:
      path: may be a URL, and compressed; a folder or .zip has texts by class.
      columns: role -> name of its column; roles without one are left out. CSV and TSV
        have a header, unless all columns are numbers: those count from 0. Columns of
        CoNLL's form are numbers; there, -1 is the last. In JSON's mappings, `a.b` is
        the column b of a.
      form: None = by the name of the file; of a name that says nothing, columns that
        are numbers are CoNLL's. A .txt has a text a line, in the column `text`.
    """
    records = list(stream_records(path, columns, form))
    if not records:
        raise UserError(f"{path} has no examples; give a file that has some")
    return records


def stream_records(
    path: str, columns: Columns, form: Form | None = None
) -> Iterator[Record]:
    """Yields the records one by one; lines and tables are never held whole."""
    wanted = {role: str(name) for role, name in columns.items() if name is not None}
    form = form or form_of(path, wanted)
    for place, row in _READERS[form](path, wanted):
        yield _record(path, place, row, wanted)


def form_of(path: str, columns: Mapping[str, str] | None = None) -> Form:
    """Returns the form of a file, by its name and the columns asked of it."""
    if path.startswith(tfds_reading.PREFIX):
        return "tfds"
    if Path(path).is_dir():
        return "classes"
    suffix = bare_suffix(path)
    if suffix in _FORMS:
        return _FORMS[suffix]
    if columns and all(re.fullmatch(r"-?\d+", name) for name in columns.values()):
        return "conll"
    if suffix == ".txt":
        return "lines"
    raise UserError(
        f"{path}: its name does not tell its form; end it in {', '.join(_FORMS)} "
        f"(and {', '.join(COMPRESSED)}), or give one of {', '.join(get_args(Form))}"
    )


def _record(path: str, place: object, row: Mapping, wanted: Mapping) -> Record:
    where = f"{path}:{place}"
    values = {}
    for role, name in wanted.items():
        try:
            value = _cell(row, name)
        except KeyError:
            raise UserError(missing_column(where, role, name, row)) from None
        if value is None or value != value:  # or a NaN
            raise UserError(
                f"{where}: column {name!r} ({role}) is null; mend that, or leave the "
                "example out"
            )
        values[role] = _plain(value)
    return Record(values, path, place)


def _cell(row: Mapping, name: str) -> Any:
    """Returns the value of a column; `a.b` is b in a mapping a, or has that name."""
    outer, _, inner = name.partition(".")
    if name not in row and isinstance(row.get(outer), Mapping):
        return _cell(row[outer], inner)
    return row[name]


def _plain(value: Any) -> Any:
    """Returns text, or lists and mappings of JSON's values as they are."""
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, list):
        return [_plain(v) if isinstance(v, str | list | dict) else v for v in value]
    return {
        key: _plain(v) if isinstance(v, str | list | dict) else v
        for key, v in value.items()
    }


def encodable(text: str) -> str:
    """Returns text with U+FFFD for what no encoding can hold."""
    return _SURROGATES.sub("\ufffd", text)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


# ---- forms ----

Rows = Iterator[tuple[object, Mapping[str, Any]]]  # the place of each, and its columns


def read_text(path: str) -> str:
    """Returns the text of a whole file, decompressed; one line says what is wrong."""
    return "\n".join(_raw_lines(path))


def _raw_lines(path: str) -> Iterator[str]:
    """Yields lines without their \\n; what comes behind the last one is one, too."""
    notes = Notes(path, Trouble(), strict=False, unit="line")
    rest, number = b"", 0
    for block in read_blocks(path, notes):
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            number += 1
            yield _decoded(path, number, line)
    if notes.count:
        (_, kind), *_ = notes.trouble.counts()
        if kind is Kind.UTF16:
            raise UserError(
                f"{path}: not UTF-8 but UTF-16; convert the file, for example with "
                "iconv -f utf-16 -t utf-8"
            )
        raise UserError(f"{path}: {kind.counted(1)}; write it anew")
    yield _decoded(path, number + 1, rest)


def _decoded(path: str, number: int, line: bytes) -> str:
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}:{number}: not UTF-8 (byte {line[error.start]:#04x}); convert the "
            "file, for example with iconv -f latin1 -t utf-8"
        ) from error


def _lines(path: str) -> Iterator[tuple[int, str]]:
    """Yields numbered lines; only \\n ends one, since texts may have other breaks."""
    for number, line in enumerate(_raw_lines(path), 1):
        yield number, line.removesuffix("\r")


def _read_csv(path: str, wanted: Mapping[str, str]) -> Rows:
    return csv_rows(path, _raw_lines(path), wanted)


def _read_tsv(path: str, wanted: Mapping[str, str]) -> Rows:
    return tsv_rows(path, _lines(path), wanted)


def _parsed(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:  # json's own, or of a number with too many digits
        raise UserError(f"{where}: not JSON ({error}); mend the file") from error
    except RecursionError as error:
        raise UserError(f"{where}: JSON that is nested too deeply") from error


def _read_jsonl(path: str, wanted: Mapping[str, str]) -> Rows:
    for number, line in _lines(path):
        if not line.strip():
            continue
        row = _parsed(f"{path}:{number}", line)
        if not isinstance(row, dict):
            raise UserError(
                f"{path}:{number}: {_short(row)} is not a JSON object; write one a line"
            )
        yield number, row


def _read_json(path: str, wanted: Mapping[str, str]) -> Rows:
    """Reads SQuAD's form, or a list of objects; a .json may be lines of them, too."""
    text = read_text(path)
    first, _, rest = text.lstrip().partition("\n")
    if first.rstrip().endswith("}") and rest.strip():
        yield from _read_jsonl(path, wanted)
        return
    if not text.strip():
        return
    document = _parsed(path, text)
    if isinstance(document, dict) and "data" in document:
        yield from _questions(path, document["data"])
        return
    for number, row in enumerate(
        document if isinstance(document, list) else [document]
    ):
        if not isinstance(row, dict):
            raise UserError(
                f"{path}:{number}: {_short(row)} is not a JSON object; give a list of "
                "objects, or SQuAD's form"
            )
        yield number, row


def _questions(path: str, articles: Any) -> Rows:
    """Yields SQuAD's questions, each with its context; their place is their id."""
    try:
        for number, article in enumerate(articles):
            if "paragraphs" not in article:  # a table under "data"
                yield article.get("id", number), article
            for paragraph in article.get("paragraphs", ()):
                above = {"title": article.get("title", "")}
                above["context"] = paragraph["context"]
                for question in paragraph["qas"]:
                    none = {"answers": []} if question.get("is_impossible") else {}
                    yield question["id"], {**above, **none, **question}
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path}: not SQuAD's form, which has data, paragraphs, context, qas, id "
            f"({type(error).__name__}: {error})"
        ) from error


def _read_conll(path: str, wanted: Mapping[str, str]) -> Rows:
    with_ids = bare_suffix(path) == ".conllu"
    return sentences(path, _lines(path), wanted, with_ids=with_ids)


def _read_tfds(path: str, wanted: Mapping[str, str]) -> Rows:
    return tfds_reading.plain_examples(path)


def _read_classes(path: str, wanted: Mapping[str, str]) -> Rows:
    return class_texts(path)


def _read_lines(path: str, wanted: Mapping[str, str]) -> Rows:
    """Reads a text a line, empty ones as well: a line's number is its record's."""
    held = None
    for number, line in _lines(path):
        if held is not None:
            yield held
        held = number, {"text": line}
    if held is not None and held[1]["text"]:  # not what is behind the last line's end
        yield held


_READERS: dict[Form, Callable[[str, Mapping[str, str]], Rows]] = {
    "csv": _read_csv,
    "tsv": _read_tsv,
    "jsonl": _read_jsonl,
    "json": _read_json,
    "conll": _read_conll,
    "tfds": _read_tfds,
    "classes": _read_classes,
    "lines": _read_lines,
}
