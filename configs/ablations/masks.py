"""Static against dynamic masks, as in table 1 of Liu et al. 2019 (RoBERTa).

Masks can only wear out on text that is read again: the corpus is a small part of the
demo corpus, which the budget reads about seven times. `static` has two sets of masks,
so that each is seen about four times, as BERT's ten were in forty epochs; `single` has
one. All are judged with the same masks, on held-out text.

    python -m encoderjax.prepare --source=demo --sample=0.06 \
        --validation=0.33 --tokenizer=bbpe:1000 --out=corpora/sotu_part
    python -m encoderjax.ablate --config=configs/ablations/masks.py
"""

import ml_collections


def get_config(variant: str = "full") -> ml_collections.ConfigDict:
    """Returns the experiment."""
    c = ml_collections.ConfigDict()
    c.title = "masks: new in every epoch, or drawn once"
    c.base = "../roberta_base.py:tiny"
    c.run = dict(data=dict(corpus="corpora/sotu_part"))
    c.prepare = (
        "python -m encoderjax.prepare --source=demo --sample=0.06 --validation=0.33 "
        "--tokenizer=bbpe:1000 --out={corpus}"
    )
    c.arms = dict(
        dynamic=dict(data=dict(masking="dynamic")),
        static=dict(data=dict(masking="static", dupe_factor=2)),
        single=dict(data=dict(masking="static", dupe_factor=1)),
    )
    c.order = ("dynamic", "static", "single")
    c.judges = dict(same={})
    c.metrics = ("same/mlm_loss", "same/mlm_accuracy")
    c.tokens, c.batch_tokens, c.rows = 1_000_000, 2_048, 2_048
    c.paper = dict(
        source="Liu et al. 2019, table 1",
        finding="dynamic masks are about as good as static ones, and need no copies of "
        "the corpus",
        columns="SQuAD 2.0 F1, MNLI-m, SST-2",
        figures=dict(dynamic="78.7, 84.0, 92.9", static="78.3, 84.3, 92.5"),
        claims=("dynamic ~ static",),
    )
    return c.lock()
