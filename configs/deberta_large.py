"""DeBERTa-large (v1), He et al. 2021, table 8: as the base size otherwise.

Published: 96 V100 (6 DGX-2), 20 days; GLUE dev average 90.00, MNLI 91.3/91.1, SQuAD 2.0
F1 90.7.

    python -m encoderjax.train --config=configs/deberta_large.py
"""

import ml_collections

from encoderjax.recipes import NOTES, as_noted, sibling

VARIANTS = ("full", "tiny", *NOTES)


def get_config(variant: str = "full") -> ml_collections.ConfigDict:
    """Returns the recipe as published, or the same shrunk to a minute."""
    if variant in NOTES:
        return as_noted(__file__, "deberta_base", get_config(NOTES[variant]))
    c = sibling(__file__, "deberta_base", variant)
    c.model.size = "large"
    if variant == "full":
        # Fits v5e:16x16, 9.4 GiB a chip.
        c.compute.remat = "dots"
    return c.lock()
