"""An encoder with a task's head and loss: pure functions of parameters and a batch.

It has the methods of `Pretrainer` that the train step calls, so the step is the same.

Shapes: B items of a batch, G rows of an item, L length.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from encoderjax.data.pipeline import prefetched
from encoderjax.models.dropout import DropoutKey
from encoderjax.objectives.pretrainer import divide
from encoderjax.tasks.batches import Items, by_length
from encoderjax.tasks.task import DeviceBatch, Model, Task, Terms
from encoderjax.training.evaluation import Totals
from encoderjax.training.layerwise import with_frozen
from encoderjax.training.mesh import BATCH_SPEC, BatchPlacement

PyTree = Any


@dataclasses.dataclass(frozen=True)
class Finetuner:
    """What is fine-tuned.

    Attributes:
      freeze: how much of the encoder stays as it is; see `with_frozen`.
    """

    model: Model
    task: Task
    freeze: int = 0

    def init(self, key: jax.Array) -> PyTree:
        """Returns new parameters."""
        return self.task.init(self.model, key)

    def init_carry(self, rows: int) -> PyTree:
        """Returns nothing: every row stands alone."""
        return {}

    def counts(self, batch: DeviceBatch) -> Terms:
        """Returns what each term is divided by, over the whole batch given."""
        return self.task.counts(batch)

    def sums(
        self,
        params: PyTree,
        frozen: PyTree,
        carry: PyTree,
        batch: DeviceBatch,
        dropout: DropoutKey | None,
    ) -> tuple[Terms, PyTree]:
        """Runs the model once; returns the summed terms."""
        params = with_frozen(params, self.freeze)
        return self.terms(params, self.scores(params, batch, dropout), batch), carry

    def terms(self, params: PyTree, scores: jax.Array, batch: DeviceBatch) -> Terms:
        """Returns the summed terms of scores."""
        return self.task.sums(params.get("task", {}), scores, batch)

    def loss(self, terms: Terms, counts: Terms) -> jax.Array:
        """Returns the mean loss."""
        return divide(terms, counts)[f"{self.task.kind}_loss"]

    def scores(
        self, params: PyTree, batch: DeviceBatch, dropout: DropoutKey | None = None
    ) -> jax.Array:
        """Returns the scores of a batch: [B, ...], or [B, G, ...] of grouped rows."""
        inputs = tuple(batch[name] for name in ("ids", "mask", "segments"))
        if inputs[0].ndim == 2:
            return self._scores(params, inputs, dropout)
        rows, group, _ = inputs[0].shape
        flat = tuple(x.reshape(rows * group, -1) for x in inputs)
        if dropout is not None:  # each row of a group is dropped for itself
            numbers_BG = dropout.rows_B[:, None] * group + jnp.arange(group)
            numbers = numbers_BG.astype(jnp.uint32).reshape(-1)
            dropout = dataclasses.replace(dropout, rows_B=numbers)
        scores = self._scores(params, flat, dropout)
        return scores.reshape(rows, group, *scores.shape[1:])

    def _scores(self, params: PyTree, inputs: tuple, dropout: DropoutKey | None) -> Any:
        return self.model.apply({"params": params}, *inputs, dropout=dropout)


def make_score_step(
    finetuner: Finetuner, *, mesh: Mesh, shardings: PyTree, answered: bool
) -> Callable[[PyTree, DeviceBatch], tuple[jax.Array, Terms, Terms]]:
    """Returns the jitted (params, batch) -> (scores, sums, counts).

    Every process has them whole. Sums and counts are of batches that are `answered`.
    """

    def score_step(params: PyTree, batch: DeviceBatch):
        scores = finetuner.scores(params, batch)
        if not answered:
            return scores, {}, {}
        terms = finetuner.terms(params, scores, batch)
        return scores, terms, finetuner.counts(batch)

    return jax.jit(
        score_step,
        in_shardings=(shardings, NamedSharding(mesh, BATCH_SPEC)),
        out_shardings=NamedSharding(mesh, PartitionSpec()),
    )


def scores_of(
    score_step: Callable, params: PyTree, items: Items, *, mesh: Mesh, batch_size: int
) -> tuple[list[np.ndarray], dict[str, float]]:
    """Returns the scores of every item, without those of padding, and mean losses.

    Args:
      score_step: of `make_score_step`.
      params: that are used.
      items: whose scores are asked for.
      mesh: the devices.
      batch_size: a multiple of the devices that share a batch.
    """
    batches = list(by_length(items, batch_size))
    placement = BatchPlacement(mesh, batch_size)

    def make(number: int):
        items_B, length = batches[number]
        return items_B, items.take(items_B[placement.rows], length)

    found: list[np.ndarray | None] = [None] * len(items.encoded)
    totals = Totals({}, {})
    for items_B, batch in prefetched(make, range(len(batches))):
        given = score_step(params, placement.put(batch))
        scores, *terms = jax.device_get(given)
        totals += Totals(*({k: float(v) for k, v in new.items()} for new in terms))
        for row, item in enumerate(items_B):
            if item >= 0:
                found[item] = _without_padding(scores[row], items, item)
    return [scores for scores in found if scores is not None], totals.means()


def blank_scores(
    finetuner: Finetuner, items: Items
) -> tuple[list[np.ndarray], dict[str, float]]:
    """Returns what `scores_of` does, with 1 for every number, and runs no model.

    What is made of them tells which metrics there are.
    """
    batch = items.take(np.zeros(1, int), items.length)
    params = jax.eval_shape(finetuner.init, jax.random.key(0))
    scores = jax.eval_shape(finetuner.scores, params, batch)
    terms = jax.eval_shape(finetuner.terms, params, scores, batch)
    blank = np.ones(scores.shape[1:], scores.dtype)
    found = [_without_padding(blank, items, i) for i in range(len(items.encoded))]
    return found, dict.fromkeys(terms, 1.0)


def _without_padding(scores: np.ndarray, items: Items, item: int) -> np.ndarray:
    rows = items.encoded.items[item]
    if items.group > 1:
        return scores[: len(rows)]
    length = len(rows[0])
    if scores.ndim == 1:
        return scores
    return scores[-length:] if items.tokenizer.layout.pads_left else scores[:length]
