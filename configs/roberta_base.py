"""RoBERTa-base, Liu et al. 2019, table 9; variants are its table 3.

Published: 8K rows of 512 a step, 500,000 steps, learning rate 6e-4 after 24,000 steps
of warmup, betas 0.9 and 0.98, no clipping, everything decayed (fairseq). Full sentences
across documents, no pair loss, new masks in every epoch; <s> and </s> may be masked,
and random tokens are never one of the first four. The large model had 1,024 V100; this
one's hardware was not found.

Data: 160 GB: BooksCorpus and Wikipedia 16, CC-News 76, OpenWebText 38, Stories 31;
docs/data.md has open ones.

    python -m encoderjax.prepare --source='texts/roberta/*.jsonl.gz' \
        --tokenizer=bbpe:50265 --out=corpora/roberta
    python -m encoderjax.train --config=configs/roberta_base.py

The variants 256, 2k and 8k train BERT-base's size on its 16 GB of text, as the paper
does to compare batch sizes: 256 rows and 1M steps at 1e-4 (held-out perplexity 3.99 in
the paper), 2K and 125K at 7e-4 (3.68), 8K and 31K at 1e-3 (3.77). The paper does not
give their warmup: it is 6 % here.
"""

import ml_collections

from encoderjax.recipes import NOTES, as_noted, shrink

VARIANTS = ("full", "256", "2k", "8k", "tiny", *NOTES)
_TABLE_3 = {  # rows of a step, steps, learning rate
    "256": (256, 1_000_000, 1e-4),
    "2k": (2_048, 125_000, 7e-4),
    "8k": (8_192, 31_000, 1e-3),
}


def get_config(variant: str = "full") -> ml_collections.ConfigDict:
    """Returns the recipe as published, a row of table 3, or a minute's."""
    if variant in NOTES:
        return as_noted(__file__, "roberta_base", get_config(NOTES[variant]))
    c = ml_collections.ConfigDict()
    c.seed, c.steps, c.precision, c.log_every = 0, 500_000, "auto", 100
    c.model = dict(family="roberta", size="base")
    c.data = dict(
        corpus="corpora/roberta",
        source="texts/roberta/*.jsonl.gz",
        tokenizer="bbpe:50265",
        form="full_sentences",
        separators="sentences",  # fairseq ends every line with </s>
        long_sentences="skip",
        length=512,
        batch_size=8_192,  # 8,192 rows x 512 = 4,194,304 tokens a step
        masking="dynamic",
    )
    c.objectives = dict(
        mlm=dict(
            rate=0.15,
            count="probabilistic",
            specials=True,
            replace=dict(mask=0.8, random=0.1, distribution="uniform", skip_first=4),
        )
    )
    c.optimizer = dict(
        name="adamw",
        learning_rate=6e-4,
        schedule="linear",
        warmup_steps=24_000,
        b1=0.9,
        b2=0.98,
        eps=1e-6,
        weight_decay=0.01,
        decay_exclude=(),
        clip_norm=0.0,
        microbatches=1,
    )
    c.mesh = dict(data=-1, fsdp=1, model=1)
    c.compute = dict(attention="auto", remat="none")  # fits v5e:16x16, 12.2 GiB a chip
    c.checkpoint = dict(every=1_000, keep=2)
    c.eval = dict(every=5_000, batches=8)
    if variant in _TABLE_3:
        c.data.corpus = "corpora/wiki_books_bbpe"
        c.data.source = "texts/wiki_books/*.jsonl.gz"
        c.data.batch_size, c.steps, c.optimizer.learning_rate = _TABLE_3[variant]
        c.optimizer.warmup_steps = int(0.06 * c.steps)
    if variant == "tiny":
        shrink(c, tokenizer="bbpe:1000", learning_rate=2e-3)
    return c.lock()


def notes(c: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
    """Changes the recipe to the notes' reading, in place."""
    tokens = c.data.batch_size * c.data.length
    # 8K to 32K tokens are a step; of the shrunk recipe, a quarter of its own.
    c.data.update(batch_size=None, batch_tokens=min(32_768, tokens // 4))
    return c
