"""Workdirs in an object store.

Orbax writes the checkpoints there itself. Everything else (config.json, the tokenizer,
metrics, events) lies in a local folder, since metrics are appended to and cut: it is
put there whole before each checkpoint and at the end, and fetched when a run goes on.
A file in the local folder says where its checkpoints are, which makes it a workdir.
"""

import hashlib
from pathlib import Path

from etils import epath

from encoderjax.caching import cache_folder
from encoderjax.data import storage
from encoderjax.errors import UserError

FOLDER = "checkpoints"

_PLACE = "elsewhere"  # the file that names the place of the checkpoints
_FILES = ("config.json", "metrics.jsonl", "events.*", "tokenizer/*")
_SETTING = "--workdir"


def open_workdir(name: str) -> Path:
    """Returns the local folder of a workdir, by its path or URL."""
    if not storage.is_remote(name):
        return storage.local_path(name)
    if not name.startswith("gs://"):
        raise UserError(
            f"{name} is in an object store that Orbax cannot write checkpoints to: it "
            "knows gs:// and folders; mount that store, or train in a folder and copy "
            "it there"
        )
    key = hashlib.sha256(name.rstrip("/").encode()).hexdigest()[:12]
    folder = cache_folder() / "workdirs" / f"{storage.name_of(name)}-{key}"
    link(folder, name.rstrip("/"))
    return folder


def link(folder: Path, place: str) -> None:
    """Makes `folder` a workdir whose checkpoints are at `place`.

    What lies there is fetched, and replaces what an earlier run has left here.
    """
    storage.make_folder(folder / "tokenizer", setting="ENCODERJAX_CACHE")
    for pattern in _FILES:
        for file in storage.matching_files(storage.join(place, pattern)):
            target = folder / pattern.rpartition("/")[0] / storage.name_of(file.path)
            content = storage.read_bytes(file.path)
            storage.write_file(target, [content], setting="ENCODERJAX_CACHE")
    storage.write_file(folder / _PLACE, [place.encode()], setting="ENCODERJAX_CACHE")


def place_of(workdir: Path) -> str | None:
    """Returns where the checkpoints of a workdir are, if elsewhere."""
    file = workdir / _PLACE
    return file.read_text() if file.is_file() else None


def checkpoint_folder(workdir: Path) -> epath.Path:
    """Returns the folder of a workdir's checkpoints, wherever it is."""
    place = place_of(workdir)
    return epath.Path(place or workdir.absolute()) / FOLDER


def put(workdir: Path) -> None:
    """Copies what belongs beside checkpoints that are elsewhere."""
    place = place_of(workdir)
    if place is None:
        return
    for pattern in _FILES:
        for path in sorted(workdir.glob(pattern)):
            target = storage.join(place, path.relative_to(workdir).as_posix())
            storage.make_folder(target.rpartition("/")[0], setting=_SETTING)
            storage.write_file(target, [path.read_bytes()], setting=_SETTING)
