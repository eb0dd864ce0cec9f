"""From the pieces of one or two texts to rows of a length, cut or in windows.

Shapes: B rows of a batch, L length, R places of a row, N pieces of a text.
"""

import dataclasses
from collections.abc import Sequence
from typing import get_args

import numpy as np

from encoderjax.data.offsets import Pieces
from encoderjax.data.tokenizers import Tokenizer
from encoderjax.errors import UserError
from encoderjax.interop.task_description import Cut

# Of a text of which both ends are kept, the part that is its head (Sun et al. 2019).
_HEAD_SHARE = 4
# A window of a text has at least this part of the room, whatever stands beside it.
_WINDOW_SHARE = 2


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    """One row of a model's input, with its special tokens and without padding.

    Attributes:
      texts: which text each place is of, 0 or 1; -1 for special tokens.
      pieces: the number of the place's piece in its text; -1 for special tokens.
    """

    ids: np.ndarray  # int32 [R]
    segments: np.ndarray  # int32 [R]
    texts: np.ndarray  # int32 [R]
    pieces: np.ndarray  # int32 [R]

    def __len__(self) -> int:
        return len(self.ids)

    def places(self, text: int) -> np.ndarray:
        """Returns the places of a text's pieces, ascending."""
        return np.flatnonzero(self.texts == text)


@dataclasses.dataclass(frozen=True)
class Encoding:
    """How texts become rows of at most `length` places.

    Attributes:
      cut: which part of a text is kept that is too long: its head, its tail, both
        ends (a quarter of the room for the head), or all of it, in windows. Of a pair
        the longer text is cut first.
      stride: from the start of a window to that of the next (BERT's doc_stride); at
        most the room, so that no piece is left out.
      windows_of: the text of a pair that has windows. The other one is in every row;
        it is cut at its end if windows would have less than half of the room.
    """

    tokenizer: Tokenizer
    length: int
    cut: Cut = "head"
    stride: int = 128
    windows_of: int = 1

    def __post_init__(self):
        least = self.tokenizer.layout.num_special(2) + _WINDOW_SHARE
        if self.length < least:
            raise UserError(
                f"length={self.length} leaves no room for two texts beside their "
                f"special tokens; give at least {least}"
            )
        if self.cut not in get_args(Cut):
            raise UserError(
                f"cut={self.cut!r} must be one of {', '.join(get_args(Cut))}"
            )
        if self.stride < 1:
            raise UserError(f"stride={self.stride} must be 1 or more")
        if self.windows_of not in (0, 1):
            raise UserError(f"windows_of={self.windows_of} must be 0 or 1")

    def rows(self, first: Pieces, second: Pieces | None = None) -> list[Row]:
        """Returns the rows of a text or a pair: one, or as many as it has windows."""
        given = [first] if second is None else [first, second]
        room = self.length - self.tokenizer.layout.num_special(len(given))
        sizes = [len(pieces) for pieces in given]
        if self.cut == "windows":
            kept = self._windows(sizes, room)
        else:
            kept = [_cut_all(sizes, room, self.cut)]
        return [_row(self.tokenizer, given, chosen) for chosen in kept]

    def _windows(self, sizes: Sequence[int], room: int) -> list[list[np.ndarray]]:
        """Returns the numbers of each text's pieces, for each window."""
        own = self.windows_of if len(sizes) == 2 else 0
        width = room
        beside = 0
        if len(sizes) == 2:
            least = min(sizes[own], room // _WINDOW_SHARE)
            beside = min(sizes[1 - own], room - least)
            width = room - beside
        step = min(self.stride, width)
        starts = range(0, max(1, sizes[own] - width + step), step)
        other = [np.arange(beside)] * (len(sizes) - 1)
        rows = []
        for start in starts:
            window = np.arange(start, min(start + width, sizes[own]))
            rows.append([*other[:own], window, *other[own:]])
        return rows


def _cut_all(sizes: Sequence[int], room: int, cut: Cut) -> list[np.ndarray]:
    """Returns the numbers of the pieces that are kept of each text."""
    if sum(sizes) <= room:
        kept = list(sizes)
    elif len(sizes) == 1:
        kept = [room]
    else:
        kept = _shared(sizes[0], sizes[1], room)
    return [_cut(size, most, cut) for size, most in zip(sizes, kept, strict=True)]


def _shared(first: int, second: int, room: int) -> list[int]:
    """Returns what is kept of two texts when the longer one is cut first.

    Where both are cut, the longer one keeps the odd piece, and of equal ones the
    second, as in the `tokenizers` library.
    """
    short, long = min(first, second), max(first, second)
    kept_short = min(short, room // 2)
    kept_long = min(long, room - kept_short)
    return [kept_long, kept_short] if first > second else [kept_short, kept_long]


def _cut(size: int, most: int, cut: Cut) -> np.ndarray:
    if size <= most:
        return np.arange(size)
    head = {"head": most, "tail": 0, "both": most // _HEAD_SHARE}[cut]
    return np.concatenate((np.arange(head), np.arange(size - (most - head), size)))


def _row(
    tokenizer: Tokenizer,
    given: Sequence[Pieces],
    chosen: Sequence[np.ndarray],
) -> Row:
    layout = tokenizer.layout
    last = layout.second if len(given) == 2 else 0
    special = [(layout.before, 0)]
    special += [(layout.between, 0)] * (len(given) - 1)
    special += [(layout.after, last)]
    columns: list[tuple[Sequence[int], int, int, Sequence[int]]] = []
    for number, (tokens, segment) in enumerate(special):
        columns.append((tokens, segment, -1, [-1] * len(tokens)))
        if number < len(given):
            numbers = chosen[number]
            segment = layout.second if number else 0
            ids = given[number].ids[numbers]
            columns.append((ids, segment, number, numbers))  # pyright: ignore
    sizes = [len(ids) for ids, *_ in columns]
    ids, segments, texts, pieces = zip(*columns, strict=True)
    row = Row(
        _joined(ids),
        np.repeat(np.array(segments, np.int32), sizes),
        np.repeat(np.array(texts, np.int32), sizes),
        _joined(pieces),
    )
    if layout.final is not None:
        row.segments[-1] = layout.final
    return row


def _joined(parts: Sequence[Sequence[int]]) -> np.ndarray:
    return np.concatenate([np.asarray(part, np.int32) for part in parts])


# ---- windows ----


def most_context(rows: Sequence[Row], text: int) -> list[np.ndarray]:
    """Returns, for each row, whether each place is the best one of its piece.

    A piece that is in several windows is best seen where it has most on its poorer
    side, as in BERT's code for SQuAD. Places of other texts are never best.
    """
    best: dict[int, tuple[float, int]] = {}
    for number, row in enumerate(rows):
        places = row.places(text)
        for i, place in enumerate(places):
            score = min(i, len(places) - 1 - i) + 0.01 * len(places)
            piece = int(row.pieces[place])
            if piece not in best or score > best[piece][0]:
                best[piece] = (score, number)
    chosen = []
    for number, row in enumerate(rows):
        is_best = np.zeros(len(row), bool)
        for place in row.places(text):
            is_best[place] = best[int(row.pieces[place])][1] == number
        chosen.append(is_best)
    return chosen


# ---- batches ----


def pad_places(
    values: Sequence[np.ndarray], length: int, fill: int | float, tokenizer: Tokenizer
) -> np.ndarray:
    """Returns an array [B, L] of what each row has for its places, padded."""
    dtype = values[0].dtype if len(values) else np.int32
    padded_BL = np.full((len(values), length), fill, dtype)
    for row_L, value in zip(padded_BL, values, strict=True):
        begin = length - len(value) if tokenizer.layout.pads_left else 0
        row_L[begin : begin + len(value)] = value
    return padded_BL


def pad_rows(
    rows: Sequence[Row], length: int, tokenizer: Tokenizer
) -> dict[str, np.ndarray]:
    """Returns ids, mask and segments [B, L], padded where the family pads.

    What a model gives for the places of row b is its output[b][mask[b]].
    """
    ones = [np.ones(len(row), bool) for row in rows]
    segments = [row.segments for row in rows]
    pad_id, pad_segment = tokenizer.vocabulary.pad_id, tokenizer.layout.pad
    return {
        "ids": pad_places([row.ids for row in rows], length, pad_id, tokenizer),
        "mask": pad_places(ones, length, False, tokenizer).astype(bool),
        "segments": pad_places(segments, length, pad_segment, tokenizer),
    }
