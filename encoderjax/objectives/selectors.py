"""The selectors of the masked-LM objective, with what each can be told."""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from encoderjax.objectives.masking import Selected, select_tokens, select_words
from encoderjax.objectives.ngrams import select_ngram_windows, select_ngrams
from encoderjax.objectives.phrases import select_phrases
from encoderjax.objectives.sampling import select_weighted, select_with_replacement
from encoderjax.objectives.spans import select_spans

Select = Literal[
    "tokens",
    "words",
    "ngrams",
    "ngram_windows",
    "phrases",
    "spans",
    "weighted",
    "with_replacement",
]


def _rounded(share: float) -> int:
    return round(share)


def _rounded_and_a_word(share: float) -> int:
    """The count may be passed by a word; one of eight pieces always fits."""
    return max(1, round(share)) + 7


class Selector(NamedTuple):
    """One way to select.

    Attributes:
      select: (batch, rate, slots, draws, lexicon, **options) -> Selected.
      options: the fields of MaskedLM that it takes.
      slots: from the share of a full row to the slots that an exact count needs.
      can_drop: whether it may select more than there are slots at an exact count.
      whole_words: whether no word is selected in part.
    """

    select: Callable[..., Selected]
    options: tuple[str, ...] = ()
    slots: Callable[[float], int] = _rounded
    can_drop: bool = False
    whole_words: bool = False


_NGRAMS = ("max_ngram", "ngram_shares")
SELECTORS: dict[str, Selector] = {
    "tokens": Selector(select_tokens, ("count", "specials")),
    "words": Selector(select_words, ("count", "specials"), whole_words=True),
    "ngrams": Selector(select_ngrams, _NGRAMS, whole_words=True),
    "ngram_windows": Selector(
        select_ngram_windows, _NGRAMS, _rounded_and_a_word, can_drop=True
    ),
    "phrases": Selector(select_phrases, ("phrase_share",), whole_words=True),
    "spans": Selector(select_spans, ("span",), math.ceil),
    "weighted": Selector(select_weighted, ("smoothing",), math.ceil),
    "with_replacement": Selector(select_with_replacement),
}


def default_slots(select: Select, count: str, rate: float, length: int) -> int:
    """Returns the slots of a row: what an exact count needs, or mean + 6 deviations."""
    share = rate * length
    if count == "exact":
        return SELECTORS[select].slots(share)
    if select == "tokens" and count == "probabilistic":
        return math.ceil(share)
    # Whole words vary more; that of n words is their sizes' alone.
    pieces = 2 if select == "words" and count == "bernoulli" else 1
    return math.ceil(share + 6 * math.sqrt(pieces * share * (1.0 - rate)))


def options_of(select: Select, fields: Any) -> dict[str, Any]:
    """Returns the options of a selector, read from the objective."""
    return {name: getattr(fields, name) for name in SELECTORS[select].options}
