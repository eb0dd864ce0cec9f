"""The device halves against references written in numpy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from encoderjax.data.pipeline import DataConfig
from encoderjax.errors import UserError
from encoderjax.models.families import preset
from encoderjax.objectives import MaskedLM, NextSentence, SentenceOrder
from encoderjax.objectives.pretrainer import Pretrainer, divide
from tests.training_batches import random_pretraining_batch

ENCODER = dataclasses.replace(preset("bert", "tiny"), vocab_size=60, num_layers=1)


def log_softmax(x):
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


@pytest.fixture(scope="module")
def case():
    objectives = (MaskedLM(max_predictions=5), NextSentence())
    pretrainer = Pretrainer.create(ENCODER, objectives, jnp.float32)
    params = pretrainer.init(jax.random.key(0))
    params = jax.tree.map(lambda x: x * 4, params)  # far from uniform predictions
    batch = random_pretraining_batch(rows=6, length=16, slots=5, vocab_size=60)
    batch["paired"] = batch["row_weights"].copy()
    outputs = pretrainer.model.apply(
        {"params": params}, batch["ids"], batch["mask"], batch["segments"]
    )
    logits = pretrainer.model.apply({"params": params}, outputs, method="mlm_logits")
    return pretrainer, params, batch, outputs, np.asarray(logits, np.float64)


def test_mlm_is_the_cross_entropy_at_the_selected_positions(case):
    pretrainer, params, batch, _, logits_BLV = case
    terms, _ = pretrainer.sums(params, {}, {}, batch, None)
    means = divide(terms, pretrainer.counts(batch))
    losses, hits, kinds = [], [], []
    for row, slot in zip(*np.nonzero(batch["mlm/weights"]), strict=True):
        scores = logits_BLV[row, batch["mlm/positions"][row, slot]]
        label = batch["mlm/labels"][row, slot]
        losses.append(-log_softmax(scores)[label])
        hits.append(scores.argmax() == label)
        kinds.append(batch["mlm/kinds"][row, slot])
    losses, hits, kinds = np.array(losses), np.array(hits), np.array(kinds)
    assert means["mlm_loss"] == pytest.approx(losses.mean(), abs=1e-5)
    assert means["mlm_accuracy"] == pytest.approx(hits.mean(), abs=1e-6)
    for number, kind in enumerate(("masked", "replaced", "kept")):
        expected = losses[kinds == number].mean()
        assert means[f"mlm_loss_{kind}"] == pytest.approx(expected, abs=1e-5)


def test_nsp_is_the_cross_entropy_of_the_pooled_token(case):
    pretrainer, params, batch, outputs, _ = case
    head = params["heads"]["nsp"]["dense"]
    scores = np.asarray(outputs.pooled) @ np.asarray(head["kernel"]) + head["bias"]
    expected = -log_softmax(np.asarray(scores))[np.arange(6), batch["second"]]
    terms, _ = pretrainer.sums(params, {}, {}, batch, None)
    means = divide(terms, pretrainer.counts(batch))
    assert means["nsp_loss"] == pytest.approx(expected.mean(), abs=1e-5)
    assert means["nsp_random_share"] == pytest.approx(np.mean(batch["second"]))


def test_weights_of_the_objectives_enter_the_loss(case):
    pretrainer, params, batch, _, _ = case
    weighted = Pretrainer.create(
        ENCODER,
        (MaskedLM(max_predictions=5, weight=0.5), NextSentence(weight=3.0)),
        jnp.float32,
    )
    terms, _ = pretrainer.sums(params, {}, {}, batch, None)
    counts = pretrainer.counts(batch)
    means = divide(terms, counts)
    expected = 0.5 * means["mlm_loss"] + 3.0 * means["nsp_loss"]
    assert weighted.loss(terms, counts) == pytest.approx(float(expected), rel=1e-6)


def test_rows_without_weight_change_nothing(case):
    pretrainer, params, batch, _, _ = case
    filled = {name: np.concatenate([value, value[:2]]) for name, value in batch.items()}
    for name in ("row_weights", "paired", "mlm/weights"):
        filled[name][6:] = 0
    for found in (pretrainer.sums(params, {}, {}, filled, None)[0],):
        expected = pretrainer.sums(params, {}, {}, batch, None)[0]
        for name, value in expected.items():
            assert found[name] == pytest.approx(float(value), rel=1e-5), name
    assert pretrainer.counts(filled)["nsp_loss"] == 6


def test_a_text_with_two_masks_and_a_replaced_word_has_three_terms():
    """so [MASK] and [MASK] for all apricot fish: long, thanks and the are predicted."""
    words = [
        "[PAD]",
        "[MASK]",
        "so",
        "long",
        "and",
        "thanks",
        "for",
        "all",
        "the",
        "fish",
        "apricot",
    ]
    number = {word: i for i, word in enumerate(words)}
    ids = [
        number[w]
        for w in ["so", "[MASK]", "and", "[MASK]", "for", "all", "apricot", "fish"]
    ]
    batch = {
        "ids": np.array([ids], np.int32),
        "mask": np.ones((1, 8), bool),
        "segments": np.zeros((1, 8), np.int32),
        "row": np.zeros(1, np.uint32),
        "row_weights": np.ones(1, np.float32),
        "mlm/positions": np.array([[1, 3, 6, 0]], np.int32),
        "mlm/labels": np.array(
            [[number["long"], number["thanks"], number["the"], 0]], np.int32
        ),
        "mlm/weights": np.array([[1, 1, 1, 0]], np.float32),
        "mlm/kinds": np.array([[0, 0, 1, 0]], np.int32),
    }
    encoder = dataclasses.replace(ENCODER, vocab_size=len(words))
    pretrainer = Pretrainer.create(encoder, (MaskedLM(max_predictions=4),), jnp.float32)
    params = pretrainer.init(jax.random.key(1))
    outputs = pretrainer.model.apply({"params": params}, batch["ids"], batch["mask"])
    scores = log_softmax(np.asarray(outputs.logits, np.float64)[0])
    terms_of_loss = [
        -scores[1, number["long"]],
        -scores[3, number["thanks"]],
        -scores[6, number["the"]],
    ]
    terms, _ = pretrainer.sums(params, {}, {}, batch, None)
    counts = pretrainer.counts(batch)
    assert counts["mlm_loss"] == 3
    assert pretrainer.loss(terms, counts) == pytest.approx(
        np.mean(terms_of_loss), abs=1e-5
    )


def test_pair_objectives_ask_for_their_rows():
    data = DataConfig(corpus="x", batch_size=8, second="next")
    for objective, second in ((NextSentence(), "random"), (SentenceOrder(), "swapped")):
        with pytest.raises(UserError, match=f"data.second='{second}'"):
            objective.resolved(data, ENCODER)
        fitting = dataclasses.replace(data, second=second)
        assert objective.resolved(fitting, ENCODER) == objective
        with pytest.raises(UserError, match="pooler"):
            objective.resolved(fitting, dataclasses.replace(ENCODER, pooler=False))


def test_slots_default_to_what_the_rate_asks_of_a_full_row():
    data = DataConfig(corpus="x", batch_size=8, length=128)
    assert MaskedLM(rate=0.15).resolved(data, ENCODER).max_predictions == 19
    assert MaskedLM(max_predictions=7).resolved(data, ENCODER).max_predictions == 7
