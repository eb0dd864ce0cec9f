"""Attention: one function, with the choice of kernel inside.

Shapes: B batch, L queries, M keys, H heads, K per-head size.
"""

import jax
import jax.numpy as jnp

from encoderjax.models.dropout import DropoutKey, drop

_ATTENTION_SITE = 0


def attend(
    q_BLHK: jax.Array,
    k_BMHK: jax.Array,
    v_BMHK: jax.Array,
    *,
    visible: jax.Array | None,
    dropout_rate: float = 0.0,
    dropout: DropoutKey | None = None,
) -> jax.Array:
    """Returns softmax(q k / sqrt(K)) v as [B, L, H, K].

    `visible` is boolean and broadcasts against [B, H, L, M]; True = may look. A
    query that may look at nothing gets the mean of all values, never a NaN.
    """
    scale = q_BLHK.shape[-1] ** -0.5
    scores_BHLM = jnp.einsum(
        "blhk,bmhk->bhlm", q_BLHK * scale, k_BMHK, preferred_element_type=jnp.float32
    )
    if visible is not None:
        lowest = jnp.finfo(jnp.float32).min
        scores_BHLM = jnp.where(visible, scores_BHLM, lowest)
    weights_BHLM = jax.nn.softmax(scores_BHLM, axis=-1).astype(v_BMHK.dtype)
    weights_BHLM = drop(weights_BHLM, dropout_rate, dropout, _ATTENTION_SITE)
    return jnp.einsum("bhlm,bmhk->blhk", weights_BHLM, v_BMHK)
