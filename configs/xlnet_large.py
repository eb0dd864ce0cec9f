"""XLNet-large cased, Yang et al. 2019, table 7 and the README of its code.

Published: 8,192 rows of 512 a step, 500,000 steps, learning rate 4e-4 after 40,000 of
warmup, down a line to a thousandth; 512 TPU v3 chips, 5.5 days. A row is 256 tokens
that the next one reads again from memory, then two segments; half of the batch holds
the same text backwards. 85 of 512 tokens are predicted, in n-grams of up to five, in an
order drawn anew for each row. The label of the second segment is not learned. The code
wrote 20 passes of the text, each with pairs and targets of its own (num_passes); here
pairs are cut once and targets drawn anew in every epoch (data.dupe_factor=20,
masking="static" is the other way).

Each place of a batch reads one stretch of the text from its beginning to its end, step
after step, with a memory of 384 states. Held-out rows are measured without one.

Data: 32.89B pieces: BooksCorpus and Wikipedia 13 GB, Giga5 16 GB, ClueWeb 19 GB, Common
Crawl 110 GB; docs/data.md has open ones.

    python -m encoderjax.prepare --source='texts/xlnet/*.jsonl.gz' \
        --tokenizer=unigram/xlnet:32000 --out=corpora/xlnet
    python -m encoderjax.train --config=configs/xlnet_large.py
"""

import ml_collections

from encoderjax.recipes import NOTES, as_noted, shrink

VARIANTS = ("full", "tiny", *NOTES)


def get_config(variant: str = "full") -> ml_collections.ConfigDict:
    """Returns the recipe as published, or the same shrunk to a minute."""
    if variant in NOTES:
        return as_noted(__file__, "xlnet_large", get_config(NOTES[variant]))
    c = ml_collections.ConfigDict()
    c.seed, c.steps, c.precision, c.log_every = 0, 500_000, "auto", 100
    c.model = dict(
        family="xlnet",
        size="large",
        activation="gelu_tanh",
        memory_length=384,
        reuse_length=256,
    )
    c.data = dict(
        corpus="corpora/xlnet",
        source="texts/xlnet/*.jsonl.gz",
        tokenizer="unigram/xlnet:32000",
        form="reuse_pair",
        second="random",
        separators="documents",
        length=512,
        reuse_length=256,
        bidirectional=True,
        batch_size=8_192,  # 8,192 rows x 512 = 4,194,304 tokens a step
        dupe_factor=1,
    )
    c.objectives = dict(plm=dict(predict_share=1 / 6, max_ngram=5, permute_within=256))
    c.optimizer = dict(
        name="adamw",
        learning_rate=4e-4,
        schedule="linear",
        warmup_steps=40_000,
        end_share=0.001,
        b1=0.9,
        b2=0.999,
        eps=1e-6,
        bias_correction=False,
        weight_decay=0.01,
        clip_norm=1.0,
        microbatches=2,
    )
    c.mesh = dict(data=-1, fsdp=1, model=1)
    # Fits v5e:16x16, 11.2 GiB a chip.
    c.compute = dict(attention="auto", remat="blocks")
    c.checkpoint = dict(every=1_000, keep=2)
    c.eval = dict(every=5_000, batches=8)
    if variant == "tiny":
        shrink(
            c,
            tokenizer="unigram/xlnet:1000",
            model=dict(memory_length=48, reuse_length=32, inner_dropout_rate=0.0),
            learning_rate=3e-3,
        )
        # A mean over 1,000 steps, uncorrected, would not settle in so few.
        c.optimizer.update(b2=0.95, bias_correction=True)
        c.data.reuse_length, c.objectives.plm.permute_within = 32, 32
    return c.lock()


def notes(c: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
    """Changes the recipe to the notes' reading, in place."""
    c.model.summary = "first"
    c.objectives.plm.predict_share = 1.0
    c.objectives.plm.permute_within *= 2
    c.data.update(length=2 * c.data.length, reuse_length=2 * c.data.reuse_length)
    c.model.update(max_length=max(512, c.data.length), reuse_length=c.data.reuse_length)
    return c
