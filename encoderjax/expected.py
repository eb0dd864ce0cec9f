"""What a recipe's run is expected to reach, from runs that were made of it.

A curve (`encoderjax/curves/NAME.json`) has the held-out metrics of a recipe by step, of
several seeds, and everything that the run depends on. A run that is the same but for
its seed and for what cannot matter is told at every evaluation where it stands.
"""

import dataclasses
import functools
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from encoderjax.config import RunConfig
from encoderjax.errors import UserError
from encoderjax.experiment import Experiment
from encoderjax.identity import TEACHER
from encoderjax.interop.weights import read_json
from encoderjax.measured_splits import VALIDATION
from encoderjax.phases import Stage, identity_at, open_stages, whole_run
from encoderjax.provenance import made_here, seconds_of
from encoderjax.spread import Measured
from encoderjax.training.metrics import read_metrics

FOLDER = Path(__file__).parent / "curves"

# How far from the mean a run may be, as a share of the loss: at least so much, twice
# that where there was one run. A band above the second figure tells little.
_LEAST, _TELLING = 0.01, 0.05
# What Student's t of a healthy run is above in so many cases, by degrees of freedom.
TAIL = 0.01
STUDENTS_T = {1: 31.821, 2: 6.965, 3: 4.541, 4: 3.747, 5: 3.365, 6: 3.143, 7: 2.998}
STUDENTS_T |= {8: 2.896, 9: 2.821, 10: 2.764, 15: 2.602, 20: 2.528, 30: 2.457}
_OFF = (None, False, 0, "", [])


@dataclasses.dataclass(frozen=True)
class Curve:
    """The held-out metrics of a recipe.

    Attributes:
      recipe: as FILE:VARIANT.
      identity: what a run must agree with, by name of the field.
      metrics: step -> metric -> the value of each run.
      about: the seconds of each run, versions and machine.
    """

    recipe: str
    identity: Mapping[str, Any]
    metrics: Mapping[int, Mapping[str, Sequence[float]]]
    about: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> "Curve":
        """Reads a curve."""
        content = read_json(path)
        metrics = {int(step): line for step, line in content.pop("metrics").items()}
        recipe, identity = content.pop("recipe"), content.pop("identity")
        return cls(recipe, identity, metrics, content)

    def to_json(self) -> dict[str, Any]:
        """Returns the content of its file."""
        metrics = {str(step): dict(line) for step, line in self.metrics.items()}
        head = {"recipe": self.recipe, **self.about}
        return {**head, "metrics": metrics, "identity": dict(self.identity)}

    @property
    def runs(self) -> int:
        """How many runs it is of."""
        return len(self.about["seconds"])

    def at(self, step: int) -> dict[str, Measured]:
        """Returns what is expected after a step, nothing where it was not measured."""
        found = self.metrics.get(step, {})
        return {name: Measured.of(values) for name, values in found.items()}

    def standing(self, step: int, metrics: Mapping[str, float]) -> str:
        """Returns a line on where a run stands, '' where nothing is known."""
        expected = self.at(step)
        names = [n for n in expected if n in metrics and _is_loss(n)]
        if "loss" not in names:
            return ""
        terms = [name for name in names if name != "loss"]
        shown = names if len(terms) > 1 else ["loss"]
        parts = [
            f"{name.replace('_', ' ')} {expected[name]}, here {metrics[name]:.3f}"
            for name in shown
        ]
        band = self.band(step)
        verdict = _verdict(expected["loss"].mean, metrics["loss"], band)
        if band > _TELLING:
            verdict += f"; this curve tells little: ± {band:.0%}"
        return "  expected at this step: " + "; ".join(parts) + f" ({verdict})"

    def band(self, step: int) -> float:
        """Returns how far from the mean a healthy run may be, as a share of the loss.

        The mean is uncertain as well: it is that of a few runs.
        """
        deviation, freedom = self._pooled
        if not freedom:
            return 2 * _LEAST
        count = len(self.metrics[step]["loss"])
        quantile = STUDENTS_T[max(known for known in STUDENTS_T if known <= freedom)]
        return max(_LEAST, quantile * deviation * (1 + 1 / count) ** 0.5)

    @functools.cached_property
    def _pooled(self) -> tuple[float, int]:
        """The deviation of a run as a share of its loss, and its degrees of freedom.

        It is that of all steps together: what three runs show at one is often far too
        small. Two steps only count as one: a run that is high at a step is still high
        at the next.
        """
        steps = [line["loss"] for line in self.metrics.values() if "loss" in line]
        distances = [v / statistics.mean(of) - 1 for of in steps for v in of]
        free = len(distances) - len(steps)
        if not free:
            return 0.0, 0
        return (sum(d * d for d in distances) / free) ** 0.5, max(1, free // 2)

    def differing(self, identity: Mapping[str, Any]) -> str | None:
        """Returns a field in which a run differs, None where it follows the recipe.

        A field that one of both does not know, because it came later, counts where it
        is not off.
        """
        for name in {**self.identity, **identity}:
            here, there = identity.get(name), self.identity.get(name)
            known = name in identity and name in self.identity
            if here != there and (known or not (here in _OFF and there in _OFF)):
                return name
        return None


def _is_loss(name: str) -> bool:
    """Says whether a metric is the loss, or the whole of one of its terms."""
    return name == "loss" or (name.endswith("_loss") and name.count("_") == 1)


def _verdict(mean: float, loss: float, band: float) -> str:
    if abs(loss - mean) <= band * mean:
        return "as expected"
    return "lower than expected" if loss < mean else "HIGHER than expected"


def identity_of(run: Experiment, stages: Sequence[Stage]) -> dict[str, Any]:
    """Returns what a held-out curve depends on, but for the seed, as JSON has it."""
    config = run.config
    identity = identity_at(config.steps, run, stages)
    identity.pop("seed")
    # Of teachers that were trained alike students are expected to learn alike.
    identity.pop(TEACHER, None)
    # A name; its numbers are there. Large recipes are shrunk to what base ones are.
    identity.pop("model.size", None)
    identity |= {
        "steps": config.steps,
        "eval.batches": config.eval.batches,
        "init_from": config.init_from is not None,
        "init_layers": config.init_layers,
    }
    return json.loads(json.dumps(identity))


def curve_of(
    run: Experiment, stages: Sequence[Stage], folder: Path | None = None
) -> Curve | None:
    """Returns the curve of the recipe that a run follows unchanged, if there is one."""
    identity = None
    for path in sorted((folder or FOLDER).glob("*.json")):
        identity = identity or identity_of(run, stages)
        curve = Curve.read(path)
        if curve.differing(identity) is None:
            return curve
    return None


def curve_from(recipe: str, config: RunConfig, workdirs: Sequence[Path]) -> Curve:
    """Returns the curve of finished runs of a recipe.

    Args:
      recipe: as FILE:VARIANT.
      config: of the recipe; a run that is another one is refused.
      workdirs: of the runs, one for each seed.
    """
    wanted = Curve(recipe, _opened_identity(config), {}, {})
    lines, seconds = [], []
    for workdir in workdirs:
        description = read_json(workdir / "config.json")
        identity = _opened_identity(RunConfig.from_description(description))
        field = wanted.differing(identity)
        if field is not None:
            raise UserError(
                f"{workdir} does not follow {recipe}: {field}={identity.get(field)!r}, "
                f"there {wanted.identity.get(field)!r}"
            )
        measured = _by_step(workdir)
        if config.steps not in measured:
            raise UserError(
                f"{workdir} is not at its end, step {config.steps:,}; let it finish"
            )
        lines.append(measured)
        seconds.append(round(seconds_of(workdir), 1))
    steps = sorted(set.intersection(*(set(measured) for measured in lines)))
    metrics = {
        step: {
            name: [round(measured[step][name], 5) for measured in lines]
            for name in lines[0][step]
            if all(name in measured[step] for measured in lines)
        }
        for step in steps
    }
    about = {"seconds": seconds, **made_here()}
    return Curve(recipe, wanted.identity, metrics, about)


def _by_step(workdir: Path) -> dict[int, dict[str, float]]:
    """Returns the held-out metrics of a run."""
    lines = read_metrics(workdir, VALIDATION)
    return {
        line["step"]: {k: v for k, v in line.items() if k not in ("step", "split")}
        for line in lines
    }


def _opened_identity(config: RunConfig) -> dict[str, Any]:
    stages = open_stages(config, lambda text: None, None)
    return identity_of(whole_run(config, stages), stages)
