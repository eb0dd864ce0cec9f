"""DeBERTa's attention (He et al. 2021): content and positions apart.

A score is the sum of content to content, content to position and position to content,
over sqrt(3 K). Position means distance, looked up in one table that all layers share.
`score_combination="product"` multiplies the softmax over content by a softmax over
positions instead, which is the softmax of content to content plus position to position.

Shapes: B batch, L queries, C queries of a block, M keys, S rows of the table, R
distances, H heads, K columns of a head, D width, X places that a convolution reads.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from encoderjax.models.attention import Context, attend, from_heads, to_heads
from encoderjax.models.config import EncoderConfig
from encoderjax.models.dropout import DropoutKey, drop
from encoderjax.models.layers import ACTIVATIONS, CONV_SITE, TABLE_SITE, norm
from encoderjax.models.relative import (
    distances,
    key_scores,
    query_scores,
    rows_at,
    rows_for,
    skew,
)


def table_span(config: EncoderConfig) -> int:
    """Returns half the number of rows of the table of distances."""
    return config.position_buckets or config.max_distance or config.max_length


def table_rows(config: EncoderConfig, distance: np.ndarray) -> np.ndarray:
    """Returns the row of the table that each distance takes."""
    if config.position_buckets:
        farthest = config.max_distance or config.max_length
        distance = log_buckets(distance, config.position_buckets, farthest)
    span = table_span(config)
    return np.clip(distance + span, 0, 2 * span - 1)


def log_buckets(distance: np.ndarray, buckets: int, farthest: int) -> np.ndarray:
    """Returns exact distances up to half the buckets, logarithms beyond."""
    middle = buckets // 2
    # In float32 as the reference does it: a ceiling tells an ulp from the next bucket.
    length = np.maximum(np.abs(distance), middle).astype(np.float32)
    stretch = np.log(np.float32((farthest - 1) / middle), dtype=np.float32)
    logarithm = np.log(length / np.float32(middle), dtype=np.float32)
    with np.errstate(divide="ignore", invalid="ignore"):  # a table without far ones
        far = np.ceil(logarithm / stretch * np.float32(middle - 1)) + middle
    far = np.nan_to_num(far, posinf=2.0**30).astype(np.int64)
    near = np.abs(distance) <= middle
    return np.where(near, distance, np.sign(distance) * far)


class DisentangledAttention(nn.Module):
    """Attention by content and distance, with its output projection."""

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
        query = to_heads(c, self.dtype, "query")
        key = to_heads(c, self.dtype, "key", c.key_bias)
        q_BLHK, k_BMHK = query(x_BLD), key(source_BMD)
        v_BMHK = to_heads(c, self.dtype, "value")(source_BMD)

        keys = k_BMHK.shape[1]
        table_SD = _dropped_table(context, c, dropout).astype(self.dtype)
        rows_R = table_rows(c, distances(keys, keys))
        product = c.score_combination == "product"
        qr_RHK = kr_RHK = None
        if product or "c2p" in c.position_terms:
            if not c.share_position_projections:
                key = to_heads(c, self.dtype, "position_key", c.key_bias)
            kr_RHK = key(table_SD)[rows_R]
        if product or "p2c" in c.position_terms:
            if not c.share_position_projections:
                query = to_heads(c, self.dtype, "position_query")
            qr_RHK = query(table_SD)[rows_R]

        scale = (c.head_width * (1 if product else 1 + len(c.position_terms))) ** -0.5
        places_BP = context.places_BP

        def by_distance(q_BCHK: jax.Array, first: int | jax.Array) -> jax.Array:
            """Returns what is added to content to content, float32 [B, H, C, M]."""
            kr, qr = kr_RHK, qr_RHK
            if places_BP is None:
                count = q_BCHK.shape[1]
                needed = lambda table: rows_for(table, first, count, keys)
                kr = None if kr is None else needed(kr)
                qr = None if qr is None else needed(qr)
            if product:
                return _position_scores(qr, kr, keys, places_BP) * scale
            scores_BHCM = jnp.zeros(())
            if kr is not None:
                scores_BHCM += query_scores(q_BCHK, kr, keys, places_BP)
            if qr is not None:
                scores_BHCM += key_scores(k_BMHK, qr, places_BP)
            return scores_BHCM * scale

        mixed_BLHK = attend(
            q_BLHK,
            k_BMHK,
            v_BMHK,
            visible=context.visible,
            scale=scale,
            bias=by_distance,
            dropout_rate=c.attention_dropout_rate,
            dropout=dropout,
        )
        return from_heads(c, self.dtype, "out")(mixed_BLHK)


def _dropped_table(
    context: Context, config: EncoderConfig, dropout: DropoutKey | None
) -> jax.Array:
    assert context.table is not None
    if dropout is None:
        return context.table
    # One mask for all rows of the batch, which share the table.
    return drop(
        context.table[None], config.dropout_rate, dropout.for_all_rows(), TABLE_SITE
    )[0]


def _position_scores(qr_RHK, kr_RHK, keys: int, places_BP) -> jax.Array:
    """Returns q_r[distance] . k_r[distance] as [B or 1, H, L, M]."""
    scores_HR = jnp.einsum(
        "rhk,rhk->hr", qr_RHK, kr_RHK, preferred_element_type=jnp.float32
    )
    if places_BP is None:
        heads, rows = scores_HR.shape
        shape = (1, heads, rows - keys + 1, rows)
        return skew(jnp.broadcast_to(scores_HR[None, :, None], shape))
    rows_BLM = rows_at(places_BP, scores_HR.shape[1], keys)
    return jnp.moveaxis(scores_HR[:, rows_BLM], 0, 1)


class Convolution(nn.Module):
    """Neighbouring embeddings, added to the first layer's output (v2 xlarge)."""

    config: EncoderConfig
    dtype: Any

    @nn.compact
    def __call__(
        self,
        embedded_BLD: jax.Array,
        x_BLD: jax.Array,
        mask_BL: jax.Array | None,
        dropout: DropoutKey | None,
        documents_BL: jax.Array | None = None,
    ) -> jax.Array:
        """Returns [B, L, D]; neighbours are those of the same document."""
        c = self.config
        if mask_BL is not None:  # padding must not reach its neighbours
            embedded_BLD = embedded_BLD * mask_BL[:, :, None]
        conv = nn.Conv(
            c.width,
            (c.conv_width,),
            padding="SAME" if documents_BL is None else "VALID",
            dtype=self.dtype,
            kernel_init=c.initializer,
            name="conv",
        )
        if documents_BL is None:
            y_BLD = conv(embedded_BLD)
        else:
            y_BLD = conv(_neighbours(embedded_BLD, documents_BL, c.conv_width))[:, :, 0]
        y_BLD = drop(y_BLD, c.dropout_rate, dropout, CONV_SITE)
        y_BLD = ACTIVATIONS[c.conv_activation](y_BLD)
        return norm(c, self.dtype, name="norm")(x_BLD + y_BLD)


def _neighbours(x_BLD: jax.Array, documents_BL: jax.Array, width: int) -> jax.Array:
    """Returns each place with those around it, 0 for other documents' and none.

    [B, L, width, D]: what a convolution without padding makes one state of.
    """
    half, length = width // 2, documents_BL.shape[1]
    x_BMD = jnp.pad(x_BLD, ((0, 0), (half, half), (0, 0)))
    documents_BM = jnp.pad(documents_BL, ((0, 0), (half, half)))
    around = lambda x: jnp.stack([x[:, i : i + length] for i in range(width)], axis=2)
    same_BLX = around(documents_BM) == documents_BL[:, :, None]
    return around(x_BMD) * same_BLX[..., None]
