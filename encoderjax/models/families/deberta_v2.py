"""DeBERTa v2: a table of 2 x 256 buckets of distances, projected like content.

The table is normalised; distances above 128 share buckets, logarithmically. The two
published sizes have a convolution beside the first layer.
"""

import dataclasses
from collections.abc import Mapping

from encoderjax.models.config import EncoderConfig
from encoderjax.models.families import deberta
from encoderjax.models.families.bert import (
    MLM_ROWS,
    block_rows,
    embedding_rows,
    hf_fields,
    projection_rows,
    sized,
)
from encoderjax.models.families.names import told
from encoderjax.models.families.task_forms import Kind, TaskForm, renamed

_WORDS_OF_NORM = {True: "layer_norm", False: "none"}


def preset(num_layers: int, width: int, vocab_size: int, **fields) -> EncoderConfig:
    """Returns an encoder of v2 or v3."""
    return sized(
        num_layers,
        width,
        vocab_size,
        num_segments=0,
        positions="disentangled",
        position_buckets=256,
        share_position_projections=True,
        relative_norm=True,
        norm_eps=1e-7,
        detection_head="with_cls",
        pooler=False,
        init="normal",
        **fields,
    )


PRESETS: dict[str, EncoderConfig] = {
    "xlarge": preset(24, 1536, 128_100, conv_width=3),
    "xxlarge": preset(48, 1536, 128_100, conv_width=3),
}

_SELF = "deberta.encoder.layer.{i}.attention.self"
_OURS = "encoder/layers/attention"


def fields_from_hf(config_json: Mapping) -> dict[str, object]:
    """Returns how positions are told."""
    norms = told(config_json, "norm_rel_ebd", "none").lower().split("|")
    relative = told(config_json, "relative_attention", False)
    return deberta.fields_from_hf({"hidden_size": 1536, **config_json}) | {
        "position_buckets": max(0, told(config_json, "position_buckets", -1)),
        "relative_norm": relative and "layer_norm" in (norm.strip() for norm in norms),
    }


def fields_to_hf(config: EncoderConfig) -> dict[str, object]:
    """Returns the same as Hugging Face writes it."""
    return deberta.fields_to_hf(config) | {
        "position_buckets": config.position_buckets or -1,
        "norm_rel_ebd": _WORDS_OF_NORM[config.relative_norm],
    }


HF = dataclasses.replace(
    deberta.HF,
    model_type="deberta-v2",
    architectures={
        ("mlm",): "DebertaV2ForMaskedLM",
        (): "DebertaV2Model",
    },
    structure={"detection_head": "with_cls", "pooler": False, "init": "normal"},
    fields=(
        *hf_fields(
            vocab_size=128_100,
            num_hidden_layers=24,
            hidden_size=1536,
            num_attention_heads=24,
            intermediate_size=6144,
            type_vocab_size=0,
            layer_norm_eps=1e-7,
        ),
        ("conv_kernel_size", "conv_width", 0),
        ("conv_act", "conv_activation", "tanh"),
        ("share_att_key", "share_position_projections", False),
    ),
    rows=(
        *embedding_rows("deberta."),
        deberta.DISTANCE_ROW,
        ("deberta.encoder.LayerNorm", "encoder/distance_norm", "norm"),
        *projection_rows(_SELF, ("query_proj", "key_proj", "value_proj")),
        (f"{_SELF}.pos_key_proj", f"{_OURS}/position_key", "to_heads"),
        (f"{_SELF}.pos_query_proj", f"{_OURS}/position_query", "to_heads"),
        *block_rows("deberta."),
        ("deberta.encoder.conv.conv", "encoder/conv/conv", "convolution"),
        ("deberta.encoder.conv.LayerNorm", "encoder/conv/norm", "norm"),
        *MLM_ROWS,
        # Of microsoft's files; no class there has such a head.
        ("mask_predictions.LayerNorm", "heads/rtd/norm", "norm"),
        ("mask_predictions.dense", "heads/rtd/dense", "dense"),
        ("mask_predictions.classifier", "heads/rtd/score", "dense"),
    ),
    from_fields=fields_from_hf,
    to_fields=fields_to_hf,
)

_OF_V1 = renamed(deberta.TASK_HEADS, "Deberta", "DebertaV2")
TASK_HEADS: dict[Kind, TaskForm] = {
    **_OF_V1,
    "choose": dataclasses.replace(
        _OF_V1["choose"], architecture="DebertaV2ForMultipleChoice"
    ),
}
