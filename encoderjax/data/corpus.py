"""The prepared corpus: a folder of arrays that are mapped, not parsed.

  manifest.json                 written last: without it there is no corpus
  tokenizer.json, ...           the tokenizer's files
  unigrams.npy                  int64 [V], how often each id is in the train split
  train-NAME.tokens.npy         ids of a shard, flat, without special tokens
  train-NAME.sentences.npy      int64 [S + 1], where each sentence begins in them
  train-NAME.documents.npy      int64 [D + 1], the first sentence of each document
  train-NAME.unigrams.npy       int64 [V], how often each id is among them
  validation-NAME...            the same of the held-out documents, without unigrams
  shard-NAME.json               counts and hashes, written when the shard is whole

NAME is a part of the source and the number of a shard in it, such as 00012-0003.
Offsets are local to their shard; `Split` shows all shards as one.

With languages, the folder has `mixture.json` instead, which names them, and in a folder
of that name the corpus of each.

Shapes: V vocabulary, T tokens, S sentences, D documents.
"""

import builtins
import dataclasses
import functools
import hashlib
import io
import json
import os
import pathlib
import weakref
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from encoderjax.data import storage
from encoderjax.data.tokenizers import Tokenizer, load_tokenizer
from encoderjax.errors import UserError

try:
    import resource
except ImportError:  # Windows, which does not count mapped files
    resource = None

FORMAT = 2
SPLITS = ("train", "validation")
MANIFEST = "manifest.json"
MIXTURE = "mixture.json"  # in its place where a corpus has several languages
UNFINISHED = "preparing.json"  # there from the first moment until the manifest is
WORK = ".work"  # a folder for as long

_ARRAYS = ("tokens", "sentences", "documents")


# ---- writing ----


@dataclasses.dataclass(frozen=True)
class ShardSplit:
    """One split of a shard, as it lies on disk."""

    tokens_T: np.ndarray
    sentence_starts_S: np.ndarray  # [S + 1]
    document_starts_D: np.ndarray  # [D + 1]

    @classmethod
    def from_documents(
        cls, documents: Iterable[Sequence[np.ndarray]], dtype: np.dtype
    ) -> "ShardSplit":
        """Joins documents, each a sequence of its sentences' ids."""
        documents = list(documents)
        sentences = [ids for document in documents for ids in document]
        tokens = np.concatenate([np.zeros(0, dtype), *sentences], dtype=dtype)
        lengths_S, counts_D = (
            list(map(len, parts)) for parts in (sentences, documents)
        )
        return cls.of_lengths(tokens, lengths_S, counts_D)

    @classmethod
    def of_lengths(
        cls,
        tokens_T: np.ndarray,
        lengths_S: np.ndarray | Sequence[int],
        counts_D: np.ndarray | Sequence[int],
    ) -> "ShardSplit":
        """Takes the tokens of each sentence, and the sentences of each document."""
        return cls(tokens_T, _starts(lengths_S), _starts(counts_D))

    def counts(self) -> dict[str, int]:
        """Returns the number of documents, sentences and tokens."""
        return {
            "documents": len(self.document_starts_D) - 1,
            "sentences": len(self.sentence_starts_S) - 1,
            "tokens": len(self.tokens_T),
        }

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the arrays by the names of their files."""
        parts = (self.tokens_T, self.sentence_starts_S, self.document_starts_D)
        return dict(zip(_ARRAYS, parts, strict=True))


def _starts(lengths: np.ndarray | Sequence[int]) -> np.ndarray:
    return np.cumsum(np.append(0, lengths), dtype=np.int64)


def token_dtype(vocab_size: int) -> np.dtype:
    """Returns the smallest type that holds the ids."""
    return np.dtype(np.uint16 if vocab_size <= 2**16 else np.uint32)


def unigrams_name(shard: str) -> str:
    """Returns the name of the file with a shard's counts of ids."""
    return f"train-{shard}.unigrams.npy"


def record_path(folder: storage.StrPath, shard: str) -> str:
    """Returns where the record of a shard lies."""
    return storage.join(folder, f"shard-{shard}.json")


def shard_record(folder: storage.StrPath, name: str) -> dict | None:
    """Returns the record of a shard that is whole, or None."""
    path = record_path(folder, name)
    return read_json(path) if storage.find_file(path) else None


def write_shard(
    folder: storage.StrPath,
    name: str,
    splits: dict[str, ShardSplit],
    unigrams_V: np.ndarray,
) -> dict:
    """Writes a shard and returns its record; all of it counts, or nothing."""
    record = {"counts": {}, "files": {}}
    arrays = {unigrams_name(name): unigrams_V}
    for split_name, split in splits.items():
        record["counts"][split_name] = split.counts()
        for kind, array in split.arrays().items():
            arrays[f"{split_name}-{name}.{kind}.npy"] = array
    for file, array in arrays.items():
        record["files"][file] = write_array(storage.join(folder, file), array)
    write_json(record_path(folder, name), record)
    return record


def write_array(
    path: storage.StrPath, array: np.ndarray, *, setting: str = "--out"
) -> dict:
    """Writes an .npy file, whole or not at all; returns its sha256 and size."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, np.lib.format.header_data_from_array_1_0(array)
    )
    parts = (header.getvalue(), array.view(np.uint8).data)
    return storage.write_file(path, parts, setting=setting)


def write_json(
    path: storage.StrPath, document: dict, *, setting: str = "--out"
) -> dict:
    """Writes a JSON file, whole or not at all; returns its sha256 and size."""
    text = json.dumps(document, indent=1, ensure_ascii=False)
    return storage.write_file(path, (text.encode(),), setting=setting)


# ---- reading ----


def read_json(path: storage.StrPath) -> dict:
    """Reads a JSON file."""
    return json.loads(storage.read_bytes(path))


def read_array(path: storage.StrPath) -> np.ndarray:
    """Reads an .npy file."""
    return np.load(io.BytesIO(storage.read_bytes(path)))


def read_shard_split(folder: storage.StrPath, shard: str, split: str) -> ShardSplit:
    """Reads one split of a shard."""
    paths = (storage.join(folder, f"{split}-{shard}.{kind}.npy") for kind in _ARRAYS)
    return ShardSplit(*map(read_array, paths))


def mapped_array(path: storage.StrPath, scratch: storage.StrPath) -> np.ndarray:
    """Maps an .npy file, copied to the folder `scratch` first where it is remote."""
    if storage.is_remote(path):
        copied = storage.join(scratch, storage.name_of(path))
        storage.write_file(copied, (storage.read_bytes(path),))
        path = copied
    return np.load(storage.local_path(path), mmap_mode="r")


# Those in use, by their sha256: a hundred languages have one, which may be large.
_TOKENIZERS: weakref.WeakValueDictionary[str, Tokenizer] = weakref.WeakValueDictionary()


class Corpus:
    """A prepared corpus, opened; nothing is read before it is asked for."""

    folder: pathlib.Path
    manifest: dict

    def __init__(self, folder: pathlib.Path, manifest: dict):
        self.folder = folder
        self.manifest = manifest
        self._splits: dict[str, Split] = {}

    @classmethod
    def open(cls, folder: str | os.PathLike) -> "Corpus":
        """Opens a corpus after checking its version and the size of every file."""
        folder = pathlib.Path(folder)
        corpus = cls(folder, read_manifest(folder))
        # One walk through the folder: there may be tens of thousands of files.
        with os.scandir(folder) as entries:
            sizes = {e.name: e.stat().st_size for e in entries if e.is_file()}
        for name, expected in corpus.manifest["files"].items():
            if name not in sizes:
                raise UserError(f"{folder / name} is missing; {_remedy(folder)}")
            if sizes[name] != expected["bytes"]:
                raise UserError(
                    f"{folder / name} has {sizes[name]} bytes, the manifest says "
                    f"{expected['bytes']}; {_remedy(folder)}"
                )
        return corpus

    def verify(self) -> None:
        """Reads every file and compares its sha256 with the manifest's."""
        verify_files(self.folder, self.manifest)

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made the ids, one object for all corpora that share it."""
        expected = self.manifest["tokenizer"]
        with open(self.folder / "tokenizer.json", "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        tokenizer = _TOKENIZERS.get(digest) or load_tokenizer(self.folder)
        if tokenizer.sha256 != expected:
            raise UserError(
                f"{self.folder / 'tokenizer.json'} is not the tokenizer of this "
                f"corpus; {_remedy(self.folder)}"
            )
        return _TOKENIZERS.setdefault(expected, tokenizer)

    @functools.cached_property
    def fingerprint(self) -> str:
        """A sha256 of all that determines batches; the folder's place does not."""
        arrays = {
            name: file["sha256"]
            for name, file in sorted(self.manifest["files"].items())
            if name.endswith(".npy")
        }
        parts = [FORMAT, self.manifest["tokenizer"], self.manifest["dtype"], arrays]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    @property
    def languages(self) -> tuple[str, ...]:
        """The language of its text, if it is known; two where it has translations."""
        settings = self.manifest["settings"]
        if settings["sentences"] == "fields":
            return tuple(settings["text_key"].split(","))
        return tuple(filter(None, [self.manifest["language"]]))

    @functools.cached_property
    def unigrams_V(self) -> np.ndarray:  # noqa: N802 (an array, named by shape)
        """How often each id occurs in the train split, int64 [V]."""
        return np.load(self.folder / "unigrams.npy")

    def split(self, name: Literal["train", "validation"]) -> "Split":
        """Returns one of the two splits; it is mapped on first use."""
        if name not in self._splits:
            counts = {s["name"]: s[name] for s in self.manifest["shards"]}
            self._splits[name] = Split(self.folder, name, counts)
        return self._splits[name]


def verify_files(folder: storage.StrPath, manifest: dict) -> None:
    """Reads every file of a corpus and compares its sha256 with the manifest's."""
    for name, expected in manifest["files"].items():
        path = storage.join(folder, name)
        if storage.find_file(path) is None:
            raise UserError(f"{path} is missing; {_remedy(folder)}")
        with storage.open_file(path) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != expected["sha256"]:
            raise UserError(
                f"{path} is damaged: its sha256 is {digest[:12]}..., the manifest says "
                f"{expected['sha256'][:12]}...; {_remedy(folder)}"
            )


def read_manifest(folder: storage.StrPath) -> dict:
    """Reads the manifest of a corpus; whatever is wrong is a `UserError`."""
    path = storage.join(folder, MANIFEST)
    if not storage.is_folder(folder):
        raise UserError(
            f"corpus {folder} does not exist; make one with "
            f"python -m encoderjax.prepare --source=... --out={folder}"
        )
    if storage.find_file(path) is None:
        if storage.find_file(storage.join(folder, UNFINISHED)):
            raise UserError(
                f"corpus {folder} is unfinished: its preparation was interrupted; "
                "run the same prepare command again, it continues"
            )
        raise UserError(f"{folder} is not a prepared corpus: it has no {MANIFEST}")
    try:
        manifest = read_json(path)
        found = manifest["format"]
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path} is damaged; {_remedy(folder)}") from error
    if found != FORMAT:
        raise UserError(
            f"{path}: format {found}, this version reads {FORMAT}; {_remedy(folder)}"
        )
    return manifest


def _remedy(folder: storage.StrPath) -> str:
    return f"copy it again or delete {folder} and prepare it anew"


class Split:
    """One split of a corpus: its shards as if they were one.

    Each kind of array is mapped when it is first asked for: training reads tokens
    alone once its rows are cut, and each mapped array keeps a file open.
    """

    def __init__(
        self, folder: pathlib.Path, name: str, shards: dict[str, dict[str, int]]
    ):
        """Takes the counts of each shard by its name, in the order of the shards."""
        self._paths = [str(folder / f"{name}-{shard}") for shard in shards]
        self._counts = counts = list(shards.values())
        self.num_shards = len(counts)
        self.num_documents, self.num_sentences, self.num_tokens = (
            sum(shard[kind] for shard in counts)
            for kind in ("documents", "sentences", "tokens")
        )
        # [num_shards + 1], the first document of each shard
        self.shard_documents = _bases(counts, "documents")

    @functools.cached_property
    def tokens(self) -> "ShardedArray":
        """The id at each position."""
        return ShardedArray(self._mapped("tokens"))

    @functools.cached_property
    def sentence_starts(self) -> "ShardedArray":
        """The first token of each sentence, and the end of the last."""
        return ShardedArray.joined_offsets(
            self._mapped("sentences"), _bases(self._counts, "tokens")
        )

    @functools.cached_property
    def document_starts(self) -> "ShardedArray":
        """The first sentence of each document, and the end of the last."""
        return ShardedArray.joined_offsets(
            self._mapped("documents"), _bases(self._counts, "sentences")
        )

    def _mapped(self, kind: str) -> list[np.ndarray]:
        allow_open_files(self.num_shards, " or prepare with a larger --shard_mb")
        return [np.load(f"{path}.{kind}.npy", mmap_mode="r") for path in self._paths]


def _bases(counts: Sequence[dict[str, int]], kind: str) -> np.ndarray:
    return np.cumsum([0, *(shard[kind] for shard in counts)], dtype=np.int64)


def allow_open_files(count: int, remedy: str = "") -> None:
    """Raises the process's limit: each mapped array keeps a file open."""
    if resource is None:
        return
    needed = count + 256 + len(os.listdir("/dev/fd"))  # the rest of the program's
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise UserError(
            f"the corpus needs {needed} open files and the limit is {hard}; raise it "
            f"(ulimit -n){remedy}"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


class ShardedArray:
    """Arrays of one dimension, seen as if concatenated, each plus a number."""

    def __init__(
        self, parts: Sequence[np.ndarray], added: Sequence[int] | np.ndarray = ()
    ):
        self.dtype = parts[0].dtype
        # As plain arrays: to slice a np.memmap takes several times as long.
        self._parts = [np.asarray(part) for part in parts]
        self._added = added if len(added) else [0] * len(parts)
        self._starts = np.cumsum([0, *map(len, parts)], dtype=np.int64)

    @classmethod
    def joined_offsets(
        cls, parts: Sequence[np.ndarray], bases: np.ndarray
    ) -> "ShardedArray":
        """Joins offsets [n_i + 1] that start at 0 to offsets [sum n_i + 1]."""
        inner = [part[:-1] for part in parts[:-1]]
        return cls([*inner, parts[-1]], bases)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def _values(self, i: int, where: np.ndarray | builtins.slice) -> np.ndarray:
        values = np.asarray(self._parts[i][where])
        return values + self._added[i] if self._added[i] else values

    def take(self, indices: np.ndarray) -> np.ndarray:
        """Returns the values at `indices`, in their shape."""
        indices = np.asarray(indices, np.int64)
        if indices.size == 0:
            return np.zeros(indices.shape, self.dtype)
        if indices.min() < 0 or indices.max() >= len(self):
            raise IndexError(f"an index is outside 0..{len(self) - 1}")
        part_of = np.searchsorted(self._starts, indices.ravel(), "right") - 1
        # Part by part: what each has lies together in this order.
        order = np.argsort(part_of, kind="stable")
        counts = np.bincount(part_of)
        ends = np.cumsum(counts)
        out = np.empty(indices.size, self.dtype)
        for i in np.flatnonzero(counts).tolist():
            here = order[ends[i] - counts[i] : ends[i]]
            out[here] = self._values(i, indices.ravel()[here] - self._starts[i])
        return out.reshape(indices.shape)

    def read(self, starts_S: np.ndarray, lengths_S: np.ndarray) -> np.ndarray:
        """Returns the values of spans, one after the other: `take` for long spans.

        Each is copied as a whole, so that the number of parts costs nothing.
        """
        used_S = lengths_S > 0
        starts_S, stops_S = starts_S[used_S], (starts_S + lengths_S)[used_S]
        if len(starts_S) and (starts_S.min() < 0 or stops_S.max() > len(self)):
            raise IndexError(f"a span is outside 0:{len(self)}")
        part_S = np.searchsorted(self._starts, starts_S, "right") - 1
        base_S = self._starts[part_S]
        places_S = np.stack([part_S, starts_S - base_S, stops_S - base_S], axis=1)
        pieces = [self._values(i, slice(*ends)) for i, *ends in places_S.tolist()]
        for i in np.flatnonzero(stops_S > self._starts[part_S + 1]):
            pieces[i] = self.slice(int(starts_S[i]), int(stops_S[i]))
        return np.concatenate([np.zeros(0, self.dtype), *pieces])

    def slice(self, start: int, stop: int) -> np.ndarray:
        """Returns the values from `start` up to `stop`, as a copy."""
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"{start}:{stop} is outside 0:{len(self)}")
        first = int(np.searchsorted(self._starts, start, "right")) - 1
        last = int(np.searchsorted(self._starts, stop, "left"))
        pieces = [
            self._values(i, slice(max(start - base, 0), max(stop - base, 0)))
            for i in range(first, last)
            for base in (int(self._starts[i]),)
        ]
        return np.concatenate([np.zeros(0, self.dtype), *pieces])
