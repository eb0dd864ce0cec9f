"""MacBERT-base, Cui et al. 2020, and the README of its models: BERT without [MASK].

N-grams of whole words are selected, 40, 30, 20 and 10 % of 1 to 4 words, 15 % of the
text. Of their words, each by itself, 80 % become a similar word, 10 % a random one; one
without similar words becomes a random one, too. Sentence order as ALBERT. 12 layers of
768, 102M parameters; the network is BERT's.

Published: Chinese, words by a segmenter, similar words by word2vec (the Synonyms
toolkit). Here a word is what the tokenizer continues, so that a Chinese character is
one by itself, and a similar word has as many pieces as the word. The authors gave no
code for pretraining, and rows, steps and learning rate were not found: those of
BERT-base stand here.

`similar_words` is a file, a word and those like it in each line (docs/data.md), or the
folder of a model with the vocabulary of the corpus, whose token table tells neighbours.

    python -m encoderjax.prepare --source='texts/wiki_books/*.jsonl.gz' \
        --tokenizer=wordpiece:30522 --out=corpora/wiki_books
    python -m encoderjax.train --config=configs/macbert_base.py
"""

from pathlib import Path

import ml_collections

from encoderjax.recipes import shrink, sibling

VARIANTS = ("full", "tiny")


def get_config(variant: str = "full") -> ml_collections.ConfigDict:
    """Returns the recipe as published, or the same shrunk to a minute."""
    c = sibling(__file__, "bert_base", "full")
    c.phases = {}
    c.model.activation = "gelu"
    c.data.update(second="swapped", length=512, masking="dynamic")
    c.objectives = dict(
        mlm=dict(
            rate=0.15,
            select="ngrams",
            max_ngram=4,
            ngram_shares=(0.4, 0.3, 0.2, 0.1),
            max_predictions=77,
            replace=dict(
                mask=0.0,
                similar=0.8,
                random=0.1,
                similar_words="lists/similar_words.tsv",
                distribution="ordinary",
                unit="word",
            ),
        ),
        sop=dict(weight=1.0),
    )
    if variant == "tiny":
        shrink(c, tokenizer="wordpiece:4000", learning_rate=3e-3, steps=600)
        # Frequent words of the demo corpus; the others become random ones.
        words = Path(__file__).with_name("lists") / "similar_words.tsv"
        c.objectives.mlm.replace.similar_words = str(words)
        c.data.length = 128  # shorter rows have many single sentences: nothing to order
        c.optimizer.update(b2=0.95, bias_correction=True)
    return c.lock()
