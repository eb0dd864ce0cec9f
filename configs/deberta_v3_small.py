"""DeBERTa-v3-small, He et al. 2023: as the base size otherwise.

6 layers, a generator of 3. Published: MNLI 88.3/87.7, SQuAD 2.0 F1 82.9.

    python -m encoderjax.train --config=configs/deberta_v3_small.py
"""

import ml_collections

from encoderjax.recipes import sibling

VARIANTS = ("full", "tiny")


def get_config(variant: str = "full") -> ml_collections.ConfigDict:
    """Returns the recipe as published, or the same shrunk to a minute."""
    c = sibling(__file__, "deberta_v3_base", variant)
    c.model.size = "small"
    if variant == "full":
        c.objectives.rtd.generator.num_layers = 3
    return c.lock()
