"""SQuAD's scores next to the definitions of its two scripts, written out here."""

import collections
import re
import string

import numpy as np
import pytest

from encoderjax.tasks.squad import exact_match, f1, normalised, squad_metrics

WORDS = ["the", "a", "an", "cat", "cats", "Cat,", "CAT!", "3.5", "35", "don't", "dont"]
WORDS += ["U.S.", "über", "der"]


# ---- the definitions ----


def official_normalise(s):
    def remove_articles(text):
        return re.sub(r"\b(a|an|the)\b", " ", text)

    def remove_punctuation(text):
        return "".join(ch for ch in text if ch not in set(string.punctuation))

    return " ".join(remove_articles(remove_punctuation(s.lower())).split())


def official_f1(gold, prediction, version):
    gold_tokens = official_normalise(gold).split()
    tokens = official_normalise(prediction).split()
    common = collections.Counter(gold_tokens) & collections.Counter(tokens)
    num_same = sum(common.values())
    if version == 2 and (len(gold_tokens) == 0 or len(tokens) == 0):
        return int(gold_tokens == tokens)
    if num_same == 0:
        return 0
    precision, recall = num_same / len(tokens), num_same / len(gold_tokens)
    return 2 * precision * recall / (precision + recall)


def official_scores(answers, prediction, version):
    if version == 2:
        answers = [a for a in answers if official_normalise(a)] or [""]
    exact = max(
        official_normalise(a) == official_normalise(prediction) for a in answers
    )
    return float(exact), max(official_f1(a, prediction, version) for a in answers)


def official_decided(scores, na_probs, has_answer, threshold):
    return {
        id: float(not has_answer[id]) if na_probs[id] > threshold else score
        for id, score in scores.items()
    }


def official_best(predictions, scores, na_probs, has_answer):
    current = best = sum(1 for k in has_answer if not has_answer[k])
    threshold = 0.0
    for id in sorted(na_probs, key=lambda k: na_probs[k]):
        if has_answer[id]:
            current += scores[id]
        else:
            current += -1 if predictions[id] else 0
        if current > best:
            best, threshold = current, na_probs[id]
    return 100.0 * best / len(scores), threshold


# ---- tests ----


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("The  Cat", "cat"),
        ("a", ""),
        ("an\tapple\na day", "apple day"),
        ("theatre another", "theatre another"),
        ("the-cat", "thecat"),  # punctuation goes first and joins words
        ("U.S.A.", "usa"),
        ("$3,500.50", "350050"),
        ("“Der Fluß”", "“der fluß”"),  # of punctuation ASCII's alone
        ("ÉCOLE", "école"),
        ("a\u00a0b", "b"),  # any white space
        ("¿qué?", "¿qué"),
        ("北京", "北京"),
        ("", ""),
    ],
)
def test_normalised_text(text, wanted):
    assert normalised(text) == wanted == official_normalise(text)


@pytest.mark.parametrize(
    ("prediction", "answers", "exact", "overlap"),
    [
        ("the Cat!", ["cat"], 1, 1),
        ("black cat", ["the cat", "black"], 0, 2 / 3),
        ("black cat", ["the cat", "A black cat."], 1, 1),  # any of several
        ("cat cat", ["cat"], 0, 2 / 3),  # words count as often as they stand there
        ("", ["cat"], 0, 0),
        ("cat", [], 0, 0),
        ("", [], 1, 1),
        ("the", [], 1, 1),
        ("...", [""], 1, 1),
        ("dog", ["cat"], 0, 0),
    ],
)
def test_answers_by_hand(prediction, answers, exact, overlap):
    assert exact_match(prediction, answers) == exact
    assert f1(prediction, answers) == pytest.approx(overlap)


def drawn(rng, count, without, words=tuple(WORDS)):
    text = lambda: " ".join(rng.choice(words, rng.integers(1, 4)))
    ids = [f"q{n}" for n in range(count)]
    answers, predictions = {}, {}
    for id in ids:
        answers[id] = [text() for _ in range(rng.integers(1, 4))]
        predictions[id] = text() if rng.random() < 0.8 else ""
        if rng.random() < 0.3:
            predictions[id] = answers[id][0]
        if without and rng.random() < 0.5:
            answers[id] = []
    scores = {
        id: float(score) for id, score in zip(ids, rng.normal(size=count), strict=True)
    }
    return answers, predictions, scores


@pytest.mark.parametrize("version", [1, 2])
def test_scores_are_those_of_the_scripts(version):
    rng = np.random.default_rng(version)
    for _ in range(200):
        answers, predictions, na = drawn(rng, 12, without=version == 2)
        has_answer = {id: bool(found) for id, found in answers.items()}
        if all(has_answer.values()) != (version == 1) or not any(has_answer.values()):
            continue
        exact, overlap = {}, {}
        for id in answers:
            exact[id], overlap[id] = official_scores(
                answers[id], predictions[id], version
            )
        mean = lambda scores, ids: 100 * sum(scores[id] for id in ids) / len(ids)
        wanted = {"exact_match": mean(exact, answers), "f1": mean(overlap, answers)}
        if version == 2:
            for name, kind in (("has_answer", True), ("no_answer", False)):
                ids = [id for id in answers if has_answer[id] == kind]
                wanted[f"{name}_exact"] = mean(exact, ids)
                wanted[f"{name}_f1"] = mean(overlap, ids)
            for name, scores in (("exact", exact), ("f1", overlap)):
                best = official_best(predictions, scores, na, has_answer)
                wanted[f"best_{name}"], wanted[f"best_{name}_threshold"] = best
        assert squad_metrics(answers, predictions, na) == pytest.approx(wanted)
        limit = float(rng.normal())
        found = squad_metrics(answers, predictions, na, threshold=limit)
        decided = official_decided(overlap, na, has_answer, limit)
        assert found["f1"] == pytest.approx(mean(decided, answers))


def test_the_best_threshold_is_one_to_decide_by():
    rng = np.random.default_rng(0)
    for _ in range(50):
        # An answer of articles alone the script counts against a silent question.
        answers, predictions, na = drawn(rng, 12, True, WORDS[3:])
        found = squad_metrics(answers, predictions, na)
        if "best_f1" not in found:
            continue
        # No answer at all is said with a threshold of 0 as well, as in the script.
        limits = [*na.values(), min(na.values()) - 1]
        by_limit = {
            limit: squad_metrics(answers, predictions, na, threshold=limit)["f1"]
            for limit in limits
        }
        assert max(by_limit.values()) == pytest.approx(found["best_f1"])
        if found["best_f1_threshold"]:
            assert by_limit[found["best_f1_threshold"]] == pytest.approx(
                found["best_f1"]
            )


def test_a_missing_prediction_is_wrong():
    answers = {"1": ["cat"], "2": ["dog"], "3": ["rat"], "4": ["hen"]}
    assert squad_metrics(answers, {"1": "cat"}) == {"f1": 25, "exact_match": 25}
    found = squad_metrics({"1": ["cat"], "2": []}, {"1": "cat"}, {"1": 0.1})
    assert found["no_answer_f1"] == 0
    assert found["f1"] == found["best_f1"] == 50


def test_an_answer_of_articles_alone():
    # The script of 1.1 has an exact match without any overlap.
    assert squad_metrics({"1": ["The"]}, {"1": "the"}) == {"f1": 0, "exact_match": 100}
    found = squad_metrics({"1": ["The"], "2": []}, {"1": "", "2": "cat"})
    assert found["has_answer_f1"] == found["has_answer_exact"] == 100
