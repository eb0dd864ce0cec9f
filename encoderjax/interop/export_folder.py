"""A folder that an export writes: it appears whole, and replaces an earlier one."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from encoderjax.errors import UserError
from encoderjax.interop import weights

MARKER = "encoderjax_export.json"  # lists what an export wrote, so that the next may go


def names_in(folder: Path) -> list[str]:
    """Returns the files of a folder and those in it, by their paths there."""
    found = [path for path in folder.rglob("*") if path.is_file()]
    return [path.relative_to(folder).as_posix() for path in found]


def check_free(out: Path, overwrite: bool) -> None:
    """Refuses to write over what this command did not write."""
    if out.exists() and not out.is_dir():
        raise UserError(f"out={str(out)!r} is a file; give a folder")
    if not out.is_dir() or overwrite or (out / MARKER).is_file():
        return
    if any(out.iterdir()):
        raise UserError(
            f"out={str(out)!r} is not empty and no earlier export; give another "
            "folder, or --overwrite to replace its files of the same names"
        )


@contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
    """Yields a folder to write to, which becomes `out` when all went well."""
    partial = out.with_name(f".{out.name}.partial-{os.getpid()}")
    try:
        partial.mkdir(parents=True)
        yield partial
        _put(partial, out)
    except OSError as error:
        raise UserError(f"out={str(out)!r} cannot be written: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _put(partial: Path, out: Path) -> None:
    """Moves what was written to `out`.

    Into a folder with other files it goes file by file: what an earlier export wrote
    is removed, what is not ours stays.
    """
    if not out.is_dir() or not any(out.iterdir()):
        partial.replace(out)
        return
    earlier = out / MARKER
    stale = weights.read_json(earlier)["files"] if earlier.is_file() else []
    new = names_in(partial)
    for name in new:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (partial / name).replace(out / name)
    for name in set(stale) - set(new):
        _remove(out, name)


def _remove(out: Path, name: str) -> None:
    """Deletes what an earlier export wrote, and its folder when that is empty."""
    path = out / name
    if out.resolve() not in path.resolve().parents:
        return
    path.unlink(missing_ok=True)
    if path.parent != out and path.parent.is_dir() and not any(path.parent.iterdir()):
        path.parent.rmdir()
