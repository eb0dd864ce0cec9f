import dataclasses

import numpy as np
import pytest

from encoderjax.data.pipeline import Lexicon
from encoderjax.data.random import Draws
from encoderjax.data.tokenizers import Vocabulary
from encoderjax.errors import UserError
from encoderjax.objectives.masking import prediction_counts, select_tokens, select_words
from encoderjax.objectives.mlm import MaskedLM
from encoderjax.objectives.replacement import (
    KEPT,
    MASKED,
    REPLACED,
    Replacement,
    replace_selected,
)

PAD, UNK, CLS, SEP, MASK = range(5)
VOCAB = 200
CONTINUES = range(150, 200)  # ids of pieces that continue a word


@pytest.fixture
def lexicon():
    special = np.arange(VOCAB) < 5
    continues = np.isin(np.arange(VOCAB), CONTINUES)
    vocabulary = Vocabulary(
        size=VOCAB,
        pad_id=PAD,
        unk_id=UNK,
        cls_id=CLS,
        sep_id=SEP,
        mask_id=MASK,
        special_V=special,
        continues_word_V=continues,
        unused_V=np.zeros(VOCAB, bool),
    )
    unigrams = np.zeros(VOCAB, np.int64)
    unigrams[[10, 11, 12]] = [100, 300, 600]
    return Lexicon(vocabulary, unigrams)


def draws(rows, epoch=0):
    return Draws(0, np.full(rows, epoch), np.arange(rows))


def make_batch(lengths, width=64, seed=0):
    """Rows [CLS] a ... [SEP] b ... [SEP] of the given lengths."""
    rng = np.random.default_rng(seed)
    lengths = np.asarray(lengths)
    ids = rng.integers(5, VOCAB, (len(lengths), width)).astype(np.int32)
    mask = np.arange(width) < lengths[:, None]
    ids[~mask] = PAD
    rows = np.arange(len(lengths))
    ids[:, 0] = CLS
    ids[rows, lengths // 2] = SEP
    ids[rows, lengths - 1] = SEP
    return {"ids": ids, "mask": mask, "row_weights": np.ones(len(lengths), np.float32)}


@pytest.mark.parametrize(
    ("length", "expected"),
    # Half goes to the even neighbour: 1.5 -> 2, 4.5 -> 4, 10.5 -> 10, 13.5 -> 14.
    [(4, 1), (10, 2), (20, 3), (30, 4), (70, 10), (90, 14), (128, 19)],
)
def test_count_is_rounded_as_python_does_and_counts_special_tokens(length, expected):
    mask = np.arange(200)[None] < length
    assert prediction_counts(mask, 0.15, slots=80).tolist() == [expected]
    assert expected == max(1, round(0.15 * length))


def test_count_is_at_most_the_slots():
    mask = np.ones((1, 512), bool)
    assert prediction_counts(mask, 0.15, slots=20).tolist() == [20]


@pytest.mark.parametrize("select", [select_tokens, select_words])
@pytest.mark.parametrize("width", [64, 2048])
def test_selection_is_sorted_unique_and_never_special(select, width, lexicon):
    lengths = np.random.default_rng(0).integers(5, width + 1, 40)
    batch = make_batch(lengths, width)
    slots = round(0.15 * width)
    positions, weights = select(batch, 0.15, slots, draws(40), lexicon)
    for row in range(40):
        chosen = positions[row][weights[row] > 0]
        assert np.all(np.diff(chosen) > 0)
        assert not np.isin(batch["ids"][row, chosen], [CLS, SEP, PAD]).any()
        assert (positions[row][weights[row] == 0] == 0).all()
    used = weights.sum(axis=1)
    expected = prediction_counts(batch["mask"], 0.15, slots)
    if select is select_tokens:
        assert np.array_equal(used, expected)
    else:
        assert np.all(used <= expected)
        assert used.mean() > 0.97 * expected.mean()


def test_every_token_is_selected_alike(lexicon):
    batch = make_batch([40] * 64, width=40)
    hits = np.zeros(40)
    for epoch in range(100):
        positions, weights = select_tokens(batch, 0.15, 6, draws(64, epoch), lexicon)
        hits += np.bincount(positions[weights > 0], minlength=40)
    ordinary = np.setdiff1d(np.arange(40), [0, 20, 39])
    assert hits[[0, 20, 39]].sum() == 0
    expected = 6400 * 6 / 37
    chi_square = ((hits[ordinary] - expected) ** 2 / expected).sum()
    assert chi_square < 36 + 5 * np.sqrt(72)


def test_words_are_never_split(lexicon):
    batch = make_batch([64] * 50)
    positions, weights = select_words(batch, 0.3, 20, draws(50), lexicon)
    for row in range(50):
        chosen = set(positions[row][weights[row] > 0].tolist())
        text = [p for p in range(64) if batch["ids"][row, p] not in (CLS, SEP)]
        words, previous = [], None
        for position in text:
            if previous is None or batch["ids"][row, position] not in CONTINUES:
                words.append([])
            words[-1].append(position)
            previous = position
        for word in words:
            assert len(chosen & set(word)) in (0, len(word))


def test_a_piece_after_the_separator_joins_the_last_word_of_a(lexicon):
    ids = np.array([[CLS, 10, 11, SEP, 160, 12, SEP]], np.int32)
    batch = {"ids": ids, "mask": np.ones((1, 7), bool)}
    found = set()
    for epoch in range(60):
        positions, weights = select_words(batch, 0.3, 2, draws(1, epoch), lexicon)
        found.add(tuple(positions[weights > 0].tolist()))
    assert (2, 4) in found  # the word across the separator, whole
    assert all((2 in chosen) == (4 in chosen) for chosen in found)


def test_words_larger_than_the_rest_of_the_count_are_passed_over(lexicon):
    ids = np.array([[CLS, 10, 150, 151, 152, 153, SEP]], np.int32)  # one word of five
    batch = {"ids": ids, "mask": np.ones((1, 7), bool)}
    _, weights = select_words(batch, 0.3, 4, draws(1), lexicon)  # count 2
    assert weights.sum() == 0


class FewValues(Draws):
    """Draws with many ties."""

    def bits(self, site, columns):
        return super().bits(site, columns) & np.uint32(3)


def test_words_of_a_row_do_not_depend_on_the_other_rows(lexicon):
    """Also where draws are equal: hosts see different rows of a batch."""
    batch = make_batch([64] * 8, width=512)
    longer = make_batch([512], width=512)
    joined = {name: np.concatenate([batch[name], longer[name]]) for name in batch}
    for kind in (Draws, FewValues):
        alone = kind(0, np.zeros(8, int), np.arange(8))
        together = kind(0, np.zeros(9, int), np.arange(9))
        expected = select_words(batch, 0.15, 80, alone, lexicon)
        found = select_words(joined, 0.15, 80, together, lexicon)
        for a, b in zip(expected, found, strict=True):
            assert np.array_equal(a, b[:8])


def test_replacement_rates_are_those_of_bert(lexicon):
    batch = make_batch([64] * 2000)
    positions, weights = select_tokens(batch, 0.15, 10, draws(2000), lexicon)
    ids, kinds = replace_selected(
        batch["ids"], positions, weights, Replacement(), draws(2000), lexicon
    )
    row, slot = np.nonzero(weights)
    kinds, new = kinds[row, slot], ids[row, positions[row, slot]]
    old = batch["ids"][row, positions[row, slot]]
    n = len(kinds)
    for kind, share in ((MASKED, 0.8), (REPLACED, 0.1), (KEPT, 0.1)):
        assert abs(np.mean(kinds == kind) - share) < 4 * np.sqrt(
            share * (1 - share) / n
        )
    assert (new[kinds == MASKED] == MASK).all()
    assert (new[kinds == KEPT] == old[kinds == KEPT]).all()
    untouched = np.ones_like(ids, bool)
    untouched[row, positions[row, slot]] = False
    assert np.array_equal(ids[untouched], batch["ids"][untouched])


@pytest.mark.parametrize("distribution", ["uniform", "ordinary", "unigram"])
def test_random_tokens_follow_their_distribution(distribution, lexicon):
    batch = make_batch([64] * 4000)
    positions, weights = select_tokens(batch, 0.15, 10, draws(4000), lexicon)
    replacement = Replacement(mask=0.0, random=1.0, distribution=distribution)
    ids, _ = replace_selected(
        batch["ids"], positions, weights, replacement, draws(4000), lexicon
    )
    row, slot = np.nonzero(weights)
    counts = np.bincount(ids[row, positions[row, slot]], minlength=VOCAB)
    expected = {
        "uniform": np.full(VOCAB, 1 / VOCAB),  # special tokens too, as BERT did
        "ordinary": (np.arange(VOCAB) >= 5) / (VOCAB - 5),
        "unigram": lexicon.unigrams_V / 1000,
    }[distribution]
    possible = expected > 0
    assert counts[~possible].sum() == 0
    expected = expected[possible] * counts.sum()
    chi_square = ((counts[possible] - expected) ** 2 / expected).sum()
    freedom = possible.sum() - 1
    assert chi_square < freedom + 5 * np.sqrt(2 * freedom)


def test_corrupt_leaves_its_input_alone_and_fillers_without_weight(lexicon):
    batch = make_batch([64] * 4)
    batch["row_weights"][2:] = 0
    before = {name: value.copy() for name, value in batch.items()}
    objective = MaskedLM(max_predictions=10)
    out = objective.corrupt(batch, draws(4), lexicon)
    for name, value in before.items():
        assert np.array_equal(value, batch[name])
    assert out["mlm/weights"][:2].sum() == 20
    assert out["mlm/weights"][2:].sum() == 0


def test_labels_are_the_original_tokens(lexicon):
    batch = make_batch([64] * 8)
    out = MaskedLM(max_predictions=10).corrupt(batch, draws(8), lexicon)
    original = np.take_along_axis(batch["ids"], out["mlm/positions"], axis=1)
    assert np.array_equal(out["mlm/labels"], original)


@pytest.mark.parametrize("rates", [(0.9, 0.2), (-0.1, 0.5)])
def test_impossible_rates_are_refused(rates):
    with pytest.raises(UserError, match="mask="):
        Replacement(mask=rates[0], random=rates[1])
    with pytest.raises(UserError, match=r"rate=1\.5"):
        dataclasses.replace(MaskedLM(), rate=1.5)


@pytest.mark.parametrize(
    ("replacement", "shown"),
    [
        (Replacement(mask=1.0, random=0.0), "lunch was [MASK]"),
        (
            Replacement(mask=0.0, random=1.0, distribution="unigram"),
            "lunch was gasp",
        ),
        (Replacement(mask=0.0, random=0.0), "lunch was delicious"),
    ],
    ids=["masked", "replaced", "kept"],
)
def test_lunch_was_delicious(replacement, shown):
    """The textbook's three fates of a selected word; it is predicted in all of them."""
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "lunch",
        "was",
        "delicious",
        "gasp",
    ]
    none = np.zeros(len(words), bool)
    vocabulary = Vocabulary(
        size=len(words),
        pad_id=PAD,
        unk_id=UNK,
        cls_id=CLS,
        sep_id=SEP,
        mask_id=MASK,
        special_V=np.arange(len(words)) < 5,
        unused_V=none,
        continues_word_V=none,
    )
    unigrams = np.array([word == "gasp" for word in words], np.int64)
    ids = np.array([[words.index(word) for word in ["lunch", "was", "delicious"]]])
    slots, weights = np.array([[2]]), np.ones((1, 1), np.float32)
    corrupted, _ = replace_selected(
        ids, slots, weights, replacement, draws(1), Lexicon(vocabulary, unigrams)
    )
    assert " ".join(words[token] for token in corrupted[0]) == shown
    batch = {
        "ids": ids.astype(np.int32),
        "mask": np.ones((1, 3), bool),
        "row_weights": np.ones(1, np.float32),
    }
    # At this rate all three words are selected; each label is the word itself.
    objective = MaskedLM(rate=1.0, max_predictions=3, replace=replacement)
    out = objective.corrupt(batch, draws(1), Lexicon(vocabulary, unigrams))
    assert out["mlm/labels"].tolist() == ids.tolist()
