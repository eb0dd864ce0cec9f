"""XLM with its translation language model, Lample and Conneau 2019, for 15 languages.

Masked LM on text of one language and on a line with its translation, whose positions
begin anew; each token is told its language. 12 layers of 1,024, 8 heads, 95,000 entries
(the README of facebookresearch/XLM: 32 rows of 256 for each GPU, Adam at 1e-4 with b2
0.98, no weight decay, norm at most 5, dropout 0.1; its optimiser warms up over 4,000
steps and then falls with their square root). The README has both orders of each pair,
with English; here the order is drawn anew in each pass.

The numbers of GPUs and steps were not found, nor how languages are drawn: 64, 300,000
and the power 0.7 of their sentences stand here. XLM trains on one language or one pair
in a step; here a step mixes rows of all, and batches are counted in rows, not tokens.
Its separators may be masked, and its vocabulary is fastBPE's.

Data: Wikipedia in each language, and translations: MultiUN, IIT Bombay, OPUS. The
members of `corpora/xlm15` are the languages and the pairs, which its mixture.json names
beside them; fields are called as the languages are.

    python -m encoderjax.prepare --source='texts/wiki15/*.jsonl.gz' \
        --language_key=file --tokenizer=unigram/xlm_roberta:95000 --out=corpora/xlm15
    python -m encoderjax.prepare --source='texts/en-fr/*.jsonl' --text_key=en,fr \
        --sentences=fields --tokenizer=corpora/xlm15/en --out=corpora/xlm15/en-fr
    python -m encoderjax.train --config=configs/xlm_tlm_base.py

The tiny variant needs translations, too; some thousand lines of texts/en_fr/*.jsonl,
each {"en": "...", "fr": "..."}, prepared as its first line of error says.
"""

import ml_collections

from encoderjax.recipes import shrink

VARIANTS = ("full", "tiny")

_LANGUAGES = "ar bg de el en es fr hi ru sw th tr ur vi zh"


def get_config(variant: str = "full") -> ml_collections.ConfigDict:
    """Returns the recipe as published, or the same shrunk to a minute."""
    c = ml_collections.ConfigDict()
    c.seed, c.steps, c.precision, c.log_every = 0, 300_000, "auto", 100
    c.model = dict(
        family="bert",
        size="base",
        width=1_024,
        num_heads=8,
        mlp_width=4_096,
        num_segments=0,
        mlm_head="tied",
        languages=tuple(_LANGUAGES.split()),
    )
    c.data = dict(
        corpus="corpora/xlm15",
        source="texts/wiki15/*.jsonl.gz",
        tokenizer="unigram/xlm_roberta:95000",
        alpha=0.7,
        form="parallel",
        length=256,
        batch_size=2_048,  # 2,048 rows x 256 = 524,288 tokens a step
        dupe_factor=2,  # orders of each pair
        masking="dynamic",
    )
    c.objectives = dict(
        mlm=dict(
            rate=0.15,
            count="bernoulli",
            max_predictions=64,
            replace=dict(mask=0.8, random=0.1),
        ),
    )
    c.optimizer = dict(
        name="adamw",
        learning_rate=1e-4,
        schedule="inverse_sqrt",
        warmup_steps=4_000,
        b1=0.9,
        b2=0.98,
        eps=1e-8,
        weight_decay=0.0,
        clip_norm=5.0,
        microbatches=1,
    )
    c.mesh = dict(data=-1, fsdp=1, model=1)
    c.compute = dict(attention="auto", remat="none")  # fits v5e:16x16, 5.8 GiB a chip
    c.checkpoint = dict(every=1_000, keep=2)
    c.eval = dict(every=5_000, batches=8)
    if variant == "tiny":
        shrink(
            c,
            tokenizer="unigram/xlm_roberta:4000",
            model=dict(languages=("en", "fr")),
            learning_rate=2e-3,
        )
        # The demo corpus has no translations.
        c.data.update(corpus="corpora/en_fr", source="texts/en_fr/*.jsonl")
    return c.lock()
