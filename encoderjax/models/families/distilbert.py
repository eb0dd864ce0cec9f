"""DistilBERT (Sanh et al. 2019): half of BERT's layers, no segments, no pooler."""

from encoderjax.models.config import EncoderConfig
from encoderjax.models.families.bert import projection_rows, sized
from encoderjax.models.families.names import Names
from encoderjax.models.families.task_forms import (
    ANSWERS,
    CLASSIFIER,
    Kind,
    TaskField,
    TaskForm,
    dense_row,
    score_row,
)


def _distilbert(vocab_size: int) -> EncoderConfig:
    return sized(6, 768, vocab_size, num_segments=0, pooler=False, init="normal")


PRESETS: dict[str, EncoderConfig] = {
    "base": _distilbert(30_522),
    "base_cased": _distilbert(28_996),
    "base_multilingual": _distilbert(119_547),
}

_TABLES, _LAYER = "distilbert.embeddings", "distilbert.transformer.layer.{i}"


HF = Names(
    model_type="distilbert",
    prefix="distilbert.",
    architectures={
        ("mlm",): "DistilBertForMaskedLM",
        (): "DistilBertModel",
    },
    structure={
        "num_segments": 0,
        "pooler": False,
        "init": "normal",
        "norm_eps": 1e-12,
    },
    fields=(
        ("vocab_size", "vocab_size", 30_522),
        ("n_layers", "num_layers", 6),
        ("dim", "width", 768),
        ("n_heads", "num_heads", 12),
        ("hidden_dim", "mlp_width", 3072),
        ("max_position_embeddings", "max_length", 512),
        ("activation", "activation", "gelu"),
        ("dropout", "dropout_rate", 0.1),
        ("attention_dropout", "attention_dropout_rate", 0.1),
        ("initializer_range", "init_std", 0.02),
    ),
    fixed={"tie_word_embeddings": True},
    tied={
        "vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight",
    },
    rows=(
        (f"{_TABLES}.word_embeddings.weight", "encoder/token_embed/embedding", "same"),
        (
            f"{_TABLES}.position_embeddings.weight",
            "encoder/position_embed/embedding",
            "same",
        ),
        (f"{_TABLES}.LayerNorm", "encoder/embed_norm", "norm"),
        *projection_rows(f"{_LAYER}.attention", ("q_lin", "k_lin", "v_lin")),
        (f"{_LAYER}.attention.out_lin", "encoder/layers/attention/out", "from_heads"),
        (f"{_LAYER}.sa_layer_norm", "encoder/layers/attention_norm", "norm"),
        (f"{_LAYER}.ffn.lin1", "encoder/layers/mlp/up", "dense"),
        (f"{_LAYER}.ffn.lin2", "encoder/layers/mlp/down", "dense"),
        (f"{_LAYER}.output_layer_norm", "encoder/layers/mlp_norm", "norm"),
        ("vocab_transform", "heads/mlm/dense", "dense"),
        ("vocab_layer_norm", "heads/mlm/norm", "norm"),
        ("vocab_projector.bias", "heads/mlm/bias", "same"),
    ),
)

_PRE_CLASSIFIED = {
    "head": {"hidden": "dense", "activation": "relu", "dropout_rate": 0.2},
    "fields": (
        TaskField(theirs="seq_classif_dropout", ours="dropout_rate", default=0.2),
    ),
    "rows": (dense_row("pre_classifier"), score_row("classifier")),
}
TASK_HEADS: dict[Kind, TaskForm] = {
    "classify": TaskForm(
        architecture="DistilBertForSequenceClassification", **_PRE_CLASSIFIED
    ),
    "tag": TaskForm(architecture="DistilBertForTokenClassification", rows=CLASSIFIER),
    "answer": TaskForm(
        architecture="DistilBertForQuestionAnswering",
        head={"dropout_rate": 0.1},
        fields=(TaskField(theirs="qa_dropout", ours="dropout_rate", default=0.1),),
        rows=ANSWERS,
    ),
    "choose": TaskForm(architecture="DistilBertForMultipleChoice", **_PRE_CLASSIFIED),
}
