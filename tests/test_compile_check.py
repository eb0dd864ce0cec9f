"""Compiling for a pod that is not there."""

import itertools
import json

import pytest

from encoderjax import compile_check
from encoderjax.compiling import Builder
from encoderjax.config import load_config
from encoderjax.errors import UserError
from encoderjax.outline import outline_stages
from encoderjax.suggestions import Fitting, changed, spelled
from encoderjax.training.mesh import MeshConfig, make_mesh
from encoderjax.training.topology import topology_devices

SILENT = lambda line: None
TINY = "--config=configs/bert_base.py:tiny"
SHORT = ("--config.phases={}", "--config.model.num_layers=6")  # a loop of layers


@pytest.fixture(scope="module")
def shelf():
    pytest.importorskip("libtpu")


def test_a_recipe_is_compiled_and_described(shelf, capsys):
    compile_check.main([TINY, "--topology=v5e:2x2", "--json", *SHORT])
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


SMALLEST = {
    "phases": {},
    "model.num_layers": 1,
    "objectives.nsp": None,
    "data.length": 32,
    "compute.remat": "blocks",
}


def test_what_does_not_fit_ends_with_a_code(shelf, capsys):
    large = SMALLEST | {"model.vocab_size": 2**26}  # 34 GB of weights on each chip
    flags = [f"--config.{field}={value}" for field, value in large.items()]
    with pytest.raises(SystemExit) as stopped:
        compile_check.main([TINY, "--topology=v5e:2x2", "--no_suggestion", *flags])
    assert stopped.value.code == 1
    assert "GiB  of 15.75 GiB: DOES NOT FIT" in capsys.readouterr().out


def test_what_is_suggested_was_compiled_and_fits(shelf):
    config = load_config("configs/bert_base.py:tiny", SMALLEST)
    config = changed(config, {"data.batch_size": 1024})
    devices = topology_devices("v5e:2x2")
    tried = []
    # As if a chip had less than the run takes, but more than half of it.
    room = Fitting(config, devices, 2**40, None, tried.append)
    whole = room._share({}) * 2**40
    little = Fitting(config, devices, int(0.8 * whole), None, tried.append)
    suggestion = little.suggestion()
    assert suggestion == {"optimizer.microbatches": 2}  # its remat is the most
    assert spelled(suggestion) in tried[-1]
    assert little._share(suggestion) <= 1


def test_unknown_topologies_and_settings_are_refused(shelf):
    config = load_config("configs/bert_base.py:tiny")
    for name in ("v9:2x2", "v5e:3x5", "pod"):
        with pytest.raises(UserError, match=rf"--topology={name}: .*such as v5e:2x2"):
            compile_check.run(config, name)
    with pytest.raises(UserError, match=r"--utilization=2.0 must be"):
        compile_check.run(config, "v5e:2x2", utilization=2.0)


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
