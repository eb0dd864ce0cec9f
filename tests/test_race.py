"""Time to quality: both contenders have the same work, and what is said of them."""

import itertools

import jax
import numpy as np
import pytest

from encoderjax import jax_race, race, torch_race
from encoderjax.errors import UserError
from encoderjax.evaluate import judged
from encoderjax.interop.loading import load_model
from encoderjax.phases import open_stages
from encoderjax.race_clock import measured_after
from encoderjax.race_results import OURS, THEIRS, at_time, lead, reached, table
from encoderjax.train import first_program
from encoderjax.training.evaluation import evaluate
from encoderjax.training.mesh import make_mesh
from tests.small_runs import small_config

SILENT = lambda text: None
NO_DROPOUT = {"model__dropout_rate": 0.0, "model__attention_dropout_rate": 0.0}


def small_stage(corpus, **changes):
    return open_stages(small_config(corpus.folder, **changes), SILENT, None)[0]


@pytest.fixture(scope="module", params=["pairs", "alone", "rotary"])
def work(request, corpus):
    """A stage, its held-out rows, and the same for PyTorch."""
    alone = {"objectives__nsp": None, "data__second": None}
    alone["data__form"] = "full_sentences"
    # A family whose own vocabulary has its padding beyond the end of ours.
    rotary = alone | {"model__family": "modernbert", "model__size": "base"}
    rotary |= {"model__window": "None", "model__global_every": 1}
    changes = {"pairs": {}, "alone": alone, "rotary": rotary}[request.param]
    stage = small_stage(corpus, **changes)
    held_out = race._held_out_rows(stage, 37)
    return stage, held_out, race.race_of(stage, held_out, workers=0)


def test_both_begin_with_the_same_weights_and_are_measured_alike(work):
    stage, (source, rows), given = work
    mesh = make_mesh(stage.experiment.config.mesh)
    with jax.set_mesh(mesh):
        program, state = first_program(stage, mesh)
        means = evaluate(
            program.eval_step, state.params, source, mesh=mesh, num_rows=rows
        ).means()
    assert rows % source.batch_size  # the last batch is not full
    theirs = torch_race._held_out(torch_race._model(given), given.work)
    for name in ("mlm_loss", "mlm_accuracy"):
        assert theirs[name] == pytest.approx(means[name], abs=1e-5)


def test_their_batches_are_our_rows_masked_by_their_collator(work):
    stage, _, given = work
    tokenizer = stage.experiment.corpus.tokenizer
    masks = chosen = tokens = 0
    seen = []
    per_pass = -(-len(given.ids_RL) // given.batch_size)
    batches = torch_race._batches(given)
    for batch in itertools.islice(batches, per_pass):
        batch = {name: np.asarray(value) for name, value in batch.items()}
        labels_BL, real_BL = batch["labels"], batch["attention_mask"] > 0
        whole_BL = np.where(labels_BL >= 0, labels_BL, batch["input_ids"])
        special_BL = tokenizer.vocabulary.special_V[whole_BL]
        assert not (special_BL & (labels_BL >= 0)).any()
        tokens += (real_BL & ~special_BL).sum()
        chosen += (labels_BL >= 0).sum()
        masks += (
            (batch["input_ids"] == tokenizer.vocabulary.mask_id) & (labels_BL >= 0)
        ).sum()
        seen += [tuple(r[m]) for r, m in zip(whole_BL, real_BL, strict=True)]
        if "next_sentence_label" in batch:
            assert batch["next_sentence_label"].shape == (len(labels_BL),)
            assert batch["token_type_ids"].max() == 1
    batches.close()
    rate = chosen / tokens
    assert abs(rate - given.rate) < 5 * np.sqrt(given.rate / tokens)
    assert abs(masks / chosen - 0.8) < 5 * np.sqrt(0.16 / chosen)
    # A pass shows each of our rows once.
    rows = [tuple(r[:n]) for r, n in zip(given.ids_RL, given.lengths_R, strict=True)]
    assert sorted(seen) == sorted(rows)


@pytest.mark.slow
def test_a_race_is_run_once_and_goes_on(corpus, tmp_path):
    config = small_config(corpus.folder, **NO_DROPOUT)
    results = race.run(
        config, tmp_path, minutes=0.03, rows=40, workers=0, report=SILENT
    )
    for points in results["contenders"].values():
        assert [p["seconds"] for p in points] == sorted(p["seconds"] for p in points)
        assert points[0]["step"] == 0 < points[-1]["step"]
        assert points[-1]["mlm_loss"] < points[0]["mlm_loss"]
    starts = results["starts"]
    for name in (OURS, THEIRS):
        # The clock began with the process.
        assert results["contenders"][name][0]["seconds"] == starts[name]["start"] > 0.5
    # What the first one compiled was found by the next one.
    assert starts[OURS]["first_start"] > starts[OURS]["start"] + 0.5
    ours, theirs = (results["contenders"][name][0] for name in (OURS, THEIRS))
    assert ours["mlm_loss"] == pytest.approx(theirs["mlm_loss"], abs=1e-5)
    assert (tmp_path / "picture.png").stat().st_size > 10_000
    kept = load_model(tmp_path / race.MODEL)
    measured = judged(kept, config, rows=40, report=SILENT)
    last = results["contenders"][OURS][-1]
    assert measured["mlm_loss"] == pytest.approx(last["mlm_loss"], abs=1e-5)
    before = (tmp_path / f"{THEIRS}.json").stat().st_mtime_ns
    (tmp_path / f"{OURS}.json").unlink()
    again = race.run(config, tmp_path, minutes=0.03, rows=40, workers=0, report=SILENT)
    assert (tmp_path / f"{THEIRS}.json").stat().st_mtime_ns == before
    assert again["contenders"][THEIRS] == results["contenders"][THEIRS]
    with pytest.raises(UserError, match="was made with another minutes"):
        race.run(config, tmp_path, minutes=0.1, rows=40, workers=0, report=SILENT)


def test_another_number_of_steps_keeps_the_shape_of_the_schedule(corpus):
    stage = small_stage(corpus, steps=40, optimizer__warmup_steps=10)
    config = jax_race.lasting(stage, 200).experiment.config
    assert (config.steps, config.optimizer.warmup_steps) == (200, 50)
    assert stage.experiment.config.steps == 40


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer__bias_correction": False}, "bias_correction=False: PyTorch's"),
        ({"optimizer__decoupled_decay": True}, "decoupled_decay=True: PyTorch's"),
        ({"objectives__mlm__select": "words"}, "select='words': their collator has"),
        (
            {"objectives__mlm__replace__distribution": "ordinary"},
            "distribution='ordinary': their collator has 'uniform' alone",
        ),
        ({"objectives__mlm__rate": "(0.1, 0.2)"}, "their collator has a number only"),
        ({"optimizer__name": "lamb"}, "AdamW alone, not optimizer.name='lamb'"),
    ],
)
def test_work_that_they_cannot_do_is_refused(corpus, changes, message):
    stage = small_stage(corpus, **changes)
    with pytest.raises(UserError, match=message):
        race.race_of(stage, race._held_out_rows(stage, 8), workers=0)


def test_a_group_of_corpora_is_refused(group):
    config = small_config(group, data__alpha=0.5, data__second="next",
                          objectives__nsp=None)  # fmt: skip
    stage = open_stages(config, SILENT, None)[0]
    with pytest.raises(UserError, match="must be one corpus with held-out documents"):
        race._held_out_rows(stage, 8)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"minutes": float("nan")}, "--minutes=nan must be a number above 0"),
        ({"minutes": float("inf")}, "--minutes=inf must be a number above 0"),
        ({"rows": 0}, "--rows=0 must be at least 1"),
        ({"workers": -1}, "--workers=-1 must be at least 0"),
    ],
)
def test_flags_that_make_no_race_are_refused(corpus, tmp_path, flags, message):
    with pytest.raises(UserError, match=message):
        race.run(small_config(corpus.folder), tmp_path, **{"minutes": 1.0} | flags)


def test_a_file_is_no_folder_for_a_race(corpus, tmp_path):
    (tmp_path / "out").write_text("kept")
    with pytest.raises(UserError, match="out is a file; name a folder"):
        race.run(small_config(corpus.folder), tmp_path / "out", minutes=1.0)
    assert (tmp_path / "out").read_text() == "kept"


# ---- what is said ----


def points(*losses: float, seconds: float = 60.0):
    return [
        {"seconds": seconds * n, "step": 10 * n, "mlm_loss": loss}
        for n, loss in enumerate(losses)
    ]


CONTENDERS = {THEIRS: points(8.0, 6.0, 5.0), OURS: points(8.0, 5.0, 4.0)}
STARTS = {OURS: {"start": 2.0, "first_start": 2.0}, THEIRS: {"start": 3.0}}


def test_losses_are_compared_at_equal_times():
    assert at_time(CONTENDERS[OURS], 30) == pytest.approx(6.5)
    assert lead(CONTENDERS) == pytest.approx({60: 1.0, 120: 1.0})
    # Nothing is compared after one of them has ended.
    faster = {**CONTENDERS, OURS: points(8.0, 5.0, 4.0, 3.0, seconds=30)}
    assert lead(faster) == pytest.approx({30: 2.0, 60: 2.0, 90: 5.5 - 3.0})
    assert reached(CONTENDERS[OURS], 5.5) == pytest.approx(50)
    assert reached(CONTENDERS[OURS], 3.0) is None


def test_the_table_says_who_is_below():
    results = {
        "contenders": CONTENDERS,
        "starts": STARTS,
        "about": "a model",
        "rows": 8,
        "theirs": "x",
        "machine": "m",
        "versions": {},
        "command": "c",
    }
    text = table(results)
    assert "encoderjax is below PyTorch at every time" in text
    assert "after 1.0 of 2.0 minutes" in text
    assert "| 2.0 | 4.000 | 5.000 |" in text
    late = {**CONTENDERS, OURS: points(8.0, 7.9, 5.0, 4.5, 4.0, seconds=30)}
    # After half a minute it was not yet.
    assert "below PyTorch from second 60 on" in table(results | {"contenders": late})
    slow = STARTS | {OURS: {"start": 2.0, "first_start": 32.0}}
    said = table(results | {"starts": slow})
    assert "takes 30.0 s more, and encoderjax is below from second 90 on" in said
    # Equal losses are not above: a first step with no learning rate changes nothing.
    equal = {THEIRS: points(8.0, 8.0, 5.0), OURS: points(8.0, 8.0, 4.0)}
    assert "is below PyTorch at every time" in table(results | {"contenders": equal})
    swapped = {THEIRS: CONTENDERS[OURS], OURS: CONTENDERS[THEIRS]}
    assert "NOT below" in table(results | {"contenders": swapped})


def test_the_beginning_is_measured_more_often():
    assert measured_after(160) == [1, 2, 4, 8, *range(10, 161, 10)]
    assert measured_after(3) == [1, 2, 3]
