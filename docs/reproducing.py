"""Fills the tables and draws the pictures of docs/reproducing.md.

python docs/reproducing.py --ablations=runs/ablations --race=runs/race

What was measured is kept beside the page (docs/measured/) and in encoderjax/curves/;
with the flags, results of runs are taken there first. What was not measured leaves no
trace in the page.
"""

import argparse
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from encoderjax import ablation_results, race_results
from encoderjax.ablation_results import rows
from encoderjax.command import run_command
from encoderjax.errors import UserError
from encoderjax.expected import FOLDER, Curve
from encoderjax.interop.weights import read_json
from encoderjax.pictures import can_draw
from encoderjax.provenance import kinds_of
from encoderjax.spread import Measured

DOCS = Path(__file__).parent
PAGE, MEASURED, PICTURES = DOCS / "reproducing.md", DOCS / "measured", DOCS / "pictures"
RACE = "time_to_quality"


def filled(page: str, parts: dict[str, str]) -> str:
    """Returns the page with each part between its marks `<!-- NAME -->`."""
    for name, text in parts.items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)"
        content = f"\n{text}\n\n" if text else ""
        page, count = re.subn(
            pattern, lambda m, c=content: m[1] + c + m[2], page, flags=re.DOTALL
        )
        if count != 1:
            raise ValueError(f"{PAGE} must have the marks of {name!r} once")
    return page


def quarters(steps: Sequence[int]) -> list[int]:
    """Returns the steps nearest to each quarter of a run, each once."""
    goals = (steps[-1] * n / 4 for n in range(1, 5))
    return sorted({min(steps, key=lambda step: abs(step - goal)) for goal in goals})


def curves_table(curves: Sequence[Curve]) -> str:
    """Returns the held-out losses of recipes by share of the run."""
    lines = []
    for curve in curves:
        steps = sorted(curve.metrics)
        last = curve.metrics[steps[-1]]
        shown = quarters(steps)
        losses = [str(curve.at(step)["loss"]) for step in shown]
        losses += [""] * (4 - len(shown))
        others = [
            f"{name.replace('_', ' ')} {Measured.of(values)}"
            for name, values in last.items()
            if name.endswith("_accuracy")
        ]
        minutes = sum(curve.about["seconds"]) / len(curve.about["seconds"]) / 60
        at = ", ".join(f"{step:,}" for step in shown)
        line = [f"`{curve.recipe}`", at, *losses, "; ".join(others)]
        lines.append([*line, f"{minutes:.1f}", str(curve.runs)])
    header = ["recipe", "at steps", "loss", "", "", "", "accuracy at the end"]
    return rows([*header, "minutes", "seeds"], lines)


def made_with(curves: Sequence[Curve]) -> str:
    """Returns the machines and versions of curves."""
    return "\n".join(f"{kind}." for kind in kinds_of(c.about for c in curves))


def draw_curves(curves: Sequence[Curve], path: Path) -> None:
    """Draws the held-out loss of every recipe."""
    from matplotlib.figure import Figure

    columns = min(4, len(curves))
    down = -(-len(curves) // columns)
    figure = Figure(figsize=(3.0 * columns, 2.2 * down), layout="constrained")
    grid = figure.subplots(down, columns, squeeze=False)
    for axes, curve in zip(grid.ravel(), curves, strict=False):
        steps = sorted(curve.metrics)
        found = [curve.at(step)["loss"] for step in steps]
        means, reach = [m.mean for m in found], [m.reach or 0.0 for m in found]
        axes.errorbar(steps, means, reach, marker=".", capsize=2)
        axes.set_title(Path(curve.recipe.partition(":")[0]).stem, fontsize=9)
        axes.tick_params(labelsize=7)
    for axes in grid.ravel()[len(curves) :]:
        axes.set_visible(False)
    figure.supxlabel("step", fontsize=9)
    figure.supylabel("held-out loss", fontsize=9)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=110)


def curves_part(curves: Sequence[Curve]) -> str:
    """Returns the part of the page on curves, and draws them."""
    if not curves:
        return ""
    if can_draw(print):
        draw_curves(curves, PICTURES / "curves.png")
    picture = "![Held-out loss by step](pictures/curves.png)"
    return "\n\n".join((curves_table(curves), made_with(curves), picture))


def ablations_part() -> str:
    """Returns the part of the page on ablations, and draws them."""
    parts = []
    for path in sorted((MEASURED / "ablations").glob("*.json")):
        results = read_json(path)
        ablation_results.draw(results, PICTURES / f"{path.stem}.png", print)
        title = results["title"]
        parts.append(f"### {title[0].upper()}{title[1:]}")
        parts.append(ablation_results.table(results))
        parts.append(f"![{title}](pictures/{path.stem}.png)")
    return "\n\n".join(parts)


def race_part() -> str:
    """Returns the part of the page on time to quality, and draws it."""
    path = MEASURED / f"{RACE}.json"
    if not path.is_file():
        return ""
    results = read_json(path)
    PICTURES.mkdir(exist_ok=True)
    race_results.draw(results, PICTURES / f"{RACE}.png", print)
    picture = f"![Held-out loss against time](pictures/{RACE}.png)"
    return "\n\n".join((race_results.table(results), picture))


def results_by_name(folder: Path) -> dict[str, Path]:
    """Returns the results of experiments by their names, under which they are kept."""
    found: dict[str, Path] = {}
    paths = sorted(folder.glob(f"*/{ablation_results.RESULTS}"))
    if not paths:
        raise UserError(f"--ablations={folder} has no results: nothing was finished")
    for path in paths:
        name = read_json(path)["name"]
        if name in found:
            raise UserError(
                f"--ablations={folder}: {found[name].parent} and {path.parent} both "
                f"have results of {name!r}, of which one would overwrite the other; "
                "move one of them elsewhere"
            )
        found[name] = path
    return found


def take(source: Path, target: Path) -> None:
    """Copies results beside the page."""
    if not source.is_file():
        raise UserError(f"{source} does not exist: nothing was finished there")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def main() -> None:
    """Takes results where they are given, and fills the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ablations", type=Path, help="the folder of ablations' --out")
    parser.add_argument("--race", type=Path, help="the --out of a race")
    flags = parser.parse_args()
    if flags.ablations:
        for name, path in results_by_name(flags.ablations).items():
            take(path, MEASURED / "ablations" / f"{name}.json")
    if flags.race:
        take(flags.race / race_results.RESULTS, MEASURED / f"{RACE}.json")
    curves = [Curve.read(path) for path in sorted(FOLDER.glob("*.json"))]
    parts = {
        "curves": curves_part(curves),
        "ablations": ablations_part(),
        "time to quality": race_part(),
    }
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), parts), encoding="utf-8")


if __name__ == "__main__":
    run_command(main)
