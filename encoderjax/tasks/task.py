"""What a task is: a frozen dataclass that owns both halves of what is fine-tuned.

The host half reads examples, makes rows of them, and says what scores mean; the device
half has the loss. A task knows neither files of checkpoints nor the loop.

Shapes: R items, B items of a batch, L length.
"""

import dataclasses
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, Self, TypeVar, cast

import jax
import numpy as np

from encoderjax.command import did_you_mean
from encoderjax.errors import UserError
from encoderjax.fields import Override, as_typed, build, converted
from encoderjax.interop.task_description import Cut, Problem, TaskDescription
from encoderjax.interop.task_loading import TASK
from encoderjax.interop.task_start import TaskStart
from encoderjax.models.config import EncoderConfig
from encoderjax.models.families.task_forms import Kind
from encoderjax.models.task_heads import (
    TaskHead,
    TaskModel,
    encoder_for,
    init_task_params,
    task_head,
)
from encoderjax.tasks.encoding import Encoding, Row
from encoderjax.tasks.records import Form, Record

DeviceBatch = dict[str, jax.Array]
Terms = dict[str, jax.Array]  # metric -> scalar
Params = Mapping[str, Any]  # those of the head, the group `task`
Model = Any  # with `config` and `head`, from rows to what `sums` reads
Description = Any  # with `to_json`
Prediction = dict[str, Any]  # plain values, as JSON has them

_SHOWN = 8  # labels in a message


@dataclasses.dataclass(frozen=True, eq=False)
class Encoded:
    """Examples as items, each of one row or, where rows are compared, of a group.

    Attributes:
      items: the rows of each.
      examples: the number of the example that each item is of, ascending.
      values: what a loss reads of each item, [R, ...].
      at_places: what it reads of each place of an item's row; -1 = nothing there.
      places: numbers of places in an item's row, [R].
      extra: what the task keeps for each example, to say what scores mean.
    """

    items: Sequence[tuple[Row, ...]]
    examples: np.ndarray
    values: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    at_places: Mapping[str, Sequence[np.ndarray]] = dataclasses.field(
        default_factory=dict
    )
    places: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    extra: Sequence[Any] = ()

    def __len__(self) -> int:
        return len(self.items)

    def of_examples(self, count: int) -> list[range]:
        """Returns the numbers of the items of each example."""
        first = np.searchsorted(self.examples, np.arange(count + 1))
        return [range(a, b) for a, b in itertools.pairwise(first)]


Example = TypeVar("Example")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task(Generic[Example]):
    """A kind of task, of examples of the type Example.

    Attributes:
      labels: the names of the scores, in their order; None = as the examples have them.
      head: fields of `TaskHead` that differ from the family's published head.
    """

    kind: ClassVar[str]
    # The columns that examples are read from, by role; None = left out unless named.
    columns: ClassVar[Mapping[str, str | None]]
    # Roles that an example without an answer has not.
    answer_roles: ClassVar[tuple[str, ...]]
    # The fields that predictions depend on; a description keeps them.
    kept: ClassVar[tuple[str, ...]] = ()
    # The group of a workdir's config.json that holds the description.
    described_as: ClassVar[str] = TASK
    # The command that uses the model.
    used_by: ClassVar[str] = "predict --model={model} --input=FILE"

    labels: tuple[str, ...] | None = None
    head: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        for name in ("kind", "num_labels"):
            if name in self.head:
                raise UserError(f"task.head.{name} follows from the task; leave it out")

    @classmethod
    def from_fields(cls, values: Mapping[str, Any]) -> Self:
        """Returns the task of the fields of a config's group `task`."""
        given = dict(values)
        given["labels"] = _label_names(given.get("labels"))
        given["head"] = converted(TaskHead, given.get("head", {}), "task.head.")
        return build(cls, given, "task.")

    def to_fields(self) -> dict[str, Any]:
        """Returns plain values; `from_fields` takes all but the kind."""
        return {"kind": self.kind, **dataclasses.asdict(self)}

    # ---- examples ----

    def read(
        self,
        path: str,
        columns: Mapping[str, str | None],
        form: Form | None = None,
        *,
        answered: bool = True,
    ) -> list[Example]:
        """Returns the examples of a file.

        Args:
          path: of the file.
          columns: role -> name of its column, where that differs from the default.
          form: None = by the name of the file.
          answered: whether they have labels or answers, as all that is learned from.
        """
        raise NotImplementedError

    def chosen_columns(
        self, columns: Mapping[str, str | None], answered: bool = True
    ) -> dict[str, str | None]:
        """Returns the column of each role; refuses roles that are none."""
        for role in columns:
            if role not in self.columns:
                raise UserError(
                    f"data.columns.{role} is not a role of task.kind={self.kind!r}"
                    f"{did_you_mean(role, list(self.columns))} (roles: "
                    f"{', '.join(self.columns)})"
                )
        chosen = {**self.columns, **columns}
        if not answered:
            chosen |= dict.fromkeys(self.answer_roles)
        return chosen

    def source(self, example: Example) -> str | None:
        """Returns what examples have in common that are held out together, if any."""
        return None

    def resolved(self, examples: Sequence[Example]) -> "Task[Example]":
        """Returns itself with what the training examples decide, such as labels."""
        return self

    def judging(self, examples: Sequence[Example]) -> "Task[Example]":
        """Returns the task as held-out examples are measured by."""
        return self

    @property
    def compares_examples(self) -> bool:
        """Whether the loss of an example depends on the others of its batch."""
        return False

    @property
    def problem(self) -> Problem:
        """What a label is."""
        return "single"

    @property
    def group(self) -> int:
        """Rows of an item; more than one are compared with each other."""
        return 1

    @property
    def num_scores(self) -> int:
        """How many scores a row or token has."""
        return len(self.labels or ())

    def described(self) -> dict[str, Any]:
        """Returns the fields of a description that the task itself decides."""
        return {
            "kind": self.kind,
            "labels": self.labels or (),
            "problem": self.problem,
            "settings": {name: getattr(self, name) for name in self.kept},
        }

    @classmethod
    def from_description(cls, description: TaskDescription) -> Self:
        """Returns the task that `described` was written of."""
        settings = {
            name: value
            for name, value in description.settings.items()
            if name in cls.kept
        }
        return cls(labels=description.labels or None, **settings)

    # ---- model ----

    def model(self, family: str, encoder: EncoderConfig) -> Model:
        """Returns what is trained, in float32: a family's encoder and the head."""
        kind, changes = cast(Kind, self.kind), self.head
        head = task_head(family, encoder, kind, self.num_scores, **changes)
        return TaskModel(encoder_for(encoder, head), head)

    def init(self, model: Model, key: jax.Array) -> dict:
        """Returns new parameters: `encoder`, and those of the head as `task`."""
        return init_task_params(model, key)

    def init_from(
        self, start: TaskStart, model: Model, seed: int
    ) -> tuple[dict, list[str]]:
        """Returns the first parameters, and lines that say where they come from."""
        return start.params_for(model, seed, self.labels, self.problem)

    def description(
        self, model: Model, *, length: int, cut: Cut, stride: int
    ) -> Description:
        """Returns what is needed to use the model again."""
        return TaskDescription(
            **self.described(), head=model.head, length=length, cut=cut, stride=stride
        )

    # ---- host ----

    def encode(
        self, examples: Sequence[Example], encoding: Encoding, *, answered: bool = True
    ) -> Encoded:
        """Returns the rows of examples, with what there is to learn from them."""
        raise NotImplementedError

    def predictions(
        self,
        examples: Sequence[Example],
        encoded: Encoded,
        scores: Sequence[np.ndarray],
    ) -> list[Prediction]:
        """Returns what the scores of items say of each example.

        Args:
          examples: that were encoded.
          encoded: their rows.
          scores: of each item: of its row [C], its places [R, C], or its rows.
        """
        raise NotImplementedError

    def metrics(
        self, examples: Sequence[Example], predictions: Sequence[Prediction]
    ) -> dict[str, float]:
        """Returns metrics; the first one tells which checkpoint is the best."""
        raise NotImplementedError

    def mean_terms(self, means: Mapping[str, float]) -> dict[str, float]:
        """Returns the metrics that follow those, of the means of `sums`, if any."""
        loss = f"{self.kind}_loss"  # not there where no row has weight
        return {"loss": means[loss]} if loss in means else {}

    def report(
        self, examples: Sequence[Example], predictions: Sequence[Prediction]
    ) -> str:
        """Returns a table for people, or nothing."""
        return ""

    # ---- device ----

    def counts(self, batch: DeviceBatch) -> Terms:
        """Returns what the sums of each name are divided by."""
        raise NotImplementedError

    def sums(self, params: Params, scores: jax.Array, batch: DeviceBatch) -> Terms:
        """Returns sums, never means, so that they add up over microbatches."""
        raise NotImplementedError


def _label_names(given: Any) -> Any:
    """Returns the labels that a config names: numbers are text, as in records."""
    if isinstance(given, Override):
        given = as_typed(given)
    if not isinstance(given, list | tuple):
        return given
    return tuple(x if isinstance(x, str) else json.dumps(x) for x in given)


def label_of(record: Record) -> str:
    """Returns the one label of an example, without the space around it."""
    label = record.text("label").strip()
    if not label:
        raise UserError(
            f"{record.where}: the label is empty; mend that, or leave the example out"
        )
    return label


def number_of(label: str, labels: Sequence[str], where: str) -> int:
    """Returns the number of a label; refuses one that is none of them."""
    try:
        return labels.index(label)
    except ValueError:
        more = ", ..." if len(labels) > _SHOWN else ""
        raise UserError(
            f"{where}: label {label!r} is not one of {', '.join(labels[:_SHOWN])}"
            f"{more} ({len(labels)}), which the training examples or task.labels have; "
            "mend the example, or name all labels in task.labels"
        ) from None


def sorted_labels(found: set[str]) -> tuple[str, ...]:
    """Returns labels in order: numbers by their size, others by their letters."""
    try:
        sizes = {label: float(label) for label in found}
    except ValueError:
        sizes = {}
    if not all(map(math.isfinite, sizes.values())):  # a "nan" has no place
        sizes = {}
    return tuple(sorted(found, key=lambda label: (sizes.get(label, 0.0), label)))
