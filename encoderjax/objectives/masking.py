"""Which tokens are predicted, and what stands in their place: numpy, whole batches.

A selector returns prediction slots: sorted positions [B, P] and weights [B, P], with
position 0 and weight 0 in unused slots. The replacement is drawn for the slots.

Shapes: B rows, L length, P prediction slots, W words of a row.
"""

import dataclasses
from typing import Literal

import numpy as np

from encoderjax.data.pipeline import Batch, Lexicon
from encoderjax.data.random import Draws
from encoderjax.errors import UserError

MASKED, REPLACED, KEPT = 0, 1, 2  # what happened to a predicted token


@dataclasses.dataclass(frozen=True, kw_only=True)
class Replacement:
    """What stands in place of a predicted token: [MASK], a random one, or itself.

    Attributes:
      mask: share that becomes [MASK].
      random: share that becomes a random token; the rest stays as it is.
      distribution: of random tokens: `uniform` over the whole vocabulary, special
        tokens included, as BERT did; `ordinary` over tokens that are not special;
        `unigram` as often as in the training text.
    """

    mask: float = 0.8
    random: float = 0.1
    distribution: Literal["uniform", "ordinary", "unigram"] = "uniform"

    def __post_init__(self):
        if min(self.mask, self.random) < 0 or self.mask + self.random > 1 + 1e-9:
            raise UserError(
                f"objectives.mlm.replace: mask={self.mask} and random={self.random} "
                "must not be negative nor exceed 1 together"
            )


def candidates(batch: Batch, lexicon: Lexicon) -> np.ndarray:
    """Returns bool [B, L]: real tokens other than [CLS] and [SEP]."""
    vocabulary, ids_BL = lexicon.vocabulary, batch["ids"]
    special_BL = (ids_BL == vocabulary.cls_id) | (ids_BL == vocabulary.sep_id)
    return batch["mask"] & ~special_BL


def prediction_counts(mask_BL: np.ndarray, rate: float, slots: int) -> np.ndarray:
    """Returns how many tokens of each row are predicted, [B].

    BERT's rule: the share of the length, [CLS] and [SEP] counted, half rounded to
    even, at least one, at most the slots.
    """
    wanted_B = np.rint(rate * mask_BL.sum(axis=1, dtype=np.int64).astype(np.float64))
    return np.clip(wanted_B, 1, slots).astype(np.int64)


def select_tokens(
    batch: Batch, rate: float, slots: int, draws: Draws, lexicon: Lexicon
) -> tuple[np.ndarray, np.ndarray]:
    """Chooses single tokens, each as likely as any other, without replacement."""
    candidates_BL = candidates(batch, lexicon)
    counts_B = prediction_counts(batch["mask"], rate, slots)
    counts_B = np.minimum(counts_B, candidates_BL.sum(axis=1))
    # Random keys with the position in their low bits: one sort gives a random order
    # and its positions. Ties in the random bits are rare and broken by position.
    length = candidates_BL.shape[1]
    place_bits = max(1, (length - 1).bit_length())
    keys_BL = draws.bits("mlm/select", length)
    if place_bits > 10:  # keep at least 22 random bits
        keys_BL = keys_BL.astype(np.uint64) << np.uint64(place_bits)
    low = keys_BL.dtype.type((1 << place_bits) - 1)
    places_L = np.arange(length, dtype=keys_BL.dtype)
    keys_BL = (keys_BL & ~low) | places_L
    keys_BL[~candidates_BL] = np.iinfo(keys_BL.dtype).max
    keys_BL.sort(axis=1)
    positions_BP = (keys_BL[:, :slots] & low).astype(np.int64)
    used_BP = np.arange(positions_BP.shape[1]) < counts_B[:, None]
    return _slots(np.where(used_BP, positions_BP, length), length, slots)


def select_words(
    batch: Batch, rate: float, slots: int, draws: Draws, lexicon: Lexicon
) -> tuple[np.ndarray, np.ndarray]:
    """Chooses whole words in random order, as many tokens as fit the count.

    A piece that continues a word belongs to the candidate before it, even across a
    separator, as in BERT's code. A word larger than what is left of the count is
    passed over, so a row may end below its count.
    """
    candidates_BL = candidates(batch, lexicon)
    left_B = prediction_counts(batch["mask"], rate, slots)
    continues_BL = lexicon.vocabulary.continues_word_V[batch["ids"]]
    starts_BL = candidates_BL & ~continues_BL
    first_B = candidates_BL.argmax(axis=1)
    starts_BL[np.arange(len(first_B)), first_B] |= candidates_BL.any(axis=1)
    word_BL = np.cumsum(starts_BL, axis=1) - 1
    num_rows, length = word_BL.shape
    num_words = int(word_BL.max(initial=0)) + 1
    rows_B = np.arange(num_rows)

    flat = (rows_B[:, None] * num_words + word_BL)[candidates_BL]
    sizes_BW = np.bincount(flat, minlength=num_rows * num_words)
    sizes_BW = sizes_BW.reshape(num_rows, num_words)
    # Stable: the order of a row's words does not depend on the words of other rows.
    order_BW = np.argsort(draws.bits("mlm/select", num_words), axis=1, kind="stable")
    chosen_BW = np.zeros((num_rows, num_words), bool)
    for column in range(num_words):
        word_B = order_BW[:, column]
        size_B = sizes_BW[rows_B, word_B]
        take_B = (size_B > 0) & (size_B <= left_B)
        chosen_BW[rows_B, word_B] = take_B
        left_B = left_B - np.where(take_B, size_B, 0)
        if not left_B.any():
            break
    chosen_BL = candidates_BL & np.take_along_axis(
        chosen_BW, np.maximum(word_BL, 0), axis=1
    )
    return _slots(np.where(chosen_BL, np.arange(length), length), length, slots)


SELECTORS = {"tokens": select_tokens, "words": select_words}


def _slots(
    positions: np.ndarray, length: int, slots: int
) -> tuple[np.ndarray, np.ndarray]:
    """Sorts positions (`length` = unused) into slots and weights, both [B, P]."""
    positions = np.sort(positions, axis=1)[:, :slots]
    missing = slots - positions.shape[1]
    positions_BP = np.pad(positions, ((0, 0), (0, missing)), constant_values=length)
    used_BP = positions_BP < length
    return np.where(used_BP, positions_BP, 0), used_BP.astype(np.float32)


def replace_selected(
    ids_BL: np.ndarray,
    positions_BP: np.ndarray,
    weights_BP: np.ndarray,
    replacement: Replacement,
    draws: Draws,
    lexicon: Lexicon,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the corrupted ids [B, L], and what happened to each slot [B, P]."""
    slots = positions_BP.shape[1]
    share_BP = draws.uniform("mlm/replace", slots)
    kinds_BP = np.full(share_BP.shape, KEPT, np.int32)
    kinds_BP[share_BP < replacement.mask + replacement.random] = REPLACED
    kinds_BP[share_BP < replacement.mask] = MASKED

    old_BP = np.take_along_axis(ids_BL, positions_BP, axis=1)
    random_BP = _random_tokens(slots, replacement, draws, lexicon)
    new_BP = np.where(kinds_BP == REPLACED, random_BP, old_BP)
    new_BP = np.where(kinds_BP == MASKED, lexicon.vocabulary.mask_id, new_BP)
    out_BL = ids_BL.copy()
    row, slot = np.nonzero(weights_BP)
    out_BL[row, positions_BP[row, slot]] = new_BP[row, slot]
    return out_BL, kinds_BP


def _random_tokens(
    slots: int, replacement: Replacement, draws: Draws, lexicon: Lexicon
) -> np.ndarray:
    if replacement.distribution == "uniform":
        return draws.integers("mlm/random", slots, lexicon.vocabulary.size)
    if replacement.distribution == "ordinary":
        ordinary = lexicon.vocabulary.ordinary_ids
        return ordinary[draws.integers("mlm/random", slots, len(ordinary))]
    total = lexicon.cumulative_V[-1]
    # 53 random bits, because a corpus has more tokens than 32 bits can count.
    high, low = draws.bits("mlm/random", slots), draws.bits("mlm/random_low", slots)
    share = high * 2.0**-32 + low * 2.0**-64
    return np.searchsorted(
        lexicon.cumulative_V, (share * total).astype(np.int64), "right"
    )
