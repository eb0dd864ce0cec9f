"""ELECTRA-large, Clark et al. 2020: as the small one but for these numbers.

Published: 2,048 rows of 512 a step, 400,000 steps (1.75M in the longer run), 2e-4, a
generator a quarter as wide, 25 % of the tokens masked; the text of XLNet. GLUE test
85.2, SQuAD 2.0 EM 88.1. The hardware was not found.

    python -m encoderjax.prepare --source='texts/xlnet/*.jsonl.gz' \
        --tokenizer=wordpiece:30522 --out=corpora/xlnet_wordpiece
    python -m encoderjax.train --config=configs/electra_large.py
"""

import ml_collections

from encoderjax.recipes import sibling

VARIANTS = ("full", "tiny")


def get_config(variant: str = "full") -> ml_collections.ConfigDict:
    """Returns the recipe as published, or the same shrunk to a minute."""
    c = sibling(__file__, "electra_small", variant)
    c.model.size, c.objectives.mlm.rate = "large", 0.25
    if variant == "full":
        c.compute.remat = "dots"  # fits v5e:16x16, 7.9 GiB a chip
        c.steps, c.optimizer.learning_rate = 400_000, 2e-4
        c.data.corpus = "corpora/xlnet_wordpiece"
        c.data.source = "texts/xlnet/*.jsonl.gz"
        c.data.length, c.data.batch_size = 512, 2_048  # 1,048,576 tokens a step
        c.objectives.mlm.max_predictions = 130
        c.objectives.rtd.generator.update(width=256, num_heads=4, mlp_width=1024)
    return c.lock()
