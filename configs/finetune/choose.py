"""Choose the right continuation: SWAG, RACE, COPA and their like.

    python -m encoderjax.finetune --config=configs/finetune/choose.py \
        --config.init_from=runs/bert_base --config.data.train=swag/train.csv \
        --config.data.columns.text=startphrase \
        --config.data.columns.choices=ending0,ending1,ending2,ending3

Devlin et al. 2019, section 4.4: SWAG with batch 16, a rate of 2e-5, 3 epochs: 81.6 % on
its dev set with BERT-base, 86.6 % with BERT-large.
"""

import ml_collections

from encoderjax.recipes import sibling

VARIANTS = ("files",)


def get_config(variant: str = "files") -> ml_collections.ConfigDict:
    """Returns the recipe."""
    c = sibling(__file__, "classify", "single")
    c.optimizer.learning_rate = 2e-5
    c.task = dict(kind="choose")
    c.data = dict(length=128, batch_size=16, columns=dict())
    return c.lock()
