"""The nearest of many vectors, by their cosine.

Shapes: Q queries, R vectors, K width, T found for each query.
"""

import numpy as np

from encoderjax.tasks.whitening import blocks_of


def nearest(
    queries_QK: np.ndarray, vectors_RK: np.ndarray, top: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the numbers and cosines [Q, T] of the nearest vectors, nearest first.

    Args:
      queries_QK: whose neighbours are asked for.
      vectors_RK: read in blocks; they may lie in a mapped file.
      top: how many; fewer where there are not so many. Of equal ones the first count.
    """
    numbers_QT = np.zeros((len(queries_QK), 0), np.int64)
    cosines_QT = np.zeros((len(queries_QK), 0))
    unit_QK = _unit(np.asarray(queries_QK, np.float64))
    first = 0
    for block_RK in blocks_of(vectors_RK):
        own_QR = unit_QK @ _unit(block_RK).T
        places_QR = np.broadcast_to(
            np.arange(first, first + len(block_RK)), own_QR.shape
        )
        cosines_QT = np.concatenate([cosines_QT, own_QR], axis=1)
        numbers_QT = np.concatenate([numbers_QT, places_QR], axis=1)
        best_QT = np.argsort(-cosines_QT, axis=1, kind="stable")[:, :top]
        cosines_QT = np.take_along_axis(cosines_QT, best_QT, axis=1)
        numbers_QT = np.take_along_axis(numbers_QT, best_QT, axis=1)
        first += len(block_RK)
    return numbers_QT, cosines_QT


def _unit(vectors: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(norms > 0, norms, 1.0)
