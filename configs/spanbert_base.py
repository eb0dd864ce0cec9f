"""SpanBERT-base cased, Joshi et al. 2020, section 4.2 and the released command.

Published: rows of whole sentences of one document, as many as fill 256 x 512 tokens (on
average 390 rows), 2.4M steps at 1e-4 after 10,000 of warmup, Adam with an epsilon of
1e-8; the large model took 15 days on 32 V100. Spans of words, their length geometric
(p = 0.2) up to 10, are masked together, one choice of mask, random or kept for each;
random tokens are drawn as often as they occur. No pair loss. Weight decay is 0.01, as
in the command (the paper says 0.1), and of all parameters, norms and biases too, as
fairseq's trainer has it.

Data: English Wikipedia and BooksCorpus, BERT's cased vocabulary; docs/data.md.

    python -m encoderjax.prepare --source='texts/wiki_books/*.jsonl.gz' \
        --tokenizer=wordpiece_cased:28996 --out=corpora/wiki_books_cased
    python -m encoderjax.train --config=configs/spanbert_base.py
"""

import ml_collections

from encoderjax.recipes import NOTES, as_noted, shrink

VARIANTS = ("full", "tiny", *NOTES)


def get_config(variant: str = "full") -> ml_collections.ConfigDict:
    """Returns the recipe as published, or the same shrunk to a minute."""
    if variant in NOTES:
        return as_noted(__file__, "spanbert_base", get_config(NOTES[variant]))
    c = ml_collections.ConfigDict()
    c.seed, c.steps, c.precision, c.log_every = 0, 2_400_000, "auto", 100
    c.model = dict(family="spanbert", size="base", boundary_slots=15)
    c.data = dict(
        corpus="corpora/wiki_books_cased",
        source="texts/wiki_books/*.jsonl.gz",
        tokenizer="wordpiece_cased:28996",
        form="doc_sentences",
        separators="none",
        long_sentences="skip",
        length=512,
        batch_size=None,
        batch_tokens=131_072,
        fill_batch=True,
        masking="dynamic",
    )
    c.objectives = dict(
        mlm=dict(
            rate=0.15,
            select="spans",
            span=dict(p=0.2, longest=10),
            replace=dict(mask=0.8, random=0.1, distribution="unigram", unit="span"),
        ),
        sbo=dict(weight=1.0, endpoints="external"),
    )
    c.optimizer = dict(
        name="adamw",
        learning_rate=1e-4,
        schedule="linear",
        warmup_steps=10_000,
        b1=0.9,
        b2=0.999,
        eps=1e-8,
        weight_decay=0.01,
        decay_exclude=(),
        clip_norm=1.0,
        microbatches=1,
    )
    c.mesh = dict(data=-1, fsdp=1, model=1)
    c.compute = dict(attention="auto", remat="none")  # fits v5e:16x16, 2.0 GiB a chip
    c.checkpoint = dict(every=5_000, keep=2)
    c.eval = dict(every=10_000, batches=50)
    if variant == "tiny":
        shrink(c, tokenizer="wordpiece_cased:1000", learning_rate=2e-3)
        c.optimizer.decay_exclude = ("norm", "bias")  # as when its curve was made
    return c.lock()


def notes(c: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
    """Changes the recipe to the notes' reading, in place.

    A span of one place has no ends inside, so the boundary objective stays as it is.
    The notes do not count the static masks: 40 are ALBERT's.
    """
    c.model.mask_slots = 15
    c.objectives.mlm.span_masks = "single"
    c.data.update(masking="static", dupe_factor=40)
    return c
