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
_LINES = 8  # of the table


def at_time(points: Sequence[Point], seconds: float) -> float:
    """Returns the held-out loss at a time, on a line between two measurements."""
    times = [point["seconds"] for point in points]
    return float(np.interp(seconds, times, [point["mlm_loss"] for point in points]))


def lead(contenders: Mapping[str, Sequence[Point]]) -> dict[float, float]:
    """Returns how far we are below PyTorch, by second of each measurement of either.

    Between two of them both are straight lines in the picture. What one measures after
    the other has ended says nothing.
    """
    found = (points[1:] for points in contenders.values())
    end = min(points[-1]["seconds"] for points in contenders.values())
    times = {point["seconds"] for point in itertools.chain(*found)}
    theirs, ours = contenders[THEIRS], contenders[OURS]
    return {
        time: at_time(theirs, time) - at_time(ours, time)
        for time in sorted(times)
        if time <= end
    }


def below_from(contenders: Mapping[str, Sequence[Point]]) -> float | None:
    """Returns the second from which on we are below PyTorch; None if never to its end.

    It is 0 where we are below at every measurement.
    """
    since: float | None = 0.0
    for time, distance in lead(contenders).items():
        if distance <= 0:
            since = None
        elif since is None:
            since = time
    return since


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
    lines, last = [], contenders[THEIRS][-1]
    for part in range(1, _LINES + 1):
        near = lambda point, part=part: abs(
            point["seconds"] - part / _LINES * last["seconds"]
        )
        point = min(contenders[THEIRS], key=near)
        ours = at_time(contenders[OURS], point["seconds"])
        minutes = f"{point['seconds'] / 60:.1f}"
        lines.append([minutes, f"{ours:.3f}", f"{point['mlm_loss']:.3f}"])
    when = reached(contenders[OURS], last["mlm_loss"])
    steps = [
        f"{contenders[n][-1]['step']:,} steps in {n} in "
        f"{contenders[n][-1]['seconds'] / 60:.1f} min"
        for n in (OURS, THEIRS)
    ]
    since = below_from(contenders)
    conclusion = f"{OURS} is NOT below {THEIRS} in the end"
    if since is not None:
        when_below = f"from second {since:.0f} on" if since else "at every time"
        conclusion = f"{OURS} is below {THEIRS} {when_below}"
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
