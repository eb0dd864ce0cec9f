"""Labels of words at their pieces, and back.

A word is seen at its first piece, that is the first one with a character: a space that
a tokenizer splits off is none. Shapes: N pieces of a text, R places of a row, W words,
C labels.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from encoderjax.data.offsets import Pieces
from encoderjax.errors import UserError
from encoderjax.tasks.encoding import Row
from encoderjax.tasks.entities import OUTSIDE, is_chunked, parsed

On = Literal["first", "every"]
NOTHING = -1  # to be learned at a place

_TEXT = 0  # of a row
# What the letter of a word becomes at its first, inner and last piece.
_SPREAD = {"O": "OOO", "B": "BII", "I": "III", "E": "IIE", "S": "BIE"}


def spread_labels(names: Sequence[str]) -> np.ndarray:
    """Returns the labels [3, C] at the first, inner and last pieces of a word.

    They mark the pieces as the scheme would mark words: of B-PER only the first piece
    begins an entity. Where there is no such label, pieces have that of the word, and so
    have all of those that mark no entities.
    """
    spread_3C = np.tile(np.arange(len(names), dtype=np.int32), (3, 1))
    if not is_chunked(names):
        return spread_3C
    number_of = {parsed(name): number for number, name in enumerate(names)}
    for number, tag in enumerate(map(parsed, names)):
        assert tag is not None
        for part, letter in enumerate(_SPREAD[tag.letter]):
            spread_3C[part, number] = number_of.get(tag._replace(letter=letter), number)
    return spread_3C


def piece_labels(
    row: Row,
    pieces: Pieces,
    labels_W: np.ndarray,
    *,
    on: On = "first",
    inside: np.ndarray | None = None,
) -> np.ndarray:
    """Returns int32 [R], the label of each place; -1 where nothing is to be learned.

    A word without a piece, or whose piece is not in the row, is in no label.

    Args:
      row: of which the first text has the words.
      pieces: of the words.
      labels_W: the label of each word.
      on: the pieces of a word that have its label: the first, or every one.
      inside: of `spread_labels`, for every piece; None = all have that of the word.
    """
    if on not in get_args(On):
        raise UserError(f"on={on!r} must be one of {', '.join(get_args(On))}")
    seen = np.flatnonzero(_seen(pieces))
    words = pieces.words[seen]
    is_first = np.diff(words, prepend=-1) != 0
    is_last = np.diff(words, append=-1) != 0
    labels = np.asarray(labels_W, np.int32)[words]
    if on == "first":
        labels = np.where(is_first, labels, NOTHING)
    elif inside is not None:
        part = np.where(is_first, 0, np.where(is_last, 2, 1))
        alone = is_first & is_last
        labels = np.where(alone, labels, inside[part, labels])
    labels_N = np.full(len(pieces), NOTHING, np.int32)
    labels_N[seen] = labels
    labels_R = np.full(len(row), NOTHING, np.int32)
    places = row.places(_TEXT)
    labels_R[places] = labels_N[row.pieces[places]]
    return labels_R


def word_scores(
    rows: Sequence[Row],
    pieces: Pieces,
    best: Sequence[np.ndarray],
    scores: Sequence[np.ndarray],
    num_words: int,
) -> np.ndarray:
    """Returns [W, C], the scores at each word's first piece; NaN where there is none.

    Args:
      rows: the windows of one text.
      pieces: of its words.
      best: for each row the places that count, of `most_context`.
      scores: for each row [R, C].
      num_words: how many there are, with or without pieces.
    """
    seen = np.flatnonzero(_seen(pieces))
    is_first = np.zeros(len(pieces), bool)
    is_first[seen] = np.diff(pieces.words[seen], prepend=-1) != 0
    scores_WC = np.full((num_words, scores[0].shape[-1]), np.nan, scores[0].dtype)
    for row, best_R, scores_RC in zip(rows, best, scores, strict=True):
        places = np.flatnonzero(best_R)
        places = places[is_first[row.pieces[places]]]
        scores_WC[pieces.words[row.pieces[places]]] = scores_RC[places]
    return scores_WC


def word_labels(scores_WC: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Returns the best label of each word; a word without scores is outside.

    Where labels mark no entities, it has the label that is best most often.
    """
    absent_W = np.isnan(scores_WC).any(-1)
    best_W = np.where(absent_W, 0, np.nan_to_num(scores_WC).argmax(-1))
    if OUTSIDE in names:
        usual = list(names).index(OUTSIDE)
    else:
        usual = np.bincount(best_W[~absent_W], minlength=len(names)).argmax()
    return np.where(absent_W, usual, best_W)


def _seen(pieces: Pieces) -> np.ndarray:
    """Returns bool [N]: the pieces that have a character of a word."""
    return (pieces.words >= 0) & (pieces.ends > pieces.starts)
