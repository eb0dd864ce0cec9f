"""Curves of recipes: who is held against them, and what is said."""

import dataclasses
import fnmatch
import json
import statistics
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import scipy.special
import scipy.stats

from encoderjax import expected
from encoderjax.config import RunConfig
from encoderjax.config_loading import load_config
from encoderjax.errors import UserError
from encoderjax.expected import (
    STUDENTS_T,
    TAIL,
    Curve,
    curve_from,
    curve_of,
    identity_of,
)
from encoderjax.experiment import Experiment
from encoderjax.fitting import sized_encoder
from encoderjax.identity import flat_fields, is_changeable
from encoderjax.interop.weights import write_json
from encoderjax.opened_lists import OpenedLists
from encoderjax.phases import open_stages, phases_of, whole_run
from encoderjax.provenance import seconds_of
from encoderjax.train import run
from tests.chance import chances_of
from tests.small_runs import metrics, small_config

SILENT = lambda text: None
PUBLISHED = sorted(expected.FOLDER.glob("*.json"))


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


def curve_with(*losses) -> Curve:
    """Returns a curve with the losses of some runs at each of its steps."""
    steps = {step: {"loss": list(of_runs)} for step, of_runs in enumerate(losses)}
    return Curve("a.py", {}, steps, {})


@pytest.mark.parametrize(
    ("apart", "here", "line"),
    [
        (0.01, 2.14, "loss 2.100 ± 0.010, here 2.140 (as expected)"),
        (0.01, 2.15, "loss 2.100 ± 0.010, here 2.150 (HIGHER than expected)"),
        (0.01, 2.05, "loss 2.100 ± 0.010, here 2.050 (lower than expected)"),
        # Runs that are all but the same: a hundredth of the loss is nothing.
        (0.001, 2.12, "loss 2.100 ± 0.001, here 2.120 (as expected)"),
        (0.001, 2.13, "loss 2.100 ± 0.001, here 2.130 (HIGHER than expected)"),
        # Runs that are far apart.
        (0.1, 2.5, "here 2.500 (as expected; this curve tells little: ± 21%)"),
        (0.1, 2.6, "here 2.600 (HIGHER than expected; this curve tells little: ± 21%)"),
    ],
)
def test_what_is_expected_depends_on_how_far_runs_are_apart(apart, here, line):
    curve = curve_with(*[(2.1 - apart, 2.1, 2.1 + apart)] * 4)
    assert curve.standing(2, {"loss": here}).endswith(line)


def test_runs_that_agree_at_a_step_by_chance_make_no_narrow_band():
    curve = curve_with((2.1, 2.1, 2.1), *[(2.09, 2.1, 2.11)] * 3)
    assert "(as expected)" in curve.standing(0, {"loss": 2.13})
    assert "(HIGHER than expected)" in curve.standing(0, {"loss": 2.14})


def test_of_one_run_two_hundredths_are_expected_and_its_terms_are_told():
    curve = Curve(
        "a.py", {}, {6: {"loss": [2.0], "mlm_loss": [1.0], "nsp_loss": [1.0]}}, {}
    )
    terms = {"mlm_loss": 0.9, "nsp_loss": 1.1, "mlm_accuracy": 0.5}
    assert curve.standing(6, {"loss": 2.03} | terms) == (
        "  expected at this step: loss 2.000, here 2.030; mlm loss 1.000, here 0.900; "
        "nsp loss 1.000, here 1.100 (as expected)"
    )
    assert "(HIGHER than expected)" in curve.standing(6, {"loss": 2.05} | terms)


def test_the_quantiles_are_those_of_students_t():
    for freedom, quantile in STUDENTS_T.items():
        assert quantile == pytest.approx(scipy.stats.t.ppf(1 - TAIL, freedom), abs=6e-4)


def test_hardly_a_healthy_run_is_called_high():
    rng = np.random.default_rng(0)
    called = []
    for _ in range(500):
        # Four runs of four steps; half of what is off at one is off at all.
        off_R4 = rng.normal(0, 0.02, (4, 1)) + rng.normal(0, 0.02, (4, 4))
        *known, here = (3 * (1 + off_R4)).tolist()
        curve = curve_with(*zip(*known, strict=True))
        lines = (curve.standing(step, {"loss": loss}) for step, loss in enumerate(here))
        called += ["HIGHER" in line for line in lines]
    # Three deviations of three runs at one step are exceeded by 6 % of them.
    assert np.mean(called) < 1.5 * TAIL


def test_nothing_is_said_where_nothing_is_known():
    assert curve_with((2.0, 2.1)).standing(7, {"loss": 2.0}) == ""


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


@pytest.mark.parametrize(
    ("clock", "seconds"),
    [
        ([], 0.0),
        ([(1.0, None), (2.0, 9.0)], 2.0),
        ([(1.0, None), (3.0, 9.0), (2.0, None), (4.0, 9.0)], 7.0),
        # What goes on may need longer for its first line than the run took before.
        ([(1.0, None), (3.0, 9.0), (5.0, None), (6.0, 9.0)], 9.0),
        # Rows of another length are compiled in the midst of it.
        ([(1.0, None), (3.0, None), (5.0, 9.0)], 5.0),
    ],
)
def test_the_seconds_of_a_run_are_those_of_all_its_parts(tmp_path, clock, seconds):
    lines = [
        {"step": n, "split": "train", "seconds": now, "tokens_per_second": speed}
        for n, (now, speed) in enumerate(clock)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "metrics.jsonl").write_text(text)
    assert seconds_of(tmp_path) == seconds


# What of a curve's identity only the corpus tells.
OF_THE_CORPUS = ("*corpus.*", "tokenizer.*", "data.alpha", "model.position_pad_id")


def told_by(config: RunConfig, identity: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the identity of a recipe, with what the corpus tells as it is given."""
    vocabulary = identity["model.vocab_size"]
    encoder = sized_encoder(config.model.encoder, config, vocabulary, "the curve", None)
    model = {"family": config.model.family, **dataclasses.asdict(encoder)}
    groups = ("data", "objectives", "optimizer", "phases")
    values = {name: config.to_dict()[name] for name in groups} | {"model": model}
    told = {n: v for n, v in flat_fields(values).items() if not is_changeable(n)}
    told |= OpenedLists.of(config.objectives, SILENT).identity()
    told |= {
        "data.rows_per_step": config.data.batch_size or identity["data.rows_per_step"],
        "eval.batches": config.eval.batches,
        "init_from": config.init_from is not None,
        "init_layers": config.init_layers,
        "steps": config.steps,
    }
    given = {
        name: value
        for name, value in identity.items()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in OF_THE_CORPUS)
    }
    return json.loads(json.dumps(told)) | given


@pytest.mark.parametrize("path", PUBLISHED, ids=str)
def test_published_curves_are_of_recipes_as_they_are(path):
    curve = Curve.read(path)
    config = load_config(curve.recipe)
    assert max(curve.metrics) == config.steps
    assert {phase.last for phase in phases_of(config)} <= curve.metrics.keys()
    assert curve.differing(told_by(config, curve.identity)) is None


# A loss of two classes -> the share of one of them, by which alone it can be predicted.
SHARES = {
    "sop_loss": "sop_swapped_share",
    "nsp_loss": "nsp_random_share",
    "rtd_loss": "rtd_replaced_share",
    "insertion_loss": "insertion_inserted_share",
    "deletion_loss": "deletion_gap_share",
}


@pytest.mark.parametrize("path", PUBLISHED, ids=str)
def test_published_curves_are_of_runs_that_learned(path):
    metrics = Curve.read(path).metrics
    first, last = (
        {name: np.array(values) for name, values in metrics[step].items()}
        for step in (min(metrics), max(metrics))
    )
    # By more than what is called as expected, each run for itself.
    assert (last["loss"] < 0.99 * first["loss"]).all()
    for name in last:
        if name.endswith("_loss") and name.count("_") == 1:
            assert (last[name] < first[name]).all(), name
    for name in SHARES.keys() & last.keys():
        share = last[SHARES[name]]
        chance = scipy.special.entr(share) + scipy.special.entr(1 - share)
        assert (last[name] < chance).all(), name


def test_the_denoising_curve_is_below_what_is_told_without_reading():
    """Order apart: the recipe says that so short a run only begins to learn it."""
    curve = Curve.read(next(p for p in PUBLISHED if p.stem == "denoising_base-tiny"))
    experiment = Experiment.open(load_config(curve.recipe), lambda text: None)
    last = curve.metrics[max(curve.metrics)]
    losses = {t for o in experiment.objectives for t in o.loss_weights}
    losses.remove("reordering_loss")
    for loss, chance in chances_of(experiment, losses).items():
        assert max(last[loss]) < chance, loss
    assert min(last["insertion_accuracy_inserted"]) > 0
