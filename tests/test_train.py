"""Training as a user runs it: the curve, its interruptions, and what is refused."""

import codecs
import dataclasses
import json
import shutil
import signal
import time

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from encoderjax.data.corpora import Corpora, Member
from encoderjax.errors import UserError
from encoderjax.evaluate import run as evaluate
from encoderjax.evaluate import unigram_entropy
from encoderjax.train import main, run
from tests.small_corpus import prepare_small_corpus
from tests.small_runs import (
    RECIPE,
    all_lines,
    curve,
    finish,
    metrics,
    small_config,
    start_training,
    wait_for_step,
)


@pytest.fixture(scope="module")
def whole(corpus, tmp_path_factory):
    """Forty steps in one go, in a process of its own."""
    workdir = tmp_path_factory.mktemp("whole")
    output, _ = finish(start_training(workdir, corpus.folder))
    return workdir, output


def wait_for_checkpoint(workdir, step):
    """Waits until the save, which runs in the background, is whole."""
    while not (workdir / "checkpoints" / str(step)).exists():
        time.sleep(0.02)


def test_output_tells_what_happens(whole):
    _, output = whole
    for expected in (
        "parameters",
        "step 40/40",
        "tokens/s",
        "of peak",
        "held out at step 40",
        "masks filled in held-out text",
        "python -m encoderjax.fill_mask",
        "python -m encoderjax.export",
    ):
        assert expected in output
    assert "\r" not in output  # no bar in a pipe


def test_every_step_and_evaluation_is_written(whole):
    workdir, _ = whole
    lines = metrics(workdir)
    assert list(lines) == list(range(1, 41))
    fields = {"loss", "mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy"}
    fields |= {"learning_rate", "grad_norm", "tokens_per_second", "mfu", "seconds"}
    assert fields <= lines[40].keys()
    held_out = metrics(workdir, "validation")
    assert list(held_out) == [20, 40]
    kinds = {f"mlm_loss_{kind}" for kind in ("masked", "replaced", "kept")}
    assert kinds <= held_out[40].keys()
    # Written to TensorBoard as well.
    events = EventAccumulator(str(workdir)).Reload()
    losses = {event.step: event.value for event in events.Scalars("train/loss")}
    assert losses == pytest.approx({step: line["loss"] for step, line in lines.items()})


def test_killed_and_stopped_runs_continue_bit_for_bit(whole, corpus, tmp_path):
    expected, _ = whole
    process = start_training(tmp_path, corpus.folder)
    wait_for_step(tmp_path, 13, process)
    wait_for_checkpoint(tmp_path, 10)
    process.send_signal(signal.SIGKILL)
    finish(process, -signal.SIGKILL)

    process = start_training(tmp_path, corpus.folder)
    wait_for_step(tmp_path, 25, process)
    process.send_signal(signal.SIGTERM)
    output, _ = finish(process)
    assert "resuming after step 10 " in output
    stopped = max(metrics(tmp_path))
    assert f"stopped at step {stopped}" in output  # saved then and there

    output, _ = finish(start_training(tmp_path, corpus.folder))
    assert f"resuming after step {stopped} " in output
    assert curve(tmp_path) == curve(expected)
    assert metrics(tmp_path, "validation") == metrics(expected, "validation")

    # A finished run is left as it is.
    finish(start_training(tmp_path, corpus.folder))
    order = [
        [(line["step"], line["split"]) for line in all_lines(workdir)]
        for workdir in (tmp_path, expected)
    ]
    assert order[0] == order[1]  # each line once


@pytest.mark.slow
def test_a_run_goes_on_with_other_devices(whole, corpus, tmp_path):
    expected, _ = whole
    changes = {"checkpoint__every": 20, "mesh__fsdp": 2}
    process = start_training(tmp_path, corpus.folder, devices=8, **changes)
    wait_for_step(tmp_path, 21, process)
    wait_for_checkpoint(tmp_path, 20)
    process.kill()
    finish(process, -signal.SIGKILL)
    output, _ = finish(start_training(tmp_path, corpus.folder, devices=4, **changes))
    assert "resuming after step 20 " in output
    losses = [[row[1] for row in curve(w)] for w in (tmp_path, expected)]
    assert losses[0] == pytest.approx(losses[1], abs=2e-4)


@pytest.fixture(scope="module")
def short(corpus, tmp_path_factory):
    """Two steps, on the eight devices of the tests."""
    workdir = tmp_path_factory.mktemp("short")
    run(small_config(corpus.folder, steps=2, optimizer__warmup_steps=1), workdir)
    return workdir


def test_rows_that_fill_up_a_batch_count_for_nothing(short, corpus, tmp_path):
    changes = {"steps": 2, "optimizer__warmup_steps": 1, "optimizer__microbatches": 3}
    with pytest.raises(UserError, match=r"data.batch_size=16 is not divisible by"):
        small_config(corpus.folder, **changes)
    # On eight devices and in three parts they are 24, of which 16 are the same.
    filled = small_config(corpus.folder, data__fill_batch=True, **changes)
    run(filled, tmp_path)
    for ours, theirs in zip(curve(tmp_path), curve(short), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)


def test_held_out_rows_of_odd_batches_are_filled_up_too(corpus, tmp_path):
    changes = {"steps": 1, "optimizer__warmup_steps": 1, "eval__batches": 3}
    odd = {"data__batch_size": 13, "data__fill_batch": True}
    measured = run(small_config(corpus.folder, **changes, **odd), tmp_path)
    expected = evaluate(tmp_path, rows=39, batch_size=40, report=lambda text: None)
    assert measured == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model__width": 64}, "model.width=64"),
        ({"seed": 1}, "seed=1"),
        ({"optimizer__learning_rate": 1e-3}, "optimizer.learning_rate=0.001"),
        ({"data__batch_size": 32}, "data.rows_per_step=32"),
        ({"objectives__mlm__rate": 0.3}, "objectives.mlm.rate=0.3"),
        ({"objectives__nsp": None}, "objectives.nsp"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(short, corpus, changes, field):
    before = (short / "config.json").read_text()
    settings = {"steps": 4, "optimizer__warmup_steps": 1} | changes
    with pytest.raises(UserError, match=field):
        run(small_config(corpus.folder, **settings), short)
    assert (short / "config.json").read_text() == before


def test_a_checkpoint_of_another_tokenizer_or_corpus_is_refused(short, tmp_path):
    other = prepare_small_corpus(tmp_path, count=30)
    settings = {"steps": 4, "optimizer__warmup_steps": 1}
    with pytest.raises(UserError, match=r"tokenizer.sha256|corpus.fingerprint"):
        run(small_config(other.folder, **settings), short)


def test_what_may_change_does(short, corpus, tmp_path):
    """More steps, mesh, microbatches, logging, remat; and a corpus that moved."""
    workdir, moved = tmp_path / "run", tmp_path / "moved"
    shutil.copytree(short, workdir)
    shutil.copytree(corpus.folder, moved)
    changes = dict(mesh__data=4, mesh__fsdp=2, optimizer__microbatches=2, log_every=2)
    changes |= dict(compute__remat="blocks")
    config = small_config(moved, steps=4, optimizer__warmup_steps=1, **changes)
    run(config, workdir)
    assert list(metrics(workdir)) == [1, 2, 4]


def test_a_nan_stops_with_step_rows_and_advice(corpus, tmp_path):
    config = small_config(
        corpus.folder,
        steps=30,
        optimizer__learning_rate=1e30,
        optimizer__clip_norm=0.0,
        optimizer__warmup_steps=0,
        checkpoint__every=1,
        log_every=7,
    )
    with pytest.raises(UserError) as error:
        run(config, tmp_path)
    message = str(error.value)
    assert "at step 1, on rows " in message
    assert "optimizer.learning_rate" in message
    # The loss of step 1 was finite, its update was not: nothing of it is saved.
    assert not (tmp_path / "checkpoints" / "1").exists()


@pytest.mark.slow
def test_a_disk_that_fills_up_loses_nothing(corpus, tmp_path):
    """A limit on the size of files stands for the full disk."""
    changes = {"model__mlp_width": 8192, "eval__every": 0}
    finish(start_training(tmp_path, corpus.folder, steps=10, **changes))
    limit = ["bash", "-c", 'ulimit -f 1000; exec "$@"', "limited"]
    process = start_training(tmp_path, corpus.folder, steps=20, limit=limit, **changes)
    _, errors = finish(process, 1)
    (message,) = (line for line in errors.splitlines() if line.startswith("error: "))
    assert "the newest whole checkpoint is of step 10" in message
    output, _ = finish(start_training(tmp_path, corpus.folder, steps=20, **changes))
    assert "resuming after step 10 " in output


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"data__batch_size": 12},
            r"data.batch_size=12.*8 devices.*data.batch_size=16",
        ),
        ({"model__vocab_size": 100}, r"model.vocab_size=100 is smaller"),
        ({"mesh__data": 3}, r"mesh.data=3"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_made(
    corpus, tmp_path, changes, message
):
    workdir = tmp_path / "run"
    with pytest.raises(UserError, match=message):
        run(small_config(corpus.folder, **changes), workdir)
    assert not workdir.exists()


def test_one_document_is_refused_for_next_sentence_prediction(tmp_path):
    lone = prepare_small_corpus(tmp_path, count=1)
    with pytest.raises(UserError, match=r"only one.*data.negatives='anywhere'"):
        run(small_config(lone.folder), tmp_path / "run")
    run(
        small_config(
            lone.folder,
            steps=1,
            optimizer__warmup_steps=0,
            data__negatives="anywhere",
        ),
        tmp_path / "run",
    )


def test_a_truncated_shard_is_named(corpus, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(corpus.folder, broken)
    shard = broken / "train-00000-0000.tokens.npy"
    shard.write_bytes(shard.read_bytes()[:-10])
    with pytest.raises(UserError, match=r"train-00000-0000.tokens.npy has \d+ bytes"):
        run(small_config(broken), tmp_path / "run")


@pytest.mark.slow
def test_it_learns_words_and_pairs(corpus, tmp_path):
    """Below the unigram entropy of the held-out text; pairs above chance."""
    changes = dict(
        steps=800,
        log_every=100,
        data__batch_size=32,
        data__dupe_factor=10,
        model__dropout_rate=0.0,
        model__attention_dropout_rate=0.0,
        optimizer__learning_rate=5e-3,
        optimizer__warmup_steps=20,
        checkpoint__every=800,
        eval__every=0,
    )
    finish(start_training(tmp_path, corpus.folder, **changes))
    found = metrics(tmp_path, "validation")[800]
    assert found["mlm_loss"] < unigram_entropy(Corpora("", (Member("", corpus),))) - 1.0
    assert found["nsp_accuracy"] > 0.65


def test_training_goes_on_from_exported_weights(short, corpus, tmp_path):
    from encoderjax.export import run as export

    export(short, tmp_path / "exported")
    settings = {
        "steps": 1,
        "optimizer__warmup_steps": 0,
        "optimizer__learning_rate": 0.0,
    }
    config = small_config(corpus.folder, init_from=tmp_path / "exported", **settings)
    found = run(config, tmp_path / "run")
    assert found["loss"] == pytest.approx(
        metrics(short, "validation")[2]["loss"], abs=1e-5
    )
    wider = dataclasses.replace(
        config,
        model=dataclasses.replace(
            config.model, changes={**config.model.changes, "width": 64}
        ),
    )
    with pytest.raises(UserError, match=r"model.width=64 does not fit init_from"):
        run(wider, tmp_path / "other")


def test_weights_of_another_vocabulary_are_refused(short, tmp_path):
    """Of the same size, so that only the words tell them apart."""
    other = prepare_small_corpus(
        tmp_path, spell=lambda line: codecs.encode(line, "rot13")
    )
    config = small_config(other.folder, init_from=short)
    with pytest.raises(UserError, match="another vocabulary"):
        run(config, tmp_path / "run")


def test_a_workdir_can_be_used_from_another_folder(corpus, tmp_path, monkeypatch):
    config = small_config(
        "prepared", steps=1, optimizer__warmup_steps=0, eval__batches=1
    )
    monkeypatch.chdir(corpus.folder.parent)
    run(config, tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    assert evaluate(tmp_path / "run", rows=8, report=lambda text: None)


def test_stores_that_orbax_cannot_write_are_refused_as_workdirs():
    with pytest.raises(UserError, match="Orbax cannot write checkpoints to"):
        main([f"--config={RECIPE}", "--workdir=s3://bucket/run"])


def test_a_run_ends_well_where_no_sentence_fits_the_demonstration(corpus, tmp_path):
    config = small_config(
        corpus.folder,
        steps=1,
        optimizer__warmup_steps=0,
        data__length=8,
        model__max_length=8,
    )
    assert run(config, tmp_path)["mlm_loss"] > 0


def test_the_workdir_describes_the_run(short):
    described = json.loads((short / "config.json").read_text())
    assert described["model"]["vocab_size"] == 180
    assert described["heads"] == ["mlm", "nsp"]
    assert (short / "tokenizer" / "tokenizer.json").exists()
