"""Attention that never holds its scores: splash on TPU, cuDNN on GPU.

Neither drops weights nor adds scores by distance. Padding, which nothing reads, gets 0.

Shapes: B batch, L length, H heads, K columns of a head.
"""

import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel,
    splash_attention_mask,
)
from jax.sharding import PartitionSpec

from encoderjax.models.compute import Kernel
from encoderjax.models.sight import Sight

# What a layer keeps of a kernel where it makes most else again.
KEPT_NAME = "attention"

# Shorter rows have scores no larger than what the feed-forward block holds: for a head
# of 64 columns, a quarter of the length in float32 beside four widths in bfloat16.
_FROM = 256
_LANES = 128  # what a block must be a multiple of
_LARGEST_BLOCK = 512  # a step of the grid costs about as much as its arithmetic
_HEADS = PartitionSpec(("data", "fsdp"), None, "model")
_ROWS = PartitionSpec(("data", "fsdp"))


def kernel_for(
    asked: Kernel, q_BLHK: jax.Array, *, local: bool, chosen: bool, dropped: bool
) -> Kernel:
    """Returns the kernel that is asked for, or `xla` where it cannot be had.

    Args:
      local: whether keys are seen through a window.
      chosen: whether the queries are those of some places.
      dropped: whether weights are dropped.
    """
    length, width = q_BLHK.shape[1], q_BLHK.shape[3]
    if chosen or dropped or length < _FROM:
        return "xla"
    # cuDNN wants whole vectors and pairs of rows, and knows no windows to both sides.
    if asked == "cudnn" and (local or length % 2 or width % 8 or width > 128):
        return "xla"
    return asked


def splash(
    q_BLHK: jax.Array,
    k_BLHK: jax.Array,
    v_BLHK: jax.Array,
    sight: Sight,
    window: int | None = None,
    *,
    interpret: bool = False,
) -> jax.Array:
    """Returns attention [B, L, H, K] to all keys, or to those in the window.

    Each device has its own rows and heads. `interpret` runs anywhere, slowly.
    """
    own_BL, theirs_BL = _segments(sight, q_BLHK.shape[:2])
    local = functools.partial(_splash, window=window, interpret=interpret)
    if not jax.sharding.get_abstract_mesh().empty:
        local = jax.shard_map(
            local,
            in_specs=(_HEADS, _HEADS, _HEADS, _ROWS, _ROWS),
            out_specs=_HEADS,
            check_vma=False,  # the kernel does not say how its outputs vary
        )
    scaled_BLHK = q_BLHK * float(q_BLHK.shape[-1] ** -0.5)
    mixed_BLHK = local(scaled_BLHK, k_BLHK, v_BLHK, own_BL, theirs_BL)
    return _without_padding(mixed_BLHK, sight)


def _segments(sight: Sight, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """Returns numbers of queries and keys, which see each other where they agree."""
    ones_BL = jnp.ones(shape, jnp.int32)
    own_BL = ones_BL if sight.own_BL is None else sight.own_BL
    theirs_BL = ones_BL if sight.theirs_BM is None else sight.theirs_BM
    if sight.keys_BM is not None:
        theirs_BL = jnp.where(sight.keys_BM, theirs_BL, -1)
    return own_BL, theirs_BL


def _splash(
    q_BLHK, k_BLHK, v_BLHK, own_BL, theirs_BL, *, window: int | None, interpret: bool
) -> jax.Array:
    """Runs the kernel on what one device has."""
    length, heads = q_BLHK.shape[1:3]
    padding = -length % _LANES
    filled = length + padding
    by_length = lambda x: jnp.pad(x, ((0, 0), (0, padding), *((0, 0),) * (x.ndim - 2)))
    by_head = lambda x_BLHK: jnp.swapaxes(by_length(x_BLHK), 1, 2)
    ids = splash_attention_kernel.SegmentIds(
        q=by_length(own_BL),
        kv=jnp.pad(theirs_BL, ((0, 0), (0, padding)), constant_values=-1),
    )
    shape = (filled, filled)
    if window is None:
        mask = splash_attention_mask.FullMask(shape)
    else:
        reach = (window // 2, window // 2)
        mask = splash_attention_mask.LocalMask(shape, reach, offset=0)
    sizes = (_LARGEST_BLOCK, 256, _LANES)
    block = next(size for size in sizes if filled % size == 0)
    names = ("block_q", "block_kv", "block_q_dkv", "block_kv_dkv")
    names += ("block_q_dq", "block_kv_dq")
    kernel = splash_attention_kernel.make_splash_mha(
        splash_attention_mask.MultiHeadMask([mask] * heads),
        block_sizes=splash_attention_kernel.BlockSizes(**dict.fromkeys(names, block)),
        head_shards=1,
        q_seq_shards=1,
        residual_checkpoint_name=KEPT_NAME,
        interpret=interpret,
    )
    mixed_BHLK: Any = jax.vmap(kernel)(*map(by_head, (q_BLHK, k_BLHK, v_BLHK)), ids)
    return jnp.swapaxes(mixed_BHLK, 1, 2)[:, :length].astype(q_BLHK.dtype)


def cudnn(
    q_BLHK: jax.Array,
    k_BLHK: jax.Array,
    v_BLHK: jax.Array,
    sight: Sight,
    implementation: Literal["cudnn", "xla"] = "cudnn",
) -> jax.Array:
    """Returns attention [B, L, H, K] to all keys.

    `implementation` is that of `jax.nn.dot_product_attention`.
    """
    batch, length = q_BLHK.shape[:2]
    visible = sight.rows(0, length)
    if visible is not None:  # the kernel takes no row for all queries
        visible = jnp.broadcast_to(visible, (batch, 1, length, length))
    mixed_BLHK = jax.nn.dot_product_attention(
        q_BLHK,
        k_BLHK,
        v_BLHK,
        mask=visible,
        implementation=implementation,
    )
    return _without_padding(mixed_BLHK, sight)


def _without_padding(mixed_BLHK: jax.Array, sight: Sight) -> jax.Array:
    """Returns 0 where a query may see nothing: a kernel gives what it likes there."""
    if sight.keys_BM is None:
        return mixed_BLHK
    return jnp.where(sight.keys_BM[:, :, None, None], mixed_BLHK, 0)
