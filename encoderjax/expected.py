"""What a recipe's run is expected to reach, from runs that were made of it.

A curve (`encoderjax/curves/NAME.json`) has the held-out metrics of a recipe by step, of
several seeds, and everything that the run depends on. A run that is the same but for
its seed and for what cannot matter is told at every evaluation where it stands.
"""

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from encoderjax.config import RunConfig
from encoderjax.errors import UserError
from encoderjax.experiment import VALIDATION, Experiment
from encoderjax.interop.weights import read_json
from encoderjax.phases import Stage, identity_at, open_stages, whole_run
from encoderjax.provenance import machine, made_with
from encoderjax.spread import Measured
from encoderjax.training.metrics import read_metrics

FOLDER = Path(__file__).parent / "curves"

# As far from the mean a healthy run may be: so many standard deviations, and at least
# so much of the loss; where there was one run, twice that.
_DEVIATIONS, _LEAST = 3.0, 0.01
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
        verdict = _verdict(expected["loss"], metrics["loss"])
        return "  expected at this step: " + "; ".join(parts) + f" ({verdict})"

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


def _verdict(expected: Measured, loss: float) -> str:
    allowed = 2 * _LEAST * expected.mean
    if expected.deviation is not None:
        allowed = max(_DEVIATIONS * expected.deviation, _LEAST * expected.mean)
    if abs(loss - expected.mean) <= allowed:
        return "as expected"
    if loss < expected.mean:
        return "lower than expected"
    return "HIGHER than expected"


def identity_of(run: Experiment, stages: Sequence[Stage]) -> dict[str, Any]:
    """Returns what a held-out curve depends on, but for the seed, as JSON has it."""
    config = run.config
    identity = identity_at(config.steps, run, stages)
    identity.pop("seed")
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
        seconds.append(round(_seconds(workdir), 1))
    steps = sorted(set.intersection(*(set(measured) for measured in lines)))
    metrics = {
        step: {
            name: [round(measured[step][name], 5) for measured in lines]
            for name in lines[0][step]
            if all(name in measured[step] for measured in lines)
        }
        for step in steps
    }
    about = {"seconds": seconds, "versions": made_with(), "machine": machine()}
    return Curve(recipe, wanted.identity, metrics, about)


def _by_step(workdir: Path) -> dict[int, dict[str, float]]:
    """Returns the held-out metrics of a run."""
    lines = read_metrics(workdir, VALIDATION)
    return {
        line["step"]: {k: v for k, v in line.items() if k not in ("step", "split")}
        for line in lines
    }


def _seconds(workdir: Path) -> float:
    """Returns how long a run took; the clock begins anew in each phase."""
    clock = [line["seconds"] for line in read_metrics(workdir, "train")]
    ends = (now for now, after in itertools.pairwise(clock) if after < now)
    return sum(ends) + clock[-1]


def _opened_identity(config: RunConfig) -> dict[str, Any]:
    stages = open_stages(config, lambda text: None, None)
    return identity_of(whole_run(config, stages), stages)
