"""Masked language modelling.

Shapes: B batch, L length, P prediction slots, D width, V vocabulary.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from encoderjax.data.pipeline import Batch, DataConfig, Lexicon
from encoderjax.data.random import Draws
from encoderjax.errors import UserError
from encoderjax.models.config import EncoderConfig
from encoderjax.models.encoder import Outputs
from encoderjax.models.flops import vocabulary_flops
from encoderjax.models.heads import EncoderModel
from encoderjax.objectives.masking import (
    KEPT,
    MASKED,
    REPLACED,
    Count,
    Replacement,
    replace_selected,
)
from encoderjax.objectives.objective import DeviceBatch, Objective, Terms
from encoderjax.objectives.rates import checked_rate, largest_rate, row_rates
from encoderjax.objectives.selectors import (
    SELECTORS,
    Select,
    default_slots,
    options_of,
)
from encoderjax.objectives.spans import SpanLengths
from encoderjax.objectives.vocabulary_loss import Predicted, predicted

KINDS = {"masked": MASKED, "replaced": REPLACED, "kept": KEPT}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedLM(Objective):
    """Predicts selected tokens from their surroundings.

    Batch keys, all [B, P]: `mlm/positions` int32, `mlm/labels` int32 (the original
    tokens), `mlm/weights` float32 (0 in unused slots), `mlm/kinds` int32 (whether the
    token was masked, replaced or kept). Where a row may ask for more slots than it has:
    `mlm/dropped` float32 [B], how many tokens were left out. Where lengths of n-grams
    or spans are drawn: `mlm/drawn` int32 [B, longest], how often each was.

    Attributes:
      rate: share of a row's tokens to predict: a number; `(low, high)` to draw from for
        each row; `dict(first=, last=, steps=)`, a straight line over the first steps
        (evaluation has the last); or `density`, less where the text is less
        predictable.
      select: `tokens` one by one; whole `words`; `ngrams` of words (ALBERT);
        `ngram_windows`, an n-gram in each window (DeBERTa); `spans` of words
        (SpanBERT); tokens `weighted` by rarity (DistilBERT); tokens drawn
        `with_replacement` (ELECTRA).
      count: of tokens and words: `exact` rounds the rate of the row's length;
        `bernoulli` decides for each by itself (ModernBERT, Hugging Face);
        `probabilistic` rounds up or down at random (fairseq). With the last two, the
        rate of `words` is that of words, not tokens. Other selectors have their own.
      specials: of tokens and words: whether [CLS] and [SEP] may be selected (fairseq,
        ModernBERT).
      max_ngram: words of the longest n-gram.
      span: how many words a span has.
      smoothing: of the frequencies that `weighted` goes by: 0 = all alike.
      max_predictions: slots of a row; by default what the rate asks of a full row, or
        its mean and six standard deviations where the count varies. Of more, a random
        subset is predicted and the rest left as it is.
      replace: what stands in the place of selected tokens.
    """

    name: ClassVar[str] = "mlm"
    heads: ClassVar[tuple[str, ...]] = ("mlm",)

    rate: object = 0.15  # a RateSetting
    select: Select = "tokens"
    count: Count = "exact"
    specials: bool = False
    max_ngram: int = 3
    span: SpanLengths = dataclasses.field(default_factory=SpanLengths)
    smoothing: float = 0.7
    max_predictions: int | None = None
    replace: Replacement = dataclasses.field(default_factory=Replacement)

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "rate", checked_rate(self.rate))
        if self.max_predictions is not None and self.max_predictions < 1:
            raise UserError(
                f"objectives.mlm.max_predictions={self.max_predictions} must be at "
                "least 1, or None for what the rate asks of a full row"
            )
        if self.max_ngram < 1:
            raise UserError(
                f"objectives.mlm.max_ngram={self.max_ngram} must be at least 1"
            )
        if self.smoothing < 0:
            raise UserError(
                f"objectives.mlm.smoothing={self.smoothing} must be at least 0"
            )
        self._check_options()

    def _check_options(self) -> None:
        """Refuses an option that the selector would not read."""
        read = SELECTORS[self.select].options
        options = {o for selector in SELECTORS.values() for o in selector.options}
        for name in sorted(options.difference(read)):
            value, default = getattr(self, name), getattr(MaskedLM, name, SpanLengths())
            if value != default:
                able = [n for n, s in SELECTORS.items() if name in s.options]
                raise UserError(
                    f"objectives.mlm.{name}={value} has no meaning with select="
                    f"{self.select!r}; leave it out, or select {' or '.join(able)}"
                )

    def resolved(self, data: DataConfig, model: EncoderConfig) -> "MaskedLM":
        """Fills in the number of slots; refuses rows that it would misread."""
        if data.bidirectional:
            raise UserError(
                "objectives.mlm does not go with data.bidirectional=True: half of the "
                "rows hold their text backwards, which only plm tells the model"
            )
        rate = largest_rate(checked_rate(self.rate))
        slots = self.max_predictions or default_slots(
            self.select, self.count, rate, data.length
        )
        slots = min(max(1, slots), data.length)
        return dataclasses.replace(self, max_predictions=slots)

    def corrupt(self, batch: Batch, draws: Draws, lexicon: Lexicon) -> Batch:
        """Selects and replaces."""
        assert self.max_predictions is not None  # set by `resolved`
        selector = SELECTORS[self.select]
        rate = row_rates(checked_rate(self.rate), batch, draws, lexicon)
        selected = selector.select(
            batch,
            rate,
            self.max_predictions,
            draws,
            lexicon,
            **options_of(self.select, self),
        )
        positions_BP, weights_BP = selected
        ids_BL, kinds_BP = replace_selected(
            batch["ids"], positions_BP, weights_BP, self.replace, draws, lexicon
        )
        labels_BP = np.take_along_axis(batch["ids"], positions_BP, axis=1)
        out = batch | {
            "ids": ids_BL,
            "mlm/positions": positions_BP.astype(np.int32),
            "mlm/labels": labels_BP.astype(np.int32),
            "mlm/weights": weights_BP * batch["row_weights"][:, None],
            "mlm/kinds": kinds_BP,
        }
        if selector.can_drop or self.count != "exact":
            out["mlm/dropped"] = selected.dropped_B * batch["row_weights"]
        if selected.drawn_BS is not None:
            out["mlm/drawn"] = selected.drawn_BS
        return out

    def counts(self, batch: DeviceBatch) -> Terms:
        """Counts predictions, all and by kind."""
        ones_BP = jnp.ones_like(batch["mlm/weights"])
        return _by_kind(batch, loss=ones_BP, accuracy=ones_BP)

    def flops(self, model: EncoderConfig, length: int, slots: int) -> float:
        """Counts the scores at the selected positions."""
        return vocabulary_flops(model, length, slots)

    def sums(self, model: EncoderModel, outputs: Outputs, batch: DeviceBatch) -> Terms:
        """Adds up cross-entropy and hits at the selected positions only."""
        scores = model.mlm_scores(outputs, batch["mlm/positions"])
        return mlm_terms(predicted(scores, batch["mlm/labels"]), batch)


def mlm_terms(found: Predicted, batch: DeviceBatch) -> Terms:
    """Returns the summed terms of what was predicted at the selected positions."""
    return _by_kind(batch, loss=found.loss_BP, accuracy=found.hit_BP)


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
