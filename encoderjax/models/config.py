"""The sizes and slots of an encoder: what a family is a preset of."""

import dataclasses
import typing
from typing import Literal

import jax

from encoderjax.errors import UserError

Activation = Literal["gelu", "gelu_tanh", "relu", "silu", "tanh"]

_AT_LEAST_1 = "vocab_size num_layers width num_heads mlp_width max_length layer_groups"
_AT_LEAST_1 += " inner_layers global_every boundary_slots mask_slots"
_AT_LEAST_0 = "num_segments position_buckets conv_width mask_decoder_layers"
_AT_LEAST_0 += " memory_length reuse_length clamp_length"
_RATES = "dropout_rate attention_dropout_rate inner_dropout_rate"


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Sizes and slots of an encoder. The defaults are BERT's.

    Attributes:
      vocab_size: rows of the token table; at least the tokenizer's vocabulary.
      max_length: the longest row; rows of a position table, where there is one.
      embed_width: of the tables, projected to `width`; None = `width`, no projection.
      num_segments: rows of the segment table; 0 = none.
      languages: that a table of their embeddings tells apart, added to the tokens'
        (XLM); () = none.
      norm_at: whether each block is normalised `after` it is added, or `before` it.
      norm_bias, use_bias, key_bias: which norms and projections have biases.
      embed_norm: whether the embeddings are normalised.
      mlp: `dense`, or `gated` (GeGLU: the activation of one half times the other).
      activation: `gelu` is the exact (erf) form that PyTorch weights are used with,
        `gelu_tanh` the approximation that google-bert trained with.
      head_activation: of the heads; None = `activation`.
      sharing: which weights the layers share (ALBERT: all).
      layer_groups: into how many runs of layers the shared weights fall.
      inner_layers: how often a layer repeats itself with weights of its own.
      window: how many keys a local layer sees, half of them on each side; None = all.
      global_every: layers 0, n, 2n, ... see all keys in spite of `window`.
      dropout_rate: of the embeddings and of what each block adds to the states.
      attention_dropout_rate, inner_dropout_rate: of the weights of attention, and
        inside the feed-forward block.
      attention_out_dropout_rate: of what attention adds; None = `dropout_rate`.

      positions: how order is told:
        learned        a table of absolute positions, added to the embeddings (BERT);
        rope           queries and keys rotated by their positions (ModernBERT);
        relative_key   a trained table by distance in the scores (notes on BERT);
        disentangled   content-position and position-content scores (DeBERTa);
        two_stream     Transformer-XL's scores by distance, segments too (XLNet).
      position_pad_id: positions count the tokens other than this one, and begin one
        above it (RoBERTa: 1, so from 2); None = every place counts, from 0. Its rows
        of both tables start at 0.
      rope_theta, local_rope_theta: the bases of the rotation, by kind of layer.

      position_terms, position_buckets, max_distance: DeBERTa's score terms; logarithmic
        buckets on each side (0 = one row a distance); the distance from which all
        further ones are alike (None = `max_length`).
      share_position_projections: whether positions are projected like content.
      relative_norm: whether the table of distances is normalised.
      biased_input: whether absolute positions are added to the embeddings as well.
      score_combination: `sum` of the terms, or `product` of the softmax over content
        and the softmax over positions (notes on DeBERTa).
      conv_width, conv_activation: a convolution beside the first layer (v2 xlarge).
      mask_decoder_layers, mask_decoder_shared: the enhanced mask decoder: how many
        layers, and whether they are the encoder's last one again; 0 = none.

      memory_length, reuse_length: XLNet's states carried to the next segment: how many,
        and how many of the present ones are taken (0 = all).
      bidirectional_data: whether the second half of a batch is reversed text, unless
        the call says which rows are.
      clamp_length: beyond which distances are alike; 0 = never.

      mlm_head: `transform` (dense, activation, norm, then the token table and a bias),
        `tied` (table and bias) or `bare` (table alone).
      mask_slots: how many tokens the head predicts at one place (notes on SpanBERT):
        the first from the state, each other from the state and a vector of its number.
      pair_head: on the `pooled` first token, or on the `raw_cls` state.
      detection_head: of replaced tokens: ELECTRA's, or DeBERTa-v3's that adds [CLS].
      boundary_slots: how far into a span the boundary objective predicts.
      pooler: whether there is a dense tanh layer over the `summary` token.
      init: a normal distribution, cut off at two standard deviations or not.
      init_projection: of the tables' projection and the detection head's scores: as
        everything else, or Glorot's uniform (ELECTRA: what TensorFlow does untold).
      scaled_out_init: whether what adds to the states starts smaller, by the square
        root of how often that happens (Megatron, ModernBERT).
    """

    vocab_size: int
    num_layers: int
    width: int
    num_heads: int
    mlp_width: int
    max_length: int = 512
    embed_width: int | None = None
    num_segments: int = 2
    languages: tuple[str, ...] = ()
    norm_at: Literal["after", "before"] = "after"
    norm_eps: float = 1e-12
    norm_bias: bool = True
    use_bias: bool = True
    key_bias: bool = True
    embed_norm: bool = True
    mlp: Literal["dense", "gated"] = "dense"
    activation: Activation = "gelu"
    head_activation: Activation | None = None
    sharing: Literal["none", "attention", "ffn", "all"] = "none"
    layer_groups: int = 1
    inner_layers: int = 1
    window: int | None = None
    global_every: int = 1
    dropout_rate: float = 0.1
    attention_dropout_rate: float = 0.1
    inner_dropout_rate: float = 0.0
    attention_out_dropout_rate: float | None = None

    positions: Literal[
        "learned", "rope", "relative_key", "disentangled", "two_stream"
    ] = "learned"
    position_pad_id: int | None = None
    rope_theta: float = 10_000.0
    local_rope_theta: float = 10_000.0

    position_terms: tuple[str, ...] = ("c2p", "p2c")
    position_buckets: int = 0
    max_distance: int | None = None
    share_position_projections: bool = False
    relative_norm: bool = False
    biased_input: bool = False
    score_combination: Literal["sum", "product"] = "sum"
    conv_width: int = 0
    conv_activation: Activation = "gelu"
    mask_decoder_layers: int = 0
    mask_decoder_shared: bool = True

    memory_length: int = 0
    reuse_length: int = 0
    bidirectional_data: bool = False
    clamp_length: int = 0

    mlm_head: Literal["transform", "tied", "bare"] = "transform"
    mask_slots: int = 1
    pair_head: Literal["pooled", "raw_cls"] = "pooled"
    detection_head: Literal["dense", "with_cls"] = "dense"
    boundary_slots: int = 15
    pooler: bool = True
    summary: Literal["first", "last"] = "first"
    init: Literal["truncated_normal", "normal"] = "truncated_normal"
    init_std: float = 0.02
    init_projection: Literal["same", "glorot"] = "same"
    scaled_out_init: bool = False

    def __post_init__(self):
        for name in ("position_terms", "languages"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        self._check_numbers()
        self._check_choices()
        if self.width % self.num_heads:
            raise UserError(
                f"model.width={self.width} is not divisible by model.num_heads="
                f"{self.num_heads}: each head needs width / num_heads columns"
            )
        if self.sharing != "none" and self.num_layers < self.layer_groups:
            raise UserError(
                f"model.layer_groups={self.layer_groups} exceeds model.num_layers="
                f"{self.num_layers}"
            )
        self._check_combinations()

    def _check_numbers(self) -> None:
        for least, names in ((1, _AT_LEAST_1), (0, _AT_LEAST_0)):
            for name in names.split():
                if getattr(self, name) < least:
                    raise UserError(
                        f"model.{name}={getattr(self, name)} must be at least {least}"
                    )
        for name in ("embed_width", "window", "max_distance"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise UserError(
                    f"model.{name}={getattr(self, name)} must be at least 1, or None"
                )
        rates = _RATES.split()
        if self.attention_out_dropout_rate is not None:
            rates.append("attention_out_dropout_rate")
        for name in rates:
            if not 0.0 <= getattr(self, name) < 1.0:
                raise UserError(f"model.{name}={getattr(self, name)} must be in [0, 1)")

    def _check_choices(self) -> None:
        for name, hint in typing.get_type_hints(type(self)).items():
            hint = hint if typing.get_origin(hint) is Literal else None
            if hint and getattr(self, name) not in typing.get_args(hint):
                raise UserError(
                    f"model.{name}={getattr(self, name)!r} must be one of "
                    f"{typing.get_args(hint)}"
                )
        unknown = set(self.position_terms) - {"c2p", "p2c"}
        if unknown:
            raise UserError(
                f"model.position_terms={self.position_terms} may hold 'c2p' and 'p2c' "
                "only"
            )

    def _check_combinations(self) -> None:
        """Refuses what has no meaning, each with its reason."""
        rules = (
            (
                self.window is not None and self.positions not in ("learned", "rope"),
                f"model.window={self.window} needs positions='rope' or 'learned': the "
                f"scores of {self.positions!r} are made for all keys",
            ),
            (
                self.mask_decoder_layers and self.norm_at == "before",
                "model.mask_decoder_layers needs model.norm_at='after': the decoder's "
                "queries are added to what they look up",
            ),
            (
                self.mask_decoder_layers and self.positions == "two_stream",
                "model.mask_decoder_layers does not go with positions='two_stream', "
                "whose query stream already decodes",
            ),
            (
                self.mask_decoder_shared
                and self.mask_decoder_layers
                and self.num_layers * self.inner_layers < 2,
                "model.mask_decoder_layers with a shared last layer needs at least two "
                "layers: the decoder looks at the one before the last",
            ),
            (
                self.mask_decoder_layers
                and (self.positions == "rope" or self.window or self.embed_width),
                "model.mask_decoder_layers does not go with positions='rope', with a "
                "window or with embed_width: its queries stand at chosen places and "
                "are told their absolute positions",
            ),
            (
                len(set(self.languages)) < len(self.languages),
                f"model.languages={self.languages} names one twice; once will do",
            ),
            (
                self.languages and self.positions == "two_stream",
                "model.languages does not go with positions='two_stream', whose query "
                "stream would not be told the language of what it predicts",
            ),
            (
                self.pair_head == "raw_cls" and self.positions == "two_stream",
                "model.pair_head='raw_cls' reads the first place of a row, which is "
                "padding where model.positions='two_stream'; use 'pooled'",
            ),
            (
                self.position_buckets == 1,
                "model.position_buckets=1 must be 0, or at least 2",
            ),
            (
                self.conv_width and self.conv_width % 2 == 0,
                f"model.conv_width={self.conv_width} must be odd, or 0 for none",
            ),
            (
                self.memory_length and self.positions != "two_stream",
                f"model.memory_length={self.memory_length} needs positions="
                "'two_stream': absolute positions mean nothing to a carried state",
            ),
            (
                self.mlm_head != "transform" and self.embed_width is not None,
                f"model.mlm_head={self.mlm_head!r} needs tables as wide as the model: "
                f"model.embed_width={self.embed_width} must be None",
            ),
            (
                self.positions == "rope" and (self.width // self.num_heads) % 2,
                "model.positions='rope' rotates pairs of columns: width / num_heads = "
                f"{self.width // self.num_heads} must be even",
            ),
            (
                self.positions == "two_stream" and self.width % 2,
                f"model.width={self.width} must be even for sines and cosines",
            ),
        )
        for broken, reason in rules:
            if broken:
                raise UserError(reason)

    @property
    def initializer(self) -> jax.nn.initializers.Initializer:
        """What kernels and tables are drawn from; biases start at 0."""
        return self._initializer(self.init_std)

    @property
    def out_initializer(self) -> jax.nn.initializers.Initializer:
        """What the kernels are drawn from whose outputs are added to the states."""
        depth = 2 * self.num_blocks if self.scaled_out_init else 1
        return self._initializer(self.init_std * depth**-0.5)

    @property
    def projection_initializer(self) -> jax.nn.initializers.Initializer:
        """What the tables' projection and the detection scores are drawn from."""
        if self.init_projection == "glorot":
            return jax.nn.initializers.glorot_uniform()
        return self.initializer

    def _initializer(self, std: float) -> jax.nn.initializers.Initializer:
        if self.init == "normal":
            return jax.nn.initializers.normal(std)
        return jax.nn.initializers.truncated_normal(std)

    @property
    def attention_out_rate(self) -> float:
        """At which rate what attention adds to the states is dropped."""
        rate = self.attention_out_dropout_rate
        return self.dropout_rate if rate is None else rate

    @property
    def head_width(self) -> int:
        """Columns of one attention head."""
        return self.width // self.num_heads

    @property
    def table_width(self) -> int:
        """Columns of the embedding tables."""
        return self.embed_width or self.width

    @property
    def num_blocks(self) -> int:
        """How many blocks a token passes."""
        return self.num_layers * self.inner_layers

    @property
    def first_norm(self) -> bool:
        """Whether the first block normalises its input.

        It need not where the embeddings have just been normalised.
        """
        return self.norm_at == "after" or not self.embed_norm

    def sees_all(self, block: int) -> bool:
        """Says whether a block looks at all keys rather than through the window."""
        return self.window is None or block % self.global_every == 0
