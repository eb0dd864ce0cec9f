"""DeBERTa-v3-large, He et al. 2023: as the base size otherwise.

24 layers, a generator of 12, a learning rate of 3e-4 (from secondary sources, too).
Published: GLUE dev 91.37, MNLI 91.8/91.9, SQuAD 2.0 F1 91.5.

    python -m encoderjax.train --config=configs/deberta_v3_large.py
"""

import ml_collections

from encoderjax.recipes import sibling

VARIANTS = ("full", "tiny")


def get_config(variant: str = "full") -> ml_collections.ConfigDict:
    """Returns the recipe as published, or the same shrunk to a minute."""
    c = sibling(__file__, "deberta_v3_base", variant)
    c.model.size = "large"
    if variant == "full":
        c.objectives.rtd.generator.num_layers = 12
        c.optimizer.learning_rate = 3e-4
        # Fits v5e:16x16, 14.5 GiB a chip.
        c.compute.remat, c.optimizer.microbatches = "blocks", 4
        c.optimizer.groups = {"^generator/": dict(learning_rate=3e-4)}
    return c.lock()
