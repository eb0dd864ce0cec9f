"""The prepared corpus: a folder of arrays that are mapped, not parsed.

  manifest.json                 written last: without it there is no corpus
  tokenizer.json, ...           the tokenizer's files
  unigrams.npy                  int64 [V], how often each id is in the train split
  train-00000.tokens.npy        ids of a shard, flat, without special tokens
  train-00000.sentences.npy     int64 [S + 1], where each sentence begins in them
  train-00000.documents.npy     int64 [D + 1], the first sentence of each document
  validation-00000...           the same of the held-out documents
  shard-00000.json              counts and hashes, written when the shard is whole

Offsets are local to their shard; `Split` shows all shards as one.

Shapes: V vocabulary, T tokens, S sentences, D documents.
"""

import builtins
import dataclasses
import errno
import functools
import hashlib
import io
import json
import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from encoderjax.data.tokenizers import Tokenizer, load_tokenizer
from encoderjax.errors import UserError

try:
    import resource
except ImportError:  # Windows, which does not count mapped files
    resource = None

FORMAT = 1
SPLITS = ("train", "validation")
MANIFEST = "manifest.json"
UNFINISHED = "preparing.json"  # there from the first moment until the manifest is

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
        return cls(tokens, _starts(sentences), _starts(documents))

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


def _starts(parts: Sequence) -> np.ndarray:
    return np.cumsum([0, *map(len, parts)], dtype=np.int64)


def token_dtype(vocab_size: int) -> np.dtype:
    """Returns the smallest type that holds the ids."""
    return np.dtype(np.uint16 if vocab_size <= 2**16 else np.uint32)


def shard_record(folder: pathlib.Path, number: int) -> dict | None:
    """Returns the record of a shard that is whole, or None."""
    path = folder / f"shard-{number:05d}.json"
    return json.loads(path.read_bytes()) if path.is_file() else None


def write_shard(
    folder: pathlib.Path, number: int, splits: dict[str, ShardSplit]
) -> dict:
    """Writes a shard and returns its record; all of it counts, or nothing."""
    record = {"counts": {}, "files": {}}
    for name, split in splits.items():
        record["counts"][name] = split.counts()
        for kind, array in split.arrays().items():
            file = f"{name}-{number:05d}.{kind}.npy"
            record["files"][file] = write_array(folder / file, array)
    write_json(folder / f"shard-{number:05d}.json", record)
    return record


def write_array(
    path: pathlib.Path, array: np.ndarray, *, setting: str = "--out"
) -> dict:
    """Writes an .npy file, whole or not at all; returns its sha256 and size."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, np.lib.format.header_data_from_array_1_0(array)
    )
    parts = (header.getvalue(), array.view(np.uint8).data)
    return write_file(path, parts, setting=setting)


def write_json(path: pathlib.Path, document: dict, *, setting: str = "--out") -> dict:
    """Writes a JSON file, whole or not at all; returns its sha256 and size."""
    text = json.dumps(document, indent=1, ensure_ascii=False)
    return write_file(path, (text.encode(),), setting=setting)


def write_file(
    path: pathlib.Path, parts: Iterable[bytes | memoryview], *, setting: str = "--out"
) -> dict:
    """Writes under a temporary name, flushes to the disk, and renames.

    Errors name `setting`, which chose the folder.
    """
    partial = path.with_name(path.name + ".partial")
    digest, size = hashlib.sha256(), 0
    try:
        with open(partial, "wb") as file:
            for part in parts:
                file.write(part)
                digest.update(part)
                size += len(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise write_error(path, error, setting) from error
    finally:
        partial.unlink(missing_ok=True)
    return {"sha256": digest.hexdigest(), "bytes": size}


def write_error(
    path: pathlib.Path, error: OSError, setting: str = "--out"
) -> UserError:
    """Returns what to raise when `path` could not be written."""
    remedy = "mend that"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        remedy = f"free some space or choose another {setting}"
    return UserError(
        f"{setting}: cannot write {path}: {error.strerror}; {remedy} and run the same "
        "command again, it continues with what is missing"
    )


# ---- reading ----


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
        corpus = cls(folder, _read_manifest(folder))
        for name, expected in corpus.manifest["files"].items():
            path = folder / name
            if not path.is_file():
                raise UserError(f"{path} is missing; {_remedy(folder)}")
            if (size := path.stat().st_size) != expected["bytes"]:
                raise UserError(
                    f"{path} has {size} bytes, the manifest says "
                    f"{expected['bytes']}; {_remedy(folder)}"
                )
        return corpus

    def verify(self) -> None:
        """Reads every file and compares its sha256 with the manifest's."""
        for name, expected in self.manifest["files"].items():
            with open(self.folder / name, "rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest != expected["sha256"]:
                raise UserError(
                    f"{self.folder / name} is damaged: its sha256 is {digest[:12]}..., "
                    f"the manifest says {expected['sha256'][:12]}...; "
                    f"{_remedy(self.folder)}"
                )

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made the ids."""
        tokenizer = load_tokenizer(self.folder)
        if tokenizer.sha256 != self.manifest["tokenizer"]:
            raise UserError(
                f"{self.folder / 'tokenizer.json'} is not the tokenizer of this "
                f"corpus; {_remedy(self.folder)}"
            )
        return tokenizer

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

    @functools.cached_property
    def unigrams_V(self) -> np.ndarray:  # noqa: N802 (an array, named by shape)
        """How often each id occurs in the train split, int64 [V]."""
        return np.load(self.folder / "unigrams.npy")

    def split(self, name: Literal["train", "validation"]) -> "Split":
        """Returns one of the two splits; it is mapped on first use."""
        if name not in self._splits:
            counts = [shard[name] for shard in self.manifest["shards"]]
            self._splits[name] = Split(self.folder, name, counts)
        return self._splits[name]


def _read_manifest(folder: pathlib.Path) -> dict:
    path = folder / MANIFEST
    if not folder.is_dir():
        raise UserError(
            f"corpus {folder} does not exist; make one with "
            f"python -m encoderjax.prepare --source=... --out={folder}"
        )
    if not path.is_file():
        if (folder / UNFINISHED).is_file():
            raise UserError(
                f"corpus {folder} is unfinished: its preparation was interrupted; "
                "run the same prepare command again, it continues"
            )
        raise UserError(f"{folder} is not a prepared corpus: it has no {MANIFEST}")
    try:
        manifest = json.loads(path.read_bytes())
        found = manifest["format"]
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path} is damaged; {_remedy(folder)}") from error
    if found != FORMAT:
        raise UserError(
            f"{path}: format {found}, this version reads {FORMAT}; {_remedy(folder)}"
        )
    return manifest


def _remedy(folder: pathlib.Path) -> str:
    return f"copy it again or delete {folder} and prepare it anew"


class Split:
    """One split of a corpus: its shards as if they were one."""

    def __init__(
        self, folder: pathlib.Path, name: str, counts: Sequence[dict[str, int]]
    ):
        self.num_shards = len(counts)
        self.num_documents, self.num_sentences, self.num_tokens = (
            sum(shard[kind] for shard in counts)
            for kind in ("documents", "sentences", "tokens")
        )
        # [num_shards + 1], the first document of each shard
        self.shard_documents = _bases(counts, "documents")
        _allow_open_files(len(_ARRAYS) * len(counts))
        mapped = {
            kind: [
                np.load(folder / f"{name}-{i:05d}.{kind}.npy", mmap_mode="r")
                for i in range(len(counts))
            ]
            for kind in _ARRAYS
        }
        # Each ids' position, and each offset as a position in the whole split.
        self.tokens = ShardedArray(mapped["tokens"])
        self.sentence_starts = ShardedArray.joined_offsets(
            mapped["sentences"], _bases(counts, "tokens")
        )
        self.document_starts = ShardedArray.joined_offsets(
            mapped["documents"], _bases(counts, "sentences")
        )


def _bases(counts: Sequence[dict[str, int]], kind: str) -> np.ndarray:
    return np.cumsum([0, *(shard[kind] for shard in counts)], dtype=np.int64)


def _allow_open_files(count: int) -> None:
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
            "(ulimit -n) or prepare with a larger --shard_mb"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


class ShardedArray:
    """Arrays of one dimension, seen as if concatenated, each plus a number."""

    def __init__(
        self, parts: Sequence[np.ndarray], added: Sequence[int] | np.ndarray = ()
    ):
        self.dtype = parts[0].dtype
        self._parts = parts
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
        part_of = np.searchsorted(self._starts, indices, "right") - 1
        out = np.empty(indices.shape, self.dtype)
        for i in np.flatnonzero(np.bincount(part_of.ravel())):
            here = part_of == i
            out[here] = self._values(int(i), indices[here] - self._starts[i])
        return out

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
