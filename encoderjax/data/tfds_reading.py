"""Examples of prepared TFDS data sets, without TensorFlow.

What was prepared is read from its files alone: neither the code that made a data set
nor its registration is needed. The code is only looked for to say what is missing.
"""

import importlib
import os
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from encoderjax.data import storage
from encoderjax.data.trouble import Kind, Notes, Trouble
from encoderjax.errors import UserError

PREFIX = "tfds:"

_NAME = re.compile(r"\w+(/[\w.+-]+)?(:[\d.*]+)?")
_EXAMPLES = 32  # decoded at a time


class Split(NamedTuple):
    """A split of a prepared data set, and the bytes of its files."""

    folder: str
    name: str
    size: int


def find_split(
    source: str, data_dir: str, features: Sequence[str], setting: str = "--source="
) -> Split:
    """Returns the split that a source names.

    Args:
      source: tfds:NAME[/CONFIG][:VERSION][@SPLIT], or a prepared data set's folder in
        place of the name; the split may be a slice or a sum, and is 'train' if
        none is given.
      data_dir: where to look, instead of TFDS_DATA_DIR.
      features: must be there, and text.
      setting: what messages call the source by.
    """
    name, _, split = source.removeprefix(PREFIX).partition("@")
    split = split or "train"
    where = f"{setting}{source}"
    builder = _builder(where, name, data_dir)
    info = builder.info
    if info.file_format.value not in ("array_record", "parquet"):
        raise UserError(
            f"{where}: {builder.data_path} was built as {info.file_format.value}, "
            "which only TensorFlow reads; where that is installed, run "
            f"{_build_command(name, data_dir)}"
        )
    try:
        files = info.splits[split].filenames
    except (ValueError, KeyError) as error:
        raise UserError(
            f"{where}: {split!r} is no split of it; it has {', '.join(info.splits)}"
        ) from error
    for feature in features:
        _check_feature(where, feature, info.features)
    sizes = [_size(where, builder.data_path / file) for file in files]
    return Split(str(builder.data_path), split, sum(sizes))


def num_examples(folder: str, split: str) -> int:
    """Returns the number of examples of a split."""
    return _from_folder(folder).info.splits[split].num_examples


def read_examples(
    folder: str, split: str, notes: Notes, start: int = 0, stop: int | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields numbered examples, those from `start` up to `stop`.

    Damaged ones are passed over, and noted once where they follow each other.
    """
    data = _from_folder(folder).as_data_source(split)
    stop = len(data) if stop is None else stop
    is_sound = True
    for first in range(start, stop, _EXAMPLES):
        numbers = range(first, min(first + _EXAMPLES, stop))
        try:
            examples = data.__getitems__(list(numbers))
        except RuntimeError:  # of ArrayRecord, whatever is wrong
            examples = [_sound_example(data, number) for number in numbers]
        for number, example in zip(numbers, examples, strict=True):
            if isinstance(example, RuntimeError):
                if is_sound:
                    notes.add(Kind.DAMAGED, number + 1, example)
            else:
                yield number + 1, example
            is_sound = not isinstance(example, RuntimeError)


def plain_examples(source: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields numbered examples of a source with text, numbers and names of classes."""
    split = find_split(source, "", (), setting="")
    features = _from_folder(split.folder).info.features
    notes = Notes(source, Trouble(), strict=False, unit="example")
    for number, example in read_examples(split.folder, split.name, notes):
        yield number, _plain(features, example)
    if notes.count:
        raise UserError(f"{source} has damaged examples; copy or build it again")


def _plain(feature: Any, value: Any) -> Any:
    """Returns what a feature holds in Python's own types."""
    if isinstance(value, dict):  # of lists, where the feature is a list of them
        inner = getattr(feature, "feature", feature)
        return {name: _plain(inner[name], part) for name, part in value.items()}
    if isinstance(value, list) or np.ndim(value):
        inner = getattr(feature, "feature", feature)
        return [_plain(inner, part) for part in value]
    if hasattr(feature, "int2str"):
        return feature.int2str(int(value)) if int(value) >= 0 else str(value)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value.item() if isinstance(value, np.generic | np.ndarray) else value


def _sound_example(data: Any, number: int) -> dict[str, Any] | RuntimeError:
    try:
        return data[number]
    except RuntimeError as error:
        return error


def _from_folder(folder: str) -> Any:
    import tensorflow_datasets as tfds

    return tfds.builder_from_directory(folder)


def _size(where: str, path: os.PathLike) -> int:
    file = storage.find_file(path)
    if file is None:
        raise UserError(f"{where}: {path} is missing; copy or build it again")
    return file.size


def _check_feature(where: str, name: str, features: Any) -> None:
    if name not in features:
        raise UserError(
            f"{where} has no feature {name!r}; choose with --text_key or "
            f"--language_key from {', '.join(features)}"
        )
    if features[name].shape != () or np.dtype(features[name].np_dtype).kind != "O":
        raise UserError(
            f"{where}: feature {name!r} is {features[name]}, not text; choose another "
            "with --text_key or --language_key"
        )


# ---- finding a data set ----


def _builder(where: str, name: str, data_dir: str) -> Any:
    from tensorflow_datasets.core import read_only_builder, registered

    if storage.find_file(storage.join(name, "dataset_info.json")):
        return _from_folder(name)
    if not _NAME.fullmatch(name):
        raise UserError(
            f"{where} is not tfds:NAME[/CONFIG][:VERSION][@SPLIT], nor has "
            f"{name or 'it'} a dataset_info.json"
        )
    try:
        return read_only_builder.builder_from_files(name, data_dir=data_dir or None)
    except registered.DatasetNotFoundError as error:
        raise UserError(_why_not(where, name, data_dir)) from error
    except ValueError as error:  # found in several folders
        raise UserError(f"{where}: {' '.join(str(error).split())}") from error


def _why_not(where: str, name: str, data_dir: str) -> str:
    """Returns why a data set was not found, and what to do about it."""
    from tensorflow_datasets.core import constants, registered

    folder = data_dir or constants.DATA_DIR
    flag = "--tfds_dir or " if where.startswith("--") else ""
    there = f"{where} is not in {folder} ({flag}TFDS_DATA_DIR)"
    bare_name = re.split("[/:]", name)[0]
    try:
        builder = registered_builder(bare_name)
    except ImportError as error:
        builder = None
        there += f", and its code needs {error.name}"
    except registered.DatasetNotFoundError:
        return f"{there}, and TFDS knows no data set of that name"
    configs = [config.name for config in getattr(builder, "BUILDER_CONFIGS", [])]
    config = name.partition("/")[2].partition(":")[0]
    if configs and config not in configs:
        shown = ", ".join(configs[:20]) + (", ..." if len(configs) > 20 else "")
        return f"{there}; give one of its configs, as {bare_name}/CONFIG: {shown}"
    return (
        f"{there}; where what it needs is installed, often TensorFlow, build it with "
        f"{_build_command(name, data_dir)}"
    )


def _build_command(name: str, data_dir: str) -> str:
    folder = f" --data_dir={data_dir}" if data_dir else ""
    return f"tfds build {name} --file_format=array_record{folder}"


def registered_builder(name: str) -> Any:
    """Returns the class of a data set of TFDS' catalogue.

    Many register when their module is imported, which TFDS leaves undone without
    TensorFlow. The module is the one that defines a class of that name.
    """
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import naming, registered

    try:
        return tfds.builder_cls(name)
    except registered.DatasetNotFoundError:
        root = pathlib.Path(tfds.__path__[0])
        definition = re.compile(r"^class (\w+)\(", re.MULTILINE)
        for path in sorted(root.rglob("*.py")):
            if path.stem.endswith("_test"):
                continue
            classes = definition.findall(path.read_text(encoding="utf-8"))
            if name in map(naming.camelcase_to_snakecase, classes):
                module = path.relative_to(root.parent).with_suffix("")
                importlib.import_module(".".join(module.parts))
        return tfds.builder_cls(name)
