"""The families of the BERT line: presets of one encoder, and their names elsewhere."""

from types import ModuleType

from encoderjax.command import did_you_mean
from encoderjax.errors import UserError
from encoderjax.models.encoder import EncoderConfig
from encoderjax.models.families import bert

FAMILIES: dict[str, ModuleType] = {"bert": bert}


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
