"""BERT-base with four kinds of noise beside masks: ours, not a published run.

BART (Lewis et al. 2020) corrupts text by masking, deleting, permuting and infilling it,
and a decoder writes the whole text anew. An encoder has none, so each kind of noise has
a target here that a token of the row can answer: for a mask or a random token
(substitution) the original; where words changed places the token that belongs there;
before a gap that something is missing, and what comes first; for each token whether it
was put in. To tell tokens that do not belong is ELECTRA's idea (Clark et al. 2020),
here without a generator; words in the wrong order are StructBERT's (Wang et al. 2020).
Sizes, rows and optimiser are BERT-base's. Rates and weights are guesses.

Each kind may be left out, and the rest stays as it is. Deletion alone, for example, is

    --config.objectives.mlm=None --config.objectives.insertion=None
    --config.objectives.reordering=None

and substitution alone --config.objectives.mlm.replace.mask=0
--config.objectives.mlm.replace.random=1 with the other three None.

Data: English Wikipedia and BooksCorpus; docs/data.md has open ones.

    python -m encoderjax.prepare --source='texts/wiki_books/*.jsonl.gz' \
        --tokenizer=wordpiece:30522 --out=corpora/wiki_books
    python -m encoderjax.train --config=configs/denoising_base.py
"""

import ml_collections

from encoderjax.recipes import shrink

VARIANTS = ("full", "tiny")


def get_config(variant: str = "full") -> ml_collections.ConfigDict:
    """Returns the recipe, or the same shrunk to a minute."""
    c = ml_collections.ConfigDict()
    c.seed, c.steps, c.precision, c.log_every = 0, 1_000_000, "auto", 100
    c.model = dict(family="bert", size="base", pooler=False)
    c.data = dict(
        corpus="corpora/wiki_books",
        source="texts/wiki_books/*.jsonl.gz",
        tokenizer="wordpiece:30522",
        form="full_sentences",
        length=128,
        batch_size=256,  # 256 rows x 128 = 32,768 tokens a step
        masking="dynamic",
    )
    c.objectives = dict(
        # Losses of labels are a tenth of those of tokens: 5, and 5 x 0.2 for tokens.
        deletion=dict(rate=0.1, weight=5.0, token_weight=0.2),
        insertion=dict(rate=0.1, weight=5.0, distribution="unigram"),
        reordering=dict(rate=0.15, window=3),
        # 9 % of the tokens are masked, 4.5 % substituted, 1.5 % kept.
        mlm=dict(rate=0.15, replace=dict(mask=0.6, random=0.3, distribution="unigram")),
    )
    c.optimizer = dict(
        name="adamw",
        learning_rate=1e-4,
        schedule="linear",
        warmup_steps=10_000,
        b1=0.9,
        b2=0.999,
        eps=1e-6,
        weight_decay=0.01,
        clip_norm=1.0,
        microbatches=1,
    )
    c.mesh = dict(data=-1, fsdp=1, model=1)
    c.compute = dict(attention="auto", remat="none")
    c.checkpoint = dict(every=5_000, keep=2)
    c.eval = dict(every=10_000, batches=100)
    if variant == "tiny":
        shrink(c, tokenizer="wordpiece:1000", learning_rate=3e-3, steps=1_500)
        # What was put in and taken out is told late; order latest of all, for which
        # tokens must be found by their places: in short rows sooner. At the end it is
        # told worse than by copying from near by (1.8 nats).
        c.data.update(length=32, batch_size=64)
        c.optimizer.b2 = 0.95
    return c.lock()
