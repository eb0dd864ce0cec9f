"""What is done layer by layer, where the layers of a model lie in one array.

Parameters under `encoder/layers` and `encoder/decoder_layers` have a leading axis with
an entry a layer, and a single entry where layers share their weights. An entry is what
the reference implementations call a tensor or a variable.
"""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from encoderjax.training.mesh import map_with_names

PyTree = Any

_STACKED = re.compile(r"(?:.+/)?encoder/(?:decoder_)?layers/")
_PART = re.compile(r"(?:(.+)/)?encoder/(\w+)")
_ABOVE_THE_LAYERS = ("final_norm", "pooler", "decoder_layers")


def mean_of_tensor(name: str, x: jax.Array) -> jax.Array:
    """Returns the mean of a parameter, of each entry of a stack; axes are kept."""
    first = 1 if _STACKED.match(name) else 0
    return jnp.mean(x, axis=tuple(range(first, x.ndim)), keepdims=True)


def scale_by_depth(factor_of: Callable[[str], float]) -> optax.GradientTransformation:
    """Returns updates times factor^depth: layer-wise decay of the learning rate.

    Depth is 0 for heads, pooler, mask decoder and final norm, 1 for the last layer, N
    for the first of N, and N + 1 for embeddings and all else that lies below. Entries
    of a stack are counted from its end, so weights that several layers share stand
    where the last of them does.

    Args:
      factor_of: path of a parameter -> its factor.
    """

    def update(updates: PyTree, state: Any, params: PyTree = None):
        del params
        heights = _heights(updates)

        def scale(name: str, leaf: jax.Array) -> jax.Array:
            network, part = _place(name)
            if part == "" or part in _ABOVE_THE_LAYERS:
                return leaf
            if part != "layers":
                return leaf * factor_of(name) ** (heights.get(network, 0) + 1)
            factors = factor_of(name) ** np.arange(len(leaf), 0, -1).astype(leaf.dtype)
            return leaf * factors.reshape(-1, *(1,) * (leaf.ndim - 1))

        return map_with_names(scale, updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def with_frozen(params: PyTree, layers: int) -> PyTree:
    """Returns the parameters with those that stay as they are cut from the gradient.

    Args:
      params: of a network with an encoder.
      layers: 0 = nothing is frozen; n = the embeddings and the first n layers, counted
        as in `scale_by_depth`; -1 = the encoder with all that lies in it.
    """
    stop = jax.lax.stop_gradient
    return _mixed(params, jax.tree.map(stop, params), layers)


def keep_frozen(layers: int) -> optax.GradientTransformation:
    """Returns updates that are 0 for what `with_frozen` cuts off, decay included."""

    def update(updates: PyTree, state: Any, params: PyTree = None):
        del params
        return _mixed(updates, jax.tree.map(jnp.zeros_like, updates), layers), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def _mixed(free: PyTree, frozen: PyTree, layers: int) -> PyTree:
    """Returns `free`, and `frozen` below the first layer that is trained."""
    if layers == 0:
        return free
    heights = _heights(free)

    def choose(name: str, free: jax.Array, frozen: jax.Array) -> jax.Array:
        network, part = _place(name)
        if part == "":
            return free
        if layers == -1:
            return frozen
        if part in _ABOVE_THE_LAYERS:
            return free
        if part != "layers":
            return frozen
        below = max(0, layers - (heights[network] - len(free)))
        return jnp.concatenate([frozen[:below], free[below:]])

    return map_with_names(choose, free, frozen)


def _heights(params: PyTree) -> dict[str, int]:
    """Returns the number of layers of each network in a tree."""
    heights: dict[str, int] = {}

    def measure(name: str, leaf: jax.Array) -> None:
        network, part = _place(name)
        if part == "layers":
            heights[network] = max(heights.get(network, 0), len(leaf))

    map_with_names(measure, params)
    return heights


def _place(name: str) -> tuple[str, str]:
    """Returns which network a parameter belongs to and which part of its encoder."""
    found = _PART.match(name)
    return (found[1] or "", found[2]) if found else ("", "")
