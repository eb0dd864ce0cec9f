"""Rows whose tokens all differ, and a slow walk that undoes what noise did to them."""

import itertools

import numpy as np

from encoderjax.data.pipeline import DataConfig
from encoderjax.models.families import preset
from encoderjax.objectives import Deletion, Insertion, MaskedLM, Reordering
from tests.objectives.masking_cases import CLS, PAD, SEP, VOCAB, draws, make_lexicon

LEXICON = make_lexicon("wordpiece")
ENCODER = preset("bert", "tiny")
WIDTH = 128
NOISE = {"deletion": Deletion, "insertion": Insertion, "reordering": Reordering}


def data_of(**changes):
    settings = {"corpus": "x", "batch_size": 8, "length": WIDTH}
    return DataConfig(**settings | changes)


def settled(*objectives, **changes):
    data = data_of(**changes)
    return tuple(objective.resolved(data, ENCODER) for objective in objectives)


def distinct_rows(number=200, full=0.3, seed=0):
    """Rows [CLS] a [SEP] b [SEP], no token of a text twice; some without padding."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(8, WIDTH + 1, number)
    lengths[rng.random(number) < full] = WIDTH
    ids = np.stack([rng.permutation(np.arange(5, VOCAB))[:WIDTH] for _ in lengths])
    ids[:, 0] = CLS
    middles = rng.integers(2, lengths - 3)
    ids[np.arange(number), middles] = SEP
    ids[np.arange(number), lengths - 1] = SEP
    place = np.arange(WIDTH)
    mask = place < lengths[:, None]
    return {
        "ids": np.where(mask, ids, PAD).astype("i4"),
        "mask": mask,
        "segments": ((place > middles[:, None]) & mask).astype("i4"),
        "row_weights": np.ones(number, "f4"),
    }


def one_row(ids):
    ids = np.array([ids], "i4")
    return {
        "ids": ids,
        "mask": ids != PAD,
        "segments": np.zeros_like(ids),
        "row_weights": np.ones(1, "f4"),
    }


def corrupted(batch, objectives, lexicon=LEXICON, epoch=0):
    """Returns the batch after each objective; none may change what it is given."""
    number = len(batch["ids"])
    for objective in objectives:
        before = {name: value.copy() for name, value in batch.items()}
        out = objective.corrupt(batch, draws(number, epoch), lexicon)
        assert all(np.array_equal(batch[name], before[name]) for name in before)
        batch = out
    return batch


def slots(batch, name, row):
    """Returns {place: label} of the used slots of a row."""
    used = batch[f"{name}/weights"][row] > 0
    places = batch[f"{name}/positions"][row, used].tolist()
    assert len(set(places)) == len(places)
    return dict(zip(places, batch[f"{name}/labels"][row, used].tolist(), strict=True))


def check_undone(plain, batch, row):
    """Undoes all noise of a row, the last first; nothing but the told may be left.

    Tokens differ, so that each tells where it stood. Of a gap the first missing token
    is known; what makes room is cut before the last [SEP].
    """
    ids = batch["ids"][row].tolist()
    for name in ("mlm", "reordering"):
        if f"{name}/weights" in batch:
            for place, label in slots(batch, name, row).items():
                ids[place] = label
    gaps = slots(batch, "deletion", row) if "deletion/weights" in batch else {}
    if "deletion/gaps" in batch:
        assert np.flatnonzero(batch["deletion/gaps"][row]).tolist() == sorted(gaps)
    put_in = batch.get("insertion/extraneous", np.zeros_like(batch["ids"]))[row]
    assert not put_in[~batch["mask"][row]].any()

    (stood,) = np.nonzero(plain["mask"][row])
    text = plain["ids"][row, stood].tolist()
    separators = iter([i for i, token in enumerate(text) if token == SEP])
    found, missing = [], {}
    for place in np.flatnonzero(batch["mask"][row]):
        if put_in[place]:
            assert place not in gaps
            continue
        before = next(separators) if ids[place] == SEP else text.index(ids[place])
        assert batch["segments"][row, place] == plain["segments"][row, stood[before]]
        if place in gaps:
            missing[before] = gaps[place]
        found.append(before)
    assert (found[0], found[-1]) == (0, len(text) - 1)
    left_out = 0
    for before, behind in itertools.pairwise(found):
        assert behind > before
        left_out += behind - before - 1
        if before in missing:
            assert behind - before > 1
            assert missing[before] == text[before + 1]
        elif behind - before > 1:
            assert "insertion/cut" in batch
            assert behind == len(text) - 1
    gone = ("deletion/deleted", "insertion/cut")
    assert left_out == sum(batch[name][row] for name in gone if name in batch)
    assert len(found) + put_in.sum() == batch["mask"][row].sum() <= WIDTH
    # Padding comes last.
    assert not np.diff(batch["mask"][row].astype(int)).clip(min=0).any()
    assert (batch["ids"][row][~batch["mask"][row]] == PAD).all()


CHAINS = {
    "deletion": (Deletion(rate=0.2),),
    "insertion": (Insertion(rate=0.2),),
    "reordering": (Reordering(rate=0.4),),
    "deletion, insertion": (Deletion(rate=0.1), Insertion(rate=0.3)),
    "all": (
        Deletion(rate=0.15),
        Insertion(rate=0.2),
        Reordering(rate=0.3, window=4),
        MaskedLM(rate=0.2),
    ),
}
