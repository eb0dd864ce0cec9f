"""Broken input: counted by file and kind, told in a few lines, fatal when strict."""

import collections
import dataclasses
import enum

from encoderjax.errors import UserError

_SHOWN = 5  # files that a report names


class Kind(enum.Enum):
    """What can be wrong; one of it, several, and what was done about it."""

    NOT_UTF8 = ("text that is not UTF-8", "texts that are not UTF-8", "skipped")
    UTF16 = ("file in UTF-16", "files in UTF-16", "skipped")
    EMPTY = ("empty document", "empty documents", "skipped")
    EMPTY_FILE = ("empty file", "empty files", "skipped")
    NOT_JSON = ("line that is not JSON", "lines that are not JSON", "skipped")
    NO_TEXT = ("record without text", "records without text", "skipped")
    NO_LANGUAGE = ("record without a language", "records without a language", "skipped")
    BAD_LANGUAGE = (
        "record whose language cannot name a folder",
        "records whose languages cannot name folders",
        "skipped",
    )
    TOO_LONG = ("record that is too long", "records that are too long", "skipped")
    DAMAGED = ("damaged stretch of a file", "damaged stretches of files", "skipped")
    NUL = ("text with NUL characters", "texts with NUL characters", "mended")
    CUT = ("text cut for its length", "texts cut for their length", "mended")

    def counted(self, count: int) -> str:
        """Returns a number of it in words."""
        one, several, _ = self.value
        return f"{count:,} {one if count == 1 else several}"


class Trouble:
    """Counts of broken input by file and kind; several are merged into one.

    Attributes:
      documents: that were read beside it, whether they are taken or not.
    """

    def __init__(self):
        self.documents = 0
        self._counts: collections.Counter[tuple[str, Kind]] = collections.Counter()

    def __bool__(self) -> bool:
        return bool(self._counts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trouble) and self._counts == other._counts

    def add(self, path: str, kind: Kind) -> None:
        """Counts one."""
        self._counts[path, kind] += 1

    def merge(self, other: "Trouble") -> None:
        """Adds the counts of another."""
        self.documents += other.documents
        self._counts.update(other._counts)

    def counts(self) -> dict[tuple[str, Kind], int]:
        """Returns the counts by file and kind."""
        return dict(self._counts)

    def lines(self) -> list[str]:
        """Returns a report for people, as short for many files as for a few."""
        lines = []
        for done in ("skipped", "mended"):
            files: dict[str, collections.Counter[Kind]] = {}
            total: collections.Counter[Kind] = collections.Counter()
            for (path, kind), count in self._counts.items():
                if kind.value[2] == done:
                    files.setdefault(path, collections.Counter())[kind] += count
                    total[kind] += count
            if not files:
                continue
            lines.append(f"{done}: {_in_words(total)}")
            worst = sorted(files, key=lambda path: (-files[path].total(), path))
            lines += [f"  {path}: {_in_words(files[path])}" for path in worst[:_SHOWN]]
            if len(worst) > _SHOWN:
                lines.append(f"  and {len(worst) - _SHOWN:,} more files")
        return lines


def _in_words(counts: collections.Counter[Kind]) -> str:
    return ", ".join(kind.counted(count) for kind, count in counts.most_common())


@dataclasses.dataclass
class Notes:
    """The troubles of one file, while it is read."""

    path: str
    trouble: Trouble
    strict: bool
    unit: str  # what its places are counted in: "line", "row" or "example"
    count: int = 0
    damaged: bool = False

    def add(self, kind: Kind, place: int | None = None, reason: object = "") -> None:
        """Counts a trouble; fatal when strict."""
        self.count += 1
        self.damaged = self.damaged or kind is Kind.DAMAGED
        self.trouble.add(self.path, kind)
        if self.strict:
            where = "" if place is None else f", {self.unit} {place:,}"
            why = f" ({reason})" if reason else ""
            raise UserError(
                f"{self.path}{where}: {kind.counted(1)}{why}; mend it, or leave out "
                "--strict"
            )
