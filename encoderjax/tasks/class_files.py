"""Texts whose class is told by where they lie: a folder a class, or a file a class.

In `reviews.zip` or a folder with `pos/a.txt`, `neg/b.txt`, ..., each file is a text and
its folder the class. Where the files lie side by side, as in `polarity.pos` and
`polarity.neg`, each line is a text, and the class is what tells the names apart.
"""

import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from encoderjax.errors import UserError

_TABLES = (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".parquet", ".conll")
_ABOUT = re.compile(r"(readme|license|licence|copying|notice)", re.IGNORECASE)


def class_texts(path: str) -> Iterator[tuple[object, dict[str, str]]]:
    """Yields the place of each text, and its columns `text` and `label`."""
    files = _files(path)
    folders = {name.parent for name in files}
    if not files:
        raise UserError(f"{path} has no text files; give a folder or file a class")
    if tables := sorted(name for name in files if name.suffix.lower() in _TABLES):
        raise UserError(
            f"{path} has {tables[0]}, which is no file of texts of a class; unpack it, "
            "and name one such file"
        )
    if len(folders) > 1:
        _check_folders(path, folders)
        for name in sorted(files):
            text = _decoded(path, name, files[name]).strip()
            if text:
                yield name, {"text": text, "label": name.parent.name}
        return
    for name, label in _labels(path, sorted(files)).items():
        lines = _decoded(path, name, files[name]).split("\n")
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield f"{name}:{number}", {"text": line.strip(), "label": label}


def _check_folders(path: str, folders: set[PurePosixPath]) -> None:
    """Refuses classes that lie in several places, such as `train` and `test`."""
    places: dict[str, PurePosixPath] = {}
    for folder in sorted(folders):
        other = places.setdefault(folder.name, folder)
        if other != folder:
            raise UserError(
                f"{path} has the class {folder.name!r} in {other} and in {folder}; "
                "name one of the folders above, such as data.train="
                f"{Path(path) / other.parent}"
            )


def _files(path: str) -> dict[PurePosixPath, bytes]:
    """Returns what the files hold, without those that are about the data."""
    if Path(path).is_dir():
        found = {
            PurePosixPath(file.relative_to(path).as_posix()): file.read_bytes()
            for file in sorted(Path(path).rglob("*"))
            if file.is_file()
        }
    else:
        try:
            with zipfile.ZipFile(path) as archive:
                names = [n for n in archive.namelist() if not n.endswith("/")]
                found = {PurePosixPath(name): archive.read(name) for name in names}
        except (OSError, zipfile.BadZipFile, zlib.error) as error:
            raise UserError(f"{path} cannot be read: {error}; write it anew") from error
        except (RuntimeError, NotImplementedError) as error:  # encrypted, or too new
            raise UserError(
                f"{path} cannot be read: {error}; unpack it, and give the folder"
            ) from error
    return {
        name: content
        for name, content in found.items()
        if not _ABOUT.match(name.name)
        and not any(part.startswith(".") for part in name.parts)
    }


def _labels(path: str, names: list[PurePosixPath]) -> dict[PurePosixPath, str]:
    """Returns the class of each file: its suffix, or where those agree its stem."""
    suffixes = [name.suffix.removeprefix(".") for name in names]
    labels = suffixes if len(set(suffixes)) == len(names) else [n.stem for n in names]
    if len(names) < 2 or len(set(labels)) < len(names):
        raise UserError(
            f"{path} has the files {', '.join(map(str, names[:6]))}; a file a class "
            "needs two or more whose names or suffixes differ"
        )
    return dict(zip(names, labels, strict=True))


def _decoded(path: str, name: PurePosixPath, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: {name} is not UTF-8 (byte {error.start}); convert it, for "
            "example with iconv -f latin1 -t utf-8"
        ) from error
