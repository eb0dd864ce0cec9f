"""The row index: where each row's tokens lie, and the order in which rows come.

What has to be cut sequentially is cut once for a corpus and its row settings, kept
beside the corpus under a hash of both, and mapped. After that any row of any step
is found by arithmetic.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np

from encoderjax.data.corpus import Corpus, Split, write_array, write_json
from encoderjax.data.random import permuted
from encoderjax.data.segment_pairs import ROW, Negatives, PairCut, Second, cut_pairs
from encoderjax.errors import UserError

_FORMAT = 1  # part of the hash: raise it when the cut changes
_LONG_CUT = 1_000_000  # sentences; above this the wait is announced
_LEFTOVER_AGE = 24 * 3600  # seconds after which a folder being cut is abandoned

SplitName = Literal["train", "validation"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowSettings:
    """What the rows of a corpus depend on; see `DataConfig` for the meanings."""

    form: Literal["segment_pair"]
    second: Second
    negatives: Negatives
    length: int
    short_rate: float
    passes: int
    seed: int


@dataclasses.dataclass(frozen=True)
class RowIndex:
    """The rows of a split: `passes[p]` is the mapped array of pass p, [R_p] of ROW."""

    passes: tuple[np.ndarray, ...]
    num_special: int

    @property
    def num_rows(self) -> int:
        """Rows of all passes together."""
        return sum(len(rows) for rows in self.passes)

    @property
    def mean_tokens(self) -> float:
        """Mean number of real tokens of a row, special ones included."""
        total = sum(int(rows["length"].sum(dtype=np.int64)) for rows in self.passes)
        return total / self.num_rows + self.num_special

    def take(self, epochs_B: np.ndarray, rows_B: np.ndarray) -> np.ndarray:
        """Returns the records [B] of rows; epoch e reads pass e mod passes."""
        records_B = np.empty(rows_B.shape, ROW)
        passes_B = epochs_B % len(self.passes)
        for number in np.unique(passes_B):
            chosen = passes_B == number
            records_B[chosen] = self.passes[number][rows_B[chosen]]
        return records_B


def open_row_index(
    corpus: Corpus,
    split_name: SplitName,
    settings: RowSettings,
    *,
    cache_dir: str | None = None,
    report: Callable[[str], None] = print,
) -> RowIndex:
    """Maps the row index of a split, and cuts it first where it does not exist."""
    split = corpus.split(split_name)
    settings = _possible(split, split_name, settings, corpus, report)
    folder = _index_folder(corpus, split_name, settings, cache_dir)
    passes = _mapped_passes(folder)
    if passes is None:
        if folder.exists():
            report(f"the row index {folder} is not whole; cutting it anew")
        if split.num_sentences > _LONG_CUT:
            report(
                f"cutting {split.num_sentences:,} sentences of the {split_name} split "
                f"into rows, {settings.passes} times; kept in {folder}"
            )
        _cut_index(corpus, split, settings, folder)
        passes = _mapped_passes(folder)
        assert passes is not None, f"{folder} was written and is not whole"
    if not len(passes[0]):
        raise UserError(f"the {split_name} split of {corpus.folder} gives no rows")
    return RowIndex(passes, corpus.tokenizer.layout.num_special(2))


def _possible(split, split_name, settings: RowSettings, corpus, report) -> RowSettings:
    """Checks that the split has what the cut needs."""
    if not split.num_documents:
        raise UserError(
            f"corpus {corpus.folder} has no document in its {split_name} split; "
            "prepare it with more documents or another --validation share"
        )
    needs_two = settings.second != "next" and settings.negatives == "document"
    if split.num_documents > 1 or not needs_two:
        return settings
    if split_name == "validation":
        report(
            f"{corpus.folder}: only one held-out document, so its random second "
            "segments come from elsewhere in it"
        )
        return dataclasses.replace(settings, negatives="anywhere")
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


def _mapped_passes(folder: Path) -> tuple[np.ndarray, ...] | None:
    """Maps the passes; None unless all are there, with the sizes they were given."""
    try:
        files = json.loads((folder / "index.json").read_bytes())["files"]
        for name, written in files.items():
            if (folder / name).stat().st_size != written["bytes"]:
                return None
        return tuple(np.load(folder / name, mmap_mode="r") for name in files)
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None


def _cut_index(corpus: Corpus, split: Split, settings: RowSettings, folder: Path):
    """Cuts every pass, shard by shard, into a private folder; then renames it.

    Another process may be faster: its index is the same, and stays.
    """
    cut = PairCut(
        tokens=settings.length - corpus.tokenizer.layout.num_special(2),
        second=settings.second,
        negatives=settings.negatives,
        short_rate=settings.short_rate,
        seed=settings.seed,
    )
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
        for number in range(settings.passes):
            parts = [
                cut_pairs(split, shard, number, cut)
                for shard in range(split.num_shards)
                if split.shard_documents[shard] < split.shard_documents[shard + 1]
            ]
            name = f"pass-{number:03d}.npy"
            files[name] = write_array(
                private / name, np.concatenate(parts), setting="data.cache_dir"
            )
        described = {"files": files, "settings": dataclasses.asdict(settings)}
        write_json(private / "index.json", described, setting="data.cache_dir")
        if _mapped_passes(folder) is None:
            if folder.exists():
                os.replace(folder, damaged)
            os.replace(private, folder)
    except OSError as error:
        if _mapped_passes(folder) is None:
            raise UserError(
                f"cannot write the row index to {folder} ({error.strerror}); free "
                "some space or set data.cache_dir"
            ) from error
    finally:
        shutil.rmtree(private, ignore_errors=True)
        shutil.rmtree(damaged, ignore_errors=True)


def _remove_leftovers(parent: Path) -> None:
    """Removes what processes that were killed while cutting have left."""
    for folder in parent.glob(".cutting-*"):
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            if time.time() - folder.stat().st_mtime > _LEFTOVER_AGE:
                shutil.rmtree(folder, ignore_errors=True)


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
