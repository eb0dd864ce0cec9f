"""One encoder, the heads that the objectives ask for, and their summed terms."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from encoderjax.errors import UserError
from encoderjax.models.config import EncoderConfig
from encoderjax.models.dropout import DropoutKey
from encoderjax.models.heads import EncoderModel, init_params
from encoderjax.objectives import head_names
from encoderjax.objectives.objective import DeviceBatch, Objective, Terms

PyTree = Any


@dataclasses.dataclass(frozen=True)
class Pretrainer:
    """What is trained: pure functions of parameters and a batch."""

    model: EncoderModel
    objectives: tuple[Objective, ...]

    @classmethod
    def create(
        cls, config: EncoderConfig, objectives: tuple[Objective, ...], dtype: Any
    ) -> "Pretrainer":
        """Joins an encoder with the heads of its objectives."""
        rewriters = [
            o.name for o in objectives if type(o).rewrite is not Objective.rewrite
        ]
        if len(rewriters) > 1:
            raise UserError(
                f"objectives {' and '.join(rewriters)} both rewrite the batch on the "
                "device; keep one of them"
            )
        return cls(EncoderModel(config, head_names(objectives), dtype), objectives)

    @property
    def weights(self) -> dict[str, float]:
        """Returns the weight of each term that enters the loss."""
        return {f"{o.name}_loss": o.weight for o in self.objectives}

    def init(self, key: jax.Array) -> PyTree:
        """Returns new parameters."""
        return init_params(self.model, key)

    def counts(self, batch: DeviceBatch) -> Terms:
        """Returns what each term is divided by, over the whole batch given."""
        counts: Terms = {}
        for objective in self.objectives:
            counts |= objective.counts(batch)
        return counts

    def sums(
        self,
        params: PyTree,
        frozen: PyTree,
        carry: PyTree,
        batch: DeviceBatch,
        dropout: DropoutKey | None,
    ) -> tuple[Terms, PyTree]:
        """Runs the model once; returns the summed terms and the next carry."""
        del frozen  # used by objectives with a teacher

        def forward(model: EncoderModel, batch: DeviceBatch) -> tuple[Terms, PyTree]:
            terms: Terms = {}
            for objective in self.objectives:
                key = jnp.uint32(0) if dropout is None else dropout.key
                batch, rewritten = objective.rewrite(model, batch, key)
                terms |= rewritten
            outputs = model(
                batch["ids"], batch["mask"], batch["segments"], dropout=dropout
            )
            for objective in self.objectives:
                terms |= objective.sums(model, outputs, batch)
            return terms, carry

        return self.model.apply({"params": params}, batch, method=forward)

    def loss(self, terms: Terms, counts: Terms) -> jax.Array:
        """Returns the sum of weight x sum / count."""
        means = divide(terms, counts)
        return sum(
            (weight * means[name] for name, weight in self.weights.items()),
            start=jnp.zeros(()),
        )


def divide(terms: Terms, counts: Terms) -> Terms:
    """Returns means; a term that nothing was counted for is 0."""
    return {
        name: total / jnp.maximum(counts[name], 1.0) for name, total in terms.items()
    }
