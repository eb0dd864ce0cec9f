"""XLNet's attention (Yang et al. 2019): relative positions, two streams, a memory.

The content stream reads every token, its own included; the query stream knows only
where it is, and predicts. Both look at the content stream of the layer below, through
the same weights. What each may see is the order of a permutation.

Shapes: B batch, L length, C queries of a block, M keys (memory and row), P predicted
places, R distances, H heads, K columns of a head, D width, N layers.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from encoderjax.errors import UserError
from encoderjax.models.attention import (
    Context,
    attend,
    frequencies,
    from_heads,
    to_heads,
)
from encoderjax.models.config import EncoderConfig
from encoderjax.models.dropout import DropoutKey, drop
from encoderjax.models.layers import TABLE_SITE
from encoderjax.models.relative import distances, query_scores, rows_for
from encoderjax.models.sight import Sight, cut, same_document


@struct.dataclass
class Streams:
    """What an encoder with two streams takes beside the tokens.

    Attributes:
      visible_BLL: bool, whether the place of the second axis may look at that of the
        third; None = all may.
      targets_BP: int32, the places to predict: the rows of the query stream.
      memory_NBMD: what `Outputs.memory` held after the segment before.
      reversed_B: bool, which rows hold their text from the end to the beginning.
    """

    visible_BLL: jax.Array | None = None
    targets_BP: jax.Array | None = None
    memory_NBMD: jax.Array | None = None
    reversed_B: jax.Array | None = None


def stream_contexts(
    config: EncoderConfig,
    streams: Streams,
    mask_BL: jax.Array | None,
    segments_BL: jax.Array,
    documents_BL: jax.Array | None,
    dropout: DropoutKey | None,
) -> tuple[Context, Context | None]:
    """Returns what the content stream is told, and the query stream if there is one.

    `mask_BL` is given where `documents_BL` is.
    """
    if documents_BL is not None and streams.memory_NBMD is not None:
        raise UserError(
            "rows of several documents do not go with a memory, which is one "
            "document's; put one document in a row, or set model.memory_length=0"
        )
    batch, length = segments_BL.shape
    if config.bidirectional_data and streams.reversed_B is None:
        reversed_B = jnp.arange(batch) >= (batch + 1) // 2
        streams = dataclasses.replace(streams, reversed_B=reversed_B)
    memory = 0 if streams.memory_NBMD is None else streams.memory_NBMD.shape[2]
    table = sinusoids(config, length, length + memory)
    table = table[0] if streams.reversed_B is None else table
    if dropout is not None:
        shared = dropout.for_all_rows()
        table = drop(table[None], config.dropout_rate, shared, TABLE_SITE)[0]
    segments_BM = jnp.pad(segments_BL, ((0, 0), (memory, 0)))  # a memory is segment 0

    visible_BLM = content_BLM = own_BLM = None
    if mask_BL is not None or streams.visible_BLL is not None:
        visible_BLM = jnp.ones((1, length, length), bool)
        if mask_BL is not None:
            visible_BLM &= mask_BL[:, None, :]
        if streams.visible_BLL is not None:
            visible_BLM &= streams.visible_BLL
        if documents_BL is not None:
            own_BLM = same_document(documents_BL)[:, 0]
            visible_BLM &= own_BLM
        content_BLM = visible_BLM | jnp.eye(length, dtype=bool)
        all_of_it = ((0, 0), (0, 0), (memory, 0))
        visible_BLM = jnp.pad(visible_BLM, all_of_it, constant_values=True)
        content_BLM = jnp.pad(content_BLM, all_of_it, constant_values=True)

    content = Context(
        visible=Sight(pairs=_by_head(content_BLM)),
        table=table,
        segments=(segments_BL, segments_BM),
        reversed_B=streams.reversed_B,
    )
    targets_BP = streams.targets_BP
    if targets_BP is None:
        return content, None
    rows_BP1 = targets_BP[:, :, None]
    if visible_BLM is not None:
        shape = (len(targets_BP), *visible_BLM.shape[1:])
        visible_BLM = jnp.broadcast_to(visible_BLM, shape)
        visible_BLM = jnp.take_along_axis(visible_BLM, rows_BP1, axis=1)
    if own_BLM is not None:
        own_BLM = jnp.take_along_axis(own_BLM, rows_BP1, axis=1)
    query = Context(
        visible=Sight(pairs=_by_head(visible_BLM)),
        reach=_by_head(own_BLM),
        places_BP=targets_BP,
        table=table,
        segments=(jnp.take_along_axis(segments_BL, targets_BP, axis=1), segments_BM),
        reversed_B=streams.reversed_B,
    )
    return content, query


def _by_head(visible_BLM: jax.Array | None) -> jax.Array | None:
    return None if visible_BLM is None else visible_BLM[:, None]


def sinusoids(config: EncoderConfig, queries: int, keys: int) -> jax.Array:
    """Returns sines and cosines of each distance, and of its negative, [2, R, D]."""
    distance = distances(queries, keys).astype(np.float32)
    if config.clamp_length:
        distance = np.clip(distance, -config.clamp_length, config.clamp_length)
    angle = distance[:, None] * frequencies(config.width, 10_000.0)
    forward = np.concatenate([np.sin(angle), np.cos(angle)], axis=-1)
    backward = np.concatenate([-np.sin(angle), np.cos(angle)], axis=-1)
    return jnp.asarray(np.stack([forward, backward]))


def with_memory(x_BLD: jax.Array, memory_BMD: jax.Array | None) -> jax.Array:
    """Returns the states with those of the segment before in front of them."""
    if memory_BMD is None:
        return x_BLD
    return jnp.concatenate([memory_BMD.astype(x_BLD.dtype), x_BLD], axis=1)


def next_memory(
    config: EncoderConfig, x_BLD: jax.Array, memory_BMD: jax.Array | None
) -> jax.Array:
    """Returns the states that the next segment will look back at."""
    if config.reuse_length:
        x_BLD = x_BLD[:, : config.reuse_length]
    carried_BMD = with_memory(x_BLD, memory_BMD)[:, -config.memory_length :]
    return jax.lax.stop_gradient(carried_BMD)


class RelativeAttention(nn.Module):
    """Attention by content, distance and segment, with its output projection."""

    config: EncoderConfig
    dtype: Any

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
        assert context.table is not None
        assert context.segments is not None
        q_BLHK = to_heads(c, self.dtype, "query", use_bias=False)(x_BLD)
        k_BMHK = to_heads(c, self.dtype, "key", use_bias=False)(source_BMD)
        v_BMHK = to_heads(c, self.dtype, "value", use_bias=False)(source_BMD)
        table = context.table.astype(self.dtype)
        kr = to_heads(c, self.dtype, "position_key", use_bias=False)(table)

        heads = (c.num_heads, c.head_width)
        bias = lambda name: self.param(name, c.initializer, heads).astype(self.dtype)
        # Attended to are queries with this bias; the others are told apart from it.
        content_HK = bias("content_bias")
        position_HK = bias("position_bias") - content_HK
        segment_HK = bias("segment_bias") - content_HK
        segment_2HK = self.param("segment_embed", c.initializer, (2, *heads))
        segment_2HK = segment_2HK.astype(self.dtype)
        own_BL, theirs_BM = context.segments
        scale = c.head_width**-0.5

        def beside(q_BCHK: jax.Array, first: int | jax.Array) -> jax.Array:
            """Returns the scores by distance and by segment, float32 [B, H, C, M]."""
            keys, count, rows = k_BMHK.shape[1], q_BCHK.shape[1], kr
            if context.places_BP is None:
                rows = rows_for(kr, first, count, keys, axis=-3)
            if context.reversed_B is not None:
                rows = rows[context.reversed_B.astype(jnp.int32)]
            by_distance = query_scores(
                q_BCHK + position_HK, rows, keys, context.places_BP
            )
            by_segment_BHC2 = jnp.einsum(
                "bchk,shk->bhcs",
                q_BCHK + segment_HK,
                segment_2HK,
                preferred_element_type=jnp.float32,
            )
            same, other = jnp.split(by_segment_BHC2, 2, axis=-1)
            own_BC1 = cut(own_BL, first, count)[:, :, None]
            same_BCM = own_BC1 == theirs_BM[:, None, :]
            by_segment = jnp.where(same_BCM[:, None], same, other)
            return (by_distance + by_segment) * scale

        mixed_BLHK = attend(
            q_BLHK + content_HK,
            k_BMHK,
            v_BMHK,
            visible=context.visible,
            scale=scale,
            bias=beside,
            blind="mean",  # as in the reference: the first of an order sees nothing
            reach=context.reach,
            dropout_rate=c.attention_dropout_rate,
            dropout=dropout,
        )
        return from_heads(c, self.dtype, "out", use_bias=False)(mixed_BLHK)
