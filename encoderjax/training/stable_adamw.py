"""StableAdamW (Wortsman et al., 2023), as ModernBERT used it: updates are clipped.

A gradient that is large beside its running square makes Adam leap. Adafactor's remedy
is taken over: the learning rate of a tensor is divided by the root mean square of
gradient / sqrt(v), where that is above 1. Gradients need no bound then.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from encoderjax.training.adam import scale_by_adam, weight_seen
from encoderjax.training.layerwise import mean_of_tensor
from encoderjax.training.mesh import map_with_names

PyTree = Any


def scale_by_stable_adam(
    b1: float,
    b2: float,
    eps: float,
    bias_correction: bool,
    decay_of: Callable[[str], float],
) -> optax.GradientTransformation:
    """Returns (Adam's direction + decay x weights) / max(1, rms), an rms a tensor.

    Args:
      decay_of: path of a parameter -> its weight decay. It stands inside, since all
        that a learning rate multiplies is made smaller.
    """
    adam = scale_by_adam(b1, b2, eps, bias_correction)

    def update(updates: PyTree, state: Any, params: PyTree = None):
        directions, state = adam.update(updates, state)
        seen = weight_seen(b2, state.count, bias_correction)

        def clip(name: str, direction, gradient, v, weight) -> jax.Array:
            squares = gradient * gradient / jnp.maximum(v / seen, eps * eps)
            rms = jnp.sqrt(mean_of_tensor(name, squares))
            return (direction + decay_of(name) * weight) / jnp.maximum(1.0, rms)

        names = map_with_names(lambda name, _: name, updates)
        return jax.tree.map(clip, names, directions, updates, state.nu, params), state

    return optax.GradientTransformation(adam.init, update)
