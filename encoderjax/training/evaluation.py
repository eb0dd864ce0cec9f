"""Held-out metrics: fixed rows, fixed masks, whatever the step, hosts and batches."""

import dataclasses
from collections.abc import Callable, Mapping

import jax
import numpy as np
from jax.sharding import Mesh

from encoderjax.data.pipeline import Batch, BatchSource, prefetched
from encoderjax.training.mesh import BatchPlacement, filled_rows


@dataclasses.dataclass(frozen=True)
class Totals:
    """Metrics of some rows as sums, which add up with those of others."""

    sums: Mapping[str, float]
    counts: Mapping[str, float]

    def __add__(self, other: "Totals") -> "Totals":
        return Totals(_added(self.sums, other.sums), _added(self.counts, other.counts))

    def means(self) -> dict[str, float]:
        """Returns the mean of each metric.

        One that nothing was counted for (no kept tokens, say) is left out.
        """
        counted = (name for name in self.sums if self.counts[name] > 0)
        return {name: self.sums[name] / self.counts[name] for name in counted}


def _added(ours: Mapping[str, float], theirs: Mapping[str, float]) -> dict[str, float]:
    names = {**ours, **theirs}  # in their order
    return {name: ours.get(name, 0.0) + theirs.get(name, 0.0) for name in names}


def evaluate(
    eval_step: Callable,
    params,
    source: BatchSource,
    *,
    mesh: Mesh,
    num_rows: int,
    frozen=None,
) -> Totals:
    """Returns the sum of each metric over the first `num_rows` held-out rows.

    Batches have as many rows as devices share evenly, and the last one is filled up
    with rows of weight 0. Sums are added in float64.

    Args:
      eval_step: (params, frozen, batch) -> (sums, counts).
      params: that are trained.
      source: of the rows.
      mesh: the devices.
      num_rows: how many of the rows.
      frozen: parameters that are used but not trained.
    """
    frozen = frozen or {}
    size = filled_rows(source.batch_size, mesh, 1)
    source = dataclasses.replace(source, batch_size=size)
    steps = range(-(-num_rows // size))
    placement = BatchPlacement(mesh, size)

    def make(step: int) -> Batch:
        epochs_B, rows_B = source.places(step, placement.rows)
        places_B = step * size + placement.rows
        return source.rows(
            np.zeros_like(epochs_B), np.where(places_B < num_rows, rows_B, -1)
        )

    totals = Totals({}, {})
    for batch in prefetched(make, steps):
        terms = jax.device_get(eval_step(params, frozen, placement.put(batch)))
        totals += Totals(*({k: float(v) for k, v in new.items()} for new in terms))
    return totals
