"""80/10/10 against 100/0/0: what stands in the place of the tokens to be predicted.

Devlin et al. 2019 compare such shares in appendix C.2: fine-tuning hardly depends on
them, features taken without fine-tuning suffer from masks alone. That is as we remember
it; the appendix was not re-read, so no figures stand here.

Judges: `masked` has masks alone, `bert` 80/10/10, and `kept` leaves the text as it is
and asks what stands there, which a model that always saw a mask has never been asked.
Each arm was trained on the first or the second of them; so nothing is concluded here of
fine-tuning, which a task of yours would measure (`probe`, as in forms.py).

    python -m encoderjax.ablate --config=configs/ablations/replacement.py
"""

import ml_collections


def get_config(variant: str = "full") -> ml_collections.ConfigDict:
    """Returns the experiment."""
    c = ml_collections.ConfigDict()
    c.title = "replacement: 80/10/10 or masks alone"
    c.base = "../roberta_base.py:tiny"
    masks = dict(objectives=dict(mlm=dict(replace=dict(mask=1.0, random=0.0))))
    kept = dict(objectives=dict(mlm=dict(replace=dict(mask=0.0, random=0.0))))
    c.arms = {"80_10_10": {}, "100_0_0": masks}
    c.order = ("80_10_10", "100_0_0")
    c.judges = dict(masked=masks, bert={}, kept=kept)
    c.metrics = ("masked/mlm_loss", "bert/mlm_loss", "kept/mlm_accuracy")
    c.tokens, c.batch_tokens = 500_000, 2_048
    c.paper = dict(
        source="Devlin et al. 2019, appendix C.2 (as we remember it)",
        finding="fine-tuning hardly depends on the shares; nothing is said of losses",
    )
    return c.lock()
