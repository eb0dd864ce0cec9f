"""DistilBERT-base uncased, Sanh et al. 2019, and the distillation scripts it came with.

Six layers, which begin as layers 0, 2, 4, 7, 9 and 11 of the teacher, with its tables
and its MLM head. Three losses, 5 : 2 : 1: the teacher's distribution at every token, at
a temperature of 2; the masked tokens themselves; the direction of the last states.
Published: Adam at 5e-4, warmed up over 5 %, no weight decay, norm at most 5, three
epochs of up to 4K rows; 8 V100, 90 hours; GLUE 77.0 against BERT's 79.5. Rare tokens
are masked more often, by frequency to the power -0.7; the reference counts 15 % over a
batch, here it is of each row. There a row is a line of a dump, none below 12 tokens, in
batches of one length; here it is whole sentences of a document, as many as fit.

The teacher is a folder: a workdir, an export, or `hf download google-bert/
bert-base-uncased --local-dir models/bert-base-uncased`. The corpus has its vocabulary.

    python -m encoderjax.prepare --source='texts/wiki_books/*.jsonl.gz' \
        --tokenizer=models/bert-base-uncased --out=corpora/wiki_books_teacher
    python -m encoderjax.train --config=configs/distilbert_base.py

The tiny variant learns from a run of `configs/bert_base.py:tiny`.
"""

import ml_collections

from encoderjax.recipes import shrink

VARIANTS = ("full", "tiny")


def get_config(variant: str = "full") -> ml_collections.ConfigDict:
    """Returns the recipe as published, or the same shrunk to a minute."""
    c = ml_collections.ConfigDict()
    # Three epochs of some 9M rows of 512.
    c.seed, c.steps, c.precision, c.log_every = 0, 6_600, "auto", 10
    teacher = "runs/bert_base-tiny" if variant == "tiny" else "models/bert-base-uncased"
    c.init_from, c.init_layers = teacher, (0, 2, 4, 7, 9, 11)
    c.model = dict(family="distilbert", size="base")
    c.data = dict(
        corpus="corpora/wiki_books_teacher",
        source="texts/wiki_books/*.jsonl.gz",
        tokenizer="models/bert-base-uncased",
        form="doc_sentences",
        separators="none",
        length=512,
        batch_size=4_096,  # 4,096 rows x 512 = 2,097,152 tokens a step
        masking="dynamic",
    )
    c.objectives = dict(
        mlm=dict(weight=2.0, rate=0.15, select="weighted", smoothing=0.7),
        distillation=dict(
            teacher=teacher, temperature=2.0, soft_weight=5.0, cosine_weight=1.0
        ),
    )
    c.optimizer = dict(
        name="adamw",
        learning_rate=5e-4,
        schedule="linear",
        warmup_steps=330,
        b1=0.9,
        b2=0.98,
        eps=1e-6,
        weight_decay=0.0,
        clip_norm=5.0,
        microbatches=1,
    )
    c.mesh = dict(data=-1, fsdp=1, model=1)
    c.compute = dict(attention="auto", remat="none")  # fits v5e:16x16, 4.3 GiB a chip
    c.checkpoint = dict(every=200, keep=2)
    c.eval = dict(every=200, batches=8)
    if variant == "tiny":
        shrink(
            c,
            tokenizer="wordpiece:4000",  # the teacher's
            model=dict(num_layers=1, activation="gelu_tanh"),
            learning_rate=1e-3,
        )
        c.init_layers = (0,)
    return c.lock()
