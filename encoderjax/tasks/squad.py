"""Scores of answers by the definition of SQuAD's own scripts, 1.1 and 2.0."""

import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)  # of ASCII alone


def normalised(text: str) -> str:
    """Returns lower-case text without punctuation, English articles and extra space."""
    text = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """Returns 1 if the prediction is an answer; none at all are the answer ''."""
    found = normalised(prediction)
    return float(any(found == normalised(answer) for answer in answers or [""]))


def f1(prediction: str, answers: Sequence[str], *, both_empty: float = 1.0) -> float:
    """Returns the overlap of words with the answer that is most alike.

    Args:
      prediction: '' = there is no answer.
      answers: none = there is no answer.
      both_empty: what it is when both have no word. It is 0 in the script of 1.1, which
        knows of no questions without an answer, but of the answer "The".
    """
    found = normalised(prediction).split()
    return max(_overlap(found, answer, both_empty) for answer in answers or [""])


def _overlap(found: Sequence[str], answer: str, both_empty: float) -> float:
    wanted = normalised(answer).split()
    if not found and not wanted:
        return both_empty
    common = (Counter(found) & Counter(wanted)).total()
    return 2 * common / (len(found) + len(wanted))


def squad_metrics(
    answers_by_id: Mapping[str, Sequence[str]],
    predictions_by_id: Mapping[str, str],
    no_answer_scores: Mapping[str, float] | None = None,
    *,
    threshold: float | None = None,
) -> dict[str, float]:
    """Returns f1 and exact_match in percent; questions without a prediction are wrong.

    Where questions without an answer are among them, the rules are those of 2.0, and
    both kinds of questions are scored apart as well, as `has_answer_` and `no_answer_`.

    Args:
      answers_by_id: the right answers of each question; none = it has no answer.
      predictions_by_id: '' = no answer. To search for the best threshold, give the
        best answers that are not empty, and the threshold here.
      no_answer_scores: the higher, the less likely is an answer. With them there are
        `best_f1` and `best_exact`, and the `_threshold` of each: what they were if
        higher scores made no answer. A threshold of 0 also stands for none at all.
      threshold: questions with higher scores are left without an answer; None = all
        predictions as given.
    """
    with_none = not all(answers_by_id.values())
    raw = _raw_scores(answers_by_id, predictions_by_id, with_none)
    decided = raw
    if threshold is not None and no_answer_scores is not None:
        silent = {id for id, score in no_answer_scores.items() if score > threshold}
        decided = {
            measure: {
                id: float(not answers_by_id[id]) if id in silent else score
                for id, score in scores.items()
            }
            for measure, scores in raw.items()
        }
    metrics = {
        "f1": _percent(decided["f1"].values()),
        "exact_match": _percent(decided["exact"].values()),
    }
    if not with_none:
        return metrics
    for name, has_answer in (("has_answer", True), ("no_answer", False)):
        ids = [id for id in answers_by_id if bool(answers_by_id[id]) == has_answer]
        for measure in ("f1", "exact"):
            scores = decided[measure]
            metrics[f"{name}_{measure}"] = _percent([scores[id] for id in ids])
    if no_answer_scores is not None:
        for measure in ("f1", "exact"):
            best, limit = _best_threshold(
                answers_by_id, predictions_by_id, raw[measure], no_answer_scores
            )
            metrics[f"best_{measure}"] = best
            metrics[f"best_{measure}_threshold"] = limit
    return metrics


def _raw_scores(
    answers_by_id: Mapping[str, Sequence[str]],
    predictions_by_id: Mapping[str, str],
    with_none: bool,
) -> dict[str, dict[str, float]]:
    scores: dict[str, dict[str, float]] = {"f1": {}, "exact": {}}
    for id, answers in answers_by_id.items():
        if with_none:  # the script of 2.0 leaves such answers out
            answers = [answer for answer in answers if normalised(answer)]
        prediction = predictions_by_id.get(id)
        missing = prediction is None
        scores["exact"][id] = 0.0 if missing else exact_match(prediction, answers)
        scores["f1"][id] = (
            0.0 if missing else f1(prediction, answers, both_empty=float(with_none))
        )
    return scores


def _best_threshold(
    answers_by_id: Mapping[str, Sequence[str]],
    predictions_by_id: Mapping[str, str],
    scores: Mapping[str, float],
    no_answer_scores: Mapping[str, float],
) -> tuple[float, float]:
    """Returns the best mean score, in percent, and the threshold that gives it.

    It begins with no answer to any question, and answers one after the other.
    """
    ids = [id for id in answers_by_id if id in predictions_by_id]
    score = best = float(sum(not answers_by_id[id] for id in ids))
    threshold = 0.0
    for id in sorted(ids, key=lambda id: no_answer_scores[id]):
        if answers_by_id[id]:
            score += scores[id]
        elif predictions_by_id[id]:
            score -= 1
        if score > best:
            best, threshold = score, no_answer_scores[id]
    return 100 * best / max(1, len(answers_by_id)), float(threshold)


def _percent(scores: Iterable[float]) -> float:
    scores = list(scores)
    return 100 * sum(scores) / max(1, len(scores))
