"""Dropout as a counter hash, the same on any number of devices.

The mask is a hash of (seed, step, layer, site, global row, position, column) over
an iota. The compiler fuses it into the product that uses it: no mask is ever held
in memory, forward or backward, each device hashes just its own elements, and one
seed gives one mask whatever the sharding or the number of microbatches.

Shapes: B rows, L positions (or heads x positions), C columns.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

_GOLDEN = 0x9E3779B9
_COLUMN_STEP = 0x85EBCA6B  # odd, so neighbouring columns differ in many bits


def mix(x: jax.Array) -> jax.Array:
    """Mixes uint32 words; the constants of `encoderjax.data.random.mix`."""
    x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
    return x ^ (x >> 16)


@struct.dataclass
class DropoutKey:
    """What the masks of a step depend on.

    Attributes:
      key: uint32 scalar, a hash of the seed, the step and what was folded in.
      rows_B: uint32 [B], the number of each row in the corpus.
    """

    key: jax.Array
    rows_B: jax.Array

    @classmethod
    def create(cls, seed: int, step: jax.Array, rows_B: jax.Array) -> "DropoutKey":
        """Returns the key of a step."""
        start = mix(jnp.asarray(seed & 0xFFFFFFFF, jnp.uint32))
        return cls(start, rows_B.astype(jnp.uint32)).fold(step)

    def fold(self, number: int | jax.Array) -> "DropoutKey":
        """Returns a key that is independent for each `number`."""
        word = jnp.asarray(number).astype(jnp.uint32) + np.uint32(_GOLDEN)
        key = mix(mix(self.key + np.uint32(_GOLDEN)) ^ word)
        return dataclasses.replace(self, key=key)

    def for_all_rows(self) -> "DropoutKey":
        """Returns the key of something that the rows of a batch share, as [1, ...]."""
        return dataclasses.replace(self, rows_B=jnp.zeros((1,), jnp.uint32))


def drop(
    x: jax.Array,
    rate: float,
    dropout: DropoutKey | None,
    site: int,
    first: int | jax.Array = 0,
) -> jax.Array:
    """Zeroes elements of x [B, ..., C] at `rate`, and scales the others up.

    `site` tells apart the places of one layer; `first` is the place of the first entry
    of the last axis but one, where x is a part. Nothing is dropped without a key.
    """
    if dropout is None or rate == 0.0:
        return x
    return _drop(x, _lines(dropout, x.shape, site, first), rate)


def gumbel(
    key: DropoutKey,
    shape: tuple[int, ...],
    site: int = 0,
    first_column: int | jax.Array = 0,
) -> jax.Array:
    """Returns noise [B, ..., C]: the largest of scores + noise is a softmax's draw.

    `first_column` is the number of the first column, where they are a part.
    """
    bits = _bits(_lines(key, shape, site), shape, first_column)
    # Fine steps near 0, where the noise is large; 1 itself would be no noise at all.
    uniform = bits.astype(jnp.float32) * 2.0**-32 + 2.0**-33
    uniform = jnp.minimum(uniform, 1.0 - 2.0**-24)
    return -jnp.log(-jnp.log1p(-uniform))


def _lines(
    key: DropoutKey, shape: tuple[int, ...], site: int, first: int | jax.Array = 0
) -> jax.Array:
    """Returns a hash of everything but the column, [B, ...]."""
    rows_B = mix(key.rows_B ^ key.fold(site).key)
    lines = rows_B.reshape(-1, *(1,) * (len(shape) - 2))
    for dim in range(1, len(shape) - 1):
        index = jax.lax.broadcasted_iota(jnp.uint32, (1, *shape[1:-1]), dim)
        if dim == len(shape) - 2:
            index += jnp.asarray(first).astype(jnp.uint32)
        lines = mix(lines + (index + 1) * np.uint32(_GOLDEN))
    return lines


def _bits(
    lines: jax.Array, shape: tuple[int, ...], first_column: int | jax.Array = 0
) -> jax.Array:
    column = jax.lax.broadcasted_iota(jnp.uint32, shape, len(shape) - 1)
    column += jnp.asarray(first_column).astype(jnp.uint32)
    return mix(lines[..., None] ^ (column * np.uint32(_COLUMN_STEP)))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _drop(x: jax.Array, lines: jax.Array, rate: float) -> jax.Array:
    bits = _bits(lines, x.shape)
    dropped = bits < np.uint32(round(rate * 2**32))
    return jnp.where(dropped, jnp.zeros((), x.dtype), x * (1.0 / (1.0 - rate)))


def _forward(x, lines, rate):
    return _drop(x, lines, rate), lines


def _backward(rate, lines, gradient):
    # The mask is hashed again rather than kept: a hash is cheaper than memory.
    no_gradient = np.zeros(lines.shape, jax.dtypes.float0)
    return _drop(gradient, lines, rate), no_gradient


_drop.defvjp(_forward, _backward)
