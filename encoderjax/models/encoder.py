"""The encoder of the BERT line.

One skeleton with a few closed slots; a family is a preset of `EncoderConfig`. Layers
are stacked and scanned, so the parameter tree has one shape (a leading layer axis
under `layers/`) and compiling does not slow down with depth.

Shapes: B batch, L length, D width, H heads, K per-head size, F feed-forward width,
V vocabulary, N layers.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jax.sharding import PartitionSpec

from encoderjax.errors import UserError
from encoderjax.models.attention import attend
from encoderjax.models.dropout import DropoutKey, drop

_UNROLLED_LAYERS = 4
_ATTENTION_OUT_SITE, _MLP_OUT_SITE, _EMBED_SITE = 1, 2, 3


def _exact_gelu(x: jax.Array) -> jax.Array:
    """x times the normal distribution function, by erf as in PyTorch.

    `jax.nn.gelu` takes erfc, which is several times the arithmetic.
    """
    return x * (0.5 + 0.5 * jax.lax.erf(x * 0.5**0.5))


ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "gelu": _exact_gelu,
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Sizes and slots of an encoder. The defaults are BERT's.

    Attributes:
      vocab_size: rows of the token table; at least the tokenizer's vocabulary.
      max_length: rows of the position table.
      num_segments: rows of the segment table.
      activation: `gelu` is the exact (erf) form that PyTorch weights are used with,
        `gelu_tanh` the approximation that google-bert trained with.
      init: a normal distribution, cut off at two standard deviations or not.
      pooler: whether there is a dense tanh layer over the first token.
    """

    vocab_size: int
    num_layers: int
    width: int
    num_heads: int
    mlp_width: int
    max_length: int = 512
    num_segments: int = 2
    activation: Literal["gelu", "gelu_tanh"] = "gelu"
    dropout_rate: float = 0.1
    attention_dropout_rate: float = 0.1
    norm_eps: float = 1e-12
    init: Literal["truncated_normal", "normal"] = "truncated_normal"
    init_std: float = 0.02
    pooler: bool = True

    def __post_init__(self):
        sizes = (
            "vocab_size num_layers width num_heads mlp_width max_length num_segments"
        )
        for name in sizes.split():
            if getattr(self, name) < 1:
                raise UserError(
                    f"model.{name}={getattr(self, name)} must be at least 1"
                )
        if self.width % self.num_heads:
            raise UserError(
                f"model.width={self.width} is not divisible by model.num_heads="
                f"{self.num_heads}: each head needs width / num_heads columns"
            )
        for name in ("dropout_rate", "attention_dropout_rate"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise UserError(f"model.{name}={getattr(self, name)} must be in [0, 1)")

    @property
    def initializer(self) -> jax.nn.initializers.Initializer:
        """What kernels and tables are drawn from; biases start at 0."""
        if self.init == "normal":
            return jax.nn.initializers.normal(self.init_std)
        return jax.nn.initializers.truncated_normal(self.init_std)


@struct.dataclass
class Outputs:
    """What an encoder returns.

    Attributes:
      hidden: [B, L, D] of the last layer.
      pooled: [B, D], or None without a pooler.
      layers: [N + 1, B, L, D] on request: the embeddings, then every layer.
      logits: of the head that the model was loaded with, or None.
    """

    hidden: jax.Array
    pooled: jax.Array | None = None
    layers: jax.Array | None = None
    logits: jax.Array | None = None


def constrain(x: jax.Array, *axes: str | tuple[str, ...] | None) -> jax.Array:
    """States how x is split over the mesh; without a mesh, returns x."""
    if jax.sharding.get_abstract_mesh().empty:
        return x
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*axes))


def shard_rows(x: jax.Array) -> jax.Array:
    """Keeps the batch axis split over the mesh.

    The compiler would otherwise follow the sharding of the embedding table and
    lose that of the batch.
    """
    return constrain(x, ("data", "fsdp"))


class Table(nn.Module):
    """An embedding table [size, D]; `split` is the mesh axis of its rows."""

    config: EncoderConfig
    size: int
    split: str | None = None

    def setup(self):
        """Makes the table here, because the MLM head is tied to it."""
        c = self.config
        self.embedding = self.param("embedding", c.initializer, (self.size, c.width))

    def __call__(self, ids: jax.Array) -> jax.Array:
        """Returns the rows of `ids`, [..., D]."""
        # Gathering the columns first costs one table; a lookup in split columns
        # would have the compiler gather the activations of the whole batch.
        return jnp.take(constrain(self.embedding, self.split), ids, axis=0)


def dense(config: EncoderConfig, dtype: Any, features: int, **kwargs) -> nn.Dense:
    """Returns a dense layer, initialised as the config says."""
    return nn.Dense(features, dtype=dtype, kernel_init=config.initializer, **kwargs)


def norm(config: EncoderConfig, dtype: Any, **kwargs) -> nn.LayerNorm:
    """Returns a layer norm; its statistics are always taken in float32."""
    return nn.LayerNorm(
        epsilon=config.norm_eps, dtype=dtype, use_fast_variance=False, **kwargs
    )


class Attention(nn.Module):
    """Multi-head self-attention with its output projection."""

    config: EncoderConfig
    dtype: Any

    @nn.compact
    def __call__(self, x_BLD, visible, dropout: DropoutKey | None) -> jax.Array:
        """Returns [B, L, D]."""
        c = self.config
        project = functools.partial(
            nn.DenseGeneral, dtype=self.dtype, kernel_init=c.initializer
        )
        heads = (c.num_heads, c.width // c.num_heads)
        q_BLHK = project(heads, name="query")(x_BLD)
        k_BLHK = project(heads, name="key")(x_BLD)
        v_BLHK = project(heads, name="value")(x_BLD)
        mixed_BLHK = attend(
            q_BLHK,
            k_BLHK,
            v_BLHK,
            visible=visible,
            dropout_rate=c.attention_dropout_rate,
            dropout=dropout,
        )
        return project(c.width, axis=(-2, -1), name="out")(mixed_BLHK)


class Mlp(nn.Module):
    """The feed-forward block."""

    config: EncoderConfig
    dtype: Any

    @nn.compact
    def __call__(self, x_BLD: jax.Array) -> jax.Array:
        """Returns [B, L, D]."""
        c = self.config
        x_BLF = dense(c, self.dtype, c.mlp_width, name="up")(x_BLD)
        x_BLF = ACTIVATIONS[c.activation](x_BLF)
        return dense(c, self.dtype, c.width, name="down")(x_BLF)


class Block(nn.Module):
    """One layer: attention and feed-forward, each added and then normalised."""

    config: EncoderConfig
    dtype: Any
    keep_hidden: bool

    @nn.compact
    def __call__(self, x_BLD, layer, visible, dropout: DropoutKey | None):
        """Returns the new state, and again as the scanned output where asked."""
        c = self.config
        dropout = dropout.fold(layer) if dropout is not None else None
        y_BLD = Attention(c, self.dtype, name="attention")(x_BLD, visible, dropout)
        y_BLD = drop(y_BLD, c.dropout_rate, dropout, _ATTENTION_OUT_SITE)
        x_BLD = norm(c, self.dtype, name="attention_norm")(x_BLD + y_BLD)
        y_BLD = Mlp(c, self.dtype, name="mlp")(x_BLD)
        y_BLD = drop(y_BLD, c.dropout_rate, dropout, _MLP_OUT_SITE)
        x_BLD = norm(c, self.dtype, name="mlp_norm")(x_BLD + y_BLD)
        x_BLD = shard_rows(x_BLD)
        return x_BLD, (x_BLD if self.keep_hidden else None)


class Encoder(nn.Module):
    """Embeddings, layers and pooler."""

    config: EncoderConfig
    dtype: Any = jnp.float32

    def setup(self):
        """Makes the token table here, so that the MLM head finds it."""
        self.token_embed = Table(self.config, self.config.vocab_size, split="model")

    @nn.compact
    def __call__(
        self,
        ids_BL: jax.Array,
        mask_BL: jax.Array | None = None,
        segments_BL: jax.Array | None = None,
        *,
        layers: bool = False,
        dropout: DropoutKey | None = None,
    ) -> Outputs:
        """Encodes `ids_BL`.

        Args:
          ids_BL: int32 [B, L].
          mask_BL: bool [B, L], True for real tokens; all of them when left out.
          segments_BL: int32 [B, L], 0 for A and 1 for B; 0 when left out.
          layers: whether to return the state after every layer as well.
          dropout: the key of the masks; without one nothing is dropped.
        """
        c = self.config
        positions_L = jnp.arange(ids_BL.shape[1])
        if segments_BL is None:
            segments_BL = jnp.zeros_like(ids_BL)
        x_BLD = shard_rows(self.token_embed(ids_BL))
        x_BLD += Table(c, c.num_segments, name="segment_embed")(segments_BL)
        x_BLD += Table(c, c.max_length, name="position_embed")(positions_L)
        x_BLD = norm(c, self.dtype, name="embed_norm")(shard_rows(x_BLD))
        embed_dropout = dropout.fold(c.num_layers) if dropout is not None else None
        x_BLD = drop(x_BLD, c.dropout_rate, embed_dropout, _EMBED_SITE)

        visible = None if mask_BL is None else mask_BL.astype(bool)[:, None, None, :]
        stack = nn.scan(
            Block,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=(0, nn.broadcast, nn.broadcast),  # pyright: ignore  (a pytree)
            length=c.num_layers,
            # The loop itself costs more than it saves for a few layers.
            unroll=c.num_layers if c.num_layers <= _UNROLLED_LAYERS else 1,
        )(c, self.dtype, keep_hidden=layers, name="layers")
        last_BLD, every_NBLD = stack(x_BLD, jnp.arange(c.num_layers), visible, dropout)
        if every_NBLD is not None:
            every_NBLD = jnp.concatenate([x_BLD[None], every_NBLD])

        pooled_BD = None
        if c.pooler:
            pooled_BD = jnp.tanh(
                dense(c, self.dtype, c.width, name="pooler")(last_BLD[:, 0])
            )
        return Outputs(hidden=last_BLD, pooled=pooled_BD, layers=every_NBLD)
