"""Examples of a task from a file: CSV, TSV, JSON, CoNLL's columns, SQuAD's JSON, TFDS.

Whatever the form, a record gives for each role the value of a column: text, or a list
or mapping where the file has one. Numbers are text as well, so that labels are the
same in all forms. What is broken is never skipped: every example counts in a metric.
"""

import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, get_args

from encoderjax.data import tfds_reading
from encoderjax.data.decompression import COMPRESSED, bare_suffix, read_blocks
from encoderjax.data.trouble import Notes, Trouble
from encoderjax.errors import UserError
from encoderjax.tasks.conll import sentences

Form = Literal["csv", "tsv", "jsonl", "json", "conll", "tfds"]
Columns = Mapping[str, str | None]

_FORMS: dict[str, Form] = {
    **{".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl"},
    **{".json": "json", ".conll": "conll", ".conllu": "conll", ".bio": "conll"},
    **{".bioes": "conll", ".iob": "conll", ".iob2": "conll"},
}
_SURROGATES = re.compile("[\ud800-\udfff]")  # JSON can spell half a pair
_SHOWN = 30  # names in a message


class Record(dict[str, Any]):
    """The values of an example by role, and where it was read: file:line."""

    def __init__(self, values: Mapping[str, Any], where: str):
        super().__init__(values)
        self.where = where

    def text(self, role: str) -> str:
        """Returns a value that has to be text."""
        if not isinstance(self[role], str):
            raise UserError(
                f"{self.where}: {role}={_short(self[role])} is not text; name another "
                "column"
            )
        return self[role]


def read_records(path: str, columns: Columns, form: Form | None = None) -> list[Record]:
    """Returns the records of a file, or of `tfds:NAME[/CONFIG][:VERSION][@SPLIT]`.

    Args:
      path: may be a URL, and compressed.
      columns: role -> name of its column; roles without one are left out. CSV and TSV
        have a header, unless all columns are numbers: those count from 0. Columns of
        CoNLL's form are numbers; there, -1 is the last.
      form: None = by the name of the file; of a name that says nothing, columns that
        are numbers are CoNLL's.
    """
    wanted = {role: str(name) for role, name in columns.items() if name is not None}
    form = form or form_of(path, wanted)
    rows = _READERS[form](path, wanted)
    records = [_record(path, place, row, wanted) for place, row in rows]
    if not records:
        raise UserError(f"{path} has no examples; give a file that has some")
    return records


def form_of(path: str, columns: Mapping[str, str] | None = None) -> Form:
    """Returns the form of a file, by its name and the columns asked of it."""
    if path.startswith(tfds_reading.PREFIX):
        return "tfds"
    suffix = bare_suffix(path)
    if suffix in _FORMS:
        return _FORMS[suffix]
    if columns and all(re.fullmatch(r"-?\d+", name) for name in columns.values()):
        return "conll"
    raise UserError(
        f"{path}: its name does not tell its form; end it in {', '.join(_FORMS)} "
        f"(and {', '.join(COMPRESSED)}), or give one of {', '.join(get_args(Form))}"
    )


def _record(path: str, place: object, row: Mapping, wanted: Mapping) -> Record:
    where = f"{path}:{place}"
    values = {}
    for role, name in wanted.items():
        if name not in row:
            raise UserError(_missing(where, role, name, row))
        if row[name] is None:
            raise UserError(
                f"{where}: column {name!r} ({role}) is null; mend that, or leave the "
                "example out"
            )
        values[role] = _plain(row[name])
    return Record(values, where)


def _missing(where: str, role: str, name: str, names: Any) -> str:
    shown = ", ".join(map(str, list(names)[:_SHOWN])) or "none"
    more = ", ..." if len(names) > _SHOWN else ""
    return f"{where}: no column {name!r} for {role}; it has {shown}{more}"


def _plain(value: Any) -> Any:
    """Returns text, or lists and mappings of JSON's values as they are."""
    if isinstance(value, str):
        return _SURROGATES.sub("\ufffd", value)
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, list):
        return [_plain(v) if isinstance(v, str | list | dict) else v for v in value]
    return {
        key: _plain(v) if isinstance(v, str | list | dict) else v
        for key, v in value.items()
    }


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


# ---- forms ----

Rows = Iterator[tuple[object, Mapping[str, Any]]]  # the place of each, and its columns


def read_text(path: str) -> str:
    """Returns the text of a whole file, decompressed; one line says what is wrong."""
    notes = Notes(path, Trouble(), strict=False, unit="line")
    data = b"".join(read_blocks(path, notes))
    if notes.count:
        (_, kind), *_ = notes.trouble.counts()
        raise UserError(f"{path}: {kind.counted(1)}; write it anew")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path}:{line}: not UTF-8 (byte {data[error.start]:#04x}); convert the "
            "file, for example with iconv -f latin1 -t utf-8"
        ) from error


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yields numbered lines; only \\n ends one, since texts may have other breaks."""
    for number, line in enumerate(text.split("\n"), 1):
        yield number, line.removesuffix("\r")


def _read_csv(path: str, wanted: Mapping[str, str]) -> Rows:
    csv.field_size_limit(2**31 - 1)  # the usual one is a text of 20,000 words
    reader = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)

    def cells() -> Iterator[tuple[int, list[str]]]:
        while True:
            line = reader.line_num + 1
            try:
                row = next(reader, None)
            except csv.Error as error:
                raise UserError(
                    f"{path}:{line}: not CSV ({error}); mend the quotes"
                ) from error
            if row is None:
                return
            yield line, row

    return _table(path, cells(), wanted)


def _read_tsv(path: str, wanted: Mapping[str, str]) -> Rows:
    """Reads lines cut at tabs; quotes are text, as in GLUE's files."""
    cells = ((number, line.split("\t")) for number, line in _lines(read_text(path)))
    return _table(path, cells, wanted)


def _table(
    path: str, cells: Iterator[tuple[int, list[str]]], wanted: Mapping[str, str]
) -> Rows:
    filled = ((number, row) for number, row in cells if row not in ([], [""]))
    if wanted and all(name.isdecimal() for name in wanted.values()):
        for number, row in filled:
            yield number, {str(column): cell for column, cell in enumerate(row)}
        return
    number, header = next(filled, (0, []))
    for role, name in wanted.items():
        if header and header.count(name) != 1:
            if name in header:
                raise UserError(
                    f"{path}:{number}: column {name!r} ({role}) stands there "
                    f"{header.count(name)} times; rename one"
                )
            raise UserError(
                _missing(f"{path}:{number}", role, name, header)
                + "; columns of a file without a header are 0, 1, ..."
            )
    for number, row in filled:
        if len(row) != len(header):
            raise UserError(
                f"{path}:{number}: {len(row)} columns, the header has {len(header)}; "
                "mend the line"
            )
        yield number, dict(zip(header, row, strict=True))


def _parsed(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:  # json's own, or of a number with too many digits
        raise UserError(f"{where}: not JSON ({error}); mend the file") from error
    except RecursionError as error:
        raise UserError(f"{where}: JSON that is nested too deeply") from error


def _read_jsonl(path: str, wanted: Mapping[str, str]) -> Rows:
    for number, line in _lines(read_text(path)):
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
        for article in articles:
            if "paragraphs" not in article:  # a table under "data"
                yield article.get("id", "data"), article
            for paragraph in article.get("paragraphs", ()):
                above = {"title": article.get("title", "")}
                above["context"] = paragraph["context"]
                for question in paragraph["qas"]:
                    yield question["id"], {**above, **question}
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path}: not SQuAD's form, which has data, paragraphs, context, qas, id "
            f"({type(error).__name__}: {error})"
        ) from error


def _read_conll(path: str, wanted: Mapping[str, str]) -> Rows:
    with_ids = bare_suffix(path) == ".conllu"
    return sentences(path, _lines(read_text(path)), wanted, with_ids=with_ids)


def _read_tfds(path: str, wanted: Mapping[str, str]) -> Rows:
    return tfds_reading.plain_examples(path)


_READERS: dict[Form, Callable[[str, Mapping[str, str]], Rows]] = {
    "csv": _read_csv,
    "tsv": _read_tsv,
    "jsonl": _read_jsonl,
    "json": _read_json,
    "conll": _read_conll,
    "tfds": _read_tfds,
}
