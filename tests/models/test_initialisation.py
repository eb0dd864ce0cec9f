"""What new weights are drawn from, and what is dropped out, as in each reference."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from encoderjax.errors import UserError
from encoderjax.models.config import EncoderConfig
from encoderjax.models.dropout import DropoutKey
from encoderjax.models.encoder import Encoder
from encoderjax.models.families import FAMILIES, preset

CUT = 0.87962  # the standard deviation of a normal variable that is cut off at 2
SIZES = {"vocab_size": 500, "num_layers": 3, "width": 96, "num_heads": 4}
SIZES |= {"mlp_width": 160, "max_length": 200}


@functools.cache
def drawn(family: str, size: str = "base") -> tuple[EncoderConfig, dict]:
    """Returns a small encoder of a family, and new parameters of it."""
    config = preset(family, size)
    narrow = {"embed_width": 48} if config.embed_width else {}
    config = dataclasses.replace(config, **SIZES, **narrow)
    init = lambda key: Encoder(config).init(key, jnp.zeros((1, 2), jnp.int32))
    params = jax.jit(init)(jax.random.key(3))["params"]
    return config, jax.tree.map(np.asarray, params)


def is_truncated(kernel: np.ndarray, std: float) -> None:
    """Checks a normal distribution that is cut off at two standard deviations."""
    assert np.abs(kernel).max() <= 2 * std * (1 + 1e-6)
    assert kernel.std() == pytest.approx(CUT * std, rel=0.03)


def is_normal(kernel: np.ndarray, std: float) -> None:
    assert np.abs(kernel).max() > 3 * std
    assert kernel.std() == pytest.approx(std, rel=0.03)


CUT_OFF = {"bert", "albert", "electra", "modernbert"}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_size_is_drawn_as_its_reference_draws(family):
    expected = "truncated_normal" if family in CUT_OFF else "normal"
    for config in FAMILIES[family].PRESETS.values():
        assert (config.init, config.init_std) == (expected, 0.02)


@pytest.mark.parametrize("family", ["albert", "xlnet", "deberta_v3"])
def test_kernels_and_tables_are_drawn_so(family):
    config, params = drawn(family, "small" if family == "deberta_v3" else "base")
    check = is_truncated if config.init == "truncated_normal" else is_normal
    for kernel in (
        params["token_embed"]["embedding"],
        params["layers"]["attention"]["query"]["kernel"],
        params["layers"]["attention"]["out"]["kernel"],
        params["layers"]["mlp"]["down"]["kernel"],
    ):
        check(kernel, 0.02)


# ---- RoBERTa ----


@pytest.mark.parametrize("family", ["roberta", "xlm_roberta"])
def test_the_rows_of_padding_start_at_0(family):
    config, params = drawn(family)
    assert config.position_pad_id == 1
    for table in ("token_embed", "position_embed"):
        rows = params[table]["embedding"]
        assert not rows[1].any()
        others = np.delete(rows, 1, axis=0)
        assert np.all(np.abs(others).max(axis=1) > 0)
        is_normal(others, 0.02)


def test_no_other_family_has_rows_of_0():
    for name in ("bert", "spanbert", "distilbert"):
        _, params = drawn(name)
        for table in ("token_embed", "position_embed"):
            assert np.all(np.abs(params[table]["embedding"]).max(axis=1) > 0)


def test_the_rows_of_padding_get_no_gradient_from_what_is_read():
    config, params = drawn("roberta")
    ids_BL = np.array([[5, 6, 7, 1, 1], [8, 9, 5, 6, 1]])
    real_BL = ids_BL != 1

    @jax.grad
    def gradient(params):
        out = Encoder(config).apply({"params": params}, ids_BL, real_BL)
        return jnp.sum(out.hidden**3 * real_BL[:, :, None])

    found = jax.tree.map(np.asarray, gradient(jax.tree.map(jnp.asarray, params)))
    for table in ("token_embed", "position_embed"):
        assert not found[table]["embedding"][1].any()
        assert found[table]["embedding"][5].any()


# ---- ELECTRA ----


@pytest.mark.parametrize("size", ["small", "base_generator"])
def test_electras_projection_starts_as_tensorflow_starts_it(size):
    config, params = drawn("electra", size)
    kernel = params["embed_project"]["kernel"]
    assert kernel.shape == (48, 96)
    limit = (6 / (48 + 96)) ** 0.5
    assert 0.99 * limit < np.abs(kernel).max() <= limit
    assert kernel.std() == pytest.approx(limit / 3**0.5, rel=0.03)  # uniform
    assert not params["embed_project"]["bias"].any()
    is_truncated(params["layers"]["mlp"]["up"]["kernel"], 0.02)
    scores = config.projection_initializer(jax.random.key(0), (2000, 1), jnp.float32)
    limit = (6 / 2001) ** 0.5
    assert 0.99 * limit < np.abs(scores).max() <= limit


def test_alberts_projection_starts_as_all_of_it():
    config, params = drawn("albert")
    is_truncated(params["embed_project"]["kernel"], 0.02)
    assert config.init_projection == "same"


# ---- ModernBERT ----


def test_modernberts_outputs_start_smaller():
    _, params = drawn("modernbert")
    attention, mlp = params["layers"]["attention"], params["layers"]["mlp"]
    for kernel in (
        params["token_embed"]["embedding"],
        attention["query"]["kernel"],
        attention["key"]["kernel"],
        attention["value"]["kernel"],
        mlp["up"]["kernel"],
        mlp["gate"]["kernel"],
    ):
        is_truncated(kernel, 0.02)
    for kernel in (attention["out"]["kernel"], mlp["down"]["kernel"]):
        is_truncated(kernel, 0.02 / (2 * 3) ** 0.5)


def test_modernbert_drops_what_attention_adds_and_nothing_else():
    for size in FAMILIES["modernbert"].PRESETS:
        config = preset("modernbert", size)
        assert config.attention_out_rate == 0.1
        assert config.dropout_rate == config.attention_dropout_rate == 0.0
        assert config.inner_dropout_rate == 0.0


def dropped_layers(config: EncoderConfig, params: dict, key=True) -> np.ndarray:
    ids_BL = np.random.default_rng(0).integers(0, 500, (4, 30))
    key = DropoutKey.create(1, jnp.int32(0), jnp.arange(4)) if key else None
    run = jax.jit(
        lambda params: Encoder(config).apply(
            {"params": params}, ids_BL, layers=True, dropout=key
        )
    )
    return np.asarray(run(params).layers)


def test_the_rate_of_attentions_output_stands_alone():
    config, params = drawn("modernbert")
    config = dataclasses.replace(config, attention_out_dropout_rate=0.25)
    mlp = params["layers"]["mlp"]
    silent = mlp | {"down": {"kernel": 0 * mlp["down"]["kernel"]}}
    params = params | {"layers": params["layers"] | {"mlp": silent}}
    layers, whole = (dropped_layers(config, params, key) for key in (True, False))
    assert np.array_equal(layers[0], whole[0])  # the embeddings are not dropped
    added, added_whole = layers[1] - layers[0], whole[1] - whole[0]
    is_zero = added == 0.0
    assert is_zero.mean() == pytest.approx(0.25, abs=0.02)
    kept = ~is_zero
    np.testing.assert_allclose(added[kept], added_whole[kept] / 0.75, atol=1e-6)

    # Where attention adds nothing there is nothing to drop.
    attention = params["layers"]["attention"]
    silent = attention | {"out": {"kernel": 0 * attention["out"]["kernel"]}}
    params = params | {"layers": params["layers"] | {"mlp": mlp, "attention": silent}}
    layers, whole = (dropped_layers(config, params, key) for key in (True, False))
    assert np.array_equal(layers, whole)


def test_untold_it_is_the_rate_of_everything():
    config, params = drawn("bert")
    assert config.attention_out_dropout_rate is None
    told = dataclasses.replace(config, attention_out_dropout_rate=0.1)
    other = dataclasses.replace(config, attention_out_dropout_rate=0.2)
    untold_layers = dropped_layers(config, params)
    assert np.array_equal(untold_layers, dropped_layers(told, params))
    assert not np.array_equal(untold_layers, dropped_layers(other, params))


def test_a_rate_that_is_none_is_refused():
    with pytest.raises(UserError, match=r"attention_out_dropout_rate=1\.5 must be in"):
        EncoderConfig(**SIZES, attention_out_dropout_rate=1.5)
    with pytest.raises(UserError, match=r"init_projection='xavier' must be one of"):
        EncoderConfig(**SIZES, init_projection="xavier")
