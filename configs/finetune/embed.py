"""Train the vectors of texts, so that those that mean the same are alike.

    python -m encoderjax.finetune --config=configs/finetune/embed.py:cosine \
        --config.init_from=runs/bert_base --config.data.train=stsb-en-train.csv \
        --config.data.validation=stsb-en-dev.csv --config.data.columns.text=0 \
        --config.data.columns.pair=1 --config.data.columns.score=2

`:cosine` and `:softmax` are Sentence-BERT's (Reimers and Gurevych 2019, section 3.1):
batch 16, a rate of 2e-5, a tenth of the steps to warm up, the mean of the states; one
epoch on SNLI and MultiNLI with the softmax of three labels, or STS-B with the cosine,
four epochs as in the authors' script. Spearman on the test set of STS-B, times 100:
BERT-base 84.67 trained on STS-B alone, 85.35 on NLI before; 74.89 on NLI alone is the
average over seven STS sets.

`:triplet` has their margin of 1, and one epoch as for NLI. `:in_batch` has a scale of
20, the default of sentence-transformers, and as many negatives as the batch is large
(64 is our choice); a column of hard negatives is named by data.columns.negative.

`:simcse` is unsupervised SimCSE (Gao et al. 2021, and the README of its code): batch
64, 3e-5, a temperature of 0.05, one epoch over a million sentences of Wikipedia, the
CLS state, the best step on the dev set of STS-B, measured every 125: BERT-base 76.25 on
average over the seven sets. Rows of 32 tokens are those of the authors' script, no
warm-up and no decay what it leaves out. Their extra layer over CLS, which only training
has, is not here.

What is not `:cosine` is measured on pairs with scores as well, if there are some:

    --config.data.validation=stsb-en-dev.csv --config.data.validation_columns.text=0 \
        --config.data.validation_columns.pair=1 --config.data.validation_columns.score=2
"""

import ml_collections

from encoderjax.recipes import sibling

VARIANTS = ("cosine", "softmax", "in_batch", "triplet", "simcse")

LOSSES = {
    "cosine": dict(name="cosine", lowest=0.0, highest=5.0),
    "softmax": dict(name="softmax"),
    "in_batch": dict(name="in_batch", scale=20.0),
    "triplet": dict(name="triplet", margin=1.0),
    "simcse": dict(name="simcse", scale=20.0),
}


def get_config(variant: str = "cosine") -> ml_collections.ConfigDict:
    """Returns the recipe."""
    c = sibling(__file__, "classify", "single")
    c.epochs = 4.0 if variant == "cosine" else 1.0
    c.optimizer.learning_rate = 2e-5
    c.task = dict(
        kind="embed",
        loss=LOSSES[variant],
        pooling="mean",
        normalise="none",
        layers="last",
    )
    # columns: text and pair with score or label, positive, negative, or text alone
    c.data = dict(length=128, batch_size=16, columns=dict(), validation_columns=dict())
    if variant == "in_batch":
        c.data.batch_size = 64
    if variant == "simcse":
        c.warmup, c.eval = 0.0, dict(every=125)
        c.optimizer.update(learning_rate=3e-5, weight_decay=0.0)
        c.task.pooling = "cls"
        c.data.update(length=32, batch_size=64, validation_share=0.01)
        c.model = dict(dropout_rate=0.1, attention_dropout_rate=0.1)
    return c.lock()
