"""Pictures of a fine-tuning run, where matplotlib is installed."""

import importlib.util
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from encoderjax.tasks.data import VALIDATION
from encoderjax.tasks.metrics import shortened
from encoderjax.training.metrics import read_metrics

Report = Callable[[str], None]

_MOST_NUMBERS = 20  # classes whose counts are legible in a picture
_MOST_NAMES = 120  # of which a picture has room for all
_NOT_SHOWN = re.compile(r"step|split|loss|mse|.*_threshold")


def can_draw(report: Report) -> bool:
    """Says whether pictures can be made; else reports what they would need."""
    if importlib.util.find_spec("matplotlib") is None:
        report("no pictures: pip install matplotlib for curves and confusions")
        return False
    return True


def draw_curves(workdir: Path, report: Report) -> None:
    """Draws the losses and the validation metrics by step: curves.png."""
    if not can_draw(report):
        return
    from matplotlib.figure import Figure

    train, validation = (read_metrics(workdir, s) for s in ("train", VALIDATION))
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    losses, metrics = figure.subplots(1, 2)
    _plot(losses, train, "loss", "train", alpha=0.7)
    _plot(losses, validation, "loss", VALIDATION, marker="o")
    losses.set(title="loss", xlabel="step")
    losses.legend()
    shown = lambda name: not _NOT_SHOWN.fullmatch(name)
    names = [name for line in validation[:1] for name in line if shown(name)]
    for name in names:
        _plot(metrics, validation, name, name, marker="o")
    metrics.set(title=VALIDATION, xlabel="step")
    for axes in (losses, metrics):
        axes.xaxis.get_major_locator().set_params(integer=True)
    if names:
        metrics.legend()
    path = workdir / "curves.png"
    figure.savefig(path, dpi=120)
    report(f"curves in {path}")


def _plot(axes, lines: Sequence[dict], name: str, label: str, **style) -> None:
    shown = [(line["step"], line[name]) for line in lines if name in line]
    if shown:
        axes.plot(*zip(*shown, strict=True), label=label, **style)


def draw_confusion(
    path: Path, matrix_CC: np.ndarray, labels: Sequence[str], report: Report
) -> None:
    """Draws how often each label was taken for each; rows are the true ones."""
    if not can_draw(report):
        return
    from matplotlib.figure import Figure

    share_CC = matrix_CC / np.maximum(matrix_CC.sum(1, keepdims=True), 1)
    side = min(12.0, 2.5 + 0.45 * len(labels))
    figure = Figure(figsize=(side + 0.8, side), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(share_CC, cmap="Blues", vmin=0.0, vmax=1.0)
    figure.colorbar(image, ax=axes, label="share of the true label")
    # A $ in a label is one, not the beginning of a formula.
    names = [shortened(label).replace("$", r"\$") for label in labels]
    places = range(0, len(labels), -(-len(labels) // _MOST_NAMES))
    size = min(10.0, 50 * side / len(places))  # points: as high as a row has room for
    style = {"labels": [names[place] for place in places], "fontsize": size}
    slanted = {"rotation": 45, "ha": "right"}
    many = len(places) > _MOST_NUMBERS
    axes.set_xticks(places, **({"rotation": 90} if many else slanted), **style)
    axes.set_yticks(places, **style)
    axes.set(xlabel="predicted", ylabel="true")
    if len(labels) <= _MOST_NUMBERS:
        for (row, column), count in np.ndenumerate(matrix_CC):
            color = "white" if share_CC[row, column] > 0.5 else "black"
            axes.text(column, row, f"{count:,}", ha="center", va="center", color=color)
    figure.savefig(path, dpi=120)
    report(f"confusion in {path}")
