"""Losses of classes with weights and shared targets, next to PyTorch's."""

import numpy as np
import pytest
import torch

from encoderjax.errors import UserError
from encoderjax.objectives.pretrainer import divide
from encoderjax.tasks.classify import Classify, Text
from encoderjax.training.evaluation import Totals

LABELS = ("a", "b", "c")


@pytest.mark.parametrize("weights", [None, (1.0, 2.0, 0.5), (0.001, 0.01, 0.004)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_weights_and_smoothing_are_pytorchs(weights, smoothing):
    """Weights may be of any size: a mean does not depend on it."""
    rng = np.random.default_rng(0)
    labels, scores = rng.integers(0, 3, 8), rng.normal(size=(8, 3)).astype("f4")
    task = Classify(
        labels=LABELS,
        class_weights=weights and dict(zip(LABELS, weights, strict=True)),
        label_smoothing=smoothing,
    )
    batch = {"task/labels": labels, "row_weights": np.ones(8, "f4")}
    ours = divide(task.sums({}, scores, batch), task.counts(batch))
    theirs = torch.nn.CrossEntropyLoss(
        weight=None if weights is None else torch.tensor(weights),
        label_smoothing=smoothing,
    )(torch.tensor(scores), torch.tensor(labels))
    assert float(ours["classify_loss"]) == pytest.approx(float(theirs), rel=1e-5)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"a": "x", "b": 1.0}, "'a' has 'x'; give each label a number of at least 0"),
        ({"a": None, "b": 1.0}, "'a' has None; give"),
        ({"a": 1.0, "b": -1.0}, "'b' has -1.0; give"),
        ({"a": float("nan"), "b": 1.0}, "'a' has nan; give"),
        ({"a": 1.0, "b": float("inf")}, "'b' has inf; give"),
        ({"a": 0, "b": 0.0}, "leave nothing to learn from; give at least one label"),
    ],
)
def test_weights_that_no_mean_can_have_are_refused(weights, message):
    examples = [Text(label, label, labels=(label,)) for label in "ab"]
    with pytest.raises(UserError, match=message):
        Classify(class_weights=weights).resolved(examples)


def test_rows_without_weight_have_no_loss():
    """As where the validation examples all have the label of weight 0."""
    task = Classify(labels=LABELS, class_weights={"a": 0, "b": 1, "c": 1.0})
    batch = {"task/labels": np.zeros(4, int), "row_weights": np.ones(4, "f4")}
    sums = task.sums({}, np.zeros((4, 3), "f4"), batch)
    means = Totals(sums, task.counts(batch)).means()
    assert task.mean_terms(means) == {}
    assert task.mean_terms({**means, "classify_loss": 0.5}) == {"loss": 0.5}
