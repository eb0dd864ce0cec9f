"""The masking rate, as in Wettig et al. 2022, "Should You Mask 15%?".

A higher rate makes every prediction harder and gives more of them for the same text.
All arms are judged at 15 % and at 40 %, and what is concluded at 15 %, which favours
the low rates. They read the same tokens; a step at a high rate takes a little longer,
since more places are scored against the vocabulary.

    python -m encoderjax.ablate --config=configs/ablations/masking_rate.py
"""

import ml_collections

_RATES = (0.15, 0.3, 0.4, 0.6, 0.8)


def get_config(variant: str = "full") -> ml_collections.ConfigDict:
    """Returns the experiment."""
    c = ml_collections.ConfigDict()
    c.title = "masking rate"
    c.base = "../roberta_base.py:tiny"
    rates = {
        f"rate_{round(100 * rate)}": dict(objectives=dict(mlm=dict(rate=rate)))
        for rate in _RATES
    }
    c.arms = rates
    c.judges = dict(at_15=rates["rate_15"], at_40=rates["rate_40"])
    c.metrics = ("at_15/mlm_loss", "at_40/mlm_loss")
    c.tokens, c.batch_tokens = 500_000, 2_048
    c.paper = dict(
        source="Wettig et al. 2022, abstract",
        finding="for BERT-large, 40 % is better than 15 % on GLUE and SQuAD, and "
        "larger models want higher rates; 80 % keeps 95 % of what fine-tuning reaches",
        claims=("rate_40 > rate_15",),
    )
    return c.lock()
