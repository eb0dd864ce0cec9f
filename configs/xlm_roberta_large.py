"""XLM-R-large, Conneau et al. 2020, section 5.2: as the base size otherwise.

The learning rate is RoBERTa-large's. Published: XNLI 80.9 without translations.

    python -m encoderjax.train --config=configs/xlm_roberta_large.py
"""

import ml_collections

from encoderjax.recipes import sibling

VARIANTS = ("full", "tiny")


def get_config(variant: str = "full") -> ml_collections.ConfigDict:
    """Returns the recipe as published, or the same shrunk to a minute."""
    c = sibling(__file__, "xlm_roberta_base", variant)
    c.model.size = "large"
    if variant == "full":
        # Fits v5e:16x16, 12.3 GiB a chip.
        c.compute.remat = "blocks"
        c.optimizer.microbatches = 2
        c.optimizer.learning_rate, c.optimizer.warmup_steps = 4e-4, 30_000
    return c.lock()
