"""What a race found: a table, and a picture of held-out loss against time."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from encoderjax.ablation_results import rows as markdown
from encoderjax.pictures import can_draw
from encoderjax.provenance import said
from encoderjax.torch_race import Point

Report = Callable[[str], None]
Results = Mapping[str, Any]

RESULTS = "results.json"
OURS, THEIRS = "encoderjax", "PyTorch"


def at_time(points: Sequence[Point], seconds: float) -> float:
    """Returns the held-out loss at a time, on a line between two measurements."""
    times = [point["seconds"] for point in points]
    return float(np.interp(seconds, times, [point["mlm_loss"] for point in points]))


def lead(contenders: Mapping[str, Sequence[Point]]) -> list[float]:
    """Returns how far we are below PyTorch, at each measurement of either.

    Between two of them both are straight lines in the picture.
    """
    found = (points[1:] for points in contenders.values())
    times = sorted({point["seconds"] for point in itertools.chain(*found)})
    theirs, ours = contenders[THEIRS], contenders[OURS]
    return [at_time(theirs, time) - at_time(ours, time) for time in times]


def reached(points: Sequence[Point], loss: float) -> float | None:
    """Returns when a loss was reached first, on a line between two measurements."""
    for before, after in itertools.pairwise(points):
        if after["mlm_loss"] <= loss:
            share = (before["mlm_loss"] - loss) / (
                before["mlm_loss"] - after["mlm_loss"]
            )
            return before["seconds"] + share * (after["seconds"] - before["seconds"])
    return None


def table(results: Results) -> str:
    """Returns the results in Markdown."""
    contenders = results["contenders"]
    lines = []
    for place, point in enumerate(contenders[THEIRS][1:]):
        if (place + 1) % 2 and place + 2 < len(contenders[THEIRS]):
            continue
        ours = at_time(contenders[OURS], point["seconds"])
        minutes = f"{point['seconds'] / 60:.1f}"
        lines.append([minutes, f"{ours:.3f}", f"{point['mlm_loss']:.3f}"])
    ahead = all(distance > 0 for distance in lead(contenders))
    last = contenders[THEIRS][-1]
    when = reached(contenders[OURS], last["mlm_loss"])
    steps = [f"{contenders[n][-1]['step']:,} steps in {n}" for n in (OURS, THEIRS)]
    conclusion = f"{OURS} is {'below' if ahead else 'NOT below'} {THEIRS} at every time"
    if when is not None:
        conclusion += (
            f"; it reaches its last loss after {when / 60:.1f} of "
            f"{last['seconds'] / 60:.1f} minutes"
        )
    about = (
        f"{results['about']}; {results['rows']:,} held-out rows; {' and '.join(steps)}."
        f" Theirs: {results['theirs']}. {results['machine']}; "
        f"{said(results['versions'])}. `{results['command']}`"
    )
    header = ["minutes", f"{OURS}, held-out MLM loss", THEIRS]
    return "\n\n".join((markdown(header, lines), f"{conclusion}.", about))


def draw(results: Results, path: Path, report: Report) -> None:
    """Draws both losses against time."""
    if not can_draw(report):
        return
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name, points in results["contenders"].items():
        minutes = [point["seconds"] / 60 for point in points]
        axes.plot(minutes, [p["mlm_loss"] for p in points], marker=".", label=name)
    axes.set(xlabel="minutes of training", ylabel="held-out MLM loss")
    axes.set_title(results["about"], fontsize=9)
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    report(f"picture in {path}")
