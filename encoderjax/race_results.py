"""What a race found: a table, and a picture of held-out loss against time."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from encoderjax.ablation_results import rows as markdown
from encoderjax.pictures import can_draw
from encoderjax.provenance import said
from encoderjax.race_clock import Point

Report = Callable[[str], None]
Results = Mapping[str, Any]

RESULTS = "results.json"
OURS, THEIRS = "encoderjax", "PyTorch"
_LINES = 8  # of the table
_BEGINNING = 60.0  # seconds that the picture shows once more, larger
_ALIKE = 1e-4  # nats that are no difference, as of models with the same weights


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

    It is 0 where we are not above it at any measurement.
    """
    since: float | None = 0.0
    for time, distance in lead(contenders).items():
        if distance < -_ALIKE:
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
        conclusion = f"{OURS} is below {THEIRS} {_from(since)}"
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
    parts = (markdown(header, lines), f"{conclusion}. {_started(results)}", about)
    return "\n\n".join(parts)


def _from(second: float) -> str:
    return f"from second {second:.0f} on" if second else "at every time"


def _started(results: Results) -> str:
    """Returns how long both took to begin, which their times include."""
    ours, theirs = (results["starts"][name] for name in (OURS, THEIRS))
    more = _compiling(results)
    points = results["contenders"][OURS]
    later = [{**point, "seconds": point["seconds"] + more} for point in points]
    since = below_from({**results["contenders"], OURS: later})
    first = "" if since is None else f", and {OURS} is below {_from(since)}"
    return (
        f"Times are from the start of the process: the first step begins after "
        f"{ours['start']:.1f} s in {OURS} and after {theirs['start']:.1f} s in "
        f"{THEIRS}. The very first run of a recipe compiles, too: it takes "
        f"{more:.1f} s more{first}."
    )


def _compiling(results: Results) -> float:
    """Returns how much longer the very first start of our run takes."""
    ours = results["starts"][OURS]
    return ours["first_start"] - ours["start"]


def draw(results: Results, path: Path, report: Report) -> None:
    """Draws both losses against time."""
    if not can_draw(report):
        return
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    whole, beginning = figure.subplots(1, 2, width_ratios=(2, 1))
    for axes, unit, name in ((whole, 60, "minutes"), (beginning, 1, "seconds")):
        for contender, points in results["contenders"].items():
            times = [point["seconds"] / unit for point in points]
            losses = [point["mlm_loss"] for point in points]
            axes.plot(times, losses, marker=".", label=contender)
        axes.set(xlabel=f"{name} since the start", ylabel="held-out MLM loss")
        axes.grid(alpha=0.3)
    ours = results["contenders"][OURS]
    more = _compiling(results)
    times = [point["seconds"] + more for point in ours]
    losses = [point["mlm_loss"] for point in ours]
    beginning.plot(times, losses, "--", color="C0", label=f"{OURS}, the first time")
    beginning.legend()
    beginning.set_xlim(0, _BEGINNING)
    whole.legend()
    figure.suptitle(results["about"], fontsize=9)
    figure.savefig(path, dpi=120)
    report(f"picture in {path}")
