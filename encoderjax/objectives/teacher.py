"""A model that is used and not trained."""

import dataclasses
from typing import Any

import jax

from encoderjax.models.encoder import Outputs
from encoderjax.models.heads import EncoderModel

PyTree = Any


@dataclasses.dataclass(frozen=True)
class Teacher:
    """A network with its parameters; it neither learns nor drops anything."""

    model: EncoderModel
    params: PyTree

    def outputs(self, batch: dict[str, jax.Array]) -> Outputs:
        """Runs the encoder over the rows that the student reads."""
        outputs: Any = self.model.apply(
            {"params": jax.lax.stop_gradient(self.params)},
            batch["ids"],
            batch["mask"],
            batch["segments"],
            documents_BL=batch.get("documents"),
            positions_BL=batch.get("positions"),
            method=EncoderModel.encode,
        )
        return outputs

    def mlm_logits(self, outputs: Outputs, places_BP: jax.Array) -> jax.Array:
        """Returns the scores [B, P, V] of the vocabulary at some places."""
        method = EncoderModel.mlm_logits
        logits: Any = self.model.apply(
            {"params": self.params}, outputs, places_BP, method=method
        )
        return jax.lax.stop_gradient(logits)
