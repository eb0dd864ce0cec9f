"""ModernBERT-base, Warner et al. 2024, table 3 and appendices A and C.

Published, in tokens: 1.719T at length 1,024, the batch growing from 768 to 4,608 rows
over the first 50B, as many steps at each size; learning rate 8e-4 after 3B of warmup,
then constant. 250B at length 8,192 in batches of 72 at 3e-4, for which the global
layers turn positions by a base of 160,000 instead of 10,000. Then 50B in which the rate
falls to 0 as 1 - sqrt. StableAdamW, 1e-5 of the weights lost in a step; 30 % of the
tokens masked, [CLS] and [SEP] among them; documents packed into full rows; dropout on
the output of attention alone. 1,964 H100 hours. The released model is the mean of four
of the last checkpoints.

Rows hold several documents, which do not see one another. The batch grows in steps of
768 here. The reference draws random tokens up to the largest id of the batch.

Data: 2T tokens of web text, code and papers that were not released; docs/data.md.

    python -m encoderjax.prepare --source='texts/modernbert/*.jsonl.gz' \
        --tokenizer=bbpe/modernbert:50368 --out=corpora/modernbert
    python -m encoderjax.train --config=configs/modernbert_base.py
"""

import ml_collections

from encoderjax.recipes import shrink

VARIANTS = ("full", "tiny")


def get_config(variant: str = "full") -> ml_collections.ConfigDict:
    """Returns the recipe as published, or the same shrunk to a minute."""
    c = ml_collections.ConfigDict()
    c.seed, c.precision, c.log_every = 0, "auto", 100
    c.model = dict(
        family="modernbert",
        size="base",
        rope_theta=10_000.0,
        attention_out_dropout_rate=0.1,
    )
    c.data = dict(
        corpus="corpora/modernbert",
        source="texts/modernbert/*.jsonl.gz",
        tokenizer="bbpe/modernbert:50368",
        form="packed",
        length=1_024,
        batch_size=4_608,  # 4,608 rows x 1,024 = 4,718,592 tokens a step
        fill_batch=True,  # no pod can share 72 rows evenly
        dupe_factor=1,
        masking="dynamic",
    )
    c.objectives = dict(mlm=dict(rate=0.3, count="bernoulli", specials=True))
    c.optimizer = dict(
        name="stable_adamw",
        learning_rate=8e-4,
        schedule="constant",
        warmup_steps=3_815,  # 3B tokens at 768 rows
        b1=0.9,
        b2=0.98,
        eps=1e-6,
        weight_decay=1e-5,
        decoupled_decay=True,
        clip_norm=0.0,
        microbatches=6,
    )
    c.mesh = dict(data=-1, fsdp=1, model=1)
    c.compute = dict(attention="auto", remat="dots")  # fits v5e:16x16, 7.3 GiB a chip
    c.checkpoint = dict(every=2_000, keep=2, keep_every=50_000)
    c.eval = dict(every=10_000, batches=4)
    growing = {  # 4,238 steps at each size are 50B tokens
        f"rows_{size}": dict(after=4_238 * number, data=dict(batch_size=size))
        for number, size in enumerate(range(768, 4_608, 768))
    }
    longer = dict(
        data=dict(length=8_192, batch_size=72),  # 72 x 8,192 = 589,824 tokens a step
        model=dict(rope_theta=160_000.0),
    )
    constant = dict(
        learning_rate=3e-4, schedule="constant", warmup_steps=0, microbatches=2
    )
    falling = constant | dict(schedule="wsd", decay_steps=84_771)
    c.phases = growing | dict(
        stable=dict(after=21_190),
        extension=dict(after=374_888, optimizer=constant, **longer),
        decay=dict(after=798_743, optimizer=falling, **longer),
    )
    c.steps = 883_514
    if variant == "tiny":
        shrink(
            c,
            tokenizer="bbpe/modernbert:1000",
            model=dict(num_layers=4, mlp_width=192, window=16),
            learning_rate=2e-3,
        )
        longer = dict(
            data=dict(length=128, batch_size=16), model=dict(rope_theta=160_000.0)
        )
        short = dict(learning_rate=1e-3, microbatches=1)
        c.phases = dict(  # the same parts
            rows_16=dict(after=0, data=dict(batch_size=16)),
            stable=dict(after=60),
            extension=dict(after=280, optimizer=constant | short, **longer),
            decay=dict(
                after=330, optimizer=falling | short | dict(decay_steps=70), **longer
            ),
        )
    return c.lock()
