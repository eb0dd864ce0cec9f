"""Adam's direction, with or without correction for moments that start at zero."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

PyTree = Any


class AdamState(NamedTuple):
    """Moments, and the number of updates made."""

    count: jax.Array
    mu: PyTree
    nu: PyTree


def scale_by_adam(
    b1: float, b2: float, eps: float, bias_correction: bool
) -> optax.GradientTransformation:
    """Returns m / (sqrt(v) + eps), with or without correction for the zero start."""

    def init(params: PyTree) -> AdamState:
        zeros = lambda: jax.tree.map(jnp.zeros_like, params)
        return AdamState(jnp.zeros((), jnp.int32), zeros(), zeros())

    def update(updates: PyTree, state: Any, params: PyTree = None):
        del params
        count = state.count + 1
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, updates)
        nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, state.nu, updates)
        first = weight_seen(b1, count, bias_correction)
        second = weight_seen(b2, count, bias_correction)
        scaled = jax.tree.map(
            lambda m, v: (m / first) / (jnp.sqrt(v / second) + eps), mu, nu
        )
        return scaled, AdamState(count, mu, nu)

    return optax.GradientTransformation(init, update)


def weight_seen(decay: float, count: jax.Array, corrected: bool) -> jax.Array | float:
    """Returns what a moment is divided by: the weight of its gradients, or 1."""
    return 1 - decay**count if corrected else 1.0
