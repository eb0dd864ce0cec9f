"""What stands in the place of selected tokens: numpy, whole batches.

It is drawn for the slots that a selector returns (`masking.py`).

Shapes: B rows, L length, P prediction slots.
"""

import dataclasses
from typing import Literal

import numpy as np

from encoderjax.data.pipeline import Lexicon
from encoderjax.data.random import Draws
from encoderjax.errors import UserError
from encoderjax.objectives.random_tokens import Distribution, random_tokens
from encoderjax.objectives.similar import similar_tokens

MASKED, REPLACED, KEPT, SIMILAR = range(4)  # what happened to a predicted token


@dataclasses.dataclass(frozen=True, kw_only=True)
class Replacement:
    """What stands in place of a predicted token: [MASK], another one, or itself.

    Attributes:
      mask: share that becomes [MASK].
      similar: share of the words that become a similar word (MacBERT), or random tokens
        where there is none.
      random: share that becomes a random token; the rest stays as it is.
      similar_words: where similar words stand: a file with a word and those like it in
        each line, or the folder of a model, whose token table tells neighbours.
      distribution: of random tokens: `uniform` over the whole vocabulary, special
        tokens included, as BERT did; `ordinary` over tokens that are not special;
        `unigram` as often as in the training text.
      skip_first: with `uniform`, ids below this are never drawn (fairseq: 4).
      unit: what shares one choice between the three: each `token`; the pieces of a
        `word` (fairseq's whole words); the neighbours of a `span`, where spans that
        touch are one (SpanBERT). Random tokens differ from place to place.
    """

    mask: float = 0.8
    similar: float = 0.0
    random: float = 0.1
    similar_words: str | None = None
    distribution: Distribution = "uniform"
    skip_first: int = 0
    unit: Literal["token", "word", "span"] = "token"

    def __post_init__(self):
        shares = (self.mask, self.similar, self.random)
        if min(shares) < 0 or sum(shares) > 1 + 1e-9:
            also = f", similar={self.similar}" * (self.similar != 0)
            raise UserError(
                f"objectives.mlm.replace: mask={self.mask}{also} and random="
                f"{self.random} must not be negative nor exceed 1 together"
            )
        if (self.similar > 0) != (self.similar_words is not None):
            raise UserError(
                f"objectives.mlm.replace: similar={self.similar} and similar_words="
                f"{self.similar_words!r} go together: give the share and a file of "
                "similar words or the folder of a model, or neither"
            )
        if self.similar and self.unit != "word":
            raise UserError(
                f"objectives.mlm.replace.unit={self.unit!r} cannot be with similar="
                f"{self.similar}: whole words are replaced; set it to 'word'"
            )
        if self.skip_first < 0 or (self.skip_first and self.distribution != "uniform"):
            raise UserError(
                f"objectives.mlm.replace.skip_first={self.skip_first} must be at least "
                "0, and 0 unless distribution='uniform'"
            )


def replace_selected(
    ids_BL: np.ndarray,
    positions_BP: np.ndarray,
    weights_BP: np.ndarray,
    replacement: Replacement,
    draws: Draws,
    lexicon: Lexicon,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the corrupted ids [B, L], and what happened to each slot [B, P].

    A position that fills several slots is decided once.
    """
    slots = positions_BP.shape[1]
    old_BP = np.take_along_axis(ids_BL, positions_BP, axis=1)
    share_BP = draws.uniform("mlm/replace", slots)

    repeats_BP = _repeats(positions_BP, weights_BP, distance=0)
    joins_BP = repeats_BP
    if replacement.unit != "token":
        next_BP = _repeats(positions_BP, weights_BP, distance=1)
        if replacement.unit == "word":
            next_BP &= lexicon.vocabulary.continues_word_V[old_BP]
        joins_BP = repeats_BP | next_BP
    share_BP = _of_the_first(share_BP, joins_BP)
    kinds_BP = np.full(share_BP.shape, KEPT, np.int32)
    others = replacement.mask + replacement.similar
    kinds_BP[share_BP < others + replacement.random] = REPLACED
    found_BP = old_BP
    if replacement.similar:
        wanted_BP = (share_BP < others) & (share_BP >= replacement.mask)
        similar_BP, found_BP = similar_tokens(
            old_BP, wanted_BP & (weights_BP > 0), joins_BP, draws, lexicon.similar
        )
        kinds_BP[similar_BP] = SIMILAR
    kinds_BP[share_BP < replacement.mask] = MASKED
    replaced_BP = kinds_BP == REPLACED
    random_BP = random_tokens(
        replaced_BP,
        replacement.distribution,
        draws,
        lexicon,
        site="mlm/random",
        skip_first=replacement.skip_first,
    )
    random_BP = _of_the_first(random_BP, repeats_BP)
    new_BP = np.where(replaced_BP, random_BP, found_BP)
    new_BP = np.where(kinds_BP == MASKED, lexicon.vocabulary.mask_id, new_BP)
    out_BL, used_BP = ids_BL.copy(), weights_BP > 0
    first_B1 = ids_BL.shape[1] * np.arange(len(ids_BL))[:, None]
    cell_BP = first_B1 + positions_BP
    out_BL.ravel()[cell_BP[used_BP]] = new_BP[used_BP]
    return out_BL, kinds_BP


def _repeats(
    positions_BP: np.ndarray, weights_BP: np.ndarray, distance: int
) -> np.ndarray:
    """Returns bool [B, P]: used slots that far after the position of the slot before.

    Used slots come first, so the slot before a used one is used.
    """
    found_BP = np.zeros(positions_BP.shape, bool)
    near_BP = positions_BP[:, 1:] - positions_BP[:, :-1] == distance
    found_BP[:, 1:] = near_BP & (weights_BP[:, 1:] > 0)
    return found_BP


def _of_the_first(values_BP: np.ndarray, joins_BP: np.ndarray) -> np.ndarray:
    """Returns for each slot the value of the first slot that it is joined to."""
    if not joins_BP.any():
        return values_BP
    slots_P = np.arange(joins_BP.shape[1])
    first_BP = np.maximum.accumulate(np.where(joins_BP, 0, slots_P), axis=1)
    return np.take_along_axis(values_BP, first_BP, axis=1)
