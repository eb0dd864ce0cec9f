"""Deletion: tokens are taken out, and found missing.

Shapes: B batch, L length, P slots, V vocabulary.
"""

import dataclasses
import math
from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from encoderjax.data.pipeline import Batch, DataConfig, Lexicon
from encoderjax.data.random import Draws
from encoderjax.errors import UserError
from encoderjax.models.config import EncoderConfig
from encoderjax.models.encoder import Outputs
from encoderjax.models.flops import detection_flops, vocabulary_flops
from encoderjax.models.heads import EncoderModel
from encoderjax.objectives.denoising import Denoising, binary_counts, binary_sums
from encoderjax.objectives.edits import GAPS, at_slots, before, counted, edited, inside
from encoderjax.objectives.masking import (
    candidates,
    chosen_tokens,
    rounded_at_random,
    smallest_keys,
)
from encoderjax.objectives.objective import DeviceBatch, Terms
from encoderjax.objectives.vocabulary_loss import predicted

_NAMES = {
    "loss": "deletion_loss",
    "accuracy": "deletion_accuracy",
    "share": "deletion_gap_share",
    "positive": "deletion_accuracy_gap",
    "negative": "deletion_accuracy_whole",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Deletion(Denoising):
    """Tells after which tokens some are missing, and which of them came first.

    The row closes up, and is padded where it ends. Neither the first nor the last token
    of a text is taken out: a gap has text on both sides to tell it by. Nor is one that
    equals a neighbour, since nobody could tell which of them is missing. The token that
    came first is predicted by a head of its own at the token before the gap, where the
    head of masked LM predicts what belongs at that place itself.

    Batch keys: `deletion/gaps` int32 [B, L] (1 = something is missing behind);
    `deletion/positions` int32, `deletion/labels` int32 (the first missing token) and
    `deletion/weights` float32 [B, P], the gaps in slots; `deletion/deleted` float32
    [B], how many tokens were taken out.

    Terms: `deletion_loss`, `deletion_accuracy` by real token, [CLS] and [SEP] too, with
    the accuracies of those before gaps, `deletion_accuracy_gap`, and of all others,
    `deletion_accuracy_whole`, and the share of the former, `deletion_gap_share`;
    `missing_loss`, `missing_accuracy` by gap.

    Attributes:
      token_weight: of the loss of missing tokens, times `weight`; that of gaps has 1.
      max_predictions: slots of a row; by default what the rate asks of a full row. At
        most so many tokens are taken out.
    """

    name: ClassVar[str] = "deletion"
    heads: ClassVar[tuple[str, ...]] = ("deletion", "missing")

    token_weight: float = 1.0
    max_predictions: int | None = None

    def __post_init__(self):
        super().__post_init__()
        if self.token_weight < 0:
            raise UserError(
                f"objectives.deletion.token_weight={self.token_weight} must be at "
                "least 0"
            )
        if self.max_predictions is not None and self.max_predictions < 1:
            raise UserError(
                f"objectives.deletion.max_predictions={self.max_predictions} must be "
                "at least 1, or None for what the rate asks of a full row"
            )

    @property
    def loss_weights(self) -> dict[str, float]:
        """Returns the weight of each term that enters the loss."""
        tokens = self.weight * self.token_weight
        return {"deletion_loss": self.weight, "missing_loss": tokens}

    def resolved(self, data: DataConfig, model: EncoderConfig) -> "Deletion":
        """Fills in the number of slots."""
        super().resolved(data, model)
        slots = self.max_predictions or math.ceil(self.rate * data.length)
        return dataclasses.replace(self, max_predictions=min(slots, data.length))

    # ---- host ----

    def corrupt(self, batch: Batch, draws: Draws, lexicon: Lexicon) -> Batch:
        """Takes tokens out."""
        assert self.max_predictions is not None  # set by `resolved`
        text_BL, slots = candidates(batch, lexicon), self.max_predictions
        length = text_BL.shape[1]
        counts_B = rounded_at_random(
            self.rate * text_BL.sum(axis=1), draws, "deletion/round"
        )
        keys_BL = draws.bits("deletion/select", length)
        equal_BL = np.zeros_like(text_BL)
        equal_BL[:, 1:] = batch["ids"][:, 1:] == batch["ids"][:, :-1]
        may_go_BL = inside(text_BL) & ~equal_BL & ~before(equal_BL)
        chosen = smallest_keys(keys_BL, may_go_BL, counts_B, slots)
        deleted_BL = at_slots(chosen.positions_BP, chosen.weights_BP > 0, length)
        kept_BL = batch["mask"] & ~deleted_BL
        edit = edited(batch, kept_BL, np.zeros_like(kept_BL), lexicon)

        gaps_BL = edit.batch["mask"] & before(edit.batch["mask"])
        gaps_BL[:, :-1] &= np.diff(edit.source_BL, axis=1) > 1
        positions_BP, weights_BP = chosen_tokens(gaps_BL, slots)
        source_BP = np.take_along_axis(edit.source_BL, positions_BP, axis=1)
        # Unused slots have the place 0, which may be padding.
        first_BP = np.clip(source_BP + 1, 0, length - 1)
        labels_BP = np.take_along_axis(batch["ids"], first_BP, axis=1)
        return edit.batch | {
            GAPS: gaps_BL.astype(np.int32),
            "deletion/positions": positions_BP.astype(np.int32),
            "deletion/labels": labels_BP.astype(np.int32),
            "deletion/weights": weights_BP * batch["row_weights"][:, None],
            "deletion/deleted": counted(deleted_BL, batch),
        }

    # ---- device ----

    def counts(self, batch: DeviceBatch) -> Terms:
        """Counts real tokens, and gaps."""
        gaps = jnp.sum(batch["deletion/weights"])
        counts = binary_counts(batch, batch[GAPS], _NAMES)
        return counts | {"missing_loss": gaps, "missing_accuracy": gaps}

    def flops(self, model: EncoderConfig, length: int, slots: int) -> float:
        """Counts a score of every token, and those of the vocabulary at the gaps."""
        plain = dataclasses.replace(model, mask_decoder_layers=0)
        scores = vocabulary_flops(plain, length, slots)
        return detection_flops(model, length) + scores

    def sums(self, model: EncoderModel, outputs: Outputs, batch: DeviceBatch) -> Terms:
        """Adds up the losses and hits of all tokens, and of the gaps."""
        scores_BL = model.detection_logits(outputs, self.name)
        scores = model.missing_scores(outputs, batch["deletion/positions"])
        found = predicted(scores, batch["deletion/labels"])
        weights_BP = batch["deletion/weights"]
        return binary_sums(batch, batch[GAPS], scores_BL, _NAMES) | {
            "missing_loss": jnp.sum(found.loss_BP * weights_BP),
            "missing_accuracy": jnp.sum(found.hit_BP * weights_BP),
        }
