"""Tag words: entities (IOB1, IOB2, BIOES), parts of speech.

    python -m encoderjax.finetune --config=configs/finetune/tag.py \
        --config.init_from=runs/bert_base --config.data.train=train.conll \
        --config.data.validation=dev.conll

As BERT's paper has it for CoNLL-2003 (section 5.3: the tag stands on the first piece of
a word; no more than the encoder and a layer of scores). Cased vocabularies do better on
names. `:conll2003` reads words from column 0 and entities from the last column, as in
the files of the shared task.
"""

import ml_collections

from encoderjax.recipes import sibling

VARIANTS = ("entities", "conll2003")


def get_config(variant: str = "entities") -> ml_collections.ConfigDict:
    """Returns the recipe."""
    c = sibling(__file__, "classify", "single")
    c.task = dict(kind="tag", on="first")
    c.data = dict(length=128, batch_size=32, columns=dict())
    if variant == "conll2003":
        c.data.update(
            train="conll2003/eng.train",
            validation="conll2003/eng.testa",
            test="conll2003/eng.testb",
            form="conll",
        )
    return c.lock()
