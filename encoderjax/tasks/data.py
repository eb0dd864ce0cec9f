"""The examples of a fine-tuning run: where they are read, and which are held out."""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from encoderjax.data.tokenizers import Tokenizer
from encoderjax.errors import UserError
from encoderjax.interop.task_description import Cut
from encoderjax.tasks.encoding import Encoding
from encoderjax.tasks.records import Form
from encoderjax.tasks.task import Task

TRAIN, VALIDATION, TEST = "train", "validation", "test"
_RESOLUTION = 2**32
Example = TypeVar("Example")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskData:
    """The group `data` of a fine-tuning run.

    Attributes:
      train: a file, a folder or .zip with texts by class, or `tfds:NAME@SPLIT`.
      validation: the same; None = a share of `train` is held out.
      test: measured once, at the end; None = a share, or nothing.
      validation_share: of `train`, where there is no file for it; above 0 it is one
        example at least.
      test_share: likewise.
      form: of the files; None = by their names.
      columns: role -> column, where that differs from the task's own.
      validation_columns: those of the files `validation` and `test`, where they are
        not of the form of `train`; none = `columns`.
      limit: how many examples to train on at most, drawn from the whole file, which
        may have one label after the other; None = all.
      length: of rows, in tokens.
      cut: what is kept of a longer text: its `head`, its `tail`, `both`, or all of it
        in `windows`.
      stride: tokens from the start of a window to that of the next.
      batch_size: examples of a step, over all devices.
    """

    train: str | None = None
    validation: str | None = None
    test: str | None = None
    validation_share: float = 0.1
    test_share: float = 0.0
    form: Form | None = None
    columns: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    validation_columns: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    limit: int | None = None
    length: int = 128
    cut: Cut = "head"
    stride: int = 64
    batch_size: int = 32

    def __post_init__(self):
        # Columns may be numbers, and several.
        for field in ("columns", "validation_columns"):
            plain = {
                role: None if name in (None, "None") else _spelled(name)
                for role, name in getattr(self, field).items()
            }
            object.__setattr__(self, field, plain)
        if self.validation_columns and not (self.validation or self.test):
            raise UserError(
                "data.validation_columns needs a file, data.validation or data.test: "
                "what is held out of data.train has its columns"
            )
        for name in ("validation_share", "test_share"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise UserError(f"data.{name}={getattr(self, name)} must be in [0, 1)")
        if self.validation_share + self.test_share >= 1.0:
            raise UserError(
                f"data.validation_share={self.validation_share} and data.test_share="
                f"{self.test_share} leave nothing to train on"
            )
        for name in ("length", "stride", "batch_size", "limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"data.{name}={value} must be at least 1")

    def encoding(self, tokenizer: Tokenizer) -> Encoding:
        """Returns how texts become rows."""
        return Encoding(tokenizer, self.length, self.cut, self.stride)

    def read(self, task: Task[Example]) -> tuple[Task[Example], dict[str, list]]:
        """Returns the task, and the examples of each split that there is.

        What examples decide, such as labels, all of `train` decides: also those that
        are held out of it, which may have the only one of a rare label.
        """
        if self.train is None:
            raise UserError(
                "data.train is missing: give --config.data.train=FILE (csv, tsv, "
                "jsonl, json, CoNLL, a folder or .zip by class) or tfds:NAME"
            )
        whole = task.read(self.train, self.columns, self.form)
        resolved = task.resolved(whole)
        shares = {
            VALIDATION: 0.0 if self.validation else self.validation_share,
            TEST: 0.0 if self.test else self.test_share,
        }
        splits = _divided(whole, [task.source(example) for example in whole], shares)
        for name, path in ((VALIDATION, self.validation), (TEST, self.test)):
            if path:
                columns = self.validation_columns or self.columns
                splits[name] = task.read(path, columns, self.form)
        splits[TRAIN] = _drawn(splits[TRAIN], self.limit)
        if not splits[TRAIN]:
            raise UserError(
                f"data.train={self.train}: all {len(whole)} examples were held out; "
                "give more, or files for data.validation and data.test"
            )
        found = {name: examples for name, examples in splits.items() if examples}
        return resolved, found


def _spelled(name: Any) -> str:
    parts = name if isinstance(name, list | tuple) else [name]
    return ",".join(str(part) for part in parts)


def _divided(
    examples: Sequence[Example],
    sources: Sequence[str | None],
    shares: Mapping[str, float],
) -> dict[str, list[Example]]:
    """Returns the examples by split, each drawn by a hash of its place in the file.

    Those of one source are drawn as their first one is, or what is learned from a
    context would be measured on it again. Where nothing would be left to train on, of
    so few sources, every example is drawn for itself.
    """
    first: dict[str, int] = {}
    together = [
        number if source is None else first.setdefault(source, number)
        for number, source in enumerate(sources)
    ]
    splits = _drawn_by(examples, together, shares)
    if splits[TRAIN]:
        return splits
    return _drawn_by(examples, range(len(examples)), shares)


def _drawn_by(
    examples: Sequence[Example], numbers: Sequence[int], shares: Mapping[str, float]
) -> dict[str, list[Example]]:
    """Returns the examples by split; a share above 0 is one number at least."""
    split_of = {number: _split_of(number, shares) for number in numbers}
    for name, share in shares.items():
        left = [number for number, split in split_of.items() if split == TRAIN]
        if share and left and name not in split_of.values():
            split_of[min(left, key=_share_of)] = name
    splits: dict[str, list[Example]] = {TRAIN: [], **{name: [] for name in shares}}
    for number, example in zip(numbers, examples, strict=True):
        splits[split_of[number]].append(example)
    return splits


def _split_of(number: int, shares: Mapping[str, float]) -> str:
    place = _share_of(number)
    for name, share in shares.items():
        if place < share:
            return name
        place -= share
    return TRAIN


def _drawn(examples: list[Example], limit: int | None) -> list[Example]:
    """Returns at most `limit` examples in their order, always the same ones."""
    if limit is None or limit >= len(examples):
        return examples
    chosen = sorted(range(len(examples)), key=_share_of)[:limit]
    return [examples[number] for number in sorted(chosen)]


def _share_of(number: int) -> float:
    """Returns a number in [0, 1) that is always the same for an example."""
    digest = hashlib.sha256(str(number).encode()).digest()
    return int.from_bytes(digest[:4], "little") / _RESOLUTION
