"""ALBERT-xlarge, Lan et al. 2020, table 2: as ALBERT-base in all but the size.

SQuAD 2.0 F1 86.1, MNLI 86.4, RACE 74.8. 16 heads, as in the published files.

    python -m encoderjax.train --config=configs/albert_xlarge.py
"""

import ml_collections

from encoderjax.recipes import sibling

VARIANTS = ("full", "tiny")


def get_config(variant: str = "full") -> ml_collections.ConfigDict:
    """Returns the recipe as published, or the same shrunk to a minute."""
    c = sibling(__file__, "albert_base", variant)
    c.model.size = "xlarge"
    if variant == "full":
        c.compute.remat = "blocks"  # for v5e, not yet compiled
    return c.lock()
