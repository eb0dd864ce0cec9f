"""XLNet's rows: text that goes on from the row before, and a pair of segments.

The text of a split is divided into equal streams. A row is `reuse_length` tokens of its
stream, A, which follows them, and B, which follows A or is found elsewhere in the
stream. It has exactly the length of a row. The next row of the stream begins
`reuse_length` tokens further on (without reuse: where the continuation of this one
ends), so that what a model remembers of a row is the text before the next one.

A ends with a random sentence among those that end inside the row. Where none does, B
comes from elsewhere; with second="next", A and B are then the halves of what fits. What
is too long is cut at the right, from the longer of both. Half of the streams may be
read backward: the same text from right to left.

Shapes: C sentence bounds of a stream, R rows of a stream.
"""

from collections.abc import Iterator

import numpy as np

from encoderjax.data.random import KeyedDraws, hash_words
from encoderjax.data.records import ROW, Cutting, Rows
from encoderjax.data.segment_pairs import truncated_lengths
from encoderjax.data.stream import StreamSentences, stream_length
from encoderjax.errors import UserError


def stream_tokens(cutting: Cutting) -> int:
    """Returns how many tokens a stream has."""
    settings = cutting.settings
    return stream_length(cutting.split, settings.separators) // settings.streams


def num_blocks(cutting: Cutting) -> int:
    """Returns how many rows a stream has."""
    reuse, tokens = cutting.settings.reuse_length, _paired_tokens(cutting)
    left = stream_tokens(cutting) - reuse - tokens  # after the first row
    return max(0, left // (reuse or tokens) + 1)


def _paired_tokens(cutting: Cutting) -> int:
    """Returns how many tokens A and B have together."""
    settings = cutting.settings
    tokens = cutting.tokens(2) - settings.reuse_length
    if tokens < 2:
        raise UserError(
            f"data.reuse_length={settings.reuse_length} leaves no room for a pair in "
            f"rows of data.length={settings.length}; set it to at most "
            f"{cutting.tokens(2) - 2}"
        )
    return tokens


def cut_reuse_pairs(cutting: Cutting, number: int) -> Iterator[Rows]:
    """Yields the rows of each stream, for pass `number`; those read backward last."""
    settings = cutting.settings
    size, blocks = stream_tokens(cutting), num_blocks(cutting)
    bounds = _sentence_bounds(cutting)
    for slot in range(settings.streams * (1 + settings.bidirectional)):
        backward, stream = divmod(slot, settings.streams)
        base = stream * size
        first, last = np.searchsorted(bounds, [base + 1, base + size])
        bounds_C = np.concatenate([[0], bounds[first:last] - base, [size]])
        if backward:
            bounds_C = size - bounds_C[::-1]
        row_R = slot * blocks + np.arange(blocks)
        draw = KeyedDraws(hash_words(settings.seed, number, row_R))
        rows_R = _stream_rows(cutting, bounds_C, blocks, draw)
        if backward:
            rows_R["start"] = size - rows_R["start"] - rows_R["length"]
            rows_R["reversed"] = True
        rows_R["start"] += base
        yield Rows(rows_R)


def _sentence_bounds(cutting: Cutting) -> np.ndarray:
    """Returns where sentences begin in the stream of the whole split."""
    separators = cutting.settings.separators
    return np.concatenate(
        [
            StreamSentences.of(cutting.split, shard, separators).starts_S
            for shard in cutting.shards()
        ]
    )


def _stream_rows(
    cutting: Cutting, bounds_C: np.ndarray, blocks: int, draw: KeyedDraws
) -> np.ndarray:
    """Returns the rows of a stream, [R] of `ROW`, by places in it."""
    reuse, tokens = cutting.settings.reuse_length, _paired_tokens(cutting)
    start = np.arange(blocks) * (reuse or tokens)
    begin = start + reuse
    first = np.searchsorted(bounds_C, begin, "right")
    after = np.searchsorted(bounds_C, begin + tokens)
    end = bounds_C[after]  # the first bound at or beyond what fits
    cuts = after - first
    a_end = bounds_C[first + draw.integers("cut", np.maximum(cuts, 1))]
    b_begin, b_end = a_end.copy(), end.copy()

    if cutting.settings.second == "random":
        found = _spans_elsewhere(bounds_C, tokens - (a_end - begin), draw)
        # A random place may be that of the continuation; then that is what it is.
        odd = (cuts == 0) | (draw.coin("odd") & (found[0] != a_end))
        b_begin = np.where(odd, found[0], b_begin)
        b_end = np.where(odd, found[1], b_end)
    else:
        halves = begin + tokens // 2
        a_end = np.where(cuts == 0, halves, a_end)
        b_begin = np.where(cuts == 0, halves, b_begin)

    lengths = np.stack([a_end - begin, b_end - b_begin], axis=1)
    rows_R = np.zeros(blocks, ROW)
    rows_R["start"] = np.stack([start, b_begin], axis=1)
    rows_R["length"] = truncated_lengths(lengths, tokens) + np.array([reuse, 0])
    rows_R["label"] = b_begin != a_end
    return rows_R


def _spans_elsewhere(
    bounds_C: np.ndarray, wanted: np.ndarray, draw: KeyedDraws
) -> tuple[np.ndarray, np.ndarray]:
    """Returns begin and end of whole sentences round a random span of `wanted`."""
    wanted = np.maximum(wanted, 1)
    begin = draw.integers("place", bounds_C[-1] - wanted + 1)
    end = begin + wanted
    begin = bounds_C[np.searchsorted(bounds_C, begin, "right") - 1]
    return begin, bounds_C[np.searchsorted(bounds_C, end)]
