"""XLM-R (Conneau et al. 2020): RoBERTa with a vocabulary for a hundred languages."""

import dataclasses

from encoderjax.models.config import EncoderConfig
from encoderjax.models.families import roberta
from encoderjax.models.families.task_forms import renamed

PRESETS: dict[str, EncoderConfig] = {
    "base": roberta.preset(12, 768, 250_002),
    "large": roberta.preset(24, 1024, 250_002),
}

HF = dataclasses.replace(
    roberta.HF,
    model_type="xlm-roberta",
    architectures={("mlm",): "XLMRobertaForMaskedLM", (): "XLMRobertaModel"},
    fields=roberta.fields(vocab_size=30_522),
)

TASK_HEADS = renamed(roberta.TASK_HEADS, "Roberta", "XLMRoberta")
