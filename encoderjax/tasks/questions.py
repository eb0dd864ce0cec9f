"""Questions with a context and answers in it: SQuAD's form, or columns of any other."""

import dataclasses
from typing import Any, NamedTuple

from encoderjax.errors import UserError
from encoderjax.tasks.records import Form, Record, read_records


class Span(NamedTuple):
    """An answer, and its first character's place in the context."""

    text: str
    start: int


@dataclasses.dataclass(frozen=True)
class Question:
    """A question about a context.

    Attributes:
      where: file and id or line, for messages.
      answers: each is a right one; none where the context has no answer. None where
        they are not known.
    """

    where: str
    id: str
    question: str
    context: str
    answers: tuple[Span, ...] | None = None


def read_questions(
    path: str,
    *,
    question: str = "question",
    context: str = "context",
    answers: str | None = "answers",
    id: str | None = None,
    form: Form | None = None,
) -> list[Question]:
    """Returns the questions of a file; the arguments name its columns.

    Answers are a list of {text, answer_start}, one of these, or a mapping of both to
    lists; in a table, as JSON or Python writes them.

    Args:
      path: of anything that `read_records` takes; SQuAD's JSON has the usual names.
      question: its column.
      context: its column.
      answers: None where they are not known.
      id: None = SQuAD's own, or the line or number of the question.
      form: of the file; None = by its name.
    """
    columns = {"id": id, "question": question, "context": context, "answers": answers}
    return [
        Question(
            record.where,
            record.text("id") if id is not None else str(record.place),
            record.text("question"),
            record.text("context"),
            _spans(record) if answers is not None else None,
        )
        for record in read_records(path, columns, form)
    ]


def _spans(record: Record) -> tuple[Span, ...]:
    found = record.structure("answers")
    if isinstance(found, str):
        raise UserError(
            f"{record.where}: answers={found[:60]!r} must be a list of "
            '{"text": ..., "answer_start": ...}; an empty one, [], says that there is '
            "no answer"
        )
    try:
        if isinstance(found, dict) and isinstance(found.get("text"), str):
            found = [found]
        if isinstance(found, dict):
            pairs = list(zip(found["text"], found["answer_start"], strict=True))
        else:
            pairs = [(answer["text"], answer["answer_start"]) for answer in found]
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{record.where}: answers={str(found)[:60]!r} must be a list of "
            '{"text": ..., "answer_start": ...}'
        ) from error
    return tuple(_checked(record, text, start) for text, start in pairs)


def _checked(record: Record, text: Any, start: Any) -> Span:
    """Refuses an answer that does not stand where it is said to."""
    context = record["context"]
    if not isinstance(text, str) or not text.strip():
        raise UserError(
            f"{record.where}: the answer {text!r} is empty; a question without an "
            "answer has an empty list of answers"
        )
    if type(start) is not int or start < 0:
        raise UserError(
            f"{record.where}: answer_start={start!r} must be a number of characters"
        )
    there = context[start : start + len(text)]
    if there != text:
        nearest = _nearest(context, text, start)
        remedy = (
            "the context does not have it" if nearest < 0 else f"it is at {nearest}"
        )
        raise UserError(
            f"{record.where}: the answer {text[:60]!r} is not at answer_start={start}, "
            f"where {there[:60]!r} stands; {remedy}: mend the file, or leave the "
            "question out"
        )
    return Span(text, start)


def _nearest(context: str, text: str, start: int) -> int:
    """Returns where the text stands next to `start`, or -1."""
    before, behind = (
        context.rfind(text, 0, start + len(text)),
        context.find(text, start),
    )
    found = [place for place in (before, behind) if place >= 0]
    return min(found, key=lambda place: abs(place - start), default=-1)
