"""Language embeddings: transformers' XLM computes the same on the same tensors."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from encoderjax.errors import UserError
from encoderjax.interop.huggingface import config_to_hf, leaf_shapes
from encoderjax.interop.tensor_rows import expand_rows, read_rows
from encoderjax.models.families import preset
from encoderjax.models.heads import EncoderModel
from encoderjax.objectives import MaskedLM
from encoderjax.objectives.pretrainer import Pretrainer, divide

CONFIG = dataclasses.replace(
    preset("bert", "tiny"),
    vocab_size=60,
    width=32,
    num_heads=4,
    mlp_width=128,  # XLM's is four times the width
    num_layers=2,
    max_length=24,
    num_segments=0,
    pooler=False,
    mlm_head="tied",
    languages=("en", "fr", "zh"),
)
_LAYER, _POSITIONS = "encoder/layers", "encoder/position_embed"
ROWS = (
    ("transformer.embeddings.weight", "encoder/token_embed/embedding", "same"),
    (
        "transformer.position_embeddings.weight",
        "encoder/position_embed/embedding",
        "same",
    ),
    ("transformer.lang_embeddings.weight", "encoder/language_embed/embedding", "same"),
    ("transformer.layer_norm_emb", "encoder/embed_norm", "norm"),
    ("transformer.attentions.{i}.q_lin", f"{_LAYER}/attention/query", "to_heads"),
    ("transformer.attentions.{i}.k_lin", f"{_LAYER}/attention/key", "to_heads"),
    ("transformer.attentions.{i}.v_lin", f"{_LAYER}/attention/value", "to_heads"),
    ("transformer.attentions.{i}.out_lin", f"{_LAYER}/attention/out", "from_heads"),
    ("transformer.layer_norm1.{i}", f"{_LAYER}/attention_norm", "norm"),
    ("transformer.ffns.{i}.lin1", f"{_LAYER}/mlp/up", "dense"),
    ("transformer.ffns.{i}.lin2", f"{_LAYER}/mlp/down", "dense"),
    ("transformer.layer_norm2.{i}", f"{_LAYER}/mlp_norm", "norm"),
    ("pred_layer.proj.bias", "heads/mlm/bias", "same"),
)


@pytest.fixture(scope="module")
def xlm():
    torch.manual_seed(0)
    config = transformers.XLMConfig(
        vocab_size=60,
        emb_dim=32,
        n_layers=2,
        n_heads=4,
        n_langs=3,
        use_lang_emb=True,
        max_position_embeddings=24,
        gelu_activation=True,
        pad_index=0,
    )
    model = transformers.XLMWithLMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.2 * torch.randn_like(parameter))
    tensors = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    shapes = leaf_shapes(CONFIG, ("mlm",))
    rows = list(expand_rows(ROWS, CONFIG, shapes))
    params, _ = read_rows(rows, tensors, shapes, "XLM")
    return model, params


@pytest.fixture(scope="module")
def batch():
    """Two lines a row, the second from position 0 on, in another language."""
    rng = np.random.default_rng(0)
    ids = rng.integers(5, 60, (4, 20)).astype(np.int32)
    mask = np.arange(20) < np.array([20, 18, 13, 20])[:, None]
    ids[~mask] = 0
    second = np.array([9, 4, 7, 20])[:, None]
    columns = np.arange(20)
    positions = np.where(columns < second, columns, columns - second) * mask
    languages = np.where(columns < second, [[0], [2], [1], [1]], [[1], [0], [2], [2]])
    places = np.stack([rng.choice(12, 5, replace=False) for _ in range(4)])
    places.sort(axis=1)
    return {
        "ids": ids,
        "mask": mask,
        "segments": np.zeros_like(ids),
        "positions": positions.astype(np.int32),
        "languages": languages.astype(np.int32),
        "row": np.arange(4, dtype=np.uint32),
        "row_weights": np.ones(4, np.float32),
        "mlm/positions": places.astype(np.int32),
        "mlm/labels": np.take_along_axis(ids, places, axis=1),
        "mlm/weights": np.ones((4, 5), np.float32),
        "mlm/kinds": np.zeros((4, 5), np.int32),
    }


def torch_logits(model, batch):
    long = lambda name: torch.tensor(batch[name], dtype=torch.long)
    with torch.no_grad():
        return model(
            input_ids=long("ids"),
            attention_mask=long("mask"),
            langs=long("languages"),
            position_ids=long("positions"),
        ).logits


def test_loss_is_that_of_transformers(xlm, batch):
    model, params = xlm
    logits = torch_logits(model, batch)
    rows = np.arange(4)[:, None]
    expected = torch.nn.functional.cross_entropy(
        logits[rows, batch["mlm/positions"]].reshape(-1, 60),
        torch.tensor(batch["mlm/labels"].ravel(), dtype=torch.long),
    )
    pretrainer = Pretrainer.create(CONFIG, (MaskedLM(max_predictions=5),), jnp.float32)
    terms, _ = pretrainer.sums(params, {}, {}, batch, None)
    found = divide(terms, pretrainer.counts(batch))["mlm_loss"]
    assert found == pytest.approx(float(expected), abs=1e-5)


def test_states_are_those_of_transformers(xlm, batch):
    model, params = xlm
    out = EncoderModel(CONFIG, ("mlm",)).apply(
        {"params": params},
        batch["ids"],
        batch["mask"],
        positions_BL=batch["positions"],
        languages_BL=batch["languages"],
    )
    expected = torch_logits(model, batch).numpy()
    real = batch["mask"]
    assert np.abs(np.asarray(out.logits)[real] - expected[real]).max() < 1e-4
    # Another language, or the places of the row, give something else.
    for name in ("languages", "positions"):
        other = EncoderModel(CONFIG, ("mlm",)).apply(
            {"params": params},
            batch["ids"],
            batch["mask"],
            **{f"{n}_BL": batch[n] for n in ("languages", "positions") if n != name},
        )
        assert np.abs(np.asarray(other.logits)[real] - expected[real]).max() > 0.01


def test_the_table_is_made_and_learns(batch):
    pretrainer = Pretrainer.create(CONFIG, (MaskedLM(max_predictions=5),), jnp.float32)
    params = pretrainer.init(jax.random.key(0))
    assert params["encoder"]["language_embed"]["embedding"].shape == (3, 32)
    loss = lambda params: pretrainer.sums(params, {}, {}, batch, None)[0]["mlm_loss"]
    grads = jax.grad(loss)(params)["encoder"]["language_embed"]["embedding"]
    assert (np.abs(np.asarray(grads)).max(axis=1) > 0).all()


def test_no_class_of_bert_holds_languages():
    with pytest.raises(UserError, match=r"languages=.*use --format=params"):
        config_to_hf(dataclasses.replace(CONFIG, num_segments=2), "bert", ("mlm",))
