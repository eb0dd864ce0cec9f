"""One mask for a span: by slow loops, back to the text, and its head in numpy."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from encoderjax.data.pipeline import DataConfig
from encoderjax.data.random import Draws
from encoderjax.errors import UserError
from encoderjax.models.families import preset
from encoderjax.objectives import Distillation, MaskedLM, ReplacedTokens
from encoderjax.objectives.deletion import Deletion
from encoderjax.objectives.insertion import Insertion
from encoderjax.objectives.objective import check_together
from encoderjax.objectives.pretrainer import Pretrainer, divide
from encoderjax.objectives.reordering import Reordering
from encoderjax.objectives.replacement import KEPT, MASKED, REPLACED, Replacement
from encoderjax.objectives.single_masks import restored
from encoderjax.objectives.span_boundary import SpanBoundary
from encoderjax.training.mesh import partition_spec
from tests.families import random_params
from tests.objectives.masking_cases import (
    CLS,
    MASK,
    PAD,
    SEP,
    draws,
    make_batch,
    make_lexicon,
    mixed_batch,
    within,
)

LEXICON = make_lexicon("bytelevel")
SPAN = Replacement(unit="span", distribution="unigram")
PLACES = ("ids", "mask", "segments")


def with_segments(batch):
    first = np.argmax(batch["ids"] == SEP, axis=1)[:, None]
    columns = np.arange(batch["ids"].shape[1])
    return batch | {"segments": ((columns > first) & batch["mask"]).astype(np.int32)}


def corrupted(batch, longest=15, span_masks="single", **fields):
    single = span_masks == "single"
    objective = MaskedLM(
        **{"select": "spans", "max_predictions": 40, "replace": SPAN} | fields,
        span_masks=span_masks,
        tokens_per_mask=longest if single else None,
    )
    return objective.corrupt(batch, draws(len(batch["ids"])), LEXICON)


def slow(each, row, longest):
    """Returns the places of a row and (position, offset) of its slots, one by one."""
    used = np.flatnonzero(each["mlm/weights"][row])
    selected = {int(each["mlm/positions"][row, slot]): slot for slot in used}
    places, found, run = [], {}, 0
    for column in range(each["ids"].shape[1]):
        run = run + 1 if column in selected else 0
        offset = (run - 1) % longest if run else 0
        if run and each["mlm/kinds"][row, selected[column]] == KEPT:
            offset = 0
        if not offset:
            places.append([each[name][row, column] for name in PLACES])
        if run:
            found[selected[column]] = (len(places) - 1, offset)
    padding = [[PAD, False, 0]] * (each["ids"].shape[1] - len(places))
    return places + padding, found


@pytest.mark.parametrize("longest", [2, 3, 15])
def test_rows_are_those_of_the_slow_loop(longest):
    rows = with_segments(mixed_batch())
    before = {name: value.copy() for name, value in rows.items()}
    each = corrupted(rows, span_masks="each", rate=0.3)
    out = corrupted(rows, longest, rate=0.3)
    assert all(np.array_equal(rows[name], before[name]) for name in before)
    for name in ("mlm/labels", "mlm/weights", "mlm/kinds", "mlm/drawn"):
        assert np.array_equal(out[name], each[name])
    for name in PLACES:
        assert (out[name].shape, out[name].dtype) == (
            rows[name].shape,
            rows[name].dtype,
        )
    longer = 0
    for row in range(len(rows["ids"])):
        places, found = slow(each, row, longest)
        for place, name in enumerate(PLACES):
            assert out[name][row].tolist() == [values[place] for values in places]
        for slot in range(40):
            pair = (out["mlm/positions"][row, slot], out["mlm/offsets"][row, slot])
            assert pair == found.get(slot, (0, 0))
            longer += pair[1] > 0
    assert longer > 200


@pytest.mark.parametrize("fields", [{}, {"longest": 2}, {"rate": 0.8}], ids=str)
def test_rows_with_labels_and_offsets_give_the_text_back(fields):
    rows = with_segments(mixed_batch())
    each = corrupted(rows, **fields | {"span_masks": "each", "longest": 0})
    out = corrupted(rows, **fields)
    used = out["mlm/weights"] > 0
    places = (out["mlm/positions"], out["mlm/offsets"])
    ids, mask, selected = restored(out, places, out["mlm/labels"], used)
    assert np.array_equal(mask, rows["mask"])
    assert np.array_equal(np.where(mask, ids, PAD), rows["ids"])
    expected = np.zeros_like(mask)
    row, slot = np.nonzero(used)
    expected[row, each["mlm/positions"][row, slot]] = True
    assert np.array_equal(selected, expected)
    assert out["mask"].sum() < mask.sum()


def test_what_became_of_spans():
    rows = make_batch([128] * 1500)
    out = corrupted(rows)
    each = corrupted(rows, span_masks="each")
    used = each["mlm/weights"] > 0
    first = used.copy()  # slots at which a span begins
    first[:, 1:] &= np.diff(each["mlm/positions"], axis=1) != 1
    kinds = out["mlm/kinds"]
    for kind, share in ((MASKED, 0.8), (REPLACED, 0.1), (KEPT, 0.1)):
        assert within(np.mean(kinds[first] == kind), share, first.sum())
    kept = used & (kinds == KEPT)
    assert (out["mlm/offsets"][kept] == 0).all()
    # A span that was masked or replaced is one place, however long.
    gone = used & ~first & ~kept
    at_one_place = (out["mlm/offsets"] > 0) & gone
    assert at_one_place.sum() == out["mask"].size - out["mask"].sum()
    longer = out["mlm/offsets"] == 14  # a run of more than 15 has several places
    assert 0.95 < at_one_place.sum() / gone.sum() < 1 or not longer.any()
    ids = np.take_along_axis(out["ids"], out["mlm/positions"], axis=1)
    assert (ids[used & (kinds == MASKED)] == MASK).all()
    assert np.array_equal(ids[kept], out["mlm/labels"][kept])
    assert (LEXICON.unigrams_V[ids[used & (kinds == REPLACED)]] > 0).all()
    # Spans of 3.8 words of two tokens: of 15 % about an eighth is left as places.
    assert 0.08 < 1 - out["mask"].mean() < 0.12


def test_a_row_does_not_depend_on_the_others():
    rows = with_segments(mixed_batch())
    whole = corrupted(rows)
    some = np.array([3, 61, 17])
    objective = MaskedLM(
        select="spans",
        span_masks="single",
        tokens_per_mask=15,
        max_predictions=40,
        replace=SPAN,
    )
    part = {name: value[some] for name, value in rows.items()}
    alone = objective.corrupt(part, Draws(0, np.zeros(3, int), some), LEXICON)
    assert whole.keys() == alone.keys()
    for name, value in alone.items():
        assert np.array_equal(value, whole[name][some]), name


def test_rows_that_count_for_nothing_are_shortened_too():
    rows = make_batch([64] * 4)
    filled = rows | {"row_weights": np.array([1, 0, 1, 0], np.float32)}
    out = corrupted(filled)
    assert np.array_equal(out["ids"], corrupted(rows)["ids"])
    assert not out["mlm/weights"][[1, 3]].any()


def test_packed_rows_keep_their_documents():
    """Places are counted within a document; none reaches into the next."""
    rows = make_batch([96] * 40, width=96)
    ids, columns = rows["ids"], np.arange(96)
    ids[:, [0, 40]], ids[:, [39, 95]] = CLS, SEP
    rows["documents"] = np.broadcast_to(1 + (columns >= 40), ids.shape).astype(np.int32)
    rows["positions"] = np.where(columns < 40, columns, columns - 40).astype(np.int32)
    rows["positions"] = np.broadcast_to(rows["positions"], ids.shape)
    out = corrupted(rows, rate=0.3)
    for row in range(40):
        mask, documents = out["mask"][row], out["documents"][row]
        assert (documents[~mask] == 0).all()
        assert (out["positions"][row][~mask] == 0).all()
        for number in (1, 2):
            (places,) = np.nonzero(documents == number)
            assert (out["ids"][row, places[[0, -1]]] == [CLS, SEP]).all()
            expected = list(range(len(places)))
            assert out["positions"][row, places].tolist() == expected
    assert out["positions"].dtype == np.int32


def test_padding_stays_before_the_row_where_it_belongs_there():
    """As in XLNet's rows, which end with [CLS]."""
    rows = with_segments(mixed_batch())
    column, missing = np.arange(128), (~rows["mask"]).sum(axis=1)[:, None]
    for name in PLACES:
        rows[name] = np.take_along_axis(rows[name], (column - missing) % 128, axis=1)
    rows["segments"] = np.where(rows["mask"], rows["segments"], 3).astype(np.int32)
    lexicon = dataclasses.replace(LEXICON, pads_left=True, pad_segment=3)
    objective = MaskedLM(
        select="spans",
        span_masks="single",
        tokens_per_mask=15,
        max_predictions=40,
        rate=0.3,
        replace=SPAN,
    )
    out = objective.corrupt(rows, draws(len(missing)), lexicon)
    assert out["mask"][:, -1].all()
    assert np.array_equal(out["ids"][:, -1], rows["ids"][:, -1])
    assert not np.diff(out["mask"].astype(int), axis=1).clip(max=0).any()
    assert (out["segments"][~out["mask"]] == 3).all()
    assert out["mask"].sum() < 0.9 * rows["mask"].sum()
    places = (out["mlm/positions"], out["mlm/offsets"])
    used = out["mlm/weights"] > 0
    ids, mask, _ = restored(out, places, out["mlm/labels"], used)
    assert np.array_equal(mask, rows["mask"])
    assert np.array_equal(np.where(mask, ids, PAD), rows["ids"])


# ---- beside the boundary objective ----


def test_the_neighbours_of_a_place_are_those_of_its_span():
    rows = mixed_batch()
    boundary = SpanBoundary(slots=4)
    found = []
    for span_masks in ("each", "single"):
        batch = corrupted(rows, 3, span_masks, rate=0.3)
        number = draws(len(rows["ids"]))
        found.append(batch | boundary.corrupt(batch, number, LEXICON))
    each, single = found
    for name in ("sbo/place", "sbo/weights"):
        assert np.array_equal(each[name], single[name])
    live = each["sbo/weights"] > 0
    assert live.sum() > 400
    for side in ("sbo/left", "sbo/right"):
        seen = [np.take_along_axis(x["ids"], x[side], axis=1)[live] for x in found]
        assert np.array_equal(*seen)
    width = (single["sbo/right"] - single["sbo/left"])[live]
    assert (width < (each["sbo/right"] - each["sbo/left"])[live]).mean() > 0.5
    assert single["sbo/place"].max() == 3  # also where one place holds three tokens


def test_by_hand_beside_the_boundary_objective():
    """[CLS] a b c d e [SEP] with b c d under one mask: a and e stand beside it."""
    batch = {
        "ids": np.array([[CLS, 11, MASK, 15, SEP, PAD, PAD]], np.int32),
        "mask": np.array([[1, 1, 1, 1, 1, 0, 0]], bool),
        "mlm/positions": np.array([[2, 2, 2, 0]], np.int32),
        "mlm/offsets": np.array([[0, 1, 2, 0]], np.int32),
        "mlm/labels": np.array([[12, 13, 14, 0]], np.int32),
        "mlm/weights": np.array([[1, 1, 1, 0]], np.float32),
    }
    out = SpanBoundary(slots=15).corrupt(batch, draws(1), LEXICON)
    assert out["sbo/left"].tolist() == [[1, 1, 1, 0]]
    assert out["sbo/right"].tolist() == [[3, 3, 3, 0]]
    assert out["sbo/place"].tolist() == [[0, 1, 2, 0]]
    assert out["sbo/weights"].tolist() == [[1, 1, 1, 0]]


# ---- the loss ----

ENCODER = dataclasses.replace(
    preset("spanbert", "base"), vocab_size=200, num_layers=1, width=32, num_heads=2,
    mlp_width=48, mask_slots=6,
)  # fmt: skip


def single_batch(rows=12):
    batch = {name: value[:rows] for name, value in mixed_batch().items()}
    batch = corrupted(with_segments(batch), 6, rate=0.3)
    return batch | {"row": np.arange(rows, dtype=np.uint32)}


def gelu(x):
    return x * 0.5 * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0)))


def layer_norm(x, p):
    x = x - x.mean()
    return x / np.sqrt((x**2).mean() + 1e-12) * p["scale"] + p["bias"]


def test_the_loss_is_that_of_the_head_in_numpy():
    batch = single_batch()
    objective = MaskedLM(
        select="spans", span_masks="single", replace=SPAN, max_predictions=40
    )
    pretrainer = Pretrainer.create(ENCODER, (objective,), jnp.float32)
    params = random_params(ENCODER, "mlm")
    terms, _ = jax.jit(pretrainer.sums)(params, {}, {}, batch, None)
    counts = pretrainer.counts(batch)
    means = divide(terms, counts)

    outputs = jax.jit(pretrainer.model.apply)(
        {"params": params}, batch["ids"], batch["mask"], batch["segments"]
    )
    hidden = np.asarray(outputs.hidden, np.float64)
    head = jax.tree.map(lambda x: np.asarray(x, np.float64), params["heads"]["mlm"])
    table = np.asarray(params["encoder"]["token_embed"]["embedding"], np.float64)
    vectors = np.concatenate([np.zeros((1, 32)), head["offset_embed"]["embedding"]])
    assert vectors.shape == (6, 32)
    losses, hits = [], []
    for row, slot in zip(*np.nonzero(batch["mlm/weights"]), strict=True):
        place, offset, label = (
            batch[f"mlm/{key}"][row, slot] for key in ("positions", "offsets", "labels")
        )
        x = hidden[row, place] + vectors[offset]
        x = gelu(x @ head["dense"]["kernel"] + head["dense"]["bias"])
        scores = table @ layer_norm(x, head["norm"]) + head["bias"]
        losses.append(np.log(np.exp(scores).sum()) - scores[label])
        hits.append(scores.argmax() == label)
    assert len(losses) == counts["mlm_loss"] > 200
    assert (batch["mlm/offsets"] > 0).sum() > 100
    assert means["mlm_loss"] == pytest.approx(np.mean(losses), abs=1e-5)
    assert means["mlm_accuracy"] == pytest.approx(np.mean(hits), abs=1e-6)


def test_tokens_of_one_place_are_told_apart_and_the_first_is_as_ever():
    plain = dataclasses.replace(ENCODER, mask_slots=1)
    params = random_params(ENCODER, "mlm")
    heads = dict(params["heads"]["mlm"])
    del heads["offset_embed"]
    without = params | {"heads": {"mlm": heads}}
    assert jax.tree.structure(without) == jax.tree.structure(
        random_params(plain, "mlm")
    )
    batch = single_batch(2)
    scores = []
    for config, given in ((ENCODER, params), (plain, without)):
        model = Pretrainer.create(config, (MaskedLM(),), jnp.float32).model
        out = model.apply({"params": given}, batch["ids"], batch["mask"])
        scores.append(out.logits)
    assert np.array_equal(*scores)  # of every place, as transformers has it
    path = "params/heads/mlm/offset_embed/embedding"
    assert tuple(partition_spec(path, (5, 32))) == (None, None)


# ---- what is refused ----

SINGLE = MaskedLM(select="spans", span_masks="single", replace=SPAN)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"select": "words"}, "span_masks='single' has no meaning with select='words'"),
        ({"replace": Replacement()}, "replace.unit='token' must be 'span'"),
        ({"span_masks": "each", "tokens_per_mask": 3}, "tokens_per_mask=3 has no mean"),
    ],
)
def test_settings_that_have_no_meaning_are_refused(fields, message):
    with pytest.raises(UserError, match=message):
        dataclasses.replace(SINGLE, **fields)


def test_the_model_says_how_many_tokens_a_mask_may_stand_for():
    data = DataConfig(corpus="x", batch_size=8)
    assert SINGLE.resolved(data, ENCODER).tokens_per_mask == 6
    fewer = dataclasses.replace(SINGLE, tokens_per_mask=4)
    assert fewer.resolved(data, ENCODER).tokens_per_mask == 4
    assert MaskedLM().resolved(data, ENCODER).tokens_per_mask is None
    for number in (0, 1, 7):
        with pytest.raises(
            UserError, match=rf"tokens_per_mask={number} must be in 2\.\.6"
        ):
            dataclasses.replace(SINGLE, tokens_per_mask=number).resolved(data, ENCODER)
    translations = dataclasses.replace(data, form="parallel")
    with pytest.raises(UserError, match=r"does not go with data\.form='parallel'"):
        SINGLE.resolved(translations, ENCODER)
    with pytest.raises(UserError, match=r"model\.mask_slots=1 must be at least 2"):
        SINGLE.resolved(data, dataclasses.replace(ENCODER, mask_slots=1))


def test_objectives_that_need_a_token_a_place_are_refused():
    check_together((SINGLE, SpanBoundary()))
    with pytest.raises(
        UserError, match=r"endpoints='internal' .* endpoints='external'"
    ):
        check_together((SINGLE, SpanBoundary(endpoints="internal")))
    with pytest.raises(UserError, match=r"mlm and objectives\.rtd do not go together"):
        check_together((SINGLE, ReplacedTokens()))
    with pytest.raises(UserError, match=r"mlm and objectives\.distillation do not"):
        check_together((SINGLE, Distillation(teacher="x")))
    noises = (Deletion(), Insertion(), Reordering())
    for noise in noises:
        with pytest.raises(UserError, match=rf"objectives\.{noise.name} do not go"):
            check_together((noise, SINGLE))
    each = dataclasses.replace(SINGLE, span_masks="each")
    check_together((each, SpanBoundary(endpoints="internal")))
    check_together((each, Distillation(teacher="x")))
    check_together((*noises, each))
