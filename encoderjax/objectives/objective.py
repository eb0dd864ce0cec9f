"""What an objective is: a frozen dataclass that owns both halves of its loss."""

import dataclasses
from typing import ClassVar

import jax

from encoderjax.data.pipeline import Batch, DataConfig, Lexicon
from encoderjax.data.random import Draws
from encoderjax.errors import UserError
from encoderjax.models.config import EncoderConfig
from encoderjax.models.encoder import Outputs
from encoderjax.models.heads import EncoderModel

DeviceBatch = dict[str, jax.Array]
Terms = dict[str, jax.Array]  # metric -> scalar


@dataclasses.dataclass(frozen=True, kw_only=True)
class Objective:
    """One loss. Adding one touches neither the step nor the pipeline.

    The host half corrupts batches; the device half returns sums and, for the same
    names, counts. `<name>_loss` enters the loss as weight x sum / count, where the
    count is that of the global batch. Other names are metrics.

    Attributes:
      weight: of the loss in the total.
    """

    name: ClassVar[str]
    heads: ClassVar[tuple[str, ...]] = ()

    weight: float = 1.0

    def __post_init__(self):
        if self.weight < 0:
            raise UserError(
                f"objectives.{self.name}.weight={self.weight} must be at least 0"
            )

    def resolved(self, data: DataConfig, model: EncoderConfig) -> "Objective":
        """Returns itself with open fields filled; refuses what cannot be trained."""
        return self

    def corrupt(self, batch: Batch, draws: Draws, lexicon: Lexicon) -> Batch:
        """Host: returns the batch with this objective's keys added."""
        return batch

    def rewrite(
        self, model: EncoderModel, batch: DeviceBatch, key: jax.Array
    ) -> tuple[DeviceBatch, Terms]:
        """Device, before the encoder runs: changes the batch; at most one does."""
        return batch, {}

    def counts(self, batch: DeviceBatch) -> Terms:
        """Device: what the sums of each name are divided by."""
        raise NotImplementedError

    def sums(self, model: EncoderModel, outputs: Outputs, batch: DeviceBatch) -> Terms:
        """Device: sums, never means, so that they add up over microbatches."""
        raise NotImplementedError
