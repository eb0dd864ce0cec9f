"""What is exported, transformers loads and computes the same with."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertForMaskedLM,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertModel,
)

from encoderjax import export
from encoderjax.errors import UserError
from encoderjax.interop.loading import load_model
from encoderjax.training.checkpoint import CheckpointConfig, Checkpoints
from encoderjax.training.step import TrainState
from tests.torch_models import random_batch, random_bert, save_folder, torch_outputs

TEXTS = ["I love you!", "Because the King's dog is unhappy...", "cats [MASK]", "zoë 猫"]


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory) -> Path:
    return save_folder(random_bert(), tmp_path_factory.mktemp("pretrained"))


@pytest.fixture(scope="module")
def exported(pretrained, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("out") / "exported"
    export.run(pretrained, out)
    return out


@pytest.fixture(scope="module")
def workdir(pretrained, tmp_path_factory) -> Path:
    """A run's folder with the parameters of `pretrained`, doubled at step 7."""
    folder = tmp_path_factory.mktemp("run")
    loaded = load_model(pretrained)
    model = {"family": "bert", "size": "tiny", **vars(loaded.config)}
    config = {"format": 1, "model": model, "heads": ["mlm", "nsp"], "steps": 7}
    (folder / "config.json").write_text(json.dumps(config))
    loaded.tokenizer.save(folder / "tokenizer")
    checkpoints = Checkpoints(folder, CheckpointConfig(every=1, keep=2))
    for step, factor in ((5, 1.0), (7, 2.0)):
        params = jax.tree.map(
            lambda leaf, f=factor: f * jnp.asarray(leaf), loaded.params
        )
        state = TrainState(
            step=jnp.asarray(step),
            params=params,
            opt_state={"count": jnp.asarray(step)},
            carry={},
            frozen={},
        )
        checkpoints.save(state, step, {})
    checkpoints.wait()
    checkpoints.close()
    return folder


def assert_same_trees(ours: dict, others: dict) -> None:
    assert jax.tree.structure(ours) == jax.tree.structure(others)
    jax.tree.map(np.testing.assert_array_equal, ours, others)


def loaded_whole(model_class, folder: Path):
    """Loads with transformers, and sees that every name was found and used."""
    model, info = model_class.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    return model.eval()


@pytest.mark.parametrize(
    "model_class",
    [BertForPreTraining, BertForMaskedLM, BertForNextSentencePrediction, BertModel],
)
def test_transformers_loads_it_and_computes_the_same(tmp_path, model_class):
    theirs = random_bert(model_class)
    export.run(save_folder(theirs, tmp_path / "theirs"), tmp_path / "ours")
    config = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert config["architectures"] == [model_class.__name__]
    again = loaded_whole(model_class, tmp_path / "ours")
    batch = random_batch()
    expected = torch_outputs(theirs, *batch).to_tuple()
    for ours, reference in zip(
        torch_outputs(again, *batch).to_tuple(), expected, strict=True
    ):
        assert torch.equal(ours, reference)


def test_auto_classes_find_their_model(pretrained, exported):
    batch = random_batch()
    theirs = BertForPreTraining.from_pretrained(pretrained).eval()
    pooled = torch_outputs(theirs.bert, *batch).pooler_output
    base, info = AutoModel.from_pretrained(exported, output_loading_info=True)
    assert not info["missing_keys"]
    assert torch.equal(torch_outputs(base.eval(), *batch).pooler_output, pooled)
    masked, info = AutoModelForMaskedLM.from_pretrained(
        exported, output_loading_info=True
    )
    assert not info["missing_keys"]
    logits = torch_outputs(masked.eval(), *batch).logits
    assert torch.equal(logits, torch_outputs(theirs, *batch).prediction_logits)


@pytest.mark.parametrize("activation", ["gelu", "gelu_new"])
def test_config_comes_back(tmp_path, activation):
    changes = {"layer_norm_eps": 1e-5, "hidden_dropout_prob": 0.25}
    theirs = random_bert(hidden_act=activation, initializer_range=0.03, **changes)
    export.run(save_folder(theirs, tmp_path / "theirs"), tmp_path / "ours")
    again = BertForPreTraining.from_pretrained(tmp_path / "ours").config
    ignored = {"_name_or_path", "transformers_version", "architectures", "dtype"}
    fields = theirs.config.to_dict().keys() - ignored
    assert {f: getattr(again, f) for f in fields} == {
        f: getattr(theirs.config, f) for f in fields
    }


def test_tokenizer_of_transformers_gives_the_same_ids(pretrained, exported):
    ours = load_model(pretrained).tokenizer
    theirs = AutoTokenizer.from_pretrained(exported)
    original = AutoTokenizer.from_pretrained(pretrained)
    assert theirs.model_max_length == 40
    for text in TEXTS:
        assert theirs(text)["input_ids"] == list(ours.encode_with_specials(text)[0])
        assert theirs(text)["input_ids"] == original(text)["input_ids"]
    pair = theirs(TEXTS[0], TEXTS[1])
    ids, segments = ours.encode_with_specials(TEXTS[0], TEXTS[1])
    assert pair["input_ids"] == list(ids)
    assert pair["token_type_ids"] == list(segments)


@pytest.mark.parametrize("format", ["hf", "params"])
def test_round_trip_is_bit_identical(pretrained, tmp_path, format):
    export.run(pretrained, tmp_path / "out", format=format)
    first, again = load_model(pretrained), load_model(tmp_path / "out")
    assert_same_trees(first.params, again.params)
    assert first.config == again.config
    assert first.head_names == again.head_names
    assert again.tokenizer.encode_with_specials(TEXTS[0]) == (
        first.tokenizer.encode_with_specials(TEXTS[0])
    )


def test_params_format_lists_names_and_shapes(pretrained, tmp_path):
    done = export.run(pretrained, tmp_path / "out", format="params")
    index = json.loads((tmp_path / "out" / "params.json").read_text())
    assert index["heads"] == ["mlm", "nsp"]
    assert index["model"]["family"] == "bert"
    assert index["parameters"]["encoder/token_embed/embedding"] == [99, 48]
    sizes = [np.prod(shape) for shape in index["parameters"].values()]
    assert sum(sizes) == done.num_parameters == random_bert().num_parameters()


def test_examples_that_measure_nothing_are_refused(pretrained, tmp_path):
    flags = [f"--workdir={pretrained}", f"--out={tmp_path / 'out'}", "--examples=a.csv"]
    with pytest.raises(UserError, match=r"examples='a\.csv' .*; give a --dtype of few"):
        export.main(flags)
    with pytest.raises(UserError, match=r"examples='a\.csv'.* has no task.*leave them"):
        export.main([*flags, "--dtype=bfloat16"])
    assert not list(tmp_path.iterdir())


# ---- workdirs ----


def test_workdir_loads_with_its_run_and_step(pretrained, workdir):
    loaded = load_model(workdir, step=5)
    assert loaded.step == 5
    assert loaded.run["steps"] == 7
    assert loaded.tokenizer.vocabulary.size == 97
    assert_same_trees(loaded.params, load_model(pretrained).params)


def test_workdir_exports_its_last_step_or_the_one_asked_for(workdir, tmp_path):
    assert export.run(workdir, tmp_path / "last").step == 7
    assert export.run(workdir, tmp_path / "fifth", step=5).step == 5
    last = loaded_whole(BertForPreTraining, tmp_path / "last").state_dict()
    fifth = loaded_whole(BertForPreTraining, tmp_path / "fifth").state_dict()
    assert all(torch.equal(last[name], 2.0 * fifth[name]) for name in last)
    with pytest.raises(UserError, match=r"step=6 .* \[5, 7\]"):
        export.run(workdir, tmp_path / "none", step=6)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 96}, r"parameter .* is \[.*48.*\], its config asks for \[.*96"),
        ({"family": "bart"}, "model.family='bart'"),
        ({"rotary": True}, "model.rotary is not a field"),
    ],
)
def test_workdir_whose_config_is_of_another_model(workdir, tmp_path, change, message):
    config = json.loads((workdir / "config.json").read_text())
    config["model"] |= change
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "checkpoints").symlink_to(workdir / "checkpoints")
    with pytest.raises(UserError, match=message):
        load_model(tmp_path)


def test_workdir_without_checkpoints(workdir, tmp_path):
    (tmp_path / "config.json").write_text((workdir / "config.json").read_text())
    with pytest.raises(UserError, match="checkpoints"):
        load_model(tmp_path)


# ---- where it is written ----


def test_an_earlier_export_is_replaced_and_what_is_not_ours_stays(pretrained, tmp_path):
    out = tmp_path / "out"
    export.run(pretrained, out, format="params")
    (out / "README.md").write_text("mine")
    export.run(pretrained, out)
    names = {path.name for path in out.iterdir()}
    assert {"README.md", "config.json", "model.safetensors"} <= names
    assert not names & {"params.json", "params.safetensors"}


def test_a_foreign_folder_is_not_written_to_unasked(pretrained, tmp_path):
    (tmp_path / "config.json").write_text("mine")
    with pytest.raises(UserError, match=r"not empty .* --overwrite"):
        export.run(pretrained, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    export.run(pretrained, tmp_path, overwrite=True)
    loaded_whole(BertForPreTraining, tmp_path)


def test_nothing_half_written_remains(pretrained, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export.weights, "write_safetensors", full)
    with pytest.raises(UserError, match="No space left on device"):
        export.run(pretrained, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_who_reads_the_folder_reads_the_weights(exported):
    weights, config = exported / "model.safetensors", exported / "config.json"
    assert weights.stat().st_mode == config.stat().st_mode


def test_out_that_is_a_file(pretrained, tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(UserError, match="is a file"):
        export.run(pretrained, tmp_path / "out")


# ---- the command ----


def test_command_prints_code_that_loads_it(pretrained, tmp_path, capsys):
    out = tmp_path / "out"
    export.main([f"--workdir={pretrained}", f"--out={out}"])
    printed = capsys.readouterr().out
    number = f"{random_bert().num_parameters():,} parameters"
    assert number in printed
    code = printed.split("load it in PyTorch:\n")[1]
    assert len(code.splitlines()) == 3
    names: dict = {}
    exec("\n".join(line.strip() for line in code.splitlines()), names)
    assert isinstance(names["model"], BertForPreTraining)


def test_command_runs_without_torch_and_ends_with_1_on_errors(pretrained, tmp_path):
    blocked = "import sys; sys.modules['torch'] = sys.modules['transformers'] = None; "
    blocked += "from encoderjax.command import run_command; "
    blocked += "from encoderjax.export import main; run_command(main)"

    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-c", blocked, *map(str, arguments)],
            capture_output=True,
            text=True,
        )

    done = run(f"--model={pretrained}", f"--out={tmp_path / 'out'}")
    assert done.returncode == 0, done.stderr
    failed = run(f"--workdir={tmp_path / 'none'}", f"--out={tmp_path / 'out2'}")
    assert failed.returncode == 1
    assert failed.stderr.startswith("error: ")
    assert failed.stderr.count("\n") == 1
