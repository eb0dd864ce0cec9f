"""BERT-large in 8,601 steps: LAMB (You et al. 2020) with NVIDIA's published settings.

Published (NVIDIA/DeepLearningExamples, PyTorch): phase 1 of 7,038 steps of 65,536 rows
of 128, learning rate 6e-3 after 28.43 % of warmup; phase 2 of 1,563 steps of 32,768
rows of 512, 4e-3 after 12.8 %; both fall as the square root of what is left, counted
from the phase's first step. The text is cut and masked 5 times. Final loss 1.24 to
1.26; 1.2 hours on 256 A100 (mixed precision). The optimiser's moments go on from phase
1 to phase 2; there the count that corrects their bias begins anew, here it goes on.

    python -m encoderjax.train --config=configs/bert_large_lamb.py
"""

import ml_collections

from encoderjax.recipes import NOTES, as_noted, sibling

VARIANTS = ("full", "tiny", *NOTES)


def get_config(variant: str = "full") -> ml_collections.ConfigDict:
    """Returns the recipe as published, or the same shrunk to some minutes."""
    if variant in NOTES:
        return as_noted(__file__, "bert_base", get_config(NOTES[variant]))
    tiny = variant == "tiny"
    c = sibling(__file__, "bert_base", variant)
    c.model.size, c.model.activation = "large", "gelu"
    c.optimizer = dict(
        name="lamb",
        learning_rate=1e-2 if tiny else 6e-3,
        schedule="polynomial",
        power=0.5,
        warmup_steps=300 if tiny else 2_000,
        b1=0.9,
        b2=0.98 if tiny else 0.999,
        eps=1e-6,
        bias_correction=True,
        weight_decay=0.01,
        trust_ratio="decayed",
        clip_norm=1.0,
        microbatches=1 if tiny else 8,
    )
    # A phase that names a learning rate has a schedule of its own.
    long = c.phases.long
    c.phases.short = dict(
        after=0, optimizer=dict(learning_rate=c.optimizer.learning_rate)
    )
    long.optimizer = dict(
        learning_rate=2e-3 if tiny else 4e-3, warmup_steps=5 if tiny else 200
    )
    if not tiny:
        c.steps, long.after = 7_038 + 1_563, 7_038
        c.data.dupe_factor = 5
        c.data.batch_size = 65_536  # x 128 = 8,388,608 tokens a step
        long.data.batch_size = 32_768  # x 512 = 16,777,216 tokens a step
        long.objectives.mlm.max_predictions = 80
        c.compute.remat = "dots"  # fits v5e:16x16, 11.0 GiB a chip
        c.checkpoint.every, c.eval.every, c.log_every = 200, 500, 10
    return c.lock()
