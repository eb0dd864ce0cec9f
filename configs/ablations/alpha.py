"""The power alpha of language shares, as in Conneau et al. 2020 (XLM-R).

Languages have shares of the rows in proportion to n^alpha, n their sentences: 1 leaves
them as they are, 0 makes them equal. The corpus is a group with one member a language,
of very different sizes, for which one file a language is prepared; documentation of an
open-source project in 17 of them is what this was sized for:

    python -m encoderjax.prepare --source='texts/k8s/*.jsonl.gz' --language_key=file \
        --tokenizer=unigram/xlm_roberta:4000 --out=corpora/k8s
    python -m encoderjax.ablate --config=configs/ablations/alpha.py

`all/mlm_loss/*` is the mean over languages, each counting alike; behind it the largest
and the smallest language. Others: --config.metrics="('all/mlm_loss/de',)".
"""

import ml_collections


def get_config(variant: str = "full") -> ml_collections.ConfigDict:
    """Returns the experiment."""
    c = ml_collections.ConfigDict()
    c.title = "alpha: shares of languages"
    c.base = "../xlm_roberta_base.py:tiny"
    c.run = dict(data=dict(corpus="corpora/k8s", tokenizer="unigram/xlm_roberta:4000"))
    c.prepare = (
        "python -m encoderjax.prepare --source='texts/k8s/*.jsonl.gz' "
        "--language_key=file --tokenizer=unigram/xlm_roberta:4000 --out={corpus}"
    )
    c.arms = {
        f"alpha_{name}": dict(data=dict(alpha=value))
        for name, value in (("03", 0.3), ("0", 0.0), ("07", 0.7), ("1", 1.0))
    }
    c.order = ("alpha_03", "alpha_0", "alpha_07", "alpha_1")
    c.judges = dict(all={})
    c.metrics = ("all/mlm_loss/*", "all/mlm_loss/en", "all/mlm_loss/uk")
    c.tokens, c.batch_tokens, c.rows = 500_000, 2_048, 2_048
    c.paper = dict(
        source="Conneau et al. 2020, section 5.1",
        finding="alpha trades languages with much text for those with little; 0.3 is "
        "chosen for all of them together (mBERT has 0.7)",
        claims=("alpha_03 > alpha_1", "alpha_03 > alpha_07"),
    )
    return c.lock()
