"""What an objective is: a frozen dataclass that owns both halves of its loss."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import ClassVar

import jax

from encoderjax.data.pipeline import Batch, DataConfig, Lexicon
from encoderjax.data.random import Draws
from encoderjax.errors import UserError
from encoderjax.models.config import EncoderConfig
from encoderjax.models.dropout import DropoutKey
from encoderjax.models.encoder import Outputs
from encoderjax.models.heads import EncoderModel, Generator
from encoderjax.models.two_stream import Streams
from encoderjax.objectives.teacher import Teacher

DeviceBatch = dict[str, jax.Array]
Terms = dict[str, jax.Array]  # metric -> scalar


@dataclasses.dataclass(frozen=True, kw_only=True)
class Objective:
    """One loss, or a few that belong together.

    Adding one touches neither the step nor the pipeline. The host half corrupts
    batches; the device half returns sums and, for the same names, counts. A name in
    `loss_weights` enters the loss as weight x sum / count, where the count is that of
    the global batch. Other names are metrics.

    Attributes:
      weight: of the loss in the total.
    """

    name: ClassVar[str]
    heads: ClassVar[tuple[str, ...]] = ()
    # Objectives that this one reads the batch of; they come before it in OBJECTIVES.
    needs: ClassVar[tuple[str, ...]] = ()
    # Objectives that it cannot stand beside, and why.
    excludes: ClassVar[Mapping[str, str]] = {}
    # Objectives whose terms `rewrite` returns: their heads are the generator's.
    takes_over: ClassVar[tuple[str, ...]] = ()

    weight: float = 1.0

    def __post_init__(self):
        if self.weight < 0:
            raise UserError(
                f"objectives.{self.name}.weight={self.weight} must be at least 0"
            )

    def check_beside(self, others: Sequence["Objective"]) -> None:
        """Refuses settings that contradict those of the objectives beside it."""

    @property
    def loss_weights(self) -> dict[str, float]:
        """Returns the weight of each term that enters the loss."""
        return {f"{self.name}_loss": self.weight}

    def resolved(self, data: DataConfig, model: EncoderConfig) -> "Objective":
        """Returns itself with open fields filled; refuses what cannot be trained."""
        return self

    def generator_for(self, model: EncoderConfig) -> Generator | None:
        """Returns the second network that this objective trains, if it has one."""
        return None

    # ---- host ----

    @property
    def word_lists(self) -> Mapping[str, tuple[str, str]]:
        """What `corrupt` reads of the lexicon beside the vocabulary.

        The name there -> the field of the config that names a file, and the file.
        """
        return {}

    def corrupt(self, batch: Batch, draws: Draws, lexicon: Lexicon) -> Batch:
        """Returns the batch with this objective's keys added."""
        return batch

    # ---- device ----

    def rewrite(
        self,
        model: EncoderModel,
        batch: DeviceBatch,
        key: DropoutKey,
        dropout: DropoutKey | None,
    ) -> tuple[DeviceBatch, Terms]:
        """Changes the batch before the encoder runs; at most one objective does.

        Args:
          model: bound to its parameters.
          batch: of some rows.
          key: what may be drawn from, in evaluation as well.
          dropout: None in evaluation.
        """
        return batch, {}

    def streams(self, batch: DeviceBatch) -> Streams | None:
        """Returns what a second stream predicts and sees; at most one objective does.

        The memory is added to it.
        """
        return None

    def counts(self, batch: DeviceBatch) -> Terms:
        """Returns what the sums of each name are divided by."""
        raise NotImplementedError

    def sums(self, model: EncoderModel, outputs: Outputs, batch: DeviceBatch) -> Terms:
        """Returns sums, never means, so that they add up over microbatches."""
        return {}

    def flops(self, model: EncoderConfig, length: int, slots: int) -> float:
        """Returns the operations forward that it adds to the encoder's, for one row.

        Args:
          model: the encoder that is trained.
          length: tokens of the row.
          slots: the most places of it that are predicted.
        """
        return 0.0

    def compared(
        self,
        model: EncoderModel,
        outputs: Outputs,
        batch: DeviceBatch,
        teacher: Teacher,
    ) -> Terms:
        """Returns the sums that need a teacher, in a run that has one."""
        return {}


def resolved_for(
    objective: Objective, length: int, data: DataConfig, model: EncoderConfig
) -> Objective:
    """Returns an objective for rows cut off at `length`, with slots for those alone."""
    shorter = dataclasses.replace(data, length=length, buckets=None)
    resolved = objective.resolved(shorter, model)
    given = getattr(objective, "max_predictions", None)
    if given is None:
        return resolved
    unasked = dataclasses.replace(objective, max_predictions=None)
    enough = getattr(unasked.resolved(shorter, model), "max_predictions", given)
    return dataclasses.replace(resolved, max_predictions=min(given, enough))


def check_together(objectives: Sequence[Objective]) -> None:
    """Refuses objectives that cannot be trained at once, each with its reason."""
    names = [objective.name for objective in objectives]
    for number, objective in enumerate(objectives):
        for needed in objective.needs:
            if needed not in names[:number]:
                raise UserError(
                    f"objectives.{objective.name} needs objectives.{needed}, whose "
                    f"selection it reads; add {needed}=dict()"
                )
        for other, reason in objective.excludes.items():
            if other in names:
                raise UserError(
                    f"objectives.{objective.name} and objectives.{other} do not go "
                    f"together: {reason}; leave one out"
                )
        objective.check_beside(objectives)
