"""N-grams of whole words: ALBERT's, in random order, and DeBERTa's, in windows.

Both draw the number of words n with a probability in proportion to 1 / n, unless they
are told another (MacBERT: 40, 30, 20 and 10 % for 1 to 4 words).

Shapes: B rows, L length, P prediction slots, W words of a row, N words of an n-gram.
"""

from collections.abc import Sequence

import numpy as np

from encoderjax.data.pipeline import Batch, Lexicon
from encoderjax.data.random import Draws
from encoderjax.objectives.masking import (
    Rate,
    Selected,
    Words,
    candidates,
    chosen_tokens,
    prediction_counts,
)


def draw_lengths(
    draws: Draws,
    columns: int,
    max_ngram: int,
    shares: Sequence[float] | None = None,
) -> np.ndarray:
    """Returns numbers of words, int64 [B, columns], in 1..max_ngram.

    Their shares are 1 / n unless they are given.
    """
    shares_N = 1.0 / np.arange(1, max_ngram + 1)
    if shares is not None:
        shares_N = np.asarray(shares, np.float64)
    share_BC = draws.uniform("mlm/ngram", columns)
    lengths_BC = np.ones(share_BC.shape, np.int64)
    for bound in np.cumsum(shares_N / shares_N.sum())[:-1]:
        lengths_BC += share_BC >= bound
    return lengths_BC


def select_ngrams(
    batch: Batch,
    rate: Rate,
    slots: int,
    draws: Draws,
    lexicon: Lexicon,
    *,
    max_ngram: int = 3,
    ngram_shares: Sequence[float] | None = None,
) -> Selected:
    """Chooses n-grams that begin at the words in random order (ALBERT).

    The count is BERT's. An n-gram that is larger than what is left of it is shortened
    until it fits; it is passed over if not even a word fits, or if one of its words
    was chosen before. It may straddle a separator, and is shorter at the row's end.
    """
    words = Words.of(batch, candidates(batch, lexicon), lexicon)
    left_B = prediction_counts(batch["mask"], rate, slots)
    num_rows, num_words = words.sizes_BW.shape
    order_BW = words.order(draws.bits("mlm/select", num_words))
    lengths_BW = draw_lengths(draws, num_words, max_ngram, ngram_shares)
    width = num_words + max_ngram
    sizes_BW = np.pad(words.sizes_BW, ((0, 0), (1, max_ngram - 1)))
    ends = np.cumsum(sizes_BW, axis=1).ravel()  # tokens before each word

    chosen = np.zeros(num_rows * width, bool)
    first_B, row_B = np.arange(num_rows) * width, np.arange(num_rows)
    steps_N1 = np.arange(max_ngram)[:, None]
    drawn_BN, numbers_B = np.zeros((num_rows, max_ngram), np.int32), words.numbers_B
    for column in range(num_words):
        word_B = order_BW[:, column]
        walks_B = (left_B > 0) & (word_B < numbers_B)
        drawn_BN[row_B, lengths_BW[:, column] - 1] += walks_B
        places_NB = first_B + word_B + steps_N1
        tokens_NB = ends[places_NB + 1] - ends[places_NB[0]]
        fitting_B = (tokens_NB <= left_B).sum(axis=0)
        length_B = np.minimum(lengths_BW[:, column], fitting_B)
        inside_NB = steps_N1 < length_B
        taken_NB = chosen[places_NB]
        inside_NB &= ~(taken_NB & inside_NB).any(axis=0)
        chosen[places_NB] = taken_NB | inside_NB
        size_B = tokens_NB[np.maximum(length_B, 1) - 1, row_B]
        left_B = left_B - size_B * inside_NB[0]
        if not left_B.any():
            break
    chosen_BW = chosen.reshape(num_rows, -1)[:, :num_words]
    return chosen_tokens(words.tokens(chosen_BW), slots, drawn_BS=drawn_BN)


def select_ngram_windows(
    batch: Batch,
    rate: Rate,
    slots: int,
    draws: Draws,
    lexicon: Lexicon,
    *,
    max_ngram: int = 3,
    ngram_shares: Sequence[float] | None = None,
) -> Selected:
    """Chooses one n-gram in each window of n / rate words, from the left (DeBERTa).

    Words count from the left until BERT's count is reached, so the end of a row has
    less, and the last word may exceed the count; it is dropped where it exceeds the
    slots. With `max_ngram=1` these are single tokens. Unknown tokens are not selected.
    """
    among_BL = candidates(batch, lexicon) & (batch["ids"] != lexicon.vocabulary.unk_id)
    words = Words.of(batch, among_BL, lexicon, single=max_ngram == 1)
    num_rows, num_words = words.sizes_BW.shape
    numbers_B = words.numbers_B
    window_B = np.floor(1.0 / np.broadcast_to(rate, num_rows)).astype(np.int64)
    columns = -(-num_words // int(window_B.min(initial=num_words)))  # at most
    lengths_BC = draw_lengths(draws, columns, max_ngram, ngram_shares)
    bits_BC = draws.bits("mlm/select", columns).astype(np.uint64)

    width = num_words + max_ngram
    chosen = np.zeros(num_rows * width, bool)
    first_B, steps_N1 = np.arange(num_rows) * width, np.arange(max_ngram)[:, None]
    offset_B = np.zeros(num_rows, np.int64)
    drawn_BN, row_B = np.zeros((num_rows, max_ngram), np.int32), np.arange(num_rows)
    for length_B, bits_B in zip(lengths_BC.T.copy(), bits_BC.T.copy(), strict=True):
        drawn_BN[row_B, length_B - 1] += offset_B < numbers_B
        window = np.minimum(length_B * window_B, numbers_B - offset_B)
        begin_B = (bits_B * window.astype(np.uint64)) >> np.uint64(32)
        begin_B = offset_B + begin_B.astype(np.int64)
        end_B = np.minimum(begin_B + length_B, numbers_B)
        places_NB = begin_B + steps_N1
        chosen[first_B + places_NB] |= places_NB < end_B
        offset_B = np.maximum(offset_B + window, end_B)
        if (offset_B >= numbers_B).all():
            break
    chosen_BW = chosen.reshape(num_rows, width)[:, :num_words]
    counts_B = prediction_counts(batch["mask"], rate, slots)
    sizes_BW = words.sizes_BW * chosen_BW
    ends_BW = np.cumsum(sizes_BW, axis=1)
    counted_BW = chosen_BW & (ends_BW - sizes_BW < counts_B[:, None])
    fits_BW = ends_BW <= slots
    dropped_B = (sizes_BW * (counted_BW & ~fits_BW)).sum(axis=1)
    return chosen_tokens(words.tokens(counted_BW & fits_BW), slots, dropped_B, drawn_BN)
