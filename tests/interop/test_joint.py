"""Two networks that were trained together, loaded, taken apart and put together."""

import dataclasses
import functools
import itertools
import json

import jax
import numpy as np
import pytest
import torch
import transformers

from encoderjax import evaluate, export, fill_mask, load
from encoderjax.errors import UserError
from encoderjax.interop import weights
from encoderjax.interop.huggingface import leaf_shapes
from encoderjax.interop.joint import discriminator_alone, generator_alone, shared_as
from encoderjax.interop.loading import load_model
from encoderjax.interop.start import Start
from encoderjax.models.families import preset
from encoderjax.models.heads import EncoderModel, Generator
from encoderjax.train import run as train
from tests.families import random_params
from tests.small_runs import metrics, small_config

SIZES = {"vocab_size": 60, "num_layers": 1, "width": 24, "num_heads": 3}
SIZES |= {"mlp_width": 32, "max_length": 16}
IDS = np.random.default_rng(0).integers(5, 60, (2, 9))
SHARINGS = ("all", "disentangled", "none")
SILENT = lambda text: None


@functools.cache
def shapes_of(family: str, sharing: str) -> dict[str, tuple[int, ...]]:
    model, _ = joint(family, sharing)
    return leaf_shapes(model.config, model.head_names, model.with_generator)


def joint(family: str, sharing: str, **changes) -> tuple[EncoderModel, dict]:
    """Returns two networks and random parameters of both."""
    size = "small" if family == "electra" else "base"
    config = dataclasses.replace(preset(family, size), **SIZES, embed_width=None)
    narrow = dataclasses.replace(config, mlp_width=20, **changes)
    generator = Generator(config=narrow, sharing=sharing)
    model = EncoderModel(config, ("rtd",), with_generator=generator)
    return model, random_params(config, "rtd", generator=generator)


def write_params(folder, family: str, model: EncoderModel, params: dict) -> None:
    folder.mkdir()
    index = {
        "format": 1,
        "model": {"family": family, **dataclasses.asdict(model.config)},
        "heads": list(model.head_names),
        "generator": dataclasses.asdict(model.with_generator),
    }
    weights.write_json(folder / "params.json", index)
    weights.write_safetensors(folder / "params.safetensors", weights.leaves_of(params))


def assert_same(ours: dict, others: dict, atol: float = 0.0) -> None:
    assert jax.tree.structure(ours) == jax.tree.structure(others)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=atol, rtol=0), ours, others
    )


def states_of_both(model: EncoderModel, params: dict):
    """Returns the last states of both networks, and the scores of detection."""

    def both(model: EncoderModel):
        outputs = model(IDS)
        generated = model.generate(IDS, None, None)
        return outputs.hidden, generated.hidden, outputs.logits

    return jax.jit(lambda p: model.apply({"params": p}, method=both))(params)


def in_torch(model_class, folder):
    theirs, info = model_class.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    with torch.no_grad():
        out = theirs.eval()(torch.tensor(IDS), output_hidden_states=True)
    return out, out.hidden_states[-1].numpy()


CLASSES = {
    "electra": (transformers.ElectraForPreTraining, transformers.ElectraForMaskedLM),
    "deberta_v3": (transformers.DebertaV2Model, transformers.DebertaV2ForMaskedLM),
}


@pytest.mark.parametrize(
    ("family", "sharing", "changes"),
    [
        ("electra", "disentangled", {}),
        ("deberta_v3", "all", {"mask_decoder_layers": 2, "num_layers": 2}),
    ],
)
def test_what_is_written_for_transformers_is_each_network_whole(
    tmp_path, family, sharing, changes
):
    model, params = joint(family, sharing, **changes)
    write_params(tmp_path / "params", family, model, params)
    hidden, generated, scores = states_of_both(model, params)
    for part in ("discriminator", "generator"):
        export.run(tmp_path / "params", tmp_path / part, part=part)
    discriminator, generator = CLASSES[family]
    out, theirs = in_torch(discriminator, tmp_path / "discriminator")
    assert np.abs(theirs - hidden).max() < 2e-5
    if family == "electra":
        assert np.abs(out.logits.numpy() - scores).max() < 2e-5
    _, theirs = in_torch(generator, tmp_path / "generator")
    assert np.abs(theirs - generated).max() < 2e-5

    # What transformers has no place for comes back to us.
    alone, alone_params = load(tmp_path / "discriminator", head="rtd")
    found = alone.apply({"params": alone_params}, IDS).logits
    assert np.abs(found - scores).max() < 2e-5
    whole = load_model(tmp_path / "params").part("generator")
    again = load_model(tmp_path / "generator")
    assert again.config.mask_decoder_layers == changes.get("mask_decoder_layers", 0)
    assert_same(again.params, whole.params)
    # Kept together, both are as they were trained: to go on, nothing is added up.
    export.run(tmp_path / "params", tmp_path / "both", format="params")
    kept = load_model(tmp_path / "both")
    assert kept.generator == model.with_generator
    assert_same(kept.params, params)


@pytest.mark.parametrize(
    ("held", "wanted"), list(itertools.product(SHARINGS, repeat=2))
)
def test_tables_may_be_shared_in_another_way(held, wanted):
    """Neither network computes anything else, unless one has to give up its own."""
    model, params = joint("electra", held)
    changed = dataclasses.replace(model.with_generator, sharing=wanted)
    paths = shapes_of("electra", wanted)
    found = shared_as(params, model.with_generator, changed, paths)
    shapes = {path: leaf.shape for path, leaf in weights.leaves_of(found).items()}
    assert shapes == paths
    ours = discriminator_alone(found, changed)
    theirs = discriminator_alone(params, model.with_generator)
    assert_same(ours, theirs, atol=1e-6)
    if held == wanted:
        assert_same(found, params)
    if wanted != "all" or held == "all":
        ours = generator_alone(found, changed)
        assert_same(ours, generator_alone(params, model.with_generator))


def test_a_discriminator_lends_its_tables_to_a_new_generator():
    model, params = joint("electra", "disentangled")
    plain = discriminator_alone(params, model.with_generator)
    paths = shapes_of("electra", "disentangled")
    found = shared_as(plain, None, model.with_generator, paths)
    for name in ("token_embed", "position_embed"):
        assert not np.any(found["encoder"][name]["embedding"])
    assert set(found["generator"]["encoder"]) == {"token_embed", "position_embed"}
    assert_same(discriminator_alone(found, model.with_generator), plain)
    # And a run without a generator gets whole tables.
    back = shared_as(params, model.with_generator, None, ())
    assert_same(back["encoder"], plain["encoder"])


@pytest.mark.parametrize("sharing", ["some", None])
def test_a_way_of_sharing_that_does_not_exist_is_refused(tmp_path, sharing):
    model, params = joint("electra", "all")
    write_params(tmp_path / "params", "electra", model, params)
    index = json.loads((tmp_path / "params" / "params.json").read_text())
    index["generator"]["sharing"] = sharing
    (tmp_path / "params" / "params.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match=r"generator\.sharing="):
        load_model(tmp_path / "params")


# ---- a run of both ----


@pytest.fixture(scope="module")
def workdir(corpus, tmp_path_factory):
    """A short run, in which the difference of the tables has moved from 0."""
    folder = tmp_path_factory.mktemp("joint")
    config = small_config(
        corpus.folder,
        steps=3,
        model__num_layers=1,
        model__family="electra",
        model__size="small",
        model__embed_width=None,
        objectives__nsp=None,
        objectives__rtd__sharing="disentangled",
        objectives__rtd__generator__mlp_width=48,
        optimizer__warmup_steps=1,
    )
    train(config, folder)
    return folder


def test_both_losses_are_evaluated(workdir, corpus, tmp_path):
    expected = metrics(workdir, "validation")[3]
    found = evaluate.run(workdir, report=SILENT)
    assert {"mlm_loss", "rtd_loss", "rtd_replaced_share"} <= set(found)
    assert found == pytest.approx({name: expected[name] for name in found}, abs=1e-5)
    total = found["mlm_loss"] + 50 * found["rtd_loss"]
    assert found["loss"] == pytest.approx(total, rel=1e-6)

    export.run(workdir, tmp_path / "both", format="params")
    again = evaluate.run(
        tmp_path / "both", corpus=str(corpus.folder), length=32, report=SILENT
    )
    assert again["rtd_loss"] == pytest.approx(found["rtd_loss"], abs=0.05)
    export.run(workdir, tmp_path / "alone")
    with pytest.raises(UserError, match="a discriminator without its generator"):
        evaluate.run(tmp_path / "alone", corpus=str(corpus.folder), report=SILENT)


def test_masks_are_filled_by_the_generator(workdir, tmp_path, capsys):
    text = "the [MASK] sees the old [MASK]"
    fill_mask.main([f"--model={workdir}", text, "--json"])
    printed = capsys.readouterr()
    assert "predicted by the generator" in printed.err
    export.run(workdir, tmp_path / "generator", part="generator")
    fill_mask.main([f"--model={tmp_path / 'generator'}", text, "--json"])
    again = capsys.readouterr()
    assert again.err == ""
    masks, expected = (
        json.loads(out)["texts"][0]["masks"] for out in (printed.out, again.out)
    )
    for ours, theirs in zip(masks, expected, strict=True):
        assert [c["token"] for c in ours] == [c["token"] for c in theirs]
    # In Python as well.
    model, params = load(workdir, head="mlm")
    assert "predicted by the generator" in capsys.readouterr().err
    assert model.config.mlp_width == 48
    model.apply({"params": params}, IDS)


def test_another_run_goes_on_with_the_very_parameters(workdir, corpus):
    loaded = load_model(workdir)
    assert np.any(loaded.params["encoder"]["token_embed"]["embedding"])
    start = Start.open(str(workdir), ("rtd",))
    model = EncoderModel(loaded.config, ("rtd",), with_generator=loaded.generator)
    params, lines = start.params_for(model, corpus.tokenizer, seed=0)
    assert_same(params, loaded.params)
    assert not any("UNTRAINED" in line or "not used" in line for line in lines)
