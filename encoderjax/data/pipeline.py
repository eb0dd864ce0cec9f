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
  paired       float32 [B]    the same, and 0 for rows without a second segment
Of packed rows alone:
  documents    int32 [B, L]   number of the document in its row, from 1; 0 = padding
  positions    int32 [B, L]   place in the document, from 0; 0 on padding
Of parallel rows alone:
  positions    int32 [B, L]   place in the line or in its translation, from 0
Where the model tells languages apart:
  languages    int32 [B, L]   number of the language among those of the model
Of rows in streams alone:
  reversed     bool [B]       True where the text is read from right to left

Shapes: B rows of a batch, L length.
"""

import dataclasses
import functools
import itertools
import queue
import threading
from collections.abc import Callable, Generator, Mapping
from typing import Any, Literal, Protocol, TypeVar

import numpy as np

from encoderjax.data.assembly import Batch, assemble
from encoderjax.data.corpora import spelled
from encoderjax.data.forms import FORMS, forms_that
from encoderjax.data.mixture import MixedIndex, order_after, places_used
from encoderjax.data.parallel import told_apart
from encoderjax.data.random import Draws
from encoderjax.data.records import (
    FormName,
    LongSentences,
    Negatives,
    RowSettings,
    Second,
    Separators,
)
from encoderjax.data.rows import Order, RowIndex
from encoderjax.data.token_sequences import NO_SEQUENCES, TokenSequences
from encoderjax.data.tokenizers import Tokenizer, Vocabulary
from encoderjax.data.word_lists import NO_SIMILAR_WORDS, SimilarWords
from encoderjax.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where the text comes from and how it becomes rows.

    Attributes:
      corpus: a folder made by `encoderjax.prepare`, with one corpus or with a group of
        them, such as one for each language; several folders with weights,
        `a:0.7,b:0.3`, whose rows are then mixed; or `demo`.
      alpha: the members of a group have shares q_i of the rows in proportion to
        n_i^alpha, where n_i are their sentences: 1 leaves them as they are, 0 makes
        them equal. None = 0.3 (XLM-R).
      source: the texts that the corpus is made from, for the message that names the
        command where it is missing.
      tokenizer: the vocabulary that it is prepared with; the demo corpus is made so.
      form: how rows are cut: two segments of a document (`segment_pair`, BERT), two
        sentences (`sentence_pair`), a text split near its middle (`segment_halves`,
        ELECTRA); whole sentences as many as fit, across documents (`full_sentences`,
        RoBERTa) or not (`doc_sentences`, SpanBERT); slices of the text (`contiguous`,
        DeBERTa); a pair after text of the row before (`reuse_pair`, XLNet); several
        documents side by side (`packed`, ModernBERT); a line and its translation, and
        where a corpus has one language whole sentences (`parallel`, XLM).
      second: what the second segment may be besides the continuation: `next` nothing
        else, `random` text from elsewhere (BERT), `swapped` the wrong order (ALBERT).
        A single sentence has no order: with `swapped` it too is followed by text from
        elsewhere, labelled 1, as in ALBERT's code; with `swapped_only` it stays alone
        and counts in no pair loss. None = `random` where the form can, else `next`.
      negatives: whether random text comes from another `document` or from `anywhere`;
        it is never the true continuation. Streams have their own: see `reuse_pairs`.
      length: tokens of a row, special ones included.
      buckets: lengths below `length`, ascending: every step then has rows of one of
        them only, those that fit it and no shorter one, and is padded to it alone.
        Steps have equally many rows, and each bucket as many of them as it has rows.
      batch_size: rows of a step over all devices, or
      batch_tokens: real tokens of a step, from which the number of rows follows: the
        nearest multiple of 8, with `fill_batch` the nearest number.
      fill_batch: whether a step with more room than rows, because devices and
        microbatches cannot share those evenly, is filled up with rows that count for
        nothing; else it is refused.
      short_rate: share of documents (`segment_halves`: of rows) that are cut shorter.
        None = 0.1 for `segment_pair` (BERT), 0.05 for `segment_halves` (ELECTRA), else
        0.
      separators: what stands in the text of `full_sentences`, `doc_sentences`,
        `contiguous`, `reuse_pair` and `parallel` that is no text: `none` nothing,
        `documents` a separator after each document, `sentences` one after each sentence
        and one more after each document (fairseq's files). It is the tokenizer's, <eod>
        where there is one; a row does not begin with it, and ends with its own alone,
        except in streams. None = `documents` for `full_sentences` and `reuse_pair`,
        `sentences` for `parallel`, else `none`.
      long_sentences: what becomes of a sentence that is longer than a row of
        `full_sentences` or `doc_sentences`, or of one language in `parallel`: it is
        `cut` into slices, or left out (`skip`, as the references do).
      reuse_length: with `reuse_pair`, how many tokens of a row come before its pair;
        the next row begins where they end.
      bidirectional: with `reuse_pair`, whether the second half of a batch reads the
        text of the first half from right to left (XLNet).
      dupe_factor: how many different cuts of the corpus there are; epoch e uses cut
        e modulo this. `full_sentences`, `doc_sentences` and `contiguous` have one.
      masking: `dynamic` draws new masks in each epoch, `static` repeats them with the
        cuts, as BERT's files did.
      cache_dir: where the row index goes when the corpus cannot be written to.
    """

    corpus: str
    alpha: float | None = None
    source: str = "my/texts/*.txt"
    tokenizer: str = "wordpiece:4000"
    form: FormName = "segment_pair"
    second: Second | None = None
    negatives: Negatives = "document"
    length: int = 128
    buckets: tuple[int, ...] | None = None
    batch_size: int | None = None
    batch_tokens: int | None = None
    fill_batch: bool = False
    short_rate: float | None = None
    separators: Separators | None = None
    long_sentences: LongSentences = "cut"
    reuse_length: int = 0
    bidirectional: bool = False
    dupe_factor: int = 10
    masking: Literal["dynamic", "static"] = "dynamic"
    cache_dir: str | None = None

    def __post_init__(self):
        object.__setattr__(self, "corpus", spelled(self.corpus))
        if not 0.0 <= (self.alpha or 0.0) <= 1.0:
            raise UserError(f"data.alpha={self.alpha} must be in [0, 1]")
        if self.length < 8:
            raise UserError(f"data.length={self.length} must be at least 8")
        if self.length > 65_535:
            raise UserError(f"data.length={self.length} must be below 65,536")
        if not 0.0 <= (self.short_rate or 0.0) <= 1.0:
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
        self._check_form()
        if FORMS[self.form].in_streams:
            self._check_streams()
        if self.buckets:
            self._check_buckets()
        else:
            object.__setattr__(self, "buckets", None)

    def _check_form(self) -> None:
        """Refuses what rows of this form would not read."""
        form = FORMS[self.form]
        for name, default, able in (
            ("second", None, lambda form: self.second in form.second),
            ("short_rate", None, lambda form: form.short_rate is not None),
            ("separators", None, lambda form: form.separators is not None),
            ("negatives", "document", lambda form: form.from_elsewhere),
            ("long_sentences", "cut", lambda form: form.takes_sentences_whole),
            ("reuse_length", 0, lambda form: form.in_streams),
            ("bidirectional", False, lambda form: form.in_streams),
        ):
            value = getattr(self, name)
            # A short_rate of 0.0 says nothing, as None does.
            if value not in (default, 0.0) and not able(form):
                raise UserError(
                    f"data.{name}={value!r} has no meaning with data.form="
                    f"{self.form!r}; leave it out, or set data.form to "
                    f"{forms_that(able)}"
                )

    def _check_streams(self) -> None:
        if self.batch_size is None:
            raise UserError(
                f"data.batch_tokens={self.batch_tokens} cannot be with data.form="
                f"{self.form!r}, whose rows depend on their number in a batch; give "
                "data.batch_size"
            )
        if self.fill_batch:
            raise UserError(
                f"data.fill_batch=True cannot be with data.form={self.form!r}, whose "
                "rows go on from step to step; give a data.batch_size that the devices "
                "can share"
            )
        if self.bidirectional and self.batch_size % 2:
            raise UserError(
                f"data.batch_size={self.batch_size} must be even with "
                "data.bidirectional=True: half of the rows are read backward"
            )
        if not 0 <= self.reuse_length <= self.length - 2:
            raise UserError(
                f"data.reuse_length={self.reuse_length} must be at least 0 and leave "
                f"room for a pair in rows of data.length={self.length}"
            )

    def _check_buckets(self) -> None:
        lengths = (7, *(self.buckets or ()), self.length)
        if any(low >= high for low, high in itertools.pairwise(lengths)):
            raise UserError(
                f"data.buckets={self.buckets} must ascend, from 8 on to below "
                f"data.length={self.length}, which is a bucket by itself"
            )
        form = FORMS[self.form]
        if form.packed or form.in_streams:
            reason = "are full" if form.packed else "go on from step to step"
            raise UserError(
                f"data.buckets={self.buckets} cannot be with data.form={self.form!r}, "
                f"whose rows {reason}; leave it out"
            )

    @property
    def bucket_lengths(self) -> tuple[int, ...]:
        """The lengths that batches may have."""
        return (*(self.buckets or ()), self.length)

    @property
    def settled_second(self) -> Second:
        """What the second segment may be, the form's default where it is left open."""
        return self.second or FORMS[self.form].second[0]

    def row_settings(self, seed: int, *, held_out: bool = False) -> RowSettings:
        """Returns what the row index depends on, everything settled.

        Held-out rows are cut once, in one stream, whatever the batches.
        """
        form = FORMS[self.form]
        short_rate = form.short_rate if self.short_rate is None else self.short_rate
        bidirectional = self.bidirectional and not held_out
        streams = 0
        if form.in_streams:
            assert self.batch_size is not None  # checked at the beginning
            streams = 1 if held_out else self.batch_size // (1 + bidirectional)
        return RowSettings(
            form=self.form,
            second=self.settled_second,
            negatives=self.negatives,
            length=self.length,
            short_rate=short_rate or 0.0,
            separators=self.separators or form.separators or "none",
            long_sentences=self.long_sentences,
            reuse_length=self.reuse_length,
            bidirectional=bidirectional,
            streams=streams,
            passes=1 if held_out or not form.draws else self.dupe_factor,
            seed=seed if form.draws else 0,
        )


Index = RowIndex | MixedIndex

# (what rows are padded to, number of the member) -> how many of its rows were used
Used = Mapping[tuple[int | None, int], int]


def rows_for_tokens(batch_tokens: int, index: Index, multiple: int = 8) -> int:
    """Returns how many rows hold `batch_tokens` real tokens, a multiple of `multiple`.

    Eight is what devices usually share evenly.
    """
    return multiple * max(1, round(batch_tokens / index.mean_tokens / multiple))


@dataclasses.dataclass(frozen=True, eq=False)
class Lexicon:
    """What corruption needs to know of the tokens.

    Attributes:
      vocabulary: ids and kinds of the tokens.
      unigrams_V: how often each occurs in the training text.
      pads_left: whether padding stands before the row.
      pad_segment: the segment of padding.
      phrases: of a list; none unless the run has one.
      similar: words and those like them; none unless the run has such a list.
    """

    vocabulary: Vocabulary
    unigrams_V: np.ndarray
    pads_left: bool = False
    pad_segment: int = 0
    phrases: TokenSequences = NO_SEQUENCES
    similar: SimilarWords = NO_SIMILAR_WORDS

    @classmethod
    def of(
        cls, tokenizer: Tokenizer, unigrams_V: np.ndarray, **lists: Any
    ) -> "Lexicon":
        """Returns that of a tokenizer, with the lists that the run has."""
        return cls(
            tokenizer.vocabulary,
            unigrams_V,
            tokenizer.layout.pads_left,
            tokenizer.layout.pad,
            **lists,
        )

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
      order: where rows stand in the endless stream of them.
      corruptions: applied one after the other.
      static_epochs: with static masking, after how many epochs the masks repeat.
      first_step: the step of the first batch,
      first_place: and where in the stream of rows that one begins.
      length: that rows are padded to; None = the longest that there may be.
      languages_M2: the numbers of the languages of each member of the index, of the
        first and the second text; None where they are not told.
    """

    index: Index
    order: Order
    lexicon: Lexicon
    corruptions: tuple[Corruption, ...]
    batch_size: int
    seed: int
    static_epochs: int | None = None
    first_step: int = 0
    first_place: int = 0
    length: int | None = None
    languages_M2: np.ndarray | None = None

    def _begin(self, step: int) -> int:
        """Returns where in the stream the rows of `step` begin."""
        return self.first_place + (step - self.first_step) * self.batch_size

    def used(self, step: int) -> Used:
        """Returns the rows that were used before `step`, for those that go on."""
        places = places_used(self.order, self._begin(step))
        return {(self.length, member): place for member, place in places.items()}

    def starting(self, step: int, used: Used) -> "BatchSource":
        """Returns the batches from `step` on, after the rows that are used."""
        own = {m: place for (length, m), place in used.items() if length == self.length}
        order, place = order_after(self.order, own)
        return dataclasses.replace(
            self, order=order, first_step=step, first_place=place
        )

    def places(
        self, step: int, rows: slice | np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns epoch and row number of the given rows of step `step`.

        Rows from the size of the batch on are fillers, with the number -1.
        """
        if isinstance(rows, slice):
            rows = np.arange(self.batch_size)[rows]
        epochs_B, rows_B = self.order.at(self._begin(step) + rows.astype(np.int64))
        return epochs_B, np.where(rows < self.batch_size, rows_B, -1)

    def batch(self, step: int, rows: slice | np.ndarray = slice(None)) -> Batch:
        """Returns the given rows of the global batch of `step`."""
        return self.rows(*self.places(step, rows), step=step)

    def rows(
        self, epochs_B: np.ndarray, rows_B: np.ndarray, *, step: int | None = None
    ) -> Batch:
        """Returns the corrupted batch of the given rows; -1 stands for a filler."""
        real_B = rows_B >= 0
        rows_B = np.maximum(rows_B, 0)
        batch = self._plain(epochs_B, rows_B, real_B.astype(np.float32))
        if self.static_epochs is not None:
            epochs_B = epochs_B % self.static_epochs
        draws = Draws(self.seed, epochs_B, rows_B, step)
        for corruption in self.corruptions:
            batch = corruption.corrupt(batch, draws, self.lexicon)
        return batch

    def _plain(
        self, epochs_B: np.ndarray, rows_B: np.ndarray, weights_B: np.ndarray
    ) -> Batch:
        """Returns the text of rows, with what is known of them."""
        index, form = self.index, self.index.form
        records_S, row_S = index.take(epochs_B, rows_B)
        batch = assemble(
            index.stream,
            index.layout,
            self.lexicon.vocabulary.pad_id,
            (records_S, row_S),
            (len(rows_B), self.length or index.settings.length),
            packed=form.packed,
        )
        if form.packed:  # several records a row, and no second segments
            label_B, paired_B = np.zeros((2, len(rows_B)), bool)
        else:
            label_B, paired_B = records_S["label"], records_S["length"][:, 1] > 0
        if form.in_streams:
            batch["reversed"] = records_S["reversed"]
        languages_B2 = None
        if self.languages_M2 is not None:
            languages_B2 = self.languages_M2[index.members_of(rows_B)]
        batch |= told_apart(
            batch,
            (records_S, row_S),
            index.layout,
            languages_B2,
            parallel=form.parallel,
        )
        return batch | {
            "second": label_B.astype(np.int32),
            "row": rows_B.astype(np.uint32),
            "row_weights": weights_B,
            "paired": weights_B * paired_B,
        }


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
