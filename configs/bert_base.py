"""BERT-base uncased, Devlin et al. 2019, appendix A.2: the phase of length 128.

Published: 256 sequences a step, 1M steps, of which 90 % at length 128; 16 TPU chips,
4 days for both phases. Data: English Wikipedia and BooksCorpus, 3.3B words.

    python -m encoderjax.prepare --source='wiki_books/*.txt' --out=corpora/wiki_books
    python -m encoderjax.train --config=configs/bert_base.py
"""

import ml_collections

VARIANTS = ("full", "tiny")


def get_config(variant: str = "full") -> ml_collections.ConfigDict:
    """Returns the recipe as published, or the same shrunk to a minute."""
    c = ml_collections.ConfigDict()
    c.seed, c.steps, c.precision, c.log_every = 0, 900_000, "auto", 100
    # google-bert trained with the tanh form of GELU.
    c.model = dict(family="bert", size="base", activation="gelu_tanh")
    c.data = dict(
        corpus="corpora/wiki_books",
        tokenizer="wordpiece:4000",  # of the demo corpus, in the variant
        form="segment_pair",
        second="random",
        length=128,
        batch_size=256,  # 256 rows x 128 = 32,768 tokens a step
        short_rate=0.1,
        dupe_factor=10,
        masking="static",
    )
    c.objectives = dict(mlm=dict(rate=0.15, max_predictions=20), nsp=dict(weight=1.0))
    c.optimizer = dict(
        name="adamw",
        learning_rate=1e-4,
        schedule="bert",
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
    c.checkpoint = dict(every=5_000, keep=2)
    c.eval = dict(every=10_000, batches=100)
    if variant == "tiny":
        c.model.size, c.data.corpus, c.data.batch_size = "tiny", "demo", 32
        c.steps, c.optimizer.warmup_steps, c.log_every = 60, 10, 10
        c.optimizer.learning_rate = 1e-3
        c.checkpoint.every, c.eval.every, c.eval.batches = 30, 30, 4
    return c.lock()
