"""Files by path or URL: local folders, and whatever fsspec reaches (gs://, s3://).

A URL of a local file (file://) is the same as its path.
"""

import contextlib
import dataclasses
import errno
import glob as local_glob
import hashlib
import io
import os
import pathlib
import shutil
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import fsspec

from encoderjax.errors import UserError

PARTIAL = ".partial"  # ends the name of a local file that is being written

StrPath = str | os.PathLike[str]

# What has to be installed for a protocol, where it is not what fsspec says.
_PACKAGES = {"gs": "gcsfs", "gcs": "gcsfs", "s3": "s3fs", "s3a": "s3fs"}


@dataclasses.dataclass(frozen=True)
class File:
    """A file and its size in bytes."""

    path: str
    size: int


def is_remote(path: StrPath) -> bool:
    """Says whether `path` is a URL of something other than a local file."""
    text = os.fspath(path)
    return "://" in text and not text.startswith(("file://", "local://"))


def local_path(path: StrPath) -> pathlib.Path:
    """Returns the path of what is not remote, with ~ replaced."""
    text = os.fspath(path)
    for protocol in ("file://", "local://"):
        text = text.removeprefix(protocol)
    return pathlib.Path(text).expanduser()


def join(folder: StrPath, name: str) -> str:
    """Returns the path of `name` in `folder`."""
    if is_remote(folder):
        return f"{os.fspath(folder).rstrip('/')}/{name}"
    return str(local_path(folder) / name)


def name_of(path: StrPath) -> str:
    """Returns the last part of a path."""
    return os.fspath(path).rstrip("/").rpartition("/")[2]


def lies_in(path: StrPath, folder: StrPath) -> bool:
    """Says whether a path lies in a folder, at any depth."""
    if is_remote(path) or is_remote(folder):
        return os.fspath(path).startswith(f"{os.fspath(folder).rstrip('/')}/")
    return local_path(folder).resolve() in local_path(path).resolve().parents


# ---- looking ----


def find_file(path: StrPath) -> File | None:
    """Returns the file at `path`, or None where there is no file."""
    if not is_remote(path):
        local = local_path(path)
        return File(str(local), local.stat().st_size) if local.is_file() else None
    with _explained("read", path):
        system, name = _system(path)
        try:
            info = system.info(name)
        except FileNotFoundError:
            return None
        return _files(system, {name: info})[0] if info["type"] == "file" else None


def is_folder(path: StrPath) -> bool:
    """Says whether there is a folder; in an object store, files under that name."""
    if not is_remote(path):
        return local_path(path).is_dir()
    with _explained("read", path):
        system, name = _system(path)
        return system.isdir(name)


def files_under(folder: StrPath) -> list[File]:
    """Returns all files in a folder and the folders in it, sorted by path."""
    if not is_remote(folder):
        found = sorted(p for p in local_path(folder).rglob("*") if p.is_file())
        return [File(str(path), path.stat().st_size) for path in found]
    with _explained("list", folder):
        system, name = _system(folder)
        return _files(system, system.find(name, detail=True))


def matching_files(pattern: str) -> list[File]:
    """Returns the files that a glob matches, sorted by path."""
    if not is_remote(pattern):
        names = local_glob.glob(str(local_path(pattern)), recursive=True)
        found = sorted(p for p in map(pathlib.Path, names) if p.is_file())
        return [File(str(path), path.stat().st_size) for path in found]
    with _explained("list", pattern):
        system, name = _system(pattern)
        return _files(system, system.glob(name, detail=True))


def _files(system: fsspec.AbstractFileSystem, found: Any) -> list[File]:
    infos = [info for info in found.values() if info["type"] == "file"]
    files = [File(system.unstrip_protocol(i["name"]), i["size"]) for i in infos]
    return sorted(files, key=lambda file: file.path)


# ---- reading ----


def open_file(path: StrPath) -> io.BufferedReader:
    """Opens a file to read; whatever fails is a `UserError` that names it."""
    with _explained("read", path):
        if is_remote(path):
            system, name = _system(path)
            file = system.open(name, "rb")
        else:
            file = open(local_path(path), "rb", buffering=0)  # noqa: SIM115
    return io.BufferedReader(_Explained(file, os.fspath(path)), 2**18)


def read_bytes(path: StrPath) -> bytes:
    """Returns the content of a file."""
    with open_file(path) as file:
        return file.read()


class _Explained(io.RawIOBase):
    """A file whose errors name it, so that no reader takes them for bad content."""

    def __init__(self, file: Any, path: str):
        self._file = file
        self._path = path

    def readable(self) -> bool:
        """Says yes."""
        return True

    def seekable(self) -> bool:
        """Says yes."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Reads at most as much as fits."""
        with _explained("read", self._path):
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        """Moves the position."""
        with _explained("read", self._path):
            return self._file.seek(offset, whence)

    def tell(self) -> int:
        """Returns the position."""
        return self._file.tell()

    def close(self) -> None:
        """Closes the file beneath."""
        if not self.closed:
            self._file.close()
        super().close()


# ---- writing ----


def write_file(
    path: StrPath, parts: Iterable[bytes | memoryview], *, setting: str = "--out"
) -> dict:
    """Writes a file, whole or not at all; returns its sha256 and size.

    Locally under a temporary name that is flushed to the disk and renamed; to an
    object store, which shows nothing before it has all, as one put. Errors name
    `setting`, which chose the folder.
    """
    digest, size = hashlib.sha256(), 0

    def measured() -> Iterator[bytes | memoryview]:
        nonlocal size
        for part in parts:
            digest.update(part)
            size += len(part)
            yield part

    if is_remote(path):
        with _explained("write", path, setting):
            system, name = _system(path)
            system.pipe_file(name, b"".join(measured()))
    else:
        _write_local(local_path(path), measured(), setting)
    return {"sha256": digest.hexdigest(), "bytes": size}


def _write_local(
    path: pathlib.Path, parts: Iterable[bytes | memoryview], setting: str
) -> None:
    # No two share the name: a process that outlived a killed run, or a thread, or
    # another machine may write the same file.
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex[:12]}{PARTIAL}")
    try:
        with open(partial, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise write_error(path, error, setting) from error
    finally:
        partial.unlink(missing_ok=True)


def make_folder(path: StrPath, *, setting: str = "--out") -> None:
    """Makes a local folder and those above it; object stores need none."""
    if not is_remote(path):
        try:
            local_path(path).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"{setting}={path} cannot be made: {error.strerror}"
            ) from error


def remove_file(path: StrPath) -> None:
    """Deletes a file, if there is one."""
    if not is_remote(path):
        local_path(path).unlink(missing_ok=True)
        return
    with _explained("delete", path):
        system, name = _system(path)
        with contextlib.suppress(FileNotFoundError):
            system.rm_file(name)


def remove_folder(path: StrPath) -> None:
    """Deletes a folder and all in it, if there is one."""
    if not is_remote(path):
        shutil.rmtree(local_path(path), ignore_errors=True)
        return
    with _explained("delete", path):
        system, name = _system(path)
        if system.isdir(name):
            system.rm(name, recursive=True)


def write_error(path: StrPath, error: OSError, setting: str = "--out") -> UserError:
    """Returns what to raise when `path` could not be written."""
    remedy = "mend that"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        remedy = f"free some space or choose another {setting}"
    return UserError(
        f"{setting}: cannot write {path}: {error.strerror}; {remedy} and run the same "
        "command again, it continues with what is missing"
    )


# ---- protocols ----


def _system(url: StrPath) -> tuple[fsspec.AbstractFileSystem, str]:
    """Returns the file system of a URL, and the path in it."""
    url = os.fspath(url)
    protocol = url.partition("://")[0]
    try:
        # Without a memory of listings: other processes write there, too.
        return fsspec.url_to_fs(url, use_listings_cache=False)
    except ImportError as error:
        package = _PACKAGES.get(protocol)
        remedy = f"run pip install {package}" if package else str(error)
        raise UserError(
            f"{url}: {protocol}:// needs a package that is not installed; {remedy}"
        ) from error
    except ValueError as error:
        raise UserError(
            f"{url}: no storage is known under {protocol}://; use gs://, s3://, "
            "file:// or a path"
        ) from error


@contextlib.contextmanager
def _explained(verb: str, path: StrPath, setting: str = "") -> Iterator[None]:
    """Turns what a storage raises into one line for the user.

    Not only OSError: every package of a protocol has errors of its own for a refused
    key or a lost connection.
    """
    try:
        yield
    except UserError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(_failure(verb, path, setting, reason)) from error
    except Exception as error:
        if not is_remote(path):
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(_failure(verb, path, setting, reason)) from error


def _failure(verb: str, path: StrPath, setting: str, reason: str) -> str:
    where = f"{setting}: " if setting else ""
    return (
        f"{where}cannot {verb} {os.fspath(path)}: {reason}; mend that and run the same "
        "command again"
    )
