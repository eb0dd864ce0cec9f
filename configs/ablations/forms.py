"""The four input forms of table 2 of Liu et al. 2019 (RoBERTa), at equal tokens.

As in the paper, segment pairs and sentence pairs come with next-sentence prediction,
the others without a pair loss. Rows of sentence pairs are short: they get more of them
a step, so that a step has as many real tokens in every form. No judge is neutral here:
each arm reads one form more easily, so there are two, full sentences and segments.

    python -m encoderjax.ablate --config=configs/ablations/forms.py

What the paper measures is what a model is good for afterwards; a task of yours does:

    python -m encoderjax.ablate --config=configs/ablations/forms.py --out=runs/forms \
        --config.probe.config=../finetune/classify.py \
        --config.probe.data.train=reviews.csv \
        --config.metrics="('probe/validation/accuracy','full/mlm_loss')"
"""

import ml_collections


def get_config(variant: str = "full") -> ml_collections.ConfigDict:
    """Returns the experiment."""
    c = ml_collections.ConfigDict()
    c.title = "input forms at equal tokens"
    c.base = "../roberta_base.py:tiny"
    c.run = dict(data=dict(length=128, separators=None, long_sentences="cut"))
    pairs = dict(second="random")
    c.arms = dict(
        full_sentences={},
        doc_sentences=dict(data=dict(form="doc_sentences")),
        segment_pair=dict(
            data=dict(form="segment_pair", **pairs), objectives=dict(nsp=dict())
        ),
        sentence_pair=dict(
            data=dict(form="sentence_pair", **pairs), objectives=dict(nsp=dict())
        ),
    )
    c.order = ("full_sentences", "doc_sentences", "segment_pair", "sentence_pair")
    c.judges = dict(
        full={}, segments=dict(data=dict(form="segment_pair", second="next"))
    )
    c.metrics = ("full/mlm_loss", "segments/mlm_loss")
    c.tokens, c.batch_tokens = 500_000, 3_072
    c.paper = dict(
        source="Liu et al. 2019, table 2",
        finding="single sentences hurt; without a pair loss, blocks of text are as "
        "good as pairs of segments or better, those of one document a little more",
        columns="SQuAD 1.1 / 2.0 F1, MNLI-m, SST-2, RACE",
        figures=dict(
            full_sentences="90.4 / 79.1, 84.7, 92.5, 64.8",
            doc_sentences="90.6 / 79.7, 84.7, 92.7, 65.6",
            segment_pair="90.4 / 78.7, 84.0, 92.9, 64.2",
            sentence_pair="88.7 / 76.2, 82.9, 92.1, 63.0",
        ),
        claims=(
            "full_sentences > sentence_pair",
            "segment_pair > sentence_pair",
            "doc_sentences ~ full_sentences",
        ),
    )
    return c.lock()
