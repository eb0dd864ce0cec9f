"""The rows of a pass by their number of tokens.

The row numbers are kept sorted by length, and how many rows are at most so long; the
rows of any two lengths and of all between are then one slice of a mapped array.

Shapes: R rows, each of one piece, L + 1 lengths from 0 on.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from encoderjax.data.records import Rows
from encoderjax.data.tokenizers import Layout


@dataclasses.dataclass(frozen=True, eq=False)
class RowsByLength:
    """The rows of one pass, mapped.

    Attributes:
      rows_R: their numbers, shorter rows first.
      ends_L: [L + 1], how many rows have at most so many tokens.
    """

    rows_R: np.ndarray
    ends_L: np.ndarray

    @classmethod
    def mapped(cls, arrays: dict[str, np.ndarray]) -> tuple["RowsByLength", ...]:
        """Returns those of every pass from the arrays that were kept."""
        passes = range(len(arrays) // 2)
        return tuple(cls(arrays[_rows(n)], arrays[_ends(n)]) for n in passes)

    def between(self, more_than: int, at_most: int) -> np.ndarray:
        """Returns the numbers of the rows of those lengths."""
        return self.rows_R[self.ends_L[more_than] : self.ends_L[at_most]]


def by_length_arrays(
    passes: Sequence[Rows], layout: Layout, longest: int
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields what is kept of every pass, by the names of the files."""
    for number, rows in enumerate(passes):
        size_R = _row_tokens(rows, layout)
        counts_L = np.bincount(size_R, minlength=longest + 1)
        yield _rows(number), np.argsort(size_R, kind="stable").astype(np.int64)
        yield _ends(number), np.cumsum(counts_L, dtype=np.int64)


def _row_tokens(rows: Rows, layout: Layout) -> np.ndarray:
    """Returns the number of tokens of rows of one piece, special ones included."""
    length_R2 = rows.pieces_S["length"]
    paired_R = length_R2[:, 1] > 0
    special_R = layout.num_special(1) + paired_R * np.int32(len(layout.between))
    return length_R2.sum(axis=1, dtype=np.int32) + special_R


def _rows(number: int) -> str:
    return f"pass-{number:03d}.rows.npy"


def _ends(number: int) -> str:
    return f"pass-{number:03d}.ends.npy"
