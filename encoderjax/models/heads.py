"""The heads over an encoder, and the model that joins both.

Shapes: B batch, L length, P predicted positions, D width, V vocabulary, C classes.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from encoderjax.errors import UserError
from encoderjax.models.dropout import DropoutKey
from encoderjax.models.encoder import (
    ACTIVATIONS,
    Encoder,
    EncoderConfig,
    Outputs,
    dense,
    norm,
)


class MlmHead(nn.Module):
    """Scores of the vocabulary: a transform, then the token table and a bias."""

    config: EncoderConfig
    dtype: Any

    @nn.compact
    def __call__(self, x_BPD: jax.Array, table_VD: jax.Array) -> jax.Array:
        """Returns float32 [B, P, V]."""
        c = self.config
        x_BPD = dense(c, self.dtype, c.width, name="dense")(x_BPD)
        x_BPD = norm(c, self.dtype, name="norm")(ACTIVATIONS[c.activation](x_BPD))
        bias_V = self.param("bias", nn.initializers.zeros, (c.vocab_size,))
        logits_BPV = jnp.einsum(
            "bpd,vd->bpv",
            x_BPD,
            table_VD.astype(self.dtype),
            preferred_element_type=jnp.float32,
        )
        return logits_BPV + bias_V


class PairHead(nn.Module):
    """Two scores from the pooled first token: 0 = next (in order), 1 = not."""

    config: EncoderConfig
    dtype: Any

    @nn.compact
    def __call__(self, pooled_BD: jax.Array) -> jax.Array:
        """Returns float32 [B, 2]."""
        head = dense(self.config, self.dtype, 2, name="dense")
        return head(pooled_BD).astype(jnp.float32)


HEADS: dict[str, type[nn.Module]] = {
    "mlm": MlmHead,
    "nsp": PairHead,
    "sop": PairHead,
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


class EncoderModel(nn.Module):
    """An encoder and heads; parameters `encoder/...` and `heads/<name>/...`.

    Called, it returns the encoder's outputs, with `.logits` when it has one head.
    Objectives call `mlm_logits` and `pair_logits` for just what they need.
    """

    config: EncoderConfig
    head_names: tuple[str, ...] = ()
    dtype: Any = jnp.float32

    def setup(self):
        """Makes the encoder and the heads."""
        for name in self.head_names:
            if name not in HEADS:
                raise UserError(f"head={name!r} does not exist; choose {list(HEADS)}")
        self.encoder = Encoder(self.config, self.dtype)
        if self.head_names:
            self.heads = Heads(self.config, self.head_names, self.dtype)

    def __call__(
        self,
        ids_BL: jax.Array,
        mask_BL: jax.Array | None = None,
        segments_BL: jax.Array | None = None,
        *,
        layers: bool = False,
        dropout: DropoutKey | None = None,
    ) -> Outputs:
        """Encodes; see `Encoder`."""
        outputs = self.encoder(
            ids_BL, mask_BL, segments_BL, layers=layers, dropout=dropout
        )
        if len(self.head_names) == 1:
            logits = self._logits(self.head_names[0], outputs)
            outputs = dataclasses.replace(outputs, logits=logits)
        return outputs

    def mlm_logits(self, x_BPD: jax.Array) -> jax.Array:
        """Returns the scores [B, P, V] of hidden states [B, P, D]."""
        return self.heads.mlm(x_BPD, self.encoder.token_embed.embedding)

    def pair_logits(self, name: str, outputs: Outputs) -> jax.Array:
        """Returns the scores [B, 2] of the pair head called `name`."""
        return getattr(self.heads, name)(outputs.pooled)

    def _logits(self, name: str, outputs: Outputs) -> jax.Array:
        if HEADS[name] is MlmHead:
            return self.mlm_logits(outputs.hidden)
        return self.pair_logits(name, outputs)

    def touch_parameters(self, ids_BL: jax.Array) -> None:
        """Runs every part once: the method for `init`, which makes what it meets."""
        outputs = self.encoder(ids_BL)
        for name in self.head_names:
            self._logits(name, outputs)


def init_params(model: EncoderModel, key: jax.Array) -> dict:
    """Returns new parameters of `model`, encoder and heads."""
    ids_BL = jnp.zeros((1, 2), jnp.int32)
    variables = model.init(key, ids_BL, method=EncoderModel.touch_parameters)
    return dict(variables["params"])
