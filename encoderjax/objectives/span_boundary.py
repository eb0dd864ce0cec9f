"""SpanBERT's boundary objective: the tokens of a span, from what stands beside it.

Shapes: B batch, L length, P prediction slots, V vocabulary.
"""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Literal

import jax.numpy as jnp
import numpy as np

from encoderjax.data.pipeline import Batch, DataConfig, Lexicon
from encoderjax.data.random import Draws
from encoderjax.errors import UserError
from encoderjax.models.config import EncoderConfig
from encoderjax.models.encoder import Outputs
from encoderjax.models.flops import boundary_flops
from encoderjax.models.heads import EncoderModel
from encoderjax.objectives.masking import candidates
from encoderjax.objectives.mlm import MaskedLM
from encoderjax.objectives.objective import DeviceBatch, Objective, Terms
from encoderjax.objectives.spans import runs
from encoderjax.objectives.vocabulary_loss import predicted


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanBoundary(Objective):
    """Predicts what masked LM selected from two states and the place in the span.

    A span is a run of selected tokens: spans that touch are one. [CLS] and [SEP] end a
    run, and are not predicted. A token that was selected twice counts twice. Where one
    mask stands for a span, what stands beside it stands beside the span.

    Batch keys, all [B, P], for the slots of masked LM, whose labels they share:
    `sbo/left`, `sbo/right` int32, the places of the two states; `sbo/place` int32, the
    token's number in its span; `sbo/weights` float32.

    Attributes:
      endpoints: `external`: the tokens beside the span, which were seen. A span that
        begins or ends its text has none, and is left out. `internal`: the first and
        the last token of the span itself (notes on SpanBERT); not where one mask stands
        for both.
      slots: tokens of a span that are predicted, from its first; by default
        model.boundary_slots.
    """

    name: ClassVar[str] = "sbo"
    heads: ClassVar[tuple[str, ...]] = ("sbo",)
    needs: ClassVar[tuple[str, ...]] = ("mlm",)

    endpoints: Literal["external", "internal"] = "external"
    slots: int | None = None

    def check_beside(self, others: Sequence[Objective]) -> None:
        """Refuses the ends of spans that have one place."""
        single = any(
            isinstance(other, MaskedLM) and other.span_masks == "single"
            for other in others
        )
        if single and self.endpoints == "internal":
            raise UserError(
                "objectives.sbo.endpoints='internal' reads the first and last token of "
                "a span, and objectives.mlm.span_masks='single' leaves it one place; "
                "set endpoints='external', or span_masks='each'"
            )

    def resolved(self, data: DataConfig, model: EncoderConfig) -> "SpanBoundary":
        """Fills in how far into a span is predicted."""
        slots = model.boundary_slots if self.slots is None else self.slots
        if not 1 <= slots <= model.boundary_slots:
            raise UserError(
                f"objectives.sbo.slots={slots} must be in 1..{model.boundary_slots}, "
                "model.boundary_slots"
            )
        return dataclasses.replace(self, slots=slots)

    def corrupt(self, batch: Batch, draws: Draws, lexicon: Lexicon) -> Batch:
        """Finds the spans among what was selected."""
        assert self.slots is not None  # set by `resolved`
        positions_BP, weights_BP = batch["mlm/positions"], batch["mlm/weights"]
        vocabulary, labels_BP = lexicon.vocabulary, batch["mlm/labels"]
        text_BP = (labels_BP != vocabulary.cls_id) & (labels_BP != vocabulary.sep_id)
        text_BP &= weights_BP > 0
        slots_2BP = runs(positions_BP, text_BP)
        first_BP, last_BP = np.take_along_axis(positions_BP[None], slots_2BP, axis=2)
        if "mlm/offsets" in batch:  # tokens of one place, a slot for each
            place_BP = np.arange(positions_BP.shape[1]) - slots_2BP[0]
        else:
            place_BP = positions_BP - first_BP
        live_BP = text_BP & (place_BP < self.slots)
        if self.endpoints == "external":
            first_BP, last_BP = first_BP - 1, last_BP + 1
            seen_BL = candidates(batch, lexicon)
            row, slot = np.nonzero(weights_BP)
            seen_BL[row, positions_BP[row, slot]] = False
            # A column of nothing before the row and one after it.
            seen_BL = np.pad(seen_BL, ((0, 0), (1, 1)))
            for end_BP in (first_BP, last_BP):
                live_BP &= np.take_along_axis(seen_BL, end_BP + 1, axis=1)
        return batch | {
            "sbo/left": np.where(live_BP, first_BP, 0).astype(np.int32),
            "sbo/right": np.where(live_BP, last_BP, 0).astype(np.int32),
            "sbo/place": np.where(live_BP, place_BP, 0).astype(np.int32),
            "sbo/weights": weights_BP * live_BP,
        }

    def counts(self, batch: DeviceBatch) -> Terms:
        """Counts predictions."""
        count = jnp.sum(batch["sbo/weights"])
        return {"sbo_loss": count, "sbo_accuracy": count}

    def flops(self, model: EncoderConfig, length: int, slots: int) -> float:
        """Counts the second scores of the selected positions."""
        return boundary_flops(model, slots)

    def sums(self, model: EncoderModel, outputs: Outputs, batch: DeviceBatch) -> Terms:
        """Adds up cross-entropy and hits."""
        scores = model.boundary_scores(
            outputs, batch["sbo/left"], batch["sbo/right"], batch["sbo/place"]
        )
        found, weights_BP = predicted(scores, batch["mlm/labels"]), batch["sbo/weights"]
        return {
            "sbo_loss": jnp.sum(found.loss_BP * weights_BP),
            "sbo_accuracy": jnp.sum(found.hit_BP * weights_BP),
        }
