"""Phrases and entities of a list, selected as wholes (ERNIE).

Shapes: B rows, L length, P prediction slots, W units of a row: phrases, and words
outside of them.
"""

import numpy as np

from encoderjax.data.pipeline import Batch, Lexicon
from encoderjax.data.random import Draws
from encoderjax.data.token_sequences import TokenSequences
from encoderjax.objectives.masking import (
    Rate,
    Selected,
    Words,
    candidates,
    chosen_tokens,
    prediction_counts,
    taken_in_order,
)


def select_phrases(
    batch: Batch,
    rate: Rate,
    slots: int,
    draws: Draws,
    lexicon: Lexicon,
    *,
    phrase_share: float | None = None,
) -> Selected:
    """Chooses whole phrases, and whole words of the text outside of them.

    The count is BERT's. Units come in random order, and one that is larger than what is
    left of the count is passed over. Without a share, phrases and words are alike
    (ERNIE). With one, phrases are chosen until they have that share of the count, or
    there are no more that fit; words have the rest.
    """
    among_BL = candidates(batch, lexicon)
    words = Words.of(batch, among_BL, lexicon)
    starts_BL, ends_BL = _edges(words)
    begins_BL, inside_BL = find_phrases(
        batch["ids"], starts_BL, ends_BL, lexicon.phrases
    )
    units = Words.begun(among_BL, starts_BL & ~inside_BL)
    is_phrase_BW = np.zeros(units.sizes_BW.shape, bool)
    is_phrase_BW.ravel()[units.place_BL[begins_BL]] = True

    left_B = prediction_counts(batch["mask"], rate, slots)
    order_BW = units.order(draws.bits("mlm/select", units.sizes_BW.shape[1]))
    sizes_BW = np.take_along_axis(units.sizes_BW, order_BW, axis=1)
    phrases_BW = np.take_along_axis(is_phrase_BW, order_BW, axis=1)
    if phrase_share is None:
        take_BW = taken_in_order(sizes_BW, left_B)
    else:
        share_B = np.rint(phrase_share * left_B).astype(np.int64)
        take_BW = taken_in_order(sizes_BW * phrases_BW, share_B)
        left_B = left_B - (sizes_BW * take_BW).sum(axis=1)
        take_BW |= taken_in_order(sizes_BW * ~phrases_BW, left_B)
    chosen_BW = np.zeros_like(take_BW)
    np.put_along_axis(chosen_BW, order_BW, take_BW, axis=1)
    selected = chosen_tokens(units.tokens(chosen_BW), slots)
    phrases_B = (sizes_BW * (take_BW & phrases_BW)).sum(axis=1).astype(np.int32)
    return Selected(
        selected.positions_BP,
        selected.weights_BP,
        selected.dropped_B,
        phrases_B=phrases_B,
    )


def _edges(words: Words) -> tuple[np.ndarray, np.ndarray]:
    """Returns bool [B, L] twice: where words begin and where they end."""
    number_BL = np.cumsum(words.candidates_BL, axis=1)  # of each candidate, from 1
    last_BW = np.cumsum(words.sizes_BW, axis=1)
    word_BL = np.maximum(words.word_BL, 0)  # before the first word there is none
    last_BL = np.take_along_axis(last_BW, word_BL, axis=1)
    size_BL = np.take_along_axis(words.sizes_BW, word_BL, axis=1)
    starts_BL = words.candidates_BL & (number_BL == last_BL - size_BL + 1)
    return starts_BL, words.candidates_BL & (number_BL == last_BL)


def find_phrases(
    ids_BL: np.ndarray,
    starts_BL: np.ndarray,
    ends_BL: np.ndarray,
    phrases: TokenSequences,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns bool [B, L] twice: where phrases begin, and where they go on.

    Longer phrases come first; of phrases of one length that overlap, the one further
    to the left. A phrase begins and ends with a word, and no token belongs to two.

    Args:
      ids_BL: the text.
      starts_BL, ends_BL: where words begin and where they end.
      phrases: the list.
    """
    num_rows, length = ids_BL.shape
    begins_BL, inside_BL = np.zeros((2, *ids_BL.shape), bool)
    found = [(size, number_BL >= 0) for size, number_BL in phrases.matches(ids_BL)]
    for size, fits_BL in reversed(found):
        row, column = np.nonzero(fits_BL & starts_BL)
        whole = ends_BL[row, column + size - 1]
        row, column = row[whole], column[whole]
        taken = np.zeros((num_rows, length + 1), np.int64)
        taken[:, 1:] = np.logical_or(begins_BL, inside_BL).cumsum(axis=1)
        free = taken[row, column + size] == taken[row, column]
        # Rows lie so far apart that none of their phrases overlap.
        cells = _leftmost((row * (length + size) + column)[free], size)
        row, column = np.divmod(cells, length + size)
        begins_BL[row, column] = True
        inside_BL[row[:, None], column[:, None] + np.arange(1, size)] = True
    return begins_BL, inside_BL


def _leftmost(cells: np.ndarray, size: int) -> np.ndarray:
    """Returns the cells, ascending, that are taken from the left without overlap."""
    kept = [cells[:0]]
    while cells.size:
        heads = cells[np.diff(cells, prepend=cells[0] - size) >= size]
        kept.append(heads)
        before = heads[np.searchsorted(heads, cells, side="right") - 1]
        cells = cells[cells - before >= size]
    return np.sort(np.concatenate(kept))
