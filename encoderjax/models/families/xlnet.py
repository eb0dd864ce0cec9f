"""XLNet (Yang et al. 2019): Transformer-XL's attention, two streams, a memory.

No absolute positions, no norm of the embeddings; attention without biases; the LM head
is the token table and a bias. Padding stands before the text and [CLS] at its end.
google's code trained with the tanh form of GELU, the weights are used with the exact
one.
"""

from collections.abc import Mapping

from encoderjax.models.config import EncoderConfig
from encoderjax.models.families.bert import sized
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


def _xlnet(num_layers: int, width: int) -> EncoderConfig:
    return sized(
        num_layers,
        width,
        32_000,
        positions="two_stream",
        embed_norm=False,
        inner_dropout_rate=0.1,
        mlm_head="tied",
        pooler=False,
        summary="last",
        init="normal",
    )


PRESETS: dict[str, EncoderConfig] = {
    "base": _xlnet(12, 768),
    "large": _xlnet(24, 1024),
}

_LAYER, _OURS = "transformer.layer.{i}", "encoder/layers"


def fields_from_hf(config_json: Mapping) -> dict[str, object]:
    """Returns what is carried from segment to segment; one rate drops everywhere."""
    rate = told(config_json, "dropout", 0.1)
    absent = 0 if "mem_len" in config_json else 512  # null there is none
    return {
        "memory_length": told(config_json, "mem_len", absent),
        "reuse_length": told(config_json, "reuse_len", 0),
        "clamp_length": max(0, told(config_json, "clamp_len", -1)),
        "attention_dropout_rate": rate,
        "inner_dropout_rate": rate,
    }


def fields_to_hf(config: EncoderConfig) -> dict[str, object]:
    """Returns the same as Hugging Face writes it."""
    return {
        "mem_len": config.memory_length or None,
        "reuse_len": config.reuse_length or None,
        "clamp_len": config.clamp_length or -1,
        "summary_type": config.summary,
    }


HF = Names(
    model_type="xlnet",
    prefix="transformer.",
    architectures={
        ("mlm",): "XLNetLMHeadModel",
        (): "XLNetModel",
    },
    structure={
        "positions": "two_stream",
        "embed_norm": False,
        "mlm_head": "tied",
        "pooler": False,
        "summary": "last",
        "init": "normal",
    },
    fields=(
        ("vocab_size", "vocab_size", 32_000),
        ("n_layer", "num_layers", 24),
        ("d_model", "width", 1024),
        ("n_head", "num_heads", 16),
        ("d_inner", "mlp_width", 4096),
        ("ff_activation", "activation", "gelu"),
        ("dropout", "dropout_rate", 0.1),
        ("layer_norm_eps", "norm_eps", 1e-12),
        ("initializer_range", "init_std", 0.02),
        ("bi_data", "bidirectional_data", False),
    ),
    fixed={
        "attn_type": "bi",
        "same_length": False,
        "untie_r": True,
        "tie_word_embeddings": True,
    },
    tied={"lm_loss.weight": "transformer.word_embedding.weight"},
    rows=(
        ("transformer.word_embedding.weight", "encoder/token_embed/embedding", "same"),
        ("transformer.mask_emb", "encoder/query_embed", "one_row"),
        (f"{_LAYER}.rel_attn.q", f"{_OURS}/attention/query/kernel", "same"),
        (f"{_LAYER}.rel_attn.k", f"{_OURS}/attention/key/kernel", "same"),
        (f"{_LAYER}.rel_attn.v", f"{_OURS}/attention/value/kernel", "same"),
        (f"{_LAYER}.rel_attn.o", f"{_OURS}/attention/out/kernel", "width_last"),
        (f"{_LAYER}.rel_attn.r", f"{_OURS}/attention/position_key/kernel", "same"),
        (f"{_LAYER}.rel_attn.r_w_bias", f"{_OURS}/attention/content_bias", "same"),
        (f"{_LAYER}.rel_attn.r_r_bias", f"{_OURS}/attention/position_bias", "same"),
        (f"{_LAYER}.rel_attn.r_s_bias", f"{_OURS}/attention/segment_bias", "same"),
        (f"{_LAYER}.rel_attn.seg_embed", f"{_OURS}/attention/segment_embed", "same"),
        (f"{_LAYER}.rel_attn.layer_norm", f"{_OURS}/attention_norm", "norm"),
        (f"{_LAYER}.ff.layer_1", f"{_OURS}/mlp/up", "dense"),
        (f"{_LAYER}.ff.layer_2", f"{_OURS}/mlp/down", "dense"),
        (f"{_LAYER}.ff.layer_norm", f"{_OURS}/mlp_norm", "norm"),
        ("lm_loss.bias", "heads/mlm/bias", "same"),
    ),
    from_fields=fields_from_hf,
    to_fields=fields_to_hf,
)

_SUMMARY = {
    "head": {
        "summary": "last",
        "hidden": "dense",
        "activation": "tanh",
        "dropout_rate": 0.1,
    },
    "fields": (
        # There the first token may be padding, and the mean counts it.
        TaskField(
            theirs="summary_type",
            ours="summary",
            default="last",
            words={"last": "last", "cls_index": "last"},
        ),
        TaskField(
            theirs="summary_use_proj",
            ours="hidden",
            default=True,
            words={True: "dense", False: "none"},
        ),
        TaskField(theirs="summary_activation", ours="activation", default="tanh"),
        TaskField(theirs="summary_last_dropout", ours="dropout_rate", default=0.1),
    ),
    "rows": (dense_row("sequence_summary.summary"), score_row("logits_proj")),
}
TASK_HEADS: dict[Kind, TaskForm] = {
    "classify": TaskForm(architecture="XLNetForSequenceClassification", **_SUMMARY),
    "tag": TaskForm(
        architecture="XLNetForTokenClassification",
        head={"dropout_rate": 0.0},
        rows=CLASSIFIER,
    ),
    "answer": TaskForm(  # the other class there searches with a beam
        architecture="XLNetForQuestionAnsweringSimple",
        head={"dropout_rate": 0.0},
        rows=ANSWERS,
    ),
    "choose": TaskForm(architecture="XLNetForMultipleChoice", **_SUMMARY),
}
