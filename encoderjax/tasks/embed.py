"""Vectors of texts that can be compared: what makes a sentence encoder of an encoder.

Shapes: B examples of a batch, G texts of an example, K width of a vector, R pairs.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import jax
import numpy as np

from encoderjax.command import did_you_mean
from encoderjax.data.offsets import Pieces
from encoderjax.errors import UserError
from encoderjax.fields import Override, as_typed, build
from encoderjax.interop.sentence_loading import SENTENCE, SentenceDescription
from encoderjax.interop.task_description import Cut
from encoderjax.interop.task_start import TaskStart
from encoderjax.models.config import EncoderConfig
from encoderjax.models.pooling import Normalise, Pooling
from encoderjax.models.sentence import (
    Layers,
    SentenceHead,
    SentenceModel,
    init_sentence_params,
    sentence_encoder,
)
from encoderjax.tasks.embedding_losses import (
    ACCURACY,
    LOSS,
    LOSSES,
    CosineLoss,
    EmbeddingLoss,
)
from encoderjax.tasks.encoding import Encoding, Row
from encoderjax.tasks.records import Form, Record, read_records
from encoderjax.tasks.sts import SIMILARITIES, correlations, score_of, similarities
from encoderjax.tasks.task import (
    DeviceBatch,
    Encoded,
    Model,
    Params,
    Prediction,
    Task,
    Terms,
    label_of,
    number_of,
    sorted_labels,
)


@dataclasses.dataclass(frozen=True)
class Texts:
    """Texts that belong together, and what is known of them.

    Attributes:
      where: file and line, for messages.
      texts: in the order of the loss's roles.
      label: the class of a pair.
      score: how alike a pair is.
    """

    where: str
    texts: tuple[str, ...]
    label: str | None = None
    score: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoredPairs(EmbeddingLoss):
    """Pairs with people's scores, to be measured by: there is nothing to learn."""

    name: ClassVar[str] = "scored"
    roles: ClassVar[tuple[str, ...]] = ("text", "pair")
    answers: ClassVar[tuple[str, ...]] = ("score",)

    def counts(self, batch: DeviceBatch) -> Terms:
        """Counts nothing."""
        return {}

    def sums(self, params: Any, vectors_BGK: jax.Array, batch: DeviceBatch) -> Terms:
        """Adds up nothing."""
        return {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Embed(Task[Texts]):
    """Trains the vectors of texts; batch keys are those of the loss.

    Held-out examples with a score are measured by Spearman's correlation of the cosine
    with it, whatever the loss; others by the loss itself.

    Attributes:
      loss: what is asked of vectors, with its own fields.
      pooling: of the states of the tokens; see `SentenceHead`.
      normalise: of the vectors.
      layers: whose states are pooled.
      texts: how many an example may have; None = as many as the training examples.
    """

    kind: ClassVar = "embed"
    columns: ClassVar = {
        "text": "text",
        **dict.fromkeys(("pair", "positive", "negative", "label", "score")),
    }
    answer_roles: ClassVar = ("label", "score")
    described_as: ClassVar = SENTENCE
    used_by: ClassVar = "embed --model={model} --input=FILE --out=vectors.npy"

    loss: EmbeddingLoss = dataclasses.field(default_factory=CosineLoss)
    pooling: Pooling = "mean"
    normalise: Normalise = "none"
    layers: Layers = "last"
    texts: int | None = None

    def __post_init__(self):
        if self.head:
            raise UserError(
                "task.head does not go with task.kind='embed'; use task.pooling, "
                "task.normalise and task.layers"
            )
        if self.labels is not None and "label" not in self.loss.answers:
            raise UserError(
                f"task.labels does not go with task.loss.name={self.loss.name!r}"
            )

    @classmethod
    def from_fields(cls, values: Mapping[str, Any]) -> Self:
        """Returns the task; its loss is a name, or a group with `name`."""
        given = dict(values)
        if "loss" in given:
            given["loss"] = _loss(given["loss"])
        return super().from_fields(given)

    def to_fields(self) -> dict[str, Any]:
        """Returns plain values, the loss with its name."""
        return super().to_fields() | {"loss": self._loss_fields()}

    def _loss_fields(self) -> dict[str, Any]:
        return {"name": self.loss.name, **dataclasses.asdict(self.loss)}

    @property
    def group(self) -> int:
        """The texts of an example."""
        if self.loss.twice:
            return 2
        return len(self.loss.roles) if self.texts is None else self.texts

    @property
    def compares_examples(self) -> bool:
        """Whether an example's negatives are the others of its batch."""
        return self.loss.in_batch

    # ---- examples ----

    def read(
        self,
        path: str,
        columns: Mapping[str, str | None],
        form: Form | None = None,
        *,
        answered: bool = True,
    ) -> list[Texts]:
        """Returns the examples of a file; a column for scores makes it pairs."""
        loss = self._loss_of(columns)
        chosen = self.chosen_columns(columns, answered)
        return [_example(r, loss) for r in read_records(path, chosen, form)]

    def chosen_columns(
        self, columns: Mapping[str, str | None], answered: bool = True
    ) -> dict[str, str | None]:
        """Returns the column of each role of the loss, or of pairs with scores."""
        loss = self._loss_of(columns)
        roles = (*loss.roles, *(loss.answers if answered else ()))
        for role in columns:
            if role not in roles:
                raise UserError(
                    f"data.columns.{role} is not a role of task.loss.name="
                    f"{loss.name!r}{did_you_mean(role, roles)} (roles: "
                    f"{', '.join(roles)})"
                )
        own = {role: None if role in loss.optional else role for role in roles}
        return {**own, **columns}

    def _loss_of(self, columns: Mapping[str, str | None]) -> EmbeddingLoss:
        if columns.get("score") is None or "score" in self.loss.answers:
            return self.loss
        return ScoredPairs()

    def source(self, example: Texts) -> str:
        """Returns the first text, which may stand beside several others or twice."""
        return example.texts[0]

    def resolved(self, examples: Sequence[Texts]) -> "Embed":
        """Returns the task with the labels and the number of texts that there are."""
        loss = self.loss
        if examples[0].score is not None and "score" not in loss.answers:
            raise UserError(
                f"data.columns.score does not go with task.loss.name={loss.name!r}; "
                "name it in data.validation_columns, for data.validation"
            )
        most = max(len(example.texts) for example in examples)
        found = {"texts": self.texts or most}
        if "label" not in loss.answers:
            return dataclasses.replace(self, **found)
        labels = self.labels or sorted_labels({x.label for x in examples if x.label})
        if len(labels) < 2:
            raise UserError(
                f"the training examples have one label, {', '.join(labels)!r}: there "
                "is nothing to tell apart; give examples of others, too"
            )
        loss = dataclasses.replace(loss, num_labels=len(labels))
        told = getattr(self.loss, "num_labels", None)
        if told not in (None, len(labels)):
            raise UserError(
                f"task.loss.num_labels={told}: there are {len(labels)} labels, "
                f"{', '.join(labels[:8])}; leave it out, or name them in task.labels"
            )
        return dataclasses.replace(self, loss=loss, labels=labels, **found)

    def judging(self, examples: Sequence[Texts]) -> "Embed":
        """Returns the task as pairs with scores are measured by, or itself."""
        if examples[0].score is None or "score" in self.loss.answers:
            return self
        return dataclasses.replace(self, loss=ScoredPairs(), labels=None, texts=2)

    # ---- model ----

    def model(self, family: str, encoder: EncoderConfig) -> SentenceModel:
        """Returns the encoder and how vectors are made of its states."""
        head = SentenceHead(
            pooling=self.pooling, normalise=self.normalise, layers=self.layers
        )
        head.check(encoder)
        return SentenceModel(sentence_encoder(encoder), head)

    def init(self, model: Model, key: jax.Array) -> dict:
        """Returns new parameters; those of the loss are the group `task`."""
        params = init_sentence_params(model, key)
        width = model.head.pooled_width(model.config)
        own = self.loss.init(jax.random.fold_in(key, 1), width)
        return params | ({"task": own} if own else {})

    def init_from(
        self, start: TaskStart, model: Model, seed: int
    ) -> tuple[dict, list[str]]:
        """Returns the folder's encoder; what the loss needs beside it is new."""
        return start.encoder_for(lambda key: self.init(model, key), seed)

    def description(
        self, model: Model, *, length: int, cut: Cut, stride: int
    ) -> SentenceDescription:
        """Returns how texts become vectors."""
        settings: dict[str, Any] = {"loss": self._loss_fields()}
        if self.labels is not None:
            settings["labels"] = list(self.labels)
        return SentenceDescription(
            head=model.head, length=length, cut=cut, stride=stride, settings=settings
        )

    # ---- host ----

    def encode(
        self, examples: Sequence[Texts], encoding: Encoding, *, answered: bool = True
    ) -> Encoded:
        """Returns an item of each example: a row of each of its texts."""
        if encoding.cut == "windows":
            raise UserError(
                "data.cut='windows' does not go with task.kind='embed', which learns "
                "from one row of a text; use 'head', 'tail' or 'both', and embed "
                "--cut=windows afterwards"
            )
        rows = iter(_rows([text for x in examples for text in x.texts], encoding))
        items = []
        for example in examples:
            count = len(example.texts)
            if count > self.group:
                raise UserError(
                    f"{example.where}: {count} texts, the training examples have at "
                    f"most {self.group}; set task.texts={count}"
                )
            own = tuple(itertools.islice(rows, count))
            items.append(own * 2 if self.loss.twice else own)
        values = self._targets(examples) if answered else {}
        return Encoded(items, np.arange(len(items)), values)

    def _targets(self, examples: Sequence[Texts]) -> dict[str, np.ndarray]:
        """Returns what the loss reads of each example, [R]."""
        values = {}
        if "label" in self.loss.answers:
            assert self.labels is not None
            numbers = [number_of(x.label or "", self.labels, x.where) for x in examples]
            values["label"] = np.array(numbers, np.int32)
        if "score" in self.loss.answers:
            for example in examples:
                assert example.score is not None
                self.loss.check_score(example.score, example.where)
            values["score"] = np.array([x.score for x in examples], np.float32)
        return values

    def predictions(
        self,
        examples: Sequence[Texts],
        encoded: Encoded,
        scores: Sequence[np.ndarray],
    ) -> list[Prediction]:
        """Returns how alike the first text and the others are."""
        if self.loss.twice:  # without dropout both are the same
            return [{} for _ in examples]
        first, second = (np.stack([x[i] for x in scores]) for i in (0, 1))
        found = {how: similarities(first, second, how) for how in SIMILARITIES}
        predictions = [
            {how: float(values[i]) for how, values in found.items()}
            for i in range(len(examples))
        ]
        for prediction, vectors_GK in zip(predictions, scores, strict=True):
            for role, vector in zip(self.loss.roles[2:], vectors_GK[2:], strict=False):
                (cosine,) = similarities(vectors_GK[:1], vector[None], "cosine")
                prediction[f"{role}_cosine"] = float(cosine)
        return predictions

    def metrics(
        self, examples: Sequence[Texts], predictions: Sequence[Prediction]
    ) -> dict[str, float]:
        """Returns correlations with the scores, where there are some."""
        if examples[0].score is None:
            return {}
        scores_R = np.array([example.score for example in examples])
        found = {how: np.array([p[how] for p in predictions]) for how in SIMILARITIES}
        return correlations(found, scores_R)

    def mean_terms(self, means: Mapping[str, float]) -> dict[str, float]:
        """Returns loss and accuracy, as far as the loss has them."""
        names = {LOSS: "loss", ACCURACY: "accuracy"}
        return {names[term]: means[term] for term in names if term in means}

    # ---- device ----

    def counts(self, batch: DeviceBatch) -> Terms:
        """Returns what the loss is divided by."""
        return self.loss.counts(batch)

    def sums(self, params: Params, scores: jax.Array, batch: DeviceBatch) -> Terms:
        """Returns the sums of the loss, of vectors [B, G, K]."""
        return self.loss.sums(params, scores, batch)


def _loss(given: Any) -> EmbeddingLoss:
    """Returns the loss that a config names."""
    if isinstance(given, EmbeddingLoss):
        return given
    if isinstance(given, Override):
        given = as_typed(given)
    fields = dict(given) if isinstance(given, Mapping) else {"name": given}
    name = str(fields.pop("name", None))
    if name not in LOSSES:
        raise UserError(
            f"task.loss.name={name!r} is not known{did_you_mean(name, LOSSES)} "
            f"(losses: {', '.join(LOSSES)})"
        )
    return build(LOSSES[name], fields, "task.loss.")


def _example(record: Record, loss: EmbeddingLoss) -> Texts:
    """Returns an example; an empty text that it need not have is none."""
    texts = [
        record.text(role)
        for role in loss.roles
        if role in record and (record.text(role) or role not in loss.optional)
    ]
    label = label_of(record) if "label" in record else None
    score = score_of(record) if "score" in record else None
    return Texts(record.where, tuple(texts), label, score)


def _rows(texts: Sequence[str], encoding: Encoding) -> list[Row]:
    """Returns the one row of each text."""
    rows = []
    for ids in encoding.tokenizer.encode(texts):
        nowhere = np.zeros_like(ids)
        rows += encoding.rows(Pieces(ids, nowhere, nowhere, nowhere))
    return rows
