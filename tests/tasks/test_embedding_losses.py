"""Losses of vectors beside those of sentence-transformers, values and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer import losses as theirs

from encoderjax.errors import UserError
from encoderjax.tasks.embedding_losses import (
    ACCURACY,
    LOSS,
    LOSSES,
    CosineLoss,
    InBatchLoss,
    SimCSE,
    SoftmaxLoss,
    TripletLoss,
)

ROWS, WIDTH, CLASSES = 6, 8, 3
RNG = np.random.default_rng(0)
VECTORS_BGK = RNG.normal(size=(ROWS, 3, WIDTH)).astype(np.float32)
LABELS_B = RNG.integers(0, CLASSES, ROWS)
SCORES_B = RNG.uniform(1, 5, ROWS).astype(np.float32)
KERNEL = RNG.normal(size=(3 * WIDTH, CLASSES)).astype(np.float32)
BIAS = RNG.normal(size=CLASSES).astype(np.float32)
SCORE = {"score": {"kernel": KERNEL, "bias": BIAS}}


class Given(torch.nn.Module):
    """A model whose texts' vectors are given."""

    device = torch.device("cpu")

    def forward(self, features):
        return {"sentence_embedding": features["vectors"]}


def softmax_of(vectors):
    loss = theirs.SoftmaxLoss(Given(), WIDTH, CLASSES)
    with torch.no_grad():
        loss.classifier.weight.copy_(torch.tensor(KERNEL.T))
        loss.classifier.bias.copy_(torch.tensor(BIAS))
    # The vectors are given; the rest is the class's own.
    features = [{"vectors": vector} for vector in vectors]
    return loss(features, torch.tensor(LABELS_B))


def ranking_of(vectors):
    loss = theirs.MultipleNegativesRankingLoss(Given(), scale=20.0)
    return loss.compute_loss_from_embeddings(vectors, None)


def triplet_of(vectors):
    loss = theirs.TripletLoss(Given(), triplet_margin=1.0)
    return loss.compute_loss_from_embeddings(vectors, None)


def cosine_of(vectors):
    targets = (torch.tensor(SCORES_B) - 1) / 4
    loss = theirs.CosineSimilarityLoss(Given())
    return loss.compute_loss_from_embeddings(vectors, targets)


# Ours, how many texts an example has, and theirs.
CASES = {
    "softmax": (SoftmaxLoss(num_labels=CLASSES), 2, softmax_of),
    "cosine": (CosineLoss(lowest=1.0, highest=5.0), 2, cosine_of),
    "triplet": (TripletLoss(), 3, triplet_of),
    "in_batch": (InBatchLoss(), 2, ranking_of),
    "in_batch_with_negatives": (InBatchLoss(), 3, ranking_of),
    "simcse": (SimCSE(), 2, ranking_of),
}


def batch_of(rows: int, weights=None) -> dict:
    return {
        "row_weights": jnp.ones(rows) if weights is None else jnp.asarray(weights),
        "task/label": jnp.asarray(LABELS_B[:rows]),
        "task/score": jnp.asarray(SCORES_B[:rows]),
    }


def mean_loss(loss, vectors_BGK, batch):
    return loss.sums(SCORE, vectors_BGK, batch)[LOSS] / loss.counts(batch)[LOSS]


@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_are_those_of_sentence_transformers(case):
    loss, texts, reference = CASES[case]
    vectors_BGK = VECTORS_BGK[:, :texts]
    tensors = [
        torch.tensor(x.copy()).requires_grad_() for x in vectors_BGK.swapaxes(0, 1)
    ]
    wanted = reference(tensors)
    wanted.backward()
    value, gradient = jax.value_and_grad(lambda x: mean_loss(loss, x, batch_of(ROWS)))(
        vectors_BGK
    )
    np.testing.assert_allclose(value, wanted.item(), atol=1e-5)
    for number, tensor in enumerate(tensors):
        np.testing.assert_allclose(gradient[:, number], tensor.grad, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_fillers_change_nothing(case):
    loss, texts, _ = CASES[case]
    vectors_BGK = VECTORS_BGK[:, :texts].copy()
    vectors_BGK[4:] = 0.0  # as a row of padding has
    batch = batch_of(ROWS, [1.0] * 4 + [0.0] * 2)
    value, gradient = jax.value_and_grad(lambda x: mean_loss(loss, x, batch))(
        vectors_BGK
    )
    alone, alone_gradient = jax.value_and_grad(
        lambda x: mean_loss(loss, x, batch_of(4))
    )(VECTORS_BGK[:4, :texts])
    np.testing.assert_allclose(value, alone, rtol=1e-6)
    np.testing.assert_allclose(gradient[:4], alone_gradient, atol=1e-6)
    np.testing.assert_array_equal(gradient[4:], np.zeros_like(gradient[4:]))


def test_a_negative_that_an_example_has_not_is_no_candidate():
    present_BG = np.ones((ROWS, 3), bool)
    present_BG[2:, 2] = False
    batch = batch_of(ROWS) | {"present": jnp.asarray(present_BG)}
    found = mean_loss(InBatchLoss(), VECTORS_BGK, batch)
    unit = VECTORS_BGK / np.linalg.norm(VECTORS_BGK, axis=-1, keepdims=True)
    candidates = np.concatenate([unit[:, 1], unit[:2, 2]])
    scores = 20 * unit[:, 0] @ candidates.T
    wanted = np.log(np.exp(scores).sum(1)) - scores[np.arange(ROWS), np.arange(ROWS)]
    np.testing.assert_allclose(found, wanted.mean(), atol=1e-5)


def test_hits_are_counted():
    same = np.stack([VECTORS_BGK[:, 0], VECTORS_BGK[:, 0], VECTORS_BGK[:, 1]], axis=1)
    swapped = same[:, [0, 2, 1]]
    for loss in (TripletLoss(), InBatchLoss()):
        batch = batch_of(ROWS)
        assert loss.sums({}, same, batch)[ACCURACY] == ROWS
        assert loss.counts(batch)[ACCURACY] == ROWS
    assert TripletLoss().sums({}, swapped, batch_of(ROWS))[ACCURACY] == 0
    # Its own negative is the text itself, and so nearer than the positive.
    assert InBatchLoss().sums({}, swapped, batch_of(ROWS))[ACCURACY] == 0


def test_only_the_softmax_has_parameters_of_its_own():
    for name, kind in LOSSES.items():
        loss = SoftmaxLoss(num_labels=3) if name == "softmax" else kind()
        params = loss.init(jax.random.key(0), WIDTH)
        shapes = jax.tree.map(jnp.shape, params)
        expected = {"score": {"kernel": (3 * WIDTH, 3), "bias": (3,)}}
        assert shapes == (expected if name == "softmax" else {})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SoftmaxLoss(num_labels=1), "loss.num_labels=1"),
        (lambda: CosineLoss(lowest=5.0, highest=5.0), "loss.lowest=5.0 must be below"),
        (lambda: InBatchLoss(scale=0.0), "loss.scale=0.0"),
    ],
)
def test_what_cannot_be_meant(make, words):
    with pytest.raises(UserError, match=words):
        make()
