"""Deletion, insertion and reordering: what they do to rows, undone and counted."""

import collections
import dataclasses
import itertools

import numpy as np
import pytest

from encoderjax.objectives import Deletion, Insertion, Reordering
from tests.objectives.denoising_cases import (
    CHAINS,
    LEXICON,
    NOISE,
    WIDTH,
    check_undone,
    corrupted,
    distinct_rows,
    one_row,
    settled,
)
from tests.objectives.masking_cases import (
    CLS,
    PAD,
    SEP,
    VOCAB,
    chi_square_fits,
    draws,
    make_lexicon,
    within,
)


@pytest.mark.parametrize("chain", CHAINS)
def test_the_row_is_found_again_from_what_is_told(chain):
    plain = distinct_rows()
    batch = corrupted(plain, settled(*CHAINS[chain]))
    for row in range(len(plain["ids"])):
        check_undone(plain, batch, row)
    if "insertion" in chain:
        assert (batch["insertion/cut"] > 0).sum() > 20
    different = (batch["ids"] != plain["ids"]).any(axis=1)
    assert different.mean() > 0.9


@pytest.mark.parametrize("key", ["deletion/gaps", "deletion/positions", "ids"])
@pytest.mark.parametrize("by", [-1, 1])
def test_a_target_that_is_one_place_off_is_noticed(key, by):
    plain = distinct_rows(40, full=0.0)
    batch = corrupted(plain, settled(*CHAINS["all"][:3]))
    row = int(batch["deletion/weights"].sum(axis=1).argmax())
    check_undone(plain, batch, row)
    off = batch[key] + by if key.endswith("positions") else np.roll(batch[key], by, 1)
    with pytest.raises((AssertionError, ValueError, IndexError)):
        check_undone(plain, batch | {key: off}, row)


def test_a_row_of_three_by_hand():
    """Of a text of three tokens only the one in the middle can be taken out."""
    row = one_row([CLS, 11, 12, 13, SEP, PAD])
    out = Deletion(rate=0.5, max_predictions=2).corrupt(row, draws(1), LEXICON)
    assert out["ids"].tolist() == [[CLS, 11, 13, SEP, PAD, PAD]]
    assert out["mask"].tolist() == [[True] * 4 + [False] * 2]
    assert out["deletion/gaps"].tolist() == [[0, 1, 0, 0, 0, 0]]
    assert out["deletion/positions"].tolist() == [[1, 0]]
    assert out["deletion/labels"][0, 0] == 12
    assert out["deletion/weights"].tolist() == [[1, 0]]
    # Two words have one other order; of [CLS] and [SEP] nothing changes.
    row = one_row([CLS, 11, 170, 12, SEP, PAD])
    moves = Reordering(rate=1.0, window=3, max_predictions=4)
    out = moves.corrupt(row, draws(1), LEXICON)
    assert out["ids"].tolist() == [[CLS, 12, 11, 170, SEP, PAD]]
    assert out["reordering/positions"].tolist() == [[1, 2, 3, 0]]
    assert out["reordering/labels"].tolist()[0][:3] == [11, 170, 12]
    assert out["altered"].tolist() == [[False, True, True, True, False, False]]
    # Nothing is moved across a gap.
    cut = out | {"ids": row["ids"], "altered": np.zeros((1, 6), bool)}
    cut["deletion/gaps"] = np.array([[0, 0, 1, 0, 0, 0]], "i4")
    assert moves.corrupt(cut, draws(1), LEXICON)["ids"].tolist() == cut["ids"].tolist()
    # Between two tokens there is one place, unless something is missing there.
    row = one_row([CLS, 11, 12, SEP, PAD, PAD])
    out = Insertion(rate=1.0).corrupt(row, draws(1), LEXICON)
    assert out["ids"][0, [0, 1, 3, 4, 5]].tolist() == [CLS, 11, 12, SEP, PAD]
    assert out["insertion/extraneous"].tolist() == [[0, 0, 1, 0, 0, 0]]
    row |= {"deletion/gaps": np.array([[0, 1, 0, 0, 0, 0]], "i4")}
    slot = np.ones((1, 1), "i4")
    row |= {"deletion/positions": slot, "deletion/weights": slot}
    out = Insertion(rate=1.0).corrupt(row, draws(1), LEXICON)
    assert out["ids"].tolist() == row["ids"].tolist()


def test_a_full_row_makes_room_before_its_last_separator():
    row = one_row([CLS, 11, 12, SEP, 21, 22, 23, 24, SEP])
    out = Insertion(rate=0.5).corrupt(row, draws(1), LEXICON)
    assert out["insertion/cut"].tolist() == [2]  # there are four places, less those
    assert out["insertion/extraneous"].sum() == 2
    assert out["mask"].all()
    left = out["ids"][0, out["insertion/extraneous"][0] == 0].tolist()
    assert left == [CLS, 11, 12, SEP, 21, 22, SEP]
    # The last text keeps a token, whatever the rate.
    row = one_row([CLS, 11, 12, 13, 14, 15, SEP, 21, SEP])
    out = Insertion(rate=1.0).corrupt(row, draws(1), LEXICON)
    assert out["ids"].tolist() == row["ids"].tolist()


def test_of_equal_neighbours_the_last_were_put_in():
    """Any could have been: a label must not say what nobody can know."""
    rng = np.random.default_rng(0)
    ids = rng.integers(5, 8, (400, 12))  # of three tokens, so that many are equal
    ids[:, 0], ids[:, 8], ids[:, 9:] = CLS, SEP, PAD
    plain = one_row(ids[0])
    batch = {name: np.repeat(value, 400, axis=0) for name, value in plain.items()}
    batch |= {"ids": ids.astype("i4"), "mask": ids != PAD}
    few = np.where(np.isin(np.arange(VOCAB), (5, 6, 7)), 10, 0)
    lexicon = dataclasses.replace(LEXICON, unigrams_V=few)
    out = Insertion(rate=0.3).corrupt(batch, draws(400), lexicon)
    equal = 0
    for row in range(400):
        filled, put_in = out["ids"][row], out["insertion/extraneous"][row] == 1
        for place in np.flatnonzero(filled[1:] == filled[:-1]):
            assert put_in[place + 1] or not put_in[place]
            equal += put_in[place + 1]
        # What is left is the text.
        left = filled[(filled != PAD) & ~put_in]
        kept = ids[row][ids[row] != PAD]
        cut = int(out["insertion/cut"][row])
        kept = np.delete(kept, range(len(kept) - 1 - cut, len(kept) - 1))
        assert left.tolist() == kept.tolist()
    assert equal > 100


def test_a_gap_at_a_cut_end_is_none():
    """What is missing behind the last token cannot be told any more."""
    row = one_row([CLS, 11, 12, 13, 14, 15, 16, SEP])
    slot = np.ones((1, 1), "f4")
    row |= {"deletion/weights": slot, "deletion/labels": slot.astype("i4")}
    for place, left in ((3, 1), (4, 0)):  # the last two tokens are cut
        at_BP = np.full((1, 1), place, "i4")
        gaps = (np.arange(8) == place).astype("i4")[None]
        gapped = row | {"deletion/gaps": gaps, "deletion/positions": at_BP}
        out = Insertion(rate=0.5).corrupt(gapped, draws(1), LEXICON)
        assert out["insertion/cut"].tolist() == [2]
        assert out["deletion/gaps"].sum() == out["deletion/weights"].sum() == left


# ---- statistics ----


def test_as_many_as_the_rate_says():
    """A count is rounded at random, and nothing else."""
    plain = distinct_rows(2_000, full=0.0)
    tokens = (plain["mask"].sum(axis=1) - 3).clip(min=0)
    objectives = settled(*(kind(rate=0.1) for kind in NOISE.values()))
    found = {objective.name: corrupted(plain, [objective]) for objective in objectives}
    counts = {
        "deletion": found["deletion"]["deletion/deleted"],
        "insertion": found["insertion"]["insertion/extraneous"].sum(axis=1),
        "reordering": found["reordering"]["reordering/weights"].sum(axis=1),
    }
    for name in ("deletion", "insertion"):
        # The shortest texts have no room, the longest rows none to put in.
        inner = (tokens > 20) & (tokens < 0.85 * WIDTH)
        assert np.abs(counts[name] - 0.1 * tokens)[inner].max() < 1
        off = (counts[name] - 0.1 * tokens)[inner].sum()
        assert abs(off) < 5 * 0.5 * np.sqrt(inner.sum())
    # Windows come as a whole: one more or less.
    share = counts["reordering"].sum() / tokens.sum()
    assert share == pytest.approx(0.1, abs=0.003)
    assert np.abs(counts["reordering"] - 0.1 * tokens).max() < 12


@pytest.mark.parametrize("window", [2, 3, 8, 20])
def test_as_many_move_whatever_the_window(window):
    """Also where a single window has more tokens than the rate asks for."""
    plain = distinct_rows(2_000, full=0.0)
    tokens = (plain["mask"].sum(axis=1) - 3).clip(min=0)
    batch = corrupted(plain, settled(Reordering(rate=0.15, window=window)))
    moved = batch["reordering/weights"].sum(axis=1)
    assert batch["reordering/dropped"].sum() == 0
    off = moved - 0.15 * tokens
    assert abs(off.mean()) < 5 * off.std() / np.sqrt(len(off))
    assert moved.sum() / tokens.sum() == pytest.approx(0.15, abs=0.01)


def test_windows_without_slots_are_told():
    plain = distinct_rows(200, full=0.0)
    few = corrupted(plain, settled(Reordering(rate=0.5, max_predictions=6)))
    all_of_them = corrupted(plain, settled(Reordering(rate=0.5)))
    moved = few["reordering/weights"].sum(axis=1)
    assert moved.max() <= 6
    wanted = all_of_them["reordering/weights"].sum(axis=1)
    assert (moved + few["reordering/dropped"] == wanted).all()


def test_what_equals_its_neighbour_stays():
    """Of equal neighbours nobody could tell which of them is missing."""
    row = one_row([CLS, 11, 12, 12, 13, 14, 14, 14, 15, SEP])
    rows = {name: np.repeat(value, 50, axis=0) for name, value in row.items()}
    out = corrupted(rows, [Deletion(rate=1.0, max_predictions=8)])
    assert (out["deletion/deleted"] == 1).all()  # 11 and 15 are ends
    labels = out["deletion/labels"][out["deletion/weights"] > 0]
    assert set(labels.tolist()) == {13}


def test_every_place_inside_a_text_is_as_likely():
    row = one_row([CLS, *range(10, 30), SEP, *range(40, 50), SEP])
    rows = {name: np.repeat(value, 4_000, axis=0) for name, value in row.items()}
    batch = corrupted(rows, settled(Deletion(rate=0.1)))
    kept = collections.Counter(batch["ids"][batch["mask"]].tolist())
    gone = {token: 4_000 - kept[token] for token in (*range(10, 30), *range(40, 50))}
    assert {token for token, number in gone.items() if not number} == {10, 29, 40, 49}
    inner = [number for number in gone.values() if number]
    assert sum(inner) == 3 * 4_000
    assert chi_square_fits(np.array(inner), np.full(len(inner), 1 / len(inner)))

    batch = corrupted(rows, settled(Insertion(rate=0.1)))
    row, place = np.nonzero(batch["insertion/extraneous"])
    # Where it is equal to its neighbour, nobody knows which one it is.
    apart = batch["ids"][row, place] != batch["ids"][row, place - 1]
    row, place = row[apart], place[apart]
    behind = collections.Counter(batch["ids"][row, place - 1].tolist())
    # Rows are full: the last three tokens are cut, and nothing is put in there.
    between = (*range(10, 29), *range(40, 46))
    assert set(behind) == set(between)
    numbers = np.array([behind[token] for token in between])
    assert chi_square_fits(numbers, np.full(len(numbers), 1 / len(numbers)))


@pytest.mark.parametrize("distribution", ["unigram", "ordinary"])
def test_what_is_put_in_has_the_distribution_of_the_text(distribution):
    batch = corrupted(
        distinct_rows(3_000, full=0.0),
        settled(Insertion(rate=0.3, distribution=distribution)),
    )
    drawn = batch["ids"][batch["insertion/extraneous"] == 1]
    counts = np.bincount(drawn, minlength=VOCAB)
    assert counts[:5].sum() == 0
    weights = LEXICON.unigrams_V if distribution == "unigram" else np.ones(VOCAB)
    shares = weights[5:] / weights[5:].sum()
    assert chi_square_fits(counts[5:], shares)


@pytest.mark.parametrize("window", [2, 3, 4])
def test_words_move_whole_and_within_their_window(window):
    lexicon = make_lexicon("bytelevel")
    plain = distinct_rows()
    batch = corrupted(plain, settled(Reordering(rate=0.5, window=window)), lexicon)
    moved = 0
    for row, ids in enumerate(plain["ids"].tolist()):
        word, number = [], -1  # of each column
        for column, token in enumerate(ids):
            goes_on = lexicon.vocabulary.continues_word_V[token] and column
            number += not (goes_on and ids[column - 1] not in (CLS, SEP))
            word.append(number)
        columns = [
            column if token in (CLS, SEP, PAD) else ids.index(token)
            for column, token in enumerate(batch["ids"][row].tolist())
        ]
        order = []
        for number, places in itertools.groupby(columns, key=word.__getitem__):
            places = list(places)
            assert places == [c for c, n in enumerate(word) if n == number]
            order.append(number)
        assert sorted(order) == sorted(set(word))
        distances = [abs(new - old) for new, old in enumerate(order)]
        assert max(distances) < window
        moved += np.count_nonzero(distances)
    assert moved > 1_500


def is_one_cycle(order):
    place, seen = 0, set()
    while place not in seen:
        seen.add(place)
        place = order[place]
    return len(seen) == len(order)


def test_all_cycles_are_as_likely():
    row = one_row([CLS, 10, 11, 12, 13, SEP])
    rows = {name: np.repeat(value, 12_000, axis=0) for name, value in row.items()}
    objective = Reordering(rate=1.0, window=4, max_predictions=4)
    batch = corrupted(rows, [objective])
    orders = collections.Counter(map(tuple, (batch["ids"][:, 1:5] - 10).tolist()))
    cycles = [o for o in itertools.permutations(range(4)) if is_one_cycle(o)]
    counts = np.array([orders[cycle] for cycle in cycles])
    assert len(cycles) == 6
    assert chi_square_fits(counts, np.full(6, 1 / 6))
    # One row in four begins with a window of all four words.
    assert within(counts.sum() / 12_000, 0.25, 12_000)
