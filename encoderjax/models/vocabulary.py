"""Scores of the vocabulary, which are the largest array of a model if they are made.

Shapes: B batch, P predicted positions, E width of the tables, V vocabulary.
"""

import jax
import jax.numpy as jnp
from flax import struct


@struct.dataclass
class VocabularyScores:
    """Scores of the vocabulary as the factors that they are the product of.

    Attributes:
      x_BPE: what is scored.
      table_VE: the token table.
      bias_V: added to all; None = nothing.
    """

    x_BPE: jax.Array
    table_VE: jax.Array
    bias_V: jax.Array | None = None

    def whole(self) -> jax.Array:
        """Returns them as one array, float32 [B, P, V]."""
        logits_BPV = jnp.einsum(
            "bpe,ve->bpv",
            self.x_BPE,
            self.table_VE.astype(self.x_BPE.dtype),
            preferred_element_type=jnp.float32,
        )
        return logits_BPV if self.bias_V is None else logits_BPV + self.bias_V
