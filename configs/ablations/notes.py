"""What the notes' readings change, one by one, in a small run of each recipe.

docs/notes_and_papers.md says what the notes read differently, and what came out here.
The first arm is the recipe as published, shrunk; each other one has one option of its
`:notes`. All read as many tokens, and are judged alike: by the rows and masks of the
first arm, and where the notes mask otherwise, by theirs as well.

    python -m encoderjax.ablate --config=configs/ablations/notes.py:bert

and likewise :roberta, :albert, :spanbert, :deberta and :xlnet. A minute of training
shows what is learned early, and nothing of what BERT's pair head has learned, which
begins later.
"""

import ml_collections

VARIANTS = ("bert", "roberta", "albert", "spanbert", "deberta", "xlnet")


def get_config(variant: str = "bert") -> ml_collections.ConfigDict:
    """Returns the experiment on a recipe."""
    c = ml_collections.ConfigDict()
    c.title = f"the notes' readings: {variant}"
    c.tokens, c.batch_tokens, c.rows = 600_000, 2_048, 1_024
    c.paper = dict(
        source="docs/notes_and_papers.md",
        finding="no paper has these comparisons; the first arm is the published one",
    )
    _FILLED[variant](c)
    return c.lock()


def _bert(c: ml_collections.ConfigDict) -> None:
    c.base = "../bert_tiny.py"
    c.run = dict(
        data=dict(tokenizer="wordpiece:1000"),
        objectives=dict(mlm=dict(max_predictions=None)),
    )
    unigram = dict(objectives=dict(mlm=dict(replace=dict(distribution="unigram"))))
    c.arms = dict(
        bert={},
        relative_key=dict(model=dict(positions="relative_key")),
        bare_head=dict(model=dict(mlm_head="bare")),
        raw_cls=dict(model=dict(pair_head="raw_cls", pooler=False)),
        unigram=unigram,
    )
    c.order = ("bert", "relative_key", "bare_head", "raw_cls", "unigram")
    c.judges = dict(uniform={}, unigram=unigram)
    c.metrics = ("uniform/mlm_loss", "unigram/mlm_loss", "uniform/nsp_loss")


def _roberta(c: ml_collections.ConfigDict) -> None:
    c.base = "../roberta_base.py:tiny"
    # A quarter of the tokens a step, as in :notes_tiny, and so four times the steps.
    c.arms = dict(roberta={}, small_batch=dict(data=dict(batch_tokens=512)))
    c.order = ("roberta", "small_batch")
    c.judges = dict(same={})
    c.metrics = ("same/mlm_loss", "same/mlm_accuracy")


def _albert(c: ml_collections.ConfigDict) -> None:
    c.base = "../albert_base.py:tiny"
    tokens = dict(objectives=dict(mlm=dict(select="tokens")))
    c.arms = dict(
        albert={}, share_ffn=dict(model=dict(sharing="ffn")), single_tokens=tokens
    )
    c.order = ("albert", "share_ffn", "single_tokens")
    c.judges = dict(ngrams={}, tokens=tokens)
    c.metrics = ("ngrams/mlm_loss", "tokens/mlm_loss", "ngrams/sop_loss")


def _spanbert(c: ml_collections.ConfigDict) -> None:
    c.base = "../spanbert_base.py:tiny"
    c.arms = dict(
        spanbert={},
        single_masks=dict(
            model=dict(mask_slots=15),
            objectives=dict(mlm=dict(span_masks="single")),
        ),
        ends_inside=dict(objectives=dict(sbo=dict(endpoints="internal"))),
    )
    c.order = ("spanbert", "single_masks", "ends_inside")
    c.judges = dict(each={})
    # Masked or not, the tokens of `own` are the same ones.
    c.metrics = ("each/mlm_loss", "own/mlm_loss", "own/sbo_loss")


def _deberta(c: ml_collections.ConfigDict) -> None:
    c.base = "../deberta_base.py:tiny"
    longer = dict(data=dict(length=128))
    c.arms = dict(
        deberta={},
        product=dict(model=dict(score_combination="product")),
        own_decoder=dict(model=dict(mask_decoder_shared=False)),
        density=dict(objectives=dict(mlm=dict(rate="density"))),
        length_128=longer,
    )
    c.order = ("deberta", "product", "own_decoder", "density", "length_128")
    c.judges = dict(at_64={}, at_128=longer)
    c.metrics = ("at_64/mlm_loss", "at_128/mlm_loss")


def _xlnet(c: ml_collections.ConfigDict) -> None:
    c.base = "../xlnet_base.py:tiny"
    c.arms = dict(
        xlnet={},
        every_position=dict(objectives=dict(plm=dict(predict_share=1.0))),
        length_128=dict(
            data=dict(length=128, reuse_length=64),
            model=dict(reuse_length=64),
            objectives=dict(plm=dict(permute_within=64)),
        ),
    )
    c.order = ("xlnet", "every_position", "length_128")
    c.judges = dict(sixth={})
    c.metrics = ("sixth/plm_loss", "sixth/plm_accuracy")


_FILLED = {
    "bert": _bert,
    "roberta": _roberta,
    "albert": _albert,
    "spanbert": _spanbert,
    "deberta": _deberta,
    "xlnet": _xlnet,
}
