"""XLM-R-base, Conneau et al. 2020, section 5.2.

RoBERTa's objective on text of 100 languages, one language a row, no language
embeddings. Published: 8,192 rows, 1.5M steps, 500 V100; languages sampled by their
share of sentences to the power 0.3. Learning rate, warmup and betas were not found in
the paper: they are RoBERTa's. XNLI 76.2 on average.

Data: CC-100, 2.5 TB; docs/data.md has open ones.

    python -m encoderjax.prepare --source='texts/cc100/*.jsonl.gz' \
        --language_key=file --tokenizer=unigram/xlm_roberta:250002 --out=corpora/cc100
    python -m encoderjax.train --config=configs/xlm_roberta_base.py
"""

import ml_collections

from encoderjax.recipes import shrink, sibling

VARIANTS = ("full", "tiny")


def get_config(variant: str = "full") -> ml_collections.ConfigDict:
    """Returns the recipe as published, or the same shrunk to a minute."""
    c = sibling(__file__, "roberta_base", "full")
    c.steps = 1_500_000
    c.model = dict(family="xlm_roberta", size="base")
    c.data.corpus, c.data.source = "corpora/cc100", "texts/cc100/*.jsonl.gz"
    c.data.tokenizer = "unigram/xlm_roberta:250002"
    c.data.alpha = 0.3
    c.compute.remat = "dots"  # fits v5e:16x16, 7.7 GiB a chip
    if variant == "tiny":
        shrink(c, tokenizer="unigram/xlm_roberta:1000", learning_rate=2e-3)
    return c.lock()
