"""ALBERT (Lan et al. 2020): one layer's weights for all layers, narrow tables.

Tables are 128 wide and projected to the width of the model; the MLM head goes back to
128. GELU in its tanh form. The first release (v1) dropped out at 0.1 up to xlarge, the
second (v2) nowhere.
"""

from encoderjax.models.config import EncoderConfig
from encoderjax.models.families.bert import embedding_rows, hf_fields, sized
from encoderjax.models.families.names import ENDS, PAD, Names
from encoderjax.models.families.task_forms import (
    ANSWERS,
    CLASSIFIER,
    Kind,
    TaskField,
    TaskForm,
)

_SIZES = {  # layers, width, heads
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
    "xlarge": (24, 2048, 16),
    "xxlarge": (12, 4096, 64),
}


def _albert(size: str, dropout_rate: float) -> EncoderConfig:
    num_layers, width, num_heads = _SIZES[size]
    return sized(
        num_layers,
        width,
        30_000,
        num_heads=num_heads,
        embed_width=128,
        sharing="all",
        activation="gelu_tanh",
        dropout_rate=dropout_rate,
        attention_dropout_rate=dropout_rate,
    )


PRESETS: dict[str, EncoderConfig] = {
    size: _albert(size, 0.0 if size == "xxlarge" else 0.1) for size in _SIZES
} | {f"{size}_v2": _albert(size, 0.0) for size in _SIZES}

_LAYER = "albert.encoder.albert_layer_groups.{group}.albert_layers.{inner}"


def fields_to_hf(config: EncoderConfig) -> dict[str, object]:
    """Says how many layers differ, whatever they share.

    What shares only its attention or feed-forward is written once for each layer.
    """
    whole = config.sharing == "all"
    return {"num_hidden_groups": config.layer_groups if whole else config.num_layers}


HF = Names(
    model_type="albert",
    prefix="albert.",
    architectures={
        ("mlm", "sop"): "AlbertForPreTraining",
        ("mlm",): "AlbertForMaskedLM",
        (): "AlbertModel",
    },
    structure={"sharing": "all"},
    fields=(
        *hf_fields(
            vocab_size=30_000,
            hidden_size=4096,
            num_attention_heads=64,
            intermediate_size=16_384,
            hidden_act="gelu_new",
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        ),
        ("embedding_size", "embed_width", 128),
        ("inner_group_num", "inner_layers", 1),
        ("num_hidden_groups", "layer_groups", 1),
    ),
    fixed={
        "position_embedding_type": "absolute",
        "tie_word_embeddings": True,
    },
    tied={
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    },
    rows=(
        *embedding_rows("albert."),
        (
            "albert.encoder.embedding_hidden_mapping_in",
            "encoder/embed_project",
            "dense",
        ),
        (f"{_LAYER}.attention.query", "encoder/layers/attention/query", "to_heads"),
        (f"{_LAYER}.attention.key", "encoder/layers/attention/key", "to_heads"),
        (f"{_LAYER}.attention.value", "encoder/layers/attention/value", "to_heads"),
        (f"{_LAYER}.attention.dense", "encoder/layers/attention/out", "from_heads"),
        (f"{_LAYER}.attention.LayerNorm", "encoder/layers/attention_norm", "norm"),
        (f"{_LAYER}.ffn", "encoder/layers/mlp/up", "dense"),
        (f"{_LAYER}.ffn_output", "encoder/layers/mlp/down", "dense"),
        (f"{_LAYER}.full_layer_layer_norm", "encoder/layers/mlp_norm", "norm"),
        ("albert.pooler", "encoder/pooler", "dense"),
        ("predictions.dense", "heads/mlm/dense", "dense"),
        ("predictions.LayerNorm", "heads/mlm/norm", "norm"),
        ("predictions.bias", "heads/mlm/bias", "same"),
        ("sop_classifier.classifier", "heads/sop/dense", "dense"),
    ),
    token_ids=PAD | ENDS,
    to_fields=fields_to_hf,
)

# Its classifiers drop even where the encoder does not.
_DROPOUT = TaskField(theirs="classifier_dropout_prob", ours="dropout_rate", default=0.1)
_POOLED = {
    "head": {"hidden": "pooler", "dropout_rate": 0.1},
    "fields": (_DROPOUT,),
    "rows": CLASSIFIER,
}
TASK_HEADS: dict[Kind, TaskForm] = {
    "classify": TaskForm(architecture="AlbertForSequenceClassification", **_POOLED),
    "tag": TaskForm(
        architecture="AlbertForTokenClassification",
        head={"dropout_rate": 0.1},
        fields=(_DROPOUT,),
        rows=CLASSIFIER,
    ),
    "answer": TaskForm(
        architecture="AlbertForQuestionAnswering",
        head={"dropout_rate": 0.0},
        rows=ANSWERS,
    ),
    "choose": TaskForm(architecture="AlbertForMultipleChoice", **_POOLED),
}
