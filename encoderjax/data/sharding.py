"""Writes documents as the shards of a corpus, and the manifest over them.

A shard is a run of consecutive documents with at least so much text, so what it
holds depends on the source alone, and a shard that is whole is passed over.
"""

import collections
import dataclasses
import hashlib
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from encoderjax.data import corpus as corpus_format
from encoderjax.data.corpus import MANIFEST, SPLITS, UNFINISHED, Corpus, ShardSplit
from encoderjax.data.random import hash_words, site_number
from encoderjax.data.sources import Document, Origin
from encoderjax.data.tokenizers import Tokenizer
from encoderjax.errors import UserError

Report = Callable[[str], object]

_BATCH = 4096  # sentences tokenised at a time
_UNKNOWN_SHARE = 0.01  # above this the tokenizer does not fit the text


@dataclasses.dataclass
class Sharding:
    """One run of writing: documents to shards, and shards to the manifest."""

    out: pathlib.Path
    tokenizer: Tokenizer
    validation: float
    seed: int
    shard_size: int
    report: Report

    def __post_init__(self):
        self.dtype = corpus_format.token_dtype(self.tokenizer.vocabulary.size)
        self.records: list[dict] = []
        self.forms: collections.Counter[tuple[str, str]] = collections.Counter()
        self.last_origin: Origin | None = None
        self.num_stored = 0  # documents in the shards so far
        self.period = 0
        self.start = time.perf_counter()
        self.size = 0

    def write_shards(self, documents: Iterable[Document]) -> None:
        """Writes the shards that are missing."""
        groups = _groups(documents, self.shard_size)
        for number, (group, size, is_last) in enumerate(groups):
            self._count_forms(group)
            record = corpus_format.shard_record(self.out, number)
            if record is None:
                self.size += size
                encoded = self._encode(group)
                self._choose_period(len(encoded), is_last)
                splits = self._split(encoded)
                record = corpus_format.write_shard(self.out, number, splits)
                self._report_shard(number, record)
            stored = _total(record["counts"], "documents")
            self._choose_period(stored, is_last)
            self.num_stored += stored
            self.records.append(record)

    def _count_forms(self, group: list[Document]) -> None:
        """Counts the files by the forms in which they were read."""
        for document in group:
            if document.origin is not self.last_origin:
                self.last_origin = document.origin
                form = (document.origin.sentences, document.origin.documents)
                self.forms[form] += 1

    def _encode(self, group: list[Document]) -> list[list[np.ndarray]]:
        """Tokenises documents; what has no tokens is dropped."""
        texts = [document.sentences() for document in group]
        flat = [sentence for sentences in texts for sentence in sentences]
        ids = iter(_in_batches(self.tokenizer, flat, self.dtype))
        encoded = [[i for _ in sentences if len(i := next(ids))] for sentences in texts]
        return [document for document in encoded if document]

    def _choose_period(self, first_documents: int, is_last: bool) -> None:
        """Fixes, at the first shard, how many documents share one held-out one.

        Where that shard is the last one too, not more than it has: so a small
        corpus of two documents or more always has one held out.
        """
        if self.period == 0 and self.validation > 0:
            self.period = round(1 / self.validation)
            if is_last:
                self.period = max(2, min(self.period, first_documents))

    def _split(self, encoded: list[list[np.ndarray]]) -> dict[str, ShardSplit]:
        numbers = self.num_stored + np.arange(len(encoded))
        held_out = _held_out(numbers, self.period, self.seed)
        return {
            name: ShardSplit.from_documents(
                [d for d, out in zip(encoded, held_out, strict=True) if out == wanted],
                self.dtype,
            )
            for name, wanted in zip(SPLITS, (False, True), strict=True)
        }

    def _report_shard(self, number: int, record: dict) -> None:
        rate = self.size / 1e6 / (time.perf_counter() - self.start)
        counts = record["counts"]
        self.report(
            f"shard {number}: {_total(counts, 'documents'):,} documents, "
            f"{_total(counts, 'tokens'):,} tokens, {rate:.1f} MB/s"
        )

    # ---- the end ----

    def finish(self, settings: dict) -> Corpus:
        """Writes what concerns the whole, the manifest last; returns the corpus."""
        counts = {
            split: {
                kind: sum(record["counts"][split][kind] for record in self.records)
                for kind in ("documents", "sentences", "tokens")
            }
            for split in SPLITS
        }
        if counts["train"]["tokens"] == 0:
            raise UserError(
                f"--source={settings['source']} has no tokens to train on: its text "
                "is empty to the tokenizer"
            )
        unigrams_V = self._unigrams()
        files = {
            "unigrams.npy": corpus_format.write_array(
                self.out / "unigrams.npy", unigrams_V
            )
        }
        for record in self.records:
            files.update(record["files"])
        for name in self.tokenizer.files:
            content = (self.out / name).read_bytes()
            digest = hashlib.sha256(content).hexdigest()
            files[name] = {"sha256": digest, "bytes": len(content)}
        manifest = {
            "format": corpus_format.FORMAT,
            "tokenizer": self.tokenizer.sha256,
            "dtype": self.dtype.name,
            "counts": counts,
            "settings": settings,
            "forms": [
                {"sentences": form[0], "documents": form[1], "files": count}
                for form, count in sorted(self.forms.items())
            ],
            "shards": [record["counts"] for record in self.records],
            "files": dict(sorted(files.items())),
        }
        corpus_format.write_json(self.out / MANIFEST, manifest)
        (self.out / UNFINISHED).unlink(missing_ok=True)
        self._summarise(counts, unigrams_V)
        return Corpus.open(self.out)

    def _unigrams(self) -> np.ndarray:
        """Counts the ids of the train split, int64 [V]."""
        unigrams_V = np.zeros(self.tokenizer.vocabulary.size, np.int64)
        for number in range(len(self.records)):
            path = self.out / f"train-{number:05d}.tokens.npy"
            ids_T = np.load(path, mmap_mode="r")
            unigrams_V += np.bincount(ids_T, minlength=len(unigrams_V))
        return unigrams_V

    def _summarise(self, counts: dict, unigrams_V: np.ndarray) -> None:
        vocabulary = self.tokenizer.vocabulary
        for (sentences, documents), count in sorted(self.forms.items()):
            self.report(f"{count:,} files: {sentences=}, {documents=}")
        seconds = time.perf_counter() - self.start
        for split in SPLITS:
            c = counts[split]
            self.report(
                f"{split}: {c['documents']:,} documents, {c['sentences']:,} sentences, "
                f"{c['tokens']:,} tokens"
            )
        if self.validation > 0 and counts["validation"]["documents"] == 0:
            self.report(
                f"warning: too few documents ({counts['train']['documents']:,}) for "
                f"--validation={self.validation}, so none is held out"
            )
        words = unigrams_V[~vocabulary.continues_word_V].sum()
        unknown = unigrams_V[vocabulary.unk_id] / unigrams_V.sum()
        self.report(
            f"{unigrams_V.sum() / max(words, 1):.2f} tokens a word, "
            f"{unknown:.3%} unknown, {self.size / 1e6:.1f} MB in {seconds:.1f} s "
            f"({self.size / 1e6 / seconds:.1f} MB/s)"
        )
        if unknown > _UNKNOWN_SHARE:
            self.report(
                f"warning: {unknown:.1%} of the tokens are [UNK]: the tokenizer does "
                "not fit the text; train one with --tokenizer=wordpiece:SIZE"
            )


def _groups(
    documents: Iterable[Document], size: int
) -> Iterator[tuple[list[Document], int, bool]]:
    """Yields runs of documents, their bytes of UTF-8, and whether it is the last run.

    A run has `size` bytes or more. It is held back until the next document shows that
    it is not the last.
    """
    group: list[Document] = []
    total = 0
    for document in documents:
        if total >= size:
            yield group, total, False
            group, total = [], 0
        group.append(document)
        text = document.text
        total += len(text) if text.isascii() else len(text.encode())
    if group:
        yield group, total, True


def _in_batches(
    tokenizer: Tokenizer, texts: list[str], dtype: np.dtype
) -> Iterator[np.ndarray]:
    for start in range(0, len(texts), _BATCH):
        for ids in tokenizer.encode(texts[start : start + _BATCH]):
            yield ids.astype(dtype)


def _held_out(numbers: np.ndarray, period: int, seed: int) -> np.ndarray:
    """Says which documents are held out: in every block of `period`, one by hash.

    Never the first document of all, which may be the only one.
    """
    if period == 0:
        return np.zeros(len(numbers), bool)
    blocks = numbers // period
    draws = hash_words(seed, site_number("prepare/validation"), blocks)
    chosen = draws.astype(np.int64) % period
    chosen[blocks == 0] = 1 + draws[blocks == 0].astype(np.int64) % (period - 1)
    return numbers % period == chosen


def _total(counts: dict, kind: str) -> int:
    return sum(counts[split][kind] for split in SPLITS)
