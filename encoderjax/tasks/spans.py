"""Answers in a context: their places in rows, and the best ones of all windows.

Shapes: L or R places of a row, K lengths of an answer.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from encoderjax.data.offsets import Pieces
from encoderjax.tasks.encoding import Row
from encoderjax.tasks.questions import Span

CONTEXT = 1  # which of the two texts of a row has the answer
# Spans of a window for each answer that is kept: several can have the same text.
_SPANS = 20
# The score of no answer where nothing else can be said; JSON has no infinity.
_CERTAIN = 1e9


class Window(NamedTuple):
    """A row with the scores of its places, and where its pieces have most context."""

    row: Row
    start_R: np.ndarray
    end_R: np.ndarray
    best_R: np.ndarray  # bool, of `most_context`


class Found(NamedTuple):
    """An answer; start and end are characters of the context, None of no answer."""

    text: str
    start: int | None
    end: int | None
    score: float


def answer_places(row: Row, pieces: Pieces, span: Span) -> tuple[int, int] | None:
    """Returns the first and last place of an answer; None if not all of it is there."""
    numbers = pieces.within(span.start, span.start + len(span.text))
    places = row.places(CONTEXT)
    held = places[np.isin(row.pieces[places], numbers)]
    if not len(numbers) or len(held) < len(numbers):
        return None
    return int(held[0]), int(held[-1])


def answer_text(context: str, pieces: Pieces, first: int, last: int) -> str:
    """Returns the characters from one piece to another."""
    return context[pieces.starts[first] : pieces.ends[last]]


def best_spans(
    start_L: np.ndarray,
    end_L: np.ndarray,
    allowed_L: np.ndarray,
    *,
    count: int,
    longest: int,
) -> list[tuple[float, int, int]]:
    """Returns (start + end score, first place, last place) of the best spans.

    They are the best of all, not only of the best starts with the best ends. Of equal
    ones the earlier and shorter come first.

    Args:
      start_L: score of each place as the first one.
      end_L: score of each place as the last one.
      allowed_L: where a span may begin and end.
      count: how many are returned, at most.
      longest: a span has at most so many places.
    """
    longest = min(longest, len(start_L))
    if not longest:
        return []
    start_L, end_L = (
        np.where(allowed_L, scores_L, -np.inf).astype(np.float64)
        for scores_L in (start_L, end_L)
    )
    end_L = np.append(end_L, np.full(longest - 1, -np.inf))
    end_LK = np.lib.stride_tricks.sliding_window_view(end_L, longest)
    scores = (start_L[:, None] + end_LK).ravel()
    rank = -min(count, len(scores))
    least = np.partition(scores, rank)[rank]
    chosen = np.flatnonzero((scores >= least) & (scores > -np.inf))
    chosen = chosen[np.argsort(-scores[chosen], kind="stable")][:count]
    return [
        (float(scores[c]), int(c // longest), int(c // longest + c % longest))
        for c in chosen
    ]


def nbest_answers(
    windows: Sequence[Window],
    context: str,
    pieces: Pieces,
    *,
    count: int = 20,
    longest: int = 30,
    no_answer: bool = False,
    threshold: float = 0.0,
) -> dict[str, Any]:
    """Returns the answer to a question and the next best ones, as BERT's run_squad.

    An answer begins where its first piece has most context. Of equal texts the best is
    kept. No answer has the score of the token that stands for the row, as first and
    last place, in the window where it is lowest. Values are plain, as JSON has them:

    - answer, start, end, score, probability: the text, its characters in the context
      (None of no answer), and how good it is; probabilities are those of `nbest`.
    - nbest: at most `count` such answers, the best first, each with its `text`, and no
      answer, if there may be none.
    - no_answer_score: how much better no answer is than the best one, and best_answer,
      the text of that one; both only if there may be none.

    Args:
      windows: of one question.
      context: the text that the answers are in.
      pieces: of the context.
      count: of answers.
      longest: an answer has at most so many pieces.
      no_answer: whether there may be none, as in SQuAD 2.0.
      threshold: there is none where `no_answer_score` is higher.
    """
    found = _candidates(windows, context, pieces, count, longest)
    none = Found("", None, None, min(map(_none_score, windows)))
    if no_answer:
        found = sorted([*found, none], key=lambda answer: -answer.score)
    first_of_text: dict[str, Found] = {}
    for answer in found:
        first_of_text.setdefault(answer.text, answer)
    nbest = list(first_of_text.values())[:count]
    if no_answer and none not in nbest:
        nbest.append(none)
    chances = _softmax(np.array([answer.score for answer in nbest]))
    listed = [
        {**answer._asdict(), "probability": float(chance)}
        for answer, chance in zip(nbest, chances, strict=True)
    ]
    texts = [answer for answer in listed if answer["text"]]
    empty = [answer for answer in listed if not answer["text"]]
    if not no_answer:
        return _result(texts[0] if texts else None, listed)
    better = none.score - texts[0]["score"] if texts else _CERTAIN
    chosen = empty[0] if better > threshold or not texts else texts[0]
    return {
        **_result(chosen, listed),
        "no_answer_score": better,
        "best_answer": texts[0]["text"] if texts else "",
    }


def _result(
    answer: dict[str, Any] | None, listed: list[dict[str, Any]]
) -> dict[str, Any]:
    """Returns an answer in front of those that it was chosen from."""
    answer = answer or {**Found("", None, None, 0.0)._asdict(), "probability": 0.0}
    named = {"answer" if name == "text" else name: x for name, x in answer.items()}
    return {**named, "nbest": listed}


def _candidates(
    windows: Sequence[Window], context: str, pieces: Pieces, count: int, longest: int
) -> list[Found]:
    """Returns the best answers of each window, the best of all first."""
    found = []
    for row, start_R, end_R, best_R in windows:
        start_R = np.where(best_R, start_R, -np.inf)
        allowed_R = row.texts == CONTEXT
        spans = best_spans(
            start_R, end_R, allowed_R, count=_SPANS * count, longest=longest
        )
        for score, first, last in spans:
            a, b = int(row.pieces[first]), int(row.pieces[last])
            text = answer_text(context, pieces, a, b)
            # Nothing but a space, or the two ends of a context that was cut between.
            if text and b - a == last - first:
                start = int(pieces.starts[a])
                found.append(Found(text, start, start + len(text), score))
    return sorted(found, key=lambda answer: -answer.score)


def _none_score(window: Window) -> float:
    """Returns the score of no answer: of the special token at either end of a row."""
    place = 0 if window.row.texts[0] < 0 else -1
    return float(window.start_R[place]) + float(window.end_R[place])


def _softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(initial=-np.inf))
    return powers / powers.sum()
