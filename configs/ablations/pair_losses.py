"""No pair loss, next sentence, sentence order, as in table 5 of Lan et al. 2020.

The input has two segments in every arm, so that only the loss differs: what follows is
always the continuation (`none`), half the time text from elsewhere (`nsp`), or half the
time comes first (`sop`). The judges ask for the masked tokens alone: of two segments in
their order, as `none` reads them, and of pairs half of which are from elsewhere, as
`nsp` does. A run this short has hardly begun to learn the pairs
(`configs/bert_base.py:tiny` says how long that takes): it tells what they cost.

    python -m encoderjax.ablate --config=configs/ablations/pair_losses.py
"""

import ml_collections


def get_config(variant: str = "full") -> ml_collections.ConfigDict:
    """Returns the experiment."""
    c = ml_collections.ConfigDict()
    c.title = "pair losses: none, next sentence, sentence order"
    c.base = "../bert_tiny.py"
    c.run = dict(
        data=dict(tokenizer="wordpiece:1000"),
        objectives=dict(mlm=dict(max_predictions=None)),
    )
    c.arms = dict(
        none=dict(data=dict(second="next"), objectives=dict(nsp=None)),
        nsp=dict(data=dict(second="random")),
        sop=dict(
            data=dict(second="swapped"), objectives=dict(nsp=None, sop=dict(weight=1.0))
        ),
    )
    c.order = ("none", "nsp", "sop")
    c.judges = {
        second: dict(data=dict(second=second), objectives=dict(nsp=None, sop=None))
        for second in ("next", "random")
    }
    c.metrics = (
        "next/mlm_loss",
        "random/mlm_loss",
        "next/mlm_accuracy",
        "own/nsp_accuracy",
        "own/sop_accuracy",
    )
    c.tokens, c.batch_tokens = 500_000, 3_072
    c.paper = dict(
        source="Lan et al. 2020, table 5",
        finding="either pair loss costs a little masked-token accuracy; who learned "
        "the order can also tell what follows, not the other way round",
        columns="accuracy: MLM, NSP, SOP",
        figures=dict(
            none="54.9, 52.4, 53.3", nsp="54.5, 90.5, 52.0", sop="54.0, 78.9, 86.5"
        ),
        claims=("none > nsp", "none > sop"),
    )
    return c.lock()
