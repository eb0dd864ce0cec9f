"""ERNIE 1.0-base, Sun et al. 2019, and the code of its pretraining.

BERT, whose masks cover whole phrases and entities of a list: each is one unit, as is
each word outside of them, and units are drawn alike, 15 % of the text; of their tokens,
each by itself as in the code, 80 % become [MASK] and 10 % a random one.

Published: batches of up to 8,192 tokens, taken here to be of each of the script's 8
GPUs, rows of up to 512, 1M steps, Adam at 1e-4 after 5,000 steps of warmup, then a line
to 0; weight decay 0.01 (script/pretrain.sh and pretrain_args.py of PaddlePaddle/ERNIE;
Adam's other numbers are the usual ones, not checked). Chinese: Wikipedia, an
encyclopedia, news and a forum, with a vocabulary of characters. Phrases came from a
segmenter, entities from a list, neither published. The code masks some files by
characters alone, which `phrase_share` can stand for. Left out: its pairs of dialogue
(DLM), and stages of characters, phrases and entities, whose lengths are not given;
`phases` can hold them.

`phrases` is a file with a phrase or an entity a line (docs/data.md).

    python -m encoderjax.prepare --source='texts/wiki_books/*.jsonl.gz' \
        --tokenizer=wordpiece:30522 --out=corpora/wiki_books
    python -m encoderjax.train --config=configs/ernie_base.py
"""

from pathlib import Path

import ml_collections

from encoderjax.recipes import shrink, sibling

VARIANTS = ("full", "tiny")


def get_config(variant: str = "full") -> ml_collections.ConfigDict:
    """Returns the recipe as published, or the same shrunk to a minute."""
    c = sibling(__file__, "bert_base", "full")
    c.phases = {}
    c.model.activation = "relu"  # of the published weights
    c.data.update(length=512, batch_size=128, masking="dynamic")
    c.objectives = dict(
        mlm=dict(
            rate=0.15,
            select="phrases",
            phrases="lists/phrases.txt",
            max_predictions=77,
            replace=dict(mask=0.8, random=0.1),
        ),
        nsp=dict(weight=1.0),
    )
    c.optimizer.update(warmup_steps=5_000, bias_correction=True, eps=1e-8)
    if variant == "tiny":
        shrink(c, tokenizer="wordpiece:4000", learning_rate=3e-3, steps=600)
        phrases = Path(__file__).with_name("lists") / "phrases.txt"
        c.objectives.mlm.phrases = str(phrases)
        c.optimizer.update(b2=0.95)
    return c.lock()
