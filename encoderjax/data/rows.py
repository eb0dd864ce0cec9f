"""The row index: where each row's tokens lie, and the order in which rows come.

What has to be cut sequentially is cut once for a corpus and its row settings, kept
beside the corpus under a hash of both, and mapped. After that any row of any step
is found by arithmetic.

Shapes: B rows of a batch, S pieces of them.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from encoderjax.data.by_length import RowsByLength, by_length_arrays
from encoderjax.data.corpus import (
    MIXTURE,
    Corpus,
    allow_open_files,
    write_array,
    write_json,
)
from encoderjax.data.forms import FORMS, Form
from encoderjax.data.random import permuted
from encoderjax.data.records import ROW, Cutting, Rows, RowSettings, joined_ranges
from encoderjax.data.reuse_pairs import num_blocks
from encoderjax.data.stream import TextStream, separator_of, separator_places
from encoderjax.data.tokenizers import Layout
from encoderjax.errors import UserError

_FORMAT = 3  # part of the hash: raise it when the cut changes, or what is kept of it
_LONG_CUT = 1_000_000  # sentences; above this the wait is announced
_LEFTOVER_AGE = 24 * 3600  # seconds after which a folder being cut is abandoned


class NoRowsError(UserError):
    """A split has nothing to cut rows from."""


SplitName = Literal["train", "validation"]
Lengths = tuple[int, int]  # of rows with more tokens than the one, at most the other


@dataclasses.dataclass(frozen=True, eq=False)
class RowIndex:
    """The rows of a split, pass by pass, all mapped.

    Attributes:
      num_tokens: of the rows of all passes together, special ones included.
      by_length: the rows of each pass by their tokens, where that was asked for.
    """

    passes: tuple[Rows, ...]
    stream: TextStream
    layout: Layout
    settings: RowSettings
    num_tokens: int
    by_length: tuple[RowsByLength, ...] = ()

    @property
    def form(self) -> Form:
        """What kind of rows these are."""
        return FORMS[self.settings.form]

    @property
    def num_rows(self) -> int:
        """Rows of all passes together."""
        return sum(len(rows) for rows in self.passes)

    @property
    def mean_tokens(self) -> float:
        """Mean number of real tokens of a row, special ones included."""
        return self.num_tokens / self.num_rows

    def take(
        self, epochs_B: np.ndarray, rows_B: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the pieces of rows, and the row of the batch that each belongs to.

        Epoch e reads pass e mod passes.
        """
        passes_B = epochs_B % len(self.passes)
        first_B, count_B = np.empty_like(rows_B), np.empty_like(rows_B)
        numbers = np.unique(passes_B)
        for number in numbers:
            here = passes_B == number
            first_B[here], count_B[here] = self.passes[number].pieces_of(rows_B[here])
        row_S = np.repeat(np.arange(len(rows_B)), count_B)
        piece_S = joined_ranges(first_B, count_B)
        records_S = np.empty(len(row_S), ROW)
        for number in numbers:
            here = passes_B[row_S] == number
            records_S[here] = self.passes[number].pieces_S[piece_S[here]]
        return records_S, row_S

    def members_of(self, rows_B: np.ndarray) -> np.ndarray:
        """Returns the member [B] that each row belongs to: there is only one."""
        return np.zeros(len(rows_B), np.int64)

    def share(self, lengths: Lengths) -> float:
        """Returns the share of rows with so many tokens."""
        chosen = sum(len(rows.between(*lengths)) for rows in self.by_length)
        return chosen / self.num_rows

    def order(self, seed: int, lengths: Lengths | None = None) -> "Order":
        """Returns the order in which the rows are trained on.

        Args:
          seed: of the run.
          lengths: only of rows with so many tokens; None = of all.
        """
        settings = self.settings
        if lengths is not None:
            parts = tuple(rows.between(*lengths) for rows in self.by_length)
            return EpochOrder(tuple(map(len, parts)), seed, parts)
        if not self.form.in_streams:
            return EpochOrder(tuple(map(len, self.passes)), seed)
        slots = settings.streams * (1 + settings.bidirectional)
        return StreamOrder(slots, len(self.passes[0]) // slots)


def open_row_index(
    corpus: Corpus,
    split_name: SplitName,
    settings: RowSettings,
    *,
    cache_dir: str | None = None,
    by_length: bool = False,
    report: Callable[[str], None] = print,
) -> RowIndex:
    """Maps the row index of a split, and cuts it first where it does not exist.

    Args:
      by_length: whether rows are to be found by their lengths, too.
    """
    split, layout = corpus.split(split_name), corpus.tokenizer.layout
    translated = len(corpus.languages) == 2
    cutting = Cutting(split, layout, settings, translated)
    cutting = _possible(cutting, split_name, corpus)
    settings = cutting.settings
    folder = _index_folder(corpus, split_name, settings, cache_dir)

    def cut() -> Iterator[tuple[str, np.ndarray]]:
        if split.num_sentences > _LONG_CUT:
            report(
                f"cutting {split.num_sentences:,} sentences of the {split_name} split "
                f"into rows, {settings.passes} times; kept in {folder}"
            )
        return _cut_arrays(cutting)

    arrays = _kept(folder, cut, settings, report)
    passes = tuple(
        Rows(arrays[_pieces_name(number)], arrays.get(_starts_name(number)))
        for number in range(settings.passes)
    )
    if not len(passes[0]):
        raise NoRowsError(
            f"the {split_name} split of {corpus.folder} gives no rows{_without(corpus)}"
        )
    separator = separator_of(corpus.tokenizer)
    stream = TextStream(split, arrays.get(_SEPARATORS), separator)
    num_tokens = int(arrays[_NUM_TOKENS][0])
    index = RowIndex(passes, stream, layout, settings, num_tokens)
    if not by_length:
        return index
    beside = folder.with_name(f"{folder.name}-by-length")
    arrange = lambda: by_length_arrays(passes, layout, settings.length)
    arranged = RowsByLength.mapped(_kept(beside, arrange, settings, report))
    return dataclasses.replace(index, by_length=arranged)


def _kept(
    folder: Path,
    make: Callable[[], Iterator[tuple[str, np.ndarray]]],
    settings: RowSettings,
    report: Callable[[str], None],
) -> dict[str, np.ndarray]:
    """Maps the arrays that are kept in `folder`, and makes them first if need be."""
    arrays = _mapped(folder)
    if arrays is None:
        if folder.exists():
            report(f"the row index {folder} is not whole; cutting it anew")
        _write_arrays(folder, make(), settings)
        arrays = _mapped(folder)
        assert arrays is not None, f"{folder} was written and is not whole"
    return arrays


def _possible(cutting: Cutting, split_name: SplitName, corpus: Corpus) -> Cutting:
    """Checks that the split has what the cut needs.

    Where only one document is held out, its random text comes from elsewhere in it.
    """
    split, settings = cutting.split, cutting.settings
    if not split.num_documents:
        raise NoRowsError(
            f"corpus {corpus.folder} has no document in its {split_name} split; "
            "prepare it with more documents or another --validation share"
            f"{_without(corpus)}"
        )
    form = FORMS[settings.form]
    if form.in_streams and not num_blocks(cutting):
        slots = settings.streams * (1 + settings.bidirectional)
        raise NoRowsError(
            f"the {split_name} split of {corpus.folder} has {split.num_tokens:,} "
            f"tokens: too few for {settings.streams} streams of one row of data.length="
            f"{settings.length}; prepare more text, or shorten the rows"
            + f", or lower data.batch_size={slots}"
            * (settings.streams > 1)
        )
    needs_two = (
        form.from_elsewhere
        and settings.second in ("random", "swapped")
        and settings.negatives == "document"
    )
    if split.num_documents > 1 or not needs_two:
        return cutting
    if split_name == "validation":  # which is taken as it is
        anywhere = dataclasses.replace(settings, negatives="anywhere")
        return dataclasses.replace(cutting, settings=anywhere)
    raise UserError(
        f"data.second={settings.second!r} takes random text from another document, "
        f"but corpus {corpus.folder} has only one for training; separate documents by "
        "blank lines, or set data.negatives='anywhere', or data.second='next'"
        f"{_without(corpus)}"
    )


def _without(corpus: Corpus) -> str:
    """Returns how to train without a corpus, where it is one of a group."""
    if not (corpus.folder.parent / MIXTURE).is_file():
        return ""
    return (
        f"; to go on without it, drop {corpus.folder.name!r} from "
        f"{corpus.folder.parent / MIXTURE}, or prepare with --languages or --min_chars"
    )


def _index_folder(corpus, split_name, settings: RowSettings, cache_dir) -> Path:
    identity = [_FORMAT, corpus.fingerprint, split_name, dataclasses.asdict(settings)]
    if FORMS[settings.form].parallel:
        identity.append(len(corpus.languages))
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    if cache_dir is not None:
        return Path(cache_dir).expanduser() / f"rows-{digest[:16]}"
    return corpus.folder / "rows" / digest[:16]


_SEPARATORS = "separators.npy"
_NUM_TOKENS = "tokens.npy"  # of all rows: counted once, when they are cut


def _pieces_name(number: int) -> str:
    return f"pass-{number:03d}.npy"


def _starts_name(number: int) -> str:
    return f"pass-{number:03d}.rows.npy"


def _mapped(folder: Path) -> dict[str, np.ndarray] | None:
    """Maps the arrays; None unless all are there, with the sizes they were given."""
    try:
        files = json.loads((folder / "index.json").read_bytes())["files"]
        allow_open_files(len(files))
        for name, written in files.items():
            if (folder / name).stat().st_size != written["bytes"]:
                return None
        return {name: np.load(folder / name, mmap_mode="r") for name in files}
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None


def _write_arrays(
    folder: Path, arrays: Iterator[tuple[str, np.ndarray]], settings: RowSettings
) -> None:
    """Writes arrays, one after the other, to a private folder; then renames it.

    Another process may be faster: its arrays are the same, and stay.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder.parent)
        private = Path(tempfile.mkdtemp(prefix=".cutting-", dir=folder.parent))
    except OSError as error:
        raise UserError(
            f"cannot write the row index to {folder.parent} ({error.strerror}); "
            "set data.cache_dir to a folder that can be written"
        ) from error
    damaged = private.with_name(f"{private.name}-damaged")
    try:
        files = {}
        for name, array in arrays:
            files[name] = write_array(private / name, array, setting="data.cache_dir")
        described = {"files": files, "settings": dataclasses.asdict(settings)}
        write_json(private / "index.json", described, setting="data.cache_dir")
        if _mapped(folder) is None:
            if folder.exists():
                os.replace(folder, damaged)
            os.replace(private, folder)
    except OSError as error:
        if _mapped(folder) is None:
            raise UserError(
                f"cannot write the row index to {folder} ({error.strerror}); free "
                "some space or set data.cache_dir"
            ) from error
    finally:
        shutil.rmtree(private, ignore_errors=True)
        shutil.rmtree(damaged, ignore_errors=True)


def _cut_arrays(cutting: Cutting) -> Iterator[tuple[str, np.ndarray]]:
    """Yields what is kept of the index, by the names of the files."""
    settings, tokens = cutting.settings, 0
    for number in range(settings.passes):
        rows = Rows.joined(list(FORMS[settings.form].cut(cutting, number)))
        tokens += count_tokens(rows.pieces_S, cutting.layout)
        yield _pieces_name(number), rows.pieces_S
        if rows.starts_R is not None:
            yield _starts_name(number), rows.starts_R
    if settings.separators != "none":
        yield _SEPARATORS, separator_places(cutting.split, settings.separators)
    yield _NUM_TOKENS, np.array([tokens])


def count_tokens(pieces_S: np.ndarray, layout: Layout) -> int:
    """Returns the real tokens of pieces, special ones included."""
    length_S2 = pieces_S["length"]
    text = int(length_S2.sum(dtype=np.int64))
    paired = int((length_S2[:, 1] > 0).sum())
    return text + len(length_S2) * layout.num_special(1) + paired * len(layout.between)


def _remove_leftovers(parent: Path) -> None:
    """Removes what processes that were killed while cutting have left."""
    for folder in parent.glob(".cutting-*"):
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            if time.time() - folder.stat().st_mtime > _LEFTOVER_AGE:
                shutil.rmtree(folder, ignore_errors=True)


class Order(Protocol):
    """Which row stands at each place of the endless stream of rows."""

    def at(self, places_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns epoch [B] and row [B] of places."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class EpochOrder:
    """Which row stands at each place of the endless stream of rows.

    Each epoch runs through one pass in its own pseudo-random order. Nothing is
    counted: place 10^9 costs as much as place 0.

    Attributes:
      chosen: the numbers of the rows of each pass, mapped, where not all are read.
    """

    rows_by_pass: tuple[int, ...]
    seed: int
    chosen: tuple[np.ndarray, ...] | None = None

    def at(self, places_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns epoch [B] and row [B] of places in the stream."""
        epochs_B, within_B, sizes_B = self.within(places_B)
        shuffled_B = permuted(within_B, sizes_B, self.seed, epochs_B)
        return epochs_B, self.numbers(epochs_B, shuffled_B)

    def within(self, places_B: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns epoch [B], place in it [B] and how many it has [B]."""
        sizes = np.asarray(self.rows_by_pass, np.int64)
        ends = np.cumsum(sizes)
        cycle_B, rest_B = np.divmod(np.asarray(places_B, np.int64), ends[-1])
        pass_B = np.searchsorted(ends, rest_B, side="right")
        epochs_B = cycle_B * len(ends) + pass_B
        return epochs_B, rest_B - (ends - sizes)[pass_B], sizes[pass_B]

    def numbers(self, epochs_B: np.ndarray, shuffled_B: np.ndarray) -> np.ndarray:
        """Returns the row numbers [B] of what is read of each epoch."""
        if self.chosen is None:
            return shuffled_B
        passes_B = epochs_B % len(self.chosen)
        rows_B = np.empty_like(shuffled_B)
        for number in np.unique(passes_B):
            here = passes_B == number
            rows_B[here] = self.chosen[number][shuffled_B[here]]
        return rows_B


@dataclasses.dataclass(frozen=True)
class StreamOrder:
    """The order of rows that go on from batch to batch, slot by slot.

    Slot b of a batch holds the rows of one stream, one after the other, and those of
    the first one again when it ends. The rows of a slot lie together in the index.
    """

    slots: int
    blocks: int

    def at(self, places_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns epoch [B] and row [B] of places in the stream."""
        step_B, slot_B = np.divmod(np.asarray(places_B, np.int64), self.slots)
        epochs_B, block_B = np.divmod(step_B, self.blocks)
        return epochs_B, slot_B * self.blocks + block_B
