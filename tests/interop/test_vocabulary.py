"""Rows of a new vocabulary: kept, spelled, or the mean; for every kind of tokenizer."""

import dataclasses

import numpy as np
import pytest

from encoderjax.data.tokenizers import load_tokenizer, make_tokenizer
from encoderjax.errors import UserError
from encoderjax.interop.vocabulary import (
    check_change,
    extends,
    is_same,
    plan_rows,
    vocabulary_axes,
)
from encoderjax.models.families import preset
from encoderjax.models.heads import EncoderModel, Generator
from tests.small_corpus import documents

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
OLD = [
    *SPECIALS,
    "[unused0]",
    "a",
    "the",
    "ship",
    "sea",
    "##s",
    "##man",
    "har",
    "##bour",
]


@pytest.fixture
def wordpiece(tmp_path):
    """Makes tokenizers of given vocabularies."""

    def make(entries):
        (tmp_path / "vocab.txt").write_text("".join(f"{e}\n" for e in entries))
        return load_tokenizer(tmp_path)

    return make


def table(tokenizer, rows=None):
    """Returns rows that no mean of others could be mistaken for."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(rows or tokenizer.vocabulary.size, 3)).astype(np.float32)


def rebuilt(change, old, new, old_table, new_rows=None):
    plan = plan_rows(
        change,
        old,
        new,
        old_rows=len(old_table),
        new_rows=new_rows or new.vocabulary.size,
    )
    return plan.applied(old_table, 0), plan


def test_an_extension_keeps_every_row_and_spells_new_ones(wordpiece):
    old = wordpiece(OLD)
    new = wordpiece([*OLD, "seaman", "harbours", "##mans", "##ships", "xyz"])
    before = table(old)
    after, plan = rebuilt("extend", old, new, before)
    np.testing.assert_array_equal(after[: len(OLD)], before)
    row = {entry: before[i] for i, entry in enumerate(OLD)}
    spelled = {
        "seaman": ["sea", "##man"],
        "harbours": ["har", "##bour", "##s"],
        "##mans": ["##man", "##s"],  # inside a word, it continues it
        "##ships": ["ship", "##s"],  # nothing inside a word spells it
    }
    for i, (_, pieces) in enumerate(spelled.items(), start=len(OLD)):
        np.testing.assert_allclose(
            after[i], np.mean([row[p] for p in pieces], axis=0), rtol=1e-6
        )
    # What stands for text, that is: neither special nor a placeholder.
    np.testing.assert_allclose(after[-1], before[6:].mean(axis=0), rtol=1e-6)
    assert (len(plan.kept), len(plan.spelled), plan.num_new) == (len(OLD), 4, 5)


def test_placeholders_can_be_put_to_use(wordpiece):
    old = wordpiece(OLD)
    new = wordpiece([entry.replace("[unused0]", "seas") for entry in OLD])
    assert extends(new, old)
    before = table(old)
    after, _ = rebuilt("extend", old, new, before)
    np.testing.assert_allclose(after[5], before[[9, 10]].mean(axis=0), rtol=1e-6)
    np.testing.assert_array_equal(np.delete(after, 5, 0), np.delete(before, 5, 0))


def test_spare_rows_stay_behind_the_vocabulary(wordpiece):
    old, new = wordpiece(OLD), wordpiece([*OLD, "seas"])
    before = table(old, len(OLD) + 3)
    after, _ = rebuilt("extend", old, new, before, len(before))
    changed = np.flatnonzero((after != before).any(axis=1))
    assert changed.tolist() == [len(OLD)]


def test_a_replacement_keeps_what_both_have_wherever_it_stands(wordpiece):
    old = wordpiece(OLD)
    new = wordpiece(["a", "##s", "seaman", *SPECIALS[::-1], "the"])
    before = table(old)
    after, plan = rebuilt("replace", old, new, before)
    kept = [OLD.index(e) for e in ("a", "##s", *SPECIALS[::-1], "the")]
    np.testing.assert_array_equal(after[[0, 1, *range(3, 9)]], before[kept])
    np.testing.assert_allclose(after[2], before[[9, 11]].mean(axis=0), rtol=1e-6)
    assert plan.num_new == 1


def test_the_vocabulary_may_lie_on_any_axis(wordpiece):
    old, new = wordpiece(OLD), wordpiece([*OLD, "seaman"])
    before = table(old)
    _, plan = rebuilt("extend", old, new, before)
    np.testing.assert_array_equal(plan.applied(before.T, 1), plan.applied(before, 0).T)


@pytest.fixture(scope="module")
def kinds():
    texts = documents()
    specs = ("wordpiece:150", "bbpe:400", "unigram:100")
    return {spec.split(":")[0]: make_tokenizer(spec, lambda: texts) for spec in specs}


WORDS = ("the", "old", "near", "sees", "finds", "keeps", "wants", "fears", "follows")
BEGINS = {"wordpiece": "{}", "bbpe": "Ġ{}", "unigram": "▁{}"}


@pytest.mark.parametrize("old_kind", BEGINS)
@pytest.mark.parametrize("new_kind", BEGINS)
def test_words_and_special_tokens_find_their_rows_in_another_kind(
    kinds, old_kind, new_kind
):
    old, new = kinds[old_kind], kinds[new_kind]
    before = table(old)
    after, _ = rebuilt("replace", old, new, before)
    for role in ("pad_id", "unk_id", "cls_id", "sep_id", "mask_id"):
        ids = getattr(new.vocabulary, role), getattr(old.vocabulary, role)
        np.testing.assert_array_equal(after[ids[0]], before[ids[1]])
    entries = [
        {entry: i for i, entry in enumerate(t.tokens(range(t.vocabulary.size)))}
        for t in (old, new)
    ]
    whole = 0
    for word in WORDS:
        ids = [
            known.get(BEGINS[kind].format(word))
            for known, kind in zip(entries, (old_kind, new_kind), strict=True)
        ]
        if None not in ids:
            whole += 1
            np.testing.assert_array_equal(after[ids[1]], before[ids[0]])
    assert whole >= 3


def test_an_equal_entry_of_another_meaning_is_not_the_same_token(kinds):
    """`s` begins a word in WordPiece; in byte-level BPE it goes on with one."""
    old, new = kinds["wordpiece"], kinds["bbpe"]
    theirs, ours = (t.tokens(range(t.vocabulary.size)) for t in (old, new))
    assert "s" in theirs
    before = table(old)
    after, _ = rebuilt("replace", old, new, before)
    np.testing.assert_array_equal(after[ours.index("s")], before[theirs.index("##s")])


def test_other_vocabularies_are_refused_with_the_way_out(wordpiece, tmp_path):
    old, longer, other = wordpiece(OLD), wordpiece([*OLD, "x"]), wordpiece(OLD[::-1])
    assert is_same(old, wordpiece(OLD))
    where = {"model": tmp_path / "model", "corpus": tmp_path / "corpus"}
    for change, new, expected in (
        ("same", longer, r"--tokenizer=.*model, or set init_vocabulary='extend'"),
        ("same", other, r"another vocabulary.*init_vocabulary='replace'"),
        ("extend", other, r"does not begin with.*init_vocabulary='replace'"),
    ):
        with pytest.raises(UserError, match=expected) as error:
            check_change(change, old, new, **where)
        assert "\n" not in str(error.value)
    check_change("extend", old, longer, **where)
    check_change("replace", old, other, **where)


def test_parameters_with_a_row_a_token_are_found_by_their_shapes():
    config = dataclasses.replace(
        preset("bert", "tiny"), vocab_size=128, width=128, max_length=128
    )
    generator = Generator(config=config, sharing="none")
    model = EncoderModel(config, ("mlm", "nsp", "sbo"), with_generator=generator)
    assert vocabulary_axes(model) == {
        "encoder/token_embed/embedding": 0,
        "heads/mlm/bias": 0,
        "heads/sbo/bias": 0,
        "generator/encoder/token_embed/embedding": 0,
        "generator/heads/mlm/bias": 0,
    }
