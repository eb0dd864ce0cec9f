"""CoNLL's form: a word a line with its columns, blank lines between sentences."""

import re
from collections.abc import Iterable, Iterator, Mapping

from encoderjax.errors import UserError

_DOCUMENT = re.compile(r"-DOCSTART-(\s|$)")  # of CoNLL-2003, a line of its own
_NO_WORD = re.compile(r"\d+[-.]\d+")  # CoNLL-U's several words in one, and omitted ones


def sentences(
    path: str,
    lines: Iterable[tuple[int, str]],
    wanted: Mapping[str, str],
    *,
    with_ids: bool = False,
) -> Iterator[tuple[int, dict[str, list[str]]]]:
    """Yields for each sentence its first line's number and its columns.

    Columns are cut at tabs in a file that has any between them, else at plain spaces,
    since words may have others. A line that begins with '#' and has not as many columns
    as words have, or is cut at other signs than they are, is a comment.

    Args:
      path: for messages.
      lines: numbered.
      wanted: role -> number of the column; negative ones count from the last.
      with_ids: whether the first column is CoNLL-U's, whose ranges are no words.
    """
    for role, name in wanted.items():
        if not re.fullmatch(r"-?\d+", name):
            raise UserError(
                f"{path}: column {name!r} for {role} must be a number, such as 0 or -1 "
                "(the last), in CoNLL's form"
            )
    lines = [(n, "" if _DOCUMENT.match(line) else line) for n, line in lines]
    with_tabs = any(
        "\t" in line.strip() for _, line in lines if not line.startswith("#")
    )
    split = [
        (number, _cells(line, with_tabs))
        for number, line in lines
        if with_tabs or not (line.startswith("#") and "\t" in line)
    ]
    width = next((len(cells) for _, cells in split if _is_sure(cells)), 0)
    words: list[list[str]] = []
    start = 0
    for number, cells in [*split, (0, [])]:
        if cells and cells[0].startswith("#") and len(cells) != width:
            continue
        if not cells:
            if words:
                yield start, _columns(path, start, words, wanted)
            words = []
            continue
        if len(cells) != width:
            raise UserError(
                f"{path}:{number}: {len(cells)} columns, the first word has {width}; "
                "mend the line"
            )
        if with_ids and _NO_WORD.fullmatch(cells[0]):
            continue
        start = start if words else number
        words.append(cells)


def _cells(line: str, with_tabs: bool) -> list[str]:
    if not line.strip():
        return []
    return line.split("\t") if with_tabs else re.split("[ \t]+", line.strip(" \t"))


def _is_sure(cells: list[str]) -> bool:
    """Says whether a line is of a word, whatever the others look like."""
    return bool(cells) and not cells[0].startswith("#")


def _columns(
    path: str, start: int, words: list[list[str]], wanted: Mapping[str, str]
) -> dict[str, list[str]]:
    found = {}
    for role, name in wanted.items():
        if not -len(words[0]) <= int(name) < len(words[0]):
            raise UserError(
                f"{path}:{start}: no column {name!r} for {role}; words have "
                f"{len(words[0])}: 0 to {len(words[0]) - 1}, or from the last -1 on"
            )
        found[name] = [cells[int(name)].strip() for cells in words]
    if len({int(name) % len(words[0]) for name in found}) < len(found):
        raise UserError(
            f"{path}:{start}: the columns of {' and '.join(wanted)} are the same, as "
            f"words have {len(words[0])}; name two, and cut columns at tabs or spaces"
        )
    return found
