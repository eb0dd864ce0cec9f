"""The heads over an encoder, and the model that joins both.

Shapes: B batch, L length, P predicted positions, D width, E width of the tables, V
vocabulary.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp

from encoderjax.errors import UserError
from encoderjax.models.compute import PLAIN, Compute
from encoderjax.models.config import EncoderConfig
from encoderjax.models.dropout import DropoutKey
from encoderjax.models.encoder import Encoder, Outputs
from encoderjax.models.layers import ACTIVATIONS, Table, dense, norm
from encoderjax.models.two_stream import Streams
from encoderjax.models.vocabulary import VocabularyScores

BOUNDARY_WIDTH = 200  # of SpanBERT's table of places in a span
_GENERATOR = 1 << 22  # tells the generator's dropout from that of the encoder

Sharing = Literal["all", "disentangled", "none"]
# What the encoder holds as a difference where the sharing is disentangled.
SUMMED_TABLES = ("token_embed", "position_embed")


def _activate(config: EncoderConfig, x: jax.Array) -> jax.Array:
    return ACTIVATIONS[config.head_activation or config.activation](x)


class MlmHead(nn.Module):
    """Scores of the vocabulary: a transform, then the token table and a bias."""

    config: EncoderConfig
    dtype: Any

    @nn.compact
    def __call__(
        self,
        x_BPD: jax.Array,
        table_VE: jax.Array,
        offsets_BP: jax.Array | None = None,
    ) -> VocabularyScores:
        """Returns the scores, not multiplied out.

        `offsets_BP` are the numbers of the tokens at their places; None = all first.
        """
        c = self.config
        if c.mask_slots > 1:
            if offsets_BP is None:
                offsets_BP = jnp.zeros(x_BPD.shape[:2], jnp.int32)
            # The first has no vector, so alone it is what it is without the others.
            vectors = Table(c, c.mask_slots - 1, c.width, name="offset_embed")
            vectors_BPD = vectors(jnp.maximum(offsets_BP - 1, 0)).astype(x_BPD.dtype)
            x_BPD += jnp.where(offsets_BP[:, :, None] > 0, vectors_BPD, 0)
        if c.mlm_head == "transform":
            width, use_bias = c.table_width, c.use_bias
            x_BPD = dense(c, self.dtype, width, use_bias=use_bias, name="dense")(x_BPD)
            x_BPD = norm(c, self.dtype, name="norm")(_activate(c, x_BPD))
        bias_V = None
        if c.mlm_head != "bare":
            bias_V = self.param("bias", nn.initializers.zeros, (c.vocab_size,))
        return VocabularyScores(x_BPD.astype(self.dtype), table_VE, bias_V)


class PairHead(nn.Module):
    """Two scores of a row: 0 = next (in order), 1 = not."""

    config: EncoderConfig
    dtype: Any

    @nn.compact
    def __call__(self, summary_BD: jax.Array) -> jax.Array:
        """Returns float32 [B, 2]."""
        head = dense(self.config, self.dtype, 2, name="dense")
        return head(summary_BD).astype(jnp.float32)


class DetectionHead(nn.Module):
    """A score of each token: above 0 = it is one of those that are looked for."""

    config: EncoderConfig
    dtype: Any

    @nn.compact
    def __call__(self, x_BLD: jax.Array) -> jax.Array:
        """Returns float32 [B, L]."""
        c = self.config
        if c.detection_head == "with_cls":
            x_BLD = norm(c, self.dtype, name="norm")(x_BLD + x_BLD[:, :1])
        x_BLD = _activate(c, dense(c, self.dtype, c.width, name="dense")(x_BLD))
        start = c.projection_initializer
        score = dense(c, self.dtype, 1, kernel_init=start, name="score")
        scores_BL1 = score(x_BLD)
        return scores_BL1[:, :, 0].astype(jnp.float32)


class BoundaryHead(nn.Module):
    """SpanBERT's scores of a token in a span, from the span's two neighbours."""

    config: EncoderConfig
    dtype: Any

    @nn.compact
    def __call__(
        self,
        left_BPD: jax.Array,
        right_BPD: jax.Array,
        place_BP: jax.Array,
        table_VE: jax.Array,
    ) -> VocabularyScores:
        """Returns the scores; `place_BP` is the token's number in its span."""
        c = self.config
        slots = c.boundary_slots
        places = Table(c, slots, BOUNDARY_WIDTH, name="place_embed")
        place_BPX = places(place_BP).astype(self.dtype)
        x_BPX = jnp.concatenate([left_BPD, right_BPD, place_BPX], axis=-1)
        x_BPD = _activate(c, dense(c, self.dtype, c.width, name="dense")(x_BPX))
        x_BPD = norm(c, self.dtype, name="norm")(x_BPD)
        x_BPE = dense(c, self.dtype, c.table_width, name="second_dense")(x_BPD)
        x_BPE = norm(c, self.dtype, name="second_norm")(_activate(c, x_BPE))
        bias_V = self.param("bias", nn.initializers.zeros, (c.vocab_size,))
        return VocabularyScores(x_BPE, table_VE, bias_V)


HEADS: dict[str, type[nn.Module]] = {
    "mlm": MlmHead,
    "nsp": PairHead,
    "sop": PairHead,
    "rtd": DetectionHead,
    "sbo": BoundaryHead,
    "deletion": DetectionHead,
    "missing": MlmHead,
    "insertion": DetectionHead,
}


class Heads(nn.Module):
    """The chosen heads, under their names in the parameter tree."""

    config: EncoderConfig
    names: tuple[str, ...]
    dtype: Any

    def setup(self):
        """Makes one submodule a name."""
        for name in self.names:
            setattr(self, name, HEADS[name](self.config, self.dtype))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generator:
    """A second encoder with an MLM head, which replaces tokens for the first.

    Attributes:
      config: of its encoder.
      sharing: `all`: it reads the first encoder's tables and norm (ELECTRA);
        `disentangled`: it has its own, and the first encoder reads the sum of its
        token and position tables, as constants, and of differences that start at 0
        (DeBERTa v3); `none`: both have their own.
    """

    config: EncoderConfig
    sharing: Sharing = "all"

    def __post_init__(self):
        if isinstance(self.config, dict):
            object.__setattr__(self, "config", EncoderConfig(**self.config))
        if self.sharing not in get_args(Sharing):
            raise UserError(
                f"generator.sharing={self.sharing!r} must be one of {get_args(Sharing)}"
            )


class EncoderModel(nn.Module):
    """An encoder and heads; parameters `encoder/...` and `heads/<name>/...`.

    Called, it returns the encoder's outputs, with `.logits` when it has one head.
    Objectives call the method of their head for just what they need. A generator has
    the same parameters under `generator/`, without the tables that it reads from the
    encoder; where the sharing is disentangled, `encoder/` has differences from them.
    """

    config: EncoderConfig
    head_names: tuple[str, ...] = ()
    dtype: Any = jnp.float32
    with_generator: Generator | None = None
    compute: Compute = PLAIN

    def setup(self):
        """Makes the encoder and the heads."""
        for name in self.head_names:
            if name not in HEADS:
                raise UserError(f"head={name!r} does not exist; choose {list(HEADS)}")
            if HEADS[name] is PairHead and not self._summarises:
                raise UserError(
                    f"head={name!r} needs model.pooler=True, or model.pair_head="
                    "'raw_cls'"
                )
        self.encoder = Encoder(self.config, self.dtype, self.compute)
        if self.head_names:
            self.heads = Heads(self.config, self.head_names, self.dtype)
        if self.with_generator is not None:
            config = self.with_generator.config
            self.generator = EncoderModel(
                config, ("mlm",), self.dtype, compute=self.compute
            )

    def _shares(self, sharing: Sharing) -> bool:
        return self.with_generator is not None and (
            self.with_generator.sharing == sharing
        )

    @property
    def _summarises(self) -> bool:
        return self.config.pooler or self.config.pair_head == "raw_cls"

    def __call__(
        self,
        ids_BL: jax.Array,
        mask_BL: jax.Array | None = None,
        segments_BL: jax.Array | None = None,
        *,
        layers: bool = False,
        dropout: DropoutKey | None = None,
        streams: Streams | None = None,
        documents_BL: jax.Array | None = None,
        positions_BL: jax.Array | None = None,
        languages_BL: jax.Array | None = None,
    ) -> Outputs:
        """Encodes; see `Encoder`."""
        outputs = self.encode(
            ids_BL,
            mask_BL,
            segments_BL,
            layers=layers,
            dropout=dropout,
            streams=streams,
            documents_BL=documents_BL,
            positions_BL=positions_BL,
            languages_BL=languages_BL,
        )
        if len(self.head_names) == 1:
            logits = self._logits(self.head_names[0], outputs)
            outputs = dataclasses.replace(outputs, logits=logits)
        return outputs

    def encode(
        self,
        ids_BL: jax.Array,
        mask_BL: jax.Array | None,
        segments_BL: jax.Array | None,
        **told: Any,
    ) -> Outputs:
        """Encodes without any head; see `Encoder`."""
        if self._shares("disentangled"):
            told["embedded_BLE"] = self.encoder.embed(
                ids_BL,
                jnp.zeros_like(ids_BL) if segments_BL is None else segments_BL,
                told.get("dropout"),
                told.get("positions_BL"),
                beneath=self.generator.encoder,
            )
        return self.encoder(ids_BL, mask_BL, segments_BL, **told)

    def _token_table(self) -> jax.Array:
        table_VE = self.encoder.token_embed.embedding
        if self._shares("disentangled"):
            beneath_VE = self.generator.encoder.token_embed.embedding
            table_VE += jax.lax.stop_gradient(beneath_VE)
        return table_VE

    def mlm_logits(
        self, outputs: Outputs, places_BP: jax.Array | None = None
    ) -> jax.Array:
        """Returns the scores [B, P, V] of the vocabulary; see `mlm_scores`."""
        return self.mlm_scores(outputs, places_BP).whole()

    def mlm_scores(
        self,
        outputs: Outputs,
        places_BP: jax.Array | None = None,
        table_VE: jax.Array | None = None,
        offsets_BP: jax.Array | None = None,
    ) -> VocabularyScores:
        """Returns the scores of the vocabulary at some places, or at all.

        Where there are two streams and no places, they are those of the query stream.
        `table_VE` is the token table, if not the encoder's own; `offsets_BP` the number
        of the token, where one mask stands for several.
        """
        if outputs.decoding is not None:
            if places_BP is None:
                shape = outputs.hidden.shape[:2]
                places_BP = jnp.broadcast_to(jnp.arange(shape[1]), shape)
            x_BPD = self.encoder.decode(outputs.decoding, places_BP)
        elif places_BP is not None:
            x_BPD = states_at(outputs.hidden, places_BP)
        else:
            x_BPD = outputs.hidden if outputs.query is None else outputs.query
        if table_VE is None:
            table_VE = self._token_table()
        return self.heads.mlm(x_BPD, table_VE, offsets_BP)

    def fill(
        self,
        ids_BL: jax.Array,
        mask_BL: jax.Array,
        segments_BL: jax.Array,
        places_BP: jax.Array,
    ) -> jax.Array:
        """Returns the scores [B, P, V] at masked places, from what is not masked.

        With two streams nothing looks at the masked places, and the query stream
        predicts them; else they hold a mask that all may see.
        """
        if self.config.positions != "two_stream":
            outputs = self.encode(ids_BL, mask_BL, segments_BL)
            return self.mlm_logits(outputs, places_BP)
        length = ids_BL.shape[1]
        masked_BL = jnp.any(places_BP[:, :, None] == jnp.arange(length), axis=1)
        visible_BLL = jnp.broadcast_to(~masked_BL[:, None], (*ids_BL.shape, length))
        streams = Streams(
            visible_BLL=visible_BLL,
            targets_BP=places_BP,
            reversed_B=jnp.zeros(len(ids_BL), bool),
        )
        outputs = self.encode(ids_BL, mask_BL, segments_BL, streams=streams)
        return self.mlm_logits(outputs)

    def pair_logits(self, name: str, outputs: Outputs) -> jax.Array:
        """Returns the scores [B, 2] of the pair head called `name`."""
        raw = self.config.pair_head == "raw_cls"
        return getattr(self.heads, name)(
            outputs.hidden[:, 0] if raw else outputs.pooled
        )

    def detection_logits(self, outputs: Outputs, name: str = "rtd") -> jax.Array:
        """Returns the score [B, L] of each token by the detection head called `name`.

        For having been replaced, or put in, or for standing before what is missing.
        """
        return getattr(self.heads, name)(outputs.hidden)

    def missing_scores(
        self, outputs: Outputs, places_BP: jax.Array | None = None
    ) -> VocabularyScores:
        """Returns the scores of the vocabulary for what is missing behind places."""
        x_BPD = outputs.hidden
        if places_BP is not None:
            x_BPD = states_at(x_BPD, places_BP)
        return self.heads.missing(x_BPD, self._token_table())

    def boundary_scores(
        self,
        outputs: Outputs,
        left_BP: jax.Array,
        right_BP: jax.Array,
        place_BP: jax.Array,
    ) -> VocabularyScores:
        """Returns the scores of the vocabulary for tokens in spans.

        Args:
          outputs: of the encoder.
          left_BP, right_BP: the places of the span's neighbours.
          place_BP: the token's number in its span, from 0.
        """
        return self.heads.sbo(
            states_at(outputs.hidden, left_BP),
            states_at(outputs.hidden, right_BP),
            place_BP,
            self._token_table(),
        )

    def generate(
        self,
        ids_BL: jax.Array,
        mask_BL: jax.Array | None,
        segments_BL: jax.Array | None,
        *,
        dropout: DropoutKey | None = None,
        documents_BL: jax.Array | None = None,
        positions_BL: jax.Array | None = None,
    ) -> Outputs:
        """Runs the generator's encoder; what it drops is independent of the first."""
        assert self.with_generator is not None
        if segments_BL is None:
            segments_BL = jnp.zeros_like(ids_BL)
        dropout = None if dropout is None else dropout.fold(_GENERATOR)
        embedded_BLE = None
        if self._shares("all"):
            embedded_BLE = self.encoder.embed(
                ids_BL, segments_BL, dropout, positions_BL
            )
        return self.generator.encoder(
            ids_BL,
            mask_BL,
            segments_BL,
            dropout=dropout,
            embedded_BLE=embedded_BLE,
            documents_BL=documents_BL,
            positions_BL=positions_BL,
        )

    def generator_scores(
        self, outputs: Outputs, places_BP: jax.Array | None = None
    ) -> VocabularyScores:
        """Returns the generator's scores of the vocabulary."""
        assert self.with_generator is not None
        table_VE = self.encoder.token_embed.embedding if self._shares("all") else None
        return self.generator.mlm_scores(outputs, places_BP, table_VE)

    def _logits(self, name: str, outputs: Outputs) -> jax.Array:
        if HEADS[name] is PairHead:
            return self.pair_logits(name, outputs)
        if HEADS[name] is BoundaryHead:
            # Without spans, of each token from its two neighbours.
            place_BL = jnp.broadcast_to(
                jnp.arange(outputs.hidden.shape[1]), outputs.hidden.shape[:2]
            )
            last = outputs.hidden.shape[1] - 1
            left_BL, right_BL = jnp.maximum(place_BL - 1, 0), place_BL + 1
            right_BL = jnp.minimum(right_BL, last)
            zeros_BL = jnp.zeros_like(place_BL)
            scores = self.boundary_scores(outputs, left_BL, right_BL, zeros_BL)
            return scores.whole()
        if HEADS[name] is DetectionHead:
            return self.detection_logits(outputs, name)
        if name == "missing":
            return self.missing_scores(outputs).whole()
        return self.mlm_logits(outputs)

    def touch_parameters(self, ids_BL: jax.Array) -> None:
        """Runs every part once: the method for `init`, which makes what it meets."""
        outputs = self.encoder(ids_BL)
        for name in self.head_names:
            self._logits(name, outputs)
        if self.with_generator is not None:
            self.generator_scores(self.generate(ids_BL, None, None))


def states_at(x_BLD: jax.Array, places_BP: jax.Array) -> jax.Array:
    """Returns the states [B, P, D] at the given places."""
    return jnp.take_along_axis(x_BLD, places_BP[:, :, None], axis=1)


def init_params(model: EncoderModel, key: jax.Array) -> dict:
    """Returns new parameters of `model`, encoder and heads."""
    ids_BL = jnp.zeros((1, 2), jnp.int32)
    variables = model.init(key, ids_BL, method=EncoderModel.touch_parameters)
    params = dict(variables["params"])
    generator = model.with_generator
    if generator is not None and generator.sharing == "disentangled":
        tables = summed_tables(params)
        zeros = {name: jax.tree.map(jnp.zeros_like, tables[name]) for name in tables}
        params["encoder"] = {**params["encoder"], **zeros}
    return params


def summed_tables(params: Mapping) -> dict:
    """Returns the encoder's tables that are differences from the generator's."""
    encoder, beneath = params["encoder"], params["generator"]["encoder"]
    both = (name for name in SUMMED_TABLES if name in encoder and name in beneath)
    return {name: encoder[name] for name in both}
