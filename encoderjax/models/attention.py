"""Attention: one function, with the choice of kernel inside, and BERT's module.

Shapes: B batch, L queries, C queries of a block, M keys, R distances, H heads, K
per-head size, D width.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from encoderjax.models import kernels
from encoderjax.models.compute import PLAIN, Compute
from encoderjax.models.config import EncoderConfig
from encoderjax.models.dot_product import Bias, attend, attend_locally
from encoderjax.models.dropout import DropoutKey
from encoderjax.models.layers import Table, product
from encoderjax.models.relative import distances, query_scores, rows_for
from encoderjax.models.sight import Sight

# Cosines and sines, [L, K / 2]; [B, L, K / 2] where positions differ by row.
Rotation = tuple[jax.Array, jax.Array]


@struct.dataclass
class Context:
    """What every layer is told beside the states.

    Attributes:
      visible: which keys a query may look at.
      reach: bool [B, H or 1, L, M], what a query that may look at nothing takes the
        mean of, where it does; None = all.
      places_BP: where the queries are, if they are chosen ones.
      rotations: of layers that see everything, and of local ones.
      table: by distance or by bucket of distances, for relative positions.
      segments: int32 of the queries [B, L] and of the keys [B, M].
      reversed_B: bool, which rows take the second of two tables, [2, ...].
    """

    visible: Sight = Sight()
    reach: jax.Array | None = None
    places_BP: jax.Array | None = None
    rotations: tuple[Rotation, Rotation] | None = None
    table: jax.Array | None = None
    segments: tuple[jax.Array, jax.Array] | None = None
    reversed_B: jax.Array | None = None


def frequencies(width: int, theta: float) -> np.ndarray:
    """Returns theta^(-2i / width) in float32, rounded as PyTorch rounds.

    An ulp here is an angle of 2e-4 at position 8,000.
    """
    exponent = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
    power = np.power(float(theta), exponent.astype(np.float64)).astype(np.float32)
    return np.float32(1.0) / power


def rotation(
    length: int, head_width: int, theta: float, positions_BL: jax.Array | None = None
) -> Rotation:
    """Returns the cosines and sines of positions 0, 1, ..., or of those given.

    Positions are below `length`.
    """
    frequency = frequencies(head_width, theta)
    angle = np.arange(length, dtype=np.float32)[:, None] * frequency
    cosine, sine = jnp.asarray(np.cos(angle)), jnp.asarray(np.sin(angle))
    if positions_BL is None:
        return cosine, sine
    at_positions = lambda table: jnp.take(table, positions_BL, axis=0)
    return at_positions(cosine), at_positions(sine)


def rotate(x_BLHK: jax.Array, by: Rotation) -> jax.Array:
    """Turns column i and column i + K / 2 of each head by the angle of their place."""
    cosine, sine = (table[..., None, :] for table in by)
    first, second = jnp.split(x_BLHK.astype(jnp.float32), 2, axis=-1)
    turned = (first * cosine - second * sine, second * cosine + first * sine)
    return jnp.concatenate(turned, axis=-1).astype(x_BLHK.dtype)


def to_heads(
    config: EncoderConfig, dtype: Any, name: str, use_bias: bool = True
) -> nn.DenseGeneral:
    """Returns a projection to [..., H, K]."""
    return nn.DenseGeneral(
        (config.num_heads, config.head_width),
        use_bias=use_bias,
        dtype=dtype,
        kernel_init=config.initializer,
        dot_general=product,
        name=name,
    )


def from_heads(
    config: EncoderConfig, dtype: Any, name: str, use_bias: bool = True
) -> nn.DenseGeneral:
    """Returns a projection from [..., H, K] to [..., D]."""
    return nn.DenseGeneral(
        config.width,
        axis=(-2, -1),
        use_bias=use_bias,
        dtype=dtype,
        kernel_init=config.out_initializer,
        dot_general=product,
        name=name,
    )


def self_attention(
    q_BLHK: jax.Array,
    k_BMHK: jax.Array,
    v_BMHK: jax.Array,
    sight: Sight,
    *,
    compute: Compute,
    window: int | None = None,
    bias: Bias | None = None,
    chosen: bool = False,
    dropout_rate: float = 0.0,
    dropout: DropoutKey | None = None,
) -> jax.Array:
    """Returns attention [B, L, H, K] to the keys in sight, by the kernel that can.

    Args:
      window: how many keys a query sees, half of them on each side; None = all.
      bias: scores to add, where all keys are seen.
      chosen: whether the queries are those of some places.
    """
    dropped = dropout is not None and dropout_rate > 0.0
    kernel = kernels.kernel_for(
        compute.attention,
        q_BLHK,
        local=window is not None,
        chosen=chosen or bias is not None,
        dropped=dropped,
    )
    if kernel == "splash":
        return kernels.splash(q_BLHK, k_BMHK, v_BMHK, sight, window)
    if kernel == "cudnn":
        return kernels.cudnn(q_BLHK, k_BMHK, v_BMHK, sight)
    if window is not None:
        return attend_locally(
            q_BLHK,
            k_BMHK,
            v_BMHK,
            mask_BL=sight.keys_BM,
            documents_BL=sight.own_BL,
            window=window,
            dropout_rate=dropout_rate,
            dropout=dropout,
        )
    return attend(
        q_BLHK,
        k_BMHK,
        v_BMHK,
        visible=sight,
        bias=bias,
        dropout_rate=dropout_rate,
        dropout=dropout,
    )


class Attention(nn.Module):
    """Multi-head attention with its output projection."""

    config: EncoderConfig
    dtype: Any
    local: bool = False
    compute: Compute = PLAIN

    @nn.compact
    def __call__(
        self,
        x_BLD: jax.Array,
        source_BMD: jax.Array,
        context: Context,
        dropout: DropoutKey | None,
    ) -> jax.Array:
        """Returns [B, L, D]: what the queries `x_BLD` find in `source_BMD`."""
        c = self.config
        q_BLHK = to_heads(c, self.dtype, "query", c.use_bias)(x_BLD)
        key_bias = c.use_bias and c.key_bias
        k_BMHK = to_heads(c, self.dtype, "key", key_bias)(source_BMD)
        v_BMHK = to_heads(c, self.dtype, "value", c.use_bias)(source_BMD)
        if context.rotations is not None:
            by = context.rotations[self.local]
            q_BLHK, k_BMHK = rotate(q_BLHK, by), rotate(k_BMHK, by)
        mixed_BLHK = self_attention(
            q_BLHK,
            k_BMHK,
            v_BMHK,
            context.visible,
            compute=self.compute,
            window=c.window if self.local else None,
            bias=self._distance_scores(k_BMHK.shape[1], context),
            chosen=context.places_BP is not None,
            dropout_rate=c.attention_dropout_rate,
            dropout=dropout,
        )
        return from_heads(c, self.dtype, "out", c.use_bias)(mixed_BLHK)

    def _distance_scores(self, keys: int, context: Context) -> Bias | None:
        """Returns q . e[distance], where positions are relative keys."""
        c = self.config
        if c.positions != "relative_key":
            return None
        table = Table(c, 2 * c.max_length - 1, c.head_width, name="distance_embed")
        rows_RK = table(jnp.asarray(distances(keys, keys) + c.max_length - 1))
        rows_RK = rows_RK.astype(self.dtype) * c.head_width**-0.5
        places_BP = context.places_BP

        def scores(q_BCHK: jax.Array, first: int | jax.Array) -> jax.Array:
            rows = rows_RK
            if places_BP is None:
                rows = rows_for(rows_RK, first, q_BCHK.shape[1], keys)
            rows_RHK = jnp.broadcast_to(rows[:, None], (len(rows), *q_BCHK.shape[2:]))
            return query_scores(q_BCHK, rows_RHK, keys, places_BP)

        return scores
