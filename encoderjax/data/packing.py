"""Packed rows (ModernBERT): several documents side by side, next to no padding.

Each document is cut into chunks that fit a row by themselves, special tokens included.
Chunks are packed by best fit, the longest first. That is planned on the histogram of
their lengths, so its cost does not grow with the corpus; which chunks of a length meet
is drawn.

Shapes: S chunks, R rows.
"""

import bisect
import collections

import numpy as np

from encoderjax.data.random import hash_words
from encoderjax.data.records import ROW, Cutting, Rows, ShardText, joined_ranges

# So many rows alike, each with (length, how many of it).
Pattern = tuple[int, tuple[tuple[int, int], ...]]


def cut_packed(cutting: Cutting, shard: int, number: int) -> Rows:
    """Returns the packed rows of one shard, for pass `number`."""
    settings = cutting.settings
    chunks_S = _chunks(cutting, shard)
    places_S = chunks_S["length"][:, 0].astype(np.int64) + cutting.layout.num_special(1)
    key_S = hash_words(settings.seed, number, chunks_S["start"][:, 0])
    order_S = np.lexsort((key_S, places_S))
    histogram = np.bincount(places_S, minlength=settings.length + 1)
    next_ = np.cumsum(histogram) - histogram  # of each length, in `order_S`
    pieces, counts = [np.zeros(0, np.int64)], [np.zeros(1, np.int64)]
    for rows, parts in packing_plan(histogram, settings.length):
        columns = []
        for length, times in parts:
            first = next_[length]
            next_[length] += rows * times
            columns.append(order_S[first : next_[length]].reshape(rows, times))
        pieces.append(np.concatenate(columns, axis=1).ravel())
        counts.append(np.full(rows, sum(times for _, times in parts)))
    return Rows(chunks_S[np.concatenate(pieces)], np.concatenate(counts).cumsum())


def _chunks(cutting: Cutting, shard: int) -> np.ndarray:
    """Returns the chunks of all documents, [S] of `ROW`."""
    text, tokens = ShardText.of(cutting.split, shard), cutting.tokens(1)
    begin, end = text.offsets_S[text.first_D], text.offsets_S[text.end_D]
    counts = -(-(end - begin) // tokens)
    number_S = joined_ranges(np.zeros_like(counts), counts)
    start_S = np.repeat(begin, counts) + tokens * number_S
    chunks_S = np.zeros(len(start_S), ROW)
    chunks_S["start"][:, 0] = start_S
    chunks_S["length"][:, 0] = np.minimum(tokens, np.repeat(end, counts) - start_S)
    return chunks_S


def packing_plan(histogram: np.ndarray, size: int) -> list[Pattern]:
    """Returns rows of at most `size`, by best fit of decreasing lengths.

    Args:
      histogram: [size + 1], how many chunks there are of each length.

    A chunk goes to the fullest row that has room for it, or begins a new one. Rows that
    are filled alike are one pattern; chunks of a length are placed all at once.
    """
    open_: dict[int, list[Pattern]] = collections.defaultdict(list)
    rooms: list[int] = []  # those of `open_`, ascending

    def put(room: int, pattern: Pattern) -> None:
        if room not in open_:
            bisect.insort(rooms, room)
        open_[room].append(pattern)

    for length in range(size, 0, -1):
        left = int(histogram[length])
        while left:
            at = bisect.bisect_left(rooms, length)
            if at < len(rooms):
                room = rooms[at]
                rows, parts = open_[room].pop()
                if not open_[room]:
                    del open_[room]
                    del rooms[at]
            else:
                room, rows, parts = size, left, ()
            times = min(room // length, left)
            filled = min(rows, left // times)
            if parts and filled < rows:
                put(room, (rows - filled, parts))
            put(room - times * length, (filled, (*parts, (length, times))))
            left -= filled * times
    return [pattern for room in rooms for pattern in open_[room]]
