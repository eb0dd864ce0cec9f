"""SpanBERT-large cased, Joshi et al. 2020, section 4.2: as the base size otherwise.

Published: 15 days on 32 V100; test F1 of 94.6 on SQuAD 1.1, 88.7 on 2.0, 79.6 in
coreference, 70.8 on TACRED.

    python -m encoderjax.train --config=configs/spanbert_large.py
"""

import ml_collections

from encoderjax.recipes import NOTES, as_noted, sibling

VARIANTS = ("full", "tiny", *NOTES)


def get_config(variant: str = "full") -> ml_collections.ConfigDict:
    """Returns the recipe as published, or the same shrunk to a minute."""
    if variant in NOTES:
        return as_noted(__file__, "spanbert_base", get_config(NOTES[variant]))
    c = sibling(__file__, "spanbert_base", variant)
    c.model.size = "large"
    if variant == "full":
        # Fits v5e:8x8, 8.8 GiB a chip.
        c.compute.remat = "none"
    return c.lock()
