"""Whitening: vectors of mean 0 whose columns are uncorrelated, each of variance 1.

(x - mean) W with W = U / sqrt(lambda), where U and lambda are the directions and
variances of the vectors, largest first; fewer columns of W are fewer components (Su et
al. 2021).

Shapes: R vectors, X width, K components.
"""

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO
from zipfile import BadZipFile

import numpy as np

from encoderjax.errors import UserError

_BLOCK = 4096  # vectors that are read at once
# Directions with less of the largest variance than this are rounding errors.
_LEAST_VARIANCE = 1e-9


def blocks_of(vectors_RX: np.ndarray) -> Iterator[np.ndarray]:
    """Yields some vectors after the other in float64; they may lie in a mapped file."""
    for first in range(0, len(vectors_RX), _BLOCK):
        yield np.asarray(vectors_RX[first : first + _BLOCK], np.float64)


def moments(vectors_RX: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the mean [X] and covariance [X, X] of vectors, whatever their number."""
    width = vectors_RX.shape[1]
    mean_X, scatter_XX, count = np.zeros(width), np.zeros((width, width)), 0
    for block_RX in blocks_of(vectors_RX):
        own_X = block_RX.mean(0)
        centred_RX = block_RX - own_X
        apart_X = own_X - mean_X
        total = count + len(block_RX)
        # Block by block without the loss of digits that sums of squares have.
        scatter_XX += centred_RX.T @ centred_RX
        scatter_XX += np.outer(apart_X, apart_X) * (count * len(block_RX) / total)
        mean_X += apart_X * (len(block_RX) / total)
        count = total
    return mean_X, scatter_XX / max(count - 1, 1)


def variances(covariance_XX: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the variances [X], largest first, and their directions [X, X]."""
    values_X, directions_XX = np.linalg.eigh(covariance_XX)
    values_X, directions_XX = values_X[::-1].clip(0), directions_XX[:, ::-1]
    # A direction's sign is arbitrary: its largest entry shall be positive.
    largest_X = np.abs(directions_XX).argmax(0)
    signs_X = np.sign(np.take_along_axis(directions_XX, largest_X[None], axis=0))
    return values_X, directions_XX * signs_X


@contextlib.contextmanager
def _opened(path: Path, mode: str) -> Iterator[IO[bytes]]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, mode) as file:
            yield file
    except OSError as error:
        raise UserError(
            f"save_whitening={str(path)!r} cannot be written: "
            f"{error.strerror or error}; name another file"
        ) from error


def check_place(path: Path) -> None:
    """Refuses a file that could not be written; what is there stays as it is."""
    is_new = not os.path.exists(path)
    with _opened(path, "ab"):
        pass
    if is_new:
        path.unlink()


@dataclasses.dataclass(frozen=True, eq=False)
class Whitening:
    """(x - mean) @ kernel."""

    mean: np.ndarray  # float32 [X]
    kernel: np.ndarray  # float32 [X, K]

    @property
    def components(self) -> int:
        """The width of what is whitened."""
        return self.kernel.shape[1]

    @classmethod
    def fit(cls, vectors_RX: np.ndarray, components: int | None = None) -> "Whitening":
        """Returns the whitening of vectors.

        Args:
          vectors_RX: read in blocks.
          components: how many directions to keep; None = all in which they differ.
        """
        mean_X, covariance_XX = moments(vectors_RX)
        values_X, directions_XX = variances(covariance_XX)
        rank = int((values_X > _LEAST_VARIANCE * values_X[0]).sum())
        if rank == 0:
            raise UserError(
                f"whitening: the {len(vectors_RX)} vectors do not differ; give more "
                "texts, and different ones"
            )
        components = rank if components is None else components
        if not 1 <= components <= rank:
            raise UserError(
                f"components={components} must be from 1 to {rank}, in so many "
                f"directions the {len(vectors_RX)} vectors differ; give fewer, or more "
                "texts"
            )
        kernel_XK = directions_XX[:, :components] / np.sqrt(values_X[:components])
        return cls(mean_X.astype(np.float32), kernel_XK.astype(np.float32))

    def apply(self, vectors_RX: np.ndarray) -> np.ndarray:
        """Returns the vectors whitened, float32 [R, K]."""
        return (np.asarray(vectors_RX, np.float32) - self.mean) @ self.kernel

    def save(self, path: Path) -> None:
        """Writes an .npz with `mean` and `kernel`."""
        with _opened(path, "wb") as file:
            np.savez(file, mean=self.mean, kernel=self.kernel)

    @classmethod
    def load(cls, path: Path) -> "Whitening":
        """Reads what `save` wrote."""
        try:
            with np.load(path) as arrays:
                mean_X, kernel_XK = arrays["mean"], arrays["kernel"]
        except (OSError, EOFError, ValueError, KeyError, BadZipFile) as error:
            raise UserError(
                f"{path} holds no whitening ({error}); give an .npz with mean and "
                "kernel"
            ) from error
        if kernel_XK.ndim != 2 or mean_X.shape != kernel_XK.shape[:1]:
            raise UserError(
                f"{path}: mean {mean_X.shape} and kernel {kernel_XK.shape} do not "
                "belong together; give [X] and [X, K]"
            )
        return cls(mean_X.astype(np.float32), kernel_XK.astype(np.float32))
