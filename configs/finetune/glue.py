"""GLUE (Wang et al. 2019), a variant for each task.

    python -m encoderjax.finetune --config=configs/finetune/glue.py:rte \
        --config.init_from=runs/bert_base

BERT's numbers (Devlin et al. 2019, section 4.1 and appendix A.3): batch 32, 3 epochs,
the best of the rates 5e-5, 4e-5, 3e-5 and 2e-5 on the dev set; several seeds for the
small sets. RoBERTa's (Liu et al. 2019, table 10): batch 16 or 32, a rate of 1e-5, 2e-5
or 3e-5, weight_decay 0.1, 10 epochs, warmup 0.06, eval.patience above 0.

The data are TFDS' (`tfds build glue/rte --file_format=array_record`, which needs
tensorflow once); files of any other origin by --config.data.train and so on.
"""

import ml_collections

from encoderjax.recipes import sibling

# task -> its texts, and the metric that GLUE reports
TASKS = {
    "cola": (("sentence",), "matthews"),
    "sst2": (("sentence",), "accuracy"),
    "mrpc": (("sentence1", "sentence2"), "f1"),
    "stsb": (("sentence1", "sentence2"), "spearman"),
    "qqp": (("question1", "question2"), "f1"),
    "mnli": (("premise", "hypothesis"), "accuracy"),
    "qnli": (("question", "sentence"), "accuracy"),
    "rte": (("sentence1", "sentence2"), "accuracy"),
    "wnli": (("sentence1", "sentence2"), "accuracy"),
}
# F1 is of the second label, and by their letters these would be the other way round.
_POSITIVE = {
    "mrpc": ("not_equivalent", "equivalent"),
    "qqp": ("not_duplicate", "duplicate"),
}
VARIANTS = ("rte", *(task for task in TASKS if task != "rte"))


def get_config(variant: str = "rte") -> ml_collections.ConfigDict:
    """Returns the recipe of a task."""
    texts, metric = TASKS[variant]
    c = sibling(__file__, "classify", "regression" if variant == "stsb" else "single")
    dev = "validation_matched" if variant == "mnli" else "validation"
    c.data.update(
        train=f"tfds:glue/{variant}@train",
        validation=f"tfds:glue/{variant}@{dev}",
        columns=dict(zip(("text", "pair"), texts, strict=False), label="label"),
    )
    if variant == "mnli":
        c.data.test = "tfds:glue/mnli@validation_mismatched"
    if variant in _POSITIVE:
        c.task.labels = _POSITIVE[variant]
    c.eval = dict(metric=metric)
    return c.lock()
