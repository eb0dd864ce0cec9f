"""One of several continuations of a text: multiple choice.

Shapes: B items of a batch, G choices.
"""

import dataclasses
import string
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from encoderjax.errors import UserError
from encoderjax.tasks.encoding import Encoding
from encoderjax.tasks.records import Form, Record, read_records
from encoderjax.tasks.task import (
    DeviceBatch,
    Encoded,
    Params,
    Prediction,
    Task,
    Terms,
)

_SEVERAL = ","  # between the columns of choices


@dataclasses.dataclass(frozen=True)
class Choice:
    """A text and what may follow it.

    Attributes:
      where: file and line, for messages.
      label: the number of the right one; None where it is not known.
    """

    where: str
    text: str
    choices: tuple[str, ...]
    label: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choose(Task[Choice]):
    """Multiple choice; batch keys: task/labels int32 [B], present [B, G].

    The column of choices has a list of texts, or names several columns: `a,b,c`. A
    label is the number of the right one from 0, its letter from A, or its text.

    Attributes:
      choices: how many an example may have; None = as many as the training examples.
    """

    kind: ClassVar = "choose"
    columns: ClassVar = {"text": "text", "choices": "choices", "label": "label"}
    answer_roles: ClassVar = ("label",)

    choices: int | None = None

    def __post_init__(self):
        super().__post_init__()
        if self.labels is not None:
            raise UserError("task.labels does not go with task.kind='choose'")

    @property
    def group(self) -> int:
        """The rows that are compared."""
        assert self.choices is not None
        return self.choices

    @property
    def num_scores(self) -> int:
        """One score of each row."""
        return 1

    def read(
        self,
        path: str,
        columns: Mapping[str, str | None],
        form: Form | None = None,
        *,
        answered: bool = True,
    ) -> list[Choice]:
        """Returns the examples of a file."""
        chosen = self.chosen_columns(columns, answered)
        several = str(chosen.pop("choices")).split(_SEVERAL)
        names = {f"choices.{number}": name for number, name in enumerate(several)}
        records = read_records(path, {**chosen, **names}, form)
        choices = [_choices_of(record, len(several)) for record in records]
        labels = _labels(records, choices) if chosen["label"] else [None] * len(records)
        return [
            Choice(record.where, record.text("text"), of_record, label)
            for record, of_record, label in zip(records, choices, labels, strict=True)
        ]

    def source(self, example: Choice) -> str:
        """Returns the text, about which there may be several questions."""
        return example.text

    def resolved(self, examples: Sequence[Choice]) -> "Choose":
        """Returns the task with as many choices as the examples have at most."""
        most = max(len(example.choices) for example in examples)
        return dataclasses.replace(self, choices=self.choices or most)

    def for_examples(self, examples: Sequence[Choice]) -> "Choose":
        """Returns the task for examples with any number of choices."""
        most = max(len(example.choices) for example in examples)
        return dataclasses.replace(self, choices=most)

    # ---- host ----

    def encode(
        self, examples: Sequence[Choice], encoding: Encoding, *, answered: bool = True
    ) -> Encoded:
        """Returns an item of each example: the text beside each choice."""
        if encoding.cut == "windows":
            raise UserError(
                "data.cut='windows' does not go with task.kind='choose'; use 'head', "
                "'tail' or 'both'"
            )
        pieces_of = encoding.tokenizer.encode_with_offsets
        items = []
        for example in examples:
            if len(example.choices) > self.group:
                raise UserError(
                    f"{example.where}: {len(example.choices)} choices, the training "
                    f"examples have at most {self.group}; set task.choices"
                )
            first = pieces_of(example.text)
            rows = [encoding.rows(first, pieces_of(x))[0] for x in example.choices]
            items.append(tuple(rows))
        values = {}
        if answered:
            values["labels"] = np.array([_label(x) for x in examples], np.int32)
        return Encoded(items, np.arange(len(items)), values)

    def predictions(
        self,
        examples: Sequence[Choice],
        encoded: Encoded,
        scores: Sequence[np.ndarray],
    ) -> list[Prediction]:
        """Returns the number and text of the best choice, and all probabilities."""
        found = []
        for example, scores_G in zip(examples, scores, strict=True):
            raised = np.exp(scores_G.astype(np.float64) - scores_G.max())
            best = int(scores_G.argmax())
            chances = (raised / raised.sum()).tolist()
            found.append(
                {"label": best, "choice": example.choices[best], "scores": chances}
            )
        return found

    def metrics(
        self, examples: Sequence[Choice], predictions: Sequence[Prediction]
    ) -> dict[str, float]:
        """Returns the accuracy."""
        right = [
            _label(x) == p["label"] for x, p in zip(examples, predictions, strict=True)
        ]
        return {"accuracy": float(np.mean(right))}

    # ---- device ----

    def counts(self, batch: DeviceBatch) -> Terms:
        """Returns the examples."""
        rows = batch["row_weights"].sum()
        return {"choose_loss": rows, "choose_accuracy": rows}

    def sums(self, params: Params, scores: jax.Array, batch: DeviceBatch) -> Terms:
        """Returns the cross-entropy among the choices that an example has."""
        labels_B, rows_B = batch["task/labels"], batch["row_weights"]
        scores_BG = jnp.where(batch["present"], scores, -jnp.inf)
        chances_BG = jax.nn.log_softmax(scores_BG)
        loss_B = -jnp.take_along_axis(chances_BG, labels_B[:, None], axis=1)[:, 0]
        right_B = scores_BG.argmax(-1) == labels_B
        return {
            "choose_loss": (rows_B * loss_B).sum(),
            "choose_accuracy": (rows_B * right_B).sum(),
        }


def _label(example: Choice) -> int:
    if example.label is None:
        raise UserError(
            f"{example.where} has no label; name its column in data.columns"
        )
    return example.label


def _choices_of(record: Record, columns: int) -> tuple[str, ...]:
    found: Any = [record[f"choices.{number}"] for number in range(columns)]
    if columns == 1:
        found = record.structure("choices.0")
    if not isinstance(found, list) or not all(isinstance(x, str) for x in found):
        raise UserError(
            f"{record.where}: the choices are not a list of texts; for several columns "
            "use data.columns.choices='a,b,c'"
        )
    if len(found) < 2:
        raise UserError(f"{record.where}: {len(found)} choices; there must be two")
    texts = [text.strip() for text in found]
    if twice := [text for n, text in enumerate(texts) if text in texts[:n]]:
        raise UserError(
            f"{record.where}: the choice {twice[0][:60]!r} is there twice; choices "
            "must differ: mend the example, or leave it out"
        )
    return tuple(found)


def _labels(
    records: Sequence[Record], choices: Sequence[tuple[str, ...]]
) -> list[int | None]:
    """Returns the numbers of the right choices.

    Where choices are numbers or letters themselves, a label can be read in more than
    one way; then it is read as all labels of the file can be.
    """
    readings = [_readings(r, x) for r, x in zip(records, choices, strict=True)]
    common = set.intersection(*map(set, readings))
    numbers: list[int | None] = []
    for record, of_record, found in zip(records, choices, readings, strict=True):
        possible = {way: found[way] for way in found if way in (common or found)}
        if len(set(possible.values())) > 1:
            told = " and ".join(
                f"{way} {of_record[i]!r}" for way, i in possible.items()
            )
            raise UserError(
                f"{record.where}: label {record['label']!r} is {told}; give labels "
                "that can be read in one way, such as letters from A"
            )
        numbers.append(next(iter(possible.values())))
    return numbers


def _readings(record: Record, choices: Sequence[str]) -> dict[str, int]:
    """Returns the number of the choice that a label means, by how it is read."""
    label, texts = record.text("label").strip(), [text.strip() for text in choices]
    found = {}
    if label.isdecimal() and int(label) < len(choices):
        found["the number of"] = int(label)
    letters = string.ascii_uppercase[: len(choices)]
    if len(label) == 1 and label in letters:
        found["the letter of"] = letters.index(label)
    if label in texts:
        found["the text of"] = texts.index(label)
    if not found:
        raise UserError(
            f"{record.where}: label {label!r} is neither a choice, nor a number from 0 "
            f"to {len(choices) - 1}, nor a letter from A to {letters[-1]}; mend the "
            "example"
        )
    return found
