"""Scores next to those of scikit-learn and scipy."""

import warnings

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as theirs

from encoderjax.tasks.metrics import (
    classification_metrics,
    confusion,
    confusion_table,
    multi_label_metrics,
    regression_metrics,
)


def close(ours, wanted):
    assert set(ours) == set(wanted)
    for name, value in wanted.items():
        assert isinstance(ours[name], float)
        assert ours[name] == pytest.approx(value, abs=1e-12), name


def drawn_classes(rng, num_classes):
    """Returns true and predicted classes, of which some often do not occur."""
    count = int(rng.integers(1, 30))
    kept = rng.permutation(num_classes)[: rng.integers(1, num_classes + 1)]
    labels = rng.choice(kept, count)
    other = rng.integers(0, num_classes, count)
    return labels, np.where(rng.random(count) < rng.random(), labels, other)


@pytest.mark.parametrize("num_classes", [2, 3, 7])
def test_classes_are_scored_as_by_scikit_learn(num_classes):
    rng = np.random.default_rng(num_classes)
    names = [str(n) for n in range(num_classes)]
    for _ in range(150):
        labels, predicted = drawn_classes(rng, num_classes)
        with warnings.catch_warnings():  # of classes that do not occur
            warnings.simplefilter("ignore")
            wanted = {
                "accuracy": theirs.accuracy_score(labels, predicted),
                "macro_f1": theirs.f1_score(
                    labels, predicted, average="macro", zero_division=0
                ),
                "matthews": theirs.matthews_corrcoef(labels, predicted),
            }
            if num_classes == 2:
                two = theirs.precision_recall_fscore_support(
                    labels, predicted, average="binary", zero_division=0
                )
                wanted |= dict(zip(("precision", "recall", "f1"), two, strict=False))
            matrix = theirs.confusion_matrix(
                labels, predicted, labels=range(num_classes)
            )
        close(classification_metrics(labels, predicted, names), wanted)
        assert confusion(labels, predicted, num_classes).tolist() == matrix.tolist()


def test_matthews_does_not_overflow():
    labels = np.tile([0, 1, 1], 200_000)
    scores = classification_metrics(labels, labels, ["a", "b"])
    assert scores["matthews"] == pytest.approx(1)


def test_several_labels_are_scored_as_by_scikit_learn():
    rng = np.random.default_rng(0)
    for _ in range(150):
        shape = rng.integers(1, 12), rng.integers(2, 6)
        labels, predicted = (rng.random((2, *shape)) < rng.random()).astype(int)
        wanted = {
            "accuracy": theirs.accuracy_score(labels, predicted),
            "micro_f1": theirs.f1_score(
                labels, predicted, average="micro", zero_division=0
            ),
            "macro_f1": theirs.f1_score(
                labels, predicted, average="macro", zero_division=0
            ),
        }
        close(multi_label_metrics(labels, predicted), wanted)


def test_numbers_are_scored_as_by_scipy():
    rng = np.random.default_rng(0)
    for case in range(150):
        targets, predicted = rng.normal(size=(2, int(rng.integers(3, 40))))
        if case % 2:  # ties
            targets, predicted = targets.round(), (targets + predicted).round(1)
        if np.ptp(targets) == 0 or np.ptp(predicted) == 0:
            continue
        wanted = {
            "pearson": stats.pearsonr(targets, predicted).statistic,
            "spearman": stats.spearmanr(targets, predicted).statistic,
            "mse": theirs.mean_squared_error(targets, predicted),
        }
        close(regression_metrics(targets, predicted), wanted)


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_constant_is_not_correlated(size):
    constant = np.full(size, 0.1, np.float32)
    scores = regression_metrics(np.arange(size), constant)
    assert scores["pearson"] == scores["spearman"] == 0
    assert np.isfinite(scores["mse"])


def test_nothing_to_score():
    none = np.zeros(0, int)
    assert set(classification_metrics(none, none, ["a", "b"]).values()) == {0.0}
    assert set(multi_label_metrics(np.zeros((0, 3)), np.zeros((0, 3))).values()) == {0}
    assert set(regression_metrics(none, none).values()) == {0.0}


def test_tables_for_people():
    matrix = confusion([0, 0, 1, 1, 1], [0, 1, 1, 1, 0], 2)
    assert confusion_table(matrix, ["no", "a very long name indeed"]) == (
        "true \\ predicted  no  a very long nam~\n"
        "no                 1                 1\n"
        "a very long nam~   1                 2"
    )
    many = np.diag(np.arange(30))
    names = [f"c{n}" for n in range(30)]
    assert confusion_table(many, names) == "nothing is confused"
    many[2, 5], many[7, 1] = 3, 11
    assert confusion_table(many, names) == (
        "    11  c7 taken for c1\n     3  c2 taken for c5"
    )
