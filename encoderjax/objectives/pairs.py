"""Sentence-level objectives: is the second segment what it should be?

Shapes: B batch.
"""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
import optax

from encoderjax.data.forms import FORMS, forms_that
from encoderjax.data.pipeline import DataConfig
from encoderjax.errors import UserError
from encoderjax.models.config import EncoderConfig
from encoderjax.models.encoder import Outputs
from encoderjax.models.heads import EncoderModel
from encoderjax.objectives.objective import DeviceBatch, Objective, Terms


@dataclasses.dataclass(frozen=True, kw_only=True)
class _PairObjective(Objective):
    """Classifies pairs from the first token.

    Reads the keys `second`, [B], and `paired`, [B]: rows of one segment do not count.

    Terms, each by pair: `<name>_loss`, `<name>_accuracy`, and the share of the label 1,
    `nsp_random_share` or `sop_swapped_share`, beside which the others are to be read.

    Attributes:
      second: the `data.second` that it is for.
      also: others that it can learn from.
    """

    second: ClassVar[str]
    also: ClassVar[tuple[str, ...]] = ()

    def resolved(self, data: DataConfig, model: EncoderConfig) -> Objective:
        """Checks that the rows have both kinds of pair."""
        if FORMS[data.form].segments < 2:
            what = "have one segment"
            if FORMS[data.form].packed:
                what = "hold several documents side by side and no pairs"
            if FORMS[data.form].parallel:
                what = "hold a line and its true translation"
            able = forms_that(lambda form: self.second in form.second)
            raise UserError(
                f"objectives.{self.name} needs pairs, but rows of data.form="
                f"{data.form!r} {what}; set data.form to {able}, or leave the "
                "objective out"
            )
        if data.settled_second not in (self.second, *self.also):
            raise UserError(
                f"objectives.{self.name} needs data.second={self.second!r}, not "
                f"{data.settled_second!r}; change it or leave the objective out"
            )
        if model.pair_head == "pooled" and not model.pooler:
            raise UserError(
                f"objectives.{self.name} needs model.pooler=True, or model.pair_head="
                "'raw_cls'"
            )
        return self

    def counts(self, batch: DeviceBatch) -> Terms:
        """Counts rows of two segments."""
        rows = jnp.sum(batch["paired"])
        names = ("loss", "accuracy", f"{self.second}_share")
        return {f"{self.name}_{name}": rows for name in names}

    def sums(self, model: EncoderModel, outputs: Outputs, batch: DeviceBatch) -> Terms:
        """Adds up cross-entropy and hits over rows."""
        logits_B2 = model.pair_logits(self.name, outputs)
        label_B, weight_B = batch["second"], batch["paired"]
        loss_B = optax.softmax_cross_entropy_with_integer_labels(logits_B2, label_B)
        hit_B = (jnp.argmax(logits_B2, axis=-1) == label_B).astype(jnp.float32)
        return {
            f"{self.name}_loss": jnp.sum(loss_B * weight_B),
            f"{self.name}_accuracy": jnp.sum(hit_B * weight_B),
            f"{self.name}_{self.second}_share": jnp.sum(label_B * weight_B),
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class NextSentence(_PairObjective):
    """BERT's next-sentence prediction: the continuation, or text from elsewhere."""

    name: ClassVar[str] = "nsp"
    heads: ClassVar[tuple[str, ...]] = ("nsp",)
    second: ClassVar[str] = "random"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceOrder(_PairObjective):
    """ALBERT's sentence-order prediction: in order, or swapped."""

    name: ClassVar[str] = "sop"
    heads: ClassVar[tuple[str, ...]] = ("sop",)
    second: ClassVar[str] = "swapped"
    also: ClassVar[tuple[str, ...]] = ("swapped_only",)
