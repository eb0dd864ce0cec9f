"""Held-out metrics: fixed rows, fixed masks, whatever the step, hosts and batches."""

from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import Mesh

from encoderjax.data.pipeline import Batch, BatchSource, prefetched
from encoderjax.training.mesh import BatchPlacement


def evaluate(
    eval_step: Callable,
    params,
    source: BatchSource,
    *,
    mesh: Mesh,
    num_rows: int,
    frozen=None,
) -> dict[str, float]:
    """Returns the mean of each metric over the first `num_rows` held-out rows.

    The last batch is filled up with rows of weight 0. Sums are added in float64.

    Args:
      eval_step: (params, frozen, batch) -> (sums, counts).
      params: that are trained.
      source: of the rows.
      mesh: the devices.
      num_rows: how many of the rows.
      frozen: parameters that are used but not trained.
    """
    frozen = frozen or {}
    size = source.batch_size
    steps = range(-(-num_rows // size))
    placement = BatchPlacement(mesh, size)

    def make(step: int) -> Batch:
        epochs_B, rows_B = source.places(step, placement.rows)
        places_B = step * size + placement.rows
        return source.rows(
            np.zeros_like(epochs_B), np.where(places_B < num_rows, rows_B, -1)
        )

    sums: dict[str, float] = {}
    counts: dict[str, float] = {}
    for batch in prefetched(make, steps):
        terms = jax.device_get(eval_step(params, frozen, placement.put(batch)))
        for totals, new in zip((sums, counts), terms, strict=True):
            for name, value in new.items():
                totals[name] = totals.get(name, 0.0) + float(value)
    # A metric that nothing was counted for (no kept tokens, say) is left out.
    return {name: sums[name] / counts[name] for name in sums if counts[name] > 0}
