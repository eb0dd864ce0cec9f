"""DeBERTa v3 (He et al. 2023): v2 without the convolution, trained as a detector.

The detection head adds [CLS] to every token. Hugging Face has no class for it: it is
kept beside the encoder.
"""

import dataclasses

from encoderjax.models.config import EncoderConfig
from encoderjax.models.families import deberta_v2

_HEAD = {"detection_head": "with_cls"}
_SIZES = {
    "xsmall": (12, 384),
    "small": (6, 768),
    "base": (12, 768),
    "large": (24, 1024),
}

PRESETS: dict[str, EncoderConfig] = {
    size: deberta_v2.preset(*shape, 128_100, **_HEAD) for size, shape in _SIZES.items()
} | {
    f"{size}_generator": deberta_v2.preset(num_layers // 2, width, 128_100, **_HEAD)
    for size, (num_layers, width) in _SIZES.items()
}
PRESETS["base_multilingual"] = deberta_v2.preset(12, 768, 251_000, **_HEAD)

HF = dataclasses.replace(deberta_v2.HF, structure={**deberta_v2.HF.structure, **_HEAD})
