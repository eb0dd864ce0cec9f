"""BERT (Devlin et al. 2019): the family that the others are told apart from.

Learned absolute positions, two segments, normalisation after each block and after
the embeddings, exact GELU (google-bert trained with the tanh form:
`activation="gelu_tanh"`), a tanh pooler, an MLM head tied to the token table.
"""

from encoderjax.models.encoder import EncoderConfig

_UNCASED, _CASED, _CHINESE = 30_522, 28_996, 21_128
_MULTILINGUAL_CASED, _MULTILINGUAL_UNCASED = 119_547, 105_879


def _bert(num_layers: int, width: int, vocab_size: int = _UNCASED) -> EncoderConfig:
    """Returns a BERT of the published proportions: heads of 64, 4 x width inside."""
    return EncoderConfig(
        vocab_size=vocab_size,
        num_layers=num_layers,
        width=width,
        num_heads=width // 64,
        mlp_width=4 * width,
    )


_MINIATURES = {  # Turc et al. 2019: 24 sizes, all uncased
    f"{num_layers}x{width}": _bert(num_layers, width)
    for num_layers in (2, 4, 6, 8, 10, 12)
    for width in (128, 256, 512, 768)
}

PRESETS: dict[str, EncoderConfig] = _MINIATURES | {
    "tiny": _MINIATURES["2x128"],
    "mini": _MINIATURES["4x256"],
    "small": _MINIATURES["4x512"],
    "medium": _MINIATURES["8x512"],
    "base": _bert(12, 768),
    "base_cased": _bert(12, 768, _CASED),
    "base_multilingual_cased": _bert(12, 768, _MULTILINGUAL_CASED),
    "base_multilingual_uncased": _bert(12, 768, _MULTILINGUAL_UNCASED),
    "base_chinese": _bert(12, 768, _CHINESE),
    "large": _bert(24, 1024),
    "large_cased": _bert(24, 1024, _CASED),
}

# What follows is read by `encoderjax.interop.huggingface`.
HF_MODEL_TYPE = "bert"
HF_PREFIX = "bert."  # what BertModel alone leaves away from its names

# The class of Hugging Face that holds just these heads.
HF_ARCHITECTURES: dict[tuple[str, ...], str] = {
    ("mlm", "nsp"): "BertForPreTraining",
    ("mlm",): "BertForMaskedLM",
    ("nsp",): "BertForNextSentencePrediction",
    (): "BertModel",
}

# Fields of config.json, ours, and the value that Hugging Face gives where it is absent.
HF_FIELDS: tuple[tuple[str, str, int | float | str], ...] = (
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

# Fields of config.json that this encoder has with one value only.
HF_FIXED: dict[str, bool | str] = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}

# Second names of one tensor: older files hold both.
HF_TIED: dict[str, str] = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}

# Where each tensor lies in our tree, and how it is laid out there; `{i}` is the layer.
_LAYER, _OURS = "bert.encoder.layer.{i}", "encoder/layers"
HF_ROWS: tuple[tuple[str, str, str], ...] = (
    ("bert.embeddings.word_embeddings.weight", "encoder/token_embed/embedding", "same"),
    (
        "bert.embeddings.position_embeddings.weight",
        "encoder/position_embed/embedding",
        "same",
    ),
    (
        "bert.embeddings.token_type_embeddings.weight",
        "encoder/segment_embed/embedding",
        "same",
    ),
    ("bert.embeddings.LayerNorm", "encoder/embed_norm", "norm"),
    (f"{_LAYER}.attention.self.query", f"{_OURS}/attention/query", "to_heads"),
    (f"{_LAYER}.attention.self.key", f"{_OURS}/attention/key", "to_heads"),
    (f"{_LAYER}.attention.self.value", f"{_OURS}/attention/value", "to_heads"),
    (f"{_LAYER}.attention.output.dense", f"{_OURS}/attention/out", "from_heads"),
    (f"{_LAYER}.attention.output.LayerNorm", f"{_OURS}/attention_norm", "norm"),
    (f"{_LAYER}.intermediate.dense", f"{_OURS}/mlp/up", "dense"),
    (f"{_LAYER}.output.dense", f"{_OURS}/mlp/down", "dense"),
    (f"{_LAYER}.output.LayerNorm", f"{_OURS}/mlp_norm", "norm"),
    ("bert.pooler.dense", "encoder/pooler", "dense"),
    ("cls.predictions.transform.dense", "heads/mlm/dense", "dense"),
    ("cls.predictions.transform.LayerNorm", "heads/mlm/norm", "norm"),
    ("cls.predictions.bias", "heads/mlm/bias", "same"),
    ("cls.seq_relationship", "heads/nsp/dense", "dense"),
)
