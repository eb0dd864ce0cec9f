"""ModernBERT-large, Warner et al. 2024, table 3 and appendices A and C.

As the base size but for: a batch that grows from 448 to 4,928 rows over 10B tokens, 2B
of warmup, 5e-4 for 900B tokens and 5e-5 with a tenth of the weight decay for 800B more;
at length 8,192 batches of 77 and 78 at 5e-5. 4,220 H100 hours. The warmup ends in the
fifth size of the batch; it is a line over tokens there and over steps here. The
reference begins with the base model's weights, tiled from the centre; here a run begins
with new ones.

    python -m encoderjax.train --config=configs/modernbert_large.py
"""

import ml_collections

from encoderjax.recipes import sibling

VARIANTS = ("full", "tiny")


def get_config(variant: str = "full") -> ml_collections.ConfigDict:
    """Returns the recipe as published, or the same shrunk to a minute."""
    c = sibling(__file__, "modernbert_base", variant)
    c.model.size = "large"
    if variant == "tiny":
        return c.lock()
    c.data.batch_size = 4_928  # 4,928 rows x 1,024 = 5,046,272 tokens a step
    # 396 steps at each of four sizes, and 80 at the fifth, are 2B tokens.
    c.optimizer.learning_rate, c.optimizer.warmup_steps = 5e-4, 1_664
    growing = {  # 396 steps at each size are 10B tokens
        f"rows_{size}": dict(after=396 * number, data=dict(batch_size=size))
        for number, size in enumerate(range(448, 4_928, 448))
    }
    low = dict(learning_rate=5e-5, warmup_steps=0, weight_decay=1e-6)
    in_two = low | dict(microbatches=2)
    # Fits v5e:8x8, 10.6 GiB a chip.
    c.compute.remat, c.optimizer.microbatches = "blocks", 7
    longer = dict(length=8_192, batch_size=77)  # 77 x 8,192 = 630,784 tokens a step
    c.phases = growing | dict(
        stable=dict(after=3_960),
        rollback=dict(after=180_327, optimizer=low),
        extension=dict(
            after=338_862,
            data=longer,
            model=dict(rope_theta=160_000.0),
            optimizer=in_two,
        ),
        decay=dict(
            after=735_197,
            data=longer | dict(batch_size=78),
            model=dict(rope_theta=160_000.0),
            optimizer=in_two | dict(schedule="wsd", decay_steps=78_250),
        ),
    )
    c.steps = 813_447
    return c.lock()
