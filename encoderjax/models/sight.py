"""Which keys a query may look at.

Shapes: B batch, L queries, C queries of a block, M keys, P chosen places.
"""

import functools
import operator

import jax
import jax.numpy as jnp
from flax import struct


@struct.dataclass
class Sight:
    """What is seen: told by place as far as it can be, so that pairs need no memory.

    A key must pass all that is given.

    Attributes:
      pairs: bool, broadcasts against [B, H, L, M].
      keys_BM: bool, which keys are real.
      queries_BL: bool, which queries may look at anything.
      own_BL, theirs_BM: int32, the documents of queries and keys, which must agree.
    """

    pairs: jax.Array | None = None
    keys_BM: jax.Array | None = None
    queries_BL: jax.Array | None = None
    own_BL: jax.Array | None = None
    theirs_BM: jax.Array | None = None

    def rows(self, first: int | jax.Array, count: int) -> jax.Array | None:
        """Returns bool, broadcasts against [B, H, C, M], of some queries; None = all.

        `first` is the place of the first of them, an array in a loop.
        """
        parts = []
        if self.pairs is not None:
            one = self.pairs.shape[2] == 1
            parts.append(self.pairs if one else cut(self.pairs, first, count, axis=2))
        if self.keys_BM is not None:
            parts.append(self.keys_BM[:, None, None, :])
        if self.queries_BL is not None:
            parts.append(cut(self.queries_BL, first, count)[:, None, :, None])
        if self.own_BL is not None and self.theirs_BM is not None:
            own_BC = cut(self.own_BL, first, count)
            parts.append(own_BC[:, None, :, None] == self.theirs_BM[:, None, None, :])
        return functools.reduce(operator.and_, parts) if parts else None

    def at(self, places_BP: jax.Array) -> "Sight":
        """Returns what the queries at some places see, where pairs are not told."""
        assert self.pairs is None
        chosen = lambda x_BL: (
            None if x_BL is None else jnp.take_along_axis(x_BL, places_BP, axis=1)
        )
        return self.replace(  # pyright: ignore[reportAttributeAccessIssue]
            queries_BL=chosen(self.queries_BL), own_BL=chosen(self.own_BL)
        )


def cut(x: jax.Array, first: int | jax.Array, count: int, axis: int = 1) -> jax.Array:
    """Returns `count` entries of an axis; all of them without a copy."""
    if count == x.shape[axis]:
        return x
    return jax.lax.dynamic_slice_in_dim(x, first, count, axis)


def same_document(documents_BL: jax.Array) -> jax.Array:
    """Returns whether two places hold the same document, [B, 1, L, L]."""
    return documents_BL[:, None, :, None] == documents_BL[:, None, None, :]
