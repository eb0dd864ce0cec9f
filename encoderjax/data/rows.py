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

from encoderjax.data.corpus import Corpus, write_array, write_json
from encoderjax.data.forms import FORMS, Form
from encoderjax.data.random import permuted
from encoderjax.data.records import ROW, Cutting, Rows, RowSettings, joined_ranges
from encoderjax.data.reuse_pairs import num_blocks
from encoderjax.data.stream import TextStream, separator_of, separator_places
from encoderjax.data.tokenizers import Layout
from encoderjax.errors import UserError

_FORMAT = 2  # part of the hash: raise it when the cut changes
_LONG_CUT = 1_000_000  # sentences; above this the wait is announced
_LEFTOVER_AGE = 24 * 3600  # seconds after which a folder being cut is abandoned

SplitName = Literal["train", "validation"]


@dataclasses.dataclass(frozen=True, eq=False)
class RowIndex:
    """The rows of a split, pass by pass, all mapped."""

    passes: tuple[Rows, ...]
    stream: TextStream
    layout: Layout
    settings: RowSettings

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
        total = 0
        for rows in self.passes:
            length_S2 = rows.pieces_S["length"]
            total += int(length_S2.sum(dtype=np.int64))
            total += len(length_S2) * self.layout.num_special(1)
            total += int((length_S2[:, 1] > 0).sum()) * len(self.layout.between)
        return total / self.num_rows

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

    def order(self, seed: int) -> "Order":
        """Returns the order in which the rows are trained on."""
        settings = self.settings
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
    report: Callable[[str], None] = print,
) -> RowIndex:
    """Maps the row index of a split, and cuts it first where it does not exist."""
    split, layout = corpus.split(split_name), corpus.tokenizer.layout
    cutting = _possible(Cutting(split, layout, settings), split_name, corpus, report)
    settings = cutting.settings
    folder = _index_folder(corpus, split_name, settings, cache_dir)
    arrays = _mapped(folder)
    if arrays is None:
        if folder.exists():
            report(f"the row index {folder} is not whole; cutting it anew")
        if split.num_sentences > _LONG_CUT:
            report(
                f"cutting {split.num_sentences:,} sentences of the {split_name} split "
                f"into rows, {settings.passes} times; kept in {folder}"
            )
        _cut_index(cutting, folder)
        arrays = _mapped(folder)
        assert arrays is not None, f"{folder} was written and is not whole"
    passes = tuple(
        Rows(arrays[_pieces_name(number)], arrays.get(_starts_name(number)))
        for number in range(settings.passes)
    )
    if not len(passes[0]):
        raise UserError(f"the {split_name} split of {corpus.folder} gives no rows")
    separator = separator_of(corpus.tokenizer)
    stream = TextStream(split, arrays.get(_SEPARATORS), separator)
    return RowIndex(passes, stream, layout, settings)


def _possible(cutting: Cutting, split_name, corpus, report) -> Cutting:
    """Checks that the split has what the cut needs."""
    split, settings = cutting.split, cutting.settings
    if not split.num_documents:
        raise UserError(
            f"corpus {corpus.folder} has no document in its {split_name} split; "
            "prepare it with more documents or another --validation share"
        )
    form = FORMS[settings.form]
    if form.in_streams and not num_blocks(cutting):
        slots = settings.streams * (1 + settings.bidirectional)
        raise UserError(
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
    if split_name == "validation":
        report(
            f"{corpus.folder}: only one held-out document, so its random second "
            "segments come from elsewhere in it"
        )
        anywhere = dataclasses.replace(settings, negatives="anywhere")
        return dataclasses.replace(cutting, settings=anywhere)
    raise UserError(
        f"data.second={settings.second!r} takes random text from another document, "
        f"but corpus {corpus.folder} has only one for training; separate documents by "
        "blank lines, or set data.negatives='anywhere', or data.second='next'"
    )


def _index_folder(corpus, split_name, settings: RowSettings, cache_dir) -> Path:
    identity = [_FORMAT, corpus.fingerprint, split_name, dataclasses.asdict(settings)]
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    if cache_dir is not None:
        return Path(cache_dir).expanduser() / f"rows-{digest[:16]}"
    return corpus.folder / "rows" / digest[:16]


_SEPARATORS = "separators.npy"


def _pieces_name(number: int) -> str:
    return f"pass-{number:03d}.npy"


def _starts_name(number: int) -> str:
    return f"pass-{number:03d}.rows.npy"


def _mapped(folder: Path) -> dict[str, np.ndarray] | None:
    """Maps the arrays; None unless all are there, with the sizes they were given."""
    try:
        files = json.loads((folder / "index.json").read_bytes())["files"]
        for name, written in files.items():
            if (folder / name).stat().st_size != written["bytes"]:
                return None
        return {name: np.load(folder / name, mmap_mode="r") for name in files}
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None


def _cut_index(cutting: Cutting, folder: Path) -> None:
    """Cuts every pass, part by part, into a private folder; then renames it.

    Another process may be faster: its index is the same, and stays.
    """
    settings = cutting.settings
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
        for name, array in _cut_arrays(cutting):
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
    settings = cutting.settings
    for number in range(settings.passes):
        rows = Rows.joined(list(FORMS[settings.form].cut(cutting, number)))
        yield _pieces_name(number), rows.pieces_S
        if rows.starts_R is not None:
            yield _starts_name(number), rows.starts_R
    if settings.separators != "none":
        yield _SEPARATORS, separator_places(cutting.split, settings.separators)


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


@dataclasses.dataclass(frozen=True)
class EpochOrder:
    """Which row stands at each place of the endless stream of rows.

    Each epoch runs through one pass in its own pseudo-random order. Nothing is
    counted: place 10^9 costs as much as place 0.
    """

    rows_by_pass: tuple[int, ...]
    seed: int

    def at(self, places_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns epoch [B] and row [B] of places in the stream."""
        ends = np.cumsum(self.rows_by_pass)
        cycle_B, rest_B = np.divmod(np.asarray(places_B, np.int64), ends[-1])
        pass_B = np.searchsorted(ends, rest_B, side="right")
        epochs_B = cycle_B * len(ends) + pass_B
        within_B = rest_B - (ends - self.rows_by_pass)[pass_B]
        rows_B = np.empty_like(within_B)
        for epoch in np.unique(epochs_B):
            chosen = epochs_B == epoch
            size = self.rows_by_pass[epoch % len(ends)]
            rows_B[chosen] = permuted(within_B[chosen], size, self.seed, int(epoch))
        return epochs_B, rows_B


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
