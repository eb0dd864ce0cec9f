"""Masked language modelling.

Shapes: B batch, L length, P prediction slots, D width, V vocabulary.
"""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from encoderjax.data.forms import FORMS
from encoderjax.data.pipeline import Batch, DataConfig, Lexicon
from encoderjax.data.random import Draws
from encoderjax.errors import UserError
from encoderjax.models.config import EncoderConfig
from encoderjax.models.encoder import Outputs
from encoderjax.models.flops import vocabulary_flops
from encoderjax.models.heads import EncoderModel
from encoderjax.objectives.masking import Count
from encoderjax.objectives.objective import DeviceBatch, Objective, Terms
from encoderjax.objectives.rates import checked_rate, largest_rate, row_rates
from encoderjax.objectives.replacement import (
    KEPT,
    MASKED,
    REPLACED,
    SIMILAR,
    Replacement,
    replace_selected,
)
from encoderjax.objectives.selectors import (
    SELECTORS,
    Select,
    default_slots,
    options_of,
)
from encoderjax.objectives.single_masks import collapsed
from encoderjax.objectives.spans import SpanLengths
from encoderjax.objectives.vocabulary_loss import Predicted, predicted

KINDS = {"masked": MASKED, "replaced": REPLACED, "kept": KEPT}
# Of runs that put similar words in.
ALL_KINDS = {**KINDS, "similar": SIMILAR}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedLM(Objective):
    """Predicts selected tokens from their surroundings.

    Batch keys, all [B, P]: `mlm/positions` int32, `mlm/labels` int32 (the original
    tokens), `mlm/weights` float32 (0 in unused slots), `mlm/kinds` int32 (whether the
    token was masked, replaced, kept or gave way to a similar word). Where a row may
    ask for more slots than it has: `mlm/dropped` float32 [B], how many tokens were left
    out. Where lengths of n-grams or spans are drawn: `mlm/drawn` int32 [B, longest],
    how often each was. With phrases: `mlm/phrases` int32 [B], how many of the tokens
    belong to one. Where one mask stands for a span: `mlm/offsets` int32 [B, P], the
    token's number at its place; rows are then shorter than their text.

    Attributes:
      rate: share of a row's tokens to predict: a number; `(low, high)` to draw from for
        each row; `dict(first=, last=, steps=)`, a straight line over the first steps
        (evaluation has the last); or `density`, less where the text is less
        predictable.
      select: `tokens` one by one; whole `words`; `ngrams` of words (ALBERT);
        `ngram_windows`, an n-gram in each window (DeBERTa); `phrases` of a list, and
        words outside of them (ERNIE); `spans` of words (SpanBERT); tokens `weighted` by
        rarity (DistilBERT); tokens drawn `with_replacement` (ELECTRA).
      count: of tokens and words: `exact` rounds the rate of the row's length;
        `bernoulli` decides for each by itself (ModernBERT, Hugging Face);
        `probabilistic` rounds up or down at random (fairseq). With the last two, the
        rate of `words` is that of words, not tokens. Other selectors have their own.
      specials: of tokens and words: whether [CLS] and [SEP] may be selected (fairseq,
        ModernBERT).
      max_ngram: words of the longest n-gram.
      ngram_shares: how often n-grams of 1, 2, ... words are drawn; None = as 1 / n.
      phrases: a file with a phrase or an entity a line.
      phrase_share: of the predictions that phrases have, as far as there are enough;
        None = a phrase is drawn as often as a word outside of them (ERNIE).
      span: how many words a span has.
      span_masks: whether `each` token of a span is replaced by itself, or a `single`
        [MASK] or random token stands for the whole span, from which all its tokens are
        predicted (notes on SpanBERT). A span that is kept stays as it is.
      tokens_per_mask: how many tokens a single one stands for; a longer run of
        neighbours has several. By default model.mask_slots.
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
    ngram_shares: tuple[float, ...] | None = None
    phrases: str | None = None
    phrase_share: float | None = None
    span: SpanLengths = dataclasses.field(default_factory=SpanLengths)
    span_masks: Literal["each", "single"] = "each"
    tokens_per_mask: int | None = None
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
        self._check_shares()
        self._check_options()
        self._check_span_masks()

    # A property in place of the class's dictionary: only one setting excludes anything.
    @property
    def excludes(self) -> Mapping[str, str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The objectives that it cannot stand beside, and why."""
        if self.span_masks == "each":
            return {}
        why = (
            f"with span_masks={self.span_masks!r}, one place stands for several tokens"
        )
        moved = f"{why}, and its labels name places of the longer row"
        return {
            **dict.fromkeys(("deletion", "insertion", "reordering"), moved),
            "rtd": f"{why}, of which a generator can put in one",
            "distillation": f"{why}, and a teacher has learned one token a place",
        }

    def _check_shares(self) -> None:
        shares = self.ngram_shares
        if shares is not None and (
            len(shares) != self.max_ngram or min(shares) < 0 or sum(shares) <= 0
        ):
            raise UserError(
                f"objectives.mlm.ngram_shares={shares} must be a share of each length "
                f"up to objectives.mlm.max_ngram={self.max_ngram}, none below 0"
            )
        if not 0.0 <= (self.phrase_share or 0.0) <= 1.0:
            raise UserError(
                f"objectives.mlm.phrase_share={self.phrase_share} must be in [0, 1], "
                "or None"
            )
        if self.phrases is not None and self.select != "phrases":
            raise UserError(
                f"objectives.mlm.phrases={self.phrases} is not read with select="
                f"{self.select!r}; leave it out, or select 'phrases'"
            )
        whole = [name for name, found in SELECTORS.items() if found.whole_words]
        if self.replace.similar and self.select not in whole:
            raise UserError(
                f"objectives.mlm.replace.similar={self.replace.similar} needs whole "
                f"words, which select={self.select!r} may cut; select "
                f"{' or '.join(whole)}"
            )

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

    def _check_span_masks(self) -> None:
        """Refuses what one mask for a span does not go with."""
        where = f"objectives.mlm.span_masks={self.span_masks!r}"
        if self.span_masks == "each":
            if self.tokens_per_mask is not None:
                raise UserError(
                    f"objectives.mlm.tokens_per_mask={self.tokens_per_mask} has no "
                    f"meaning with {where}; leave it out, or set that to 'single'"
                )
            return
        if self.select != "spans":
            raise UserError(
                f"{where} has no meaning with select={self.select!r}; leave it out, or "
                "select spans"
            )
        if self.replace.unit != "span":
            raise UserError(
                f"{where} makes one choice for a span: objectives.mlm.replace.unit="
                f"{self.replace.unit!r} must be 'span'"
            )

    def _tokens_per_mask(self, data: DataConfig, model: EncoderConfig) -> int | None:
        """Returns how many tokens one mask stands for; None = one mask a token."""
        if self.span_masks == "each":
            return None
        if FORMS[data.form].parallel:
            raise UserError(
                f"objectives.mlm.span_masks={self.span_masks!r} does not go with "
                f"data.form={data.form!r}, whose positions and languages are those of "
                "the text as it is; choose another form"
            )
        if model.mask_slots < 2:
            raise UserError(
                f"objectives.mlm.span_masks={self.span_masks!r} needs a model that "
                "predicts several tokens at a place: model.mask_slots="
                f"{model.mask_slots} must be at least 2, such as 15"
            )
        number = self.tokens_per_mask
        number = model.mask_slots if number is None else number
        if not 2 <= number <= model.mask_slots:
            raise UserError(
                f"objectives.mlm.tokens_per_mask={number} must be in 2.."
                f"{model.mask_slots}, model.mask_slots"
            )
        return number

    def resolved(self, data: DataConfig, model: EncoderConfig) -> "MaskedLM":
        """Fills in the number of slots; refuses rows that it would misread."""
        if data.bidirectional:
            raise UserError(
                "objectives.mlm does not go with data.bidirectional=True: half of the "
                "rows hold their text backwards, which only plm tells the model"
            )
        if self.select == "phrases" and self.phrases is None:
            raise UserError(
                "objectives.mlm.select='phrases' needs objectives.mlm.phrases: a file "
                "with a phrase or an entity a line"
            )
        rate = largest_rate(checked_rate(self.rate))
        slots = self.max_predictions or default_slots(
            self.select, self.count, rate, data.length
        )
        slots = min(max(1, slots), data.length)
        return dataclasses.replace(
            self,
            max_predictions=slots,
            tokens_per_mask=self._tokens_per_mask(data, model),
        )

    @property
    def kinds(self) -> dict[str, int]:
        """What may happen to a token, each with a metric of its own."""
        return ALL_KINDS if self.replace.similar else KINDS

    @property
    def word_lists(self) -> dict[str, tuple[str, str]]:
        """The phrases and the similar words, where they are asked for."""
        paths = {
            "phrases": ("objectives.mlm.phrases", self.phrases),
            "similar": (
                "objectives.mlm.replace.similar_words",
                self.replace.similar_words,
            ),
        }
        return {name: (field, path) for name, (field, path) in paths.items() if path}

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
        if selected.phrases_B is not None:
            out["mlm/phrases"] = selected.phrases_B
        if self.span_masks == "single":
            assert self.tokens_per_mask is not None  # set by `resolved`
            return collapsed(out, selected.weights_BP, self.tokens_per_mask, lexicon)
        return out

    def counts(self, batch: DeviceBatch) -> Terms:
        """Counts predictions, all and by kind."""
        ones_BP = jnp.ones_like(batch["mlm/weights"])
        return _by_kind(batch, self.kinds, loss=ones_BP, accuracy=ones_BP)

    def flops(self, model: EncoderConfig, length: int, slots: int) -> float:
        """Counts the scores at the selected positions."""
        return vocabulary_flops(model, length, slots)

    def sums(self, model: EncoderModel, outputs: Outputs, batch: DeviceBatch) -> Terms:
        """Adds up cross-entropy and hits at the selected positions only."""
        scores = model.mlm_scores(
            outputs, batch["mlm/positions"], offsets_BP=batch.get("mlm/offsets")
        )
        found = predicted(scores, batch["mlm/labels"])
        return mlm_terms(found, batch, self.kinds)


def mlm_terms(
    found: Predicted, batch: DeviceBatch, kinds: Mapping[str, int] = KINDS
) -> Terms:
    """Returns the summed terms of what was predicted at the selected positions."""
    return _by_kind(batch, kinds, loss=found.loss_BP, accuracy=found.hit_BP)


def _by_kind(
    batch: DeviceBatch, kinds: Mapping[str, int], **values_BP: jax.Array
) -> Terms:
    """Sums weighted values over all slots, and apart for each kind."""
    weights_BP, kinds_BP = batch["mlm/weights"], batch["mlm/kinds"]
    terms = {}
    for metric, value_BP in values_BP.items():
        weighted_BP = value_BP * weights_BP
        terms[f"mlm_{metric}"] = jnp.sum(weighted_BP)
        for kind, number in kinds.items():
            chosen_BP = jnp.where(kinds_BP == number, weighted_BP, 0.0)
            terms[f"mlm_{metric}_{kind}"] = jnp.sum(chosen_BP)
    return terms
