"""Folders of every kind load; folders that cannot be used say why in one line."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertForMaskedLM, BertForNextSentencePrediction, BertModel

import encoderjax
from encoderjax.errors import UserError
from encoderjax.interop.huggingface import params_to_hf
from encoderjax.interop.loading import load_model
from tests.torch_models import VOCABULARY, random_bert, save_folder


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory) -> Path:
    return save_folder(random_bert(), tmp_path_factory.mktemp("pretrained"))


@pytest.fixture
def folder(pretrained, tmp_path) -> Path:
    """A copy of the folder, to be spoilt."""
    return Path(shutil.copytree(pretrained, tmp_path / "model"))


def edit_config(folder: Path, **fields) -> None:
    config = json.loads((folder / "config.json").read_text()) | fields
    kept = {name: value for name, value in config.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(kept))


def edit_tensors(folder: Path, edit) -> None:
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def assert_same_trees(ours: dict, others: dict) -> None:
    assert jax.tree.structure(ours) == jax.tree.structure(others)
    jax.tree.map(np.testing.assert_array_equal, ours, others)


def assert_refused(folder: Path, *words: str, **kwargs) -> None:
    with pytest.raises(UserError) as error:
        load_model(folder, **kwargs)
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 400
    for word in words:
        assert word in message


# ---- what loads ----


def test_a_pretraining_folder_has_both_heads_and_all_tensors(pretrained):
    loaded = load_model(pretrained)
    assert loaded.family == "bert"
    assert loaded.head_names == ("mlm", "nsp")
    assert loaded.config.pooler
    assert loaded.report == ()
    assert loaded.tokenizer.vocabulary.size == len(VOCABULARY) == 97
    written, homeless = params_to_hf(loaded.params, "bert", loaded.config)
    assert not homeless
    stored = load_file(pretrained / "model.safetensors")
    assert written.keys() == stored.keys()
    for name, tensor in stored.items():
        np.testing.assert_array_equal(written[name], tensor.numpy())


def test_the_bias_of_a_key_is_where_it_belongs(pretrained):
    # No output and no gradient depends on it, so only a look at it can tell.
    name = "bert.encoder.layer.1.attention.self.key.bias"
    stored = load_file(pretrained / "model.safetensors")[name].numpy()
    attention = load_model(pretrained).params["encoder"]["layers"]["attention"]
    np.testing.assert_array_equal(attention["key"]["bias"][1], stored.reshape(4, 12))


@pytest.mark.parametrize(
    ("model_class", "heads", "pooler"),
    [
        (BertModel, (), True),
        (BertForMaskedLM, ("mlm",), False),
        (BertForNextSentencePrediction, ("nsp",), True),
    ],
)
def test_folders_of_other_classes_load(tmp_path, model_class, heads, pooler):
    folder = save_folder(random_bert(model_class), tmp_path)
    loaded = load_model(folder)
    assert loaded.head_names == heads
    assert loaded.config.pooler == pooler
    assert ("pooler" in loaded.params["encoder"]) == pooler
    assert loaded.report == ()


def test_a_missing_head_and_pooler_are_made_anew_and_reported(tmp_path):
    folder = save_folder(random_bert(BertForMaskedLM), tmp_path)
    loaded = load_model(folder, need_heads=("mlm", "nsp"))
    assert loaded.head_names == ("mlm", "nsp")
    assert loaded.config.pooler
    assert [line.split(": ")[1].split()[0] for line in loaded.report] == [
        "encoder/pooler",
        "heads/nsp",
    ]
    assert all("MISSING" in line for line in loaded.report)
    kernel = loaded.params["encoder"]["pooler"]["kernel"]
    assert 0.01 < kernel.std() < 0.02  # BERT's initial distribution, cut off at 2
    trained = load_model(folder).params
    assert_same_trees(loaded.params["heads"]["mlm"], trained["heads"]["mlm"])


def test_shards_load_as_the_whole(pretrained, tmp_path):
    save_folder(random_bert(), tmp_path, max_shard_size="40KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    assert_same_trees(load_model(tmp_path).params, load_model(pretrained).params)


def test_a_pickled_file_loads_with_torch(pretrained, folder):
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    assert_same_trees(load_model(folder).params, load_model(pretrained).params)


def test_old_names_load(pretrained, folder):
    """Names as in the files that were converted from TensorFlow."""

    def age(tensors):
        for name in [name for name in tensors if "LayerNorm" in name]:
            old = name.replace("Norm.weight", "Norm.gamma")
            tensors[old.replace("Norm.bias", "Norm.beta")] = tensors.pop(name)
        table = tensors["bert.embeddings.word_embeddings.weight"]
        tensors["cls.predictions.decoder.weight"] = table.clone()
        tensors["cls.predictions.decoder.bias"] = tensors[
            "cls.predictions.bias"
        ].clone()
        tensors["bert.embeddings.position_ids"] = torch.arange(40)[None]

    edit_tensors(folder, age)
    loaded = load_model(folder)
    assert_same_trees(loaded.params, load_model(pretrained).params)
    assert loaded.report == ()


def test_a_tied_tensor_under_its_second_name_only_loads(pretrained, folder):
    def rename(tensors):
        table = tensors.pop("bert.embeddings.word_embeddings.weight")
        tensors["cls.predictions.decoder.weight"] = table

    edit_tensors(folder, rename)
    assert_same_trees(load_model(folder).params, load_model(pretrained).params)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_read_exactly(folder, dtype):
    def halve(tensors):
        for name in tensors:
            tensors[name] = tensors[name].to(dtype)

    edit_tensors(folder, halve)
    table = load_model(folder).params["encoder"]["token_embed"]["embedding"]
    stored = load_file(folder / "model.safetensors")
    expected = stored["bert.embeddings.word_embeddings.weight"].float().numpy()
    assert table.dtype == np.float32
    np.testing.assert_array_equal(table, expected)


def test_unused_tensors_are_reported(folder):
    edit_tensors(folder, lambda tensors: tensors.update(classifier=torch.ones(2)))
    (line,) = load_model(folder).report
    assert line.endswith("not used: classifier")


def test_absent_fields_have_hugging_face_defaults(folder):
    edit_config(folder, layer_norm_eps=..., hidden_act=..., type_vocab_size=...)
    config = load_model(folder).config
    assert (config.norm_eps, config.activation, config.num_segments) == (
        1e-12,
        "gelu",
        2,
    )


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("gelu", "gelu"),
        ("gelu_python", "gelu"),
        ("gelu_new", "gelu_tanh"),
        ("gelu_pytorch_tanh", "gelu_tanh"),
    ],
)
def test_activations_have_their_names(folder, theirs, ours):
    edit_config(folder, hidden_act=theirs)
    assert load_model(folder).config.activation == ours


def test_a_folder_without_tokenizer_loads(folder):
    (folder / "vocab.txt").unlink()
    loaded = load_model(folder)
    assert loaded.tokenizer is None
    with pytest.raises(UserError, match="has no tokenizer"):
        loaded.need_tokenizer()


# ---- the public function ----


def test_the_package_is_light_until_something_is_loaded():
    code = "import sys, encoderjax; encoderjax.__version__, encoderjax.UserError; "
    code += "assert not {'jax', 'numpy'} & sys.modules.keys(); encoderjax.load; "
    code += "assert not {'torch', 'transformers', 'tensorflow'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_load_gives_just_what_the_head_needs(pretrained):
    _, params = encoderjax.load(pretrained)
    assert params.keys() == {"encoder"}
    model, params = encoderjax.load(str(pretrained), head="nsp")
    assert model.head_names == ("nsp",)
    assert params["heads"].keys() == {"nsp"}


def test_load_refuses_heads_that_do_not_exist(pretrained):
    with pytest.raises(UserError, match=r"head='mml' .* did you mean 'mlm'"):
        encoderjax.load(pretrained, head="mml")


# ---- what is refused ----


def test_no_folder(tmp_path):
    assert_refused(tmp_path / "bert-base-uncased", "is not a folder", "hf download")


def test_no_model_in_the_folder(tmp_path):
    assert_refused(tmp_path, "config.json is not there")


def test_no_weights(folder):
    (folder / "model.safetensors").unlink()
    assert_refused(folder, "holds no weights", "model.safetensors")


def test_config_that_is_no_json(folder):
    (folder / "config.json").write_text('{"model_type": "bert",')
    assert_refused(folder, "config.json", "cannot be read")


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_truncated_weights(folder, share):
    file = folder / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[: int(share * len(content))])
    assert_refused(folder, "model.safetensors", "incomplete, damaged")


def test_missing_shard(tmp_path):
    save_folder(random_bert(), tmp_path, max_shard_size="40KB")
    lost = sorted(tmp_path.glob("model-*.safetensors"))[1]
    lost.unlink()
    assert_refused(tmp_path, lost.name, "is missing")


def test_damaged_pickle(folder):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"no tensors here")
    assert_refused(folder, "pytorch_model.bin", "damaged")


def test_pickle_with_code_is_not_run(folder, tmp_path):
    class Evil:
        def __reduce__(self):
            return Path.touch, (tmp_path / "was_run",)

    (folder / "model.safetensors").unlink()
    torch.save({"weight": Evil()}, folder / "pytorch_model.bin")
    assert_refused(folder, "pytorch_model.bin", "more than tensors")
    assert not (tmp_path / "was_run").exists()


def test_pickle_of_a_trainer(folder):
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save({"model": tensors, "epoch": 3}, folder / "pytorch_model.bin")
    assert_refused(folder, "no plain dictionary of tensors")


def test_pickle_without_torch(folder, monkeypatch):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert_refused(folder, "install torch", "model.safetensors")


@pytest.mark.parametrize(
    "name",
    [
        "bert.embeddings.word_embeddings.weight",
        "bert.encoder.layer.1.attention.self.query.bias",
        "bert.pooler.dense.bias",
        "cls.predictions.transform.LayerNorm.weight",
        "cls.seq_relationship.bias",
    ],
)
def test_missing_tensor(folder, name):
    edit_tensors(folder, lambda tensors: tensors.pop(name))
    assert_refused(folder, f"tensor {name} is missing")


def test_missing_pooler_of_a_pair_head(folder):
    def remove(tensors):
        del tensors["bert.pooler.dense.weight"], tensors["bert.pooler.dense.bias"]

    edit_tensors(folder, remove)
    assert_refused(folder, "tensor bert.pooler.dense.weight is missing")


def test_wrong_shape(folder):
    edit_config(folder, intermediate_size=81)
    assert_refused(folder, "intermediate.dense.weight", "[80, 48]", "[81, 48]")


def test_untied_decoder(folder):
    extra = {"cls.predictions.decoder.weight": torch.ones(99, 48)}
    edit_tensors(folder, lambda tensors: tensors.update(extra))
    assert_refused(folder, "cls.predictions.decoder.weight", "differ")


def test_tokenizer_of_another_model(folder):
    with (folder / "vocab.txt").open("a") as file:
        file.write("three\nmore\nwords\n")
    assert_refused(folder, "100 tokens", "table of 99")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model_type": "gpt2"}, ["model_type='gpt2'", "known: bert"]),
        ({"model_type": ...}, ["no model_type"]),
        ({"position_embedding_type": "relative_key"}, ["'relative_key'", "absolute"]),
        ({"is_decoder": True}, ["is_decoder=True"]),
        ({"tie_word_embeddings": False}, ["tie_word_embeddings=False"]),
        ({"hidden_act": "mish"}, ["hidden_act='mish'", "gelu_new"]),
        ({"hidden_size": "48"}, ["hidden_size='48'"]),
        ({"hidden_size": None}, ["hidden_size=None"]),
        ({"num_attention_heads": 5}, ["num_heads=5"]),
    ],
)
def test_config_that_cannot_be_held(folder, fields, words):
    edit_config(folder, **fields)
    assert_refused(folder, *words)


def test_step_of_a_folder_without_steps(pretrained):
    assert_refused(pretrained, "step=3", "no workdir", step=3)


def test_unknown_needed_head(pretrained):
    assert_refused(pretrained, "'mml'", need_heads=("mml",))
