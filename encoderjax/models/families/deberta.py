"""DeBERTa v1 (He et al. 2021): content and position scored apart.

No absolute positions in the input and no segments; queries and values have biases, keys
have none; a table of 2 x 512 distances, with projections of its own. The enhanced mask
decoder (`mask_decoder_layers=2`) is pretraining's: Hugging Face's classes do without.
"""

from collections.abc import Mapping

from encoderjax.errors import UserError
from encoderjax.models.config import EncoderConfig
from encoderjax.models.families.bert import (
    MLM_ROWS,
    block_rows,
    embedding_rows,
    hf_fields,
    sized,
)
from encoderjax.models.families.names import Names, told
from encoderjax.models.families.task_forms import (
    ANSWERS,
    CLASSIFIER,
    Kind,
    TaskField,
    TaskForm,
    dense_row,
    score_row,
)


def _deberta(num_layers: int, width: int) -> EncoderConfig:
    return sized(
        num_layers,
        width,
        50_265,
        num_segments=0,
        positions="disentangled",
        key_bias=False,
        norm_eps=1e-7,
        pooler=False,
        init="normal",
    )


PRESETS: dict[str, EncoderConfig] = {
    "base": _deberta(12, 768),
    "large": _deberta(24, 1024),
    "xlarge": _deberta(48, 1024),
}

DISTANCE_ROW = (
    "deberta.encoder.rel_embeddings.weight",
    "encoder/distance_embed/embedding",
    "same",
)
_SELF = "deberta.encoder.layer.{i}.attention.self"
_OURS = "encoder/layers/attention"


def fields_from_hf(config_json: Mapping) -> dict[str, object]:
    """Returns how positions are told."""
    width = told(config_json, "hidden_size", 768)
    if told(config_json, "embedding_size", width) != width:
        raise UserError(
            f"embedding_size={config_json['embedding_size']} is not supported; this "
            f"encoder's tables are as wide as the model, hidden_size={width}"
        )
    relative = told(config_json, "relative_attention", False)
    biased = told(config_json, "position_biased_input", True)
    if not relative and not biased:
        raise UserError(
            "relative_attention=false with position_biased_input=false is not "
            "supported: such a model cannot tell the order of its tokens"
        )
    terms = config_json.get("pos_att_type") or []
    terms = terms.lower().split("|") if isinstance(terms, str) else terms
    terms = tuple(str(term).strip() for term in terms)
    if terms and not relative:
        raise UserError(
            f"pos_att_type={list(terms)} with relative_attention=false is not "
            "supported: the scores would be scaled for terms that are not there"
        )
    farthest = told(config_json, "max_relative_positions", -1)
    return {
        "positions": "disentangled" if relative else "learned",
        "biased_input": relative and biased,
        "position_terms": terms,
        "max_distance": farthest if farthest > 0 else None,
    }


def fields_to_hf(config: EncoderConfig) -> dict[str, object]:
    """Returns the same as Hugging Face writes it."""
    relative = config.positions == "disentangled"
    return {
        "relative_attention": relative,
        "position_biased_input": config.biased_input or config.positions == "learned",
        "pos_att_type": list(config.position_terms) if relative else [],
        "max_relative_positions": config.max_distance or -1,
        "legacy": True,
    }


HF = Names(
    model_type="deberta",
    prefix="deberta.",
    architectures={
        ("mlm",): "DebertaForMaskedLM",
        (): "DebertaModel",
    },
    structure={"key_bias": False, "pooler": False, "init": "normal"},
    fields=hf_fields(vocab_size=50_265, type_vocab_size=0, layer_norm_eps=1e-7),
    fixed={"talking_head": False, "tie_word_embeddings": True},
    tied={
        "cls.predictions.decoder.weight": "deberta.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    aliases={  # of microsoft's files, and of legacy=False
        "lm_predictions.lm_head.bias": "cls.predictions.bias",
        "lm_predictions.lm_head.": "cls.predictions.transform.",
    },
    rows=(
        *embedding_rows("deberta."),
        DISTANCE_ROW,
        (
            f"{_SELF}.in_proj",
            f"{_OURS}/query {_OURS}/key {_OURS}/value",
            "heads_of_stacks",
        ),
        (f"{_SELF}.q_bias", f"{_OURS}/query/bias", "flat"),
        (f"{_SELF}.v_bias", f"{_OURS}/value/bias", "flat"),
        (f"{_SELF}.pos_proj", f"{_OURS}/position_key", "to_heads"),
        (f"{_SELF}.pos_q_proj", f"{_OURS}/position_query", "to_heads"),
        *block_rows("deberta."),
        *MLM_ROWS,
    ),
    from_fields=fields_from_hf,
    to_fields=fields_to_hf,
)

_POOLED = {
    "head": {"hidden": "dense", "activation": "gelu"},
    "fields": (
        TaskField(theirs="pooler_hidden_act", ours="activation", default="gelu"),
        TaskField(theirs="pooler_dropout", ours="first_dropout_rate", default=0.0),
        TaskField(theirs="cls_dropout", ours="dropout_rate", default=None),
    ),
    "rows": (dense_row("pooler.dense"), score_row("classifier")),
}
TASK_HEADS: dict[Kind, TaskForm] = {
    "classify": TaskForm(architecture="DebertaForSequenceClassification", **_POOLED),
    "tag": TaskForm(architecture="DebertaForTokenClassification", rows=CLASSIFIER),
    "answer": TaskForm(
        architecture="DebertaForQuestionAnswering",
        head={"dropout_rate": 0.0},
        rows=ANSWERS,
    ),
    "choose": TaskForm(architecture=None, **_POOLED),
}
