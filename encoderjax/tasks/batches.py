"""Batches of encoded examples: rows are padded to few lengths, the least that do.

Shapes: B items of a batch, G rows of an item, L length.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np

from encoderjax.data.pipeline import Batch
from encoderjax.data.rows import EpochOrder
from encoderjax.data.tokenizers import Tokenizer
from encoderjax.tasks.encoding import pad_places, pad_rows
from encoderjax.tasks.task import Encoded

# A step is compiled for each length that occurs: so few, at most half as long again.
_STEPS = (16, 24)


def padded_length(longest: int, most: int) -> int:
    """Returns the length that rows are padded to: 16, 24, 32, 48, ... or `most`."""
    lengths: list[int] = [*_STEPS]
    while lengths[-1] < most:
        lengths.append(2 * lengths[-2])
    return min(most, next(length for length in lengths if length >= longest))


@dataclasses.dataclass(frozen=True, eq=False)
class Items:
    """Encoded examples that batches are made of.

    Attributes:
      length: the longest that a row may be.
      group: rows of an item; arrays of a batch have an axis for them where it is not 1.
    """

    encoded: Encoded
    tokenizer: Tokenizer
    length: int
    group: int = 1

    def longest(self, items_B: np.ndarray) -> int:
        """Returns how long the longest row of some items is; -1 is none."""
        real = (self.encoded.items[i] for i in items_B if i >= 0)
        return max((len(row) for rows in real for row in rows), default=1)

    def take(self, items_B: np.ndarray, length: int) -> Batch:
        """Returns the batch of items, padded; -1 stands for a filler."""
        encoded, tokenizer = self.encoded, self.tokenizer
        real_B = items_B >= 0
        numbers = np.maximum(items_B, 0)
        items = [encoded.items[i] for i in numbers]
        rows = [row for rows in items for row in (*rows, *self._missing(rows))]
        batch: Batch = pad_rows(rows, length, tokenizer)
        if self.group > 1:
            batch = {
                name: x.reshape(len(items), self.group, length)
                for name, x in batch.items()
            }
            sizes_B = np.array([len(rows) for rows in items])
            batch["present"] = np.arange(self.group) < sizes_B[:, None]
        before_B = np.array(
            [
                length - len(rows[0]) if tokenizer.layout.pads_left else 0
                for rows in items
            ]
        )
        values = {name: x[numbers] for name, x in encoded.values.items()}
        at_places = {
            name: pad_places([x[i] for i in numbers], length, -1, tokenizer)
            for name, x in encoded.at_places.items()
        }
        places = {
            name: (x[numbers] + before_B).astype(np.int32)
            for name, x in encoded.places.items()
        }
        return batch | {
            "row": numbers.astype(np.uint32),
            "row_weights": real_B.astype(np.float32),
            **{f"task/{k}": v for k, v in (values | at_places | places).items()},
        }

    def _missing(self, rows: tuple) -> tuple:
        return (rows[0],) * (self.group - len(rows))


@dataclasses.dataclass(frozen=True, eq=False)
class TaskSource:
    """The training batches of a task, any of them at once."""

    items: Items
    order: EpochOrder
    batch_size: int

    @classmethod
    def of(cls, items: Items, batch_size: int, seed: int) -> "TaskSource":
        """Returns batches in a new order every epoch."""
        return cls(items, EpochOrder((len(items.encoded),), seed), batch_size)

    def places(
        self, step: int, rows: slice | np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns epoch and number of the given items of step `step`.

        Those from the size of the batch on are fillers, with the number -1.
        """
        if isinstance(rows, slice):
            rows = np.arange(self.batch_size)[rows]
        epochs_B, items_B = self.order.at(
            step * self.batch_size + rows.astype(np.int64)
        )
        return epochs_B, np.where(rows < self.batch_size, items_B, -1)

    def batch(self, step: int, rows: slice | np.ndarray = slice(None)) -> Batch:
        """Returns the given items of the global batch of `step`."""
        _, all_B = self.places(step, slice(None))
        length = padded_length(self.items.longest(all_B), self.items.length)
        _, items_B = self.places(step, rows)
        return self.items.take(items_B, length)


def by_length(items: Items, batch_size: int) -> Iterator[tuple[np.ndarray, int]]:
    """Yields all items in batches of like lengths, and what those are padded to.

    The last is filled up with -1. Batches are as many for every process.
    """
    sizes = [max(len(row) for row in rows) for rows in items.encoded.items]
    order = np.argsort(sizes, kind="stable")
    for first in range(0, len(order), batch_size):
        chosen = order[first : first + batch_size]
        items_B = np.full(batch_size, -1)
        items_B[: len(chosen)] = chosen
        yield items_B, padded_length(sizes[chosen[-1]], items.length)
