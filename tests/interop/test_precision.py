"""What is exported in fewer bits is read back as `quantised` says."""

import json

import numpy as np
import pytest
import torch
import transformers

from encoderjax import export
from encoderjax.errors import UserError
from encoderjax.interop.loading import load_model
from encoderjax.interop.precision import quantised
from encoderjax.interop.task_loading import load_task
from encoderjax.interop.weights import leaves_of
from tests.task_folders import assert_same_trees, small_task, write_exported
from tests.torch_models import random_bert, save_folder

# Between them, every layout of weights: stacks, heads first, columns last, one table.
FAMILIES = ("albert", "modernbert", "xlnet", "deberta", "bert")
IDS = np.random.default_rng(0).integers(5, 99, (2, 9))


@pytest.fixture(scope="module", params=FAMILIES)
def exported(request, tmp_path_factory):
    """A folder of parameters and the task in it."""
    task = small_task(request.param, "classify", num_layers=2)
    folder = tmp_path_factory.mktemp(request.param) / "own"
    return write_exported(folder, task), task


@pytest.mark.parametrize("format", ["hf", "params"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8"])
def test_parameters_are_read_back_as_they_were_said_to_be(
    exported, dtype, format, tmp_path
):
    folder, task = exported
    export.run(folder, tmp_path / "out", format=format, dtype=dtype)
    loaded = load_task(tmp_path / "out")
    assert_same_trees(loaded.params, quantised(task.params, dtype))
    assert loaded.description == task.description


def test_every_output_has_a_scale_of_its_own(exported):
    """No weight is off by more than half a step of its output's largest weight."""
    _, task = exported
    before, after = leaves_of(task.params), leaves_of(quantised(task.params, "int8"))
    for path, leaf in before.items():
        apart = np.abs(after[path] - leaf)
        if not path.endswith(("kernel", "embedding")):
            assert not apart.any(), path
            continue
        assert apart.any(), path
        if path.endswith("embedding"):
            largest = np.abs(leaf).max(-1, keepdims=True)
        elif path.endswith("out/kernel"):
            largest = np.abs(leaf).max((-3, -2), keepdims=True)
        else:
            inputs = 1 if "layers/" in path else 0
            largest = np.abs(leaf).max(inputs, keepdims=True)
        assert (apart <= largest / 127 / 2 * 1.001).all(), path


def run_usage(lines) -> dict:
    """Runs the lines that the command prints."""
    names: dict = {}
    exec("\n".join(line for line in lines if "okenizer =" not in line), names)
    return names


def test_the_lines_for_our_own_parameters_give_the_weights(exported, tmp_path):
    folder, task = exported
    for dtype in ("bfloat16", "int8"):
        made = export.run(folder, tmp_path / dtype, format="params", dtype=dtype)
        table = run_usage(made.usage)["table"].float().numpy()
        wanted = quantised(task.params, dtype)["encoder"]["token_embed"]["embedding"]
        np.testing.assert_allclose(table, wanted, rtol=1e-6)


def torch_logits(model, ids) -> np.ndarray:
    with torch.no_grad():
        return model.eval()(input_ids=torch.tensor(ids)).logits.float().numpy()


def our_logits(task, params) -> np.ndarray:
    return np.asarray(task.model().apply({"params": params}, IDS))


def test_pytorch_computes_the_same_with_int8(exported, tmp_path):
    folder, task = exported
    small = export.run(folder, tmp_path / "int8", dtype="int8")
    whole = export.run(folder, tmp_path / "float32")
    sizes = {
        out: (tmp_path / out / name).stat().st_size
        for out, name in (
            ("int8", "model.int8.safetensors"),
            ("float32", "model.safetensors"),
        )
    }
    assert sizes["int8"] < 0.5 * sizes["float32"]  # a tiny model is half names
    assert small.num_parameters == whole.num_parameters
    assert any("from_pretrained does not read" in line for line in small.report)
    model = run_usage(small.usage)["model"]
    expected = our_logits(task, quantised(task.params, "int8"))
    apart = np.abs(torch_logits(model, IDS) - expected).max()
    assert apart < 1e-5
    # It is not the model of before, and near to it.
    assert 1e-4 < np.abs(expected - our_logits(task, task.params)).max() < 0.3
    with pytest.raises(OSError, match=r"model\.safetensors"):
        type(model).from_pretrained(tmp_path / "int8")


def test_transformers_loads_bfloat16(tmp_path):
    task = small_task("bert", "tag")
    folder = write_exported(tmp_path / "own", task)
    export.run(folder, tmp_path / "out", dtype="bfloat16")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["dtype"] == "bfloat16"
    load = transformers.BertForTokenClassification.from_pretrained
    assert load(tmp_path / "out").dtype == torch.bfloat16
    theirs = torch_logits(load(tmp_path / "out", dtype=torch.float32), IDS)
    expected = our_logits(task, quantised(task.params, "bfloat16"))
    assert np.abs(theirs - expected).max() < 1e-5


def test_pretrained_models_are_exported_in_fewer_bits_as_well(tmp_path):
    folder = save_folder(random_bert(num_hidden_layers=1), tmp_path / "theirs")
    params = load_model(folder).params
    for dtype in ("bfloat16", "int8"):
        out = tmp_path / dtype
        exported = export.run(folder, out, dtype=dtype)
        assert_same_trees(load_model(out).params, quantised(params, dtype))
    model = run_usage(exported.usage)["model"]
    table = model.bert.embeddings.word_embeddings.weight
    assert model.cls.predictions.decoder.weight is table
    expected = quantised(params, "int8")["encoder"]["token_embed"]["embedding"]
    np.testing.assert_array_equal(table.detach().numpy(), expected)


def test_values_that_do_not_fit_are_refused(tmp_path):
    task = small_task("bert", "tag")
    task.params["task"]["score"]["bias"] += 1e6
    folder = write_exported(tmp_path / "own", task)
    with pytest.raises(UserError, match=r"dtype='float16' cannot hold .*bfloat16"):
        export.run(folder, tmp_path / "out", dtype="float16")
    with pytest.raises(UserError, match="dtype='int4' must be one of"):
        export.run(folder, tmp_path / "out", dtype="int4")
