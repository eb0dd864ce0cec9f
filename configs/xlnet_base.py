"""XLNet-base cased, Yang et al. 2019, section 3.2: BERT's numbers and BERT's text.

The paper's fair comparison trains on BooksCorpus and Wikipedia with BERT's
hyperparameters: 256 rows, 1M steps, 1e-4 after 10,000 of warmup. All else is as in
XLNet-large. The hardware was not found.

    python -m encoderjax.prepare --source='texts/wiki_books/*.jsonl.gz' \
        --tokenizer=unigram/xlnet:32000 --out=corpora/wiki_books_xlnet
    python -m encoderjax.train --config=configs/xlnet_base.py
"""

import ml_collections

from encoderjax.recipes import NOTES, as_noted, sibling

VARIANTS = ("full", "tiny", *NOTES)


def get_config(variant: str = "full") -> ml_collections.ConfigDict:
    """Returns the recipe as published, or the same shrunk to a minute."""
    if variant in NOTES:
        return as_noted(__file__, "xlnet_large", get_config(NOTES[variant]))
    c = sibling(__file__, "xlnet_large", variant)
    c.model.size = "base"
    if variant == "full":
        # Fits v5e:16x16, 2.5 GiB a chip.
        c.compute.remat, c.optimizer.microbatches = "none", 1
        c.steps, c.data.batch_size = 1_000_000, 256
        c.data.corpus = "corpora/wiki_books_xlnet"
        c.data.source = "texts/wiki_books/*.jsonl.gz"
        c.optimizer.learning_rate, c.optimizer.warmup_steps = 1e-4, 10_000
    return c.lock()
