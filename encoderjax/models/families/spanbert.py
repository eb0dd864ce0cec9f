"""SpanBERT (Joshi et al. 2020): BERT cased, trained on spans and their boundaries.

The model is BERT's; its boundary head has no place in Hugging Face's classes and is
kept beside them.
"""

import dataclasses

from encoderjax.models.config import EncoderConfig
from encoderjax.models.families import bert

PRESETS: dict[str, EncoderConfig] = {
    "base": bert.sized(12, 768, 28_996, init="normal"),
    "large": bert.sized(24, 1024, 28_996, init="normal"),
}

HF = dataclasses.replace(bert.HF, structure={"init": "normal"})

TASK_HEADS = bert.TASK_HEADS
