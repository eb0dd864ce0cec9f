"""Tables of text: CSV, and lines that are cut at tabs."""

import csv
import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from encoderjax.errors import UserError

# How cells are cut: as RFC 4180 has it, or as spreadsheets of other countries do.
_DIALECTS = tuple(
    {"delimiter": delimiter, "skipinitialspace": spaced}
    for delimiter in ",;\t|"
    for spaced in (False, True)
)
_SAMPLE = 50  # lines that tell how a file is cut
_SHOWN = 30  # names in a message
# Of a first row, no texts and no labels but names of columns.
_HEADINGS = {"text", "sentence", "sentence1", "sentence2", "label", "labels", "score"}

Cells = Iterator[tuple[int, list[str]]]  # of each row, with the number of its line
Rows = Iterator[tuple[object, Mapping[str, Any]]]


def csv_rows(path: str, raw_lines: Iterable[str], wanted: Mapping[str, str]) -> Rows:
    """Yields the rows of CSV.

    Cells are cut at commas. Where those do not give the columns that are wanted, and
    semicolons, tabs or bars do, they are cut at these.

    Args:
      path: for messages.
      raw_lines: without their \\n; a \\r is still there.
      wanted: role -> name of its column, or its number in a file without a header.
    """
    csv.field_size_limit(2**31 - 1)  # the usual one is a text of 20,000 words
    remaining = (f"{line}\n" for line in raw_lines)
    sample = list(itertools.islice(remaining, _SAMPLE))
    lines = itertools.chain(sample, remaining)
    reader = csv.reader(lines, strict=True, **_dialect(sample, wanted))

    def cells() -> Cells:
        while True:
            line = reader.line_num + 1
            try:
                row = next(reader, None)
            except csv.Error as error:
                raise UserError(
                    f"{path}:{line}: not CSV ({error}); mend the quotes, and end "
                    "lines with \\n"
                ) from error
            if row is None:
                return
            yield line, row

    return _table(path, cells(), wanted, "")


def tsv_rows(
    path: str, lines: Iterable[tuple[int, str]], wanted: Mapping[str, str]
) -> Rows:
    """Yields numbered lines cut at tabs; quotes are text, as in GLUE's files."""
    cells = ((number, line.split("\t")) for number, line in lines)
    hint = "; what is cut at something else has the form csv"
    return _table(path, cells, wanted, hint)


def _dialect(sample: Sequence[str], wanted: Mapping[str, str]) -> dict[str, Any]:
    """Returns the first dialect that finds the columns in what a file begins with.

    Where numbers name them, one comes first that finds as many in all rows.
    """
    found = []
    for dialect in _DIALECTS:
        try:
            rows = [row for row in csv.reader(sample, **dialect) if not _is_blank(row)]
        except csv.Error:  # said with its line when that is read
            continue
        if len(sample) == _SAMPLE:
            rows = rows[:-1]  # whose end may be missing
        if not rows:
            continue
        sizes = {len(row) for row in rows}
        if not _by_number(wanted):
            finds = all(name in rows[0] for name in wanted.values())
        else:
            finds = min(sizes) > max(map(int, wanted.values()))
            if finds and len(sizes) == 1:
                return dialect
        if finds:
            found.append(dialect)
    return found[0] if found else _DIALECTS[0]


def _by_number(wanted: Mapping[str, str]) -> bool:
    return bool(wanted) and all(name.isdecimal() for name in wanted.values())


def _is_blank(row: Sequence[str]) -> bool:
    return len(row) < 2 and not "".join(row).strip()


def _table(path: str, cells: Cells, wanted: Mapping[str, str], hint: str) -> Rows:
    filled = ((number, row) for number, row in cells if not _is_blank(row))
    if _by_number(wanted):
        for line, (number, row) in enumerate(filled):
            cells_by_number = {str(column): cell for column, cell in enumerate(row)}
            if line == 0:
                _check_no_header(path, number, cells_by_number, wanted)
            yield number, cells_by_number
        return
    number, header = next(filled, (0, []))
    _check_from_0(path, header, wanted)
    for role, name in wanted.items():
        if header and header.count(name) != 1:
            if name in header:
                raise UserError(
                    f"{path}:{number}: column {name!r} ({role}) stands there "
                    f"{header.count(name)} times; rename one"
                )
            raise UserError(
                missing_column(f"{path}:{number}", role, name, header)
                + "; columns of a file without a header are 0, 1, ..."
                + (hint if len(header) == 1 else "")
            )
    for number, row in filled:
        if len(row) != len(header):
            raise UserError(
                f"{path}:{number}: {len(row)} columns, the header has {len(header)}; "
                "mend the line"
            )
        yield number, dict(zip(header, row, strict=True))


def _check_from_0(path: str, header: Sequence[str], wanted: Mapping[str, str]) -> None:
    """Refuses numbers of columns from the end, which only CoNLL's form has."""
    for role, name in wanted.items():
        if re.fullmatch(r"-\d+", name) and name not in header:
            raise UserError(
                f"{path}: column {name} ({role}) counts from the end, as in CoNLL's "
                "form alone; count from 0, or name the columns of the header"
            )


def _check_no_header(
    path: str, number: int, row: Mapping[str, str], wanted: Mapping[str, str]
) -> None:
    """Refuses a first row that names its columns where numbers name them."""
    for role, column in wanted.items():
        name = row.get(column, "").strip()
        if name.lower() in _HEADINGS:
            raise UserError(
                f"{path}:{number}: the first row has {name!r} in column {column} "
                f"({role}), so it is a header; name the columns as it does "
                f"(data.columns.{role}={name}), or take it away"
            )


def missing_column(where: str, role: str, name: str, names: Collection) -> str:
    """Returns what is said of a column that is not there."""
    shown = ", ".join(map(str, list(names)[:_SHOWN])) or "none"
    more = ", ..." if len(names) > _SHOWN else ""
    return (
        f"{where}: no column {name!r} for {role}; it has the columns {shown}{more}: "
        "name one of them"
    )
