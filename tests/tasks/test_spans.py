"""Spans next to brute force, and answers next to the steps of BERT's run_squad."""

import json
import math
import re

import numpy as np
import pytest

from encoderjax.tasks.encoding import Encoding, most_context
from encoderjax.tasks.questions import Span
from encoderjax.tasks.spans import (
    Window,
    answer_places,
    answer_text,
    best_spans,
    nbest_answers,
)
from tests.data.trained_kinds import tokenizer_of

LAYOUTS = ("wordpiece_cased", "bbpe", "unigram", "unigram/xlnet")
QUESTION = "The old ship"
CONTEXT = (
    "Naïve café owners don't sleep:  the 中文 ship, the old\tship, sees 1,234.56 £5. "
    "The sailor sees the old harbour near the island, \n and (yes) the ship."
)


def brute_force(start, end, allowed, count, longest):
    spans = [
        (start[i] + end[j], i, j)
        for i in range(len(start))
        for j in range(i, min(i + longest, len(start)))
        if allowed[i] and allowed[j]
    ]
    return sorted(spans, key=lambda span: (-span[0], *span[1:]))[:count]


def test_best_spans_are_those_of_brute_force():
    rng = np.random.default_rng(0)
    for _ in range(300):
        size, count, longest = (
            rng.integers(1, 15),
            rng.integers(1, 30),
            rng.integers(1, 9),
        )
        start, end = rng.normal(size=(2, size)).astype(np.float32)
        if rng.random() < 0.5:  # equal scores
            start, end = start.round(), end.round()
        allowed = rng.random(size) < rng.choice([0, 0.5, 1])
        found = best_spans(start, end, allowed, count=count, longest=longest)
        doubles = start.astype(float), end.astype(float)
        assert found == brute_force(*doubles, allowed, count, longest)


def test_spans_of_nothing():
    none = np.zeros(0)
    assert best_spans(none, none, none > 0, count=3, longest=5) == []


# ---- places ----


@pytest.fixture(scope="module", params=LAYOUTS)
def tokenizer(request):
    return tokenizer_of(request.param)


def encoded(tokenizer, context=CONTEXT, length=36, stride=9, cut="windows"):
    pieces = tokenizer.encode_with_offsets(context)
    question = tokenizer.encode_with_offsets(QUESTION)
    return pieces, Encoding(tokenizer, length, cut, stride).rows(question, pieces)


def test_answers_are_found_again_where_they_stand(tokenizer):
    pieces, rows = encoded(tokenizer)
    assert len(rows) > 1
    words = [match.span() for match in re.finditer(r"[^\s,.:()]+([,.]\d+)*", CONTEXT)]
    for a in range(len(words)):
        for b in range(a, min(a + 3, len(words))):
            start, end = words[a][0], words[b][1]
            span = Span(CONTEXT[start:end], start)
            wanted = {*pieces.within(start, end)}
            held = 0
            for row in rows:
                whole = wanted <= {*row.pieces[row.places(1)].tolist()}
                places = answer_places(row, pieces, span)
                assert (places is not None) == whole
                if places:
                    held += 1
                    first, last = (int(row.pieces[place]) for place in places)
                    assert row.texts[places[0]] == row.texts[places[1]] == 1
                    assert answer_text(CONTEXT, pieces, first, last) == span.text
            assert held or len(wanted) > 20


def test_an_answer_inside_of_a_piece_is_that_piece():
    tokenizer = tokenizer_of("unigram")
    pieces, (row,) = encoded(tokenizer, length=400)
    first, last = answer_places(row, pieces, Span("234", CONTEXT.index("234")))
    assert first == last
    number = int(row.pieces[first])
    assert answer_text(CONTEXT, pieces, number, number) == "1,234.56"


def test_answers_that_have_no_place(tokenizer):
    pieces, (row,) = encoded(tokenizer, length=400)
    assert answer_places(row, pieces, Span(" ", 30)) is None
    assert answer_places(row, pieces, Span(CONTEXT, 0)) is not None
    # A context of which both ends are left has not what stands between.
    long = CONTEXT * 4
    pieces, (row,) = encoded(tokenizer, long, length=60, cut="both")
    assert answer_places(row, pieces, Span(long, 0)) is None
    assert answer_places(row, pieces, Span("Naïve", 0)) is not None


# ---- n-best ----


def windows_of(tokenizer, rng, stride=9):
    pieces, rows = encoded(tokenizer, stride=stride)
    best = most_context(rows, 1)
    draw = lambda row: rng.normal(size=len(row)).astype(np.float32)
    return pieces, [
        Window(row, draw(row), draw(row), is_best)
        for row, is_best in zip(rows, best, strict=True)
    ]


def run_squad(windows, pieces, cls_id, count, longest, version_2, threshold):
    """The steps of run_squad's write_predictions, over all spans."""
    prelim, null_score = [], 1e6
    for row, start, end, is_best in windows:
        (cls,) = np.flatnonzero(row.ids == cls_id)
        null_score = min(null_score, float(start[cls]) + float(end[cls]))
        for i in range(len(row)):
            for j in range(i, min(i + longest, len(row))):
                if row.texts[i] == row.texts[j] == 1 and is_best[i]:
                    prelim.append((float(start[i]) + float(end[j]), row, i, j))
    if version_2:
        prelim.append((null_score, None, 0, 0))
    prelim.sort(key=lambda candidate: candidate[0], reverse=True)
    seen, nbest = set(), []
    for score, row, i, j in prelim:
        if len(nbest) >= count:
            break
        text = ""
        if row is not None:
            a, b = row.pieces[i], row.pieces[j]
            text = CONTEXT[pieces.starts[a] : pieces.ends[b]]
            if text in seen or not text:
                continue
        seen.add(text)
        nbest.append((text, score))
    if version_2 and "" not in seen:
        nbest.append(("", null_score))
    total = sum(math.exp(score) for _, score in nbest)
    best = next((entry for entry in nbest if entry[0]), None)
    answer, difference = best[0], null_score - best[1]
    if version_2 and difference > threshold:
        answer = ""
    chances = [math.exp(score) / total for _, score in nbest]
    return answer, difference, nbest, chances


@pytest.mark.parametrize("version_2", [False, True])
def test_answers_are_those_of_run_squad(tokenizer, version_2):
    rng = np.random.default_rng(version_2)
    answered = set()
    for case in range(12):
        pieces, windows = windows_of(tokenizer, rng, stride=[9, 3, 14][case % 3])
        threshold = float(rng.choice([-4.0, -6.0]))
        # All spans of a window are asked for, since run_squad merges before it cuts.
        found = nbest_answers(
            windows,
            CONTEXT,
            pieces,
            count=300,
            longest=5,
            no_answer=version_2,
            threshold=threshold,
        )
        cls_id = tokenizer.vocabulary.cls_id
        answer, difference, nbest, chances = run_squad(
            windows, pieces, cls_id, 300, 5, version_2, threshold
        )
        assert found["answer"] == answer
        assert [(x["text"], x["score"]) for x in found["nbest"]] == nbest
        np.testing.assert_allclose(
            [x["probability"] for x in found["nbest"]], chances, rtol=1e-9
        )
        if version_2:
            assert found["no_answer_score"] == difference
            assert found["best_answer"] == next(text for text, _ in nbest if text)
        answered.add(bool(answer))
        for x in found["nbest"]:
            if x["text"]:
                assert CONTEXT[x["start"] : x["end"]] == x["text"]
        chosen = {"text" if k == "answer" else k: v for k, v in found.items()}
        assert {k: chosen[k] for k in found["nbest"][0]} in found["nbest"]
        assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert answered == ({True, False} if version_2 else {True})


def test_few_answers_are_the_best_of_many(tokenizer):
    pieces, windows = windows_of(tokenizer, np.random.default_rng(0))
    ask = lambda count: nbest_answers(windows, CONTEXT, pieces, count=count)["nbest"]
    many = ask(200)
    few = ask(4)
    assert [x["text"] for x in few] == [x["text"] for x in many[: len(few)]]
    assert sum(x["probability"] for x in few) == pytest.approx(1)


def test_no_answer_beyond_the_best_is_added(tokenizer):
    pieces, windows = windows_of(tokenizer, np.random.default_rng(0))
    windows = [w._replace(start_R=w.start_R - 50 * (w.row.texts < 0)) for w in windows]
    found = nbest_answers(windows, CONTEXT, pieces, count=3, no_answer=True)
    assert [bool(x["text"]) for x in found["nbest"]] == [True, True, True, False]
    assert found["answer"] == found["nbest"][0]["text"] == found["best_answer"]


def test_a_context_without_pieces_has_no_answer(tokenizer):
    pieces, rows = encoded(tokenizer, context="")
    (row,) = rows
    window = Window(row, np.ones(len(row)), np.ones(len(row)), np.zeros(len(row), bool))
    found = nbest_answers([window], "", pieces)
    assert (found["answer"], found["start"], found["nbest"]) == ("", None, [])
    found = nbest_answers([window], "", pieces, no_answer=True, threshold=1e3)
    assert found["answer"] == ""
    assert found["no_answer_score"] > 1e3
    assert [x["text"] for x in found["nbest"]] == [""]
    json.dumps(found, allow_nan=False)


def test_an_answer_does_not_reach_over_what_was_cut(tokenizer):
    long = CONTEXT * 4
    pieces, (row,) = encoded(tokenizer, long, length=60, cut="both")
    (best,) = most_context([row], 1)
    flat = np.zeros(len(row))
    found = nbest_answers([Window(row, flat, flat, best)], long, pieces, count=999)
    assert len(found["nbest"]) > 30
    assert all(len(x["text"]) < len(CONTEXT) * 2 for x in found["nbest"])
