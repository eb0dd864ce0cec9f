"""Losses that make vectors of texts comparable (Reimers and Gurevych 2019; SimCSE).

Each reads the vectors of an example's texts side by side, and of the batch:

    row_weights  [B]     0 for fillers, which neither count nor are anyone's negatives
    present      [B, G]  whether an example has so many texts; all of them if left out
    task/label   [B]     the class of a pair
    task/score   [B]     how alike a pair is

Like objectives they return sums and counts, never means. What compares the rows of a
batch with each other sees those of its microbatch, on all devices: with several
microbatches there are as many times fewer negatives.

Shapes: B examples of a batch, G texts of an example, K width of a vector, C classes, T
candidates.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax

from encoderjax.errors import UserError
from encoderjax.models.pooling import normalise

DeviceBatch = dict[str, jax.Array]
Terms = dict[str, jax.Array]  # metric -> scalar
PyTree = Any

LOSS, ACCURACY = "embed_loss", "embed_accuracy"
_INIT_STD = 0.02
# What PyTorch adds to a difference before it takes its length.
_DISTANCE_EPSILON = 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddingLoss:
    """A loss of vectors [B, G, K].

    Attributes of the class:
      roles: the columns of an example, in the order of its texts; those of `answers`
        are read from the batch, not as text.
      optional: texts that examples need not have.
      twice: whether the one text of an example is read twice, under other dropout.
      in_batch: whether examples of a batch are compared with each other.
    """

    name: ClassVar[str]
    roles: ClassVar[tuple[str, ...]]
    optional: ClassVar[tuple[str, ...]] = ()
    answers: ClassVar[tuple[str, ...]] = ()
    twice: ClassVar[bool] = False
    has_accuracy: ClassVar[bool] = True
    in_batch: ClassVar[bool] = False

    def check_score(self, score: float, where: str) -> None:
        """Refuses a score that the loss cannot read; `where` begins the message."""

    def init(self, key: jax.Array, width: int) -> PyTree:
        """Returns the parameters that only training needs, the group `task`."""
        return {}

    def counts(self, batch: DeviceBatch) -> Terms:
        """Counts the examples of a batch."""
        rows = jnp.sum(batch["row_weights"])
        return {LOSS: rows} | ({ACCURACY: rows} if self.has_accuracy else {})

    def sums(self, params: PyTree, vectors_BGK: jax.Array, batch: DeviceBatch) -> Terms:
        """Returns the sums of a batch.

        Args:
          params: what `init` made, as it has become.
          vectors_BGK: of the texts.
          batch: what else is known of them.
        """
        raise NotImplementedError


def _summed(loss_B: jax.Array, hit_B: jax.Array | None, batch: DeviceBatch) -> Terms:
    weight_B = batch["row_weights"]
    sums = {LOSS: jnp.sum(loss_B * weight_B)}
    if hit_B is not None:
        sums[ACCURACY] = jnp.sum(hit_B * weight_B)
    return sums


@dataclasses.dataclass(frozen=True, kw_only=True)
class SoftmaxLoss(EmbeddingLoss):
    """Classifies a pair by u, v and |u - v| side by side; the classifier is training's.

    Attributes:
      num_labels: classes; None = as many as the examples have, which a task settles.
    """

    name: ClassVar[str] = "softmax"
    roles: ClassVar[tuple[str, ...]] = ("text", "pair")
    answers: ClassVar[tuple[str, ...]] = ("label",)

    num_labels: int | None = None

    def __post_init__(self):
        if self.num_labels is not None and self.num_labels < 2:
            raise UserError(f"loss.num_labels={self.num_labels} must be at least 2")

    def init(self, key: jax.Array, width: int) -> PyTree:
        """Returns the classifier, `score`."""
        assert self.num_labels is not None
        shape = (3 * width, self.num_labels)
        kernel = _INIT_STD * jax.random.truncated_normal(key, -2, 2, shape)
        return {"score": {"kernel": kernel, "bias": jnp.zeros(self.num_labels)}}

    def sums(self, params: PyTree, vectors_BGK: jax.Array, batch: DeviceBatch) -> Terms:
        """Adds up cross-entropy and hits."""
        u_BK, v_BK = vectors_BGK[:, 0], vectors_BGK[:, 1]
        joined_BX = jnp.concatenate([u_BK, v_BK, jnp.abs(u_BK - v_BK)], axis=-1)
        score = params["score"]
        logits_BC = joined_BX.astype(jnp.float32) @ score["kernel"] + score["bias"]
        label_B = batch["task/label"]
        loss_B = optax.softmax_cross_entropy_with_integer_labels(logits_BC, label_B)
        return _summed(loss_B, jnp.argmax(logits_BC, axis=-1) == label_B, batch)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CosineLoss(EmbeddingLoss):
    """Squares the difference of a pair's cosine and its score.

    Attributes:
      lowest: the score of a pair that has nothing in common, which stands for 0.
      highest: the score of a pair that means the same, which stands for 1.
    """

    name: ClassVar[str] = "cosine"
    roles: ClassVar[tuple[str, ...]] = ("text", "pair")
    answers: ClassVar[tuple[str, ...]] = ("score",)
    has_accuracy: ClassVar[bool] = False

    lowest: float = 0.0
    highest: float = 1.0

    def __post_init__(self):
        if not self.lowest < self.highest:
            raise UserError(
                f"loss.lowest={self.lowest} must be below loss.highest={self.highest}"
            )

    def check_score(self, score: float, where: str) -> None:
        """Refuses a score that is on another scale."""
        if not self.lowest <= score <= self.highest:
            raise UserError(
                f"{where}: score={score} is not between loss.lowest={self.lowest} and "
                f"loss.highest={self.highest}; set them to the scale of the scores"
            )

    def sums(self, params: PyTree, vectors_BGK: jax.Array, batch: DeviceBatch) -> Terms:
        """Adds up squared errors."""
        score_B = (batch["task/score"] - self.lowest) / (self.highest - self.lowest)
        unit_BGK = normalise(vectors_BGK, "l2")
        cosine_B = jnp.sum(unit_BGK[:, 0] * unit_BGK[:, 1], axis=-1)
        return _summed((cosine_B - score_B) ** 2, None, batch)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TripletLoss(EmbeddingLoss):
    """Asks that a text is nearer to its positive than to its negative, by a margin.

    Attributes:
      margin: of the Euclidean distances.
    """

    name: ClassVar[str] = "triplet"
    roles: ClassVar[tuple[str, ...]] = ("text", "positive", "negative")

    margin: float = 1.0

    def sums(self, params: PyTree, vectors_BGK: jax.Array, batch: DeviceBatch) -> Terms:
        """Adds up what is missing to the margin, and how often the order is right."""
        text_BK, positive_BK, negative_BK = (vectors_BGK[:, i] for i in range(3))
        near_B = _distance(text_BK, positive_BK)
        far_B = _distance(text_BK, negative_BK)
        loss_B = jax.nn.relu(near_B - far_B + self.margin)
        return _summed(loss_B, near_B < far_B, batch)


def _distance(x_BK: jax.Array, y_BK: jax.Array) -> jax.Array:
    return jnp.linalg.norm(x_BK - y_BK + _DISTANCE_EPSILON, axis=-1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class InBatchLoss(EmbeddingLoss):
    """Finds each text's positive among those of all examples (Henderson et al. 2017).

    The negative of an example, where there is one, is a candidate for all of them.

    Attributes:
      scale: what cosines are multiplied by; 20 is a temperature of 0.05.
    """

    name: ClassVar[str] = "in_batch"
    roles: ClassVar[tuple[str, ...]] = ("text", "positive", "negative")
    optional: ClassVar[tuple[str, ...]] = ("negative",)
    in_batch: ClassVar[bool] = True

    scale: float = 20.0

    def __post_init__(self):
        if self.scale <= 0:
            raise UserError(f"loss.scale={self.scale} must be above 0")

    def sums(self, params: PyTree, vectors_BGK: jax.Array, batch: DeviceBatch) -> Terms:
        """Adds up cross-entropy and hits."""
        unit_BGK = normalise(vectors_BGK, "l2")
        rows, group, width = unit_BGK.shape
        # All positives come first: the own one of row b is candidate b.
        candidates_TK = unit_BGK[:, 1:].swapaxes(0, 1).reshape(-1, width)
        scores_BT = self.scale * unit_BGK[:, 0] @ candidates_TK.T
        real_BG = jnp.broadcast_to(batch["row_weights"][:, None] > 0, (rows, group))
        if "present" in batch:
            real_BG &= batch["present"].astype(bool)
        real_T = real_BG[:, 1:].T.reshape(-1)
        own_B = jnp.arange(rows)
        # A filler keeps its own candidate, so that its loss is a number.
        shown_BT = real_T | (own_B[:, None] == jnp.arange(len(real_T)))
        scores_BT = jnp.where(shown_BT, scores_BT, -jnp.inf)
        loss_B = optax.softmax_cross_entropy_with_integer_labels(scores_BT, own_B)
        return _summed(loss_B, jnp.argmax(scores_BT, axis=-1) == own_B, batch)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimCSE(InBatchLoss):
    """Finds a text again that was read under other dropout (Gao et al. 2021)."""

    name: ClassVar[str] = "simcse"
    roles: ClassVar[tuple[str, ...]] = ("text",)
    optional: ClassVar[tuple[str, ...]] = ()
    twice: ClassVar[bool] = True


LOSSES: dict[str, type[EmbeddingLoss]] = {
    loss.name: loss
    for loss in (SoftmaxLoss, CosineLoss, TripletLoss, InBatchLoss, SimCSE)
}
