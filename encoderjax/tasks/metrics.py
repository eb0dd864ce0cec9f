"""Scores of predicted classes and numbers, as scikit-learn and scipy define them.

A score whose denominator is 0 is 0. Shapes: R examples, C classes.
"""

from collections.abc import Sequence

import numpy as np

_MOST_COLUMNS = 20  # classes that a table of people's width has room for
_MOST_LETTERS = 16


def classification_metrics(
    labels_R: np.ndarray, predicted_R: np.ndarray, names: Sequence[str]
) -> dict[str, float]:
    """Returns scores of one class for each example.

    The mean over classes leaves out those that are neither true nor predicted
    anywhere. With two classes, f1, precision and recall are those of the second, as in
    GLUE's MRPC and QQP.
    """
    matrix_CC = confusion(labels_R, predicted_R, len(names))
    hit_C, true_C, found_C = _counts(matrix_CC)
    present_C = true_C + found_C > 0
    f1_C = _ratio(2 * hit_C, true_C + found_C)
    scores = {
        "accuracy": _ratio(hit_C.sum(), true_C.sum()),
        "macro_f1": _ratio(f1_C.sum(), present_C.sum()),
        "matthews": _matthews(matrix_CC),
    }
    if len(names) == 2:
        scores["f1"] = f1_C[1]
        scores["precision"] = _ratio(hit_C[1], found_C[1])
        scores["recall"] = _ratio(hit_C[1], true_C[1])
    return {name: float(score) for name, score in scores.items()}


def multi_label_metrics(
    labels_RC: np.ndarray, predicted_RC: np.ndarray
) -> dict[str, float]:
    """Returns scores of any number of classes for each example, given as 0 and 1.

    accuracy is the share of examples all of whose classes are right.
    """
    labels_RC = np.asarray(labels_RC) > 0
    predicted_RC = np.asarray(predicted_RC) > 0
    hit_C = (labels_RC & predicted_RC).sum(0)
    both_C = labels_RC.sum(0) + predicted_RC.sum(0)
    right_R = (labels_RC == predicted_RC).all(1)
    return {
        "accuracy": float(_ratio(right_R.sum(), len(right_R))),
        "micro_f1": float(_ratio(2 * hit_C.sum(), both_C.sum())),
        "macro_f1": float(_ratio(_ratio(2 * hit_C, both_C).sum(), len(hit_C))),
    }


def regression_metrics(
    targets_R: np.ndarray, predicted_R: np.ndarray
) -> dict[str, float]:
    """Returns correlations, 0 where either side is constant, and the squared error."""
    targets_R = np.asarray(targets_R, np.float64)
    predicted_R = np.asarray(predicted_R, np.float64)
    error_R = np.square(targets_R - predicted_R)
    return {
        "pearson": _pearson(targets_R, predicted_R),
        "spearman": _pearson(_ranks(targets_R), _ranks(predicted_R)),
        "mse": float(_ratio(error_R.sum(), len(error_R))),
    }


def confusion(
    labels_R: np.ndarray, predicted_R: np.ndarray, num_classes: int
) -> np.ndarray:
    """Returns counts [C, C]; rows are true classes, columns predicted ones."""
    cells_R = np.asarray(labels_R, np.int64) * num_classes + np.asarray(predicted_R)
    counts = np.bincount(cells_R.astype(np.int64), minlength=num_classes**2)
    return counts.reshape(num_classes, num_classes)


def confusion_table(matrix: np.ndarray, names: Sequence[str]) -> str:
    """Returns the counts for people; of many classes only what is confused most."""
    short = [shortened(name) for name in names]
    if len(names) > _MOST_COLUMNS:
        return _most_confused(matrix, short)
    head = "true \\ predicted"
    lines = [[head, *short]]
    lines += [
        [name, *map(str, row)] for name, row in zip(short, matrix.tolist(), strict=True)
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def _most_confused(matrix: np.ndarray, names: Sequence[str]) -> str:
    wrong = matrix - np.diag(np.diag(matrix))
    order = np.argsort(-wrong, axis=None, kind="stable")[:_MOST_COLUMNS]
    lines = [
        f"{wrong.flat[cell]:>6}  {names[cell // len(names)]} taken for "
        f"{names[cell % len(names)]}"
        for cell in order
        if wrong.flat[cell]
    ]
    return "\n".join(lines) or "nothing is confused"


def shortened(name: str) -> str:
    """Returns a name that a table has room for, on one line."""
    name = " ".join(name.split())
    return name if len(name) <= _MOST_LETTERS else f"{name[: _MOST_LETTERS - 1]}~"


def _counts(matrix_CC: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns for each class how many are hit, how many are true and how many found."""
    return np.diag(matrix_CC), matrix_CC.sum(1), matrix_CC.sum(0)


def _ratio(numerator: np.ndarray, denominator: np.ndarray | int) -> np.ndarray:
    denominator = np.asarray(denominator, np.float64)
    safe = np.where(denominator == 0, 1, denominator)
    return np.where(denominator == 0, 0, numerator / safe)


def _matthews(matrix_CC: np.ndarray) -> float:
    """Returns the correlation of classes, any number of them (Gorodkin 2004)."""
    hit_C, true_C, found_C = (x.astype(np.float64) for x in _counts(matrix_CC))
    total = true_C.sum()
    covariance = hit_C.sum() * total - true_C @ found_C
    spread = (total**2 - true_C @ true_C) * (total**2 - found_C @ found_C)
    return float(_ratio(covariance, np.sqrt(spread)))


def _pearson(x_R: np.ndarray, y_R: np.ndarray) -> float:
    # A constant minus its mean need not be 0 in floating point.
    if len(x_R) < 2 or np.ptp(x_R) == 0 or np.ptp(y_R) == 0:
        return 0.0
    x_R, y_R = x_R - x_R.mean(), y_R - y_R.mean()
    x_R, y_R = x_R / np.linalg.norm(x_R), y_R / np.linalg.norm(y_R)
    return float(np.clip(x_R @ y_R, -1, 1))


def _ranks(values_R: np.ndarray) -> np.ndarray:
    """Returns ranks from 1; equal values share the mean of theirs."""
    _, value_R, counts = np.unique(values_R, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[value_R]
