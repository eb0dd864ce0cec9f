"""What Hugging Face has no place for is kept beside it, or refused; nothing is lost."""

import dataclasses
import json

import jax
import numpy as np
import pytest
import torch
import transformers

from encoderjax import export
from encoderjax.errors import UserError
from encoderjax.interop import weights
from encoderjax.interop.loading import load_model
from encoderjax.interop.own_files import EXTRA, EXTRA_INDEX
from encoderjax.models.families import preset
from encoderjax.models.heads import EncoderModel, Generator
from tests.families import random_params

SIZES = {
    "vocab_size": 60,
    "num_layers": 3,
    "width": 24,
    "num_heads": 3,
    "mlp_width": 32,
}
IDS = np.random.default_rng(0).integers(5, 60, (2, 9))


def small(family: str, size: str = "base", **changes):
    return dataclasses.replace(preset(family, size), **SIZES | changes)


def write_params(folder, family, config, *heads, generator=None):
    """Writes a folder of our own format with random parameters."""
    folder.mkdir()
    params = random_params(config, *heads, generator=generator)
    index = {
        "format": 1,
        "model": {"family": family, **dataclasses.asdict(config)},
        "heads": list(heads),
        "generator": dataclasses.asdict(generator) if generator else None,
    }
    weights.write_json(folder / "params.json", index)
    weights.write_safetensors(folder / "params.safetensors", weights.leaves_of(params))
    return params


def assert_same(ours: dict, others: dict) -> None:
    assert jax.tree.structure(ours) == jax.tree.structure(others)
    jax.tree.map(np.testing.assert_array_equal, ours, others)


@pytest.mark.parametrize(
    ("family", "config", "heads", "kept"),
    [
        ("spanbert", small("spanbert"), ("mlm", "sbo"), "heads/sbo/dense/kernel"),
        (
            "spanbert",
            small("spanbert", mask_slots=5),
            ("mlm",),
            "heads/mlm/offset_embed/embedding",
        ),
        ("deberta_v3", small("deberta_v3"), ("rtd",), "heads/rtd/score/kernel"),
        (
            "bert",
            small("bert", pooler=False),
            ("mlm", "deletion", "missing", "insertion"),
            "heads/missing/bias",
        ),
        (
            "deberta_v3",
            small("deberta_v3"),
            ("insertion",),
            "heads/insertion/norm/scale",
        ),
        (
            "deberta_v3",
            small("deberta_v3", mask_decoder_layers=2),
            ("mlm",),
            "encoder/position_embed/embedding",
        ),
        (
            "deberta",
            small("deberta", mask_decoder_layers=1, mask_decoder_shared=False),
            ("mlm",),
            "encoder/decoder_layers/mlp/up/kernel",
        ),
        ("bert", small("bert"), ("mlm", "sop"), "heads/sop/dense/kernel"),
        ("roberta", small("roberta"), ("mlm",), "encoder/pooler/kernel"),
        ("xlnet", small("xlnet", pooler=True), (), "encoder/pooler/kernel"),
    ],
    ids=[
        "boundary_head",
        "mask_offsets",
        "detection_head",
        "noise",
        "noise_with_cls",
        "mask_decoder",
        "own_decoder",
        "sop",
        "pooler",
        "summary",
    ],
)
def test_parts_without_a_class_come_back(tmp_path, family, config, heads, kept):
    params = write_params(tmp_path / "params", family, config, *heads)
    exported = export.run(tmp_path / "params", tmp_path / "hf")
    assert any("no place" in line for line in exported.report)
    beside = weights.read_safetensors(tmp_path / "hf" / EXTRA)
    assert kept in beside
    assert not any(path.endswith("token_embed/embedding") for path in beside)

    loaded = load_model(tmp_path / "hf")
    assert loaded.family == family
    assert loaded.config == config
    assert loaded.head_names == heads
    assert loaded.report == ()
    assert_same(loaded.params, params)
    # transformers loads the rest without a word about missing or unexpected keys.
    name = json.loads((tmp_path / "hf" / "config.json").read_text())["architectures"][0]
    _, info = getattr(transformers, name).from_pretrained(
        tmp_path / "hf", output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]


def test_nothing_lies_beside_what_hugging_face_holds(tmp_path):
    write_params(tmp_path / "params", "bert", small("bert"), "mlm", "nsp")
    exported = export.run(tmp_path / "params", tmp_path / "hf")
    assert EXTRA not in exported.files
    assert EXTRA_INDEX not in exported.files


@pytest.mark.parametrize(
    ("family", "changes", "heads"),
    [
        ("bert", {"positions": "relative_key"}, ("mlm",)),
        ("deberta_v3", {"score_combination": "product"}, ("mlm",)),
        ("bert", {"mlm_head": "bare"}, ("mlm",)),
        ("bert", {"pair_head": "raw_cls"}, ("nsp",)),
        ("bert", {"summary": "last"}, ("nsp",)),
        ("bert", {"num_segments": 0}, ("mlm",)),
        ("electra", {"detection_head": "with_cls"}, ("rtd",)),
        ("bert", {"norm_at": "before"}, ("mlm",)),
        ("bert", {"embed_width": 16}, ("mlm",)),
        ("modernbert", {"mlp": "dense"}, ("mlm",)),
    ],
)
def test_what_would_be_computed_wrongly_is_refused(tmp_path, family, changes, heads):
    params = write_params(tmp_path / "params", family, small(family, **changes), *heads)
    (field,) = changes
    with pytest.raises(UserError, match=rf"model\.{field}=.*--format=params"):
        export.run(tmp_path / "params", tmp_path / "hf")
    assert not (tmp_path / "hf").exists()
    export.run(tmp_path / "params", tmp_path / "again", format="params")
    assert_same(load_model(tmp_path / "again").params, params)


@pytest.mark.parametrize(
    ("family", "sharing"),
    [("albert", "attention"), ("albert", "ffn"), ("albert", "none"), ("bert", "all")],
)
def test_what_layers_share_is_written_for_each(tmp_path, family, sharing):
    changes = {"embed_width": 16} if family == "albert" else {"pooler": False}
    config = small(family, sharing=sharing, **changes)
    params = write_params(tmp_path / "params", family, config, "mlm")
    layers = params["encoder"]["layers"]
    stacks = {name: len(jax.tree.leaves(layers[name])[0]) for name in layers}
    shared = {"attention": "attention", "ffn": "mlp", "none": "nothing", "all": ""}
    for part, entries in stacks.items():
        assert entries == (1 if part.startswith(shared[sharing]) else 3)

    export.run(tmp_path / "params", tmp_path / "hf")
    again = load_model(tmp_path / "hf")
    assert again.config == config
    assert_same(again.params, params)
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "hf").eval()
    with torch.no_grad():
        expected = theirs(torch.tensor(IDS)).logits
    model = EncoderModel(config, ("mlm",))
    run = jax.jit(lambda params: model.apply({"params": params}, IDS).logits)
    assert np.abs(run(params) - expected.numpy()).max() < 2e-5


def test_either_part_of_electra_is_exported(tmp_path):
    config = small("electra", "small", embed_width=16, width=48, num_heads=4)
    generator = Generator(config=dataclasses.replace(config, width=24, num_heads=3))
    params = write_params(
        tmp_path / "params", "electra", config, "rtd", generator=generator
    )
    # It reads the discriminator's tables, so it has none.
    assert "token_embed" not in params["generator"]["encoder"]
    model = EncoderModel(config, ("rtd",), with_generator=generator)

    def both(model: EncoderModel):
        states = model.generate(IDS, None, None)
        return model.generator_scores(states).whole(), model(IDS).logits

    logits = jax.jit(lambda p: model.apply({"params": p}, method=both))(params)
    classes = {
        "generator": transformers.ElectraForMaskedLM,
        "discriminator": transformers.ElectraForPreTraining,
    }
    for ours, (part, model_class) in zip(logits, classes.items(), strict=True):
        out = tmp_path / part
        export.run(tmp_path / "params", out, part=part)
        theirs, info = model_class.from_pretrained(out, output_loading_info=True)
        assert not info["missing_keys"]
        assert not info["unexpected_keys"]
        with torch.no_grad():
            expected = theirs.eval()(torch.tensor(IDS)).logits.numpy()
        assert np.abs(ours - expected).max() < 2e-5
    export.run(tmp_path / "params", tmp_path / "both", format="params")
    assert_same(load_model(tmp_path / "both").params, params)


@pytest.mark.parametrize("changes", [{"num_layers": 1}, {"window": None}])
def test_modernbert_without_local_layers_comes_back(tmp_path, changes):
    config = small("modernbert", **changes)
    params = write_params(tmp_path / "params", "modernbert", config, "mlm")
    export.run(tmp_path / "params", tmp_path / "hf")
    loaded = load_model(tmp_path / "hf")
    assert all(map(loaded.config.sees_all, range(config.num_layers)))
    assert_same(loaded.params, params)


def test_a_generator_that_is_not_there_cannot_be_exported(tmp_path):
    write_params(tmp_path / "params", "bert", small("bert"), "mlm")
    with pytest.raises(UserError, match="was not trained with one"):
        export.run(tmp_path / "params", tmp_path / "hf", part="generator")


def test_a_spoilt_file_beside_is_refused(tmp_path):
    config = small("spanbert")
    write_params(tmp_path / "params", "spanbert", config, "mlm", "sbo")
    export.run(tmp_path / "params", tmp_path / "hf")
    index = tmp_path / "hf" / EXTRA_INDEX
    good = json.loads(index.read_text())
    for spoilt, words in (
        (good | {"family": "albert"}, "family='albert' is no bert"),
        (good | {"heads": []}, "heads/sbo"),
        (good | {"model": {"colour": 1}}, "model.colour"),
    ):
        index.write_text(json.dumps(spoilt))
        with pytest.raises(UserError, match=words):
            load_model(tmp_path / "hf")
