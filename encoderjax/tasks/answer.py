"""Answers that stand in a context: extractive question answering.

Shapes: B items of a batch, L length, R places of a row.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from encoderjax.data.offsets import Pieces
from encoderjax.data.tokenizers import Tokenizer
from encoderjax.errors import UserError
from encoderjax.tasks.encoding import Encoding, Row, most_context
from encoderjax.tasks.questions import Question, Span, read_questions
from encoderjax.tasks.records import Form
from encoderjax.tasks.spans import CONTEXT, Window, answer_places, nbest_answers
from encoderjax.tasks.squad import squad_metrics
from encoderjax.tasks.task import (
    DeviceBatch,
    Encoded,
    Params,
    Prediction,
    Task,
    Terms,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer(Task[Question]):
    """Question answering; batch keys: task/start, task/end int32 [B].

    Where a window does not hold the answer, or there is none, both are the place of
    the first special token that stands for the row ([CLS]).

    Attributes:
      longest: an answer has at most so many tokens.
      nbest: how many answers are kept of each question.
      no_answer: whether a question may have none, as in SQuAD 2.0; None = as the
        training examples have it.
      threshold: how much better than any answer none has to be.
    """

    kind: ClassVar = "answer"
    columns: ClassVar = {
        "id": None,
        "question": "question",
        "context": "context",
        "answers": "answers",
    }
    answer_roles: ClassVar = ("answers",)
    kept: ClassVar = ("longest", "nbest", "no_answer", "threshold")

    longest: int = 30
    nbest: int = 20
    no_answer: bool | None = None
    threshold: float = 0.0

    def __post_init__(self):
        super().__post_init__()
        if self.labels is not None:
            raise UserError("task.labels does not go with task.kind='answer'")
        for name in ("longest", "nbest"):
            if getattr(self, name) < 1:
                raise UserError(f"task.{name}={getattr(self, name)} must be at least 1")
        if not math.isfinite(self.threshold):
            raise UserError(f"task.threshold={self.threshold} must be a finite number")

    @property
    def num_scores(self) -> int:
        """Where an answer starts, and where it ends."""
        return 2

    def read(
        self,
        path: str,
        columns: Mapping[str, str | None],
        form: Form | None = None,
        *,
        answered: bool = True,
    ) -> list[Question]:
        """Returns the questions of a file."""
        chosen = self.chosen_columns(columns, answered)
        return read_questions(
            path,
            question=str(chosen["question"]),
            context=str(chosen["context"]),
            answers=chosen["answers"],
            id=chosen["id"],
            form=form,
        )

    def source(self, example: Question) -> str:
        """Returns the context, which several questions have."""
        return example.context

    def resolved(self, examples: Sequence[Question]) -> "Answer":
        """Returns the task with or without questions that have no answer."""
        if self.no_answer is not None:
            return self
        missing = any(not _answers(example) for example in examples)
        return dataclasses.replace(self, no_answer=missing)

    # ---- host ----

    def encode(
        self, examples: Sequence[Question], encoding: Encoding, *, answered: bool = True
    ) -> Encoded:
        """Returns a row of each question and context, or one for each window."""
        items, numbers, extra = [], [], []
        starts, ends = [], []
        pieces_of = encoding.tokenizer.encode_with_offsets
        contexts: dict[str, Pieces] = {}  # several questions share one
        for number, example in enumerate(examples):
            context = contexts.get(example.context)
            if context is None:
                context = contexts[example.context] = pieces_of(example.context)
            rows = encoding.rows(pieces_of(example.question), context)
            items += [(row,) for row in rows]
            numbers += [number] * len(rows)
            extra.append(context)
            for row in rows if answered else ():
                none = row_place(row, encoding.tokenizer)
                found = None
                if answers := _answers(example):
                    found = answer_places(row, context, answers[0])
                start, end = found or (none, none)
                starts.append(start)
                ends.append(end)
        places = {}
        if answered:
            places = {"start": np.array(starts, int), "end": np.array(ends, int)}
        return Encoded(items, np.array(numbers, int), places=places, extra=extra)

    def predictions(
        self,
        examples: Sequence[Question],
        encoded: Encoded,
        scores: Sequence[np.ndarray],
    ) -> list[Prediction]:
        """Returns the best answer of each question, its place, and the next best."""
        found = []
        for number, items in enumerate(encoded.of_examples(len(examples))):
            example, context = examples[number], encoded.extra[number]
            rows = [encoded.items[item][0] for item in items]
            best = most_context(rows, CONTEXT)
            windows = [
                Window(row, scores[i][:, 0], scores[i][:, 1], is_best)
                for i, row, is_best in zip(items, rows, best, strict=True)
            ]
            answers = nbest_answers(
                windows,
                example.context,
                context,
                count=self.nbest,
                longest=self.longest,
                no_answer=bool(self.no_answer),
                threshold=self.threshold,
            )
            found.append({"id": example.id, **answers})
        return found

    def metrics(
        self, examples: Sequence[Question], predictions: Sequence[Prediction]
    ) -> dict[str, float]:
        """Returns F1 and exact matches, as SQuAD's own script counts them."""
        # By number: files that were put together may have an id twice.
        ids = [str(number) for number in range(len(examples))]
        texts = [[span.text for span in _answers(example)] for example in examples]
        answers = dict(zip(ids, texts, strict=True))
        found = lambda name: dict(zip(ids, (p[name] for p in predictions), strict=True))
        if not self.no_answer:
            return squad_metrics(answers, found("answer"))
        return squad_metrics(
            answers,
            found("best_answer"),
            found("no_answer_score"),
            threshold=self.threshold,
        )

    # ---- device ----

    def counts(self, batch: DeviceBatch) -> Terms:
        """Returns the rows."""
        rows = batch["row_weights"].sum()
        return {"answer_loss": rows, "answer_accuracy": rows}

    def sums(self, params: Params, scores: jax.Array, batch: DeviceBatch) -> Terms:
        """Returns the mean of the cross-entropies of start and end.

        As in Hugging Face's classes, padding is among the places.
        """
        rows_B = batch["row_weights"]
        loss_B, right_B = jnp.zeros_like(rows_B), rows_B > 0
        for side, name in enumerate(("start", "end")):
            chances_BL = jax.nn.log_softmax(scores[:, :, side])
            place_B = batch[f"task/{name}"]
            loss_B -= 0.5 * jnp.take_along_axis(chances_BL, place_B[:, None], 1)[:, 0]
            right_B &= scores[:, :, side].argmax(-1) == place_B
        return {
            "answer_loss": (rows_B * loss_B).sum(),
            "answer_accuracy": (rows_B * right_B).sum(),
        }


def _answers(example: Question) -> tuple[Span, ...]:
    if example.answers is None:
        raise UserError(
            f"{example.where} has no answers; name their column in data.columns"
        )
    return example.answers


def row_place(row: Row, tokenizer: Tokenizer) -> int:
    """Returns the place of the special token that stands for a row."""
    return int(np.flatnonzero(row.ids == tokenizer.vocabulary.cls_id)[0])
