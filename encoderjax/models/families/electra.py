"""ELECTRA (Clark et al. 2020): BERT as a detector of replaced tokens.

The discriminator is what is kept; the generator, a narrower BERT, is an MLM of its own.
Small tables are projected to the width of the model. No pooler. The projection and the
detector's scores start as TensorFlow starts what it is not told about.
"""

import dataclasses
from collections.abc import Mapping

from encoderjax.models.config import EncoderConfig
from encoderjax.models.families import bert
from encoderjax.models.families.bert import (
    block_rows,
    embedding_rows,
    hf_fields,
    projection_rows,
    sized,
)
from encoderjax.models.families.names import Names, told
from encoderjax.models.families.task_forms import (
    CLASSIFIER_DROPOUT,
    Kind,
    TaskField,
    TaskForm,
    dense_row,
    renamed,
    score_row,
)


def generator(discriminator: EncoderConfig, fraction: float) -> EncoderConfig:
    """Returns the generator of a discriminator: as deep, `fraction` as wide.

    Its tables are as wide as the discriminator's, with which it shares them.
    """
    d = discriminator
    width = int(d.width * fraction)
    heads = max(1, width // 64)
    width -= width % heads
    tables = d.table_width
    return dataclasses.replace(
        d,
        width=width,
        num_heads=heads,
        mlp_width=4 * width,
        embed_width=None if tables == width else tables,
    )


def _discriminator(num_layers: int, width: int, **fields: int) -> EncoderConfig:
    return sized(
        num_layers, width, 30_522, pooler=False, init_projection="glorot", **fields
    )


_DISCRIMINATORS = {
    "small": _discriminator(12, 256, embed_width=128),
    "base": _discriminator(12, 768),
    "large": _discriminator(24, 1024),
}
PRESETS: dict[str, EncoderConfig] = _DISCRIMINATORS | {
    # The small generator was released at full width, though the paper has a quarter.
    "small_generator": generator(_DISCRIMINATORS["small"], 1.0),
    "base_generator": generator(_DISCRIMINATORS["base"], 1 / 3),
    "large_generator": generator(_DISCRIMINATORS["large"], 1 / 4),
}


def fields_from_hf(config_json: Mapping) -> dict[str, object]:
    """Returns the width of the tables; without a projection where they are as wide."""
    width = told(config_json, "embedding_size", 128)
    same = width == told(config_json, "hidden_size", 256)
    # The generator's head is exact, the discriminator's follows hidden_act.
    is_generator = "ElectraForMaskedLM" in told(config_json, "architectures", [])
    head = {"head_activation": "gelu"} if is_generator else {}
    return {"embed_width": None if same else width, **head}


def fields_to_hf(config: EncoderConfig) -> dict[str, object]:
    """Returns the width of the tables."""
    return {"embedding_size": config.table_width}


HF = Names(
    model_type="electra",
    prefix="electra.",
    architectures={
        ("mlm",): "ElectraForMaskedLM",
        ("rtd",): "ElectraForPreTraining",
        (): "ElectraModel",
    },
    structure={"pooler": False, "init_projection": "glorot"},
    fields=hf_fields(hidden_size=256, num_attention_heads=4, intermediate_size=1024),
    fixed=bert.HF.fixed,
    tied={
        "generator_lm_head.weight": "electra.embeddings.word_embeddings.weight",
    },
    rows=(
        *embedding_rows("electra."),
        ("electra.embeddings_project", "encoder/embed_project", "dense"),
        *projection_rows("electra.encoder.layer.{i}.attention.self"),
        *block_rows("electra."),
        ("generator_predictions.dense", "heads/mlm/dense", "dense"),
        ("generator_predictions.LayerNorm", "heads/mlm/norm", "norm"),
        ("generator_lm_head.bias", "heads/mlm/bias", "same"),
        ("discriminator_predictions.dense", "heads/rtd/dense", "dense"),
        ("discriminator_predictions.dense_prediction", "heads/rtd/score", "dense"),
    ),
    from_fields=fields_from_hf,
    to_fields=fields_to_hf,
)

TASK_HEADS: dict[Kind, TaskForm] = {
    **renamed(bert.TASK_HEADS, "Bert", "Electra"),
    "classify": TaskForm(
        architecture="ElectraForSequenceClassification",
        head={"hidden": "dense", "activation": "gelu", "first_dropout_rate": None},
        fields=(CLASSIFIER_DROPOUT,),
        rows=(dense_row("classifier.dense"), score_row("classifier.out_proj")),
    ),
    "choose": TaskForm(
        architecture="ElectraForMultipleChoice",
        head={"hidden": "dense", "activation": "gelu", "dropout_rate": 0.1},
        fields=(
            # There the mean counts padding, and the last token may be padding.
            TaskField(
                theirs="summary_type",
                ours="summary",
                default="first",
                words={"first": "first"},
            ),
            TaskField(
                theirs="summary_use_proj",
                ours="hidden",
                default=True,
                words={True: "dense", False: "none"},
            ),
            TaskField(theirs="summary_activation", ours="activation", default="gelu"),
            TaskField(theirs="summary_last_dropout", ours="dropout_rate", default=0.1),
        ),
        rows=(dense_row("sequence_summary.summary"), score_row("classifier")),
    ),
}
