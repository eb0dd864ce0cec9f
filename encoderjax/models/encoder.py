"""The encoder of the BERT line.

One skeleton with a few closed slots; a family is a preset of `EncoderConfig`. Layers
are stacked and scanned (`stack.py`), so the parameter tree has one shape (a leading
layer axis under `layers/`) and compiling does not slow down with depth.

Shapes: B batch, L length, D width, E width of the tables, P places, N layers.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct

from encoderjax.errors import UserError
from encoderjax.models.attention import Context, rotation
from encoderjax.models.compute import PLAIN, Compute
from encoderjax.models.config import EncoderConfig
from encoderjax.models.disentangled import Convolution, table_span
from encoderjax.models.dropout import DropoutKey, drop
from encoderjax.models.layers import (
    EMBED_SITE,
    OUT_SITE,
    QUERY_SITE,
    Table,
    dense,
    norm,
    shard_rows,
)
from encoderjax.models.pooling import pool
from encoderjax.models.sight import Sight
from encoderjax.models.stack import Stack, apply_block, init_stack, rematerialised
from encoderjax.models.two_stream import (
    Streams,
    next_memory,
    stream_contexts,
    with_memory,
)

_QUERIES = 1 << 20  # tells the query stream's dropout from that of any layer


@struct.dataclass
class Outputs:
    """What an encoder returns.

    Attributes:
      hidden: [B, L, D] of the last layer.
      pooled: [B, D], or None without a pooler.
      layers: [N + 1, B, L, D] on request: the embeddings, then every layer; the last
        is `hidden`.
      query: [B, P, D] of the query stream, where there are two.
      memory: [N, B, M, D] for the next segment, where one is carried.
      decoding: what the mask decoder needs, where there is one.
      logits: of the head that the model was loaded with, or None.
    """

    hidden: jax.Array
    pooled: jax.Array | None = None
    layers: jax.Array | None = None
    query: jax.Array | None = None
    memory: jax.Array | None = None
    decoding: "Decoding | None" = None
    logits: jax.Array | None = None


@struct.dataclass
class Decoding:
    """What the enhanced mask decoder needs: states to look at, and how."""

    source_BLD: jax.Array
    context: Context
    dropout: DropoutKey | None
    positions_BL: jax.Array | None = None


class Encoder(nn.Module):
    """Embeddings, layers and pooler."""

    config: EncoderConfig
    dtype: Any = jnp.float32
    compute: Compute = PLAIN

    def setup(self):
        """Makes the tables here, which heads and other encoders use as well."""
        c = self.config
        pad_id = c.position_pad_id
        self.token_embed = Table(
            c, c.vocab_size, c.table_width, split="model", zero_row=pad_id
        )
        if c.num_segments and c.positions != "two_stream":
            self.segment_embed = Table(c, c.num_segments, c.table_width)
        if c.languages:
            self.language_embed = Table(c, len(c.languages), c.table_width)
        if c.embed_norm:
            self.embed_norm = norm(c, self.dtype)
        if self._has_position_table:
            rows = c.max_length + self._first_position
            self.position_embed = Table(c, rows, c.table_width, zero_row=pad_id)

    @property
    def _first_position(self) -> int:
        pad_id = self.config.position_pad_id
        return 0 if pad_id is None else pad_id + 1

    @property
    def _has_position_table(self) -> bool:
        c = self.config
        return c.positions == "learned" or c.biased_input or c.mask_decoder_layers > 0

    def _check_length(self, length: int) -> None:
        """Refuses rows that no table reaches; a lookup beyond it would give NaN."""
        c = self.config
        limited = self._has_position_table or c.positions == "relative_key"
        if limited and length > c.max_length:
            raise UserError(
                f"rows of {length} tokens are longer than model.max_length="
                f"{c.max_length}, the positions that this model knows; cut them"
            )

    @nn.compact
    def __call__(
        self,
        ids_BL: jax.Array,
        mask_BL: jax.Array | None = None,
        segments_BL: jax.Array | None = None,
        *,
        layers: bool = False,
        dropout: DropoutKey | None = None,
        streams: Streams | None = None,
        embedded_BLE: jax.Array | None = None,
        documents_BL: jax.Array | None = None,
        positions_BL: jax.Array | None = None,
        languages_BL: jax.Array | None = None,
    ) -> Outputs:
        """Encodes `ids_BL`.

        Args:
          ids_BL: int32 [B, L].
          mask_BL: bool [B, L], True for real tokens; all of them when left out.
          segments_BL: int32 [B, L], 0 for A and 1 for B; 0 when left out.
          layers: whether to return the state after every layer as well.
          dropout: the key of the masks; without one nothing is dropped.
          streams: the second stream, order and memory of `positions="two_stream"`.
          embedded_BLE: the embeddings, where another encoder's tables are shared.
          documents_BL: int32 [B, L], for rows of several documents, each in one piece:
            1, 2, ..., and 0 for padding. Tokens see their own document only.
          positions_BL: int32 [B, L], from 0 in each document, for what tells absolute
            positions; the places in the row when left out.
          languages_BL: int32 [B, L], the number of the language among
            `config.languages`; nothing of a language is added when left out.
        """
        c = self.config
        self._check_length(ids_BL.shape[1])
        mask_BL = None if mask_BL is None else mask_BL.astype(bool)
        if documents_BL is not None:
            real_BL = documents_BL > 0
            mask_BL = real_BL if mask_BL is None else mask_BL & real_BL
        if segments_BL is None:
            segments_BL = jnp.zeros_like(ids_BL)
        outside = dropout.fold(c.num_blocks) if dropout is not None else None
        if embedded_BLE is None:
            embedded_BLE = self.embed(
                ids_BL, segments_BL, dropout, positions_BL, languages_BL=languages_BL
            )
        x_BLD = embedded_BLE
        if c.embed_width is not None:
            start = c.projection_initializer
            x_BLD = dense(
                c, self.dtype, c.width, kernel_init=start, name="embed_project"
            )(x_BLD)

        content, query, memory_N = self._contexts(
            mask_BL, segments_BL, streams, outside, documents_BL, positions_BL
        )
        first = None if memory_N is None else with_memory(x_BLD, memory_N[0])
        params = self.param(
            "layers",
            lambda key: init_stack(c, self.dtype, key, x_BLD, first, content, None),
        )
        convolve = None
        if c.conv_width:
            convolution = Convolution(c, self.dtype, name="conv")
            convolve = lambda y_BLD: convolution(
                x_BLD, y_BLD, mask_BL, dropout, documents_BL
            )

        of_queries = dropout.fold(_QUERIES) if dropout is not None else None

        def blocks(h_BLD, g_BPD, params, number, kind, memory_BMD):
            """Runs one block of the content stream, and of the query stream."""
            run = lambda x, source, context, dropout: apply_block(
                c, self.dtype, params, number, x, source, context,
                dropout=dropout, kind=kind, compute=self.compute,
            )  # fmt: skip
            source_BMD = None
            if c.positions == "two_stream":
                source_BMD = with_memory(h_BLD, memory_BMD)
            y_BLD = run(h_BLD, source_BMD, content, dropout)
            if g_BPD is not None:
                g_BPD = run(g_BPD, source_BMD, query, of_queries)
            return y_BLD, g_BPD

        def step(state, params, number, kind, memory_BMD):
            """Runs the blocks of one layer, and what stands beside them."""
            h_BLD, g_BPD, _ = state
            run = rematerialised(blocks, self.compute.remat, number)
            y_BLD, g_BPD = run(h_BLD, g_BPD, params, number, kind, memory_BMD)
            next_BMD = None
            if c.memory_length:
                next_BMD = next_memory(c, h_BLD, memory_BMD)
            if kind == 0 and convolve is not None:
                y_BLD = convolve(y_BLD)
            before_BLD = h_BLD if c.mask_decoder_layers else None
            every = y_BLD if layers else None
            return (y_BLD, g_BPD, before_BLD), (every, next_BMD)

        before_BLD = x_BLD if c.mask_decoder_layers else None
        state = (x_BLD, self._query_start(query, outside), before_BLD)
        stack = Stack(c, params, self.compute.unrolled_blocks)
        state, (every_NBLD, next_NBMD) = stack.run(step, state, memory_N)
        last_BLD, g_BPD, before_BLD = state
        if every_NBLD is not None:
            every_NBLD = jnp.concatenate([x_BLD[None], every_NBLD])

        if c.norm_at == "before":
            last_BLD = norm(c, self.dtype, name="final_norm")(last_BLD)
            if every_NBLD is not None:
                every_NBLD = every_NBLD.at[-1].set(last_BLD)
        if c.positions == "two_stream":
            last_BLD = drop(last_BLD, c.dropout_rate, outside, OUT_SITE)
            if g_BPD is not None:
                g_BPD = drop(g_BPD, c.dropout_rate, of_queries, OUT_SITE)
        return Outputs(
            hidden=last_BLD,
            pooled=self._pool(last_BLD, mask_BL) if c.pooler else None,
            layers=every_NBLD,
            query=g_BPD,
            memory=next_NBMD,
            decoding=self._decoding(
                last_BLD, before_BLD, content, dropout, positions_BL
            ),
        )

    # ---- what goes in ----

    def embed(
        self,
        ids_BL: jax.Array,
        segments_BL: jax.Array,
        dropout: DropoutKey | None,
        positions_BL: jax.Array | None = None,
        beneath: "Encoder | None" = None,
        languages_BL: jax.Array | None = None,
    ) -> jax.Array:
        """Returns the embeddings [B, L, E], before they are projected.

        The rows of `beneath`, of its tokens and positions, are added as constants.
        """
        c = self.config
        x_BLE = shard_rows(self.token_embed(ids_BL))
        if beneath is not None:
            x_BLE += jax.lax.stop_gradient(shard_rows(beneath.token_embed(ids_BL)))
        if c.num_segments and c.positions != "two_stream":
            # A table of one row, such as RoBERTa's, tells no segments apart.
            one = c.num_segments == 1
            x_BLE += self.segment_embed(0 * segments_BL if one else segments_BL)
        if c.languages:
            _ = self.language_embed.embedding  # made, though a text may tell none
            if languages_BL is not None:
                x_BLE += self.language_embed(languages_BL)
        if c.positions == "learned" or c.biased_input:
            rows_BL = self._positions(ids_BL, positions_BL)
            x_BLE += self.position_embed(rows_BL)
            if beneath is not None and beneath._has_position_table:
                x_BLE += jax.lax.stop_gradient(beneath.position_embed(rows_BL))
        x_BLE = shard_rows(x_BLE)
        if c.embed_norm:
            x_BLE = self.embed_norm(x_BLE)
        outside = dropout.fold(c.num_blocks) if dropout is not None else None
        return drop(x_BLE.astype(self.dtype), c.dropout_rate, outside, EMBED_SITE)

    def _positions(
        self, ids_BL: jax.Array, positions_BL: jax.Array | None
    ) -> jax.Array:
        """Returns the row of the position table for each place, [L] or [B, L]."""
        pad_id = self.config.position_pad_id
        if pad_id is None:
            return jnp.arange(ids_BL.shape[1]) if positions_BL is None else positions_BL
        if positions_BL is not None:
            rows_BL = positions_BL + self._first_position
            return jnp.where(ids_BL == pad_id, pad_id, rows_BL)
        counts_BL = (ids_BL != pad_id).astype(jnp.int32)
        return jnp.cumsum(counts_BL, axis=1) * counts_BL + pad_id

    # ---- what the layers are told ----

    def _contexts(
        self,
        mask_BL,
        segments_BL,
        streams: Streams | None,
        dropout: DropoutKey | None,
        documents_BL,
        positions_BL,
    ) -> tuple[Context, Context | None, jax.Array | None]:
        """Returns what each stream is told, and the memory."""
        c = self.config
        length = segments_BL.shape[1]
        if c.positions == "two_stream":
            streams = Streams() if streams is None else streams
            told = stream_contexts(
                c, streams, mask_BL, segments_BL, documents_BL, dropout
            )
            return *told, streams.memory_NBMD

        rotations = table = None
        if c.positions == "rope":
            rotations = (
                rotation(length, c.head_width, c.rope_theta, positions_BL),
                rotation(length, c.head_width, c.local_rope_theta, positions_BL),
            )
        if c.positions == "disentangled":
            size = 2 * table_span(c)
            distance_embed = Table(c, size, c.width, name="distance_embed")
            table = distance_embed(jnp.arange(size))
            if c.relative_norm:
                table = norm(c, self.dtype, name="distance_norm")(table)
        sight = Sight(
            keys_BM=mask_BL,
            # In DeBERTa padding looks at nothing.
            queries_BL=mask_BL if c.positions == "disentangled" else None,
            own_BL=documents_BL,
            theirs_BM=documents_BL,
        )
        context = Context(visible=sight, rotations=rotations, table=table)
        return context, None, None

    def _query_start(
        self, query: Context | None, dropout: DropoutKey | None
    ) -> jax.Array | None:
        """Returns the query stream before the first layer: one vector everywhere."""
        c = self.config
        if c.positions != "two_stream":
            return None
        start_D = self.param("query_embed", c.initializer, (c.width,))
        if query is None:
            return None
        assert query.places_BP is not None
        shape = (*query.places_BP.shape, c.width)
        g_BPD = jnp.broadcast_to(start_D.astype(self.dtype), shape)
        return drop(g_BPD, c.dropout_rate, dropout, QUERY_SITE)

    # ---- what comes out ----

    def _pool(self, x_BLD: jax.Array, mask_BL: jax.Array | None) -> jax.Array:
        c = self.config
        x_BD = pool(x_BLD, mask_BL, c.summary)
        return jnp.tanh(dense(c, self.dtype, c.width, name="pooler")(x_BD))

    # ---- the enhanced mask decoder ----

    def _decoding(
        self,
        last_BLD,
        before_BLD,
        context: Context,
        dropout: DropoutKey | None,
        positions_BL: jax.Array | None,
    ) -> Decoding | None:
        c = self.config
        if not c.mask_decoder_layers:
            return None
        _ = self.position_embed.embedding  # made, though only `decode` reads it
        source_BLD = before_BLD if c.mask_decoder_shared else last_BLD
        if not c.mask_decoder_shared:
            inputs = (source_BLD, None, context, None)
            blocks = c.mask_decoder_layers
            self.param(
                "decoder_layers",
                lambda key: init_stack(c, self.dtype, key, *inputs, blocks=blocks),
            )
        return Decoding(source_BLD, context, dropout, positions_BL)

    def decode(self, decoding: Decoding, places_BP: jax.Array) -> jax.Array:
        """Returns what the mask decoder makes of the places, [B, P, D].

        The first query is the state below, told its absolute position; the states that
        it looks at stay the same.
        """
        c = self.config
        source_BLD, rows_BP1 = decoding.source_BLD, places_BP[:, :, None]
        x_BPD = jnp.take_along_axis(source_BLD, rows_BP1, axis=1)
        positions_BP = places_BP
        if decoding.positions_BL is not None:
            positions_BP = jnp.take_along_axis(decoding.positions_BL, places_BP, axis=1)
        rows_BP = positions_BP + self._first_position
        x_BPD += self.position_embed(rows_BP).astype(self.dtype)
        context = dataclasses.replace(
            decoding.context,
            visible=decoding.context.visible.at(places_BP),
            places_BP=places_BP,
        )
        block = lambda x_BPD, source_BLD, params, number, kind: apply_block(
            c, self.dtype, params, number, x_BPD, source_BLD, context,
            dropout=decoding.dropout, kind=kind, compute=self.compute,
        )  # fmt: skip
        layers = self.get_variable("params", "layers")
        own = self.get_variable("params", "decoder_layers")
        for i in range(c.mask_decoder_layers):
            if c.mask_decoder_shared:
                params = Stack(c, layers).at(c.num_blocks - 1)
            else:
                params = jax.tree.map(lambda leaf, i=i: leaf[i], own)
            number = c.num_blocks + 1 + i
            run = rematerialised(block, self.compute.remat, number)
            x_BPD = run(x_BPD, source_BLD, params, number, c.num_blocks - 1)
        return x_BPD
