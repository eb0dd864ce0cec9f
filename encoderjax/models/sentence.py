"""An encoder that gives a text one vector.

Features of the layers, a pooling of the real tokens, an optional whitening, and a
normalisation, in that order.

Shapes: B batch, L length, D width, X width of the features, K width of the vectors, N
layers.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp

from encoderjax.errors import UserError
from encoderjax.fields import build
from encoderjax.models.compute import PLAIN, Compute
from encoderjax.models.config import EncoderConfig
from encoderjax.models.dropout import DropoutKey
from encoderjax.models.encoder import Encoder, Outputs
from encoderjax.models.pooling import Normalise, Pooling, normalise, pool

Layers = Literal["last", "last_two", "last_four", "first_last"]
_LAST_FOUR = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceHead:
    """How a text's vector is made of the states of its tokens.

    Attributes:
      pooling: the `cls` token, wherever it stands in the family's rows; the `mean` or
        the `max` of all real tokens, special ones included; or the `last` real token.
      normalise: to length 1 (`l2`), or to mean 0 and variance 1 (`layer_norm`).
      layers: the states that are pooled: those of the `last` layer; the mean of the
        `last_two`, or of the first and last (`first_last`; Su et al. 2021); or those of
        the `last_four` side by side.
      components: the width that a whitening gives; None = the vectors are not whitened.
    """

    pooling: Pooling = "mean"
    normalise: Normalise = "none"
    layers: Layers = "last"
    components: int | None = None

    def __post_init__(self):
        for name, allowed in (
            ("pooling", get_args(Pooling)),
            ("normalise", get_args(Normalise)),
            ("layers", get_args(Layers)),
        ):
            if getattr(self, name) not in allowed:
                raise UserError(
                    f"sentence.{name}={getattr(self, name)!r} must be one of {allowed}"
                )
        if self.components is not None and self.components < 1:
            raise UserError(
                f"sentence.components={self.components} must be at least 1, or None"
            )

    def pooled_width(self, config: EncoderConfig) -> int:
        """Returns the width of a vector before it is whitened."""
        return config.width * (_LAST_FOUR if self.layers == "last_four" else 1)

    def check(self, config: EncoderConfig) -> None:
        """Refuses an encoder that has not the layers, or not the width."""
        needed = {"last_two": 2, "last_four": _LAST_FOUR, "first_last": 2}
        least = needed.get(self.layers, 1)
        if config.num_blocks < least:
            raise UserError(
                f"sentence.layers={self.layers!r} needs at least {least} layers, the "
                f"encoder has {config.num_blocks}; use 'last'"
            )
        width = self.pooled_width(config)
        if self.components is not None and self.components > width:
            raise UserError(
                f"sentence.components={self.components} is more than the width of the "
                f"vectors, {width}; give at most that"
            )

    def to_json(self) -> dict[str, Any]:
        """Returns plain values, of which `from_json` makes the same head."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: object, where: object) -> "SentenceHead":
        """Returns the head that `to_json` wrote; `where` begins messages."""
        if not isinstance(values, Mapping):
            raise UserError(f"{where}: sentence={values!r} must be a group of fields")
        return build(cls, values, f"{where}: sentence.")


def sentence_encoder(config: EncoderConfig) -> EncoderConfig:
    """Returns the encoder beneath: without what no sentence's vector is made of."""
    return dataclasses.replace(config, pooler=False, mask_decoder_layers=0)


def features(outputs: Outputs, layers: Layers) -> jax.Array:
    """Returns the states [B, L, X] of the tokens."""
    if layers == "last":
        return outputs.hidden
    # Entry 0 is the embeddings, so that the first layer's is entry 1.
    states_NBLD = outputs.layers
    assert states_NBLD is not None
    if layers == "last_four":
        return jnp.concatenate(list(states_NBLD[-_LAST_FOUR:]), axis=-1)
    other = -2 if layers == "last_two" else 1
    return (states_NBLD[-1] + states_NBLD[other]) / 2


class Whiten(nn.Module):
    """(x - mean) times a matrix: the parameters under `whiten`."""

    components: int

    @nn.compact
    def __call__(self, x_BX: jax.Array) -> jax.Array:
        """Returns float32 [B, K]."""
        width = x_BX.shape[-1]
        mean_X = self.param("mean", nn.initializers.zeros, (width,))
        start = nn.initializers.orthogonal()
        kernel_XK = self.param("kernel", start, (width, self.components))
        return (x_BX - mean_X) @ kernel_XK


class SentenceModel(nn.Module):
    """An encoder and what makes one vector of its states.

    Parameters are `encoder/...` and, where vectors are whitened, `whiten/mean` and
    `whiten/kernel`.
    """

    config: EncoderConfig
    head: SentenceHead = SentenceHead()
    dtype: Any = jnp.float32
    compute: Compute = PLAIN

    def setup(self):
        """Makes the encoder, without the parts that are not read."""
        self.head.check(self.config)
        self.encoder = Encoder(sentence_encoder(self.config), self.dtype, self.compute)
        if self.head.components is not None:
            self.whiten = Whiten(self.head.components)

    def __call__(
        self,
        ids_BL: jax.Array,
        mask_BL: jax.Array | None = None,
        segments_BL: jax.Array | None = None,
        *,
        dropout: DropoutKey | None = None,
    ) -> jax.Array:
        """Returns the vectors [B, K], float32; arguments as in `Encoder`."""
        return self.finish(self.pooled(ids_BL, mask_BL, segments_BL, dropout=dropout))

    def pooled(
        self,
        ids_BL: jax.Array,
        mask_BL: jax.Array | None = None,
        segments_BL: jax.Array | None = None,
        *,
        dropout: DropoutKey | None = None,
    ) -> jax.Array:
        """Returns the vectors [B, X] before they are whitened and normalised."""
        how = self.head.pooling
        inputs = (ids_BL, mask_BL, segments_BL)
        return self.poolings((how,), *inputs, dropout=dropout)[how]

    def poolings(
        self,
        hows: Sequence[Pooling],
        ids_BL: jax.Array,
        mask_BL: jax.Array | None = None,
        segments_BL: jax.Array | None = None,
        *,
        dropout: DropoutKey | None = None,
    ) -> dict[Pooling, jax.Array]:
        """Returns several poolings [B, X] of the same states."""
        states_BLX = self.tokens(ids_BL, mask_BL, segments_BL, dropout=dropout)
        place = lambda how: self.config.summary if how == "cls" else how
        return {how: pool(states_BLX, mask_BL, place(how)) for how in hows}

    def tokens(
        self,
        ids_BL: jax.Array,
        mask_BL: jax.Array | None = None,
        segments_BL: jax.Array | None = None,
        *,
        dropout: DropoutKey | None = None,
    ) -> jax.Array:
        """Returns the state [B, L, X] of every token."""
        layers = self.head.layers
        outputs = self.encoder(
            ids_BL, mask_BL, segments_BL, layers=layers != "last", dropout=dropout
        )
        return features(outputs, layers)

    def finish(self, pooled_BX: jax.Array) -> jax.Array:
        """Returns pooled vectors whitened and normalised, [B, K]."""
        if self.head.components is not None:
            pooled_BX = self.whiten(pooled_BX)
        return normalise(pooled_BX, self.head.normalise)


def init_sentence_params(model: SentenceModel, key: jax.Array) -> dict:
    """Returns new parameters of `model`."""
    return dict(model.init(key, jnp.zeros((1, 2), jnp.int32))["params"])
