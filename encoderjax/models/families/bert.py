"""BERT (Devlin et al. 2019): the family that the others are told apart from.

Learned absolute positions, two segments, normalisation after each block and after
the embeddings, exact GELU (google-bert trained with the tanh form:
`activation="gelu_tanh"`), a tanh pooler, an MLM head tied to the token table.
"""

from typing import Any

from encoderjax.models.config import EncoderConfig
from encoderjax.models.families.names import Names, Row
from encoderjax.models.families.task_forms import (
    ANSWERS,
    CLASSIFIER,
    CLASSIFIER_DROPOUT,
    Kind,
    TaskForm,
)

_UNCASED, _CASED, _CHINESE = 30_522, 28_996, 21_128
_MULTILINGUAL_CASED, _MULTILINGUAL_UNCASED = 119_547, 105_879


def sized(num_layers: int, width: int, vocab_size: int, **fields: Any) -> EncoderConfig:
    """Returns an encoder of BERT's proportions: heads of 64, 4 x width inside."""
    fields = {"num_heads": width // 64, "mlp_width": 4 * width, **fields}
    return EncoderConfig(
        vocab_size=vocab_size, num_layers=num_layers, width=width, **fields
    )


_MINIATURES = {  # Turc et al. 2019: 24 sizes, all uncased
    f"{num_layers}x{width}": sized(num_layers, width, _UNCASED)
    for num_layers in (2, 4, 6, 8, 10, 12)
    for width in (128, 256, 512, 768)
}

PRESETS: dict[str, EncoderConfig] = _MINIATURES | {
    "tiny": _MINIATURES["2x128"],
    "mini": _MINIATURES["4x256"],
    "small": _MINIATURES["4x512"],
    "medium": _MINIATURES["8x512"],
    "base": sized(12, 768, _UNCASED),
    "base_cased": sized(12, 768, _CASED),
    "base_multilingual_cased": sized(12, 768, _MULTILINGUAL_CASED),
    "base_multilingual_uncased": sized(12, 768, _MULTILINGUAL_UNCASED),
    "base_chinese": sized(12, 768, _CHINESE),
    "large": sized(24, 1024, _UNCASED),
    "large_cased": sized(24, 1024, _CASED),
}


def hf_fields(**defaults: object) -> tuple[tuple[str, str, object], ...]:
    """Returns the fields that most families have, with their own defaults."""
    fields = (
        ("vocab_size", "vocab_size", 30_522),
        ("num_hidden_layers", "num_layers", 12),
        ("hidden_size", "width", 768),
        ("num_attention_heads", "num_heads", 12),
        ("intermediate_size", "mlp_width", 3072),
        ("max_position_embeddings", "max_length", 512),
        ("type_vocab_size", "num_segments", 2),
        ("hidden_act", "activation", "gelu"),
        ("hidden_dropout_prob", "dropout_rate", 0.1),
        ("attention_probs_dropout_prob", "attention_dropout_rate", 0.1),
        ("layer_norm_eps", "norm_eps", 1e-12),
        ("initializer_range", "init_std", 0.02),
    )
    return tuple((there, ours, defaults.get(there, x)) for there, ours, x in fields)


def embedding_rows(prefix: str) -> tuple[Row, ...]:
    """Returns the rows of BERT's three tables and their norm."""
    there = f"{prefix}embeddings"
    return (
        (f"{there}.word_embeddings.weight", "encoder/token_embed/embedding", "same"),
        (
            f"{there}.position_embeddings.weight",
            "encoder/position_embed/embedding",
            "same",
        ),
        (
            f"{there}.token_type_embeddings.weight",
            "encoder/segment_embed/embedding",
            "same",
        ),
        (f"{there}.LayerNorm", "encoder/embed_norm", "norm"),
    )


def projection_rows(
    there: str, names: tuple[str, str, str] = ("query", "key", "value")
) -> tuple[Row, ...]:
    """Returns the rows of queries, keys and values."""
    ours = ("query", "key", "value")
    return tuple(
        (f"{there}.{name}", f"encoder/layers/attention/{our}", "to_heads")
        for name, our in zip(names, ours, strict=True)
    )


def block_rows(prefix: str) -> tuple[Row, ...]:
    """Returns the rows of a layer, without its queries, keys and values."""
    there = f"{prefix}encoder.layer.{{i}}"
    return (
        (
            f"{there}.attention.output.dense",
            "encoder/layers/attention/out",
            "from_heads",
        ),
        (
            f"{there}.attention.output.LayerNorm",
            "encoder/layers/attention_norm",
            "norm",
        ),
        (f"{there}.intermediate.dense", "encoder/layers/mlp/up", "dense"),
        (f"{there}.output.dense", "encoder/layers/mlp/down", "dense"),
        (f"{there}.output.LayerNorm", "encoder/layers/mlp_norm", "norm"),
    )


MLM_ROWS = (
    ("cls.predictions.transform.dense", "heads/mlm/dense", "dense"),
    ("cls.predictions.transform.LayerNorm", "heads/mlm/norm", "norm"),
    ("cls.predictions.bias", "heads/mlm/bias", "same"),
)


HF = Names(
    model_type="bert",
    prefix="bert.",
    architectures={
        ("mlm", "nsp"): "BertForPreTraining",
        ("mlm",): "BertForMaskedLM",
        ("nsp",): "BertForNextSentencePrediction",
        (): "BertModel",
    },
    fields=hf_fields(),
    fixed={
        "position_embedding_type": "absolute",
        "is_decoder": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    },
    tied={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    rows=(
        *embedding_rows("bert."),
        *projection_rows("bert.encoder.layer.{i}.attention.self"),
        *block_rows("bert."),
        ("bert.pooler.dense", "encoder/pooler", "dense"),
        *MLM_ROWS,
        ("cls.seq_relationship", "heads/nsp/dense", "dense"),
    ),
)

_POOLED = {
    "head": {"hidden": "pooler"},
    "fields": (CLASSIFIER_DROPOUT,),
    "rows": CLASSIFIER,
}
TASK_HEADS: dict[Kind, TaskForm] = {
    "classify": TaskForm(architecture="BertForSequenceClassification", **_POOLED),
    "tag": TaskForm(
        architecture="BertForTokenClassification",
        fields=(CLASSIFIER_DROPOUT,),
        rows=CLASSIFIER,
    ),
    "answer": TaskForm(
        architecture="BertForQuestionAnswering",
        head={"dropout_rate": 0.0},
        rows=ANSWERS,
    ),
    "choose": TaskForm(architecture="BertForMultipleChoice", **_POOLED),
}
