"""Classes or a number for a text, or for a pair of texts.

Shapes: B items of a batch, C classes.
"""

import collections
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax

from encoderjax.errors import UserError
from encoderjax.interop.task_description import Problem, TaskDescription
from encoderjax.tasks.encoding import Encoding
from encoderjax.tasks.metrics import (
    classification_metrics,
    confusion,
    confusion_table,
    multi_label_metrics,
    regression_metrics,
)
from encoderjax.tasks.pooling_windows import pooled_scores
from encoderjax.tasks.records import Form, Record, read_records
from encoderjax.tasks.task import (
    DeviceBatch,
    Encoded,
    Params,
    Prediction,
    Task,
    Terms,
    label_of,
    number_of,
    sorted_labels,
)

SCORE = "score"  # the one label of a number
_SEPARATOR = "|"  # between the labels of a text, where a cell has several
_MOST_CLASSES = 1000  # more look like numbers, or texts


@dataclasses.dataclass(frozen=True)
class Text:
    """A text, or a pair of them.

    Attributes:
      where: file and line, for messages.
      labels: its label, labels or number; None where it is not known.
    """

    where: str
    text: str
    pair: str | None = None
    labels: tuple[str, ...] | float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classify(Task[Text]):
    """Classification and regression.

    Batch keys: task/labels, int32 [B], float32 [B, C] where there may be several, or
    float32 [B] of numbers.

    Attributes:
      problem_type: one label of each text (`single`), any number of them (`multi`), or
        a number (`regression`).
      class_weights: of the loss by label: `balanced` for as much weight on each label
        as on any other; None = all alike.
      label_smoothing: the share of a target that all labels have in common.
      threshold: of a label's probability, with `multi`.
      pool: how the scores of the windows of a text become one.
      pairs: whether an example has two texts; None = as the training examples have it.
    """

    kind: ClassVar = "classify"
    columns: ClassVar = {"text": "text", "pair": None, "label": "label"}
    answer_roles: ClassVar = ("label",)
    kept: ClassVar = ("threshold", "pool", "pairs")

    problem_type: Problem = "single"
    class_weights: str | Mapping[str, float] | None = None
    label_smoothing: float = 0.0
    threshold: float = 0.5
    pool: Literal["mean", "max"] = "mean"
    pairs: bool | None = None

    def __post_init__(self):
        super().__post_init__()
        for name in ("label_smoothing", "threshold"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise UserError(f"task.{name}={getattr(self, name)} must be in [0, 1)")
        if isinstance(self.class_weights, str) and self.class_weights != "balanced":
            raise UserError(
                f"task.class_weights={self.class_weights!r} must be 'balanced', or a "
                "weight for each label"
            )
        for name in ("class_weights", "label_smoothing"):
            if getattr(self, name) and self.problem_type != "single":
                raise UserError(
                    f"task.{name} needs task.problem_type='single', not "
                    f"{self.problem_type!r}"
                )

    @property
    def problem(self) -> Problem:
        """What a label is."""
        return self.problem_type

    @classmethod
    def from_description(cls, description: TaskDescription) -> Self:
        """Returns the task that `described` was written of."""
        task = super().from_description(description)
        return dataclasses.replace(task, problem_type=description.problem)

    # ---- examples ----

    def read(
        self,
        path: str,
        columns: Mapping[str, str | None],
        form: Form | None = None,
        *,
        answered: bool = True,
    ) -> list[Text]:
        """Returns the texts of a file."""
        chosen = self.chosen_columns(columns, answered)
        return [
            Text(
                record.where,
                record.text("text"),
                record.text("pair") if "pair" in record else None,
                self._labels_of(record) if "label" in record else None,
            )
            for record in read_records(path, chosen, form)
        ]

    def _labels_of(self, record: Record) -> tuple[str, ...] | float:
        if self.problem_type == "multi":
            found = record.structure("label")
            parts = found.split(_SEPARATOR) if isinstance(found, str) else found
            if not isinstance(parts, list) or not all(map(_is_label, parts)):
                raise UserError(
                    f"{record.where}: label={str(found)[:60]} must be a list of labels,"
                    f" or text with {_SEPARATOR!r} between them"
                )
            names = tuple(str(part).strip() for part in parts if str(part).strip())
            if len(set(names)) < len(names):
                raise UserError(
                    f"{record.where}: label={str(found)[:60]} has a label twice; if "
                    "these are zeros and ones, give the names of the labels that hold"
                )
            return names
        if self.problem_type == "single":
            return (label_of(record),)
        label = record.text("label").strip()
        try:
            number = float(label)
        except ValueError:
            number = float("nan")
        if not np.isfinite(number):
            raise UserError(
                f"{record.where}: label {label!r} is not a number, which "
                "task.problem_type='regression' needs; mend it, or use 'single'"
            )
        return number

    def source(self, example: Text) -> str:
        """Returns the text, which may stand beside several others or twice."""
        return example.text

    def resolved(self, examples: Sequence[Text]) -> "Classify":
        """Returns the task with the labels of its training examples."""
        if self.pairs is None:
            pairs = any(example.pair is not None for example in examples)
            return dataclasses.replace(self, pairs=pairs).resolved(examples)
        if self.problem_type == "regression":
            return dataclasses.replace(self, labels=(SCORE,))
        counts = collections.Counter(
            label for example in examples for label in _names(example)
        )
        labels = self.labels or sorted_labels(set(counts))
        if self.labels and len(labels) < 2 and self.problem_type == "single":
            raise UserError(
                f"task.labels={self.labels} names one label; name all of them, as in "
                "--config.task.labels=\"['bad', 'good']\""
            )
        if not labels:
            raise UserError(
                "no training example has a label; is data.columns.label the right "
                "column?"
            )
        if len(labels) < 2 and self.problem_type == "single":
            raise UserError(
                f"the training examples have one label, {', '.join(labels)!r}: there "
                "is nothing to tell apart; give examples of others, too"
            )
        if len(labels) > _MOST_CLASSES:
            raise UserError(
                f"the training examples have {len(labels):,} different labels, "
                f"such as {next(iter(labels))!r}; is data.columns.label the right "
                "column? (for numbers: task.problem_type='regression')"
            )
        return dataclasses.replace(
            self, labels=labels, class_weights=self._weights(labels, counts)
        )

    def _weights(
        self, labels: tuple[str, ...], counts: Mapping[str, int]
    ) -> dict[str, float] | None:
        """Returns the weight of each label in the loss."""
        if self.class_weights is None:
            return None
        if isinstance(self.class_weights, str):
            total = sum(counts[label] for label in labels)
            return {x: total / (len(labels) * max(counts[x], 1)) for x in labels}
        given = _checked_weights(self.class_weights)
        if set(given) != set(labels):
            wrong = min(set(given) ^ set(labels))
            raise UserError(
                f"task.class_weights must have one number for each label: {wrong!r} is "
                f"{'not a label' if wrong in given else 'missing'} (labels: "
                f"{', '.join(labels)})"
            )
        return given

    # ---- host ----

    def encode(
        self, examples: Sequence[Text], encoding: Encoding, *, answered: bool = True
    ) -> Encoded:
        """Returns one row of each text, or one for each of its windows."""
        items, numbers = [], []
        pieces_of = encoding.tokenizer.encode_with_offsets
        for number, example in enumerate(examples):
            self._check_pair(example)
            first = pieces_of(example.text)
            second = None if example.pair is None else pieces_of(example.pair)
            longer = int(second is not None and len(second) >= len(first))
            rows = dataclasses.replace(encoding, windows_of=longer).rows(first, second)
            items += [(row,) for row in rows]
            numbers += [number] * len(rows)
        values = {}
        if answered:
            targets = self._targets(examples)
            values = {"labels": targets[numbers]}
        return Encoded(items, np.array(numbers, int), values)

    def _check_pair(self, example: Text) -> None:
        """Refuses one text where two are judged, or two where one is."""
        if self.pairs is None or self.pairs == (example.pair is not None):
            return
        if self.pairs:
            raise UserError(
                f"{example.where}: one text, and task.pairs=True: pairs were trained "
                "on; name the second in data.columns.pair (predict: --columns.pair, or "
                "--pair)"
            )
        raise UserError(
            f"{example.where}: two texts, and task.pairs=False: one was trained on; "
            "leave the second out"
        )

    def _targets(self, examples: Sequence[Text]) -> np.ndarray:
        """Returns what is learned of each example: [R] or [R, C]."""
        if self.problem_type == "regression":
            return np.array([_number(example) for example in examples], np.float32)
        assert self.labels is not None
        numbers = [
            [number_of(name, self.labels, example.where) for name in _names(example)]
            for example in examples
        ]
        if self.problem_type == "single":
            return np.array([number for (number,) in numbers], np.int32)
        targets_RC = np.zeros((len(examples), len(self.labels)), np.float32)
        for row_C, chosen in zip(targets_RC, numbers, strict=True):
            row_C[chosen] = 1.0
        return targets_RC

    def predictions(
        self,
        examples: Sequence[Text],
        encoded: Encoded,
        scores: Sequence[np.ndarray],
    ) -> list[Prediction]:
        """Returns the label or labels of each text with all probabilities."""
        assert self.labels is not None
        scores_RC = np.stack(scores).astype(np.float64)
        if self.problem_type == "regression":
            pooled = pooled_scores(scores_RC, encoded.examples, self.pool)
            return [{SCORE: float(score)} for (score,) in pooled]
        chances_RC = {"single": _softmax, "multi": _sigmoid}[self.problem_type](
            scores_RC
        )
        pooled_RC = pooled_scores(chances_RC, encoded.examples, self.pool)
        return [self._prediction(chances_C) for chances_C in pooled_RC]

    def _prediction(self, chances_C: np.ndarray) -> Prediction:
        assert self.labels is not None
        named = {x: float(p) for x, p in zip(self.labels, chances_C, strict=True)}
        if self.problem_type == "multi":
            chosen = [x for x, p in named.items() if p > self.threshold]
            return {"labels": chosen, "scores": named}
        return {"label": self.labels[int(np.argmax(chances_C))], "scores": named}

    def metrics(
        self, examples: Sequence[Text], predictions: Sequence[Prediction]
    ) -> dict[str, float]:
        """Returns accuracy and F1, correlations, or those of sets of labels."""
        targets = self._targets(examples)
        if self.problem_type == "regression":
            predicted = np.array([p[SCORE] for p in predictions])
            found = regression_metrics(targets.astype(np.float64), predicted)
            return {"spearman": found.pop("spearman"), **found}
        assert self.labels is not None
        if self.problem_type == "single":
            return classification_metrics(
                targets, self._numbers(predictions), self.labels
            )
        predicted_RC = np.array(
            [[label in p["labels"] for label in self.labels] for p in predictions]
        )
        found = multi_label_metrics(targets.astype(bool), predicted_RC)
        return {"micro_f1": found.pop("micro_f1"), **found}

    def _numbers(self, predictions: Sequence[Prediction]) -> np.ndarray:
        assert self.labels is not None
        return np.array([self.labels.index(p["label"]) for p in predictions])

    def confusion(
        self, examples: Sequence[Text], predictions: Sequence[Prediction]
    ) -> np.ndarray | None:
        """Returns how often each label was taken for each: rows are the true ones."""
        if self.problem_type != "single":
            return None
        targets = self._targets(examples)
        return confusion(targets, self._numbers(predictions), self.num_scores)

    def report(
        self, examples: Sequence[Text], predictions: Sequence[Prediction]
    ) -> str:
        """Returns the table of what was taken for what."""
        matrix = self.confusion(examples, predictions)
        assert self.labels is not None
        return "" if matrix is None else confusion_table(matrix, self.labels)

    # ---- device ----

    def counts(self, batch: DeviceBatch) -> Terms:
        """Returns the rows, by their weights in the loss and as they are."""
        rows = batch["row_weights"].sum()
        weighted = (batch["row_weights"] * self._weights_of(batch)).sum()
        if self.problem_type == "regression":
            return {"classify_loss": rows}
        return {"classify_loss": weighted, "classify_accuracy": rows}

    def sums(self, params: Params, scores: jax.Array, batch: DeviceBatch) -> Terms:
        """Returns the cross-entropy, or the squared error of numbers."""
        labels, rows_B = batch["task/labels"], batch["row_weights"]
        if self.problem_type == "regression":
            error_B = (scores[:, 0] - labels) ** 2
            return {"classify_loss": (rows_B * error_B).sum()}
        if self.problem_type == "multi":
            loss_BC = optax.sigmoid_binary_cross_entropy(scores, labels)
            right_B = ((scores > 0) == (labels > 0.5)).all(-1)
            return {
                "classify_loss": (rows_B * loss_BC.mean(-1)).sum(),
                "classify_accuracy": (rows_B * right_B).sum(),
            }
        # As in PyTorch, what a target shares with the other labels is weighted by them.
        targets_BC = jax.nn.one_hot(labels, scores.shape[-1])
        targets_BC = optax.smooth_labels(targets_BC, self.label_smoothing)
        if self.class_weights is not None:
            targets_BC = targets_BC * self._weights_C
        loss_B = -(targets_BC * jax.nn.log_softmax(scores)).sum(-1)
        right_B = scores.argmax(-1) == labels
        return {
            "classify_loss": (rows_B * loss_B).sum(),
            "classify_accuracy": (rows_B * right_B).sum(),
        }

    @property
    def _weights_C(self) -> np.ndarray:  # noqa: N802 (an array, named by shape)
        assert isinstance(self.class_weights, Mapping)
        assert self.labels is not None
        return np.array([self.class_weights[x] for x in self.labels], np.float32)

    def _weights_of(self, batch: DeviceBatch) -> jax.Array:
        """Returns the weight of each row's label."""
        if self.class_weights is None:
            return jnp.ones_like(batch["row_weights"])
        return jnp.asarray(self._weights_C)[batch["task/labels"]]


def _checked_weights(given: Mapping[Any, Any]) -> dict[str, float]:
    """Returns the weights by name; refuses those that a mean cannot have."""
    weights = {}
    for label, weight in given.items():
        try:
            weights[str(label)] = float(weight)
        except (TypeError, ValueError):
            weights[str(label)] = math.nan
        if not 0.0 <= weights[str(label)] < math.inf:
            raise UserError(
                f"task.class_weights: {label!r} has {weight!r}; give each label a "
                "number of at least 0"
            )
    if not any(weights.values()):
        raise UserError(
            f"task.class_weights={dict(given)} leave nothing to learn from; give at "
            "least one label a number above 0"
        )
    return weights


def _is_label(part: object) -> bool:
    return isinstance(part, str | int | float)


def _names(example: Text) -> tuple[str, ...]:
    if not isinstance(example.labels, tuple):
        raise _unlabelled(example)
    return example.labels


def _number(example: Text) -> float:
    if not isinstance(example.labels, int | float):
        raise _unlabelled(example)
    return example.labels


def _unlabelled(example: Text) -> UserError:
    return UserError(f"{example.where} has no label; name its column in data.columns")


def _softmax(scores_RC: np.ndarray) -> np.ndarray:
    raised = np.exp(scores_RC - scores_RC.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)


def _sigmoid(scores: np.ndarray) -> np.ndarray:
    return 0.5 * (1.0 + np.tanh(0.5 * scores))  # without overflow
