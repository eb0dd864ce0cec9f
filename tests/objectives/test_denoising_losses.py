"""The losses of noise against PyTorch, on the same states and weights."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional

from encoderjax.models.families import preset
from encoderjax.objectives import Deletion, Insertion, MaskedLM, NextSentence
from encoderjax.objectives import Reordering as Moves
from encoderjax.objectives.pretrainer import Pretrainer, divide
from tests.families import random_params
from tests.objectives.denoising_cases import corrupted, distinct_rows, settled
from tests.objectives.masking_cases import VOCAB

ENCODER = dataclasses.replace(
    preset("bert", "tiny"), vocab_size=VOCAB, num_layers=1, width=32, num_heads=2,
    mlp_width=48, max_length=128,
)  # fmt: skip
OBJECTIVES = settled(
    Deletion(rate=0.15, weight=2.0, token_weight=0.25),
    Insertion(rate=0.2, weight=3.0),
    Moves(rate=0.3, weight=0.5),
    MaskedLM(rate=0.2),
    NextSentence(),
)
HEADS = ("deletion", "missing", "insertion", "mlm", "nsp")


@pytest.fixture(scope="module")
def case():
    """Returns the batch, the means of all terms, the loss, states and weights."""
    plain = distinct_rows(30)
    rng = np.random.default_rng(5)
    plain |= {
        "second": rng.integers(0, 2, 30).astype("i4"),
        "row": np.arange(30, dtype="u4"),
        "paired": np.ones(30, "f4"),
    }
    plain["row_weights"][27:] = plain["paired"][27:] = 0
    batch = corrupted(plain, OBJECTIVES)
    pretrainer = Pretrainer.create(ENCODER, OBJECTIVES, jnp.float32)
    assert set(pretrainer.model.head_names) == set(HEADS)
    params = random_params(ENCODER, *HEADS)
    terms, _ = jax.jit(pretrainer.sums)(params, {}, {}, batch, None)
    counts = pretrainer.counts(batch)
    loss = float(pretrainer.loss(terms, counts))
    means = {name: float(value) for name, value in divide(terms, counts).items()}
    outputs = jax.jit(pretrainer.model.apply)(
        {"params": params}, batch["ids"], batch["mask"], batch["segments"]
    )
    as_torch = lambda x: torch.tensor(np.asarray(x, np.float64))
    return batch, means, loss, as_torch(outputs.hidden), jax.tree.map(as_torch, params)


def linear(x, weights):
    return x @ weights["kernel"] + weights["bias"]


@pytest.mark.parametrize(
    ("name", "key", "kinds"),
    [
        ("deletion", "deletion/gaps", ("gap", "whole", "gap_share")),
        (
            "insertion",
            "insertion/extraneous",
            ("inserted", "original", "inserted_share"),
        ),
    ],
)
def test_labels_of_tokens(case, name, key, kinds):
    batch, means, _, hidden, params = case
    head = params["heads"][name]
    scores = linear(functional.gelu(linear(hidden, head["dense"])), head["score"])[
        ..., 0
    ]
    real = torch.tensor(batch["mask"] & (batch["row_weights"] > 0)[:, None])
    scores, labels = scores[real], torch.tensor(batch[key])[real].double()
    expected = functional.binary_cross_entropy_with_logits(scores, labels)
    assert means[f"{name}_loss"] == pytest.approx(float(expected), abs=1e-5)
    hits = ((scores > 0) == (labels == 1)).double()
    positive, negative, share = kinds
    for metric, value in (
        (f"{name}_accuracy", hits.mean()),
        (f"{name}_accuracy_{positive}", hits[labels == 1].mean()),
        (f"{name}_accuracy_{negative}", hits[labels == 0].mean()),
        (f"{name}_{share}", labels.mean()),
    ):
        assert means[metric] == pytest.approx(float(value), abs=1e-6), metric
    assert 0.05 < labels.mean() < 0.3
    # One place off is another loss.
    labels = torch.tensor(np.roll(batch[key], 1, axis=1))[real].double()
    other = functional.binary_cross_entropy_with_logits(scores, labels)
    assert abs(float(other) - means[f"{name}_loss"]) > 1e-4  # ten tolerances


@pytest.mark.parametrize(
    ("name", "keys", "head"),
    [("missing", "deletion", "missing"), ("reordering", "reordering", "mlm")],
)
def test_tokens_that_are_missing_or_belong_elsewhere(case, name, keys, head):
    batch, means, _, hidden, params = case
    table = params["encoder"]["token_embed"]["embedding"]
    head = params["heads"][head]
    row, slot = np.nonzero(batch[f"{keys}/weights"])
    labels = torch.tensor(batch[f"{keys}/labels"][row, slot]).long()

    def scored(places):
        x = functional.gelu(linear(hidden[row, places], head["dense"]))
        norm = head["norm"]
        x = functional.layer_norm(
            x, x.shape[-1:], norm["scale"], norm["bias"], ENCODER.norm_eps
        )
        return x @ table.T + head["bias"]

    places = batch[f"{keys}/positions"][row, slot]
    scores = scored(places)
    expected = float(functional.cross_entropy(scores, labels))
    assert len(row) > 100
    assert means[f"{name}_loss"] == pytest.approx(expected, abs=1e-5)
    hits = float((scores.argmax(dim=-1) == labels).double().mean())
    assert means[f"{name}_accuracy"] == pytest.approx(hits, abs=1e-6)
    for off in (-1, 1):
        other = float(functional.cross_entropy(scored((places + off) % 128), labels))
        assert abs(other - expected) > 1e-3


def test_all_losses_are_added_with_their_weights(case):
    _, means, loss, _, _ = case
    weights = {
        "deletion_loss": 2.0,
        "missing_loss": 0.5,
        "insertion_loss": 3.0,
        "reordering_loss": 0.5,
        "mlm_loss": 1.0,
        "nsp_loss": 1.0,
    }
    expected = sum(weight * means[name] for name, weight in weights.items())
    assert loss == pytest.approx(expected, abs=1e-5)
