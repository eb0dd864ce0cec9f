"""Bytes of a file in blocks, decompressed; of a damaged file, what comes before that.

No block is much larger than `_BLOCK`, however well it was compressed.
"""

import bz2
import codecs
import gzip
import lzma
import pathlib
import zlib
from collections.abc import Callable, Iterator
from typing import IO

import zstandard

from encoderjax.data import storage
from encoderjax.data.trouble import Kind, Notes

_BLOCK = 2**20
# A block of zstd can be 32,768 times as long as what it was compressed to.
_ZSTD_INPUT = 2**8
_ZSTD_WINDOW = 2**31  # bytes, the longest that `zstd --long` makes
# What damaged files raise, each in its own way; bz2 and gzip raise OSError, which what
# goes wrong in the storage never is: `storage.open_file` has explained that.
_DAMAGED = (EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError, OSError)


def bare_suffix(path: str) -> str:
    """Returns the suffix under that of the compression: '.jsonl' for a.JSONL.gz."""
    name = pathlib.PurePath(path.lower())
    return name.with_suffix("").suffix if is_compressed(path) else name.suffix


def is_compressed(path: str) -> bool:
    """Says whether a file is compressed, by its name."""
    return _suffix(path) in _OPENERS


def _suffix(path: str) -> str:
    return pathlib.PurePath(path).suffix.lower()


def read_blocks(path: str, notes: Notes, start: int = 0) -> Iterator[bytes]:
    """Yields the bytes of a file, of a plain one from `start`, up to any damage."""
    decompress = _OPENERS.get(_suffix(path), _plain)
    with storage.open_file(path) as file:
        file.seek(start)
        gathered: list[bytes] = []
        size = 0
        try:
            for block in decompress(file):
                if start == size == 0 and _is_utf16(block):
                    notes.add(Kind.UTF16)
                    return
                gathered.append(block)
                size += len(block)
                if size >= _BLOCK:
                    yield b"".join(gathered)
                    gathered, start, size = [], start + size, 0
        except _DAMAGED as error:
            notes.add(Kind.DAMAGED, reason=error)
        yield b"".join(gathered)


def _is_utf16(head: bytes) -> bool:
    return head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))


def _plain(file: IO[bytes]) -> Iterator[bytes]:
    while block := file.read(_BLOCK):
        yield block


def _through(
    opener: Callable[..., gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile],
) -> Callable[[IO[bytes]], Iterator[bytes]]:
    """Returns a reader that loses nothing of what comes before an error."""

    def blocks(file: IO[bytes]) -> Iterator[bytes]:
        with opener(file) as stream:
            while block := stream.read1(_BLOCK):
                yield block

    return blocks


def _zstd(file: IO[bytes]) -> Iterator[bytes]:
    """Reads frame after frame; the package's own reader passes over a missing end."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
    frame, data = None, b""
    while data := data or file.read(_ZSTD_INPUT):
        frame = frame or decompressor.decompressobj()
        if block := frame.decompress(data):
            yield block
        data = frame.unused_data
        if frame.eof:
            frame = None
    if frame is not None:
        raise EOFError("the last frame of zstd has no end")


_OPENERS: dict[str, Callable[[IO[bytes]], Iterator[bytes]]] = {
    ".gz": _through(lambda file: gzip.GzipFile(fileobj=file)),
    ".bz2": _through(bz2.BZ2File),
    ".xz": _through(lzma.LZMAFile),
    ".zst": _zstd,
}
COMPRESSED = tuple(_OPENERS)
