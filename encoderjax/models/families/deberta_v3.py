"""DeBERTa v3 (He et al. 2023): v2 without the convolution, trained as a detector.

The detection head adds [CLS] to every token. Hugging Face has no class for it: it is
kept beside the encoder, and taken from microsoft's own files.
"""

from encoderjax.models.config import EncoderConfig
from encoderjax.models.families import deberta_v2

_SIZES = {  # layers, width
    "xsmall": (12, 384),
    "small": (6, 768),
    "base": (12, 768),
    "large": (24, 1024),
}

PRESETS: dict[str, EncoderConfig] = {
    size: deberta_v2.preset(*shape, 128_100) for size, shape in _SIZES.items()
} | {
    f"{size}_generator": deberta_v2.preset(num_layers // 2, width, 128_100)
    for size, (num_layers, width) in _SIZES.items()
}
PRESETS["base_multilingual"] = deberta_v2.preset(12, 768, 251_000)

HF = deberta_v2.HF

TASK_HEADS = deberta_v2.TASK_HEADS
