"""Classify texts, or pairs of texts.

    python -m encoderjax.finetune --config=configs/finetune/classify.py \
        --config.init_from=runs/bert_tiny --config.data.train=reviews.csv

The numbers are those of Devlin et al. 2019, appendix A.3: batch 16 or 32, a learning
rate of 2e-5 to 5e-5, 2 to 4 epochs, dropout 0.1. Small encoders want rates of 1e-4 up.

`:regression` learns numbers instead (STS-B), `:multi` any number of labels a text.
`:notes` lets the first token of an XLNet stand for a text (docs/notes_and_papers.md).
"""

import ml_collections

VARIANTS = ("single", "multi", "regression", "notes")


def get_config(variant: str = "single") -> ml_collections.ConfigDict:
    """Returns the recipe."""
    c = ml_collections.ConfigDict()
    c.seed, c.epochs, c.warmup, c.log_every = 0, 3.0, 0.1, 10
    c.task = dict(
        kind="classify", problem_type="single" if variant == "notes" else variant
    )
    if variant == "notes":
        c.task.head = dict(summary="first")
    # columns: text, label, and pair where there are two texts
    c.data = dict(length=128, batch_size=32, columns=dict())
    c.optimizer = dict(
        name="adamw",
        learning_rate=5e-5,
        schedule="linear",
        b1=0.9,
        b2=0.999,
        eps=1e-6,
        weight_decay=0.01,
        clip_norm=1.0,
        microbatches=1,
    )
    return c.lock()
