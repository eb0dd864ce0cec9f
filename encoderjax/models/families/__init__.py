"""The families of the BERT line: presets of one encoder, and their names elsewhere."""

from types import ModuleType

from encoderjax.command import did_you_mean
from encoderjax.errors import UserError
from encoderjax.models.config import EncoderConfig
from encoderjax.models.families import (
    albert,
    bert,
    deberta,
    deberta_v2,
    deberta_v3,
    distilbert,
    electra,
    modernbert,
    roberta,
    spanbert,
    xlm_roberta,
    xlnet,
)

FAMILIES: dict[str, ModuleType] = {
    "bert": bert,
    "roberta": roberta,
    "albert": albert,
    "spanbert": spanbert,
    "xlnet": xlnet,
    "deberta": deberta,
    "deberta_v2": deberta_v2,
    "deberta_v3": deberta_v3,
    "electra": electra,
    "distilbert": distilbert,
    "xlm_roberta": xlm_roberta,
    "modernbert": modernbert,
}


def preset(family: str, size: str) -> EncoderConfig:
    """Returns the published configuration of a family and size."""
    if family not in FAMILIES:
        raise UserError(
            f"model.family={family!r} is not known{did_you_mean(family, FAMILIES)} "
            f"(families: {', '.join(FAMILIES)})"
        )
    presets = FAMILIES[family].PRESETS
    if size not in presets:
        raise UserError(
            f"model.size={size!r} is not a size of {family}"
            f"{did_you_mean(size, presets)} (sizes: {', '.join(presets)})"
        )
    return presets[size]
