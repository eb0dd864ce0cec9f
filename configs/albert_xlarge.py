"""ALBERT-xlarge, Lan et al. 2020, table 2: as ALBERT-base in all but the size.

SQuAD 2.0 F1 86.1, MNLI 86.4, RACE 74.8. 16 heads, as in the published files.

    python -m encoderjax.train --config=configs/albert_xlarge.py
"""

import ml_collections

from encoderjax.recipes import NOTES, as_noted, sibling

VARIANTS = ("full", "tiny", *NOTES)


def get_config(variant: str = "full") -> ml_collections.ConfigDict:
    """Returns the recipe as published, or the same shrunk to a minute."""
    if variant in NOTES:
        return as_noted(__file__, "albert_base", get_config(NOTES[variant]))
    c = sibling(__file__, "albert_base", variant)
    c.model.size = "xlarge"
    if variant == "full":
        c.compute.remat = "dots"  # fits v5e:16x16, 9.1 GiB a chip
    return c.lock()
