"""One encoder, the heads that the objectives ask for, and their summed terms."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from encoderjax.errors import UserError
from encoderjax.models.compute import PLAIN, Compute
from encoderjax.models.config import EncoderConfig
from encoderjax.models.dropout import DropoutKey
from encoderjax.models.heads import EncoderModel, init_params
from encoderjax.models.two_stream import Streams
from encoderjax.objectives import generator_of, head_names
from encoderjax.objectives.objective import DeviceBatch, Objective, Terms
from encoderjax.objectives.teacher import Teacher

PyTree = Any

_SAMPLING = 1 << 21  # tells what objectives draw from any dropout
_MEMORY = "memory"


@dataclasses.dataclass(frozen=True)
class Pretrainer:
    """What is trained: pure functions of parameters and a batch.

    Attributes:
      teacher: a network whose parameters are given as frozen ones.
    """

    model: EncoderModel
    objectives: tuple[Objective, ...]
    teacher: EncoderModel | None = None

    @classmethod
    def create(
        cls,
        config: EncoderConfig,
        objectives: tuple[Objective, ...],
        dtype: Any,
        teacher: EncoderModel | None = None,
        *,
        compute: Compute = PLAIN,
    ) -> "Pretrainer":
        """Joins an encoder with the heads of its objectives."""
        for hook, what in (
            ("rewrite", "rewrite the batch on the device"),
            ("streams", "order the batch on the device"),
        ):
            names = [o.name for o in objectives if _has(o, hook)]
            if len(names) > 1:
                raise UserError(
                    f"objectives {' and '.join(names)} both {what}; keep one of them"
                )
        model = EncoderModel(
            config,
            head_names(objectives),
            dtype,
            with_generator=generator_of(objectives, config),
            compute=compute,
        )
        return cls(model, objectives, teacher)

    @property
    def weights(self) -> dict[str, float]:
        """Returns the weight of each term that enters the loss."""
        return {
            name: weight
            for objective in self.objectives
            for name, weight in objective.loss_weights.items()
        }

    def init(self, key: jax.Array) -> PyTree:
        """Returns new parameters."""
        return init_params(self.model, key)

    def init_carry(self, rows: int) -> PyTree:
        """Returns what the first step is handed: an empty memory, or nothing.

        XLNet looks at all of its memory from the first step on, when it is zeros.
        """
        c = self.model.config
        if not (c.memory_length and any(_has(o, "streams") for o in self.objectives)):
            return {}
        shape = (rows, c.num_blocks, c.memory_length, c.width)
        return {_MEMORY: jnp.zeros(shape, self.model.dtype)}

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
        taken_over = {name for o in self.objectives for name in o.takes_over}
        if dropout is None:  # in evaluation a row is always drawn for alike
            key = DropoutKey.create(0, jnp.zeros((), jnp.int32), batch["row"])
        else:
            key = dropout.fold(_SAMPLING)

        def forward(model: EncoderModel, batch: DeviceBatch) -> tuple[Terms, PyTree]:
            terms: Terms = {}
            for objective in self.objectives:
                batch, rewritten = objective.rewrite(model, batch, key, dropout)
                terms |= rewritten
            outputs = model.encode(
                batch["ids"],
                batch["mask"],
                batch["segments"],
                dropout=dropout,
                streams=self._streams(batch, carry),
                documents_BL=batch.get("documents"),
                positions_BL=batch.get("positions"),
                languages_BL=batch.get("languages"),
            )
            for objective in self.objectives:
                if objective.name not in taken_over:
                    terms |= objective.sums(model, outputs, batch)
            if self.teacher is not None:
                teacher = Teacher(self.teacher, frozen["teacher"])
                for objective in self.objectives:
                    terms |= objective.compared(model, outputs, batch, teacher)
            if carry:
                assert outputs.memory is not None
                return terms, {_MEMORY: jnp.swapaxes(outputs.memory, 0, 1)}
            return terms, carry

        return self.model.apply({"params": params}, batch, method=forward)

    def _streams(self, batch: DeviceBatch, carry: PyTree) -> Streams | None:
        """Returns the second stream that an objective asks for, with the memory."""
        asked = (objective.streams(batch) for objective in self.objectives)
        streams = next((s for s in asked if s is not None), None)
        if streams is None or not carry:
            return streams
        memory_NBMD = jnp.swapaxes(carry[_MEMORY], 0, 1)
        return dataclasses.replace(streams, memory_NBMD=memory_NBMD)

    def loss(self, terms: Terms, counts: Terms) -> jax.Array:
        """Returns the sum of weight x sum / count."""
        means = divide(terms, counts)
        return sum(
            (weight * means[name] for name, weight in self.weights.items()),
            start=jnp.zeros(()),
        )


def _has(objective: Objective, hook: str) -> bool:
    return getattr(type(objective), hook) is not getattr(Objective, hook)


def divide(terms: Terms, counts: Terms) -> Terms:
    """Returns means; a term that nothing was counted for is 0."""
    return {
        name: total / jnp.where(counts[name] > 0, counts[name], 1.0)
        for name, total in terms.items()
    }
