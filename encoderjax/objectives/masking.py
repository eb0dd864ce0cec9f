"""Which tokens are predicted: numpy, whole batches.

A selector returns prediction slots: sorted positions [B, P] and weights [B, P], with
position 0 and weight 0 in unused slots. Here are single tokens and whole words, and
what all selectors share; the table of all is in `selectors.py`, and what stands in the
place of selected tokens in `replacement.py`.

Shapes: B rows, L length, P prediction slots, W words of a row.
"""

import dataclasses
from collections.abc import Iterator
from typing import Literal

import numpy as np

from encoderjax.data.pipeline import Batch, Lexicon
from encoderjax.data.random import Draws

ALTERED = "altered"  # bool [B, L], where tokens were moved or put in before masking

Rate = float | np.ndarray  # of all rows, or of each [B]
Count = Literal["exact", "bernoulli", "probabilistic"]


@dataclasses.dataclass(frozen=True, eq=False)
class Selected:
    """Prediction slots; unpacks to positions and weights.

    Attributes:
      positions_BP: ascending; 0 where unused.
      weights_BP: 1, or 0 where unused.
      dropped_B: how many more tokens were selected than there are slots.
      drawn_BS: how often each length in words was drawn, from 1 on; None where lengths
        are not drawn. What was drawn may be cut or joined in the text.
      phrases_B: how many of the tokens belong to phrases of a list; None without one.
    """

    positions_BP: np.ndarray
    weights_BP: np.ndarray
    dropped_B: np.ndarray
    drawn_BS: np.ndarray | None = None
    phrases_B: np.ndarray | None = None

    def __iter__(self) -> Iterator[np.ndarray]:
        return iter((self.positions_BP, self.weights_BP))


def candidates(batch: Batch, lexicon: Lexicon, specials: bool = False) -> np.ndarray:
    """Returns bool [B, L]: real tokens other than [CLS] and [SEP], unless `specials`.

    What another objective moved or put in is none: it is not the text's token there.
    """
    vocabulary, ids_BL, real_BL = lexicon.vocabulary, batch["ids"], batch["mask"]
    if ALTERED in batch:
        real_BL = real_BL & ~batch[ALTERED]
    if specials:
        return real_BL
    special_BL = (ids_BL == vocabulary.cls_id) | (ids_BL == vocabulary.sep_id)
    return real_BL & ~special_BL


def prediction_counts(mask_BL: np.ndarray, rate: Rate, slots: int) -> np.ndarray:
    """Returns how many tokens of each row are predicted, [B].

    BERT's rule: the share of the length, [CLS] and [SEP] counted, half rounded to
    even, at least one, at most the slots.
    """
    wanted_B = np.rint(rate * mask_BL.sum(axis=1, dtype=np.int64).astype(np.float64))
    return np.clip(wanted_B, 1, slots).astype(np.int64)


def rounded_at_random(
    share_B: np.ndarray, draws: Draws, site: str = "mlm/round"
) -> np.ndarray:
    """Returns the share rounded up or down, such that its mean stays (fairseq)."""
    return np.floor(share_B + draws.uniform(site, 1)[:, 0]).astype(np.int64)


def _varying_counts(
    count: Count, rate: Rate, keys: np.ndarray, among: np.ndarray, draws: Draws
) -> np.ndarray:
    """Returns how many of `among` are selected, [B]: those of the smallest keys.

    `bernoulli`: each one with probability `rate`, so as many as have keys below that.
    """
    if count == "bernoulli":
        rate_B1 = np.broadcast_to(rate, len(keys))[:, None]
        return (among & (keys < np.ceil(rate_B1 * 2.0**32))).sum(axis=1)
    return rounded_at_random(rate * among.sum(axis=1), draws)


def select_tokens(
    batch: Batch,
    rate: Rate,
    slots: int,
    draws: Draws,
    lexicon: Lexicon,
    *,
    count: Count = "exact",
    specials: bool = False,
) -> Selected:
    """Chooses single tokens, each as likely as any other, without replacement."""
    candidates_BL = candidates(batch, lexicon, specials)
    keys_BL = draws.bits("mlm/select", candidates_BL.shape[1])
    if count == "exact":
        counts_B = prediction_counts(batch["mask"], rate, slots)
    elif count == "bernoulli":
        counts_B = _varying_counts(count, rate, keys_BL, candidates_BL, draws)
    else:  # fairseq counts special tokens, whether or not they can be selected
        counts_B = _varying_counts(count, rate, keys_BL, batch["mask"], draws)
    return smallest_keys(keys_BL, candidates_BL, counts_B, slots)


def smallest_keys(
    keys_BL: np.ndarray, candidates_BL: np.ndarray, counts_B: np.ndarray, slots: int
) -> Selected:
    """Selects the candidates with the smallest keys, uint32, as many as counted."""
    counts_B = np.minimum(counts_B, candidates_BL.sum(axis=1))
    # Random keys with the position in their low bits: one sort gives a random order
    # and its positions. Ties in the random bits are rare and broken by position.
    length = candidates_BL.shape[1]
    place_bits = max(1, (length - 1).bit_length())
    if place_bits > 10:  # keep at least 22 random bits
        keys_BL = keys_BL.astype(np.uint64) << np.uint64(place_bits)
    low = keys_BL.dtype.type((1 << place_bits) - 1)
    places_L = np.arange(length, dtype=keys_BL.dtype)
    keys_BL = (keys_BL & ~low) | places_L
    keys_BL[~candidates_BL] = np.iinfo(keys_BL.dtype).max
    keys_BL.sort(axis=1)
    positions_BP = (keys_BL[:, :slots] & low).astype(np.int64)
    used_BP = np.arange(positions_BP.shape[1]) < counts_B[:, None]
    return in_slots(
        np.where(used_BP, positions_BP, length),
        length,
        slots,
        np.maximum(counts_B - slots, 0),
    )


# ---- whole words ----


@dataclasses.dataclass(frozen=True, eq=False)
class Words:
    """The words of each row.

    Attributes:
      candidates_BL: the tokens that may be selected.
      word_BL: the word of each of them.
      place_BL: where that is in a flattened [B, W].
      sizes_BW: how many of them each word has; 0 after a row's last word.
    """

    candidates_BL: np.ndarray
    word_BL: np.ndarray
    place_BL: np.ndarray
    sizes_BW: np.ndarray

    @classmethod
    def of(
        cls, batch: Batch, candidates_BL: np.ndarray, lexicon: Lexicon, single=False
    ) -> "Words":
        """Joins candidates to words; with `single` each is a word of its own.

        A piece that continues a word belongs to the candidate before it, even across
        a separator, as in BERT's code.
        """
        if single:
            return cls.begun(candidates_BL, candidates_BL)
        starts_BL = candidates_BL & ~lexicon.vocabulary.continues_word_V[batch["ids"]]
        first_B = candidates_BL.argmax(axis=1)
        starts_BL[np.arange(len(first_B)), first_B] |= candidates_BL.any(axis=1)
        return cls.begun(candidates_BL, starts_BL)

    @classmethod
    def begun(cls, candidates_BL: np.ndarray, starts_BL: np.ndarray) -> "Words":
        """Joins candidates to words that begin where it is said, the first one too."""
        word_BL = np.cumsum(starts_BL, axis=1, dtype=np.int32)
        word_BL -= 1
        num_rows, num_words = len(word_BL), int(word_BL.max(initial=0)) + 1
        place_BL = np.arange(num_rows)[:, None] * num_words + word_BL
        sizes = np.bincount(place_BL[candidates_BL], minlength=num_rows * num_words)
        sizes_BW = sizes.reshape(num_rows, num_words)
        return cls(candidates_BL, word_BL, place_BL, sizes_BW)

    @property
    def numbers_B(self) -> np.ndarray:  # noqa: N802 (an array, named by shape)
        """How many words each row has."""
        return (self.sizes_BW > 0).sum(axis=1)

    def order(self, keys_BW: np.ndarray) -> np.ndarray:
        """Returns each row's words by their keys, uint32; what is no word comes last.

        Equal keys go by the word: the order does not depend on other rows.
        """
        num_words = keys_BW.shape[1]
        bits = np.uint64(max(1, (num_words - 1).bit_length()))
        keys = keys_BW.astype(np.uint64)
        keys[self.sizes_BW == 0] = 1 << 32
        keys <<= bits
        keys |= np.arange(num_words, dtype=np.uint64)
        keys.sort(axis=1)
        keys &= (np.uint64(1) << bits) - np.uint64(1)
        return keys.view(np.int64)

    def tokens(self, chosen_BW: np.ndarray) -> np.ndarray:
        """Returns bool [B, L]: the tokens of the chosen words."""
        return self.candidates_BL & chosen_BW.ravel()[self.place_BL]


def select_words(
    batch: Batch,
    rate: Rate,
    slots: int,
    draws: Draws,
    lexicon: Lexicon,
    *,
    count: Count = "exact",
    specials: bool = False,
) -> Selected:
    """Chooses whole words in random order.

    `exact`: as many tokens as fit the count of single tokens. A word larger than what
    is left of it is passed over, so a row may end below its count (BERT). The others
    count words instead, so the share of tokens drifts (fairseq); what does not fit the
    slots is dropped.
    """
    words = Words.of(batch, candidates(batch, lexicon, specials), lexicon)
    num_rows, num_words = words.sizes_BW.shape
    keys_BW = draws.bits("mlm/select", num_words)
    if count == "exact":
        left_B = prediction_counts(batch["mask"], rate, slots)
        wanted_B = words.numbers_B
    else:
        left_B = np.full(num_rows, slots)
        wanted_B = _varying_counts(count, rate, keys_BW, words.sizes_BW > 0, draws)
    order_BW = words.order(keys_BW)
    # Rows are nearly always full after twice as many words as there are slots.
    some = 2 * slots if count == "exact" else int(wanted_B.max(initial=0))
    for reach in (min(some, num_words), num_words):
        sizes_BW = np.take_along_axis(words.sizes_BW, order_BW[:, :reach], axis=1)
        sizes_BW[np.arange(reach) >= wanted_B[:, None]] = 0
        take_BW = taken_in_order(sizes_BW, left_B)
        full_B = (sizes_BW * take_BW).sum(axis=1) == left_B
        if (full_B | (wanted_B <= reach)).all():
            break
    chosen_BW = np.zeros((num_rows, num_words), bool)
    np.put_along_axis(chosen_BW, order_BW[:, :reach], take_BW, axis=1)
    dropped_B = (sizes_BW * ~take_BW).sum(axis=1) * (count != "exact")
    return chosen_tokens(words.tokens(chosen_BW), slots, dropped_B)


def taken_in_order(sizes_BW: np.ndarray, left_B: np.ndarray) -> np.ndarray:
    """Returns bool [B, W]: the words that are taken one by one while they fit.

    One that is larger than what is left is passed over; sizes of 0 are no words.
    """
    num_rows, num_words = sizes_BW.shape
    # Every row takes all words up to the first that does not fit.
    fits_BW = np.cumsum(sizes_BW, axis=1) <= left_B[:, None]
    first = int(fits_BW.all(axis=0).argmin()) if not fits_BW.all() else num_words
    take_BW = np.zeros((num_rows, num_words), bool)
    take_BW[:, :first] = True
    left_B = left_B - sizes_BW[:, :first].sum(axis=1)
    for column in range(first, num_words):
        size_B = sizes_BW[:, column]
        take_B = size_B <= left_B
        take_BW[:, column] = take_B
        left_B -= size_B * take_B
        if not left_B.any():
            break
    return take_BW & (sizes_BW > 0)


def chosen_tokens(
    chosen_BL: np.ndarray,
    slots: int,
    dropped_B: np.ndarray | None = None,
    drawn_BS: np.ndarray | None = None,
) -> Selected:
    """Returns the slots of the chosen tokens, at most `slots` in a row."""
    length = chosen_BL.shape[1]
    row, column = np.nonzero(chosen_BL)
    counts_B = chosen_BL.sum(axis=1)
    first_B = np.cumsum(counts_B) - counts_B
    positions_BP = np.full((len(chosen_BL), slots), length, np.int64)
    positions_BP[row, np.arange(len(row)) - first_B[row]] = column
    used_BP = positions_BP < length
    if dropped_B is None:
        dropped_B = np.zeros(len(chosen_BL), np.int64)
    positions_BP[~used_BP] = 0
    weights_BP = used_BP.astype(np.float32)
    return Selected(positions_BP, weights_BP, dropped_B, drawn_BS)


def in_slots(
    positions: np.ndarray, length: int, slots: int, dropped_B: np.ndarray
) -> Selected:
    """Sorts positions (`length` = unused) into slots."""
    positions = np.sort(positions, axis=1)[:, :slots]
    missing = slots - positions.shape[1]
    positions_BP = np.pad(positions, ((0, 0), (0, missing)), constant_values=length)
    used_BP = positions_BP < length
    weights_BP = used_BP.astype(np.float32)
    return Selected(np.where(used_BP, positions_BP, 0), weights_BP, dropped_B)
