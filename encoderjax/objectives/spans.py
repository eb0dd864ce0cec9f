"""Spans of whole words (SpanBERT), and the runs that selected tokens form.

Shapes: B rows, L length, P prediction slots, W words of a row, S words of a span.
"""

import dataclasses

import numpy as np

from encoderjax.data.pipeline import Batch, Lexicon
from encoderjax.data.random import Draws
from encoderjax.errors import UserError
from encoderjax.objectives.masking import (
    Rate,
    Selected,
    Words,
    candidates,
    chosen_tokens,
)

_BLOCK = 32  # spans of a row that are drawn at once


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanLengths:
    """How many words a span has: geometric, renormalised to what is allowed.

    Attributes:
      p: of the geometric distribution.
      longest: in words.
    """

    p: float = 0.2
    longest: int = 10

    def __post_init__(self):
        if not 0.0 < self.p <= 1.0 or self.longest < 1:
            raise UserError(
                f"objectives.mlm.span: p={self.p} must be in (0, 1] and longest="
                f"{self.longest} at least 1"
            )

    @property
    def probabilities_S(self) -> np.ndarray:  # noqa: N802 (an array, named by shape)
        """Of the lengths 1, 2, ..., longest."""
        shares_S = self.p * (1.0 - self.p) ** np.arange(self.longest)
        return shares_S / shares_S.sum()

    def draw(self, draws: Draws, site: str, columns: int) -> np.ndarray:
        """Returns lengths, int64 [B, columns]."""
        bounds = np.cumsum(self.probabilities_S)[:-1]
        return 1 + np.searchsorted(bounds, draws.uniform(site, columns), "right")


def select_spans(
    batch: Batch,
    rate: Rate,
    slots: int,
    draws: Draws,
    lexicon: Lexicon,
    *,
    span: SpanLengths | None = None,
) -> Selected:
    """Chooses spans of whole words until the count is reached exactly.

    The count is the share of the tokens, [CLS] and [SEP] not counted, rounded up. A
    span begins at the word of a token that is not yet chosen, each as likely as any
    other, and runs to the right, over words that were chosen before, too. The last one
    is cut where the count is reached, if need be inside a word.
    """
    span = span or SpanLengths()
    words = Words.of(batch, candidates(batch, lexicon), lexicon)
    tokens_B = words.sizes_BW.sum(axis=1)
    left_B = np.minimum(np.ceil(rate * tokens_B).astype(np.int64), slots)
    num_rows, num_words = words.sizes_BW.shape
    width = num_words + span.longest
    sizes = np.pad(words.sizes_BW, ((0, 0), (0, span.longest))).ravel()
    chosen = np.zeros(num_rows * width, bool)
    cut_word_B = np.full(num_rows, -1)  # the word that is cut, and what is left of it
    cut_size_B = np.zeros(num_rows, np.int64)
    row_B, steps_S = np.arange(num_rows), np.arange(span.longest)
    first_B = row_B * width
    drawn_BS = np.zeros((num_rows, span.longest), np.int32)

    block = 0
    while left_B.any():
        word_BC = _anchors(words, tokens_B, draws, f"mlm/anchor/{block}")
        length_BC = span.draw(draws, f"mlm/span/{block}", _BLOCK)
        block += 1
        for column in range(_BLOCK):
            start_B = first_B + word_BC[:, column]
            (row,) = np.nonzero((left_B > 0) & ~chosen[start_B])
            drawn_BS[row, length_BC[row, column] - 1] += 1
            places = start_B[row, None] + steps_S
            free = ~chosen[places] & (steps_S < length_BC[row, column, None])
            size = sizes[places] * free
            end = np.cumsum(size, axis=1)
            left = left_B[row, None]
            chosen[places] |= free & (end <= left)
            (over,) = np.nonzero(end[:, -1] > left_B[row])
            if len(over):
                cut = (end[over] > left[over]).argmax(axis=1)
                before = end[over, cut] - size[over, cut]
                cut_word_B[row[over]] = word_BC[row[over], column] + cut
                cut_size_B[row[over]] = left_B[row[over]] - before
            left_B[row] = np.maximum(left_B[row] - end[:, -1], 0)
            if not left_B.any():
                break

    chosen_BL = words.tokens(chosen.reshape(num_rows, width)[:, :num_words])
    (row,) = np.nonzero(cut_size_B)
    inside = words.candidates_BL[row] & (words.word_BL[row] == cut_word_B[row, None])
    inside &= np.cumsum(inside, axis=1) <= cut_size_B[row, None]
    chosen_BL[row] |= inside
    return chosen_tokens(chosen_BL, slots, drawn_BS=drawn_BS)


def _anchors(words: Words, tokens_B: np.ndarray, draws: Draws, site: str) -> np.ndarray:
    """Returns the words of tokens that are drawn from all candidates, [B, block]."""
    word_of_candidate = words.word_BL[words.candidates_BL]
    first_B1 = (np.cumsum(tokens_B) - tokens_B)[:, None]
    place_BC = first_B1 + draws.integers(site, _BLOCK, tokens_B[:, None])
    # A row without candidates has no place of its own; nothing is taken for it.
    return word_of_candidate[np.minimum(place_BC, len(word_of_candidate) - 1)]


def runs(positions_BP: np.ndarray, used_BP: np.ndarray) -> np.ndarray:
    """Returns the first and the last slot of the run of each used slot, [2, B, P].

    Positions ascend over the used slots, and may repeat.
    """
    joins_BP = np.zeros(used_BP.shape, bool)  # to the slot before
    joins_BP[:, 1:] = used_BP[:, 1:] & used_BP[:, :-1]
    joins_BP[:, 1:] &= np.diff(positions_BP, axis=1) <= 1
    slots_P = np.arange(used_BP.shape[1])
    first_BP = np.maximum.accumulate(np.where(joins_BP, 0, slots_P), axis=1)
    ends_BP = np.ones(used_BP.shape, bool)  # the run
    ends_BP[:, :-1] = ~joins_BP[:, 1:]
    last_BP = np.where(ends_BP, slots_P, len(slots_P))[:, ::-1]
    last_BP = np.minimum.accumulate(last_BP, axis=1)[:, ::-1]
    return np.stack([first_BP, last_BP])
