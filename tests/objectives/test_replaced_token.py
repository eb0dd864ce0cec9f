"""Replaced-token detection: losses against PyTorch, draws, gradients, sharing."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from encoderjax.errors import UserError
from encoderjax.interop.huggingface import config_to_hf, params_to_hf
from encoderjax.interop.joint import discriminator_alone, generator_alone
from encoderjax.models.config import EncoderConfig
from encoderjax.models.dropout import DropoutKey, gumbel
from encoderjax.models.families import preset
from encoderjax.objectives import MaskedLM, ReplacedTokens, head_names
from encoderjax.objectives.objective import check_together
from encoderjax.objectives.pairs import NextSentence
from encoderjax.objectives.pretrainer import Pretrainer, divide
from encoderjax.objectives.replaced_token import put_in
from encoderjax.objectives.vocabulary_loss import Draw, draw_tokens
from encoderjax.training.mesh import BatchPlacement, MeshConfig, make_mesh
from encoderjax.training.optimizer import OptimizerConfig, make_optimizer
from encoderjax.training.step import abstract_state, init_state, make_train_step
from tests.families import random_params

VOCAB, ROWS, LENGTH, SLOTS, MASK_ID, COMMON = 90, 8, 20, 6, 4, 9
SHARINGS = ("all", "disentangled", "none")
SMALL = {"vocab_size": VOCAB, "num_layers": 1, "width": 32, "num_heads": 2}
SMALL |= {"mlp_width": 48, "max_length": 24}
ELECTRA = dataclasses.replace(preset("electra", "small"), **SMALL, embed_width=16)
NARROW = {"width": 24, "num_heads": 2, "mlp_width": 40}


def make_pretrainer(sharing="all", encoder=ELECTRA, generator=None, **fields):
    changes = NARROW if generator is None else generator
    rtd = ReplacedTokens(sharing=sharing, generator=changes, **fields)
    objectives = (MaskedLM(max_predictions=SLOTS), rtd)
    return Pretrainer.create(encoder, objectives, jnp.float32)


def random_weights(pretrainer: Pretrainer) -> dict:
    model = pretrainer.model
    generator = model.with_generator
    return random_params(model.config, *model.head_names, generator=generator)


def make_batch(seed=0, rows=ROWS) -> tuple[dict, np.ndarray]:
    """Returns masked rows of several lengths, and the text before it was masked.

    Of the selected places, every third was left as it is. The first of every row has
    the same token.
    """
    rng = np.random.default_rng(seed)
    lengths = rng.integers(LENGTH // 2, LENGTH + 1, (rows, 1))
    mask = np.arange(LENGTH) < lengths
    text = np.where(mask, rng.integers(5, VOCAB, mask.shape), 0).astype("i4")
    places = np.tile(np.arange(1, LENGTH // 2), (rows, 1))
    positions = rng.permuted(places, axis=1)[:, :SLOTS].astype("i4")
    used = np.arange(SLOTS) < rng.integers(1, SLOTS + 1, (rows, 1))
    positions = np.where(used, positions, 0)
    text[np.arange(rows), positions[:, 0]] = COMMON
    ids = text.copy()
    kinds = np.where(np.arange(SLOTS) % 3 == 2, 2, 0)[None].repeat(rows, 0)
    for row, slot in zip(*np.nonzero(used & (kinds == 0)), strict=True):
        ids[row, positions[row, slot]] = MASK_ID
    batch = {
        "ids": ids,
        "mask": mask,
        "segments": ((np.arange(LENGTH) > lengths // 2) & mask).astype("i4"),
        "row": rng.integers(0, 2**20, rows).astype("u4"),
        "row_weights": np.ones(rows, "f4"),
        "mlm/positions": positions,
        "mlm/labels": np.take_along_axis(text, positions, axis=1),
        "mlm/weights": used.astype("f4"),
        "mlm/kinds": kinds.astype("i4"),
    }
    return batch, text


BATCH, TEXT = make_batch()


def rewritten(pretrainer: Pretrainer, params, batch) -> dict:
    """Returns the batch as the discriminator is given it."""
    rtd = pretrainer.objectives[-1]
    # As in evaluation, so that these are the draws that were measured.
    key = DropoutKey.create(0, jnp.asarray(0), jnp.asarray(batch["row"]))
    run = lambda model, batch: rtd.rewrite(model, batch, key, None)[0]
    apply = lambda p, batch: pretrainer.model.apply({"params": p}, batch, method=run)
    return jax.device_get(jax.jit(apply)(params, batch))


def means(pretrainer: Pretrainer, params, batch, dropout=None) -> dict:
    def measure(params):
        terms, _ = pretrainer.sums(params, {}, {}, batch, dropout)
        counts = pretrainer.counts(batch)
        return divide(terms, counts) | {"loss": pretrainer.loss(terms, counts)}

    return {k: float(v) for k, v in jax.jit(measure)(params).items()}


def in_torch(model_class, config: EncoderConfig, params: dict):
    """Returns a model of transformers with our parameters."""
    heads = tuple(params["heads"])
    told = config_to_hf(config, "electra", heads)
    model = model_class(transformers.ElectraConfig(**told)).eval()
    tensors, homeless = params_to_hf(params, "electra", config)
    assert not homeless
    state = {name: torch.tensor(np.asarray(t)) for name, t in tensors.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert set(missing) <= {
        "generator_lm_head.weight",
        "electra.embeddings.position_ids",
    }
    model.tie_weights()
    return model


def torch_inputs(batch: dict, ids: np.ndarray) -> dict:
    as_long = lambda x: torch.tensor(np.asarray(x), dtype=torch.long)
    return {
        "input_ids": as_long(ids),
        "attention_mask": as_long(batch["mask"]),
        "token_type_ids": as_long(batch["segments"]),
    }


# ---- losses ----


@pytest.mark.parametrize("sharing", SHARINGS)
def test_both_losses_are_those_of_transformers(sharing):
    pretrainer = make_pretrainer(sharing)
    generator = pretrainer.model.with_generator
    assert generator is not None
    params = random_weights(pretrainer)
    # Some of the draws shall be the original.
    params["generator"]["heads"]["mlm"]["bias"][COMMON] += 5.0
    found = means(pretrainer, params, BATCH)

    theirs = in_torch(
        transformers.ElectraForMaskedLM,
        generator.config,
        generator_alone(params, generator),
    )
    labels = np.full(BATCH["ids"].shape, -100)
    row, slot = np.nonzero(BATCH["mlm/weights"])
    places = BATCH["mlm/positions"][row, slot]
    labels[row, places] = BATCH["mlm/labels"][row, slot]
    with torch.no_grad():
        out = theirs(**torch_inputs(BATCH, BATCH["ids"]), labels=torch.tensor(labels))
    assert found["mlm_loss"] == pytest.approx(float(out.loss), abs=1e-5)
    hits = out.logits.argmax(-1).numpy()[row, places] == labels[row, places]
    assert found["mlm_accuracy"] == pytest.approx(hits.mean(), abs=1e-6)

    given = rewritten(pretrainer, params, BATCH)
    replaced = (given["ids"] != TEXT).astype("i8")
    assert 0 < replaced.sum() < len(row)
    theirs = in_torch(
        transformers.ElectraForPreTraining,
        ELECTRA,
        discriminator_alone(params, generator),
    )
    with torch.no_grad():
        inputs = torch_inputs(BATCH, given["ids"])
        out = theirs(**inputs, labels=torch.tensor(replaced))
    assert found["rtd_loss"] == pytest.approx(float(out.loss), abs=1e-5)
    assert found["loss"] == pytest.approx(
        found["mlm_loss"] + 50 * found["rtd_loss"], rel=1e-6
    )
    flagged, real = (out.logits > 0).numpy(), BATCH["mask"]
    shares = {
        "rtd_accuracy": flagged == replaced,
        "rtd_replaced_share": replaced,
        "rtd_flagged_share": flagged,
        "rtd_found_share": flagged & (replaced == 1),
    }
    for name, value in shares.items():
        assert found[name] == pytest.approx(value[real].mean(), abs=1e-6), name


def test_the_detection_of_deberta_v3_adds_cls_to_every_token():
    """Its head in numpy: no class of transformers has it."""
    small = dataclasses.replace(
        preset("deberta_v3", "base"), **SMALL | {"num_layers": 2}
    )
    pretrainer = make_pretrainer("disentangled", small, {"mask_decoder_layers": 2})
    params = random_weights(pretrainer)
    given = rewritten(pretrainer, params, BATCH)
    encode = lambda p: pretrainer.model.apply(
        {"params": p}, given["ids"], BATCH["mask"], None, method="encode"
    )
    hidden = np.asarray(jax.jit(encode)(params).hidden, np.float64)
    head = jax.tree.map(lambda x: np.asarray(x, np.float64), params["heads"]["rtd"])
    x = hidden + hidden[:, 0][:, None]
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-7)
    x = x * head["norm"]["scale"] + head["norm"]["bias"]
    x = x @ head["dense"]["kernel"] + head["dense"]["bias"]
    x = torch.nn.functional.gelu(torch.tensor(x)).numpy()
    scores = (x @ head["score"]["kernel"] + head["score"]["bias"])[:, :, 0]
    replaced = given["ids"] != TEXT
    losses = np.logaddexp(0.0, np.where(replaced, -scores, scores))
    found = means(pretrainer, params, BATCH)
    assert found["rtd_loss"] == pytest.approx(losses[BATCH["mask"]].mean(), abs=1e-5)
    hits = (scores > 0) == replaced
    assert found["rtd_accuracy"] == pytest.approx(hits[BATCH["mask"]].mean(), abs=1e-6)


def test_rows_without_weight_change_nothing():
    pretrainer = make_pretrainer()
    params = random_weights(pretrainer)
    filled = {name: np.concatenate([v, v[:2]]) for name, v in BATCH.items()}
    filled["row_weights"][ROWS:] = 0
    filled["mlm/weights"][ROWS:] = 0
    expected = means(pretrainer, params, BATCH)
    assert means(pretrainer, params, filled) == pytest.approx(expected, rel=1e-5)


def test_the_loss_starts_where_nothing_is_known():
    """As the published logs do: ln V and 50 times ln 2."""
    encoder = dataclasses.replace(preset("electra", "small"), num_layers=1)
    generator = {"width": 64, "num_heads": 1, "mlp_width": 256}
    pretrainer = make_pretrainer("all", encoder, generator)
    params = jax.jit(pretrainer.init)(jax.random.key(0))
    batch, _ = make_batch(rows=64)
    # Of the whole vocabulary: scores at masked places are alike, so few labels would
    # have a common error.
    labels = np.random.default_rng(1).integers(5, 30_522, batch["mlm/labels"].shape)
    batch["mlm/labels"] = labels.astype("i4")
    found = means(pretrainer, params, batch)
    assert found["mlm_loss"] == pytest.approx(np.log(30_522), abs=0.1)
    assert found["rtd_loss"] == pytest.approx(np.log(2), abs=0.05)
    assert 43 < found["loss"] < 48


# ---- what the discriminator is given ----


def test_a_draw_counts_as_replaced_only_where_it_differs():
    #            0  1  2  3  4  5  6
    text = [10, 11, 12, 13, 14, 15, 16]
    batch = {
        "ids": np.array([[10, 4, 12, 4, 4, 15, 16], [4, 11, 12, 13, 14, 15, 16]], "i4"),
        # Slot 3 names place 3 again, slot 4 is unused. Place 5 was left unmasked.
        "mlm/positions": np.array([[3, 1, 5, 3, 0, 4], [0, 0, 0, 0, 0, 0]], "i4"),
        "mlm/labels": np.array(
            [[13, 11, 15, 13, 10, 14], [10, 10, 10, 10, 10, 10]], "i4"
        ),
        "mlm/weights": np.array([[1, 1, 1, 1, 0, 1], [0, 1, 1, 0, 0, 0]], "f4"),
    }
    drawn = np.array([[50, 11, 52, 13, 54, 55], [60, 61, 10, 63, 64, 65]], "i4")
    out = put_in({k: jnp.asarray(v) for k, v in batch.items()}, jnp.asarray(drawn))
    first, second = np.asarray(out["ids"]).tolist()
    assert first == [10, 11, 12, 50, 55, 52, 16]
    assert second == [61, *text[1:]]
    labels = np.asarray(out["rtd/labels"])
    assert labels.tolist() == [[0, 0, 0, 1, 1, 1, 0], [1, 0, 0, 0, 0, 0, 0]]
    # The same slots the other way round: the first of a place wins again.
    turned = {k: v[:, ::-1] if v.shape[1] == 6 else v for k, v in batch.items()}
    turned = {k: jnp.asarray(v) for k, v in turned.items()}
    other = put_in(turned, jnp.asarray(drawn[:, ::-1]))
    assert np.asarray(other["ids"])[0].tolist() == [10, 11, 12, 13, 55, 52, 16]
    assert np.asarray(other["rtd/labels"])[0].tolist() == [0, 0, 0, 0, 1, 1, 0]


@pytest.mark.parametrize("sure_of", ["the original", "another"])
def test_a_generator_that_is_sure_decides_the_labels(sure_of):
    pretrainer = make_pretrainer("none")
    params = random_weights(pretrainer)
    token = 7
    batch = dict(BATCH)
    if sure_of == "the original":
        batch["mlm/labels"] = np.full_like(batch["mlm/labels"], token)
    bias = np.zeros(VOCAB, "f4")
    bias[token] = 1e4
    params["generator"]["heads"]["mlm"]["bias"] = bias
    given = rewritten(pretrainer, params, batch)
    row, slot = np.nonzero(batch["mlm/weights"])
    places = row, batch["mlm/positions"][row, slot]
    assert (given["ids"][places] == token).all()
    labels = batch["mlm/labels"][row, slot]
    assert np.array_equal(given["rtd/labels"][places], (labels != token).astype("i4"))
    other = np.ones_like(batch["mask"])
    other[places] = False
    assert np.array_equal(given["ids"][other], TEXT[other])
    assert not given["rtd/labels"][other].any()


def test_a_place_that_was_drawn_twice_counts_twice_for_the_generator_only():
    """As in ELECTRA's code, whose places are drawn with replacement."""
    pretrainer = make_pretrainer()
    params = random_weights(pretrainer)
    twice = {name: np.array(value) for name, value in BATCH.items()}
    for name in ("positions", "labels", "weights", "kinds"):
        twice[f"mlm/{name}"][:, 1] = twice[f"mlm/{name}"][:, 0]
    given = rewritten(pretrainer, params, twice)
    assert pretrainer.counts(twice)["mlm_loss"] == twice["mlm/weights"].sum()
    assert pretrainer.counts(twice)["rtd_loss"] == twice["mask"].sum()
    once = {name: np.array(value) for name, value in twice.items()}
    once["mlm/weights"][:, 1] = 0
    assert np.array_equal(given["ids"], rewritten(pretrainer, params, once)["ids"])


# ---- draws ----


def draws(logits_V, *, rows, slots, temperature=1.0, step=0, seed=0):
    key = DropoutKey.create(seed, jnp.asarray(step), jnp.asarray(rows))
    shape = (len(rows), slots, len(logits_V))
    logits = jnp.broadcast_to(jnp.asarray(logits_V), shape)
    return np.asarray(draw_tokens(logits, Draw(key, temperature)))


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_draws_follow_the_softmax(temperature):
    logits = np.array([2.0, 0.0, -1.0, 1.0, -4.0, 0.5, -8.0, 1.9], "f4")
    chances = np.exp(logits / temperature)
    chances /= chances.sum()
    drawn = draws(logits, rows=np.arange(400), slots=100, temperature=temperature)
    counts = np.bincount(drawn.ravel(), minlength=8)
    expected = chances * drawn.size
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 7 + 5 * np.sqrt(14)
    # Alike in every row, and in every slot.
    for axis in (0, 1):
        share = (drawn == 0).mean(axis=axis)
        error = np.sqrt(chances[0] * (1 - chances[0]) * len(share) / drawn.size)
        assert np.abs(share - chances[0]).max() < 5 * error


def test_draws_of_rows_slots_and_steps_are_independent():
    logits = np.zeros(2, "f4")
    first = draws(logits, rows=np.arange(300), slots=100)
    others = (
        (first[1:], first[:-1]),
        (first[:, 1:], first[:, :-1]),
        (first, draws(logits, rows=np.arange(300), slots=100, step=1)),
        (first, draws(logits, rows=np.arange(300), slots=100, seed=1)),
    )
    for one, other in others:
        correlation = np.corrcoef(one.ravel(), other.ravel())[0, 1]
        assert abs(correlation) < 5 / np.sqrt(one.size)


def test_a_row_is_drawn_for_alike_wherever_it_stands():
    logits = np.zeros(50, "f4")
    together = draws(logits, rows=[7, 3, 11], slots=9)
    assert np.array_equal(together[2:], draws(logits, rows=[11], slots=9))


def test_noise_has_the_distribution_of_gumbel_far_out_too():
    key = DropoutKey.create(0, jnp.asarray(0), jnp.arange(40))
    noise = np.asarray(jax.jit(lambda: gumbel(key, (40, 50, 2000)))())
    assert np.isfinite(noise).all()
    assert noise.mean() == pytest.approx(0.577216, abs=5 * 1.2825 / np.sqrt(noise.size))
    assert noise.std() == pytest.approx(np.pi / np.sqrt(6), rel=0.005)
    for bound in (-2.0, 0.0, 3.0, 8.0):
        expected = noise.size * (1 - np.exp(-np.exp(-bound)))
        assert abs((noise > bound).sum() - expected) < 5 * np.sqrt(expected)
    assert noise.max() > 12


# ---- gradients ----


def touched(tree) -> dict[str, bool]:
    """Returns which parameters have any gradient, by path."""
    flat = jax.tree_util.tree_flatten_with_path(tree)[0]
    path = lambda keys: jax.tree_util.keystr(keys, simple=True, separator="/")
    return {path(keys): bool(np.any(leaf)) for keys, leaf in flat}


def gradients(pretrainer, params, *terms: str) -> list[dict[str, bool]]:
    def run(params):
        losses = lambda p: [
            pretrainer.sums(p, {}, {}, BATCH, None)[0][t] for t in terms
        ]
        _, backward = jax.vjp(losses, params)
        ones = np.eye(len(terms), dtype="f4")
        return [backward(list(jnp.asarray(row)))[0] for row in ones]

    return [touched(tree) for tree in jax.jit(run)(params)]


TABLES = ("token_embed", "position_embed", "segment_embed", "embed_norm")


@pytest.mark.parametrize("sharing", SHARINGS)
def test_each_loss_moves_its_own_network_and_what_both_share(sharing):
    pretrainer = make_pretrainer(sharing)
    params = random_weights(pretrainer)
    by_rtd, by_mlm = gradients(pretrainer, params, "rtd_loss", "mlm_loss")
    for path, moved in by_rtd.items():
        # The scores ignore a constant in the keys: their bias has no gradient.
        if path.endswith("key/bias"):
            continue
        assert moved == (not path.startswith("generator/")), path
    for path, moved in by_mlm.items():
        if path.endswith("key/bias"):
            continue
        is_table = path.split("/")[1] in TABLES and not path.startswith("generator/")
        shared = sharing == "all" and is_table
        assert moved == (shared or path.startswith("generator/")), path


def test_disentangled_tables_are_a_constant_and_a_difference():
    pretrainer = make_pretrainer("disentangled")
    params = jax.jit(pretrainer.init)(jax.random.key(1))
    encoder, beneath = params["encoder"], params["generator"]["encoder"]
    for name in ("token_embed", "position_embed"):
        assert not np.any(encoder[name]["embedding"])
        assert np.any(beneath[name]["embedding"])
    assert np.any(encoder["segment_embed"]["embedding"])  # each has its own

    # The same network with whole tables, after the difference has moved.
    params = random_weights(pretrainer)
    generator = pretrainer.model.with_generator
    whole = discriminator_alone(params, generator)
    plain = pretrainer.model.clone(with_generator=None)
    inputs = BATCH["ids"], BATCH["mask"], BATCH["segments"]
    logits = lambda model: jax.jit(lambda p: model.apply({"params": p}, *inputs).logits)
    expected, found = logits(plain)(whole), logits(pretrainer.model)(params)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_generator_drops_for_itself():
    """Two networks alike drop different things of the same rows."""
    encoder = dataclasses.replace(ELECTRA, embed_width=None, dropout_rate=0.3)
    pretrainer = make_pretrainer("none", encoder, generator={})
    params = random_weights(pretrainer)
    params["generator"]["encoder"] = params["encoder"]
    key = DropoutKey.create(0, jnp.asarray(0), jnp.asarray(BATCH["row"]))

    def both(model, dropout):
        inputs = BATCH["ids"], BATCH["mask"], BATCH["segments"]
        first = model.encode(*inputs, dropout=dropout).hidden
        return first, model.generate(*inputs, dropout=dropout).hidden

    apply = lambda p, key: pretrainer.model.apply({"params": p}, key, method=both)
    run = lambda key: jax.jit(apply)(params, key)
    np.testing.assert_allclose(*run(None), atol=1e-5)
    first, second = run(key)
    assert np.abs(first - second).mean() > 0.1


# ---- training ----


def train(steps, mesh_config=None, *, sharing, microbatches=1):
    """Trains on one batch; returns the metrics of each step."""
    mesh_config = mesh_config or MeshConfig(data=1)
    sizes = dataclasses.astuple(mesh_config)
    mesh = make_mesh(mesh_config, jax.devices()[: int(np.prod(sizes))])
    pretrainer = make_pretrainer(sharing)
    config = OptimizerConfig(learning_rate=3e-3, schedule="constant", clip_norm=0.0)
    optimizer, schedule = make_optimizer(config, steps=20)
    history = []
    with jax.set_mesh(mesh):
        _, shardings = abstract_state(pretrainer, optimizer, mesh)
        state = init_state(pretrainer, optimizer, shardings, 0)
        step = make_train_step(
            pretrainer,
            optimizer,
            schedule,
            mesh=mesh,
            shardings=shardings,
            microbatches=microbatches,
            seed=3,
        )
        placed = BatchPlacement(mesh, ROWS).put(BATCH)
        for _ in range(steps):
            state, metrics = step(state, placed)
            history.append({k: float(v) for k, v in jax.device_get(metrics).items()})
    return history


@pytest.fixture(scope="module")
def on_one_device():
    return {sharing: train(20, sharing=sharing) for sharing in ("all", "disentangled")}


@pytest.mark.parametrize(
    ("sharing", "mesh", "microbatches"),
    [
        ("all", MeshConfig(data=8), 1),
        ("disentangled", MeshConfig(data=1, fsdp=2, model=2), 4),
    ],
)
def test_nothing_depends_on_devices_and_microbatches(
    on_one_device, sharing, mesh, microbatches
):
    """With dropout on; the draws are the same too."""
    expected = on_one_device[sharing]
    assert expected[0]["rtd_replaced_share"] > 0.1
    found = train(2, mesh, sharing=sharing, microbatches=microbatches)
    assert found[0] == pytest.approx(expected[0], rel=1e-5, abs=1e-7)
    # After an update, whose gradients are those of the other mesh to rounding.
    assert found[1] == pytest.approx(expected[1], rel=1e-3)


def test_both_networks_learn(on_one_device):
    for history in on_one_device.values():
        for name in ("mlm_loss", "rtd_loss"):
            assert history[-1][name] < history[0][name] - 0.1, name


@pytest.mark.parametrize("sharing", ["all", "disentangled"])
def test_each_network_may_have_its_own_learning_rate(sharing):
    """Tables that both read are of the discriminator's group."""
    params = random_weights(make_pretrainer(sharing))
    groups = {"^generator/": {"learning_rate": 5e-4}}
    config = OptimizerConfig(
        learning_rate=1e-3, schedule="constant", weight_decay=0.0, groups=groups
    )
    optimizer, _ = make_optimizer(config, steps=10)
    ones = jax.tree.map(np.ones_like, params)
    update = lambda p, g: optimizer.update(g, optimizer.init(p), p)[0]
    updates = jax.jit(update)(params, ones)
    flat = jax.tree_util.tree_flatten_with_path(updates)[0]
    tables = set()
    for keys, update in flat:
        path = jax.tree_util.keystr(keys, simple=True, separator="/")
        rate = 5e-4 if path.startswith("generator/") else 1e-3
        np.testing.assert_allclose(update, -rate, rtol=1e-3, err_msg=path)
        if path.endswith("token_embed/embedding"):
            tables.add(path)
    own = {"generator/encoder/token_embed/embedding"} if sharing != "all" else set()
    assert tables == {"encoder/token_embed/embedding"} | own


# ---- configs ----


def test_the_discriminator_has_no_mlm_head():
    objectives = (MaskedLM(), ReplacedTokens(), NextSentence())
    assert head_names(objectives) == ("rtd", "nsp")
    check_together(objectives)
    with pytest.raises(UserError, match=r"objectives\.rtd needs objectives\.mlm"):
        check_together((ReplacedTokens(),))


def test_the_published_generators():
    """The sizes that were released, from the fields in which they differ."""
    for size, changes in (
        ("small", {}),
        ("base", {"width": 256, "num_heads": 4, "mlp_width": 1024}),
        ("large", {"width": 256, "num_heads": 4, "mlp_width": 1024}),
    ):
        generator = ReplacedTokens(generator=changes).generator_for(
            preset("electra", size)
        )
        assert generator.config == preset("electra", f"{size}_generator")
    v3 = ReplacedTokens(sharing="disentangled", generator={"num_layers": 6})
    generator = v3.generator_for(preset("deberta_v3", "base"))
    assert generator.config == preset("deberta_v3", "base_generator")
    again = ReplacedTokens.with_generator(preset("deberta_v3", "base"), generator)
    assert again == v3


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"temperature": 0.0}, "objectives.rtd.temperature=0.0 must be above 0"),
        ({"weight": -1.0}, "objectives.rtd.weight=-1.0"),
        ({"generator": {"wdth": 64}}, "rtd.generator.wdth is not a field"),
        ({"generator": {"width": "wide"}}, "rtd.generator.width='wide' must be"),
        ({"generator": {"mlp": "wide"}}, "rtd.generator.mlp='wide' must be one of"),
        ({"generator": {"width": 33}}, "not divisible by model.num_heads"),
        ({"generator": {"vocab_size": 7}}, "rtd.generator.vocab_size=7"),
        ({"generator": {"embed_width": 8}}, "rtd.generator.embed_width=8 must be"),
        ({"generator": {"embed_norm": False}}, "objectives.rtd.sharing='all'"),
        ({"generator": {"pooler": True}}, "rtd.generator.pooler=True"),
        (
            {"generator": {"mask_decoder_layers": 2, "num_layers": 2, "width": 16}},
            "share 'none' or 'disentangled'",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused(fields, words):
    with pytest.raises(UserError) as error:
        ReplacedTokens(**fields).generator_for(ELECTRA)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_mask_decoder_belongs_to_the_generator():
    small = dataclasses.replace(
        preset("deberta_v3", "base"), **SMALL | {"num_layers": 2}
    )
    wrong = dataclasses.replace(small, mask_decoder_layers=2)
    with pytest.raises(UserError, match=r"set it to 0, and objectives\.rtd\.generator"):
        ReplacedTokens().generator_for(wrong)
    pretrainer = make_pretrainer("disentangled", small, {"mask_decoder_layers": 2})
    params = random_weights(pretrainer)
    assert "position_embed" not in params["encoder"]
    assert "position_embed" in params["generator"]["encoder"]
    by_rtd, by_mlm = gradients(pretrainer, params, "rtd_loss", "mlm_loss")
    table = "generator/encoder/position_embed/embedding"
    assert by_mlm[table]
    assert not by_rtd[table]
