"""The span boundary objective: by hand, by slow loops, and its head in numpy."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from encoderjax.data.pipeline import DataConfig
from encoderjax.errors import UserError
from encoderjax.models.families import preset
from encoderjax.objectives import MaskedLM
from encoderjax.objectives.objective import check_together
from encoderjax.objectives.pretrainer import Pretrainer, divide
from encoderjax.objectives.span_boundary import SpanBoundary
from tests.families import random_params
from tests.objectives.masking_cases import (
    CLS,
    MASK,
    PAD,
    SEP,
    draws,
    make_lexicon,
    mixed_batch,
)

LEXICON = make_lexicon("bytelevel")
KEYS = ("sbo/left", "sbo/right", "sbo/place", "sbo/weights")


def selected_row(ids, places, slots=24):
    """A row of which these places were selected and masked, possibly twice."""
    ids, places = np.array([ids], np.int32), sorted(places)
    positions = np.zeros((1, slots), np.int32)
    positions[0, : len(places)] = places
    weights = (np.arange(slots) < len(places)).astype(np.float32)[None]
    labels = np.take_along_axis(ids, positions, axis=1)
    corrupted = ids.copy()
    corrupted[0, places] = MASK
    return {
        "ids": corrupted,
        "mask": ids != PAD,
        "row_weights": np.ones(1, np.float32),
        "mlm/positions": positions,
        "mlm/labels": labels,
        "mlm/weights": weights,
    }


def found(ids, places, **fields):
    """Returns (selected place, left, right, number) of each live slot."""
    objective = SpanBoundary(**{"slots": 15} | fields)
    batch = selected_row(ids, places)
    out = objective.corrupt(batch, draws(1), LEXICON)
    (live,) = np.nonzero(out["sbo/weights"][0])
    columns = [batch["mlm/positions"], *(out[key] for key in KEYS[:3])]
    return [tuple(int(column[0, slot]) for column in columns) for slot in live]


#      0    1   2   3   4   5   6   7    8   9  10  11   12   13
ROW = [CLS, 11, 12, 13, 14, 15, 16, SEP, 21, 22, 23, SEP, PAD, PAD]


def test_a_span_is_seen_from_the_tokens_beside_it():
    assert found(ROW, [3, 4]) == [(3, 2, 5, 0), (4, 2, 5, 1)]
    assert found(ROW, [2, 4, 9]) == [(2, 1, 3, 0), (4, 3, 5, 0), (9, 8, 10, 0)]


def test_spans_that_touch_are_one():
    """Two spans, 2-3 and 4-5, were drawn side by side."""
    assert found(ROW, [2, 3, 4, 5]) == [(p, 1, 6, p - 2) for p in (2, 3, 4, 5)]


def test_spans_at_the_edge_of_a_text_have_no_target():
    assert found(ROW, [1]) == []  # after [CLS]
    assert found(ROW, [5, 6]) == []  # before [SEP]
    assert found(ROW, [8]) == []  # after [SEP]
    assert found(ROW, [10]) == []
    assert found(ROW, [1, 3, 6, 9]) == [(3, 2, 4, 0), (9, 8, 10, 0)]
    bare = [11, 12, 13, 14]  # nor where the row or the text just ends
    assert found(bare, [0]) == found(bare, [3]) == []
    assert found([11, 12, 13, PAD], [2]) == found([PAD, 12, 13, 14], [1]) == []


def test_inside_they_are_the_first_and_the_last_token():
    assert found(ROW, [3, 4], endpoints="internal") == [(3, 3, 4, 0), (4, 3, 4, 1)]
    assert found(ROW, [1, 8, 9, 10], endpoints="internal") == [
        (1, 1, 1, 0),
        *((p, 8, 10, p - 8) for p in (8, 9, 10)),
    ]


def test_only_the_first_tokens_of_a_long_span_are_predicted():
    row = [CLS, *range(10, 40), SEP]
    span = list(range(2, 22))
    assert found(row, span) == [(p, 1, 22, p - 2) for p in span[:15]]
    assert found(row, span, slots=3) == [(p, 1, 22, p - 2) for p in span[:3]]


def test_a_place_that_was_drawn_twice_counts_twice():
    assert found(ROW, [3, 3, 4]) == [(3, 2, 5, 0), (3, 2, 5, 0), (4, 2, 5, 1)]


def test_special_tokens_that_were_selected_end_a_span():
    assert found(ROW, [5, 6, 7, 8]) == []
    inside = found(ROW, [5, 6, 7, 8], endpoints="internal")
    assert inside == [(5, 5, 6, 0), (6, 5, 6, 1), (8, 8, 8, 0)]
    # A random token that looks like [SEP] is none, a label says so.
    batch = selected_row(ROW, [3, 4])
    batch["ids"][0, 3] = SEP
    out = SpanBoundary(slots=15).corrupt(batch, draws(1), LEXICON)
    assert out["sbo/weights"].sum() == 2


def slow(batch, row, slots, endpoints):
    """Returns {selected place: (left, right, number)}, place by place."""
    used = batch["mlm/weights"][row] > 0
    selected = set(batch["mlm/positions"][row][used].tolist())
    ids = batch["ids"][row]

    def is_text(place):
        inside = 0 <= place < len(ids) and batch["mask"][row, place]
        return inside and ids[place] not in (CLS, SEP)

    targets = {}
    for place in selected:
        first = last = place
        while first - 1 in selected:
            first -= 1
        while last + 1 in selected:
            last += 1
        if place - first >= slots:
            continue
        if endpoints == "internal":
            targets[place] = (first, last, place - first)
        elif is_text(first - 1) and is_text(last + 1):
            targets[place] = (first - 1, last + 1, place - first)
    return targets


@pytest.mark.parametrize("endpoints", ["external", "internal"])
@pytest.mark.parametrize("select", ["spans", "tokens", "with_replacement"])
def test_whole_batches_equal_the_slow_loop(select, endpoints):
    rows = mixed_batch()
    number = len(rows["ids"])
    mlm = MaskedLM(select=select, rate=0.3, max_predictions=40)
    batch = mlm.corrupt(rows, draws(number), LEXICON)
    before = {name: value.copy() for name, value in batch.items()}
    objective = SpanBoundary(endpoints=endpoints, slots=4)
    out = objective.corrupt(batch, draws(number), LEXICON)
    assert all(np.array_equal(batch[name], before[name]) for name in before)
    assert all(out[key].shape == (number, 40) for key in KEYS)
    slots = 0
    for row in range(number):
        # The slow loop reads the text before it was masked.
        expected = slow(batch | {"ids": rows["ids"]}, row, 4, endpoints)
        for slot in range(40):
            left, right, place, weight = (out[key][row, slot] for key in KEYS)
            position = batch["mlm/positions"][row, slot]
            if batch["mlm/weights"][row, slot] and position in expected:
                assert (left, right, place) == expected[position]
                assert weight == 1
                slots += 1
            else:
                assert (left, right, place, weight) == (0, 0, 0, 0)
    assert slots > 400


# ---- the loss ----

ENCODER = dataclasses.replace(
    preset("spanbert", "base"), vocab_size=200, num_layers=1, width=32, num_heads=2,
    mlp_width=48,
)  # fmt: skip


def gelu(x):
    return x * 0.5 * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0)))


def layer_norm(x, p):
    x = x - x.mean()
    return x / np.sqrt((x**2).mean() + 1e-12) * p["scale"] + p["bias"]


def test_the_loss_is_that_of_the_head_in_numpy():
    objectives = (
        MaskedLM(select="spans", rate=0.3, max_predictions=40),
        SpanBoundary(slots=15, weight=0.5),
    )
    check_together(objectives)
    rows = mixed_batch()
    batch = {name: value[:12] for name, value in rows.items()}
    for objective in objectives:
        batch = objective.corrupt(batch, draws(12), LEXICON)
    batch["segments"] = np.zeros_like(batch["ids"])
    batch["row"] = np.arange(12, dtype=np.uint32)
    pretrainer = Pretrainer.create(ENCODER, objectives, jnp.float32)
    params = random_params(ENCODER, "mlm", "sbo")
    terms, _ = jax.jit(pretrainer.sums)(params, {}, {}, batch, None)
    counts = pretrainer.counts(batch)
    means = divide(terms, counts)

    outputs = jax.jit(pretrainer.model.apply)(
        {"params": params}, batch["ids"], batch["mask"], batch["segments"]
    )
    hidden = np.asarray(outputs.hidden, np.float64)
    head = jax.tree.map(lambda x: np.asarray(x, np.float64), params["heads"]["sbo"])
    table = np.asarray(params["encoder"]["token_embed"]["embedding"], np.float64)
    assert head["place_embed"]["embedding"].shape == (15, 200)
    losses, hits = [], []
    for row, slot in zip(*np.nonzero(batch["sbo/weights"]), strict=True):
        left, right, place = (batch[key][row, slot] for key in KEYS[:3])
        x = np.concatenate(
            [
                hidden[row, left],
                hidden[row, right],
                head["place_embed"]["embedding"][place],
            ]
        )
        x = gelu(x @ head["dense"]["kernel"] + head["dense"]["bias"])
        x = layer_norm(x, head["norm"])
        x = gelu(x @ head["second_dense"]["kernel"] + head["second_dense"]["bias"])
        scores = table @ layer_norm(x, head["second_norm"]) + head["bias"]
        label = batch["mlm/labels"][row, slot]
        losses.append(np.log(np.exp(scores).sum()) - scores[label])
        hits.append(scores.argmax() == label)
    assert len(losses) == counts["sbo_loss"] > 50
    assert means["sbo_loss"] == pytest.approx(np.mean(losses), abs=1e-5)
    assert means["sbo_accuracy"] == pytest.approx(np.mean(hits), abs=1e-6)
    total = float(means["mlm_loss"]) + 0.5 * float(means["sbo_loss"])
    assert pretrainer.loss(terms, counts) == pytest.approx(total, abs=1e-5)


def test_slots_follow_the_model_and_masked_lm_is_needed():
    data = DataConfig(corpus="x", batch_size=8)
    assert SpanBoundary().resolved(data, ENCODER).slots == 15
    assert SpanBoundary(slots=4).resolved(data, ENCODER).slots == 4
    for slots in (0, 16):
        with pytest.raises(UserError, match=f"slots={slots} must be in 1..15"):
            SpanBoundary(slots=slots).resolved(data, ENCODER)
    check_together((MaskedLM(), SpanBoundary()))
    with pytest.raises(UserError, match=r"sbo needs objectives\.mlm"):
        check_together((SpanBoundary(),))
