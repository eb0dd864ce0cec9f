"""Compiling for a pod that is not there."""

import dataclasses
import itertools
import json
import math
import subprocess
import sys

import pytest

from encoderjax import compile_check
from encoderjax.compiling import Builder
from encoderjax.config_loading import load_config
from encoderjax.errors import UserError
from encoderjax.outline import outline_stages
from encoderjax.pod import Pod
from encoderjax.suggestions import Fitting, changed, spelled
from encoderjax.training.mesh import MeshConfig, make_mesh

SILENT = lambda line: None
TINY = "--config=configs/bert_base.py:tiny"
SHORT = (
    "--config.phases={}",
    "--config.steps=400",
    "--config.model.num_layers=6",  # a loop of layers
    "--config.data.batch_size=32",
    "--config.data.length=64",
)


@pytest.fixture(scope="module")
def shelf():
    pytest.importorskip("libtpu")


def test_a_recipe_is_compiled_and_described(shelf, capsys):
    compile_check.main([TINY, "--topology=v5e:2x2", "--json", "--quick", *SHORT])
    result = json.loads(capsys.readouterr().out)
    (phase,) = result["phases"]
    assert result["fits"]
    assert (result["chips"], phase["rows_per_device"]) == (4, 8)
    memory, parameters = phase["memory"], result["parameters"]
    assert memory["parameters"] == 4 * parameters
    assert memory["optimiser"] == pytest.approx(8 * parameters, rel=1e-3)
    assert phase["bytes"] == sum(memory.values()) < result["available_bytes"]
    # One row of states a layer, at the least; and no more than all of the rest.
    rows = 6 * 8 * 64 * 128 * 2
    assert rows < memory["activations"] < 60 * rows
    (exchange,) = phase["collectives"]
    assert (exchange["kind"], exchange["axes"]) == ("all-reduce", "data")
    # Gradients in 16 or 32 bits, those of the token table of two kinds.
    assert 2 * parameters < exchange["bytes"] < 8 * parameters
    assert exchange["count"] > 6
    assert not phase["activation_gathers"]
    assert not phase["global_buffers"]
    # 40 % of the published peak of four chips.
    seconds = phase["flops_per_step"] / (0.4 * 4 * 197e12)
    assert phase["seconds_per_step"] == pytest.approx(seconds)
    assert result["hours"] == pytest.approx(400 * seconds / 3600)
    text = compile_check.table(result)
    assert "fits" in text.splitlines()[-1]
    assert "global buffers" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fsdp", "model"), [(8, 1), (1, 2), (2, 2)], ids=["fsdp8", "model2", "2x2x2"]
)
def test_states_and_scores_are_gathered_on_no_mesh(shelf, capsys, fsdp, model):
    """Parameters that are split are gathered layer by layer, and nothing else is."""
    split = (f"--config.mesh.fsdp={fsdp}", f"--config.mesh.model={model}")
    flags = [TINY, "--topology=v5e:2x4", "--json", "--quick", *SHORT, *split]
    compile_check.main(flags)
    (phase,) = json.loads(capsys.readouterr().out)["phases"]
    found = {(c["kind"], c["axes"]) for c in phase["collectives"]}
    gathered = {axes for kind, axes in found if kind == "all-gather"}
    assert ("fsdp" in gathered) == (fsdp > 1)
    assert not phase["activation_gathers"]
    assert not phase["global_buffers"]


@pytest.mark.slow
def test_products_that_are_fused_into_one_another_are_compiled(shelf):
    """For the costs of these, libtpu's threads once had too small a stack."""
    command = [sys.executable, "-m", "encoderjax.compile_check", "--no_suggestion"]
    command += ["--config=configs/albert_base.py", "--topology=v5e:16x16"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-500:]
    assert "fits" in done.stdout.splitlines()[-1]


SMALLEST = {
    "phases": {},
    "model.num_layers": 1,
    "objectives.nsp": None,
    "data.length": 32,
}


def test_what_does_not_fit_ends_with_a_code_and_what_does(shelf, capsys):
    """A table of 6 GiB, whole on each chip unless `model` splits it."""
    large = SMALLEST | {"model.vocab_size": 3 * 2**22, "compute.remat": "blocks"}
    large |= {"data.batch_size": 8}
    flags = [f"--config.{field}={value}" for field, value in large.items()]
    with pytest.raises(SystemExit) as stopped:
        compile_check.main([TINY, "--topology=v5e:2x2", "--quick", *flags])
    assert stopped.value.code == 1
    text = capsys.readouterr().out
    assert "GiB  of 15.75 GiB: DOES NOT FIT" in text
    *lines, last = text.splitlines()
    (*_, tried) = (line for line in lines if line.startswith("trying "))
    assert tried.split()[1:] == last.removeprefix("this fits: ").split()
    assert "--config.mesh.model=2" in last


def test_rows_that_only_fill_a_batch_up_take_their_time():
    """By formula, for chips that nothing is compiled for."""
    odd = SMALLEST | {"data.batch_size": 5, "data.fill_batch": True}
    config = load_config("configs/bert_base.py:tiny", odd)
    result = compile_check.run(config, "a100:8", report=SILENT)
    (phase,) = result["phases"]
    assert (phase["rows"], phase["empty_rows"], phase["rows_per_device"]) == (5, 3, 1)
    seconds = 8 / 5 * phase["flops_per_step"] / (0.4 * 8 * 312e12)
    assert phase["seconds_per_step"] == pytest.approx(seconds)
    assert "3 of 8 only fill up" in compile_check.table(result)


LAYERS = {"model.num_layers": 12, "data.batch_size": 1024}  # activations are the most
TABLE = {"model.vocab_size": 2**18, "data.batch_size": 8}  # the state is
LONGER = {"after": 200, "data": {"length": 64}, "optimizer": {"microbatches": 1}}
IN_TWO = {"optimizer.microbatches": 2, "phases.long.optimizer.microbatches": 2}
SPLIT = {"mesh.data": -1, "mesh.fsdp": 2, "mesh.model": 1}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (LAYERS, {"compute.remat": "dots"}),
        (LAYERS, {"compute.remat": "blocks"}),
        (LAYERS, {"compute.remat": "blocks", "optimizer.microbatches": 2}),
        (LAYERS, {"compute.remat": "blocks", "optimizer.microbatches": 8}),
        # A phase with its own microbatches, for which those of the run say nothing.
        (LAYERS | {"phases": {"long": LONGER}}, {"compute.remat": "blocks"} | IN_TWO),
        (TABLE, {"compute.remat": "blocks"} | SPLIT | {"optimizer.microbatches": 1}),
    ],
)
def test_what_is_suggested_was_tried_and_fits(given, expected):
    """In memory that just holds what is expected, whatever the formulas say."""
    config = load_config("configs/bert_base.py:tiny", SMALLEST | given)
    tried = []
    large = Pod("NVIDIA A100", 4, 2**40, 1.0, 1.0)
    room = math.ceil(
        1.01 * 2**40 * Fitting(config, large, None, SILENT)._share(expected)
    )
    pod = dataclasses.replace(large, available=room)
    fitting = Fitting(config, pod, None, tried.append)
    assert fitting.suggestion() == expected
    assert spelled(expected) in tried[-1]
    assert fitting._share(expected) <= 1


def test_no_suggestion_where_nothing_fits():
    config = load_config("configs/bert_base.py:tiny", SMALLEST)
    pod = Pod("NVIDIA A100", 4, 2**20, 1.0, 1.0)
    assert Fitting(config, pod, None, SILENT).suggestion() is None


def test_unknown_topologies_and_settings_are_refused(shelf):
    config = load_config("configs/bert_base.py:tiny")
    for name in ("v9:2x2", "v5e:3x5", "pod"):
        with pytest.raises(UserError, match=rf"--topology={name}: .*such as v5e:2x2"):
            compile_check.run(config, name)
    for name in ("v5e:32x32", "v5e:16x16x2", "v6e:8x17"):  # libtpu ends with a signal
        with pytest.raises(UserError, match=rf"--topology={name}: .* at most 16x16"):
            compile_check.run(config, name)
    with pytest.raises(UserError, match="--topology=h100 must be h100:NUMBER"):
        compile_check.run(config, "h100")
    with pytest.raises(UserError, match=r"--utilization=2.0 must be"):
        compile_check.run(config, "v5e:2x2", utilization=2.0)


def test_devices_are_those_of_the_machines(shelf):
    """A chip of v4 is one device with all of its 32 GiB, of TPU7x it is two."""
    for name, devices, memory in (("v4:2x2x1", 4, 30), ("tpu7x:2x2x1", 8, 94)):
        pod = Pod.of(name)
        assert (pod.chips, len(pod.devices)) == (4, devices)
        assert memory < pod.available / 2**30 < memory + 2


def test_a_missing_teacher_is_asked_for():
    config = load_config("configs/distilbert_base.py")
    with pytest.raises(UserError, match=r"is not here; --teacher=FAMILY:SIZE"):
        outline_stages(config, report=SILENT)
    (stage,) = outline_stages(config, teacher="bert:base", report=SILENT)
    assert stage.experiment.encoder.vocab_size == 30_522
    assert stage.experiment.frozen()["teacher"]["encoder"]["layers"]
    with pytest.raises(UserError, match=r"has no objectives.distillation"):
        outline_stages(load_config("configs/bert_base.py"), teacher="bert:base")


def test_doubling_fsdp_halves_parameters_and_optimiser_state():
    config = load_config("configs/bert_large.py")
    halves = []
    for fsdp in (1, 2, 4, 8):
        split = changed(config, {"mesh.data": -1, "mesh.fsdp": fsdp})
        mesh = make_mesh(split.mesh)
        halves.append(Builder.of(outline_stages(split, report=SILENT), mesh))
    sizes = [builder.state_bytes() for builder in halves]
    for kind in ("parameters", "optimiser"):
        for one, two in itertools.pairwise(sizes):
            # Biases and scales stay whole.
            assert two[kind] / one[kind] == pytest.approx(0.5, abs=0.01)


def test_outlined_batches_are_those_of_training(corpus):
    """Keys, shapes and dtypes on the device, for objectives of every kind."""
    from encoderjax.experiment import Experiment
    from encoderjax.training.mesh import BatchPlacement

    for name in ("bert_base", "spanbert_base", "modernbert_base"):
        changes = {"data.corpus": str(corpus.folder), "phases": {}}
        changes |= {"data.batch_size": 8}
        config = load_config(f"configs/{name}.py:tiny", changes)
        (stage,) = outline_stages(config, report=SILENT)
        outlined = stage.experiment.batch_shapes(8)
        real = Experiment.open(config, SILENT).train_source().batch(0)
        placed = BatchPlacement(make_mesh(MeshConfig()), 8).put(real)
        described = lambda batch: {k: (v.shape, v.dtype) for k, v in batch.items()}
        assert described(outlined) == described(placed)
