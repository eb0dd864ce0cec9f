"""Attention in XLA: whole, in blocks of queries, or through a window.

Shapes: B batch, L queries, M keys, H heads, K columns of a head; W blocks of C queries,
and T keys of a block of a local layer.
"""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from encoderjax.models.dropout import DropoutKey, drop
from encoderjax.models.layers import ATTENTION_SITE
from encoderjax.models.sight import Sight, cut, same_document

# Scores to add, float32 [B, H, C, M], of queries [B, C, H, K] of which the first stands
# at the place that is given.
Bias = Callable[[jax.Array, int | jax.Array], jax.Array]

# Queries whose scores exist at once, and from how many on they are taken so. On two
# cores, forward and backward with dropout, against the whole: at 1,024 BERT's takes
# 0.94 of the time and 59 MB instead of 143, DeBERTa's 1.06 and 107 instead of 356; at
# 512 BERT's 0.86, XLNet's 0.81, DeBERTa's 1.15. Blocks of 128 slow DeBERTa. At 512
# memory decides: no layer has to keep its weights for the gradients.
BLOCK = 256
_BLOCKED_FROM = 512


def attend(
    q_BLHK: jax.Array,
    k_BMHK: jax.Array,
    v_BMHK: jax.Array,
    *,
    visible: Sight | jax.Array | None,
    scale: float | None = None,
    bias: Bias | None = None,
    blind: Literal["zero", "mean"] = "zero",
    reach: jax.Array | None = None,
    dropout_rate: float = 0.0,
    dropout: DropoutKey | None = None,
    block: int | None = None,
) -> jax.Array:
    """Returns softmax(scale q k + bias) v as [B, L, H, K].

    `visible` says who may look at whom, as bool that broadcasts against [B, H, L, M] or
    by place. A query that may look at nothing gets 0, or the mean of all values (of
    those in `reach`, bool like `visible`) if `blind` says so; never a NaN. `scale` is
    1 / sqrt(K) unless given. Long rows are taken in blocks of queries, which are
    scored again for the gradients: memory grows with length x `block`.
    """
    length = q_BLHK.shape[1]
    sight = visible if isinstance(visible, Sight) else Sight(pairs=visible)
    scale = float(q_BLHK.shape[-1] ** -0.5) if scale is None else scale

    # Turned by hand, so that no product is left to turn what it is given: on two cores,
    # attention and its gradients take 0.94 of the time at width 256, 0.97 at 768.
    k_BHMK, v_BHMK = (x.transpose(0, 2, 1, 3) for x in (k_BMHK, v_BMHK))

    def some(q_BCHK: jax.Array, first: int | jax.Array) -> jax.Array:
        count = q_BCHK.shape[1]
        scores_BHCM = jnp.einsum(
            "bhck,bhmk->bhcm",
            (q_BCHK * scale).transpose(0, 2, 1, 3),
            k_BHMK,
            preferred_element_type=jnp.float32,
        )
        if bias is not None:
            scores_BHCM += bias(q_BCHK, first)
        near = None if reach is None else cut(reach, first, count, axis=2)
        weights_BHCM = softmax(scores_BHCM, sight.rows(first, count), blind, near)
        weights_BHCM = drop(
            weights_BHCM.astype(v_BHMK.dtype),
            dropout_rate,
            dropout,
            ATTENTION_SITE,
            first,
        )
        mixed_BHCK = jnp.einsum("bhcm,bhmk->bhck", weights_BHCM, v_BHMK)
        return mixed_BHCK.transpose(0, 2, 1, 3)

    size = _block_size(length, block)
    if size == length:
        return some(q_BLHK, 0)
    # A scan already keeps the compiler from merging the two makings.
    again = jax.checkpoint(some, prevent_cse=False)
    q_BWCHK = q_BLHK.reshape(len(q_BLHK), -1, size, *q_BLHK.shape[2:])
    firsts_W = np.arange(0, length, size, dtype=np.int32)
    _, mixed_WBCHK = jax.lax.scan(
        lambda _, given: (None, again(*given)),
        None,
        (jnp.moveaxis(q_BWCHK, 1, 0), firsts_W),
    )
    return jnp.moveaxis(mixed_WBCHK, 0, 1).reshape(q_BLHK.shape)


def _block_size(length: int, block: int | None) -> int:
    """Returns how many queries are taken at once: a divisor, or all of them."""
    if block is None and length < _BLOCKED_FROM:
        return length
    most = block or BLOCK
    size = max(size for size in range(1, most + 1) if length % size == 0)
    # A length without divisors would be taken a query at a time.
    return size if size > most // 4 else length


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
    weights = softmax(scores, visible).astype(v_BLHK.dtype)
    weights = drop(weights, dropout_rate, dropout, ATTENTION_SITE)
    mixed = jnp.einsum("bwhct,bwthk->bwchk", weights, v_BWTHK)
    return mixed.reshape(q_BLHK.shape[0], -1, *q_BLHK.shape[2:])[:, :length]


def softmax(
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
