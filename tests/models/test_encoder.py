import functools
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForPreTraining

from encoderjax.errors import UserError
from encoderjax.interop.huggingface import config_to_hf, leaf_shapes
from encoderjax.models.config import EncoderConfig
from encoderjax.models.families import bert, preset
from encoderjax.models.heads import EncoderModel, init_params
from encoderjax.models.layers import ACTIVATIONS

GOLDEN = Path(__file__).parents[1] / "golden"
SMALL = EncoderConfig(
    vocab_size=1000, num_layers=3, width=96, num_heads=4, mlp_width=160, max_length=64
)


@functools.cache
def shapes(size: str) -> dict[str, tuple[int, ...]]:
    return leaf_shapes(preset("bert", size), ("mlm", "nsp"))


def count(size: str, *without: str) -> int:
    """Counts the parameters of BERT with both heads, or without some parts."""
    sizes = {path: math.prod(shape) for path, shape in shapes(size).items()}
    return sum(n for path, n in sizes.items() if not path.startswith(without))


# size, encoder with pooler, MLM without pooler, MLM and NSP: shape arithmetic from
# the published configurations.
PUBLISHED = [
    ("tiny", 4_385_920, 4_416_698, 4_433_468),
    ("mini", 11_170_560, 11_201_594, 11_267_900),
    ("small", 28_763_648, 28_795_194, 29_058_876),
    ("medium", 41_373_184, 41_404_730, 41_668_412),
    ("base", 109_482_240, 109_514_298, 110_106_428),
    ("base_cased", 108_310_272, 108_340_804, 108_932_934),
    ("base_chinese", 102_267_648, 102_290_312, 102_882_442),
    ("base_multilingual_cased", 177_853_440, 177_974_523, 178_566_653),
    ("large", 335_141_888, 335_174_458, 336_226_108),
    ("large_cased", 333_579_264, 333_610_308, 334_661_958),
]


@pytest.mark.parametrize(("size", "encoder", "mlm", "both"), PUBLISHED)
def test_preset_has_the_published_number_of_parameters(size, encoder, mlm, both):
    assert count(size, "heads") == encoder
    assert count(size, "encoder/pooler", "heads/nsp") == mlm
    assert count(size) == both


@pytest.mark.parametrize("size", bert.PRESETS)
def test_preset_has_the_number_of_parameters_of_pytorch(size):
    written = config_to_hf(preset("bert", size), "bert", ("mlm", "nsp"))
    with torch.device("meta"):
        theirs = BertForPreTraining(BertConfig.from_dict(written))
    assert count(size) == theirs.num_parameters()


def test_tree_is_the_golden_one():
    leaves = sorted(shapes("base").items())
    lines = [f"{path} {list(shape)}" for path, shape in leaves]
    assert lines == (GOLDEN / "bert_base.txt").read_text().splitlines()


@pytest.mark.parametrize(("ours", "theirs"), [("gelu", "none"), ("gelu_tanh", "tanh")])
def test_gelu_equals_pytorch(ours, theirs):
    x = np.linspace(-6.0, 6.0, 1001, dtype=np.float32)
    expected = torch.nn.functional.gelu(torch.tensor(x), approximate=theirs).numpy()
    np.testing.assert_allclose(ACTIVATIONS[ours](x), expected, atol=2e-6)


def new_params(model: EncoderModel) -> dict:
    return jax.jit(lambda key: init_params(model, key))(jax.random.key(0))


@pytest.fixture(scope="module")
def small() -> tuple[EncoderModel, dict]:
    model = EncoderModel(SMALL, ("mlm", "nsp"))
    return model, new_params(model)


def is_matrix(path) -> bool:
    return path[-1].key in ("kernel", "embedding")


def test_kernels_and_tables_start_truncated_normal(small):
    leaves = jax.tree_util.tree_leaves_with_path(small[1])
    drawn = np.concatenate([np.ravel(x) for path, x in leaves if is_matrix(path)])
    assert np.abs(drawn).max() <= 2 * 0.02  # cut off at two standard deviations
    # The standard deviation of a normal variable cut off at 2 is 0.87962.
    assert drawn.std() == pytest.approx(0.02 * 0.87962, rel=0.01)
    assert abs(drawn.mean()) < 1e-4


def test_biases_start_at_0_and_norms_at_1(small):
    for path, leaf in jax.tree_util.tree_leaves_with_path(small[1]):
        if not is_matrix(path):
            expected = 1.0 if path[-1].key == "scale" else 0.0
            assert np.all(np.asarray(leaf) == expected), path


def test_layers_start_different(small):
    kernel_NDF = np.asarray(small[1]["encoder"]["layers"]["mlp"]["up"]["kernel"])
    assert np.abs(np.corrcoef(kernel_NDF.reshape(3, -1)) - np.eye(3)).max() < 0.05


def test_normal_init_has_its_standard_deviation():
    config = EncoderConfig(**(vars(SMALL) | {"init": "normal"}))
    table = np.asarray(config.initializer(jax.random.key(0), (1000, 96), jnp.float32))
    assert table.std() == pytest.approx(0.02, rel=0.01)
    assert np.abs(table).max() > 3 * 0.02


def test_padding_changes_nothing(small):
    model, params = small
    ids_BL = jnp.asarray(np.random.default_rng(0).integers(5, 1000, (2, 12)))
    run = jax.jit(lambda params, *batch: model.apply({"params": params}, *batch))
    short = run(params, ids_BL)
    padded_BL = jnp.pad(ids_BL, ((0, 0), (0, 20)), constant_values=7)
    mask_BL = jnp.pad(jnp.ones((2, 12), bool), ((0, 0), (0, 20)))
    long = run(params, padded_BL, mask_BL)
    np.testing.assert_allclose(long.hidden[:, :12], short.hidden, atol=1e-5)
    np.testing.assert_allclose(long.pooled, short.pooled, atol=1e-5)


def test_layers_are_returned_on_request(small):
    model, params = small
    ids_BL = jnp.arange(10).reshape(2, 5)

    @functools.partial(jax.jit, static_argnames="layers")
    def run(params, layers):
        return model.apply({"params": params}, ids_BL, layers=layers)

    assert run(params, layers=False).layers is None
    out = run(params, layers=True)
    assert out.layers.shape == (4, 2, 5, 96)
    np.testing.assert_array_equal(out.layers[-1], out.hidden)


def test_impossible_sizes_are_refused():
    with pytest.raises(UserError, match=r"model\.width=96 .* model\.num_heads=5"):
        EncoderConfig(**(vars(SMALL) | {"num_heads": 5}))
    with pytest.raises(UserError, match=r"model\.num_layers=0"):
        EncoderConfig(**(vars(SMALL) | {"num_layers": 0}))
