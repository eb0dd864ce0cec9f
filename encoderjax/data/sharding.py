"""Writes the documents of a part of the source as shards of a corpus.

A shard is a run of consecutive documents of one part and one language with at least so
much text. What it holds depends on the part alone, so parts are written by any number
of workers, a shard that is whole is passed over, and a rerun gives the same bytes.

Where there are more workers than parts, several read the same part and share its shards
in turn: reading is some twenty times as fast as tokenising.

Shapes: V vocabulary, T tokens, S sentences, D documents.
"""

import collections
import dataclasses
import functools
import hashlib
import pathlib
import tempfile
from collections.abc import Callable, Iterator

import numpy as np

from encoderjax.data import corpus as corpus_format
from encoderjax.data import storage
from encoderjax.data.corpus import SPLITS, ShardSplit
from encoderjax.data.documents import Document, Origin, Reading
from encoderjax.data.random import hash_words, site_number
from encoderjax.data.selection import Selection
from encoderjax.data.sources import Part, read_part
from encoderjax.data.tokenizers import TOKENIZER_FILES, Tokenizer, load_tokenizer
from encoderjax.data.trouble import Trouble

_BATCH = 4096  # sentences tokenised at a time

# Is told the bytes of text that were dealt with, now and then.
Progress = Callable[[int], object]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """What all workers of a preparation know.

    Attributes:
      out: the folder; with languages each has a folder in it.
      parts: into which the source is divided.
      shard_size: bytes of text from which on a shard is closed.
      validation: the share of documents that is held out.
      without_repeats: whether the folder of the work lists documents to leave out.
    """

    out: str
    parts: tuple[Part, ...]
    reading: Reading
    selection: Selection
    shard_size: int
    validation: float
    seed: int
    without_repeats: bool = False

    @property
    def work(self) -> str:
        """The folder of what is needed on the way and removed in the end."""
        return storage.join(self.out, corpus_format.WORK)

    def documents(self, part: int, trouble: Trouble) -> Iterator[tuple[int, Document]]:
        """Yields the documents of a part that are taken, with their numbers."""
        repeated_D = np.zeros(0, np.int64)
        if self.without_repeats:
            path = storage.join(self.work, repeats_name(part))
            repeated_D = corpus_format.read_array(path)
        repeats = iter(repeated_D)  # ascending, as the documents come
        repeat = next(repeats, None)
        documents = read_part(self.parts[part], self.reading, trouble)
        for number, document in enumerate(documents):
            if number == repeat:
                repeat = next(repeats, None)
            elif self.selection.takes(document, part, number):
                yield number, document


def digests_name(part: int) -> str:
    """Returns the name of the file with the hashes of a part's documents."""
    return f"digests-{part:05d}.npy"


def repeats_name(part: int) -> str:
    """Returns the name of the file with the numbers of repeated documents."""
    return f"repeats-{part:05d}.npy"


@dataclasses.dataclass(frozen=True)
class Task:
    """What one worker does: every `stripes`-th shard of a part, from `stripe` on."""

    part: int
    stripe: int = 0
    stripes: int = 1


@dataclasses.dataclass
class Written:
    """What a worker tells of its task.

    Attributes:
      shards: language and name of each, in their order in the part.
      forms: files by the form of their sentences and documents.
    """

    shards: list[tuple[str, str]]
    forms: collections.Counter[tuple[str, str]]
    trouble: Trouble


def write_shards(job: Job, task: Task, progress: Progress) -> Written:
    """Writes those shards of a task that are missing."""
    tokenizer = saved_tokenizer(job.out)
    written = Written([], collections.Counter(), Trouble())
    cutter = _Cutter(job, task, tokenizer, progress, written)
    last_origin: Origin | None = None
    # The form of a divided file is counted by who reads its beginning.
    ranges = {piece.whole for piece in job.parts[task.part].pieces if piece.start}
    for _, document in job.documents(task.part, written.trouble):
        if document.origin is not last_origin:
            last_origin = document.origin
            if last_origin.path not in ranges:
                written.forms[last_origin.sentences, last_origin.documents] += 1
        cutter.add(document)
    cutter.close_all()
    return written


def saved_tokenizer(out: str) -> Tokenizer:
    """Loads the tokenizer that lies in the folder of a preparation."""
    content = storage.read_bytes(storage.join(out, "tokenizer.json"))
    return _loaded(out, hashlib.sha256(content).hexdigest())


@functools.lru_cache(maxsize=1)
def _loaded(out: str, sha256: str) -> Tokenizer:
    """Loads a tokenizer once: another one there has another sha256."""
    del sha256
    if not storage.is_remote(out):
        return load_tokenizer(storage.local_path(out))
    with tempfile.TemporaryDirectory() as copied:
        for name in TOKENIZER_FILES:
            if file := storage.find_file(storage.join(out, name)):
                (pathlib.Path(copied) / name).write_bytes(storage.read_bytes(file.path))
        return load_tokenizer(copied)


class _Cutter:
    """Cuts the documents of a part into shards, each language by itself."""

    def __init__(
        self,
        job: Job,
        task: Task,
        tokenizer: Tokenizer,
        progress: Progress,
        written: Written,
    ):
        self.job, self.task, self.tokenizer = job, task, tokenizer
        self.progress, self.written = progress, written
        self.open: dict[str, _OpenShard] = {}
        self.closed: collections.Counter[str] = collections.Counter()
        self.begun = 0
        self.size = 0  # bytes of text in open shards

    def add(self, document: Document) -> None:
        shard = self.open.get(document.language) or self._begin(document.language)
        size = document.size
        shard.add(document, size)
        self.size += size
        if shard.mine:
            self.progress(size)
        if shard.size >= self.job.shard_size:
            self._close(document.language, is_only=False)
        # Many languages together do not take more memory than two.
        elif self.size >= 2 * self.job.shard_size:
            largest = max(self.open, key=lambda name: (self.open[name].size, name))
            self._close(largest, is_only=False)

    def close_all(self) -> None:
        """Ends the part."""
        for language in sorted(self.open):
            only = len(self.job.parts) == 1 and not self.closed[language]
            self._close(language, is_only=only)

    def _begin(self, language: str) -> "_OpenShard":
        name = f"{self.task.part:05d}-{self.closed[language]:04d}"
        folder = folder_of(self.job.out, language)
        mine = self.begun % self.task.stripes == self.task.stripe
        self.open[language] = _OpenShard(name, folder, mine, self.tokenizer)
        self.begun += 1
        return self.open[language]

    def _close(self, language: str, is_only: bool) -> None:
        shard = self.open.pop(language)
        self.size -= shard.size
        self.written.shards.append((language, shard.name))
        if shard.wanted:
            first_block = (self.task.part << 40) + (self.closed[language] << 24)
            shard.write(self.job.validation, self.job.seed, first_block, is_only)
        self.closed[language] += 1


class _OpenShard:
    """A shard that is being filled; its text is tokenised on the way.

    Attributes:
      mine: whether it is one of the task's shards.
      wanted: whether it also is missing.
    """

    def __init__(self, name: str, folder: str, mine: bool, tokenizer: Tokenizer):
        self.name, self.folder, self.mine = name, folder, mine
        self.wanted = mine and corpus_format.shard_record(folder, name) is None
        self.tokenizer = tokenizer
        self.dtype = corpus_format.token_dtype(tokenizer.vocabulary.size)
        self.size = 0  # bytes of text
        self.waiting: list[str] = []  # sentences
        self.counts: list[int] = []  # of sentences by document
        self.lengths: list[np.ndarray] = []  # of sentences, in tokens
        self.tokens: list[np.ndarray] = [np.zeros(0, self.dtype)]

    def add(self, document: Document, size: int) -> None:
        self.size += size
        if not self.wanted:
            return
        sentences = document.sentences()
        self.waiting += sentences
        self.counts.append(len(sentences))
        if len(self.waiting) >= _BATCH:
            self._encode()

    def _encode(self) -> None:
        for start in range(0, len(self.waiting), _BATCH):
            ids = self.tokenizer.encode(self.waiting[start : start + _BATCH])
            self.lengths.append(np.fromiter(map(len, ids), np.int64, len(ids)))
            self.tokens.append(np.concatenate(ids).astype(self.dtype))
        self.waiting = []

    def write(
        self, validation: float, seed: int, first_block: int, is_only: bool
    ) -> None:
        """Writes the shard; what has no tokens is dropped."""
        self._encode()
        lengths_S = np.concatenate([np.zeros(0, np.int64), *self.lengths])
        document_S = np.repeat(np.arange(len(self.counts)), self.counts)
        document_S, lengths_S = document_S[lengths_S > 0], lengths_S[lengths_S > 0]
        counts_D = np.bincount(document_S, minlength=len(self.counts))
        counts_D = counts_D[counts_D > 0]
        period = _period(validation, len(counts_D) if is_only else None)
        out_D = held_out(len(counts_D), period, seed, first_block)
        out_S = np.repeat(out_D, counts_D)
        out_T = np.repeat(out_S, lengths_S)
        tokens_T = np.concatenate(self.tokens)
        splits = {
            name: ShardSplit.of_lengths(
                tokens_T[chosen_T], lengths_S[chosen_S], counts_D[chosen_D]
            )
            for name, chosen_T, chosen_S, chosen_D in zip(
                SPLITS, (~out_T, out_T), (~out_S, out_S), (~out_D, out_D), strict=True
            )
        }
        unigrams_V = np.bincount(
            splits["train"].tokens_T, minlength=self.tokenizer.vocabulary.size
        )
        storage.make_folder(self.folder)
        corpus_format.write_shard(self.folder, self.name, splits, unigrams_V)


def folder_of(out: str, language: str) -> str:
    """Returns the folder of a language's corpus; '' is the only one."""
    return storage.join(out, language) if language else out


# ---- what is held out ----


def _period(validation: float, documents: int | None) -> int:
    """Returns how many documents share one that is held out; 0 = none is.

    Args:
      documents: where a corpus has but one shard, those that it has. Then the period is
        not longer: a small corpus of two documents or more always has one held out.
    """
    if validation == 0:
        return 0
    # The nearest share that one of so many documents is.
    below = int(1 / validation)
    period = min((below, below + 1), key=lambda n: abs(1 / n - validation))
    return period if documents is None else max(2, min(period, documents))


def held_out(documents: int, period: int, seed: int, first_block: int) -> np.ndarray:
    """Says which documents are held out: in every block of `period`, one by hash.

    Never the first document of all, which may be the only one; where that of a
    language is another, `finishing` sees to it. The last block of a shard may end
    before its held-out document, so that the share is right on average.
    """
    if period == 0:
        return np.zeros(documents, bool)
    numbers = np.arange(documents)
    blocks = first_block + numbers // period
    draws = hash_words(seed, site_number("prepare/validation"), blocks)
    chosen = draws.astype(np.int64) % period
    chosen[blocks == 0] = 1 + draws[blocks == 0].astype(np.int64) % (period - 1)
    return numbers % period == chosen
