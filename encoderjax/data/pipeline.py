"""From row numbers to batches, as a pure function of the step.

`BatchSource.batch(step)` is all there is to know: no state, no iterator to save.
`prefetched` runs it ahead in one thread.

Batch keys made here (objectives add their own under their names):
  ids          int32 [B, L]   tokens, padded
  mask         bool [B, L]    True for real tokens
  segments     int32 [B, L]   0 for the first segment, 1 for the second, or as the
                              tokenizer's layout has them
  second       int32 [B]      label of the second segment: 0 = the continuation
  row          uint32 [B]     number of the row, for the dropout masks
  row_weights  float32 [B]    0 for rows that only fill up the last batch

Shapes: B rows of a batch, L length.
"""

import dataclasses
import functools
import queue
import threading
from collections.abc import Callable, Generator
from typing import Any, Literal, Protocol, TypeVar

import numpy as np

from encoderjax.data.corpus import Split
from encoderjax.data.random import Draws
from encoderjax.data.rows import EpochOrder, RowIndex, RowSettings
from encoderjax.data.segment_pairs import Negatives, Second
from encoderjax.data.tokenizers import Layout, Vocabulary
from encoderjax.errors import UserError

Batch = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where the text comes from and how it becomes rows.

    Attributes:
      corpus: a folder made by `encoderjax.prepare`, or `demo`.
      tokenizer: the vocabulary that the demo corpus is prepared with.
      form: how rows are cut.
      second: what the second segment may be besides the continuation: `next` nothing
        else, `random` text from elsewhere (BERT), `swapped` the wrong order (ALBERT).
        A single sentence has no order: with `swapped` it too is followed by text from
        elsewhere, labelled 1, as in ALBERT's code.
      negatives: whether random text comes from another `document` or from `anywhere`;
        it is never the true continuation.
      length: tokens of a row, special ones included.
      batch_size: rows of a step over all devices, or
      batch_tokens: real tokens of a step, from which the number of rows follows.
      short_rate: share of documents that are cut into shorter rows (BERT's 0.1).
      dupe_factor: how many different cuts of the corpus there are; epoch e uses cut
        e modulo this.
      masking: `dynamic` draws new masks in each epoch, `static` repeats them with the
        cuts, as BERT's files did.
      cache_dir: where the row index goes when the corpus cannot be written to.
    """

    corpus: str
    tokenizer: str = "wordpiece:4000"
    form: Literal["segment_pair"] = "segment_pair"
    second: Second = "random"
    negatives: Negatives = "document"
    length: int = 128
    batch_size: int | None = None
    batch_tokens: int | None = None
    short_rate: float = 0.1
    dupe_factor: int = 10
    masking: Literal["dynamic", "static"] = "dynamic"
    cache_dir: str | None = None

    def __post_init__(self):
        if not self.corpus:
            raise UserError("data.corpus='' names no folder; give one, or 'demo'")
        if self.length < 8:
            raise UserError(f"data.length={self.length} must be at least 8")
        if self.length > 65_535:
            raise UserError(f"data.length={self.length} must be below 65,536")
        if not 0.0 <= self.short_rate <= 1.0:
            raise UserError(f"data.short_rate={self.short_rate} must be in [0, 1]")
        if self.dupe_factor < 1:
            raise UserError(f"data.dupe_factor={self.dupe_factor} must be at least 1")
        if (self.batch_size is None) == (self.batch_tokens is None):
            raise UserError(
                f"data.batch_size={self.batch_size} and data.batch_tokens="
                f"{self.batch_tokens}: give exactly one of them, the other None"
            )
        for name in ("batch_size", "batch_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"data.{name}={value} must be at least 1")

    def row_settings(self, seed: int) -> RowSettings:
        """Returns what the row index depends on."""
        return RowSettings(
            form=self.form,
            second=self.second,
            negatives=self.negatives,
            length=self.length,
            short_rate=self.short_rate,
            passes=self.dupe_factor,
            seed=seed,
        )


def rows_for_tokens(batch_tokens: int, index: RowIndex) -> int:
    """Returns how many rows hold `batch_tokens` real tokens: a multiple of 8."""
    return max(8, 8 * round(batch_tokens / index.mean_tokens / 8))


@dataclasses.dataclass(frozen=True, eq=False)
class Lexicon:
    """What corruption needs to know of the tokens.

    Attributes:
      vocabulary: ids and kinds of the tokens.
      unigrams_V: how often each occurs in the training text.
    """

    vocabulary: Vocabulary
    unigrams_V: np.ndarray

    @functools.cached_property
    def cumulative_V(self) -> np.ndarray:  # noqa: N802 (an array, named by shape)
        """Running sum of the unigram counts, to draw from them."""
        return np.cumsum(self.unigrams_V, dtype=np.int64)


class Corruption(Protocol):
    """The host half of an objective."""

    def corrupt(self, batch: Batch, draws: Draws, lexicon: Lexicon) -> Batch:
        """Returns the batch with its own keys added; the input stays as it is."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class BatchSource:
    """The batches of a run, any of them at once.

    Attributes:
      order: where rows stand in the stream.
      corruptions: applied one after the other.
      static_epochs: with static masking, after how many epochs the masks repeat.
    """

    split: Split
    index: RowIndex
    order: EpochOrder
    layout: Layout
    lexicon: Lexicon
    corruptions: tuple[Corruption, ...]
    length: int
    batch_size: int
    seed: int
    static_epochs: int | None = None

    def places(
        self, step: int, rows: slice | np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns epoch and row number of the given rows of step `step`."""
        places_B = np.arange(self.batch_size, dtype=np.int64)[rows]
        return self.order.at(places_B + step * self.batch_size)

    def batch(self, step: int, rows: slice | np.ndarray = slice(None)) -> Batch:
        """Returns the given rows of the global batch of `step`."""
        return self.rows(*self.places(step, rows))

    def rows(self, epochs_B: np.ndarray, rows_B: np.ndarray) -> Batch:
        """Returns the corrupted batch of the given rows; -1 stands for a filler."""
        real_B = rows_B >= 0
        rows_B = np.maximum(rows_B, 0)
        records_B = self.index.take(epochs_B, rows_B)
        batch = assemble(self.split, self.layout, self.lexicon, records_B, self.length)
        batch["second"] = records_B["label"].astype(np.int32)
        batch["row"] = rows_B.astype(np.uint32)
        batch["row_weights"] = real_B.astype(np.float32)
        if self.static_epochs is not None:
            epochs_B = epochs_B % self.static_epochs
        draws = Draws(self.seed, epochs_B, rows_B)
        for corruption in self.corruptions:
            batch = corruption.corrupt(batch, draws, self.lexicon)
        return batch


def assemble(
    split: Split, layout: Layout, lexicon: Lexicon, records_B: np.ndarray, length: int
) -> Batch:
    """Lays out spans and special tokens: ids, mask and segments, each [B, L]."""
    start_B2, length_B2 = records_B["start"], records_B["length"].astype(np.int64)
    paired_B = length_B2[:, 1] > 0
    ids_BL = np.full((len(records_B), length), lexicon.vocabulary.pad_id, np.int32)

    a_first = len(layout.before)
    a_last_B = a_first + length_B2[:, 0]
    b_first_B = a_last_B + len(layout.between) * paired_B
    b_last_B = b_first_B + length_B2[:, 1]
    end_B = b_last_B + len(layout.after)

    # Places count from where the row begins, columns from the left of the batch.
    begin_B = length - end_B if layout.pads_left else np.zeros_like(end_B)
    places_BL = np.arange(length) - begin_B[:, None]

    for side, first_B, last_B in (
        (0, np.full_like(a_last_B, a_first), a_last_B),
        (1, b_first_B, b_last_B),
    ):
        inside_BL = (places_BL >= first_B[:, None]) & (places_BL < last_B[:, None])
        offset_B = start_B2[:, side] - first_B
        positions = places_BL + offset_B[:, None]
        ids_BL[inside_BL] = split.tokens.take(positions[inside_BL])

    every = np.arange(len(records_B))
    for place, token in enumerate(layout.before):
        ids_BL[every, begin_B + place] = token
    for place, token in enumerate(layout.between):
        ids_BL[every[paired_B], (begin_B + a_last_B + place)[paired_B]] = token
    for place, token in enumerate(layout.after):
        ids_BL[every, begin_B + b_last_B + place] = token

    mask_BL = (places_BL >= 0) & (places_BL < end_B[:, None])
    second_BL = mask_BL & (places_BL >= b_first_B[:, None]) & paired_B[:, None]
    segments_BL = np.where(second_BL, layout.second, 0)
    if layout.final is not None:
        segments_BL[every, begin_B + end_B - 1] = layout.final
    segments_BL[~mask_BL] = layout.pad
    return {"ids": ids_BL, "mask": mask_BL, "segments": segments_BL.astype(np.int32)}


_T = TypeVar("_T")


def prefetched(
    make: Callable[[int], _T], steps: range, *, ahead: int = 3
) -> Generator[_T, None, None]:
    """Yields make(step) for each step, made ahead in one background thread.

    An error in the thread is raised here, at the step that it belongs to. Closing
    the iterator ends the thread.
    """
    ready: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue(ahead)
    stopped = threading.Event()

    def put(item) -> bool:
        while not stopped.is_set():
            try:
                ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        for step in steps:
            try:
                item = (make(step), None)
            except BaseException as error:
                put((None, error))
                return
            if not put(item):
                return

    thread = threading.Thread(target=work, name="batches", daemon=True)
    thread.start()
    try:
        for _ in steps:
            value, error = ready.get()
            if error is not None:
                raise error
            yield value
    finally:
        stopped.set()
        thread.join()
