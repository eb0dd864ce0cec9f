"""Similar words in the place of selected ones (MacBERT).

Shapes: B rows, P prediction slots.
"""

import numpy as np

from encoderjax.data.random import Draws
from encoderjax.data.word_lists import SimilarWords


def similar_tokens(
    old_BP: np.ndarray,
    wanted_BP: np.ndarray,
    joins_BP: np.ndarray,
    draws: Draws,
    similar: SimilarWords,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns bool [B, P], where there is a similar word, and ids [B, P].

    Each word is looked up by itself, also in an n-gram, and one of those like it is
    drawn, each as likely; elsewhere the ids are the old ones.

    Args:
      old_BP: the tokens that stand there.
      wanted_BP: for which a similar word is wanted, whole words.
      joins_BP: whether a slot belongs to the word of the slot before.
      draws: of the rows.
      similar: the list.
    """
    num_rows, slots = old_BP.shape
    slots_P = np.arange(slots)
    first_BP = np.maximum.accumulate(np.where(joins_BP, 0, slots_P), axis=1)
    begins_BP = wanted_BP & ~joins_BP
    row, slot = np.nonzero(wanted_BP)
    words = np.bincount(row * slots + first_BP[row, slot], minlength=num_rows * slots)
    sizes_BP = words.reshape(num_rows, slots)
    # What is not wanted is no token, so that no word is found beyond its end.
    ids_BP = np.where(wanted_BP, old_BP, -1)
    number_BP = np.full(old_BP.shape, -1, np.int64)
    for size, found_BP in similar.words.matches(ids_BP):
        number_BP = np.where(begins_BP & (sizes_BP == size), found_BP, number_BP)
    number_BP = np.take_along_axis(number_BP, first_BP, axis=1)
    similar_BP = wanted_BP & (number_BP >= 0)

    row, slot = np.nonzero(similar_BP)
    number, first = number_BP[row, slot], first_BP[row, slot]
    bits = draws.bits("mlm/similar", slots)[row, first].astype(np.uint64)
    counts = similar.counts_N[number].astype(np.uint64)
    drawn = ((bits * counts) >> np.uint64(32)).astype(np.int64)
    place = drawn * similar.words.sizes_N[number] + (slot - first)
    ids_BP = old_BP.copy()
    ids_BP[row, slot] = similar.ids_T[similar.starts_N[number] + place]
    return similar_BP, ids_BP
