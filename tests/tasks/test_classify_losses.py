"""Losses of classes with weights and shared targets, next to PyTorch's."""

import numpy as np
import pytest
import torch

from encoderjax.objectives.pretrainer import divide
from encoderjax.tasks.classify import Classify

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
