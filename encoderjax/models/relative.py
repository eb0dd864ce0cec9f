"""Scores by distance: what relative positions of every kind are built of.

A table by distance has R = L + M - 1 rows for L queries and M keys, from the
distance M - 1 (the last query, the first key) down to 1 - L. The queries are the
last L places of M, where the first M - L belong to a memory.

Shapes: B batch, L queries, M keys, P chosen queries, R distances, H heads, K columns
of a head.
"""

import jax
import jax.numpy as jnp
import numpy as np


def distances(queries: int, keys: int) -> np.ndarray:
    """Returns place of query - place of key for each row of a table, int64 [R]."""
    return keys - 1 - np.arange(queries + keys - 1)


def skew(x: jax.Array) -> jax.Array:
    """Returns y [..., L, M] with y[i, j] = x[i, j - i + L - 1] of x [..., L, R].

    By padding and reshaping, which costs next to nothing beside a gather.
    """
    *front, queries, rows = x.shape
    keys = rows - queries + 1
    none = [(0, 0)] * len(front)
    # Read in rows one shorter than they are, each row begins one further left.
    flat = jnp.pad(x, (*none, (0, 0), (0, 1))).reshape(*front, -1)
    flat = jnp.pad(flat, (*none, (0, queries)))
    flat = flat[..., queries - 1 : queries - 1 + queries * rows]
    return flat.reshape(*front, queries, rows)[..., :keys]


def query_scores(
    q_BLHK: jax.Array, table: jax.Array, keys: int, places_BP: jax.Array | None
) -> jax.Array:
    """Returns q . table[distance] as float32 [B, H, L, M].

    Args:
      q_BLHK: the queries; at the places `places_BP`, or at all.
      table: [R, H, K], or [B, R, H, K] where it differs by row of the batch.
      keys: M.
      places_BP: where the queries are, counted without the memory.
    """
    letters = "rhk" if table.ndim == 3 else "brhk"
    scores_BHLR = jnp.einsum(
        f"blhk,{letters}->bhlr", q_BLHK, table, preferred_element_type=jnp.float32
    )
    if places_BP is None:
        return skew(scores_BHLR)
    rows = rows_at(places_BP, table.shape[-3], keys)
    return jnp.take_along_axis(scores_BHLR, rows[:, None], axis=-1)


def key_scores(
    k_BMHK: jax.Array, table_RHK: jax.Array, places_BP: jax.Array | None
) -> jax.Array:
    """Returns k . table[distance] as float32 [B, H, L, M], where L = M or P."""
    keys = k_BMHK.shape[1]
    if places_BP is None:
        # Seen from the keys, distances run the other way.
        raw_BHMR = _table_products(k_BMHK, table_RHK[::-1])
        return jnp.swapaxes(skew(raw_BHMR), -1, -2)
    raw_BHMR = _table_products(k_BMHK, table_RHK)
    rows_BPM = rows_at(places_BP, table_RHK.shape[0], keys)
    rows_B1MP = jnp.swapaxes(rows_BPM, -1, -2)[:, None]
    return jnp.swapaxes(jnp.take_along_axis(raw_BHMR, rows_B1MP, axis=-1), -1, -2)


def rows_at(places_BP: jax.Array, rows: int, keys: int) -> jax.Array:
    """Returns which row of a table by distance each query takes for each key."""
    queries = rows - keys + 1
    return jnp.arange(keys) - places_BP[:, :, None] + queries - 1


def _table_products(x_BMHK: jax.Array, table_RHK: jax.Array) -> jax.Array:
    return jnp.einsum(
        "bmhk,rhk->bhmr", x_BMHK, table_RHK, preferred_element_type=jnp.float32
    )
