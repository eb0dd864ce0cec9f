"""What an ablation found: tables, verdicts and a picture of its results."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from encoderjax.ablation import Claim
from encoderjax.pictures import can_draw
from encoderjax.provenance import kinds_of
from encoderjax.spread import Measured

Results = Mapping[str, Any]

RESULTS = "results.json"


def cell(results: Results, arm: str, metric: str) -> Measured | None:
    """Returns what was found, None where an arm has no such metric."""
    values = results["arms"][arm]["values"].get(metric)
    return Measured.of(values) if values else None


def difference(found: Measured | None, first: Measured | None) -> str:
    """Returns how far an arm is from the first one, and whether that says anything."""
    if found is None or first is None:
        return ""
    shown = f"{found.mean - first.mean:+.3f}"
    remarks = {None: " (one seed)", True: " (within the spread)", False: ""}
    return shown + remarks[found.within_spread_of(first)]


def lower_is_better(metric: str) -> bool:
    """Says in which direction a metric is better."""
    parts = metric.split("/")
    return any(p in ("loss", "mse") or p.endswith("_loss") for p in parts)


def verdict(results: Results, claim: Claim) -> str:
    """Returns whether we found what the paper did, by the first metric."""
    metric = results["metrics"][0]
    one, other = (cell(results, arm, metric) for arm in (claim.one, claim.other))
    if one is None or other is None:
        return "not measured"
    within = one.within_spread_of(other)
    if within is None:
        return "one seed: no spread to compare with"
    if claim.alike and within:
        # No more than that: runs that scatter widely would hide any difference.
        return f"no difference seen: {difference(one, other)}"
    if claim.alike:
        return f"differs: {difference(one, other)}"
    if within:
        return "within the spread"
    better = one.mean < other.mean
    return "agrees" if better == lower_is_better(metric) else "disagrees"


def table(results: Results) -> str:
    """Returns the results in Markdown: arms, what the paper says, with what."""
    metrics, paper = results["metrics"], results["paper"]
    first, *_ = results["arms"]
    header = ["arm", "steps", "tokens"]
    for metric in metrics:
        header += [metric, "difference"]
    header += [paper["columns"]] if paper["figures"] else []
    lines = []
    for arm, found in results["arms"].items():
        line = [arm, f"{found['steps']:,}", f"{found['tokens'] / 1e6:.2f} M"]
        for metric in metrics:
            here = cell(results, arm, metric)
            before = cell(results, first, metric)
            line.append("" if here is None else str(here))
            line.append("" if arm == first else difference(here, before))
        if paper["figures"]:
            line.append(str(paper["figures"].get(arm, "")))
        lines.append(line)
    parts = [rows(header, lines), f"{paper['source']}: {paper['finding']}"]
    if paper["claims"]:
        claims = [[text, verdict(results, Claim.of(text))] for text in paper["claims"]]
        parts.append(rows(["the paper", f"here, by {metrics[0]}"], claims))
    parts.append(about(results))
    return "\n\n".join(parts)


def rows(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Returns a table in Markdown."""
    ruled = [header, ["---", *["---:"] * (len(header) - 1)], *lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in ruled)


def about(results: Results) -> str:
    """Returns how results came about."""
    seeds, seconds = results["seeds"], results["seconds"]
    # Before every run kept its own, there was one for all.
    made_with = results.get("made_with") or kinds_of([results])
    return (
        f"{seeds} seed{'s' * (seeds > 1)} an arm; {seconds / 60:.0f} minutes on "
        f"{', and on '.join(made_with)}. `{results['command']}`"
    )


def draw(results: Results, path: Path, report: Callable[[str], None]) -> None:
    """Draws every metric: a point for each run, a line through the arm's mean."""
    if not can_draw(report):
        return
    from matplotlib.figure import Figure

    arms, metrics = list(results["arms"]), results["metrics"]
    columns = min(3, len(metrics))
    down = -(-len(metrics) // columns)
    size = (1.2 + 3.0 * columns, down * (0.9 + 0.34 * len(arms)))
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(down, columns, squeeze=False, sharey=True)
    for axes, metric in zip(grid.ravel(), metrics, strict=False):
        first = cell(results, arms[0], metric)
        if first is not None and first.reach is not None:
            ends = first.mean - first.reach, first.mean + first.reach
            axes.axvspan(*ends, color="0.92", zorder=0)
        for place, arm in enumerate(arms):
            values = results["arms"][arm]["values"].get(metric, [])
            axes.plot(values, [place] * len(values), "o", ms=4, color="C0", alpha=0.7)
            if values:
                mean = statistics.mean(values)
                axes.plot([mean] * 2, [place - 0.3, place + 0.3], color="C3")
        better = "lower" if lower_is_better(metric) else "higher"
        axes.set_title(f"{metric} ({better} is better)", fontsize=9)
        axes.tick_params(labelsize=8)
        axes.set_yticks(range(len(arms)), arms)
        axes.set_ylim(len(arms) - 0.5, -0.5)
    for axes in grid.ravel()[len(metrics) :]:
        axes.set_visible(False)
    figure.suptitle(results["title"], fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    report(f"picture in {path}")
