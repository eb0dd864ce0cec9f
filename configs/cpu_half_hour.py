"""A BERT for half an hour on two CPU cores, on 36 MB of English books.

    python -m encoderjax.prepare --source='texts/standardebooks/*.jsonl.gz' \
        --tokenizer=wordpiece:8000 --out=corpora/standardebooks
    python -m encoderjax.train --config=configs/cpu_half_hour.py

Beside the same model in PyTorch: `python -m encoderjax.race
--config=configs/cpu_half_hour.py --minutes=30` (docs/reproducing.md).

Nothing here was measured yet; these are the reasons for a first guess. Two cores
are taken to make 50 GFLOP/s, 9e13 in the time. At 6 operations a weight and token that
is 1.8M weights in the layers for 9M tokens, which is the corpus once: 4 layers of 192
columns.
Rows are short, since a row of 64 costs little attention and gives as many predictions;
they are full sentences, without padding and without a pair loss, which would have
hardly begun to be learned. Small batches make many updates. No dropout: nothing is read
twice. Masks are 15 %, so that losses compare with those of other recipes.

On a machine of another speed, set steps to 1,800 s x tokens/s / 4,000; the progress
line has the tokens/s.
"""

import ml_collections

from encoderjax.recipes import shrink

VARIANTS = ("full", "tiny")


def get_config(variant: str = "full") -> ml_collections.ConfigDict:
    """Returns the recipe, or the same shrunk to a minute."""
    c = ml_collections.ConfigDict()
    c.seed, c.steps, c.precision, c.log_every = 0, 2_200, "auto", 10
    c.model = dict(
        family="bert",
        size="tiny",
        num_layers=4,
        width=192,
        num_heads=3,
        mlp_width=768,
        init_std=0.05,
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
    )
    c.data = dict(
        corpus="corpora/standardebooks",
        source="texts/standardebooks/*.jsonl.gz",
        tokenizer="wordpiece:8000",
        form="full_sentences",
        length=64,
        batch_size=64,  # 64 rows x 64 = 4,096 tokens a step
        masking="dynamic",
    )
    c.objectives = dict(mlm=dict(rate=0.15))
    c.optimizer = dict(
        name="adamw",
        learning_rate=2e-3,
        schedule="linear",
        warmup_steps=150,
        b1=0.9,
        b2=0.98,
        eps=1e-6,
        weight_decay=0.01,
        clip_norm=1.0,
        microbatches=1,
    )
    c.mesh = dict(data=-1, fsdp=1, model=1)
    c.checkpoint = dict(every=500, keep=2)
    c.eval = dict(every=200, batches=16)
    if variant == "tiny":
        shrink(c, tokenizer="wordpiece:1000", learning_rate=2e-3)
    return c.lock()
