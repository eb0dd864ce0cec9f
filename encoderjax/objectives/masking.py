"""Which tokens are predicted, and what stands in their place: numpy, whole batches.

A selector returns prediction slots: sorted positions [B, P] and weights [B, P], with
position 0 and weight 0 in unused slots. The replacement is drawn for the slots. Here
are single tokens and whole words, and what all selectors share; the table of all is in
`selectors.py`.

Shapes: B rows, L length, P prediction slots, W words of a row.
"""

import dataclasses
from collections.abc import Iterator
from typing import Literal

import numpy as np

from encoderjax.data.pipeline import Batch, Lexicon
from encoderjax.data.random import Draws
from encoderjax.errors import UserError

MASKED, REPLACED, KEPT = 0, 1, 2  # what happened to a predicted token

Rate = float | np.ndarray  # of all rows, or of each [B]
Count = Literal["exact", "bernoulli", "probabilistic"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Replacement:
    """What stands in place of a predicted token: [MASK], a random one, or itself.

    Attributes:
      mask: share that becomes [MASK].
      random: share that becomes a random token; the rest stays as it is.
      distribution: of random tokens: `uniform` over the whole vocabulary, special
        tokens included, as BERT did; `ordinary` over tokens that are not special;
        `unigram` as often as in the training text.
      skip_first: with `uniform`, ids below this are never drawn (fairseq: 4).
      unit: what shares one choice between the three: each `token`; the pieces of a
        `word` (fairseq's whole words); the neighbours of a `span`, where spans that
        touch are one (SpanBERT). Random tokens differ from place to place.
    """

    mask: float = 0.8
    random: float = 0.1
    distribution: Literal["uniform", "ordinary", "unigram"] = "uniform"
    skip_first: int = 0
    unit: Literal["token", "word", "span"] = "token"

    def __post_init__(self):
        if min(self.mask, self.random) < 0 or self.mask + self.random > 1 + 1e-9:
            raise UserError(
                f"objectives.mlm.replace: mask={self.mask} and random={self.random} "
                "must not be negative nor exceed 1 together"
            )
        if self.skip_first < 0 or (self.skip_first and self.distribution != "uniform"):
            raise UserError(
                f"objectives.mlm.replace.skip_first={self.skip_first} must be at least "
                "0, and 0 unless distribution='uniform'"
            )


@dataclasses.dataclass(frozen=True, eq=False)
class Selected:
    """Prediction slots; unpacks to positions and weights.

    Attributes:
      positions_BP: ascending; 0 where unused.
      weights_BP: 1, or 0 where unused.
      dropped_B: how many more tokens were selected than there are slots.
      drawn_BS: how often each length in words was drawn, from 1 on; None where lengths
        are not drawn. What was drawn may be cut or joined in the text.
    """

    positions_BP: np.ndarray
    weights_BP: np.ndarray
    dropped_B: np.ndarray
    drawn_BS: np.ndarray | None = None

    def __iter__(self) -> Iterator[np.ndarray]:
        return iter((self.positions_BP, self.weights_BP))


def candidates(batch: Batch, lexicon: Lexicon) -> np.ndarray:
    """Returns bool [B, L]: real tokens other than [CLS] and [SEP]."""
    vocabulary, ids_BL = lexicon.vocabulary, batch["ids"]
    special_BL = (ids_BL == vocabulary.cls_id) | (ids_BL == vocabulary.sep_id)
    return batch["mask"] & ~special_BL


def prediction_counts(mask_BL: np.ndarray, rate: Rate, slots: int) -> np.ndarray:
    """Returns how many tokens of each row are predicted, [B].

    BERT's rule: the share of the length, [CLS] and [SEP] counted, half rounded to
    even, at least one, at most the slots.
    """
    wanted_B = np.rint(rate * mask_BL.sum(axis=1, dtype=np.int64).astype(np.float64))
    return np.clip(wanted_B, 1, slots).astype(np.int64)


def rounded_at_random(share_B: np.ndarray, draws: Draws) -> np.ndarray:
    """Returns the share rounded up or down, such that its mean stays (fairseq)."""
    return np.floor(share_B + draws.uniform("mlm/round", 1)[:, 0]).astype(np.int64)


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
    candidates_BL = batch["mask"] if specials else candidates(batch, lexicon)
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
            starts_BL = candidates_BL
        else:
            continues_BL = lexicon.vocabulary.continues_word_V[batch["ids"]]
            starts_BL = candidates_BL & ~continues_BL
            first_B = candidates_BL.argmax(axis=1)
            starts_BL[np.arange(len(first_B)), first_B] |= candidates_BL.any(axis=1)
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
        keys = np.where(self.sizes_BW > 0, keys_BW.astype(np.uint64), 1 << 32)
        keys = (keys << bits) | np.arange(num_words, dtype=np.uint64)
        keys.sort(axis=1)
        return (keys & ((np.uint64(1) << bits) - np.uint64(1))).astype(np.int64)

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
    words = Words.of(
        batch, batch["mask"] if specials else candidates(batch, lexicon), lexicon
    )
    num_rows, num_words = words.sizes_BW.shape
    keys_BW = draws.bits("mlm/select", num_words)
    if count == "exact":
        left_B = prediction_counts(batch["mask"], rate, slots)
        wanted_B = words.numbers_B
    else:
        left_B = np.full(num_rows, slots)
        wanted_B = _varying_counts(count, rate, keys_BW, words.sizes_BW > 0, draws)
    order_BW = words.order(keys_BW)
    sizes_BW = np.take_along_axis(words.sizes_BW, order_BW, axis=1)
    sizes_BW[np.arange(num_words) >= wanted_B[:, None]] = 0
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
    take_BW &= sizes_BW > 0
    chosen_BW = np.zeros((num_rows, num_words), bool)
    np.put_along_axis(chosen_BW, order_BW, take_BW, axis=1)
    dropped_B = (sizes_BW * ~take_BW).sum(axis=1) * (count != "exact")
    return chosen_tokens(words.tokens(chosen_BW), slots, dropped_B)


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


# ---- replacement ----


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
    kinds_BP[share_BP < replacement.mask + replacement.random] = REPLACED
    kinds_BP[share_BP < replacement.mask] = MASKED
    replaced_BP = kinds_BP == REPLACED
    random_BP = _random_tokens(replaced_BP, replacement, draws, lexicon)
    random_BP = _of_the_first(random_BP, repeats_BP)
    new_BP = np.where(replaced_BP, random_BP, old_BP)
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


def _random_tokens(
    wanted_BP: np.ndarray, replacement: Replacement, draws: Draws, lexicon: Lexicon
) -> np.ndarray:
    """Returns ids [B, P], of no meaning where none is wanted."""
    slots = wanted_BP.shape[1]
    if replacement.distribution == "uniform":
        first, size = replacement.skip_first, lexicon.vocabulary.size
        if first >= size:
            raise UserError(
                f"objectives.mlm.replace.skip_first={first} leaves nothing of a "
                f"vocabulary of {size}"
            )
        return first + draws.integers("mlm/random", slots, size - first)
    if replacement.distribution == "ordinary":
        ordinary = lexicon.vocabulary.ordinary_ids
        return ordinary[draws.integers("mlm/random", slots, len(ordinary))]
    total = lexicon.cumulative_V[-1]
    # 53 random bits, because a corpus has more tokens than 32 bits can count.
    high = draws.bits("mlm/random", slots)[wanted_BP]
    low = draws.bits("mlm/random_low", slots)[wanted_BP]
    share = high * 2.0**-32 + low * 2.0**-64
    ids_BP = np.zeros(wanted_BP.shape, np.int64)
    ids_BP[wanted_BP] = np.searchsorted(
        lexicon.cumulative_V, (share * total).astype(np.int64), "right"
    )
    return ids_BP
