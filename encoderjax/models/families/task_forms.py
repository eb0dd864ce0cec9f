"""The published task heads of a family, and their names elsewhere: data.

`models.task_heads` makes heads of it, `interop` reads and writes folders by it.
"""

import dataclasses
from collections.abc import Mapping
from typing import Literal

from encoderjax.models.families.names import Row

Kind = Literal["classify", "tag", "answer", "choose"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskField:
    """A field of a config.json that tells something of a head.

    Attributes:
      theirs: its name there.
      ours: the field of `TaskHead`.
      default: the value that theirs has where it is absent.
      words: theirs to ours, where they differ; what is not listed would be computed
        otherwise there than here. Ours is written as the first of its words.
    """

    theirs: str
    ours: str
    default: object
    words: Mapping | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskForm:
    """How a family's head of one kind is made.

    Attributes:
      architecture: the class of Hugging Face; None = it has none.
      head: the fields of `TaskHead` that are not the default.
      fields: where a config.json tells more of it.
      rows: tensors there and parameters here, as in `Names.rows`.
    """

    architecture: str | None
    head: Mapping[str, object] = dataclasses.field(default_factory=dict)
    fields: tuple[TaskField, ...] = ()
    rows: tuple[Row, ...]


TaskForms = Mapping[Kind, TaskForm]


def dense_row(there: str) -> Row:
    """Returns the row of a head's own dense layer."""
    return (there, "task/dense", "dense")


def score_row(there: str) -> Row:
    """Returns the row of the layer that gives the scores."""
    return (there, "task/score", "dense")


CLASSIFIER = (score_row("classifier"),)
ANSWERS = (score_row("qa_outputs"),)
# None = as the encoder drops.
CLASSIFIER_DROPOUT = TaskField(
    theirs="classifier_dropout", ours="dropout_rate", default=None
)


def renamed(forms: TaskForms, old: str, new: str) -> dict[Kind, TaskForm]:
    """Returns the same heads under classes of another name."""
    return {
        kind: dataclasses.replace(
            form,
            architecture=form.architecture and form.architecture.replace(old, new),
        )
        for kind, form in forms.items()
    }
