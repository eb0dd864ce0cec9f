"""BERT-base uncased, Devlin et al. 2019, appendix A.2, in both of its phases.

Published: 256 rows a step, 1M steps, 90 % of them at length 128 and the rest at 512; 16
TPU v2 chips (4 Cloud TPUs in a pod), 4 days. Adam without bias correction, 1e-4, warmed
up over 10,000 steps, then a line to 0; weight decay 0.01, norm of the gradient at most
1. Masks are static: 10 cuts of the corpus, each with its own.

Data: English Wikipedia and BooksCorpus, 3.3B words; docs/data.md has open ones. Held
out, the published model has about 1.4 nats (the authors, google-research/bert#90).

    python -m encoderjax.prepare --source='texts/wiki_books/*.jsonl.gz' \
        --tokenizer=wordpiece:30522 --out=corpora/wiki_books
    python -m encoderjax.train --config=configs/bert_base.py
"""

import ml_collections

from encoderjax.recipes import NOTES, as_noted, shrink

VARIANTS = ("full", "tiny", *NOTES)


def get_config(variant: str = "full") -> ml_collections.ConfigDict:
    """Returns the recipe as published, or the same shrunk to some minutes."""
    if variant in NOTES:
        return as_noted(__file__, "bert_base", get_config(NOTES[variant]))
    c = ml_collections.ConfigDict()
    c.seed, c.steps, c.precision, c.log_every = 0, 1_000_000, "auto", 100
    # google-bert trained with the tanh form of GELU.
    c.model = dict(family="bert", size="base", activation="gelu_tanh")
    c.data = dict(
        corpus="corpora/wiki_books",
        source="texts/wiki_books/*.jsonl.gz",
        tokenizer="wordpiece:30522",
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
    c.compute = dict(attention="auto", remat="none")  # fits v5e:16x16, 2.0 GiB a chip
    c.checkpoint = dict(every=5_000, keep=2)
    c.eval = dict(every=10_000, batches=100)
    # The learning rate runs on.
    c.phases = dict(
        long=dict(  # 256 rows x 512 = 131,072 tokens a step
            after=900_000,
            data=dict(length=512),
            objectives=dict(mlm=dict(max_predictions=77)),
        ),
    )
    if variant == "tiny":
        # Which segment follows is learned late, and only from rows as long as these:
        # held out, 0.705 nats and 51 % at step 375, 0.460 and 78 % at the end.
        shrink(c, tokenizer="wordpiece:4000", learning_rate=3e-3, steps=1_500)
        c.data.update(length=128, batch_size=64)
        c.optimizer.update(b2=0.95, bias_correction=True)
        c.phases = dict(long=dict(after=1_350, data=dict(length=160)))
    return c.lock()


def notes(c: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
    """Changes the recipe to the notes' reading, in place."""
    c.model.update(
        positions="relative_key", mlm_head="bare", pair_head="raw_cls", pooler=False
    )
    c.objectives.mlm.replace = dict(distribution="unigram")
    c.data.update(masking="static", dupe_factor=4)
    return c
