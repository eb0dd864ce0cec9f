"""LAMB's trust ratio (You et al., 2020): steps as long as the weights are large."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from encoderjax.training.layerwise import mean_of_tensor
from encoderjax.training.mesh import map_with_names

PyTree = Any


def scale_by_trust_ratio(
    trusted: Callable[[str], bool],
) -> optax.GradientTransformation:
    """Returns updates times |weights| / |update|, a ratio a tensor, never bounded.

    It is 1 where either norm is 0, and for parameters that are not `trusted` by their
    path.
    """

    def update(updates: PyTree, state: Any, params: PyTree = None):
        def scale(name: str, update: jax.Array, weight: jax.Array) -> jax.Array:
            if not trusted(name):
                return update
            # Both have as many elements, so means do for sums.
            weights = jnp.sqrt(mean_of_tensor(name, weight * weight))
            length = jnp.sqrt(mean_of_tensor(name, update * update))
            either_zero = (weights == 0) | (length == 0)
            ratio = jnp.where(either_zero, 1.0, weights / jnp.where(length, length, 1))
            return update * ratio

        names = map_with_names(lambda name, _: name, updates)
        return jax.tree.map(scale, names, updates, params), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)
