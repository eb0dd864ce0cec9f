"""Attention: one function, with the choice of kernel inside, and BERT's module.

Shapes: B batch, L queries, M keys, H heads, K per-head size, D width; W blocks of C
queries and T keys of a local layer.
"""

from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from encoderjax.models.config import EncoderConfig
from encoderjax.models.dropout import DropoutKey, drop
from encoderjax.models.layers import ATTENTION_SITE, Table
from encoderjax.models.relative import distances, query_scores

# Cosines and sines, [L, K / 2]; [B, L, K / 2] where positions differ by row.
Rotation = tuple[jax.Array, jax.Array]


@struct.dataclass
class Context:
    """What every layer is told beside the states.

    Attributes:
      mask_BM: which keys are real; None = all.
      visible: bool, broadcasts against [B, H, L, M]: which key a query may look at,
        `mask_BM` and `documents_BM` included; None = all.
      documents_BM: int32, the document of each key, of which only its own queries see
        it; None = rows hold one each.
      reach: bool like `visible`, what a query that may look at nothing takes the mean
        of, where it does; None = all.
      places_BP: where the queries are, if they are chosen ones.
      rotations: of layers that see everything, and of local ones.
      table: by distance or by bucket of distances, for relative positions.
      same_segment: bool [B, L, M].
      reversed_B: bool, which rows take the second of two tables, [2, ...].
    """

    mask_BM: jax.Array | None = None
    visible: jax.Array | None = None
    documents_BM: jax.Array | None = None
    reach: jax.Array | None = None
    places_BP: jax.Array | None = None
    rotations: tuple[Rotation, Rotation] | None = None
    table: jax.Array | None = None
    same_segment: jax.Array | None = None
    reversed_B: jax.Array | None = None


def attend(
    q_BLHK: jax.Array,
    k_BMHK: jax.Array,
    v_BMHK: jax.Array,
    *,
    visible: jax.Array | None,
    scale: float | None = None,
    bias_BHLM: jax.Array | None = None,
    blind: Literal["zero", "mean"] = "zero",
    reach: jax.Array | None = None,
    dropout_rate: float = 0.0,
    dropout: DropoutKey | None = None,
) -> jax.Array:
    """Returns softmax(scale q k + bias) v as [B, L, H, K].

    `visible` is boolean and broadcasts against [B, H, L, M]; True = may look. A
    query that may look at nothing gets 0, or the mean of all values (of those in
    `reach`) if `blind` says so; never a NaN. `scale` is 1 / sqrt(K) unless given.
    """
    if scale is None:
        scale = float(q_BLHK.shape[-1] ** -0.5)
    scores_BHLM = jnp.einsum(
        "blhk,bmhk->bhlm", q_BLHK * scale, k_BMHK, preferred_element_type=jnp.float32
    )
    if bias_BHLM is not None:
        scores_BHLM += bias_BHLM
    weights_BHLM = _softmax(scores_BHLM, visible, blind, reach).astype(v_BMHK.dtype)
    weights_BHLM = drop(weights_BHLM, dropout_rate, dropout, ATTENTION_SITE)
    return jnp.einsum("bhlm,bmhk->blhk", weights_BHLM, v_BMHK)


def attend_locally(
    q_BLHK: jax.Array,
    k_BLHK: jax.Array,
    v_BLHK: jax.Array,
    *,
    mask_BL: jax.Array | None,
    documents_BL: jax.Array | None = None,
    window: int,
    dropout_rate: float = 0.0,
    dropout: DropoutKey | None = None,
) -> jax.Array:
    """Returns attention to the keys at most window // 2 places away.

    In blocks of as many queries as the window reaches over, each with half a window of
    keys on either side: the cost is length x window.
    """
    length, half = q_BLHK.shape[1], window // 2
    if length <= 2 * window or half == 0:
        place = np.arange(length)
        visible = jnp.asarray(np.abs(place[:, None] - place) <= half)[None, None]
        if mask_BL is not None:
            visible = visible & mask_BL[:, None, None, :]
        if documents_BL is not None:
            visible = visible & same_document(documents_BL)
        return attend(
            q_BLHK,
            k_BLHK,
            v_BLHK,
            visible=visible,
            dropout_rate=dropout_rate,
            dropout=dropout,
        )
    size = 2 * half  # queries of a block
    blocks = -(-length // size)
    real_BL = jnp.ones(q_BLHK.shape[:2], bool) if mask_BL is None else mask_BL
    in_blocks = lambda x: _padded(x, 0, blocks * size - length).reshape(
        x.shape[0], blocks, size, *x.shape[2:]
    )
    with_neighbours = lambda x: _overlapping(
        _padded(x, half, (blocks + 1) * size - length - half), half
    )
    q_BWCHK = in_blocks(q_BLHK)
    k_BWTHK, v_BWTHK, real_BWT = map(with_neighbours, (k_BLHK, v_BLHK, real_BL))
    offset = np.arange(2 * size) - half - np.arange(size)[:, None]  # key - query
    near_CT = jnp.asarray(np.abs(offset) <= half)
    scores = jnp.einsum(
        "bwchk,bwthk->bwhct",
        q_BWCHK * q_BLHK.shape[-1] ** -0.5,
        k_BWTHK,
        preferred_element_type=jnp.float32,
    )
    visible = near_CT & real_BWT[:, :, None, None, :]
    if documents_BL is not None:
        own_BWC, theirs_BWT = in_blocks(documents_BL), with_neighbours(documents_BL)
        visible &= (own_BWC[:, :, :, None] == theirs_BWT[:, :, None, :])[:, :, None]
    weights = _softmax(scores, visible).astype(v_BLHK.dtype)
    weights = drop(weights, dropout_rate, dropout, ATTENTION_SITE)
    mixed = jnp.einsum("bwhct,bwthk->bwchk", weights, v_BWTHK)
    return mixed.reshape(q_BLHK.shape[0], -1, *q_BLHK.shape[2:])[:, :length]


def same_document(documents_BL: jax.Array) -> jax.Array:
    """Returns whether two places hold the same document, [B, 1, L, L]."""
    return documents_BL[:, None, :, None] == documents_BL[:, None, None, :]


def _softmax(
    scores: jax.Array,
    visible: jax.Array | None,
    blind: str = "zero",
    reach: jax.Array | None = None,
) -> jax.Array:
    """Returns weights over the visible keys, which are the last axis."""
    if visible is None:
        return jax.nn.softmax(scores, axis=-1)
    scores = jnp.where(visible, scores, jnp.finfo(scores.dtype).min)
    if reach is not None:
        scores = jnp.where(reach, scores, -jnp.inf)
    weights = jax.nn.softmax(scores, axis=-1)
    # Where nothing is visible all scores, and so all weights, are alike.
    return weights if blind == "mean" else jnp.where(visible, weights, 0.0)


def _padded(x: jax.Array, before: int, after: int) -> jax.Array:
    return jnp.pad(x, ((0, 0), (before, after), *((0, 0),) * (x.ndim - 2)))


def _overlapping(x: jax.Array, half: int) -> jax.Array:
    """Returns [B, W, 4 half, ...]: for each block also half a block on either side."""
    halves = x.reshape(x.shape[0], -1, half, *x.shape[2:])
    count = halves.shape[1] - 3
    parts = [halves[:, part : part + count : 2] for part in range(4)]
    return jnp.concatenate(parts, axis=2)


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
        name=name,
    )


class Attention(nn.Module):
    """Multi-head attention with its output projection."""

    config: EncoderConfig
    dtype: Any
    local: bool = False

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
        rate = c.attention_dropout_rate
        if self.local:
            assert c.window is not None
            mixed_BLHK = attend_locally(
                q_BLHK,
                k_BMHK,
                v_BMHK,
                mask_BL=context.mask_BM,
                documents_BL=context.documents_BM,
                window=c.window,
                dropout_rate=rate,
                dropout=dropout,
            )
        else:
            mixed_BLHK = attend(
                q_BLHK,
                k_BMHK,
                v_BMHK,
                visible=context.visible,
                bias_BHLM=self._distance_scores(q_BLHK, k_BMHK, context),
                dropout_rate=rate,
                dropout=dropout,
            )
        return from_heads(c, self.dtype, "out", c.use_bias)(mixed_BLHK)

    def _distance_scores(self, q_BLHK, k_BMHK, context: Context) -> jax.Array | None:
        """Returns q . e[distance], where positions are relative keys."""
        c = self.config
        if c.positions != "relative_key":
            return None
        keys = k_BMHK.shape[1]
        table = Table(c, 2 * c.max_length - 1, c.head_width, name="distance_embed")
        rows_RK = table(jnp.asarray(distances(keys, keys) + c.max_length - 1))
        rows_RHK = jnp.broadcast_to(
            rows_RK[:, None].astype(self.dtype), (len(rows_RK), *q_BLHK.shape[2:])
        )
        scores = query_scores(q_BLHK, rows_RHK, keys, context.places_BP)
        return scores * c.head_width**-0.5
