"""DeBERTa-base (v1), He et al. 2021, table 8.

Published: 2K rows of 512 a step, 1M steps, 2e-4 after 10,000 of warmup, Adam without
bias correction; 64 V100 (4 DGX-2), 10 days. The text is one stream, cut every 510
tokens. In each window of 6 n words an n-gram of up to three is masked, from the left
until 15 % are: the end of a row is masked less, as in the code. The mask decoder tells
the last layer absolute positions, and runs it twice.

Data: 78 GB: Wikipedia, BooksCorpus, OpenWebText, Stories; docs/data.md has open ones.

    python -m encoderjax.prepare --source='texts/deberta/*.jsonl.gz' \
        --tokenizer=bbpe/deberta:50265 --out=corpora/deberta
    python -m encoderjax.train --config=configs/deberta_base.py
"""

import ml_collections

from encoderjax.recipes import NOTES, as_noted, shrink

VARIANTS = ("full", "tiny", *NOTES)


def get_config(variant: str = "full") -> ml_collections.ConfigDict:
    """Returns the recipe as published, or the same shrunk to a minute."""
    if variant in NOTES:
        return as_noted(__file__, "deberta_base", get_config(NOTES[variant]))
    c = ml_collections.ConfigDict()
    c.seed, c.steps, c.precision, c.log_every = 0, 1_000_000, "auto", 100
    c.model = dict(family="deberta", size="base", mask_decoder_layers=2)
    c.data = dict(
        corpus="corpora/deberta",
        source="texts/deberta/*.jsonl.gz",
        tokenizer="bbpe/deberta:50265",
        form="contiguous",
        length=512,
        batch_size=2_048,  # 2,048 rows x 512 = 1,048,576 tokens a step
        masking="dynamic",
    )
    c.objectives = dict(
        mlm=dict(rate=0.15, select="ngram_windows", max_ngram=3, max_predictions=80)
    )
    c.optimizer = dict(
        name="adamw",
        learning_rate=2e-4,
        schedule="linear",
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
    c.compute = dict(attention="auto", remat="none")  # fits v5e:16x16, 5.2 GiB a chip
    c.checkpoint = dict(every=2_000, keep=2)
    c.eval = dict(every=5_000, batches=8)
    if variant == "tiny":
        shrink(c, tokenizer="bbpe/deberta:1000", learning_rate=5e-4)
    return c.lock()


def notes(c: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
    """Changes the recipe to the notes' reading, in place."""
    c.model.update(score_combination="product", mask_decoder_shared=False)
    c.objectives.mlm = dict(rate="density", select="ngram_windows", max_ngram=3)
    c.data.length *= 2
    c.model.max_length = max(512, c.data.length)
    return c
