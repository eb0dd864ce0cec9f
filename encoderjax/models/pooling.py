"""From the states of a row's tokens to one vector, and vectors brought to a scale.

Shapes: B batch, L length, D width.
"""

import typing
from typing import Literal

import jax
import jax.numpy as jnp

Pooling = Literal["cls", "mean", "max", "last"]
Normalise = Literal["none", "l2", "layer_norm"]
POOLINGS: tuple[Pooling, ...] = typing.get_args(Pooling)
NORMALISE: tuple[Normalise, ...] = typing.get_args(Normalise)

# Those of PyTorch's functions, with which exported models are run.
_SMALLEST_NORM = 1e-12
_NORM_EPSILON = 1e-5


def pool(
    hidden_BLD: jax.Array,
    mask_BL: jax.Array | None,
    how: Literal["first", "last", "mean", "max"],
) -> jax.Array:
    """Returns a float32 vector [B, D] for each row, of its real tokens alone.

    Padding may stand on either side. A row that is nothing but padding gives zeros.
    """
    hidden_BLD = hidden_BLD.astype(jnp.float32)
    if mask_BL is None:
        mask_BL = jnp.ones(hidden_BLD.shape[:2], bool)
    mask_BL = mask_BL.astype(bool)
    real_BL1 = mask_BL[:, :, None]
    if how == "mean":
        total_BD = jnp.where(real_BL1, hidden_BLD, 0.0).sum(1)
        return total_BD / jnp.maximum(real_BL1.sum(1), 1)
    if how == "max":
        largest_BD = jnp.where(real_BL1, hidden_BLD, -jnp.inf).max(1)
        return jnp.where(real_BL1.any(1), largest_BD, 0.0)
    place_B = jnp.argmax(mask_BL, axis=1)
    if how == "last":
        place_B = mask_BL.shape[1] - 1 - jnp.argmax(mask_BL[:, ::-1], axis=1)
    chosen_BD = jnp.take_along_axis(hidden_BLD, place_B[:, None, None], axis=1)[:, 0]
    return jnp.where(real_BL1.any(1), chosen_BD, 0.0)


def normalise(x_BD: jax.Array, how: Normalise) -> jax.Array:
    """Returns float32 vectors as they are, of length 1, or of mean 0 and variance 1."""
    x_BD = x_BD.astype(jnp.float32)
    if how == "none":
        return x_BD
    if how == "l2":
        square_B1 = jnp.sum(x_BD**2, axis=-1, keepdims=True)
        # The square is bounded, not its root, whose gradient at 0 is no number.
        return x_BD / jnp.sqrt(jnp.maximum(square_B1, _SMALLEST_NORM**2))
    centred_BD = x_BD - x_BD.mean(-1, keepdims=True)
    variance_B1 = (centred_BD**2).mean(-1, keepdims=True)
    return centred_BD / jnp.sqrt(variance_B1 + _NORM_EPSILON)
