"""Every published size: its number of parameters, its tree, its places on a mesh."""

import dataclasses
import functools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from encoderjax.errors import UserError
from encoderjax.interop.huggingface import (
    architecture,
    config_from_hf,
    config_to_hf,
    leaf_shapes,
)
from encoderjax.models.families import FAMILIES, electra, preset
from encoderjax.models.stack import weights_of
from encoderjax.training.mesh import partition_spec

GOLDEN = Path(__file__).parents[1] / "golden"
HEADS = {
    "bert": ("mlm", "nsp"),
    "albert": ("mlm", "sop"),
    "spanbert": ("mlm", "sbo"),
    "electra": ("rtd",),
    "deberta_v3": ("rtd",),
}
# One size of each family whose tree is kept.
KEPT = {
    "bert": "base",
    "roberta": "base",
    "albert": "base",
    "spanbert": "base",
    "xlnet": "base",
    "deberta": "base",
    "deberta_v2": "xlarge",
    "deberta_v3": "small",
    "electra": "small",
    "distilbert": "base",
    "xlm_roberta": "base",
    "modernbert": "base",
}


def heads_of(family: str, size: str) -> tuple[str, ...]:
    return ("mlm",) if "generator" in size else HEADS.get(family, ("mlm",))


@functools.cache
def sizes(family: str, size: str) -> dict[str, tuple[int, ...]]:
    return leaf_shapes(preset(family, size), heads_of(family, size))


def count(family: str, size: str, *without: str) -> int:
    shapes = sizes(family, size).items()
    return sum(math.prod(x) for path, x in shapes if not path.startswith(without))


# Shape arithmetic from the published configurations: the encoder with its pooler, the
# MLM without a pooler, everything. None where no such count is published.
PUBLISHED = [
    ("roberta", "base", 124_645_632, 124_697_433, None),
    ("roberta", "large", 355_359_744, 355_412_057, None),
    ("roberta", "distil", 82_118_400, 82_170_201, None),
    ("xlm_roberta", "base", 278_043_648, 278_295_186, None),
    ("xlm_roberta", "large", 559_890_432, 560_142_482, None),
    ("distilbert", "base", 66_362_880, 66_985_530, None),
    ("distilbert", "base_multilingual", 134_734_080, 135_445_755, None),
    ("albert", "base", 11_683_584, 11_221_680, 11_813_810),
    ("albert", "large", 17_683_968, 16_795_824, 17_847_474),
    ("albert", "xlarge", 58_724_864, 54_821_040, 59_021_490),
    ("albert", "xxlarge", 222_595_584, 206_368_944, 223_158_450),
    ("electra", "small", 13_483_008, None, 13_549_057),
    ("electra", "base", 108_891_648, None, 109_483_009),
    ("electra", "large", 334_092_288, None, 335_142_913),
    ("electra", "small_generator", None, 13_546_682, None),
    ("electra", "base_generator", None, 33_740_602, None),
    ("electra", "large_generator", None, 51_295_290, None),
    ("xlnet", "base", 116_718_336, 116_750_336, None),
    ("xlnet", "large", 360_268_800, 360_300_800, None),
    ("deberta", "base", 138_601_728, None, None),
    ("deberta", "large", 405_163_008, None, None),
    ("deberta", "xlarge", 757_804_032, None, None),
    ("deberta_v2", "xlarge", 884_593_152, None, None),
    ("deberta_v2", "xxlarge", 1_564_549_632, None, None),
    ("deberta_v3", "xsmall", 70_682_112, None, None),
    ("deberta_v3", "small", 141_304_320, None, None),
    ("deberta_v3", "base", 183_831_552, None, None),
    ("deberta_v3", "large", 434_012_160, None, None),
    ("deberta_v3", "base_multilingual", 278_218_752, None, None),
    ("modernbert", "base", 149_014_272, 149_655_232, None),
    ("modernbert", "large", 394_781_696, 395_881_664, None),
    ("spanbert", "base", 108_310_272, 108_340_804, None),
    ("spanbert", "large", 333_579_264, 333_610_308, None),
]


@pytest.mark.parametrize(("family", "size", "encoder", "mlm", "all_of_it"), PUBLISHED)
def test_preset_has_the_published_number_of_parameters(
    family, size, encoder, mlm, all_of_it
):
    others = ("encoder/pooler", "heads/nsp", "heads/sop", "heads/rtd", "heads/sbo")
    assert encoder in (None, count(family, size, "heads"))
    assert mlm in (None, count(family, size, *others))
    assert all_of_it in (None, count(family, size))


EVERY_SIZE = [
    (family, size)
    for family, module in FAMILIES.items()
    for size in module.PRESETS
    if family != "bert"  # in test_encoder.py
]


@pytest.mark.parametrize(("family", "size"), EVERY_SIZE)
def test_preset_has_the_number_of_parameters_of_pytorch(family, size):
    heads = heads_of(family, size)
    config_json = config_to_hf(preset(family, size), family, heads)
    model_class = getattr(transformers, architecture(family, heads))
    fields = {"pad_token_id": None} | config_json
    with torch.device("meta"):
        theirs = model_class(model_class.config_class(**fields))
    known = {name for key in FAMILIES[family].HF.architectures for name in key}
    beside = [f"heads/{name}" for name in heads if name not in known]
    has_pooler = any("pooler" in name for name in theirs.state_dict())
    pooler = [] if has_pooler else ["encoder/pooler"]
    assert count(family, size, *beside, *pooler) == theirs.num_parameters()


@pytest.mark.parametrize("family", KEPT)
def test_tree_is_the_golden_one(family):
    leaves = sorted(sizes(family, KEPT[family]).items())
    lines = [f"{path} {list(shape)}" for path, shape in leaves]
    golden = GOLDEN / f"{family}_{KEPT[family]}.txt"
    assert lines == golden.read_text().splitlines()


@pytest.mark.parametrize("family", FAMILIES)
def test_every_parameter_has_one_place_on_a_mesh(family):
    for path, shape in sizes(family, KEPT[family]).items():
        partition_spec(path, shape)  # refuses no rule, and more than one


@pytest.mark.parametrize(("family", "size"), EVERY_SIZE)
def test_config_json_tells_all_that_the_classes_compute(family, size):
    config = preset(family, size)
    config_json = config_to_hf(config, family, heads_of(family, size))
    told = config_from_hf(config_json, family, "here", pooler=config.pooler)
    same = ("vocab_size", "width", "positions", "window", "norm_at", "sharing")
    same += ("position_buckets", "norm_eps", "activation", "global_every")
    for field in same:
        assert getattr(told, field) == getattr(config, field), field


def test_a_generator_is_a_fraction_of_its_discriminator():
    paper = electra.generator(preset("electra", "small"), 1 / 4)
    assert (paper.width, paper.num_heads, paper.mlp_width) == (64, 1, 256)
    assert paper.table_width == preset("electra", "small").table_width == 128
    large = preset("electra", "large_generator")
    assert (large.num_layers, large.width, large.table_width) == (24, 256, 1024)


def test_half_of_the_layers_are_v3s_generator():
    for size in ("xsmall", "small", "base", "large"):
        whole = preset("deberta_v3", size)
        half = preset("deberta_v3", f"{size}_generator")
        assert 2 * half.num_layers == whole.num_layers
        assert half.width == whole.width


def test_unknown_names_are_refused_with_the_known_ones():
    with pytest.raises(UserError, match=r"family='robberta'.*did you mean 'roberta'"):
        preset("robberta", "base")
    with pytest.raises(UserError, match=r"size='huge'.*xxlarge_v2"):
        preset("albert", "huge")


def test_layers_of_albert_are_those_of_the_reference():
    config = preset("albert", "base")
    assert not weights_of(config, "mlp").any()
    for num_layers, groups in ((12, 3), (12, 5), (7, 2), (18, 14), (27, 21)):
        shared = dataclasses.replace(
            config, num_layers=num_layers, layer_groups=groups, inner_layers=2
        )
        expected = [
            int(i / (num_layers / groups)) * 2 + inner
            for i in range(num_layers)
            for inner in range(2)
        ]
        assert np.array_equal(weights_of(shared, "attention"), expected)
