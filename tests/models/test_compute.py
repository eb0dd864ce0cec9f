"""How a model is computed: which kernel, and what is kept for the gradients."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from encoderjax.errors import UserError
from encoderjax.models.compute import Compute, Remat
from encoderjax.models.dropout import DropoutKey
from encoderjax.models.families import preset
from encoderjax.models.heads import EncoderModel
from encoderjax.models.layers import product
from encoderjax.models.stack import rematerialised
from encoderjax.models.two_stream import Streams
from tests.families import random_params

BERT = preset("bert", "base")


@pytest.mark.parametrize(
    ("platform", "dtype", "kernel"),
    [
        ("tpu", "bfloat16", "splash"),
        ("tpu", "float32", "splash"),
        ("gpu", "bfloat16", "cudnn"),
        ("gpu", "float32", "xla"),
        ("cpu", "bfloat16", "xla"),
    ],
)
def test_auto_takes_the_kernel_of_the_devices(platform, dtype, kernel):
    settled = Compute(remat="blocks").on(platform, dtype)
    assert (settled.attention, settled.remat) == (kernel, "blocks")


@pytest.mark.parametrize(
    ("attention", "platform", "dtype", "message"),
    [
        ("splash", "cpu", "float32", r"='splash' runs on a TPU, but .* 'cpu'"),
        ("cudnn", "tpu", "bfloat16", r"='cudnn' runs on a GPU, but .* 'tpu'"),
        ("cudnn", "gpu", "float32", r"16 bits, not in float32; set precision"),
    ],
)
def test_a_kernel_is_refused_on_other_devices(attention, platform, dtype, message):
    with pytest.raises(UserError, match=message):
        Compute(attention=attention).on(platform, dtype)


def test_a_kernel_is_refused_for_a_model_that_it_cannot_compute():
    splash = Compute(attention="splash")
    with pytest.raises(UserError, match=r"no attention weights, but model.attention_d"):
        splash.check(BERT)
    splash.check(dataclasses.replace(BERT, attention_dropout_rate=0.0))
    with pytest.raises(UserError, match=r"generator.positions='disentangled' needs"):
        splash.check(preset("deberta", "base"), "objectives.rtd.generator")
    Compute().check(BERT)


# ---- what is kept ----


SMALL = dict(vocab_size=64, width=32, num_heads=2, max_length=64, dropout_rate=0.1)
DEEP = {
    "bert": dict(num_layers=6, mlp_width=128),
    # One by itself, and three times a pattern of two.
    "modernbert": dict(num_layers=7, mlp_width=48, window=8, global_every=2),
    "xlnet": dict(num_layers=6, mlp_width=128, memory_length=16),
    "deberta": dict(num_layers=6, mlp_width=128, mask_decoder_layers=1),
}


def gradients_of(family: str, remat: Remat):
    """Returns the compiled loss and gradients of a model with everything dropped."""
    config = dataclasses.replace(
        preset(family, "base"), **SMALL, **DEEP[family], attention_dropout_rate=0.1
    )
    model = EncoderModel(config, ("mlm",), compute=Compute(remat=remat))
    places_BP = jnp.arange(0, 64, 8)[None] + jnp.arange(4)[:, None]
    streams = None
    if config.positions == "two_stream":
        memory_NBMD = jnp.ones((config.num_layers, 4, 16, config.width))
        streams = Streams(targets_BP=places_BP, memory_NBMD=memory_NBMD)

    def loss(params, ids_BL):
        key = DropoutKey.create(0, jnp.zeros((), jnp.int32), jnp.arange(4))
        outputs: Any = model.apply(
            {"params": params}, ids_BL, None, None, dropout=key, streams=streams,
            method=EncoderModel.encode,
        )  # fmt: skip
        places = None if streams else places_BP
        logits: Any = model.apply(
            {"params": params}, outputs, places, method=EncoderModel.mlm_logits
        )
        return jnp.mean(jnp.square(logits))

    params = random_params(config, "mlm")
    ids_BL = jnp.arange(4 * 64).reshape(4, 64) % config.vocab_size
    compiled = jax.jit(jax.value_and_grad(loss)).lower(params, ids_BL).compile()
    return compiled(params, ids_BL), compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("family", DEEP)
def test_what_is_made_again_is_the_same_and_takes_less_memory(family):
    """Dropout is a hash: what it drops the second time is what it dropped before."""
    (loss, gradients), memory = gradients_of(family, "none")
    scale = max(np.abs(leaf).max() for leaf in jax.tree.leaves(gradients))
    shares: dict[Remat, float] = {"blocks": 0.55}
    if family == "bert":
        shares["dots"] = 0.75
    for remat, share in shares.items():
        (again, others), less = gradients_of(family, remat)
        np.testing.assert_allclose(again, loss, rtol=1e-6)
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=1e-5 * scale),
            others,
            gradients,
        )
        assert less < share * memory


@pytest.mark.parametrize(
    ("remat", "products"), [("none", 6), ("dots", 6), ("blocks", 8)]
)
def test_products_with_weights_are_made_again_only_where_blocks_are(remat, products):
    """Two, and two more for the gradients of each."""
    once = (((1,), (0,)), ((), ()))

    def layer(x, first, second, _, kind):
        return jnp.sum(product(jnp.tanh(product(x, first, once)), second, once) ** 2)

    gradients = jax.value_and_grad(rematerialised(layer, remat, 0), argnums=(0, 1, 2))
    step = jax.jit(lambda *inputs: gradients(*inputs, None, 0))
    program = step.lower(*[jnp.ones((4, 4))] * 3).as_text()
    assert program.count("stablehlo.dot_general") == products
