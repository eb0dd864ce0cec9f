"""ModernBERT (Warner et al. 2024): rotary positions, local layers, GeGLU, no biases.

Two of three layers see 64 places to either side, the others everything; each kind has
its own rotary base. Normalisation comes before each block, except the first, whose
input has just been normalised, and once more at the end. Pretraining drops out what
attention adds, and nothing else; config.json has no word for that.
"""

from collections.abc import Mapping

from encoderjax.errors import UserError
from encoderjax.models.config import EncoderConfig
from encoderjax.models.families.names import ENDS, PAD, Names, told
from encoderjax.models.families.task_forms import (
    Kind,
    TaskField,
    TaskForm,
    dense_row,
    score_row,
)


def _modernbert(
    num_layers: int, width: int, mlp_width: int, head_width: int = 64
) -> EncoderConfig:
    return EncoderConfig(
        vocab_size=50_368,
        num_layers=num_layers,
        width=width,
        num_heads=width // head_width,
        mlp_width=mlp_width,
        max_length=8192,
        num_segments=0,
        positions="rope",
        rope_theta=160_000.0,
        window=128,
        global_every=3,
        norm_at="before",
        norm_eps=1e-5,
        norm_bias=False,
        use_bias=False,
        mlp="gated",
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
        attention_out_dropout_rate=0.1,
        scaled_out_init=True,
        pooler=False,
    )


PRESETS: dict[str, EncoderConfig] = {
    "base": _modernbert(22, 768, 1152),
    "large": _modernbert(28, 1024, 2624),
}

_LAYER, _OURS = "model.layers.{i}", "encoder/layers"

_LOCAL, _GLOBAL = "sliding_attention", "full_attention"


def _kinds(num_layers: int, global_every: int) -> list[str]:
    return [_LOCAL if i % global_every else _GLOBAL for i in range(num_layers)]


def fields_from_hf(config_json: Mapping) -> dict[str, object]:
    """Returns the pattern of layers and the rotary bases, of new and old files."""
    count = told(config_json, "num_hidden_layers", 22)
    every = told(config_json, "global_attn_every_n_layers", 3)
    kinds = told(config_json, "layer_types", [])
    if kinds and kinds != _kinds(count, every):
        fitting = [n for n in range(1, count + 1) if _kinds(count, n) == kinds]
        if not fitting:
            raise UserError(
                f"layer_types={kinds} is not supported: layers 0, n, 2n, ... must be "
                f"{_GLOBAL!r} and the others {_LOCAL!r}"
            )
        every = fitting[0]
    scaling = told(config_json, "rope_scaling", {})
    if scaling.get("rope_type", scaling.get("type", "default")) != "default":
        raise UserError(f"rope_scaling={scaling} is not supported; remove it")
    ropes = told(config_json, "rope_parameters", {})
    bases = {}
    for kind, old, default in (
        (_GLOBAL, "global_rope_theta", 160_000.0),
        (_LOCAL, "local_rope_theta", 10_000.0),
    ):
        rope = told(ropes, kind, {})
        if rope.get("rope_type", "default") != "default":
            raise UserError(
                f"rope_parameters.{kind}.rope_type={rope['rope_type']!r} is not "
                "supported; this encoder has 'default' only"
            )
        bases[kind] = told(rope, "rope_theta", told(config_json, old, default))
    return {
        "global_every": every,
        "rope_theta": bases[_GLOBAL],
        "local_rope_theta": bases[_LOCAL],
    }


def fields_to_hf(config: EncoderConfig) -> dict[str, object]:
    """Returns the pattern of layers and the rotary bases."""
    base = lambda theta: {"rope_type": "default", "rope_theta": theta}
    window = config.window
    every = 1 if window is None else config.global_every
    return {
        "layer_types": _kinds(config.num_layers, every),
        "global_attn_every_n_layers": every,
        "local_attention": 128 if window is None else window,
        "rope_parameters": {
            _GLOBAL: base(config.rope_theta),
            _LOCAL: base(config.local_rope_theta),
        },
    }


HF = Names(
    model_type="modernbert",
    prefix="model.",
    architectures={
        ("mlm",): "ModernBertForMaskedLM",
        (): "ModernBertModel",
    },
    structure={
        "positions": "rope",
        "num_segments": 0,
        "norm_at": "before",
        "norm_bias": False,
        "use_bias": False,
        "mlp": "gated",
        "scaled_out_init": True,
        "dropout_rate": 0.0,
        "attention_out_dropout_rate": 0.1,
        "pooler": False,
    },
    fields=(
        ("vocab_size", "vocab_size", 50_368),
        ("num_hidden_layers", "num_layers", 22),
        ("hidden_size", "width", 768),
        ("num_attention_heads", "num_heads", 12),
        ("intermediate_size", "mlp_width", 1152),
        ("max_position_embeddings", "max_length", 8192),
        ("hidden_activation", "activation", "gelu"),
        ("classifier_activation", "head_activation", "gelu"),
        ("attention_dropout", "attention_dropout_rate", 0.0),
        ("mlp_dropout", "inner_dropout_rate", 0.0),
        ("norm_eps", "norm_eps", 1e-5),
        ("local_attention", "window", 128),
        ("initializer_range", "init_std", 0.02),
    ),
    fixed={
        "attention_bias": False,
        "mlp_bias": False,
        "norm_bias": False,
        "classifier_bias": False,
        "decoder_bias": True,
        "tie_word_embeddings": True,
    },
    tied={
        "decoder.weight": "model.embeddings.tok_embeddings.weight",
    },
    rows=(
        (
            "model.embeddings.tok_embeddings.weight",
            "encoder/token_embed/embedding",
            "same",
        ),
        ("model.embeddings.norm", "encoder/embed_norm", "norm"),
        (f"{_LAYER}.attn_norm", f"{_OURS}/attention_norm", "norm"),
        (
            f"{_LAYER}.attn.Wqkv",
            f"{_OURS}/attention/query {_OURS}/attention/key {_OURS}/attention/value",
            "stacked",
        ),
        (f"{_LAYER}.attn.Wo", f"{_OURS}/attention/out", "from_heads"),
        (f"{_LAYER}.mlp_norm", f"{_OURS}/mlp_norm", "norm"),
        (f"{_LAYER}.mlp.Wi", f"{_OURS}/mlp/up {_OURS}/mlp/gate", "stacked"),
        (f"{_LAYER}.mlp.Wo", f"{_OURS}/mlp/down", "dense"),
        ("model.final_norm", "encoder/final_norm", "norm"),
        ("head.dense", "heads/mlm/dense", "dense"),
        ("head.norm", "heads/mlm/norm", "norm"),
        ("decoder.bias", "heads/mlm/bias", "same"),
    ),
    token_ids=PAD | ENDS | {"cls_token_id": "cls_id", "sep_token_id": "sep_id"},
    from_fields=fields_from_hf,
    to_fields=fields_to_hf,
)

_POOLING = TaskField(
    theirs="classifier_pooling",
    ours="summary",
    default="cls",
    words={"cls": "first", "mean": "mean"},
)


def _task_form(architecture: str, *fields: TaskField) -> TaskForm:
    """All heads have the same layers, at one place or at all."""
    return TaskForm(
        architecture=architecture,
        head={
            "hidden": "dense",
            "activation": "gelu",
            "dense_bias": False,
            "norm": True,
            "dropout_rate": 0.0,
            "init": "scaled",
        },
        fields=(
            TaskField(
                theirs="classifier_activation", ours="activation", default="gelu"
            ),
            TaskField(theirs="classifier_bias", ours="dense_bias", default=False),
            TaskField(theirs="classifier_dropout", ours="dropout_rate", default=0.0),
            *fields,
        ),
        rows=(
            dense_row("head.dense"),
            ("head.norm", "task/norm", "norm"),
            score_row("classifier"),
        ),
    )


TASK_HEADS: dict[Kind, TaskForm] = {
    "classify": _task_form("ModernBertForSequenceClassification", _POOLING),
    "tag": _task_form("ModernBertForTokenClassification"),
    "answer": _task_form("ModernBertForQuestionAnswering"),
    "choose": _task_form("ModernBertForMultipleChoice", _POOLING),
}
