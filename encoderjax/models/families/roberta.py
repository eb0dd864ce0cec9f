"""RoBERTa (Liu et al. 2019): BERT without segments and next sentences.

Positions count the tokens that are not padding, from one above the padding's id: the
first real token is at 2, and the position table has two rows more than the row is long.
The padding's rows of both tables start at 0.
The MLM head's activation is always the exact GELU.
"""

from collections.abc import Mapping

from encoderjax.errors import UserError
from encoderjax.models.config import EncoderConfig
from encoderjax.models.families import bert
from encoderjax.models.families.bert import (
    block_rows,
    embedding_rows,
    hf_fields,
    projection_rows,
    sized,
)
from encoderjax.models.families.names import ENDS, PAD, Names, told
from encoderjax.models.families.task_forms import (
    CLASSIFIER,
    CLASSIFIER_DROPOUT,
    Kind,
    TaskForm,
    dense_row,
    renamed,
    score_row,
)


def preset(num_layers: int, width: int, vocab_size: int) -> EncoderConfig:
    """Returns a RoBERTa of the published proportions."""
    return sized(
        num_layers,
        width,
        vocab_size,
        num_segments=1,
        position_pad_id=1,
        norm_eps=1e-5,
        head_activation="gelu",
        init="normal",
    )


PRESETS: dict[str, EncoderConfig] = {
    "base": preset(12, 768, 50_265),
    "large": preset(24, 1024, 50_265),
    "distil": preset(6, 768, 50_265),  # distilroberta-base
}


def fields(vocab_size: int) -> tuple[tuple[str, str, object], ...]:
    """Returns BERT's fields, but for the length, which is counted otherwise."""
    rows = hf_fields(vocab_size=vocab_size)
    return tuple(row for row in rows if row[1] != "max_length")


def fields_from_hf(config_json: Mapping) -> dict[str, object]:
    """Returns where positions begin, and how many there are."""
    pad_id = told(config_json, "pad_token_id", 1)
    rows = told(config_json, "max_position_embeddings", 512)
    if pad_id < 0 or rows < pad_id + 2:
        raise UserError(
            f"pad_token_id={pad_id!r} and max_position_embeddings={rows!r}: positions "
            "begin one above the padding's id, and the table must hold more than those"
        )
    return {"position_pad_id": pad_id, "max_length": rows - pad_id - 1}


def fields_to_hf(config: EncoderConfig) -> dict[str, object]:
    """Returns the same, as Hugging Face counts."""
    if config.position_pad_id is None:
        raise UserError(
            "model.position_pad_id=None: Hugging Face counts RoBERTa's positions over "
            "what is not padding; use --format=params"
        )
    pad_id = config.position_pad_id
    rows = config.max_length + pad_id + 1
    return {"pad_token_id": pad_id, "max_position_embeddings": rows}


HF = Names(
    model_type="roberta",
    prefix="roberta.",
    architectures={
        ("mlm",): "RobertaForMaskedLM",
        (): "RobertaModel",
    },
    structure={"head_activation": "gelu", "init": "normal"},
    fields=fields(vocab_size=50_265),
    fixed=bert.HF.fixed,
    tied={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    rows=(
        *embedding_rows("roberta."),
        *projection_rows("roberta.encoder.layer.{i}.attention.self"),
        *block_rows("roberta."),
        ("roberta.pooler.dense", "encoder/pooler", "dense"),
        ("lm_head.dense", "heads/mlm/dense", "dense"),
        ("lm_head.layer_norm", "heads/mlm/norm", "norm"),
        ("lm_head.bias", "heads/mlm/bias", "same"),
    ),
    token_ids=PAD | ENDS,
    from_fields=fields_from_hf,
    to_fields=fields_to_hf,
)

TASK_HEADS: dict[Kind, TaskForm] = {
    **renamed(bert.TASK_HEADS, "Bert", "Roberta"),
    "classify": TaskForm(
        architecture="RobertaForSequenceClassification",
        head={"hidden": "dense", "activation": "tanh", "first_dropout_rate": None},
        fields=(CLASSIFIER_DROPOUT,),
        rows=(dense_row("classifier.dense"), score_row("classifier.out_proj")),
    ),
    "choose": TaskForm(  # drops as the encoder, whatever classifier_dropout says
        architecture="RobertaForMultipleChoice",
        head={"hidden": "pooler"},
        rows=CLASSIFIER,
    ),
}
