"""Runs of several phases: one curve, one resume."""

import shutil

import numpy as np
import pytest

from encoderjax.errors import UserError
from encoderjax.evaluate import run as evaluate
from encoderjax.phases import open_stages, phases_of
from encoderjax.train import run
from tests.small_runs import curve, metrics, small_config

LONG = {
    "phases.long.after": 6,
    "phases.long.data.length": 64,
    # What has no state of its own may come and go.
    "phases.long.optimizer.clip_norm": 0.0,
    "phases.long.optimizer.layer_decay": 0.9,
}


def config(corpus, **changes):
    settings = {"steps": 12, "checkpoint.every": 4, "checkpoint.keep": 3}
    settings |= {"eval.every": 0} | changes
    return small_config(corpus.folder, **settings)


def silent(text):
    del text


@pytest.fixture(scope="module")
def whole(corpus, tmp_path_factory):
    """Two phases in one go."""
    workdir = tmp_path_factory.mktemp("phases")
    run(config(corpus, **LONG), workdir)
    return workdir


@pytest.mark.parametrize("kept", [4, 8])
def test_a_run_in_two_phases_resumes_bit_for_bit(whole, corpus, tmp_path, kept):
    # As if killed after a checkpoint within the first phase, or within the second.
    workdir = tmp_path / "killed"
    shutil.copytree(whole, workdir)
    for step in (4, 8, 12):
        if step > kept:
            shutil.rmtree(workdir / "checkpoints" / str(step))
    run(config(corpus, **LONG), workdir)
    assert curve(workdir) == curve(whole)
    assert metrics(workdir, "validation") == metrics(whole, "validation")


def test_rows_differ_and_the_learning_rate_goes_on(whole, corpus):
    stages = open_stages(config(corpus, **LONG), silent, None)
    assert [s.source.batch(s.phase.first)["ids"].shape[1] for s in stages] == [32, 64]
    rates = [line["learning_rate"] for _, line in sorted(metrics(whole).items())]
    alone = phases_of(config(corpus))[0].config.optimizer
    peak, warmup = alone.learning_rate, alone.warmup_steps
    expected = [
        peak * min(t / warmup, (12 - t) / (12 - warmup)) for t in range(12)
    ]  # of all twelve steps
    np.testing.assert_allclose(rates, expected, rtol=1e-6)
    # Each phase is measured at its end, on its own held-out rows.
    assert list(metrics(whole, "validation")) == [6, 12]


def test_evaluation_takes_the_rows_of_the_last_phase(whole):
    found = evaluate(whole, batch_size=16, report=silent)
    expected = metrics(whole, "validation")[12]
    assert found["mlm_loss"] == pytest.approx(expected["mlm_loss"], abs=1e-5)


def test_a_phase_with_a_learning_rate_has_its_own_schedule(corpus):
    changes = {
        "phases.second.after": 8,
        "phases.second.optimizer.learning_rate": 1e-3,
        "phases.second.optimizer.warmup_steps": 2,
    }
    first, second = phases_of(config(corpus, **changes))
    assert (first.config.steps, first.schedule_first) == (12, 0)
    assert (second.config.steps, second.schedule_first) == (4, 8)
    assert second.config.optimizer.warmup_steps == 2


def test_a_growing_batch_reads_every_row_once(corpus):
    changes = {
        "data.batch_size": 32,
        "phases.a.after": 0,
        "phases.a.data.batch_size": 8,
        "phases.b.after": 3,
        "phases.b.data.batch_size": 16,
        "phases.c.after": 5,
    }
    stages = open_stages(config(corpus, **changes), silent, None)
    seen = []
    for stage in stages:
        for step in range(stage.phase.first, min(stage.phase.last, 7)):
            epochs, rows = stage.source.places(step, slice(None))
            seen += list(zip(epochs.tolist(), rows.tolist(), strict=True))
    assert len(seen) == 3 * 8 + 2 * 16 + 2 * 32
    assert len(set(seen)) == len(seen)


def test_a_run_that_is_cut_short_leaves_phases_out(corpus):
    assert [p.name for p in phases_of(config(corpus, **LONG, steps=5))] == ["start"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"after": "soon"}, r"phases.p.after='soon' must be a whole number"),
        ({}, r"phases.p.after=None must be"),
        ({"after": 3, "seed": 1}, r"phases.p: seed cannot differ between phases"),
        (
            {"after": 3, "optimizer.name": "lamb"},
            r"phases.p: optimizer.name cannot differ",
        ),
        ({"after": 3, "data.lenght": 64}, r"phases.p: data.lenght .*'length'"),
        ({"after": 3, "objectives.sop.weight": 1.0}, r"objectives.sop is not an obj"),
        ({"after": 3, "data.length": 1024}, r"phases.p: data.length=1024"),
        ({"after": 3, "model.width": 64}, r"phases.p: it changes the parameters"),
        (
            {"after": 3, "optimizer.decay_steps": 2},
            r"phases.p: optimizer.decay_steps=2 is read by .*'wsd' alone",
        ),
        (
            {"after": 0, "optimizer.decay_exclude": ("norms",)},
            r"phases.p: optimizer.decay_exclude has 'norms'.*did you mean",
        ),
    ],
)
def test_phases_that_cannot_follow_are_refused(corpus, changes, message):
    named = {f"phases.p.{name}": value for name, value in changes.items()}
    named = named or {"phases.p.data.length": 64}
    with pytest.raises(UserError, match=message):
        open_stages(config(corpus, **named), silent, None)
