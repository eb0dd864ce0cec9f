"""Vectors of texts: what is pooled, where padding stands, what is normalised."""

import dataclasses
import json

import jax
import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer.modules import (
    LayerNorm,
    Normalize,
    Pooling,
)

from encoderjax.errors import UserError
from encoderjax.models.families import preset
from encoderjax.models.heads import EncoderModel
from encoderjax.models.pooling import normalise, pool
from encoderjax.models.sentence import SentenceHead, SentenceModel
from tests.families import random_params
from tests.task_folders import SIZES

RNG = np.random.default_rng(0)
STATES_BLD = RNG.normal(size=(3, 7, 5)).astype(np.float32)
LENGTHS_B1 = np.array([[7], [4], [1]])
RIGHT_BL = np.arange(7) < LENGTHS_B1
LEFT_BL = RIGHT_BL[:, ::-1]
THEIRS = {"first": "cls", "last": "lasttoken", "mean": "mean", "max": "max"}


@pytest.mark.parametrize("mask_BL", [RIGHT_BL, LEFT_BL], ids=["right", "left"])
@pytest.mark.parametrize("how", THEIRS)
def test_pooling_is_that_of_sentence_transformers(how, mask_BL):
    theirs = Pooling(5, THEIRS[how])(
        {
            "token_embeddings": torch.tensor(STATES_BLD),
            "attention_mask": torch.tensor(mask_BL.copy()).long(),
        }
    )["sentence_embedding"]
    found = pool(STATES_BLD, mask_BL, how)
    np.testing.assert_allclose(found, theirs, atol=1e-6)
    # What stands in the padding does not matter, and a mask may be missing.
    noisy = np.where(mask_BL[:, :, None], STATES_BLD, 99.0)
    np.testing.assert_array_equal(pool(noisy, mask_BL, how), found)
    whole = pool(STATES_BLD, np.ones_like(mask_BL), how)
    np.testing.assert_array_equal(pool(STATES_BLD, None, how), whole)


@pytest.mark.parametrize("how", ["l2", "layer_norm"])
def test_normalisation_is_that_of_sentence_transformers(how):
    vectors = STATES_BLD[:, 0] * np.array([[1.0], [40.0], [0.0]], np.float32)
    theirs = Normalize() if how == "l2" else LayerNorm(5)
    wanted = theirs({"sentence_embedding": torch.tensor(vectors)})["sentence_embedding"]
    found = np.asarray(normalise(vectors, how))
    np.testing.assert_allclose(found, wanted.detach(), atol=1e-6)
    np.testing.assert_array_equal(normalise(vectors, "none"), vectors)


@pytest.mark.parametrize("how", THEIRS)
@pytest.mark.parametrize("scale", ["none", "l2", "layer_norm"])
def test_a_row_of_padding_has_a_vector_and_gradients_of_zero(how, scale):
    mask_BL = np.zeros((3, 7), bool)

    def total(states):
        return normalise(pool(states, mask_BL, how), scale).sum()

    value, gradient = jax.value_and_grad(total)(STATES_BLD)
    assert value == 0
    np.testing.assert_array_equal(gradient, np.zeros_like(STATES_BLD))


# ---- the model ----

IDS = RNG.integers(5, 99, (2, 9))


def small_model(family: str, num_layers: int = 1, **head):
    sizes = SIZES | {"num_layers": num_layers}
    config = dataclasses.replace(preset(family, "base"), **sizes)
    config = dataclasses.replace(config, pooler=False, mask_decoder_layers=0)
    return SentenceModel(config, SentenceHead(**head)), random_params(config)


@pytest.mark.parametrize(
    ("family", "place"), [("bert", "first"), ("xlnet", "last"), ("roberta", "first")]
)
def test_the_cls_token_is_found_where_the_family_has_it(family, place):
    model, params = small_model(family, pooling="cls")
    reverse = -1 if place == "last" else 1
    mask_BL = (np.arange(9) < np.array([[9], [6]]))[:, ::reverse]
    states = EncoderModel(model.config).apply({"params": params}, IDS, mask_BL).hidden
    found = model.apply({"params": params}, IDS, mask_BL)
    at = -1 if place == "last" else 0
    np.testing.assert_allclose(found, np.asarray(states)[:, at], atol=1e-6)


def test_layers_are_joined_as_their_names_say():
    bert, params = small_model("bert", num_layers=4)
    outputs = EncoderModel(bert.config).apply({"params": params}, IDS, layers=True)
    layers_NBLD = np.asarray(outputs.layers)  # the embeddings first
    wanted = {
        "last": layers_NBLD[4],
        "last_two": layers_NBLD[[3, 4]].mean(0),
        "first_last": layers_NBLD[[1, 4]].mean(0),
        "last_four": np.concatenate(layers_NBLD[1:], axis=-1),
    }
    for layers, states_BLX in wanted.items():
        head = SentenceHead(layers=layers)
        model = SentenceModel(bert.config, head)
        found = model.apply({"params": params}, IDS)
        assert found.shape[1] == head.pooled_width(bert.config)
        np.testing.assert_allclose(found, states_BLX.mean(1), atol=1e-5)


def test_whitening_comes_before_the_normalisation():
    plain, params = small_model("bert")
    pooled = np.asarray(plain.apply({"params": params}, IDS))
    mean = RNG.normal(size=24).astype(np.float32)
    kernel = RNG.normal(size=(24, 6)).astype(np.float32)
    model, _ = small_model("bert", normalise="l2", components=6)
    whole = {**params, "whiten": {"mean": mean, "kernel": kernel}}
    found = model.apply({"params": whole}, IDS)
    wanted = (pooled - mean) @ kernel
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_heads_describe_themselves():
    head = SentenceHead(pooling="cls", normalise="l2", layers="last_two", components=3)
    told = json.loads(json.dumps(head.to_json()))
    assert SentenceHead.from_json(told, "f") == head
    with pytest.raises(UserError, match="did you mean 'pooling'"):
        SentenceHead.from_json({"poling": "cls"}, "f")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"pooling": "median"}, "sentence.pooling='median' must be one of"),
        ({"normalise": "l1"}, "sentence.normalise='l1'"),
        ({"components": 0}, "sentence.components=0"),
        ({"components": 25}, "more than the width of the vectors, 24"),
        ({"layers": "last_four"}, "needs at least 4 layers, the encoder has 1"),
    ],
)
def test_heads_that_cannot_be_meant(fields, words):
    with pytest.raises(UserError, match=words):
        small_model("bert", **fields)[0].init(jax.random.key(0), IDS)
