"""ELECTRA's examples: text up to a length, split near its middle.

Sentences of a document are gathered until they reach the target, or the document ends.
The target is drawn for each example: the length of a row, or, at `short_rate`, anything
from 5 up. One example in ten is one segment; else the first segment has about half of
the target: the sentence that would reach that half goes to either side, with equal
chance. The second segment is always the continuation. Both are cut at the right.

The reference lets a later, shorter sentence slip back into the first segment, which
then is no longer a piece of text; here all that follows the first sentence of the
second segment belongs to that.

Shapes: R rows, D live documents of a shard.
"""

import numpy as np

from encoderjax.data.random import KeyedDraws, hash_words
from encoderjax.data.records import ROW, Cutting, ShardText

_SINGLE_RATE = 0.1
_SHORTEST = 5


def cut_halves(cutting: Cutting, shard: int, number: int) -> np.ndarray:
    """Returns the rows of one shard as [R] of `ROW`, for pass `number`."""
    settings = cutting.settings
    text = ShardText.of(cutting.split, shard)
    document, sentence, end = text.documents_D, text.first_D, text.end_D
    offsets = text.offsets_S
    key = hash_words(settings.seed, number, document)
    rows, owners = [], []
    for example in range(len(offsets)):
        if not document.size:
            break
        draw = KeyedDraws(key, example)
        begin = offsets[sentence]
        lengths = _SHORTEST + draw.integers("length", settings.length - _SHORTEST + 1)
        short = draw.happens("short", settings.short_rate)
        target = np.where(short, lengths, settings.length)
        reached = np.searchsorted(offsets, begin + target)
        after = np.maximum(np.minimum(reached, end), sentence + 1)

        half = (target - cutting.layout.num_special(2)) // 2
        # The sentence with which the first segment reaches its target.
        last = np.searchsorted(offsets, begin + half) - 1
        middle = np.where(draw.coin("side"), last + 1, last)
        middle = np.clip(middle, sentence + 1, after)
        single = draw.happens("single", _SINGLE_RATE)
        middle = np.where(single, after, middle)

        part = np.zeros(document.size, ROW)
        first = np.minimum(offsets[middle] - begin, cutting.tokens(1))
        room = np.maximum(cutting.tokens(2) - first, 0)
        part["start"] = np.stack([begin, offsets[middle]], axis=1)
        part["length"][:, 0] = first
        part["length"][:, 1] = np.minimum(offsets[after] - offsets[middle], room)
        rows.append(part)
        owners.append(document)

        live = after < end
        document, sentence, end = document[live], after[live], end[live]
        key = key[live]
    order = np.argsort(np.concatenate(owners), kind="stable")
    return np.concatenate(rows)[order]
