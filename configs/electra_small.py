"""ELECTRA-small, Clark et al. 2020, and configure_pretraining.py of its code.

A generator a quarter as wide, which shares all embeddings, fills the masks; the
discriminator finds what was replaced, at every token. Published: 128 rows of 128 a
step, 1M steps, 5e-4 after 10,000 of warmup, weight 50; one V100, 4 days, GLUE 79.9
(74.1 after 6 hours). The released model ran 4M steps with a generator of full width.
Masked places are drawn with replacement (13.9 % of the tokens instead of 15), 85 % of
them become [MASK] and the others stay as they are. Rows are cut once, masks drawn anew
in every epoch. The loss starts near 10.3 + 50 x 0.69.

Data: Wikipedia and BooksCorpus (released: OpenWebText too); docs/data.md has open ones.

    python -m encoderjax.prepare --source='texts/wiki_books/*.jsonl.gz' \
        --tokenizer=wordpiece:30522 --out=corpora/wiki_books
    python -m encoderjax.train --config=configs/electra_small.py
"""

import ml_collections

from encoderjax.recipes import shrink

VARIANTS = ("full", "tiny")


def get_config(variant: str = "full") -> ml_collections.ConfigDict:
    """Returns the recipe as published, or the same shrunk to a minute."""
    c = ml_collections.ConfigDict()
    c.seed, c.steps, c.precision, c.log_every = 0, 1_000_000, "auto", 100
    c.model = dict(family="electra", size="small", activation="gelu_tanh")
    c.data = dict(
        corpus="corpora/wiki_books",
        source="texts/wiki_books/*.jsonl.gz",
        tokenizer="wordpiece:30522",
        form="segment_halves",
        short_rate=0.05,
        length=128,
        batch_size=128,  # 128 rows x 128 = 16,384 tokens a step
        dupe_factor=1,
        masking="dynamic",
    )
    c.objectives = dict(
        mlm=dict(
            rate=0.15,
            select="with_replacement",
            max_predictions=19,  # (0.15 + 0.005) x 128
            replace=dict(mask=0.85, random=0.0),
        ),
        rtd=dict(
            weight=50.0,
            sharing="all",
            # The head's exact GELU is the one that Hugging Face's class has.
            generator=dict(
                width=64, num_heads=1, mlp_width=256, head_activation="gelu"
            ),
        ),
    )
    c.optimizer = dict(
        name="adamw",
        learning_rate=5e-4,
        schedule="electra",
        warmup_steps=10_000,
        b1=0.9,
        b2=0.999,
        eps=1e-6,
        bias_correction=False,
        weight_decay=0.01,
        clip_norm=1.0,
        microbatches=1,
    )
    c.mesh = dict(data=-1, fsdp=1, model=1)
    c.compute = dict(attention="auto", remat="none")  # fits v5e:4x4, 0.5 GiB a chip
    c.checkpoint = dict(every=5_000, keep=2)
    c.eval = dict(every=10_000, batches=100)
    if variant == "tiny":
        # That a token does not fit its neighbours is learned from many of them, pair by
        # pair and place by place: so tokens of a letter or two, short rows, many of
        # them, and networks as narrow as that takes.
        shrink(
            c,
            tokenizer="wordpiece:100",
            model=dict(
                embed_width=None, num_layers=1, width=64, mlp_width=256, init_std=0.12
            ),
            learning_rate=3e-3,
            steps=700,
        )
        c.objectives.rtd.generator.update(width=32, mlp_width=128)
        c.data.update(length=16, batch_size=512)  # 512 rows x 16 = 8,192 tokens a step
        c.data.dupe_factor = 10  # the demo corpus comes round soon
        # A mean over 1,000 steps, uncorrected, would not settle in so few.
        c.optimizer.update(b2=0.95, bias_correction=True)
    return c.lock()
