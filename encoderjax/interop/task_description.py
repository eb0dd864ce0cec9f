"""What a fine-tuned model was made for: all that is needed to use it again."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, get_args

from encoderjax.errors import UserError
from encoderjax.fields import build
from encoderjax.models.families.task_forms import Kind
from encoderjax.models.task_heads import TaskHead

Problem = Literal["single", "multi", "regression"]
Cut = Literal["head", "tail", "both", "windows"]
LABELLED_KINDS = ("classify", "tag")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskDescription:
    """A task, its labels, its head and how text is given to it.

    Attributes:
      kind: of the head.
      labels: the names of the scores, in their order; none to answer or choose.
      problem: one label of each row or token (`single`), any number of them (`multi`),
        or numbers (`regression`).
      head: what the scores are made by.
      length: of rows, in tokens.
      cut: which part of a longer text is kept, or whether it is read in `windows`.
      stride: from the start of a window to that of the next, in tokens (BERT's
        doc_stride); at most what a row has room for.
      settings: what else the task's predictions depend on, plain values by name.
    """

    kind: Kind
    labels: tuple[str, ...] = ()
    problem: Problem = "single"
    head: TaskHead
    length: int = 128
    cut: Cut = "head"
    stride: int = 128
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        object.__setattr__(self, "labels", tuple(self.labels))
        object.__setattr__(self, "settings", dict(self.settings))
        if self.kind != self.head.kind:
            raise UserError(
                f"task.kind={self.kind!r} does not fit head.kind={self.head.kind!r}; "
                "they must be the same"
            )
        for name, allowed in (("problem", get_args(Problem)), ("cut", get_args(Cut))):
            if getattr(self, name) not in allowed:
                raise UserError(
                    f"task.{name}={getattr(self, name)!r} must be one of {allowed}"
                )
        count = self.head.num_labels if self.kind in LABELLED_KINDS else 0
        if len(self.labels) != count:
            raise UserError(
                f"task.labels has {len(self.labels)} names, kind={self.kind!r} with "
                f"head.num_labels={self.head.num_labels} needs {count}"
            )
        if len(set(self.labels)) < len(self.labels):
            twice = next(x for x in self.labels if self.labels.count(x) > 1)
            raise UserError(f"task.labels names {twice!r} twice; names must differ")
        if self.problem != "single" and self.kind != "classify":
            raise UserError(
                f"task.problem={self.problem!r} needs kind='classify', not "
                f"{self.kind!r}"
            )
        for name in ("length", "stride"):
            if getattr(self, name) < 1:
                raise UserError(f"task.{name}={getattr(self, name)} must be 1 or more")

    def to_json(self) -> dict[str, Any]:
        """Returns plain values, of which `from_json` makes the same description."""
        return dataclasses.asdict(self) | {"labels": list(self.labels)}

    @classmethod
    def from_json(cls, values: object, where: object) -> "TaskDescription":
        """Returns the description that `to_json` wrote; `where` begins messages."""
        if not isinstance(values, Mapping):
            raise UserError(f"{where}: task={values!r} must be a group of fields")
        return build(cls, values, f"{where}: task.")
