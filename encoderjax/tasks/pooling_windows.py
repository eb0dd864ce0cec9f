"""One score for each text from those of its windows.

Shapes: R rows, C classes, X examples.
"""

from typing import Literal, get_args

import numpy as np

from encoderjax.errors import UserError

How = Literal["mean", "max"]


def pooled_scores(
    scores_RC: np.ndarray, example_of_row_R: np.ndarray, how: How = "mean"
) -> np.ndarray:
    """Returns [X, C], for each example the mean or the greatest of its rows' scores.

    Means are meant of probabilities, or of numbers that are predicted as they are: a
    window with large logits must not outvote the others. The greatest of each class
    do not add up to 1.

    Args:
      scores_RC: in any order of rows.
      example_of_row_R: the number of each row's example; each example has a row.
      how: what the rows of an example become.
    """
    if how not in get_args(How):
        raise UserError(f"pool={how!r} must be one of {', '.join(get_args(How))}")
    counts_X = np.bincount(example_of_row_R)
    if not counts_X.all():
        raise ValueError(f"example {np.argmin(counts_X)} has no row")
    shape = (len(counts_X), *scores_RC.shape[1:])
    if how == "max":
        pooled_XC = np.full(shape, -np.inf, scores_RC.dtype)
        np.maximum.at(pooled_XC, example_of_row_R, scores_RC)
        return pooled_XC
    sums_XC = np.zeros(shape, np.float64)
    np.add.at(sums_XC, example_of_row_R, scores_RC)
    return (sums_XC / counts_X[:, None]).astype(scores_RC.dtype)
