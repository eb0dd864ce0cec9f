"""From spans of text to rows of ids, with the special tokens of the tokenizer's layout.

Shapes: B rows of a batch, L length, S pieces of the rows, T tokens of text.
"""

from typing import Protocol

import numpy as np

from encoderjax.data.records import joined_ranges
from encoderjax.data.tokenizers import Layout

Batch = dict[str, np.ndarray]


class Stream(Protocol):
    """The text that spans are read from, of one corpus or of several."""

    def read(self, starts_S: np.ndarray, lengths_S: np.ndarray) -> np.ndarray:
        """Returns the ids of all spans, one after the other."""
        ...


def assemble(
    stream: Stream,
    layout: Layout,
    pad_id: int,
    pieces: tuple[np.ndarray, np.ndarray],
    shape: tuple[int, int],
    *,
    packed: bool = False,
) -> Batch:
    """Lays out pieces side by side: ids, mask and segments, each [B, L].

    Args:
      pieces: the records [S], and the row of each, ascending. A row may have several of
        one segment, or one of two.
      shape: B and L.
      packed: whether `documents` and `positions` [B, L] are wanted, too: the number of
        each piece in its row from 1 on, and of each place in its piece from 0 on.
    """
    records_S, row_S = pieces
    num_rows, length = shape
    length_S2 = records_S["length"].astype(np.int64)
    paired_S = length_S2[:, 1] > 0
    # Places in a piece: A begins here, B there.
    a_first = len(layout.before)
    a_last_S = a_first + length_S2[:, 0]
    b_first_S = a_last_S + len(layout.between) * paired_S
    b_last_S = b_first_S + length_S2[:, 1]
    size_S = b_last_S + len(layout.after)

    # Columns of a row: where it begins and ends, and where each piece does.
    used_B = np.bincount(row_S, size_S, num_rows).astype(np.int64)
    begin_B = length - used_B if layout.pads_left else np.zeros_like(used_B)
    column_S = np.cumsum(size_S) - size_S - (np.cumsum(used_B) - used_B)[row_S]
    column_S += begin_B[row_S]
    cell_S = row_S * length + column_S  # its first place in the flattened rows

    columns_L = np.arange(length)
    mask_BL = columns_L < (begin_B + used_B)[:, None]
    if layout.pads_left:
        mask_BL &= columns_L >= begin_B[:, None]

    ids = np.full(num_rows * length, pad_id, np.int32)
    is_text = mask_BL.flatten()
    special = [(cell_S + place, token) for place, token in enumerate(layout.before)]
    for place, token in enumerate(layout.between):
        special.append(((cell_S + a_last_S + place)[paired_S], token))
    for place, token in enumerate(layout.after):
        special.append((cell_S + b_last_S + place, token))
    for cells, token in special:
        ids[cells] = token
        is_text[cells] = False
    # Pieces lie in the order of their spans, so the text fills what is left in order.
    ids[is_text] = _read(stream, records_S)

    second_B = np.full(num_rows, length)
    second_B[row_S[paired_S]] = (column_S + b_first_S)[paired_S]
    second_BL = mask_BL & (columns_L >= second_B[:, None])
    segments_BL = second_BL * np.int32(layout.second)
    if layout.final is not None:
        segments_BL.ravel()[cell_S + size_S - 1] = layout.final
    if layout.pad:
        segments_BL[~mask_BL] = layout.pad
    batch = {
        "ids": ids.reshape(shape),
        "mask": mask_BL,
        "segments": segments_BL,
    }
    return batch | _numbered(cell_S, column_S, mask_BL) if packed else batch


def _read(stream: Stream, records_S: np.ndarray) -> np.ndarray:
    """Returns the text of pieces, one after the other; backward text is turned."""
    length_S2 = records_S["length"].astype(np.int64)
    ids_T = stream.read(records_S["start"].ravel(), length_S2.ravel())
    if not records_S["reversed"].any():
        return ids_T
    backward_S2 = np.broadcast_to(records_S["reversed"][:, None], length_S2.shape)
    ends = np.cumsum(length_S2)
    lengths, backward = length_S2.ravel(), backward_S2.ravel()
    first = np.where(backward, ends - 1, ends - lengths)
    return ids_T[joined_ranges(first, lengths, np.where(backward, -1, 1))]


def _numbered(cell_S: np.ndarray, column_S: np.ndarray, mask_BL: np.ndarray) -> Batch:
    """Returns documents and positions [B, L]; 0 on padding."""
    documents_BL, begin_BL = np.zeros((2, *mask_BL.shape), np.int32)
    documents_BL.ravel()[cell_S] = 1
    begin_BL.ravel()[cell_S] = column_S
    positions_BL = np.arange(mask_BL.shape[1], dtype=np.int32)
    positions_BL = positions_BL - np.maximum.accumulate(begin_BL, axis=1)
    return {
        "documents": np.cumsum(documents_BL, axis=1, dtype=np.int32) * mask_BL,
        "positions": positions_BL * mask_BL,
    }
