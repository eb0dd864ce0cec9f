"""Local copies of prepared corpora that lie in an object store.

A corpus is mapped, so each machine copies it once. The copy is named by the corpus'
manifests: one that was prepared anew is another copy. Files are checked against the
manifest as they come, and the manifest is written last; what an interrupted copy has
left is used.
"""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import shutil
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from encoderjax.data import storage
from encoderjax.data.corpus import MANIFEST, MIXTURE
from encoderjax.data.meter import Report
from encoderjax.errors import UserError

_THREADS = 8
_BLOCK = 2**22  # bytes


class _File(NamedTuple):
    name: str  # under the corpus' folder
    size: int
    sha256: str


def local_copy(
    url: str, cache: pathlib.Path, report: Report, *, field: str = "data.corpus"
) -> pathlib.Path:
    """Returns a local folder with the corpus, copying what is missing.

    Args:
      url: of a prepared corpus, or of a folder with one for each language.
      cache: the folder for copies.
      field: names the setting in messages.
    """
    manifests = _manifests(url, field)
    key = hashlib.sha256(b"".join(manifests.values())).hexdigest()[:16]
    folder = cache / f"{storage.name_of(url)}-{key}"
    if all((folder / name).is_file() for name in manifests):
        return folder
    files = _files(url, manifests)
    missing = [file for file in files if not _is_there(folder, file)]
    _announce(url, folder, files, missing, report)
    start = time.perf_counter()
    for name in manifests:
        storage.make_folder((folder / name).parent, setting="ENCODERJAX_CACHE")
    # Processes that copy at the same time begin at different files, and pass over
    # those that another has finished.
    first = os.getpid() * 7919 % max(len(missing), 1)
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as threads:
        order = missing[first:] + missing[:first]
        for _ in threads.map(lambda file: _copy(url, folder, file), order):
            pass
    for name, content in reversed(manifests.items()):
        _write(folder / name, (content,))
    seconds = time.perf_counter() - start
    copied = sum(file.size for file in missing) / 1e6
    report(f"copied in {seconds:.1f} s ({copied / seconds:.1f} MB/s)")
    return folder


def _manifests(url: str, field: str) -> dict[str, bytes]:
    """Returns the files that describe the corpus, the first being the last to copy."""
    for name in (MANIFEST, MIXTURE):
        if storage.find_file(storage.join(url, name)) is None:
            continue
        found = {name: storage.read_bytes(storage.join(url, name))}
        members = json.loads(found[name])["members"] if name == MIXTURE else ()
        for member in members:
            path = f"{member}/{MANIFEST}"
            found[path] = storage.read_bytes(storage.join(url, path))
        return found
    raise UserError(
        f"{field}={url} is not a prepared corpus, or an unfinished one: it has no "
        f"{MANIFEST}; make it with python -m encoderjax.prepare --source=... "
        f"--out={url}"
    )


def _files(url: str, manifests: dict[str, bytes]) -> list[_File]:
    files = []
    for name, content in manifests.items():
        described = json.loads(content)
        folder = name.rpartition("/")[0]
        for file, expected in described.get("files", {}).items():
            path = f"{folder}/{file}" if folder else file
            files.append(_File(path, expected["bytes"], expected["sha256"]))
    return files


def _announce(
    url: str,
    folder: pathlib.Path,
    files: list[_File],
    missing: list[_File],
    report: Report,
) -> None:
    """Says how much is copied, and refuses what the disk cannot hold."""
    total, needed = (sum(file.size for file in group) for group in (files, missing))
    there = f", {(total - needed) / 1e6:,.1f} MB are there" if needed < total else ""
    report(f"copying {url} to {folder}: {total / 1e6:,.1f} MB{there}")
    existing = next(path for path in folder.parents if path.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise UserError(
            f"the copy of {url} needs {needed / 1e6:,.1f} MB, and {existing} has "
            f"{free / 1e6:,.1f}; free some space, or set the environment variable "
            "ENCODERJAX_CACHE to a larger disk"
        )


def _is_there(folder: pathlib.Path, file: _File) -> bool:
    path = folder / file.name
    return path.is_file() and path.stat().st_size == file.size


def _copy(url: str, folder: pathlib.Path, file: _File) -> None:
    if _is_there(folder, file):
        return
    source = storage.join(url, file.name)
    found = storage.find_file(source)
    if found is None or found.size != file.size:
        size = "is missing" if found is None else f"has {found.size:,} bytes"
        raise UserError(
            f"{source} {size}, the manifest says {file.size:,}; copy the corpus there "
            "again or prepare it anew"
        )
    _write(folder / file.name, _checked_blocks(source, file.sha256))


def _checked_blocks(path: str, sha256: str) -> Iterator[bytes]:
    """Yields the blocks of a file, and raises at its end if it is not the one."""
    digest = hashlib.sha256()
    with storage.open_file(path) as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            yield block
    if digest.hexdigest() != sha256:
        raise UserError(
            f"{path} is damaged: its sha256 is {digest.hexdigest()[:12]}..., the "
            f"manifest says {sha256[:12]}...; run the same command again, or prepare "
            "the corpus anew"
        )


def _write(path: pathlib.Path, blocks: Iterable[bytes]) -> None:
    storage.write_file(path, blocks, setting="ENCODERJAX_CACHE")
