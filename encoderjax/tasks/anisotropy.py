"""How unevenly vectors point: three measures, before and after they are mended.

mean cosine     of two different vectors, over all pairs: what a random pair has on
                average. 0 = they point everywhere, 1 = all the same way.
first share     the part of the vectors' variance that lies in its first direction. A
                width of X that is used evenly has 1 / X.
norms           the mean length of the contextual vectors of a token, by how frequent
                the token is among the texts: the different tokens are divided into ten
                groups of the same number, the rarest first; each token counts once, by
                the mean of its occurrences. Special tokens are left out.

Shapes: R vectors, X width, N occurrences of tokens, V vocabulary.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from encoderjax.tasks.whitening import blocks_of, moments, variances

GROUPS = 10


@dataclasses.dataclass(frozen=True)
class Anisotropy:
    """The measures of some vectors.

    Attributes:
      norms: of the ten groups of tokens; nothing where tokens were not measured.
    """

    mean_cosine: float
    first_share: float
    norms: tuple[float, ...] = ()


def anisotropy(vectors_RX: np.ndarray, norms: Sequence[float] = ()) -> Anisotropy:
    """Measures vectors, which may lie in a mapped file."""
    share = first_share(vectors_RX)
    return Anisotropy(mean_cosine(vectors_RX), share, tuple(norms))


def mean_cosine(vectors_RX: np.ndarray) -> float:
    """Returns the mean cosine of all pairs of different vectors; 0 of fewer than two.

    The sum over pairs is |sum of unit vectors|^2 less each one's product with itself.
    """
    total_X, own = np.zeros(vectors_RX.shape[1]), 0.0
    for block_RX in blocks_of(vectors_RX):
        norms_R1 = np.linalg.norm(block_RX, axis=1, keepdims=True)
        unit_RX = block_RX / np.where(norms_R1 > 0, norms_R1, 1.0)
        total_X += unit_RX.sum(0)
        own += float((unit_RX**2).sum())
    rows = len(vectors_RX)
    return float((total_X @ total_X - own) / (rows * (rows - 1))) if rows > 1 else 0.0


def first_share(vectors_RX: np.ndarray) -> float:
    """Returns the share of the variance in its first direction; 0 of no variance."""
    values_X, _ = variances(moments(vectors_RX)[1])
    return float(values_X[0] / values_X.sum()) if values_X.sum() > 0 else 0.0


class TokenNorms:
    """Lengths of contextual vectors, gathered by token."""

    def __init__(self, vocab_size: int):
        self._counts_V = np.zeros(vocab_size, np.int64)
        self._norms_V = np.zeros(vocab_size)

    def add(self, ids_N: np.ndarray, vectors_NX: np.ndarray) -> None:
        """Takes the vectors of some occurrences."""
        norms_N = np.linalg.norm(np.asarray(vectors_NX, np.float64), axis=1)
        np.add.at(self._counts_V, ids_N, 1)
        np.add.at(self._norms_V, ids_N, norms_N)

    def by_frequency(self, frequency_V: np.ndarray) -> tuple[float, ...]:
        """Returns the mean length of each group of tokens, rarest first.

        Args:
          frequency_V: how often each token occurs; equal ones are ordered by their id.
        """
        seen = np.flatnonzero(self._counts_V)
        mean = self._norms_V[seen] / self._counts_V[seen]
        ordered = mean[np.argsort(frequency_V[seen], kind="stable")]
        groups = np.array_split(ordered, GROUPS)
        return tuple(float(group.mean()) if len(group) else 0.0 for group in groups)


def report(before: Anisotropy, after: Anisotropy | None = None) -> str:
    """Returns the measures as a table for people."""
    measured = [("before", before)] + ([("after", after)] if after else [])
    columns = ["", "mean cosine", "first share"]
    rows = [
        [name, f"{it.mean_cosine:.4f}", f"{it.first_share:.4f}"]
        for name, it in measured
    ]
    if before.norms:
        columns.append("norm of tokens, rarest to most frequent tenth")
        for row, (_, it) in zip(rows, measured, strict=True):
            row.append("  ".join(f"{norm:.2f}" for norm in it.norms))
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    lines = [
        "  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True))
        for r in (columns, *rows)
    ]
    return "\n".join(line.rstrip() for line in lines)
