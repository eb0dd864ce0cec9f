"""BERT-large uncased, Devlin et al. 2019, appendix A.2.

Published: as BERT-base in everything but the size; 64 TPU v2 chips (16 Cloud TPUs in a
pod), 4 days. Fits v5e:16x16, 6.5 GiB a chip.

    python -m encoderjax.train --config=configs/bert_large.py
"""

import ml_collections

from encoderjax.recipes import NOTES, as_noted, sibling

VARIANTS = ("full", "tiny", *NOTES)


def get_config(variant: str = "full") -> ml_collections.ConfigDict:
    """Returns the recipe as published, or the same shrunk to a minute."""
    if variant in NOTES:
        return as_noted(__file__, "bert_base", get_config(NOTES[variant]))
    c = sibling(__file__, "bert_base", variant)
    c.model.size = "large"
    return c.lock()
