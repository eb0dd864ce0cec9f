"""Each kind of noise, trained alone: beyond what is told without reading."""

import pytest

from encoderjax.config_loading import load_config
from encoderjax.experiment import Experiment
from encoderjax.train import run
from tests.chance import chances_of
from tests.small_runs import metrics

# kind: the objective, its fields, steps, the peak, and the part of chance that is left.
# What was put in is told latest: it is drawn as often as the words that belong there.
ALONE = {
    "substitution": (
        "mlm",
        {"replace.mask": 0.0, "replace.random": 1.0},
        (200, 5e-3, 0.8),
    ),
    "deletion": ("deletion", {}, (500, 3e-3, 0.9)),
    "insertion": ("insertion", {}, (1_000, 3e-3, 0.95)),
    "reordering": ("reordering", {}, (400, 5e-3, 0.8)),
}
NOISE = ("deletion", "insertion", "reordering", "mlm")


def alone(kind, corpus):
    """Returns a small run of the recipe with one of its kinds of noise."""
    kept, fields, (steps, peak, _) = ALONE[kind]
    settings = {f"objectives.{name}": None for name in NOISE if name != kept}
    settings |= {f"objectives.{kept}.{name}": value for name, value in fields.items()}
    settings |= {
        "steps": steps,
        "data.corpus": str(corpus.folder),
        "data.length": 32,
        "model.width": 64,
        "model.mlp_width": 128,
        "optimizer.learning_rate": peak,
        "optimizer.warmup_steps": 20,
        "checkpoint.every": steps,
        "eval.every": 0,
        "eval.at_start": True,
    }
    return load_config("configs/denoising_base.py:tiny", settings)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ALONE)
def test_held_out_loss_falls_below_chance(kind, corpus, tmp_path):
    config = alone(kind, corpus)
    _, _, (_, _, left) = ALONE[kind]
    run(config, tmp_path / "run")
    measured = metrics(tmp_path / "run", "validation")
    first, last = measured[0], measured[config.steps]
    (objective,) = config.objectives
    experiment = Experiment.open(config, lambda text: None)
    expected = chances_of(experiment, objective.loss_weights)
    for loss, chance in expected.items():
        assert last[loss] < left * chance < first[loss], loss
