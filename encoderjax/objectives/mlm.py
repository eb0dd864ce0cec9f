"""Masked language modelling.

Shapes: B batch, L length, P prediction slots, D width, V vocabulary.
"""

import dataclasses
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from encoderjax.data.pipeline import Batch, DataConfig, Lexicon
from encoderjax.data.random import Draws
from encoderjax.errors import UserError
from encoderjax.models.config import EncoderConfig
from encoderjax.models.encoder import Outputs
from encoderjax.models.heads import EncoderModel
from encoderjax.objectives.masking import (
    KEPT,
    MASKED,
    REPLACED,
    SELECTORS,
    Replacement,
    replace_selected,
)
from encoderjax.objectives.objective import DeviceBatch, Objective, Terms

KINDS = {"masked": MASKED, "replaced": REPLACED, "kept": KEPT}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedLM(Objective):
    """Predicts selected tokens from their surroundings.

    Batch keys, all [B, P]: `mlm/positions` int32, `mlm/labels` int32 (the original
    tokens), `mlm/weights` float32 (0 in unused slots), `mlm/kinds` int32 (whether the
    token was masked, replaced or kept).

    Attributes:
      rate: share of a row's tokens to predict.
      select: `tokens` one by one, or whole `words`.
      max_predictions: slots of a row; by default what the rate asks of a full row.
      replace: what stands in the place of selected tokens.
    """

    name: ClassVar[str] = "mlm"
    heads: ClassVar[tuple[str, ...]] = ("mlm",)

    rate: float = 0.15
    select: Literal["tokens", "words"] = "tokens"
    max_predictions: int | None = None
    replace: Replacement = dataclasses.field(default_factory=Replacement)

    def __post_init__(self):
        super().__post_init__()
        if not 0.0 < self.rate <= 1.0:
            raise UserError(f"objectives.mlm.rate={self.rate} must be in (0, 1]")
        if self.max_predictions is not None and self.max_predictions < 1:
            raise UserError(
                f"objectives.mlm.max_predictions={self.max_predictions} must be at "
                "least 1, or None for what the rate asks of a full row"
            )

    def resolved(self, data: DataConfig, model: EncoderConfig) -> "MaskedLM":
        """Fills in the number of slots."""
        slots = self.max_predictions or max(1, round(self.rate * data.length))
        return dataclasses.replace(self, max_predictions=min(slots, data.length))

    def corrupt(self, batch: Batch, draws: Draws, lexicon: Lexicon) -> Batch:
        """Selects and replaces."""
        assert self.max_predictions is not None  # set by `resolved`
        select = SELECTORS[self.select]
        positions_BP, weights_BP = select(
            batch, self.rate, self.max_predictions, draws, lexicon
        )
        ids_BL, kinds_BP = replace_selected(
            batch["ids"], positions_BP, weights_BP, self.replace, draws, lexicon
        )
        labels_BP = np.take_along_axis(batch["ids"], positions_BP, axis=1)
        return batch | {
            "ids": ids_BL,
            "mlm/positions": positions_BP.astype(np.int32),
            "mlm/labels": labels_BP.astype(np.int32),
            "mlm/weights": weights_BP * batch["row_weights"][:, None],
            "mlm/kinds": kinds_BP,
        }

    def counts(self, batch: DeviceBatch) -> Terms:
        """Counts predictions, all and by kind."""
        ones_BP = jnp.ones_like(batch["mlm/weights"])
        return _by_kind(batch, loss=ones_BP, accuracy=ones_BP)

    def sums(self, model: EncoderModel, outputs: Outputs, batch: DeviceBatch) -> Terms:
        """Adds up cross-entropy and hits at the selected positions only."""
        logits_BPV = model.mlm_logits(outputs, batch["mlm/positions"])
        labels_BP = batch["mlm/labels"]
        loss_BP = optax.softmax_cross_entropy_with_integer_labels(logits_BPV, labels_BP)
        hit_BP = (jnp.argmax(logits_BPV, axis=-1) == labels_BP).astype(jnp.float32)
        return _by_kind(batch, loss=loss_BP, accuracy=hit_BP)


def _by_kind(batch: DeviceBatch, **values_BP: jax.Array) -> Terms:
    """Sums weighted values over all slots, and apart for each kind."""
    weights_BP, kinds_BP = batch["mlm/weights"], batch["mlm/kinds"]
    terms = {}
    for metric, value_BP in values_BP.items():
        weighted_BP = value_BP * weights_BP
        terms[f"mlm_{metric}"] = jnp.sum(weighted_BP)
        for kind, number in KINDS.items():
            chosen_BP = jnp.where(kinds_BP == number, weighted_BP, 0.0)
            terms[f"mlm_{metric}_{kind}"] = jnp.sum(chosen_BP)
    return terms
