"""Permutation LM: targets and order by XLNet's rules, losses by PyTorch's XLNet."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from encoderjax.data.pipeline import DataConfig, Lexicon
from encoderjax.data.random import Draws
from encoderjax.data.tokenizers import Vocabulary
from encoderjax.errors import UserError
from encoderjax.interop.loading import load_model
from encoderjax.models.families import preset
from encoderjax.models.two_stream import stream_contexts
from encoderjax.objectives import MaskedLM
from encoderjax.objectives.ngrams import draw_lengths
from encoderjax.objectives.objective import check_together
from encoderjax.objectives.permutation import PermutationLM
from encoderjax.objectives.pretrainer import Pretrainer, divide
from tests.families import random_model
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

PLM = PermutationLM(max_predictions=85, reuse_length=256)


def make_rows(rows, length=512, reused=256, seed=0, specials=(CLS, SEP), first=5):
    """Rows reuse | A SEP B SEP CLS, full to the end."""
    cls, sep = specials
    rng = np.random.default_rng(seed)
    vocab = VOCAB if first == 5 else 99
    ids = rng.integers(first, vocab, (rows, length)).astype(np.int32)
    ids[np.arange(rows), rng.integers(reused + 1, length - 3, rows)] = sep
    ids[:, -2], ids[:, -1] = sep, cls
    return {
        "ids": ids,
        "mask": np.ones_like(ids, bool),
        "segments": (np.cumsum(ids == sep, axis=1) > 0).astype(np.int32),
        "row": np.arange(rows, dtype=np.uint32),
        "row_weights": np.ones(rows, np.float32),
    }


def targets_of(out):
    """Returns bool [B, L]."""
    found = np.zeros(out["ids"].shape, bool)
    row, slot = np.nonzero(out["plm/weights"])
    found[row, out["plm/positions"][row, slot]] = True
    return found


def runs_of(marked):
    """Returns (begin, length) of each run of True."""
    groups = itertools.groupby(enumerate(marked.tolist()), key=lambda item: item[1])
    runs = [[place for place, _ in group] for value, group in groups if value]
    return [(run[0], len(run)) for run in runs]


# ---- targets ----


def walked(is_start, goal, lengths, lefts):
    """XLNet's walk over one part, token by token; and the lengths that it drew."""
    marked, drawn, cursor, chosen = set(), [], 0, 0
    for n, left in zip(lengths, lefts, strict=True):
        if cursor >= len(is_start) or chosen >= goal:
            break
        drawn.append(int(n))
        n = min(int(n), goal - chosen)
        before = int(left * 6 * n) >> 32
        begin = cursor + before
        while begin < len(is_start) and not is_start[begin]:
            begin += 1
        end = begin + n
        if end >= len(is_start):
            break
        marked.update(range(begin, end))
        chosen += n
        cursor = end + 6 * n - before
    return marked, drawn


@pytest.mark.parametrize("kind", ["wordpiece", "bytelevel", "unigram"])
def test_the_targets_are_those_of_the_walk_and_then_random_ones(kind):
    lexicon, batch = make_lexicon(kind), make_rows(60)
    out = PLM.corrupt(batch, draws(60), lexicon)
    targets, counted = targets_of(out), out["plm/drawn"].copy()
    columns = 74  # 512 / 7
    lengths = draw_lengths(draws(60), 2 * columns, 5)
    lefts = draws(60).bits("plm/left", 2 * columns)
    starts = ~lexicon.vocabulary.continues_word_V[batch["ids"]]
    walks = 0
    for part, goal in ((0, 43), (1, 42)):
        drawn = slice(part * columns, (part + 1) * columns)
        keys = draws(60).bits(f"plm/fill/{part}", 256)
        for row in range(60):
            marked, drawn_lengths = walked(
                starts[row, part * 256 : part * 256 + 256],
                goal,
                lengths[row, drawn],
                lefts[row, drawn].tolist(),
            )
            walks += len(marked)
            counted[row] -= np.bincount(drawn_lengths, minlength=6)[1:].astype(np.int32)
            others = sorted(set(range(256)) - marked, key=lambda p: keys[row, p])
            marked.update(others[: goal - len(marked)])
            text = {
                p for p in marked if batch["ids"][row, part * 256 + p] not in (CLS, SEP)
            }
            found = np.flatnonzero(targets[row, part * 256 : part * 256 + 256])
            assert set(found.tolist()) == text
    assert walks > 60 * 50
    assert not counted.any()


def test_43_of_the_reused_part_and_42_of_the_rest():
    batch = make_rows(800)
    out = PLM.corrupt(batch, draws(800), make_lexicon())
    targets = targets_of(out)
    assert (targets[:, :256].sum(axis=1) == 43).all()
    rest = targets[:, 256:].sum(axis=1)  # three special tokens may be drawn instead
    assert rest.max() == 42
    assert 39 <= rest.min() < 42
    assert not targets[np.isin(batch["ids"], [CLS, SEP])].any()
    assert np.array_equal(out["ids"], batch["ids"])
    used = out["plm/weights"] > 0
    assert used.shape == (800, 85)
    assert not (~used[:, :-1] & used[:, 1:]).any()  # used slots come first
    ids = np.take_along_axis(batch["ids"], out["plm/positions"], axis=1)
    assert np.array_equal(out["plm/labels"], ids)


def test_an_ngram_has_n_tokens_with_a_probability_of_1_over_n():
    """With few slots nothing has to be filled in: each run is an n-gram."""
    objective = PermutationLM(max_predictions=10, reuse_length=0)
    out = objective.corrupt(make_rows(4000), draws(4000), make_lexicon("wordpiece"))
    targets = targets_of(out)
    assert (targets.sum(axis=1) == 10).all()
    starts = ~make_lexicon().vocabulary.continues_word_V[out["ids"]]
    first = [runs_of(row)[0] for row in targets]
    sizes = np.bincount([size for _, size in first], minlength=6)[1:]
    shares = np.array([60, 30, 20, 15, 12]) / 137
    for found, share in zip(sizes / 4000, shares, strict=True):
        assert within(found, share, 4000)
    # Before it: any number of tokens below 6n, then on to the start of a word.
    for n in (1, 2):
        begins = [begin for begin, size in first if size == n]
        expected = np.zeros(60)
        for row in range(4000):
            nexts = np.flatnonzero(starts[row])
            for left in range(6 * n):
                expected[nexts[nexts >= left][0]] += 1
        expected = expected[: 6 * n] / expected.sum()
        found = np.bincount(begins, minlength=60)[: 6 * n]
        assert chi_square_fits(found, expected / expected.sum())


def test_ngrams_begin_at_words_and_do_not_end_with_them():
    objective = PermutationLM(max_predictions=10, reuse_length=0)
    lexicon, batch = make_lexicon("unigram"), make_rows(500)
    targets = targets_of(objective.corrupt(batch, draws(500), lexicon))
    continues = lexicon.vocabulary.continues_word_V[batch["ids"]]
    runs = [(row, *run) for row in range(500) for run in runs_of(targets[row])]
    assert not any(continues[row, begin] for row, begin, _ in runs)
    assert max(size for _, _, size in runs) == 5
    cut = [continues[row, begin + size] for row, begin, size in runs]
    assert within(np.mean(cut), 140 / 195, len(cut), deviations=8)


def test_reversed_rows_are_walked_in_the_order_of_the_text():
    lexicon, batch = make_lexicon("unigram"), make_rows(50)
    forward = targets_of(PLM.corrupt(batch, draws(50), lexicon))
    flip = lambda x: np.concatenate([x[:, 255::-1], x[:, :255:-1]], axis=1)
    flipped = batch | {"ids": flip(batch["ids"]), "reversed": np.ones(50, bool)}
    backward = targets_of(PLM.corrupt(flipped, draws(50), lexicon))
    assert np.array_equal(flip(backward), forward)
    unmarked = flipped | {"reversed": np.zeros(50, bool)}
    assert not np.array_equal(
        flip(targets_of(PLM.corrupt(unmarked, draws(50), lexicon))), forward
    )


def padded_rows(left):
    rng = np.random.default_rng(0)
    ids = np.full((40, 96), PAD, np.int32)
    for row, length in enumerate(rng.integers(3, 97, 40)):
        text = rng.integers(5, VOCAB, length)
        text[-2:] = SEP, CLS
        ids[row, slice(96 - length, 96) if left else slice(length)] = text
    weights = np.ones(40, np.float32)
    return {"ids": ids, "mask": ids != PAD, "row_weights": weights}


@pytest.mark.parametrize("left", [True, False])
def test_padding_is_no_target_and_does_not_count(left):
    objective = PermutationLM(max_predictions=16, reuse_length=0)
    batch, lexicon = padded_rows(left), make_lexicon()
    out = objective.corrupt(batch, draws(40), lexicon)
    targets, real = targets_of(out), batch["mask"].sum(axis=1)
    assert not targets[~batch["mask"]].any()
    missing = real // 6 - targets.sum(axis=1)
    assert missing.min() == 0
    assert missing.max() <= 2  # [SEP] and [CLS]
    assert (out["plm/order"][~batch["mask"]] == -1).all()
    # Padding on the other side moves the text and changes nothing else.
    other = padded_rows(not left)
    moved = targets_of(objective.corrupt(other, draws(40), lexicon))
    assert np.array_equal(moved[other["mask"]], targets[batch["mask"]])


def test_all_may_be_predicted():
    objective = PermutationLM(predict_share=1.0, max_predictions=512, reuse_length=128)
    batch = make_rows(20, reused=128)
    targets = targets_of(objective.corrupt(batch, draws(20), make_lexicon()))
    assert np.array_equal(targets, ~np.isin(batch["ids"], [CLS, SEP]))


def test_a_smaller_share_is_spread_over_the_row():
    objective = PermutationLM(predict_share=0.05, max_predictions=25, reuse_length=0)
    targets = targets_of(
        objective.corrupt(make_rows(400), draws(400), make_lexicon("bytelevel"))
    )
    by_quarter = targets.reshape(400, 4, 128).sum(axis=(0, 2)) / targets.sum()
    assert np.abs(by_quarter - 0.25).max() < 0.05


def test_a_row_does_not_depend_on_the_others():
    batch, lexicon = padded_rows(left=True), make_lexicon("bytelevel")
    batch["reversed"] = np.arange(40) % 2 == 1
    before = {name: value.copy() for name, value in batch.items()}
    objective = PermutationLM(max_predictions=16, reuse_length=0, permute_within=20)
    whole = objective.corrupt(batch, draws(40), lexicon)
    assert all(np.array_equal(batch[name], before[name]) for name in before)
    some = np.array([31, 4, 17])
    part = {name: value[some] for name, value in batch.items()}
    alone = objective.corrupt(part, Draws(0, np.zeros(3, int), some), lexicon)
    for name, value in alone.items():
        assert np.array_equal(value, whole[name][some]), name
    fillers = batch | {"row_weights": np.zeros(40, np.float32)}
    assert not objective.corrupt(fillers, draws(40), lexicon)["plm/weights"].any()


# ---- order ----


def test_each_part_has_a_uniform_permutation_of_its_own():
    rows, ids = 40_000, np.full((40_000, 8), 9, np.int32)
    weights = np.ones(rows, np.float32)
    batch = {"ids": ids, "mask": ids > 0, "row_weights": weights}
    objective = PermutationLM(predict_share=1.0, max_predictions=8, reuse_length=4)
    order = objective.corrupt(batch, draws(rows), make_lexicon())["plm/order"]
    number = {p: i for i, p in enumerate(itertools.permutations(range(4)))}
    first = np.array([number[tuple(row)] for row in order[:, :4].tolist()])
    second = np.array([number[tuple(row)] for row in order[:, 4:].tolist()])
    pairs = np.bincount(24 * first + second, minlength=576)
    assert chi_square_fits(pairs, np.full(576, 1 / 576))


def test_chunks_of_a_part_share_one_permutation():
    batch, whole = make_rows(30, 96, 48), {"predict_share": 1.0, "max_predictions": 96}
    objective = PermutationLM(**whole, reuse_length=48, permute_within=16)
    order = objective.corrupt(batch, draws(30), make_lexicon())["plm/order"]
    for part in (order[:, :48], order[:, 48:]):
        assert np.array_equal(np.sort(part[:, :16]), np.tile(np.arange(16), (30, 1)))
        assert np.array_equal(part[:, 16:32], part[:, :16] + 16)
        assert np.array_equal(part[:, 32:], part[:, :16] + 32)
    assert not np.array_equal(order[:, :16], order[:, 48:64])


def kinds_of(targets, special):
    """Returns what each place of a row is."""
    pairs = zip(targets.tolist(), special.tolist(), strict=True)
    return np.array(["special" if s else "target" if t else "text" for t, s in pairs])


def seen_by(kind, order, i, j, reused):
    """Whether place i may look at place j, by the definitions."""
    if (i < reused) != (j < reused):
        return j < reused
    if kind[j] == "text":
        return True
    if kind[i] == "text":
        return False
    return order[j] < order[i] or (i == j and kind[i] == "special")


@pytest.mark.parametrize(("reused", "within_"), [(20, None), (0, None), (20, 10)])
def test_who_sees_whom(reused, within_):
    objective = PermutationLM(
        max_predictions=8,
        reuse_length=reused,
        permute_within=within_,
        predict_share=0.2,
    )
    batch = make_rows(30, 40, 20)
    out = objective.corrupt(batch, draws(30), make_lexicon())
    targets, special = targets_of(out), np.isin(batch["ids"], [CLS, SEP])
    streams = objective.streams({name: jnp.asarray(v) for name, v in out.items()})
    assert np.array_equal(streams.targets_BP, out["plm/positions"])
    assert not streams.reversed_B.any()
    visible = np.asarray(streams.visible_BLL)
    for row in range(30):
        kind = kinds_of(targets[row], special[row])
        order = out["plm/order"][row]
        expected = [
            [seen_by(kind, order, i, j, reused) for j in range(40)] for i in range(40)
        ]
        assert np.array_equal(visible[row], expected)
        text = kind == "text"
        assert (order[text] == -1).all()
        reach = visible[row] & (
            (np.arange(40) >= reused)[:, None] == (np.arange(40) >= reused)
        )
        assert not reach[np.ix_(text, ~text)].any()
    # The content stream sees its own token, the query stream does not.
    segments = jnp.zeros((30, 40), int)
    content, query = stream_contexts(XLNET, streams, None, segments, None, None)
    assert np.diagonal(content.visible.pairs[:, 0], axis1=1, axis2=2).all()
    row, slot = np.nonzero(out["plm/weights"])
    own = np.asarray(query.visible.pairs)[row, 0, slot, out["plm/positions"][row, slot]]
    assert not own.any()


# ---- against PyTorch ----

LENGTH, REUSED, ROWS = 32, 16, 4
SMALL = PermutationLM(max_predictions=9, reuse_length=REUSED, predict_share=0.3)


def xlnet_lexicon():
    ids = np.arange(99)
    vocabulary = Vocabulary(
        size=99,
        pad_id=5,
        unk_id=0,
        cls_id=3,
        sep_id=4,
        mask_id=6,
        special_V=ids < 7,
        continues_word_V=ids > 60,
        unused_V=np.zeros(99, bool),
    )
    return Lexicon(vocabulary, np.ones(99, int))


def xlnet_rows(seed):
    batch = make_rows(ROWS, LENGTH, REUSED, seed, specials=(3, 4), first=7)
    batch["segments"][:, -1] = 2
    return batch


def pretrainer_of(theirs, folder):
    theirs.save_pretrained(folder)
    loaded = load_model(folder)
    _, params = loaded.with_heads("mlm")
    return Pretrainer.create(loaded.config, (SMALL,), jnp.float32), params


def torch_loss(theirs, out, memory):
    """Returns the loss of transformers' model, and its next memory."""
    targets = targets_of(out)
    special = np.isin(out["ids"], [3, 4])
    order = out["plm/order"]
    hidden = np.zeros((ROWS, LENGTH, LENGTH), np.float32)
    for row in range(ROWS):
        kind = kinds_of(targets[row], special[row])
        for i, j in itertools.product(range(LENGTH), repeat=2):
            hidden[row, i, j] = not seen_by(kind, order[row], i, j, REUSED)
    live = out["plm/weights"] > 0  # an unused slot maps to no place
    mapping = np.eye(LENGTH, dtype=np.float32)[out["plm/positions"]]
    mapping *= live[:, :, None]
    with torch.no_grad():
        expected = theirs(
            input_ids=torch.tensor(out["ids"]).long(),
            token_type_ids=torch.tensor(out["segments"]).long(),
            perm_mask=torch.tensor(hidden),
            target_mapping=torch.tensor(mapping),
            mems=memory,
        )
    scores = expected.logits.log_softmax(-1)
    labels = torch.tensor(out["plm/labels"]).long()
    losses = -scores.gather(-1, labels[:, :, None])[:, :, 0].numpy()[live]
    hits = (scores.argmax(-1) == labels).numpy()[live]
    return losses.mean(), hits.mean(), expected.mems


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("xlnet", {"mem_len": 0}),
        ("xlnet", {"mem_len": 24, "reuse_len": REUSED}),
        ("xlnet_clamped", {"mem_len": 24, "reuse_len": REUSED}),  # half is reversed
    ],
)
def test_loss_and_memory_equal_those_of_pytorch(name, changes, tmp_path):
    theirs = random_model(name, **changes)
    pretrainer, params = pretrainer_of(theirs, tmp_path)
    carry = pretrainer.init_carry(ROWS)
    memory = None
    if changes["mem_len"]:
        memory = [torch.zeros(24, ROWS, 48) for _ in range(3)]
        assert carry["memory"].shape == (ROWS, 3, 24, 48)
    step = jax.jit(lambda carry, batch: pretrainer.sums(params, {}, carry, batch, None))
    for segment in range(3):
        batch = xlnet_rows(segment)
        if name == "xlnet_clamped":
            batch["reversed"] = np.arange(ROWS) >= ROWS // 2
        out = SMALL.corrupt(batch, draws(ROWS, segment), xlnet_lexicon())
        loss, hits, memory = torch_loss(theirs, out, memory)
        terms, carry = step(carry, out)
        means = divide(terms, pretrainer.counts(out))
        assert means["plm_loss"] == pytest.approx(loss, abs=1e-5)
        assert means["plm_accuracy"] == pytest.approx(hits, abs=1e-6)
        if changes["mem_len"]:
            theirs_BNMD = torch.stack(list(memory)).permute(2, 0, 1, 3).numpy()
            assert np.abs(np.asarray(carry["memory"]) - theirs_BNMD).max() < 1e-5
        else:
            memory = None
            assert carry == {}


def test_a_target_depends_on_those_before_it_and_on_no_other(tmp_path):
    theirs = random_model("xlnet", mem_len=0)
    pretrainer, params = pretrainer_of(theirs, tmp_path)
    batch = xlnet_rows(0)
    out = SMALL.corrupt(batch, draws(ROWS), xlnet_lexicon())
    run = jax.jit(
        lambda ids: (
            pretrainer.model.apply(
                {"params": params},
                ids,
                batch["mask"],
                batch["segments"],
                streams=SMALL.streams(out),
            ).logits
        )
    )
    before = np.asarray(run(out["ids"]))
    order = np.take_along_axis(out["plm/order"], out["plm/positions"], axis=1)
    late = out["plm/positions"] >= REUSED
    live = out["plm/weights"] > 0
    for slot in range(9):
        changed = out["ids"].copy()
        rows = np.flatnonzero(live[:, slot])
        changed[rows, out["plm/positions"][rows, slot]] = 50
        after = np.asarray(run(changed))
        moved = np.abs(after - before).max(axis=-1)
        for row in rows:
            same = late[row] == late[row, slot]
            later = (same & (order[row] > order[row, slot])) | (
                late[row] & ~late[row, slot]
            )
            assert (moved[row][live[row] & ~later] == 0).all()
            assert (moved[row][live[row] & later] > 1e-4).all()


# ---- what cannot be ----

XLNET = preset("xlnet", "base")


def test_slots_and_parts_follow_the_rows():
    data = DataConfig(
        corpus="x", batch_size=8, form="reuse_pair", length=512, reuse_length=256
    )
    objective = PermutationLM().resolved(data, XLNET)
    assert (objective.max_predictions, objective.reuse_length) == (85, 256)
    assert objective.resolved(data, XLNET) == objective
    memory = dataclasses.replace(XLNET, memory_length=384, reuse_length=256)
    assert PermutationLM().resolved(data, memory) == objective
    single = dataclasses.replace(data, form="doc_sentences", reuse_length=0)
    assert PermutationLM().resolved(single, XLNET).reuse_length == 0
    for model, rows, fields, message in (
        (preset("bert", "base"), data, {}, "positions='two_stream', not 'learned'"),
        (memory, single, {}, "memory_length=384 needs data.form='reuse_pair'"),
        (
            dataclasses.replace(memory, reuse_length=0),
            data,
            {},
            "model.reuse_length=0 must be data.reuse_length=256",
        ),
        (XLNET, dataclasses.replace(single, form="packed"), {}, "form='packed'"),
        (XLNET, data, {"reuse_length": 128}, "reuse_length=128 must be that"),
    ):
        with pytest.raises(UserError, match=message):
            PermutationLM(**fields).resolved(rows, model)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"predict_share": 0.0}, "predict_share=0.0 must be in"),
        ({"predict_share": 1.5}, "predict_share=1.5 must be in"),
        ({"max_ngram": 0}, "max_ngram=0 must be"),
        ({"permute_within": 0}, "permute_within=0 must be"),
        ({"max_predictions": 0}, "max_predictions=0 must be"),
    ],
)
def test_impossible_fields_are_refused(fields, message):
    with pytest.raises(UserError, match=message):
        PermutationLM(**fields)


def test_it_stands_beside_no_corruption():
    with pytest.raises(UserError, match=r"plm and objectives\.mlm do not go together"):
        check_together((MaskedLM(), PermutationLM()))
