"""The parts that all encoders are built of.

Shapes: B batch, L length, D width, F feed-forward width, V vocabulary.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from encoderjax.models.config import EncoderConfig
from encoderjax.models.dropout import DropoutKey, drop

PRODUCT_NAME = "product of states with weights"

# Where dropout happens in a layer; each has masks of its own.
ATTENTION_SITE, ATTENTION_OUT_SITE, MLP_OUT_SITE, EMBED_SITE = 0, 1, 2, 3
MLP_INNER_SITE, TABLE_SITE, CONV_SITE, OUT_SITE, QUERY_SITE = 4, 5, 6, 7, 8


def _exact_gelu(x: jax.Array) -> jax.Array:
    """x times the normal distribution function, by erf as in PyTorch.

    `jax.nn.gelu` takes erfc, which is several times the arithmetic.
    """
    return x * (0.5 + 0.5 * jax.lax.erf(x * 0.5**0.5))


ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "gelu": _exact_gelu,
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
}


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
    """An embedding table [size, width]; `split` is the mesh axis of its rows.

    The row `zero_row`, if there is one, starts at 0.
    """

    config: EncoderConfig
    size: int
    width: int
    split: str | None = None
    zero_row: int | None = None

    def setup(self):
        """Makes the table here, because the MLM head is tied to it."""
        shape = (self.size, self.width)
        self.embedding = self.param("embedding", self._start, shape)

    def _start(self, key: jax.Array, shape: tuple[int, int]) -> jax.Array:
        table = self.config.initializer(key, shape)
        return table if self.zero_row is None else table.at[self.zero_row].set(0.0)

    def __call__(self, ids: jax.Array) -> jax.Array:
        """Returns the rows of `ids`, [..., width]."""
        # Gathering the columns first costs one table; a lookup in split columns
        # would have the compiler gather the activations of the whole batch.
        return jnp.take(constrain(self.embedding, self.split), ids, axis=0)


def product(x: jax.Array, weights: jax.Array, dimension_numbers: Any, **_) -> jax.Array:
    """Returns x times weights, over the last axes of x and the first of the weights.

    It is the `dot_general` of linen's layers, with a gradient of its own: as XLA on a
    CPU multiplies what jax derives, it first turns the states, or does so slowly. On a
    core, a block and its gradient take 0.92 of the time.
    """
    ((axes, _), _) = dimension_numbers
    # Named, since a policy of what is kept does not look into a gradient of its own.
    return checkpoint_name(_product(x, weights, len(axes)), PRODUCT_NAME)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _product(x: jax.Array, weights: jax.Array, axes: int) -> jax.Array:
    return jnp.tensordot(x, weights, axes)


def _forward(x, weights, axes):
    return _product(x, weights, axes), (x, weights)


def _backward(axes, kept, gradient):
    x, weights = kept
    rows = math.prod(x.shape[: x.ndim - axes])
    x_RC, gradient_RD = x.reshape(rows, -1), gradient.reshape(rows, -1)
    weights_CD = weights.reshape(-1, gradient_RD.shape[1])
    by_x_RC = jnp.einsum("rd,cd->rc", gradient_RD, weights_CD)
    by_weights_CD = jnp.einsum("rc,rd->cd", x_RC, gradient_RD)
    return by_x_RC.reshape(x.shape), by_weights_CD.reshape(weights.shape)


_product.defvjp(_forward, _backward)


def dense(config: EncoderConfig, dtype: Any, features: int, **kwargs: Any) -> nn.Dense:
    """Returns a dense layer, initialised as the config says unless told otherwise."""
    kwargs = {"kernel_init": config.initializer, "dot_general": product, **kwargs}
    return nn.Dense(features, dtype=dtype, **kwargs)


def norm(config: EncoderConfig, dtype: Any, **kwargs) -> nn.LayerNorm:
    """Returns a layer norm; its statistics are always taken in float32."""
    return nn.LayerNorm(
        epsilon=config.norm_eps,
        use_bias=config.norm_bias,
        dtype=dtype,
        use_fast_variance=False,
        **kwargs,
    )


class Mlp(nn.Module):
    """The feed-forward block."""

    config: EncoderConfig
    dtype: Any

    @nn.compact
    def __call__(self, x_BLD: jax.Array, dropout: DropoutKey | None) -> jax.Array:
        """Returns [B, L, D]."""
        c = self.config
        project = functools.partial(dense, c, self.dtype, use_bias=c.use_bias)
        x_BLF = ACTIVATIONS[c.activation](project(c.mlp_width, name="up")(x_BLD))
        if c.mlp == "gated":
            x_BLF *= project(c.mlp_width, name="gate")(x_BLD)
        x_BLF = drop(x_BLF, c.inner_dropout_rate, dropout, MLP_INNER_SITE)
        down = project(c.width, name="down", kernel_init=c.out_initializer)
        return down(x_BLF)
