"""Begins the preparation of a corpus: whether `out` is new, unfinished or finished.

Settings and input are written down first. As long as a preparation is unfinished its
files may not change at all; when it is finished, they may be copied and moved.
"""

import hashlib
import json
import pathlib
from collections.abc import Iterable, Sequence

from encoderjax.data import corpus as corpus_format
from encoderjax.data import sources, storage
from encoderjax.data.corpus import MANIFEST, MIXTURE, UNFINISHED, WORK
from encoderjax.data.sources import Part, Piece
from encoderjax.errors import UserError

_REMEDY = "choose another --out or delete that folder"


def input_digest(source: str, parts: Iterable[Part]) -> str:
    """Names the source's files by name and size: other input, other digest."""
    files = [(piece.name, piece.size) for piece in _pieces(parts)]
    if source == "demo":
        files.append((sources.demo_version(), 0))
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()


def _exact_digest(parts: Iterable[Part]) -> str:
    """Names the files by path, size and, where there is one, time of change."""
    files = [(piece.whole, piece.size, _changed(piece)) for piece in _pieces(parts)]
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()


def _pieces(parts: Iterable[Part]) -> list[Piece]:
    return [piece for part in parts for piece in part.pieces]


def _changed(piece: Piece) -> int:
    if storage.is_remote(piece.path):
        return 0
    return storage.local_path(piece.path).stat().st_mtime_ns


def begin(out: str | pathlib.Path, settings: dict, parts: Sequence[Part]) -> bool:
    """Marks `out` as being prepared; returns whether it is finished already."""
    found = {
        name
        for name in (MANIFEST, MIXTURE, UNFINISHED, "tokenizer.json")
        if storage.find_file(storage.join(out, name)) is not None
    }
    for name in (MANIFEST, MIXTURE, UNFINISHED):
        # Without a tokenizer nothing was made yet, and settings may still change.
        if name in found and "tokenizer.json" in found:
            _refuse_other_settings(out, _read(out, name)["settings"], settings)
            if name == UNFINISHED:
                refuse_changed_files(out, settings, parts)
                return False
            end(out)
            return True
    occupied = storage.is_folder(out) and storage.files_under(out)
    if storage.find_file(out) or (occupied and UNFINISHED not in found):
        raise UserError(
            f"--out={out} is there and is not a corpus; choose a new or empty folder"
        )
    storage.make_folder(out)
    begun = {"settings": settings, "files": _exact_digest(parts)}
    if UNFINISHED not in found or _read(out, UNFINISHED) != begun:
        storage.remove_folder(storage.join(out, WORK))  # it is of other settings
        corpus_format.write_json(storage.join(out, UNFINISHED), begun)
    return False


def refuse_changed_files(
    out: str | pathlib.Path, settings: dict, parts: Iterable[Part]
) -> None:
    """Compares the source's files with those that a preparation was begun with."""
    if _read(out, UNFINISHED)["files"] != _exact_digest(parts):
        raise _other_input(out, settings)


def end(out: str | pathlib.Path) -> None:
    """Removes what was needed on the way."""
    storage.remove_folder(storage.join(out, WORK))
    storage.remove_file(storage.join(out, UNFINISHED))


def remove_partial(out: str) -> None:
    """Removes what processes that were killed while writing have left."""
    if not storage.is_remote(out):
        for path in storage.local_path(out).rglob(f"*{storage.PARTIAL}"):
            path.unlink(missing_ok=True)


def _other_input(out: str | pathlib.Path, settings: dict) -> UserError:
    return UserError(
        f"--out={out} was prepared when --source={settings['source']} had other files "
        f"or sizes, or files of another time; {_REMEDY}"
    )


def _read(out: str | pathlib.Path, name: str) -> dict:
    """Reads a file with settings."""
    try:
        found = corpus_format.read_json(storage.join(out, name))
        dict(found["settings"])
        if name == UNFINISHED:
            str(found["files"])
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{storage.join(out, name)} is damaged; delete {out} and prepare it anew"
        ) from error
    return found


def _refuse_other_settings(
    out: str | pathlib.Path, found: dict, settings: dict
) -> None:
    for name, value in settings.items():
        if found.get(name) == value:
            continue
        if name == "input":
            raise _other_input(out, settings)
        raise UserError(
            f"--{name}={value} differs from {found.get(name)}, with which --out={out} "
            f"was prepared; {_REMEDY}"
        )
