"""Sequences of tokens, such as words or phrases, that are found in rows.

Shapes: N sequences, T tokens of all of them, B rows, L length.
"""

import dataclasses
import functools
from collections.abc import Iterable, Iterator

import numpy as np

_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that nothing is lost
_HALF = np.uint64(32)
_NONE = -1  # stands for what comes after the end of a row


@dataclasses.dataclass(frozen=True, eq=False)
class TokenSequences:
    """Different sequences of tokens, each with its number.

    Attributes:
      ids_T: of all sequences, one after the other.
      starts_N: [N + 1], where each begins.
    """

    ids_T: np.ndarray
    starts_N: np.ndarray

    @classmethod
    def of(cls, sequences: Iterable[np.ndarray]) -> "TokenSequences":
        """Numbers the sequences in their order; one that came before has no other."""
        different = {tuple(ids.tolist()): None for ids in sequences}
        sizes_N = [len(ids) for ids in different]
        ids_T = np.fromiter((i for ids in different for i in ids), np.int64)
        return cls(ids_T, np.cumsum([0, *sizes_N], dtype=np.int64))

    def __len__(self) -> int:
        return len(self.starts_N) - 1

    @property
    def sizes_N(self) -> np.ndarray:  # noqa: N802 (an array, named by shape)
        """How many tokens each has."""
        return np.diff(self.starts_N)

    @functools.cached_property
    def _tables(self) -> dict[int, "_Table"]:
        """The sequences of each length, ascending."""
        tables = {}
        for size in np.unique(self.sizes_N).tolist():
            numbers_N = np.flatnonzero(self.sizes_N == size)
            ids_NS = self.ids_T[self.starts_N[numbers_N, None] + np.arange(size)]
            tables[size] = _Table.of(ids_NS, numbers_N)
        return tables

    def matches(self, ids_BL: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """Yields each length, ascending, and what of that length begins where.

        That is the number of the sequence, int64 [B, L], -1 where none begins.
        """
        longest, width = max(self._tables, default=0), ids_BL.shape[1]
        ends = ((0, 0), (0, longest))
        padded = np.pad(ids_BL.astype(np.int64), ends, constant_values=_NONE)
        hashes_BL = np.zeros(ids_BL.shape, np.uint64)
        for size in range(1, longest + 1):
            hashes_BL = _extended(hashes_BL, padded[:, size - 1 : size - 1 + width])
            if size in self._tables:
                yield size, self._tables[size].find(hashes_BL, padded)


NO_SEQUENCES = TokenSequences.of(())


@dataclasses.dataclass(frozen=True, eq=False)
class _Table:
    """The sequences of one length, by their hashes.

    Attributes:
      ids_NS: their tokens.
      hashes_N: ascending.
      numbers_N: of the sequences.
      sieve: whether there may be a hash that begins with so many bits: most places of
        a text need no search.
    """

    ids_NS: np.ndarray
    hashes_N: np.ndarray
    numbers_N: np.ndarray
    sieve: np.ndarray

    @classmethod
    def of(cls, ids_NS: np.ndarray, numbers_N: np.ndarray) -> "_Table":
        hashes_N = np.zeros(len(ids_NS), np.uint64)
        for ids_N in ids_NS.T:
            hashes_N = _extended(hashes_N, ids_N)
        order_N = np.argsort(hashes_N, kind="stable")
        hashes_N = hashes_N[order_N]
        assert (np.diff(hashes_N) > 0).all(), "two sequences have one 64-bit hash"
        sieve = np.zeros(1 << (4 + len(hashes_N).bit_length()), bool)
        sieve[hashes_N >> _unread(sieve)] = True
        return cls(ids_NS[order_N], hashes_N, numbers_N[order_N], sieve)

    def find(self, hashes_BL: np.ndarray, padded: np.ndarray) -> np.ndarray:
        found_BL = np.full(hashes_BL.shape, -1, np.int64)
        row, column = np.nonzero(self.sieve[hashes_BL >> _unread(self.sieve)])
        place = np.searchsorted(self.hashes_N, hashes_BL[row, column])
        place = np.minimum(place, len(self.hashes_N) - 1)
        size = self.ids_NS.shape[1]
        tokens = padded[row[:, None], column[:, None] + np.arange(size)]
        same = (tokens == self.ids_NS[place]).all(axis=1)
        found_BL[row[same], column[same]] = self.numbers_N[place[same]]
        return found_BL


def _unread(sieve: np.ndarray) -> np.uint64:
    """Returns how many bits of a hash the sieve does not look at."""
    return np.uint64(64 - (len(sieve).bit_length() - 1))


def _extended(hashes: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Returns the hashes of sequences that are one token longer."""
    hashes = (hashes ^ (ids + 2).astype(np.uint64)) * _FACTOR
    return (hashes ^ (hashes >> _HALF)) * _FACTOR
