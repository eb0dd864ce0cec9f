"""Curves of recipes: who is held against them, and what is said."""

import dataclasses
import json
import statistics

import pytest

from encoderjax import expected
from encoderjax.config import load_config
from encoderjax.errors import UserError
from encoderjax.expected import Curve, curve_from, curve_of, identity_of
from encoderjax.interop.weights import write_json
from encoderjax.phases import open_stages, phases_of, whole_run
from encoderjax.train import run
from tests.small_runs import metrics, small_config

SILENT = lambda text: None


def of_seed(corpus, seed: int, **changes):
    settings = {"steps": 8, "eval__every": 4, "checkpoint__every": 8} | changes
    return small_config(corpus.folder, seed=seed, **settings)


@pytest.fixture(scope="module")
def measured(corpus, tmp_path_factory):
    """A folder with the curve of two small runs, and their workdirs."""
    folder = tmp_path_factory.mktemp("curves")
    workdirs = [folder / str(seed) for seed in (1, 2)]
    for seed, workdir in enumerate(workdirs, start=1):
        run(of_seed(corpus, seed), workdir)
    curve = curve_from("a.py:small", of_seed(corpus, 0), workdirs)
    write_json(folder / "a-small.json", curve.to_json())
    return folder, workdirs


def found(config, folder) -> Curve | None:
    stages = open_stages(config, SILENT, None)
    return curve_of(whole_run(config, stages), stages, folder)


def test_a_curve_is_what_its_runs_wrote(measured):
    folder, workdirs = measured
    curve = Curve.read(folder / "a-small.json")
    assert sorted(curve.metrics) == [4, 8]
    for step in (4, 8):
        losses = [metrics(w, "validation")[step]["loss"] for w in workdirs]
        assert curve.at(step)["loss"].mean == pytest.approx(
            statistics.mean(losses), abs=1e-5
        )
        assert curve.at(step)["loss"].deviation == pytest.approx(
            statistics.stdev(losses), abs=2e-5
        )
    assert curve.runs == 2
    assert curve.about["machine"]
    assert {"encoderjax", "jax"} <= curve.about["versions"].keys()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"log_every": 2, "eval__every": 2, "checkpoint__keep": 3},
        {"optimizer__microbatches": 2},
        {"precision": "float32"},
    ],
)
def test_a_run_that_follows_the_recipe_is_held_against_it(corpus, measured, changes):
    assert found(of_seed(corpus, 7, **changes), measured[0]) is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer__learning_rate": 2e-3},
        {"steps": 12},
        {"data__batch_size": 8},
        {"eval__batches": 1},
        {"model__dropout_rate": 0.0},
        {"objectives__mlm__rate": 0.2},
        {"data__masking": "static"},
        {"phases__late": "{'after': 4, 'data': {'length': 24}}"},
    ],
)
def test_a_run_that_changes_it_is_not(corpus, measured, changes):
    assert found(of_seed(corpus, 1, **changes), measured[0]) is None


def test_the_small_of_a_large_recipe_is_that_of_the_base_size(corpus):
    identities = []
    for size in ("base", "large"):
        config = load_config(f"configs/roberta_{size}.py:tiny")
        data = dataclasses.replace(config.data, corpus=str(corpus.folder))
        config = dataclasses.replace(config, data=data)
        stages = open_stages(config, SILENT, None)
        identities.append(identity_of(whole_run(config, stages), stages))
    assert identities[0] == identities[1]


def test_a_field_that_came_later_counts_where_it_is_on(corpus, measured):
    curve = Curve.read(measured[0] / "a-small.json")
    config = of_seed(corpus, 3)
    stages = open_stages(config, SILENT, None)
    identity = identity_of(whole_run(config, stages), stages)
    assert curve.differing(identity | {"data.new": None, "model.new": False}) is None
    assert curve.differing(identity | {"data.new": 0.1}) == "data.new"


def test_train_says_where_a_run_stands(corpus, measured, tmp_path, capsys, monkeypatch):
    folder, _ = measured
    monkeypatch.setattr(expected, "FOLDER", folder)
    run(of_seed(corpus, 5), tmp_path / "run")
    lines = capsys.readouterr().out.splitlines()
    assert "curve    a.py:small unchanged, whose curve is known" in lines
    curve = Curve.read(folder / "a-small.json")
    for step in (4, 8):
        here = metrics(tmp_path / "run", "validation")[step]
        (place,) = (i for i, t in enumerate(lines) if f"held out at step {step}" in t)
        assert lines[place + 1] == curve.standing(step, here)
        assert (
            f"loss {curve.at(step)['loss']}, here {here['loss']:.3f}"
            in (lines[place + 1])
        )


MADE_UP = Curve(
    "a.py",
    {},
    {
        5: {"loss": [2.0, 2.1, 2.2], "mlm_loss": [2.0, 2.1, 2.2]},
        6: {"loss": [2.0], "mlm_loss": [1.0], "nsp_loss": [1.0]},
    },
    {},
)


@pytest.mark.parametrize(
    ("step", "here", "line"),
    [
        (5, 2.35, "loss 2.100 ± 0.100, here 2.350 (as expected)"),
        (5, 2.45, "loss 2.100 ± 0.100, here 2.450 (HIGHER than expected)"),
        (5, 1.75, "loss 2.100 ± 0.100, here 1.750 (lower than expected)"),
        (6, 2.03, "loss 2.000, here 2.030; mlm loss 1.000, here 0.900; nsp loss"),
    ],
)
def test_three_deviations_are_expected(step, here, line):
    terms = {"loss": here, "mlm_loss": 0.9, "nsp_loss": 1.1, "mlm_accuracy": 0.5}
    assert MADE_UP.standing(step, terms).startswith(f"  expected at this step: {line}")


def test_nothing_is_said_where_nothing_is_known():
    assert MADE_UP.standing(7, {"loss": 2.0}) == ""


def test_runs_of_another_recipe_or_unfinished_ones_make_no_curve(corpus, measured):
    workdirs = measured[1]
    other = of_seed(corpus, 0, optimizer__learning_rate=1e-3)
    with pytest.raises(UserError, match=r"optimizer.learning_rate=0.003, there 0.001"):
        curve_from("a.py", other, workdirs)
    line = (workdirs[0] / "metrics.jsonl").read_text()
    kept = [x for x in line.splitlines() if json.loads(x)["step"] < 8]
    (workdirs[0] / "metrics.jsonl").write_text("\n".join(kept) + "\n")
    with pytest.raises(UserError, match="is not at its end, step 8"):
        curve_from("a.py", of_seed(corpus, 0), workdirs)
    (workdirs[0] / "metrics.jsonl").write_text(line)


@pytest.mark.parametrize("path", sorted(expected.FOLDER.glob("*.json")), ids=str)
def test_published_curves_are_of_recipes_as_they_are(path):
    curve = Curve.read(path)
    config = load_config(curve.recipe)
    assert max(curve.metrics) == config.steps
    assert {phase.last for phase in phases_of(config)} <= curve.metrics.keys()
    assert curve.identity["optimizer.learning_rate"] == config.optimizer.learning_rate
    assert curve.identity["data.form"] == config.data.form
