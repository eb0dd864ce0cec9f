"""Cross-entropy over the vocabulary, without the scores of all of it at once.

Few scores are simply made. Many are made in chunks of the vocabulary, and again for the
gradients: what exists of them at once is about as large as the states that they are
made of. They are chunks of what each device holds of the table, and only sums over the
vocabulary pass between devices, never scores.

Shapes: B batch, P slots, S = B x P of one device, E width of the tables, V vocabulary
(of one device), C columns of a chunk.
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jax.sharding import PartitionSpec

from encoderjax.models.dropout import DropoutKey, gumbel
from encoderjax.models.vocabulary import VocabularyScores

# Scores of one device from which on chunks are used, 64 MiB. On two cores, forward and
# backward over 30,522 tokens: 640 slots of width 128 take 0.8 of the time and 8 MB
# instead of 156, of width 768 1.15 of it and 8 MB instead of 78; 160 of them 1.2.
MANY_SCORES = 1 << 24
_COLUMNS = 1024  # tokens scored at once; 2,048 are as fast, more are slower

_ROWS = PartitionSpec(("data", "fsdp"))
_TABLE = PartitionSpec("model")


class Predicted(NamedTuple):
    """What is made of the scores of each slot.

    Attributes:
      loss_BP: the cross-entropy of the label.
      hit_BP: float32, 1 where the label has the largest score.
      drawn_BP: int32, a token drawn from them; None unless asked for.
    """

    loss_BP: jax.Array
    hit_BP: jax.Array
    drawn_BP: jax.Array | None = None


@struct.dataclass
class Draw:
    """How tokens are drawn: from the softmax of scores / temperature.

    The noise is a hash of row, slot and token: the same on any number of devices,
    microbatches and chunks.
    """

    key: DropoutKey
    temperature: float = struct.field(pytree_node=False, default=1.0)


def predicted(
    scores: VocabularyScores,
    labels_BP: jax.Array,
    draw: Draw | None = None,
    columns: int | None = None,
) -> Predicted:
    """Returns loss and hit of each slot, and a token drawn for it where asked for.

    `columns` is how many tokens are scored at once; by default what pays.
    """
    columns = _columns(scores) if columns is None else columns
    if columns is None:
        logits_BPV = scores.whole()
        loss_BP = optax.softmax_cross_entropy_with_integer_labels(logits_BPV, labels_BP)
        label_BP1 = jnp.take_along_axis(logits_BPV, labels_BP[..., None], axis=-1)
        # Not by argmax, which takes as long as the product that gives the scores.
        hit_BP = label_BP1[..., 0] >= jnp.max(logits_BPV, axis=-1)
        drawn_BP = None if draw is None else draw_tokens(logits_BPV, draw)
    else:
        table_VE, bias_V = scores.table_VE, scores.bias_V
        if bias_V is None:
            bias_V = jnp.zeros(len(table_VE))
        chunked: Any = _in_chunks  # what custom_vjp makes has no type
        loss_BP, hit_BP, drawn_BP = chunked(
            columns,
            scores.x_BPE,
            # Cast here, so that what is gathered from other devices is small.
            table_VE.astype(scores.x_BPE.dtype),
            bias_V,
            labels_BP,
            draw,
        )
    return Predicted(loss_BP, hit_BP.astype(jnp.float32), drawn_BP)


def draw_tokens(logits_BPV: jax.Array, draw: Draw) -> jax.Array:
    """Returns a token for each slot; no gradient passes."""
    scores_BPV = jax.lax.stop_gradient(logits_BPV) / draw.temperature
    return jnp.argmax(scores_BPV + gumbel(draw.key, logits_BPV.shape), axis=-1)


def _mesh_size(*axes: str) -> int:
    mesh = jax.sharding.get_abstract_mesh()
    return 1 if mesh.empty else math.prod(mesh.shape[axis] for axis in axes)


def _columns(scores: VocabularyScores) -> int | None:
    """Returns how wide chunks are; None = the scores are few, and made at once."""
    slots = math.prod(scores.x_BPE.shape[:2]) // _mesh_size("data", "fsdp")
    size = len(scores.table_VE) // _mesh_size("model")
    if slots * size < MANY_SCORES:
        return None
    return min(size, _COLUMNS)


# ---- on all devices ----


def _on_mesh(function: Any, in_specs: tuple, out_specs: Any) -> Any:
    """Returns a function that each device runs on its own rows and tokens."""
    if jax.sharding.get_abstract_mesh().empty:
        return function
    return jax.shard_map(
        function, in_specs=in_specs, out_specs=out_specs, check_vma=False
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _in_chunks(columns: int, x_BPE, table_VE, bias_V, labels_BP, draw: Draw | None):
    """Returns the loss, whether the label is best, and a drawn token of each slot."""
    outputs, _ = _forward(columns, x_BPE, table_VE, bias_V, labels_BP, draw)
    return outputs


def _forward(columns: int, x_BPE, table_VE, bias_V, labels_BP, draw: Draw | None):
    by_row = None
    if draw is not None:
        key = DropoutKey(key=PartitionSpec(), rows_B=_ROWS)  # pyright: ignore
        by_row = dataclasses.replace(draw, key=key)
    run = _on_mesh(
        functools.partial(_sums, columns),
        (_ROWS, _TABLE, _TABLE, _ROWS, by_row),
        (_ROWS, _ROWS, _ROWS, None if draw is None else _ROWS),
    )
    total_BP, label_BP, hit_BP, drawn_BP = run(x_BPE, table_VE, bias_V, labels_BP, draw)
    kept = (x_BPE, table_VE, bias_V, labels_BP, total_BP)
    return (total_BP - label_BP, hit_BP, drawn_BP), kept


def _backward(columns: int, kept: tuple, gradients: tuple):
    of_table = PartitionSpec("model", "fsdp")
    run = _on_mesh(
        functools.partial(_gradients, columns),
        (_ROWS, _TABLE, _TABLE, _ROWS, _ROWS, _ROWS),
        (_ROWS, of_table, _TABLE),
    )
    return *run(*kept, gradients[0]), None, None


_in_chunks.defvjp(_forward, _backward)


# ---- on one device ----


def _sums(columns: int, x_BPE, table_VE, bias_V, labels_BP, draw: Draw | None):
    """Returns the log of the sum over all tokens, the label's score, its hit, a draw.

    All [B, P].
    """
    shape = labels_BP.shape
    chunk = _Chunks(columns, x_BPE, table_VE, bias_V, labels_BP)
    lowest_S = jnp.full(math.prod(shape), -jnp.inf)
    nothing_S = jnp.zeros(math.prod(shape))
    none_S = jnp.zeros(math.prod(shape), jnp.int32)

    def add(state, place):
        largest_S, sum_S, label_S, drawn = state
        logits_SC, label_SC, first = chunk.logits(place)
        new_S = jnp.maximum(largest_S, jnp.max(logits_SC, axis=1))
        sum_S *= jnp.exp(largest_S - new_S)
        sum_S += jnp.sum(jnp.exp(logits_SC - new_S[:, None]), axis=1)
        label_S += jnp.sum(jnp.where(label_SC, logits_SC, 0.0), axis=1)
        if draw is not None:
            noise = gumbel(draw.key, (*shape, columns), first_column=first)
            noisy_SC = logits_SC / draw.temperature + noise.reshape(logits_SC.shape)
            drawn = _better(drawn, noisy_SC, first)
        return (new_S, sum_S, label_S, drawn), None

    drawn = None if draw is None else (lowest_S, none_S)
    state = (lowest_S, nothing_S, nothing_S, drawn)
    state, _ = jax.lax.scan(add, state, chunk.places)
    largest_S, sum_S, label_S, drawn = state
    if _mesh_size("model") > 1:
        of_all_S = jax.lax.pmax(largest_S, "model")
        sum_S = jax.lax.psum(sum_S * jnp.exp(largest_S - of_all_S), "model")
        label_S, largest_S = jax.lax.psum(label_S, "model"), of_all_S
    total_S = largest_S + jnp.log(sum_S)
    outputs = (total_S, label_S, label_S >= largest_S, drawn and _best_of_all(drawn))
    return jax.tree.map(lambda x_S: x_S.reshape(shape), outputs)


def _gradients(columns: int, x_BPE, table_VE, bias_V, labels_BP, total_BP, gradient_BP):
    """Returns the gradients of states, table and bias.

    Here tokens come first: so neither product has to turn the scores, which takes a CPU
    as long as multiplying them.
    """
    chunk = _Chunks(columns, x_BPE, table_VE, bias_V, labels_BP)
    total_S, gradient_S = total_BP.reshape(-1), gradient_BP.reshape(-1)

    def add(state, place):
        by_x_ES, by_table_VE, by_bias_V = state
        logits_CS, label_CS, _ = chunk.logits(place, tokens_first=True)
        by_logits_CS = (jnp.exp(logits_CS - total_S) - label_CS) * gradient_S
        by_bias_V = _added(by_bias_V, jnp.sum(by_logits_CS, axis=1), place[0])
        by_logits_CS = by_logits_CS.astype(x_BPE.dtype)
        product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
        by_x_ES += product("cs,ce->es", by_logits_CS, chunk.table(place))
        by_table_CE = product("cs,se->ce", by_logits_CS, chunk.x_SE)
        return (by_x_ES, _added(by_table_VE, by_table_CE, place[0]), by_bias_V), None

    zeros = lambda x: jnp.zeros(x.shape, jnp.float32)
    state = tuple(map(zeros, (chunk.x_SE.T, table_VE, bias_V)))
    (by_x_ES, by_table_VE, by_bias_V), _ = jax.lax.scan(add, state, chunk.places)
    by_x_ES = _of_all(by_x_ES, "model")
    by_bias_V = _of_all(by_bias_V, "data", "fsdp")
    by_table_VE = _of_all(by_table_VE, "data")
    if _mesh_size("fsdp") > 1:
        # Each device gets the columns that it keeps of the table.
        by_table_VE = jax.lax.psum_scatter(
            by_table_VE, "fsdp", scatter_dimension=1, tiled=True
        )
    by_x_BPE = by_x_ES.T.reshape(x_BPE.shape).astype(x_BPE.dtype)
    return by_x_BPE, by_table_VE.astype(table_VE.dtype), by_bias_V


def _of_all(x: jax.Array, *axes: str) -> jax.Array:
    """Returns the sum over axes of the mesh; over one device it would be a copy."""
    several = tuple(axis for axis in axes if _mesh_size(axis) > 1)
    return jax.lax.psum(x, several) if several else x


class _Chunks:
    """The scores of one device, a chunk of its tokens at a time.

    Where chunks do not fill the vocabulary, the last one begins earlier and leaves out
    what the one before had.

    Attributes:
      places: [chunks, 2], where each begins, and its first new token.
    """

    def __init__(self, columns: int, x_BPE, table_VE, bias_V, labels_BP):
        size = len(table_VE)
        self.columns = columns
        self.x_SE = x_BPE.reshape(-1, x_BPE.shape[-1])
        self.table_VE, self.bias_V = table_VE, bias_V
        self.labels_S = labels_BP.reshape(-1)
        new = np.arange(0, size, columns, dtype=np.int32)
        self.places = np.stack([np.minimum(new, size - columns), new], axis=1)
        self.before = 0  # tokens of the devices before this one
        if _mesh_size("model") > 1:
            self.before = jax.lax.axis_index("model") * size

    def table(self, place: jax.Array) -> jax.Array:
        """Returns the rows [C, E] of a chunk."""
        return jax.lax.dynamic_slice_in_dim(self.table_VE, place[0], self.columns)

    def logits(
        self, place: jax.Array, tokens_first: bool = False
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Returns scores [S, C], where the labels are, and the first token's number.

        Scores and labels are [C, S] where tokens come first.
        """
        table_CE = self.table(place)
        bias_C = jax.lax.dynamic_slice_in_dim(self.bias_V, place[0], self.columns)
        token_C = place[0] + jnp.arange(self.columns)
        new_C, label_S = token_C >= place[1], self.labels_S - self.before
        product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
        if tokens_first:
            logits = product("ce,se->cs", table_CE, self.x_SE)
            bias, token, new = (x_C[:, None] for x_C in (bias_C, token_C, new_C))
        else:
            logits = product("se,ce->sc", self.x_SE, table_CE)
            bias, token, new = bias_C, token_C, new_C
            label_S = label_S[:, None]
        logits = jnp.where(new, logits + bias, -jnp.inf)
        return logits, (token == label_S) & new, place[0] + self.before


def _better(best: tuple, scores_SC: jax.Array, first: jax.Array) -> tuple:
    """Returns the largest score so far and its token; the first of equal ones."""
    score_S, token_S = best
    here_S = jnp.max(scores_SC, axis=1)
    at_S = first + jnp.argmax(scores_SC, axis=1).astype(jnp.int32)
    better_S = here_S > score_S
    return jnp.where(better_S, here_S, score_S), jnp.where(better_S, at_S, token_S)


def _best_of_all(best: tuple) -> jax.Array:
    """Returns the token with the largest score on all devices."""
    score_S, token_S = best
    if _mesh_size("model") == 1:
        return token_S
    at_most = jnp.iinfo(jnp.int32).max
    is_best_S = score_S == jax.lax.pmax(score_S, "model")
    return jax.lax.pmin(jnp.where(is_best_S, token_S, at_most), "model")


def _added(total: jax.Array, part: jax.Array, first: jax.Array) -> jax.Array:
    """Returns the total with `part` added from row `first` on."""
    old = jax.lax.dynamic_slice_in_dim(total, first, len(part))
    return jax.lax.dynamic_update_slice_in_dim(total, old + part, first, axis=0)
