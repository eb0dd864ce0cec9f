"""DeBERTa's enhanced mask decoder, against transformers' own layers used as one."""

import dataclasses

import jax
import numpy as np
import pytest
import torch

from encoderjax.interop.loading import load_model
from encoderjax.models.families import preset
from encoderjax.models.heads import EncoderModel
from tests.families import random_batch, random_model, random_params, torch_inputs

SMALL = dataclasses.replace(
    preset("deberta_v3", "small"),
    vocab_size=50,
    num_layers=2,
    width=24,
    num_heads=3,
    mlp_width=32,
)
PLACES = np.array([[3, 17, 30], [19, 12, 13], [0, 8, 7], [9, 26, 25]])


def expected_states(theirs, batch, table_LD: np.ndarray) -> torch.Tensor:
    """Returns the last layer's states with absolute positions, applied twice.

    Queries are the states below it and their positions; keys and values stay.
    """
    encoder = theirs.deberta.encoder
    with torch.no_grad():
        outputs = theirs(**torch_inputs(theirs, batch), output_hidden_states=True)
        below = outputs.hidden_states[-2]
        query = below + torch.tensor(table_LD[: below.shape[1]])
        mask = encoder.get_attention_mask(torch.tensor(batch["mask"]).long())
        for _ in range(2):
            query, _ = encoder.layer[-1](
                below,
                mask,
                query_states=query,
                relative_pos=encoder.get_rel_pos(below),
                rel_embeddings=encoder.get_rel_embedding(),
            )
    return query


@pytest.mark.parametrize("chosen", [True, False])
def test_the_last_layer_is_applied_twice_more(tmp_path, chosen):
    theirs = random_model("deberta_v2")
    theirs.save_pretrained(tmp_path)
    batch = random_batch(theirs, padded=True)
    loaded = load_model(tmp_path)
    config = dataclasses.replace(loaded.config, mask_decoder_layers=2)
    table = np.random.default_rng(0).normal(size=(40, 48)).astype(np.float32)
    params = jax.tree.map(np.asarray, loaded.params)
    params["encoder"] = params["encoder"] | {"position_embed": {"embedding": table}}
    model = EncoderModel(config, ("mlm",))

    def logits(model: EncoderModel):
        outputs = model.encoder(batch["ids"], batch["mask"], batch["segments"])
        return model.mlm_logits(outputs, PLACES if chosen else None)

    run = jax.jit(lambda params: model.apply({"params": params}, method=logits))
    with torch.no_grad():
        states = expected_states(theirs, batch, table)
        expected = theirs.cls(states)
        expected = expected.numpy()
    ours = np.asarray(run(params))
    if chosen:
        expected = np.take_along_axis(expected, PLACES[:, :, None], axis=1)
        assert np.abs(ours - expected).max() < 2e-5
    else:
        assert np.abs(ours - expected)[batch["mask"]].max() < 2e-5


def test_layers_of_its_own_stand_on_the_last_one():
    config = dataclasses.replace(
        SMALL, mask_decoder_layers=1, mask_decoder_shared=False
    )
    model = EncoderModel(config, ("mlm",))
    ids_BL = np.arange(18).reshape(2, 9)

    params = random_params(config, "mlm")
    run = lambda model, params: model.apply({"params": params}, ids_BL).logits
    logits = jax.jit(run, static_argnums=0)(model, params)
    layers, own = params["encoder"]["layers"], params["encoder"]["decoder_layers"]
    shapes = lambda tree: jax.tree.map(lambda leaf: leaf.shape[1:], tree)
    assert shapes(layers) == shapes(own)
    assert jax.tree.leaves(own)[0].shape[0] == 1
    # The same with one more layer in the stack: below it, the last one is layer 2.
    stacked = jax.tree.map(lambda a, b: np.concatenate([a, b]), layers, own)
    params["encoder"] = params["encoder"] | {"layers": stacked}
    deeper = dataclasses.replace(
        config, num_layers=3, mask_decoder_layers=1, mask_decoder_shared=True
    )
    again = jax.jit(run, static_argnums=0)(EncoderModel(deeper, ("mlm",)), params)
    np.testing.assert_allclose(again, logits, atol=1e-5)


def test_only_the_decoder_knows_where_a_text_stands():
    """The same text three places further on: the states are the same, scores not."""
    config = dataclasses.replace(SMALL, mask_decoder_layers=2)
    params = random_params(config, "mlm")
    text = np.array([7, 23, 11, 4, 31])
    ids_BL, mask_BL = np.zeros((2, 9), int), np.zeros((2, 9), bool)
    for row, first in enumerate((0, 3)):
        ids_BL[row, first : first + 5], mask_BL[row, first : first + 5] = text, True
    model = EncoderModel(config, ("mlm",))
    run = jax.jit(lambda params: model.apply({"params": params}, ids_BL, mask_BL))

    def shifted(params):
        """Returns how far states and scores of the second row are from the first."""
        out = run(params)
        pairs = ((x[0, :5], x[1, 3:8]) for x in (out.hidden, out.logits))
        return [float(np.abs(np.asarray(a - b)).max()) for a, b in pairs]

    states, scores = shifted(params)
    assert states < 1e-5
    assert scores > 0.1
    # Where all positions are alike, the decoder cannot tell either.
    table = np.zeros_like(params["encoder"]["position_embed"]["embedding"])
    params["encoder"]["position_embed"]["embedding"] = table
    assert max(shifted(params)) < 1e-5
