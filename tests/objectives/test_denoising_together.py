"""Noise beside masks and other rows, and what is refused."""

import dataclasses

import numpy as np
import pytest

from encoderjax.errors import UserError
from encoderjax.objectives import (
    OBJECTIVES,
    Deletion,
    Insertion,
    MaskedLM,
    Reordering,
)
from encoderjax.objectives.objective import check_together
from encoderjax.objectives.replacement import Replacement
from tests.objectives.denoising_cases import (
    CHAINS,
    LEXICON,
    NOISE,
    WIDTH,
    corrupted,
    distinct_rows,
    one_row,
    settled,
    slots,
)
from tests.objectives.masking_cases import CLS, MASK, PAD, SEP, VOCAB, draws

SELECT = ["tokens", "words", "ngrams", "ngram_windows", "spans", "weighted"]


@pytest.mark.parametrize("select", [*SELECT, "with_replacement", "specials"])
def test_masks_leave_moved_and_inserted_tokens_alone(select):
    options = {"select": select}
    if select == "specials":
        options = {"specials": True, "count": "bernoulli"}
    noise = settled(Deletion(rate=0.1), Insertion(rate=0.2), Reordering(rate=0.3))
    (mlm,) = settled(MaskedLM(rate=0.4, **options))
    noisy = corrupted(distinct_rows(), noise)
    masked = corrupted(noisy, [mlm])
    assert noisy["altered"].sum() > 2_000
    row, slot = np.nonzero(masked["mlm/weights"])
    places = masked["mlm/positions"][row, slot]
    assert not noisy["altered"][row, places].any()
    assert len(row) > 2_000
    assert (masked["mlm/labels"][row, slot] == noisy["ids"][row, places]).all()
    assert (masked["ids"] == MASK).any()


def test_substitution_is_masked_lm_without_masks():
    """Every selected token is replaced, and what stood there is predicted."""
    replace = Replacement(mask=0.0, random=1.0, distribution="ordinary")
    (mlm,) = settled(MaskedLM(replace=replace))
    plain = distinct_rows()
    batch = corrupted(plain, [mlm])
    used = batch["mlm/weights"] > 0
    assert (batch["mlm/kinds"][used] == 1).all()
    assert not (batch["ids"] == MASK).any()
    different = (batch["ids"] != plain["ids"]).sum()
    assert used.sum() * 0.98 < different <= used.sum()
    for row in range(len(plain["ids"])):
        restored = batch["ids"][row].copy()
        for place, label in slots(batch, "mlm", row).items():
            restored[place] = label
        assert np.array_equal(restored, plain["ids"][row])


def test_a_row_does_not_depend_on_the_others_nor_on_padding():
    plain = distinct_rows(60, full=0.0)
    objectives = settled(*CHAINS["all"])
    whole = corrupted(plain, objectives)
    some = np.array([3, 41, 17])
    batch = {name: value[some] for name, value in plain.items()}
    for objective in objectives:
        batch = objective.corrupt(
            batch,
            dataclasses.replace(draws(60), rows_B=some, epochs_B=some * 0),
            LEXICON,
        )
    for name, value in whole.items():
        assert np.array_equal(value[some], batch[name]), name
        assert value.dtype == batch[name].dtype
    later = corrupted(plain, objectives, epoch=1)
    assert (later["ids"] != whole["ids"]).any(axis=1).mean() > 0.95


def test_rows_that_only_fill_up_count_for_nothing():
    plain = distinct_rows(20)
    plain["row_weights"][5:] = 0
    batch = corrupted(plain, settled(*CHAINS["all"]))
    for name in ("deletion", "reordering", "mlm"):
        weights = batch[f"{name}/weights"].sum(axis=1)
        assert weights[:5].all()
        assert not weights[5:].any()
    assert batch["deletion/deleted"][:5].all()
    assert not batch["deletion/deleted"][5:].any()


def test_documents_of_a_packed_row_stay_apart():
    rng = np.random.default_rng(2)
    rows = []
    for _ in range(50):
        ids, documents = [], []
        for number in range(1, 4):
            text = rng.integers(5, VOCAB, rng.integers(3, 30)).tolist()
            ids += [CLS, *text, SEP]
            documents += [number] * (len(text) + 2)
        missing = WIDTH - len(ids)
        rows.append((ids + [PAD] * missing, documents + [0] * missing))
    ids, documents = (np.array(x, "i4") for x in zip(*rows, strict=True))
    plain = {
        "ids": ids,
        "mask": documents > 0,
        "segments": np.zeros_like(ids),
        "documents": documents,
        "positions": np.zeros_like(ids),
        "row_weights": np.ones(50, "f4"),
    }
    batch = corrupted(plain, settled(*CHAINS["all"], form="packed"))
    for row in range(50):
        real = batch["mask"][row]
        assert np.array_equal(batch["documents"][row] > 0, real)
        place, text = 0, batch["ids"][row].tolist()
        for column in np.flatnonzero(real):
            begins = column == 0 or (
                batch["documents"][row, column] != batch["documents"][row, column - 1]
            )
            place = 0 if begins else place + 1
            assert batch["positions"][row, column] == place
            assert (text[column] == CLS) == begins
        assert set(batch["documents"][row, real].tolist()) == {1, 2, 3}
        assert not batch["positions"][row, ~real].any()


def test_padding_stays_before_the_row_where_it_belongs_there():
    ids = [PAD, PAD, 11, 12, 13, 14, 15, 16, SEP, CLS]
    row = one_row(ids)
    row["segments"] = np.array([[3, 3, 0, 0, 0, 0, 0, 0, 0, 2]], "i4")
    lexicon = dataclasses.replace(LEXICON, pads_left=True, pad_segment=3)
    (deletion,) = settled(Deletion(rate=1 / 3))
    out = corrupted(row, [deletion], lexicon)
    assert out["ids"][0, :4].tolist() == [PAD] * 4
    assert out["segments"].tolist() == [[3, 3, 3, 3, 0, 0, 0, 0, 0, 2]]
    assert out["mask"].tolist() == [[False] * 4 + [True] * 6]
    out = corrupted(out, settled(Insertion(rate=0.5)), lexicon)
    assert out["mask"].sum() == 8
    assert out["ids"][0, [0, 1, 8, 9]].tolist() == [PAD, PAD, SEP, CLS]
    assert out["segments"][0, 9] == 2
    for place, label in slots(out, "deletion", 0).items():
        assert out["deletion/gaps"][0, place] == 1
        assert label in (12, 13, 14, 15)


@pytest.mark.parametrize(
    ("kind", "fields", "words"),
    [
        (Deletion, {"rate": 0.0}, r"objectives\.deletion\.rate=0\.0 must be in"),
        (Insertion, {"rate": 1.5}, r"objectives\.insertion\.rate=1\.5 must be in"),
        (Reordering, {"window": 1}, r"objectives\.reordering\.window=1 must be"),
        (Deletion, {"token_weight": -1.0}, r"deletion\.token_weight=-1\.0 must be"),
        (Deletion, {"max_predictions": 0}, r"deletion\.max_predictions=0 must be"),
        (Reordering, {"max_predictions": 1}, r"reordering\.max_predictions=1 must"),
        (Insertion, {"weight": -1.0}, r"insertion\.weight=-1\.0"),
    ],
)
def test_fields_that_make_no_sense_are_refused(kind, fields, words):
    with pytest.raises(UserError, match=words):
        kind(**fields)


@pytest.mark.parametrize("kind", NOISE.values())
def test_what_does_not_go_with_noise_is_refused(kind):
    for form in ("reuse_pair", "parallel"):
        with pytest.raises(UserError, match=f"{kind.name} does not go with data.form="):
            settled(kind(), form=form)
    others = {"plm": ["plm"], "rtd": ["mlm", "rtd"]}
    for other, names in others.items():
        with pytest.raises(UserError, match=f"{kind.name} and objectives.{other} do"):
            check_together([kind(), *(OBJECTIVES[name]() for name in names)])
    check_together([kind(), *(OBJECTIVES[n]() for n in ("mlm", "nsp", "sop", "sbo"))])


def test_noise_comes_before_masks():
    order = list(OBJECTIVES)
    assert order[:4] == ["deletion", "insertion", "reordering", "mlm"]


def test_slots_follow_the_rate():
    found = settled(Deletion(rate=0.1), Reordering(rate=0.1), length=512)
    assert [objective.max_predictions for objective in found] == [52, 63]
    few = corrupted(distinct_rows(), settled(Deletion(rate=0.5, max_predictions=3)))
    assert few["deletion/deleted"].max() == 3
    few = corrupted(distinct_rows(), settled(Reordering(rate=1.0, max_predictions=9)))
    moved = few["reordering/weights"].sum(axis=1)
    assert moved.max() <= 9
    assert np.array_equal(moved, few["altered"].sum(axis=1))
