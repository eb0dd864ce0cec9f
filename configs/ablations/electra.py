"""ELECTRA against masked LM at equal arithmetic, as in Clark et al. 2020.

The arms have the same encoder and rows. ELECTRA's steps also run a generator and score
every token, so it takes fewer of them: as many as have the FLOPs of the other's. Losses
of the two do not compare; a task does, for which both are fine-tuned alike, and which
is yours to give: texts in two classes, such as reviews, in any of the forms of
docs/finetuning.md.

    python -m encoderjax.ablate --config=configs/ablations/electra.py \
        --config.probe.data.train=reviews.csv

A tenth of the examples is held out, the same for all; the best of three epochs counts.
"""

import ml_collections


def get_config(variant: str = "full") -> ml_collections.ConfigDict:
    """Returns the experiment."""
    c = ml_collections.ConfigDict()
    c.title = "ELECTRA and masked LM at equal arithmetic"
    c.base = "../electra_small.py:tiny"
    c.run = dict(data=dict(length=64))
    c.equal = "flops"
    c.arms = dict(
        mlm=dict(
            objectives=dict(
                mlm=dict(select="tokens", replace=dict(mask=0.8, random=0.1)), rtd=None
            )
        ),
        electra={},
    )
    c.order = ("mlm", "electra")
    c.metrics = ("probe/validation/accuracy", "probe/validation/loss")
    c.probe = dict(
        config="../finetune/classify.py",
        epochs=3.0,
        data=dict(train=None, length=64, batch_size=32),
        optimizer=dict(learning_rate=5e-4),
    )
    c.tokens, c.batch_tokens = 500_000, 2_048
    c.paper = dict(
        source="Clark et al. 2020, abstract and table 5",
        finding="with the same size, data and compute, finding replaced tokens is "
        "better than predicting masked ones",
        columns="GLUE",
        figures=dict(mlm="82.2", electra="85.0"),
        claims=("electra > mlm",),
    )
    return c.lock()
