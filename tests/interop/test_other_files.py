"""Folders as they lie on the hub: older configs, other names, and spoilt ones."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import encoderjax
from encoderjax.errors import UserError
from encoderjax.interop.loading import load_model
from tests.families import random_batch, random_model, torch_inputs


def saved(name: str, folder: Path, **fields) -> Path:
    """Writes a random model, with fields of its config changed; ... removes one."""
    random_model(name).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text()) | fields
    kept = {key: value for key, value in config.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(kept))
    return folder


def rename(folder: Path, names: dict[str, str], extra: dict | None = None) -> None:
    tensors = load_file(folder / "model.safetensors") | (extra or {})
    for old, new in names.items():
        for name in list(tensors):
            if name.startswith(old):
                tensors[new + name.removeprefix(old)] = tensors.pop(name)
    save_file(tensors, folder / "model.safetensors")


def test_modernberts_older_config_says_the_same(tmp_path):
    new = load_model(saved("modernbert_other_pattern", tmp_path / "new"))
    old = load_model(
        saved(
            "modernbert_other_pattern",
            tmp_path / "old",
            layer_types=...,
            rope_parameters=...,
            global_attn_every_n_layers=2,
            global_rope_theta=500.0,
            local_rope_theta=10000.0,
            classifier_dropout=None,
        )
    )
    assert old.config == new.config
    assert (new.config.global_every, new.config.rope_theta) == (2, 500.0)


def test_xlnets_and_albert_hub_fields_are_read_over(tmp_path):
    fields = {"untie_r": True, "d_head": 12, "summary_type": "last", "n_token": 99}
    load_model(saved("xlnet", tmp_path / "xlnet", **fields))
    fields = {"net_structure_type": 0, "num_memory_blocks": 0, "gap_size": 0}
    load_model(saved("albert", tmp_path / "albert", **fields))


def test_microsofts_names_of_deberta_are_known(tmp_path):
    theirs = random_model("deberta_v3")
    folder = saved("deberta_v3", tmp_path)
    width = theirs.config.hidden_size
    shapes = {
        "mask_predictions.dense.weight": (width, width),
        "mask_predictions.dense.bias": (width,),
        "mask_predictions.LayerNorm.weight": (width,),
        "mask_predictions.LayerNorm.bias": (width,),
        "mask_predictions.classifier.weight": (1, width),
        "mask_predictions.classifier.bias": (1,),
        "deberta.embeddings.position_embeddings.weight": (40, width),
    }
    rng = torch.Generator().manual_seed(0)
    head = {
        path: 0.15 * torch.randn(shape, generator=rng) for path, shape in shapes.items()
    }
    names = {
        "cls.predictions.bias": "lm_predictions.lm_head.bias",
        "cls.predictions.transform.": "lm_predictions.lm_head.",
    }
    rename(folder, names, head)
    loaded = load_model(folder)
    assert loaded.head_names == ("mlm", "rtd")
    (line,) = loaded.report
    assert "not used: deberta.embeddings.position_embeddings.weight" in line

    batch = random_batch(theirs, padded=True)
    with torch.no_grad():
        outputs = theirs(**torch_inputs(theirs, batch), output_hidden_states=True)
        states = outputs.hidden_states[-1]
        norm = (head[f"mask_predictions.LayerNorm.{x}"] for x in ("weight", "bias"))
        x = torch.nn.functional.layer_norm(
            states + states[:, :1], (width,), *norm, 1e-7
        )
        part = lambda name: (
            head[f"mask_predictions.{name}.weight"],
            head[f"mask_predictions.{name}.bias"],
        )
        x = torch.nn.functional.gelu(torch.nn.functional.linear(x, *part("dense")))
        expected = torch.nn.functional.linear(x, *part("classifier"))[:, :, 0]
    for name, reference in (("mlm", outputs.logits), ("rtd", expected)):
        model, params = loaded.with_heads(name)
        out = model.apply({"params": params}, batch["ids"], batch["mask"])
        apart = np.abs(np.asarray(out.logits) - reference.numpy())[batch["mask"]]
        assert apart.max() < 2e-5


def test_load_says_what_it_made_anew_and_what_it_left(tmp_path, capsys):
    folder = saved("roberta", tmp_path)
    rename(folder, {}, {"classifier.out_proj.weight": torch.zeros(2, 48)})
    model, params = encoderjax.load(folder, head="rtd")
    said = capsys.readouterr().err.splitlines()
    assert any("heads/rtd is MISSING and was made anew" in line for line in said)
    assert any("classifier.out_proj.weight" in line for line in said)
    out = model.apply({"params": params}, np.arange(10).reshape(2, 5))
    assert out.logits.shape == (2, 5)


def test_the_generators_activation_does_not_hang_on_the_named_class(tmp_path):
    named = load_model(saved("electra_generator", tmp_path / "named"))
    unnamed = load_model(
        saved("electra_generator", tmp_path / "unnamed", architectures=...)
    )
    assert named.config == unnamed.config
    assert named.config.head_activation == "gelu"


@pytest.mark.parametrize(
    ("name", "fields", "words"),
    [
        ("modernbert", {"rope_scaling": {"rope_type": "linear"}}, "rope_scaling"),
        ("modernbert", {"rope_parameters": "x"}, "rope_parameters='x'"),
        ("modernbert", {"layer_types": ["full_attention"]}, "layer_types"),
        ("modernbert", {"norm_bias": True}, "norm_bias=True"),
        ("deberta_v2_absolute", {"pos_att_type": ["c2p"]}, "pos_att_type=['c2p']"),
        ("deberta", {"talking_head": True}, "talking_head=True"),
        ("deberta", {"position_biased_input": 3}, "position_biased_input=3"),
        ("deberta_v2", {"max_relative_positions": "x"}, "max_relative_positions='x'"),
        ("deberta_v2", {"norm_rel_ebd": 5}, "norm_rel_ebd=5"),
        ("deberta_v2", {"embedding_size": 7}, "embedding_size=7"),
        ("xlnet", {"mem_len": "7"}, "mem_len='7'"),
        ("xlnet", {"attn_type": "uni"}, "attn_type='uni'"),
        ("xlnet", {"untie_r": False}, "untie_r=False"),
        ("roberta", {"pad_token_id": 60}, "pad_token_id=60"),
        ("roberta", {"tie_word_embeddings": False}, "tie_word_embeddings=False"),
        ("albert", {"num_hidden_groups": 9}, "layer_groups=9"),
        ("distilbert", {"activation": "mish"}, "activation='mish'"),
        ("bert", {"model_type": ["bert"]}, "model_type=['bert']"),
    ],
)
def test_an_option_that_cannot_be_held_is_named(tmp_path, name, fields, words):
    folder = saved(name, tmp_path, **fields)
    with pytest.raises(UserError) as error:
        load_model(folder)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["roberta", "modernbert", "xlnet", "deberta_v2"])
def test_a_tensor_that_is_missing_or_of_another_shape_is_named(tmp_path, name):
    folder = saved(name, tmp_path)
    tensors = load_file(folder / "model.safetensors")
    victim = sorted(path for path in tensors if ".1." in path)[3]
    for spoilt in (None, tensors[victim].new_zeros(3, 5)):
        changed = {path: x for path, x in tensors.items() if path != victim}
        changed |= {} if spoilt is None else {victim: spoilt}
        save_file(changed, folder / "model.safetensors")
        with pytest.raises(UserError, match=victim):
            load_model(folder)


def test_shards_pickles_and_half_precision_of_another_family(tmp_path):
    theirs = random_model("modernbert")
    theirs.save_pretrained(tmp_path / "whole")
    theirs.save_pretrained(tmp_path / "shards", max_shard_size="30KB")
    assert (tmp_path / "shards" / "model.safetensors.index.json").is_file()
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    torch.save(theirs.state_dict(), pickled / "pytorch_model.bin")
    theirs.config.save_pretrained(pickled)
    whole = load_model(tmp_path / "whole").params
    for other in ("shards", "pickled"):
        again = load_model(tmp_path / other)
        assert again.report == ()
        jaxed = encoderjax.interop.weights.leaves_of(again.params)
        for path, leaf in encoderjax.interop.weights.leaves_of(whole).items():
            np.testing.assert_array_equal(jaxed[path], leaf)
    theirs.bfloat16().save_pretrained(tmp_path / "half")
    half = load_model(tmp_path / "half").params
    table = lambda params: params["encoder"]["token_embed"]["embedding"]
    assert table(half).dtype == np.float32
    np.testing.assert_allclose(table(half), table(whole), rtol=2**-8)
