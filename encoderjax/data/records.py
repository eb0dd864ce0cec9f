"""What rows are made of: records of token spans, and the settings they are cut by.

Shapes: R rows, S pieces of rows (one a row, but for packed rows).
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np

from encoderjax.data.corpus import Split
from encoderjax.data.tokenizers import Layout

# A piece of a row: two spans of the text, the label of the second one, and whether
# both are read from right to left. The second has length 0 where there is none.
ROW = np.dtype(
    [
        ("start", "<i8", (2,)),
        ("length", "<u2", (2,)),
        ("label", "u1"),
        ("reversed", "?"),
    ]
)

FormName = Literal[
    "segment_pair",
    "sentence_pair",
    "segment_halves",
    "full_sentences",
    "doc_sentences",
    "contiguous",
    "reuse_pair",
    "packed",
    "parallel",
]
Second = Literal["next", "random", "swapped", "swapped_only"]
Negatives = Literal["document", "anywhere"]
Separators = Literal["none", "documents", "sentences"]
LongSentences = Literal["cut", "skip"]

# What the labels 0 and 1 say of a second segment.
LABEL_NAMES: dict[Second, tuple[str, str]] = {
    "next": ("next", "other"),
    "random": ("next", "random"),
    "swapped": ("in order", "swapped"),
    "swapped_only": ("in order", "swapped"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowSettings:
    """What the rows of a corpus depend on; see `DataConfig` for the meanings.

    Attributes:
      streams: into how many parts the text is divided, each to be read on from step to
        step; 0 where rows come in any order.
      passes: how many different cuts there are.
    """

    form: FormName
    second: Second
    negatives: Negatives
    length: int
    short_rate: float
    separators: Separators
    long_sentences: LongSentences
    reuse_length: int
    bidirectional: bool
    streams: int
    passes: int
    seed: int


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """The rows of one pass, or some of them.

    Attributes:
      pieces_S: of ROW.
      starts_R: [R + 1], the first piece of each row; None where each row is one piece.
    """

    pieces_S: np.ndarray
    starts_R: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.pieces_S) if self.starts_R is None else len(self.starts_R) - 1

    @classmethod
    def joined(cls, parts: Sequence["Rows"]) -> "Rows":
        """Returns the rows of all parts, in their order."""
        pieces_S = np.concatenate([np.zeros(0, ROW), *(p.pieces_S for p in parts)])
        if not parts or parts[0].starts_R is None:
            return cls(pieces_S)
        counts = [np.diff(p.starts_R) for p in parts if p.starts_R is not None]
        return cls(pieces_S, np.concatenate([[0], *counts]).cumsum(dtype=np.int64))

    def pieces_of(self, rows_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the first piece of each of the given rows, and how many it has."""
        if self.starts_R is None:
            return rows_B, np.ones_like(rows_B)
        first_B = self.starts_R[rows_B]
        return first_B, self.starts_R[rows_B + 1] - first_B


@dataclasses.dataclass(frozen=True, eq=False)
class Cutting:
    """What is cut into rows, and how.

    Attributes:
      translated: whether each document is a line and its translation.
    """

    split: Split
    layout: Layout
    settings: RowSettings
    translated: bool = False

    def tokens(self, segments: int) -> int:
        """Returns how many tokens of text fit a row of 1 or 2 segments."""
        return self.settings.length - self.layout.num_special(segments)

    def shards(self) -> Iterator[int]:
        """Yields the shards that have documents."""
        bounds = self.split.shard_documents
        yield from np.flatnonzero(bounds[:-1] < bounds[1:]).tolist()


@dataclasses.dataclass(frozen=True, eq=False)
class ShardText:
    """The documents and sentences of one shard, by their places in the split.

    Attributes:
      documents_D: the number of each document.
      first_D: its first sentence, counted in the shard.
      end_D: the one after its last.
      offsets_S: [S + 1], where each sentence begins.
      origin: the shard's first sentence, counted in the split.
    """

    documents_D: np.ndarray
    first_D: np.ndarray
    end_D: np.ndarray
    offsets_S: np.ndarray
    origin: int

    @classmethod
    def of(cls, split: Split, shard: int) -> "ShardText":
        """Reads the offsets of a shard."""
        first, stop = split.shard_documents[shard : shard + 2]
        bounds = split.document_starts.slice(first, stop + 1)
        return cls(
            documents_D=np.arange(first, stop),
            first_D=bounds[:-1] - bounds[0],
            end_D=bounds[1:] - bounds[0],
            offsets_S=split.sentence_starts.slice(bounds[0], bounds[-1] + 1),
            origin=int(bounds[0]),
        )


def joined_ranges(
    starts: np.ndarray, lengths: np.ndarray, steps: np.ndarray | None = None
) -> np.ndarray:
    """Returns the ranges of so many numbers from each start, one after the other.

    Args:
      steps: 1 where a range counts up, -1 where it counts down; None = all up.
    """
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    if steps is None:
        return np.repeat(starts - (ends - lengths), lengths) + np.arange(total)
    along = np.arange(total) - np.repeat(ends - lengths, lengths)
    return np.repeat(starts, lengths) + np.repeat(steps, lengths) * along
