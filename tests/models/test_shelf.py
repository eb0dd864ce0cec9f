"""The parts of the shelf against plain formulas: windows, distances, rotations."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers import ModernBertConfig
from transformers.models.deberta_v2.modeling_deberta_v2 import (
    make_log_bucket_position,
)
from transformers.models.modernbert.modeling_modernbert import apply_rotary_pos_emb

from encoderjax.errors import UserError
from encoderjax.models.attention import (
    Context,
    attend,
    attend_locally,
    rotate,
    rotation,
)
from encoderjax.models.config import EncoderConfig
from encoderjax.models.disentangled import DisentangledAttention, log_buckets
from encoderjax.models.encoder import Encoder
from encoderjax.models.families import preset
from encoderjax.models.heads import EncoderModel
from encoderjax.models.relative import distances, key_scores, query_scores, skew
from encoderjax.models.sight import Sight
from tests.families import random_params

SMALL = EncoderConfig(
    vocab_size=50, num_layers=2, width=24, num_heads=3, mlp_width=32, max_length=32
)


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


# ---- windows ----


@pytest.mark.parametrize(
    ("length", "window", "masked"),
    [(50, 6, True), (64, 8, True), (65, 8, False), (40, 9, True)],
)
def test_local_attention_is_attention_to_near_keys(length, window, masked):
    q, k, v = (random(2, length, 3, 8, seed=i) for i in range(3))
    mask_BL = np.arange(length) < np.array([[length], [length - 17]])
    mask_BL = mask_BL if masked else None
    place = np.arange(length)
    near = np.abs(place[:, None] - place) <= window // 2
    visible = near[None, None] & (True if mask_BL is None else mask_BL[:, None, None])

    def plain(q, k, v):
        return jnp.sum(jnp.sin(attend(q, k, v, visible=jnp.asarray(visible))))

    def blocked(q, k, v):
        out = attend_locally(q, k, v, mask_BL=mask_BL, window=window)
        return jnp.sum(jnp.sin(out))

    values = jax.jit(jax.value_and_grad(plain, (0, 1, 2)))(q, k, v)
    others = jax.jit(jax.value_and_grad(blocked, (0, 1, 2)))(q, k, v)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), values, others
    )


def operations(length: int, window: int | None) -> float:
    shape = jax.ShapeDtypeStruct((1, length, 2, 16), jnp.float32)
    if window is None:
        # Whole: the compiler counts a loop's body once.
        run = lambda q, k, v: attend(q, k, v, visible=None, block=length)
    else:
        run = lambda q, k, v: attend_locally(q, k, v, mask_BL=None, window=window)
    return jax.jit(run).lower(shape, shape, shape).compile().cost_analysis()["flops"]


def test_local_attention_costs_length_times_window():
    assert operations(2048, 64) == pytest.approx(2 * operations(1024, 64), rel=0.05)
    assert operations(2048, 64) < operations(2048, None) / 10


def test_rows_that_the_tables_do_not_reach_are_refused():
    for positions in ("learned", "relative_key"):
        config = dataclasses.replace(SMALL, positions=positions, max_length=8)
        with pytest.raises(UserError, match=r"rows of 9 tokens .* model\.max_length=8"):
            outputs(config)
    with pytest.raises(UserError, match=r"head='nsp' needs model\.pooler=True"):
        outputs(dataclasses.replace(SMALL, pooler=False), "nsp")


def test_who_may_look_at_nothing_gets_0():
    q, k, v = (random(2, 5, 3, 8, seed=i) for i in range(3))
    visible = np.ones((2, 1, 5, 5), bool)
    visible[1, :, 2:] = False
    out = attend(q, k, v, visible=jnp.asarray(visible))
    assert not np.any(out[1, 2:])
    assert np.all(np.any(np.asarray(out[1, :2]), axis=-1))


# ---- rotations ----


@pytest.mark.parametrize("theta", [10_000.0, 160_000.0])
def test_rotation_is_pytorchs(theta):
    q, k = random(2, 8192, 1, 64), random(2, 8192, 1, 64, seed=1)
    inverse = 1.0 / (theta ** (torch.arange(0, 64, 2, dtype=torch.float) / 64))
    angle = torch.arange(8192)[:, None].float() * inverse
    both = torch.cat((angle, angle), dim=-1)[None]
    expected = apply_rotary_pos_emb(
        torch.tensor(q), torch.tensor(k), both.cos(), both.sin(), unsqueeze_dim=2
    )
    by = rotation(8192, 64, theta)
    for ours, theirs in zip((q, k), expected, strict=True):
        np.testing.assert_allclose(rotate(jnp.asarray(ours), by), theirs, atol=2e-6)


# ---- distances ----


@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (4, 9)])
def test_skew_puts_every_distance_in_its_place(queries, keys):
    table_R = distances(queries, keys)
    rows = np.broadcast_to(table_R, (2, queries, len(table_R))).astype(np.float32)
    place = np.arange(queries) + keys - queries
    expected = place[:, None] - np.arange(keys)
    assert np.array_equal(skew(jnp.asarray(rows))[1], expected)


@pytest.mark.parametrize("chosen", [True, False])
def test_scores_by_distance_are_a_lookup(chosen):
    length, heads, width = 6, 3, 4
    table = random(2 * length - 1, heads, width)
    places = np.array([[4, 0, 4], [5, 2, 1]])
    rows = places if chosen else np.broadcast_to(np.arange(length), (2, length))
    q, k = (
        random(2, rows.shape[1], heads, width),
        random(2, length, heads, width, seed=1),
    )
    by_query = query_scores(q, table, length, places if chosen else None)
    by_key = key_scores(k, jnp.asarray(table), places if chosen else None)
    chosen_BLM = table[length - 1 - (rows[:, :, None] - np.arange(length))]
    expected = np.einsum("blhk,blmhk->bhlm", q, chosen_BLM)
    np.testing.assert_allclose(by_query, expected, atol=1e-5)
    expected = np.einsum("bmhk,blmhk->bhlm", k, chosen_BLM)
    np.testing.assert_allclose(by_key, expected, atol=1e-5)


def test_logarithmic_buckets_are_the_references():
    distance = np.arange(-2100, 2101)
    for buckets, farthest in ((256, 512), (32, 128), (8, 24), (7, 24), (256, 2048)):
        expected = make_log_bucket_position(torch.tensor(distance), buckets, farthest)
        ours = log_buckets(distance, buckets, farthest)
        assert np.array_equal(ours, expected.long().numpy())
    known = {128: 128, 200: 169, 256: 192, 400: 233, 510: 255, 511: 255, -400: -233}
    ours = log_buckets(np.array(list(known)), 256, 512)
    assert ours.tolist() == list(known.values())


# ---- the notes' readings ----


def outputs(config: EncoderConfig, *heads: str, **inputs):
    """Returns random parameters and what they compute."""
    model, params = EncoderModel(config, heads), random_params(config, *heads)
    ids_BL = np.random.default_rng(0).integers(0, 50, (2, 9))
    run = lambda params: model.apply({"params": params}, ids_BL, layers=True, **inputs)
    return params, jax.jit(run)(params)


def states(config: EncoderConfig):
    params, out = outputs(config)
    return params["encoder"], np.asarray(out.layers)


def softmax(x):
    x = np.exp(x - x.max(axis=-1, keepdims=True))
    return x / x.sum(axis=-1, keepdims=True)


def normalised(x):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)


def after_attention(encoder, x_BLD, weights_BHLM):
    """Returns the state after the first layer, given where its queries look."""
    layer = jax.tree.map(lambda leaf: np.asarray(leaf[0]), encoder["layers"])
    dense = lambda part, x: x @ part["kernel"] + part["bias"]
    scaled = lambda name, x: normalised(x) * layer[name]["scale"] + layer[name]["bias"]
    mixed = np.einsum(
        "bhlm,bmhk->blhk", weights_BHLM, projected(encoder, "value", x_BLD)
    )
    out = layer["attention"]["out"]
    found = np.einsum("blhk,hkd->bld", mixed, out["kernel"]) + out["bias"]
    x_BLD = scaled("attention_norm", x_BLD + found)
    up = torch.nn.functional.gelu(torch.tensor(dense(layer["mlp"]["up"], x_BLD)))
    return scaled("mlp_norm", x_BLD + dense(layer["mlp"]["down"], up.numpy()))


def projected(encoder, name, x):
    part = jax.tree.map(lambda leaf: leaf[0], encoder["layers"]["attention"][name])
    return np.einsum("...d,dhk->...hk", x, part["kernel"]) + part["bias"]


def test_relative_keys_are_added_to_the_scores():
    config = dataclasses.replace(SMALL, positions="relative_key")
    encoder, layers = states(config)
    assert "position_embed" not in encoder
    x = layers[0]
    q, k = (projected(encoder, name, x) for name in ("query", "key"))
    table = np.asarray(encoder["layers"]["attention"]["distance_embed"]["embedding"][0])
    place = np.arange(9)
    by_distance = table[place[:, None] - place + config.max_length - 1]
    scores = np.einsum("blhk,bmhk->bhlm", q, k)
    scores += np.einsum("blhk,lmk->bhlm", q, by_distance)
    expected = after_attention(encoder, x, softmax(scores / np.sqrt(8)))
    np.testing.assert_allclose(layers[1], expected, atol=1e-4)


def test_product_is_that_of_two_softmaxes_renormalised():
    config = dataclasses.replace(
        SMALL,
        positions="disentangled",
        score_combination="product",
        share_position_projections=True,
        num_segments=0,
    )
    encoder, layers = states(config)
    x = layers[0]
    q, k = (projected(encoder, name, x) for name in ("query", "key"))
    table = np.asarray(encoder["distance_embed"]["embedding"])
    place = np.arange(9)
    rows = place[:, None] - place + config.max_length
    qr, kr = (projected(encoder, name, table) for name in ("query", "key"))
    content = softmax(np.einsum("blhk,bmhk->bhlm", q, k) / np.sqrt(8))
    position = softmax(np.einsum("lmhk,lmhk->hlm", qr[rows], kr[rows]) / np.sqrt(8))
    weights = content * position
    weights /= weights.sum(axis=-1, keepdims=True)
    expected = after_attention(encoder, x, weights)
    np.testing.assert_allclose(layers[1], expected, atol=1e-4)


def test_bare_head_is_the_token_table_alone():
    config = dataclasses.replace(SMALL, mlm_head="bare")
    params, out = outputs(config, "mlm")
    assert "heads" not in params
    table = params["encoder"]["token_embed"]["embedding"]
    np.testing.assert_allclose(out.logits, out.hidden @ table.T, atol=1e-4)


def test_pair_head_on_the_raw_first_state():
    config = dataclasses.replace(SMALL, pair_head="raw_cls", pooler=False)
    params, out = outputs(config, "nsp")
    dense = params["heads"]["nsp"]["dense"]
    expected = out.hidden[:, 0] @ dense["kernel"] + dense["bias"]
    np.testing.assert_allclose(out.logits, expected, atol=1e-5)


def test_summary_is_of_the_first_or_the_last_real_token():
    right_BL = np.arange(9) < np.array([[9], [5]])
    for mask_BL, summary, places in (
        (right_BL, "first", (0, 0)),
        (right_BL, "last", (8, 4)),
        (right_BL[:, ::-1], "first", (0, 4)),  # padded as XLNet pads
        (right_BL[:, ::-1], "last", (8, 8)),
    ):
        config = dataclasses.replace(SMALL, summary=summary)
        params, out = outputs(config, mask_BL=mask_BL)
        pooler = params["encoder"]["pooler"]
        chosen = np.asarray(out.hidden)[np.arange(2), list(places)]
        expected = np.tanh(chosen @ pooler["kernel"] + pooler["bias"])
        np.testing.assert_allclose(out.pooled, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"positions": "sinusoid"}, "positions='sinusoid' must be one of"),
        ({"position_terms": ("p2p",)}, "'c2p' and 'p2c' only"),
        ({"window": 4, "positions": "disentangled"}, "window=4"),
        ({"mask_decoder_layers": 2, "norm_at": "before"}, "norm_at='after'"),
        ({"mask_decoder_layers": 2, "num_layers": 1}, "at least two layers"),
        ({"memory_length": 4}, "memory_length=4 needs positions='two_stream'"),
        ({"positions": "rope", "num_heads": 8}, "must be even"),
        ({"conv_width": 4}, "conv_width=4 must be odd"),
        ({"position_buckets": 1}, "position_buckets=1 must be 0"),
        ({"pair_head": "raw_cls", "positions": "two_stream"}, "which is padding"),
        ({"mask_decoder_layers": 2, "embed_width": 8}, "embed_width"),
        ({"mask_decoder_layers": 2, "positions": "rope"}, "positions='rope'"),
        ({"boundary_slots": 0}, "boundary_slots=0 must be at least 1"),
        ({"sharing": "all", "layer_groups": 3}, "layer_groups=3 exceeds"),
        ({"num_segments": -1}, "num_segments=-1 must be at least 0"),
        ({"embed_width": 0}, "embed_width=0 must be at least 1, or None"),
    ],
)
def test_what_makes_no_sense_is_refused(fields, words):
    with pytest.raises(UserError) as error:
        dataclasses.replace(SMALL, **fields)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


# ---- what the published sizes see ----


@pytest.mark.parametrize("size", ["base", "large"])
def test_modernbert_sees_64_tokens_on_either_side(size):
    config = preset("modernbert", size)
    assert config.window == ModernBertConfig().local_attention == 128
    length, query = 300, 150
    q, k, v = (random(1, length, 1, 4, seed=i) for i in range(3))

    def found(v):  # the gradient shows which values reach the query
        out = attend_locally(q, k, v, mask_BL=None, window=config.window or 0)
        return jnp.sum(out[0, query])

    reached = np.flatnonzero(np.abs(jax.jit(jax.grad(found))(v)).sum(axis=(0, 2, 3)))
    assert reached.tolist() == list(range(query - 64, query + 65))


def test_a_query_of_deberta_without_keys_finds_nothing():
    """Scores by distance do not give it any: what is left is the output's bias."""
    config = dataclasses.replace(SMALL, positions="disentangled", num_segments=0)
    attention = DisentangledAttention(config, jnp.float32)
    x_BLD, table_SD = random(2, 5, 24), random(64, 24, seed=1)
    visible = np.ones((2, 1, 5, 5), bool)
    visible[1, :, 2:] = False
    context = Context(
        visible=Sight(pairs=jnp.asarray(visible)), table=jnp.asarray(table_SD)
    )
    params = attention.init(jax.random.key(0), x_BLD, x_BLD, context, None)
    bias = random(24, seed=2)
    params["params"]["out"]["bias"] = bias
    out = np.asarray(attention.apply(params, x_BLD, x_BLD, context, None))
    assert np.array_equal(out[1, 2:], np.broadcast_to(bias, (3, 24)))
    assert np.abs(out[1, :2] - bias).max() > 1e-3


@pytest.mark.parametrize("family", ["roberta", "xlm_roberta"])
def test_positions_of_roberta_begin_at_2_and_padding_has_row_1(family):
    published = preset(family, "base")
    assert published.max_length == 512
    config = dataclasses.replace(
        published, vocab_size=50, num_layers=1, width=8, num_heads=1, max_length=6
    )
    params = random_params(config)["encoder"]
    assert params["position_embed"]["embedding"].shape == (8, 8)
    ids_BL = np.array([[0, 7, 9, 2, 1, 1]])  # <s>, two tokens, </s>, <pad>

    def embedded(table):
        own = params | {"position_embed": {"embedding": table}}
        inputs = ids_BL, 0 * ids_BL, None
        return Encoder(config).apply({"params": own}, *inputs, method=Encoder.embed)[0]

    table = params["position_embed"]["embedding"]
    before, places = embedded(table), {}
    for row in range(8):
        moved = table + np.where(np.arange(8) == row, 1.0, 0.0)[:, None] * random(8)
        (places[row],) = np.nonzero(np.abs(embedded(moved) - before).max(axis=1) > 1e-3)
    expected = {1: [4, 5], 2: [0], 3: [1], 4: [2], 5: [3]}
    assert {row: found.tolist() for row, found in places.items() if len(found)} == (
        expected
    )
