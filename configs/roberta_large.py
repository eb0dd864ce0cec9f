"""RoBERTa-large, Liu et al. 2019, table 9.

Published: as RoBERTa-base with a learning rate of 4e-4 after 30,000 steps of warmup;
100,000 of the 500,000 steps took a day on 1,024 V100. SQuAD 1.1/2.0 F1 94.6/89.4, MNLI
90.2, SST-2 96.4.

    python -m encoderjax.train --config=configs/roberta_large.py
"""

import ml_collections

from encoderjax.recipes import NOTES, as_noted, sibling

VARIANTS = ("full", "tiny", *NOTES)


def get_config(variant: str = "full") -> ml_collections.ConfigDict:
    """Returns the recipe as published, or the same shrunk to a minute."""
    if variant in NOTES:
        return as_noted(__file__, "roberta_base", get_config(NOTES[variant]))
    c = sibling(__file__, "roberta_base", variant)
    c.model.size = "large"
    if variant == "full":
        c.compute.remat = "blocks"  # fits v5e:16x16, 7.4 GiB a chip
        c.optimizer.learning_rate, c.optimizer.warmup_steps = 4e-4, 30_000
    return c.lock()
