"""Scores by distance: what relative positions of every kind are built of.

A table by distance has R = L + M - 1 rows for L queries and M keys, from the
distance M - 1 (the last query, the first key) down to 1 - L. The queries are the
last L places of M, where the first M - L belong to a memory.

Shapes: B batch, L queries, M keys, P chosen queries, R distances, H heads, K columns
of a head; W blocks of keys.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from encoderjax.models.sight import cut

_KEYS = 128  # keys whose scores of all distances exist at once


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


def rows_for(
    table: jax.Array, first: int | jax.Array, queries: int, keys: int, axis: int = 0
) -> jax.Array:
    """Returns the rows of a table by distance that a run of queries needs.

    They are a table of its own, for the `queries` places from `first` on: L + M - 1
    rows.
    """
    count = queries + keys - 1
    return cut(table, table.shape[axis] - count - first, count, axis)


def query_scores(
    q_BLHK: jax.Array, table: jax.Array, keys: int, places_BP: jax.Array | None = None
) -> jax.Array:
    """Returns q . table[distance] as float32 [B, H, L, M].

    Args:
      q_BLHK: the queries; at the places `places_BP`, or at all that the table is for.
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
    k_BMHK: jax.Array, table_RHK: jax.Array, places_BP: jax.Array | None = None
) -> jax.Array:
    """Returns k . table[distance] as float32 [B, H, L, M].

    The L queries are all that the table is for, or those at P places.
    """
    batch, keys, *head = k_BMHK.shape
    if places_BP is not None:
        return _key_scores_at(k_BMHK, table_RHK, places_BP)
    queries = len(table_RHK) - keys + 1
    # A key needs as many distances as there are queries. In blocks of as many keys they
    # are twice that; with all keys at once, they would be keys + queries.
    size = queries if keys % queries == 0 else keys
    # Seen from the keys, distances run the other way.
    rows = [table_RHK[i : i + size + queries - 1][::-1] for i in range(0, keys, size)]
    raw_BHWMR = jnp.einsum(
        "bwmhk,wrhk->bhwmr",
        k_BMHK.reshape(batch, -1, size, *head),
        jnp.stack(rows),
        preferred_element_type=jnp.float32,
    )
    by_query = jnp.moveaxis(skew(raw_BHWMR), -1, 2)
    return by_query.reshape(*by_query.shape[:3], keys)


def _key_scores_at(
    k_BMHK: jax.Array, table_RHK: jax.Array, places_BP: jax.Array
) -> jax.Array:
    """Returns k . table[distance] of chosen queries, float32 [B, H, P, M].

    Each key is multiplied by the whole table, some keys at a time: [B, H, M, R] would
    be the largest array of a model.
    """
    keys = k_BMHK.shape[1]
    size = next(size for size in range(min(keys, _KEYS), 0, -1) if keys % size == 0)

    @functools.partial(jax.checkpoint, prevent_cse=False)
    def some(first: jax.Array) -> jax.Array:
        raw_BHTR = jnp.einsum(
            "bthk,rhk->bhtr",
            cut(k_BMHK, first, size),
            table_RHK,
            preferred_element_type=jnp.float32,
        )
        rows_BPM = rows_at(places_BP, len(table_RHK), keys)
        rows_BTP = jnp.swapaxes(cut(rows_BPM, first, size, axis=2), 1, 2)
        return jnp.take_along_axis(raw_BHTR, rows_BTP[:, None], axis=-1)

    scores_WBHTP = jax.lax.map(some, np.arange(0, keys, size, dtype=np.int32))
    scores_BHPWT = jnp.moveaxis(scores_WBHTP, (0, 3), (3, 4))
    return scores_BHPWT.reshape(*scores_BHPWT.shape[:3], keys)


def rows_at(places_BP: jax.Array, rows: int, keys: int) -> jax.Array:
    """Returns which row of a table by distance each query takes for each key."""
    queries = rows - keys + 1
    return jnp.arange(keys) - places_BP[:, :, None] + queries - 1
