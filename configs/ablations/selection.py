"""Single tokens, whole words or spans, as Joshi et al. 2020 (SpanBERT) compare them.

Their models are compared by tasks whose answers are spans, where masked spans came out
ahead. A masked-LM loss cannot decide that: it depends on what is masked. So all arms
are judged with all three selections, and what shows is how far each carries over to the
others. The boundary objective is left out in all of them.

    python -m encoderjax.ablate --config=configs/ablations/selection.py

With a task, such as named entities in CoNLL's form:

    python -m encoderjax.ablate --config=configs/ablations/selection.py \
        --config.probe.config=../finetune/tag.py --out=runs/selection \
        --config.probe.data.train=train.conll \
        --config.metrics="('probe/validation/f1',)"
"""

import ml_collections


def get_config(variant: str = "full") -> ml_collections.ConfigDict:
    """Returns the experiment."""
    c = ml_collections.ConfigDict()
    c.title = "selection: tokens, words, spans"
    c.base = "../spanbert_base.py:tiny"
    c.run = dict(objectives=dict(sbo=None))
    selections = {
        name: dict(objectives=dict(mlm=dict(select=name, replace=dict(unit=unit))))
        for name, unit in (("tokens", "token"), ("words", "token"), ("spans", "span"))
    }
    c.arms, c.judges = selections, selections
    c.order = ("tokens", "words", "spans")
    c.metrics = ("tokens/mlm_loss", "words/mlm_loss", "spans/mlm_loss")
    c.tokens, c.batch_tokens = 500_000, 2_048
    c.paper = dict(
        source="Joshi et al. 2020, abstract",
        finding="masking spans instead of single tokens helps where answers are spans; "
        "nothing is said of losses, so there is nothing to agree with",
    )
    return c.lock()
