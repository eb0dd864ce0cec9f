"""Continued pretraining: a finished model goes on, on the text of your domain.

    python -m encoderjax.prepare --source='notes/*.txt' --out=corpora/notes \
        --tokenizer=FOLDER
    python -m encoderjax.train --config=configs/continue_pretraining.py \
        --config.init_from=FOLDER --config.data.corpus=corpora/notes \
        --config.eval.corpora.old=corpora/wiki --workdir=runs/notes

FOLDER is a workdir, an export, or a downloaded model of any family. The model is the
folder's; heads that it lacks are made anew, and the first lines say so. Held-out losses
of your domain and of `eval.corpora` are measured before the first step, during the run
and after the last one: what was learnt, and what was forgotten.

Vocabulary: `prepare --tokenizer=FOLDER` keeps it. With `--extend_vocabulary=1000` it
also gets the most frequent words of your text that it splits, and the run needs
`--config.init_vocabulary=extend`. Any other vocabulary is `replace`: the layers stay,
most of the table is learnt anew, which takes more text than many domains have.

Sources: Gururangan et al. 2020, "Don't Stop Pretraining". RoBERTa-base, 12,500 steps of
2,048 rows, on a TPU v3-8; chosen as 100,000 steps of 256 in other numbers (issue #14 of
their code). `:task` is their task-adaptive form, on the unlabelled text of one task.
Learning rates, betas and warm-up are the appendix's as we remember it, not re-checked.

Learning rate: the step begins at 0 and the schedule is this run's own, so the peak is
what to choose: 5e-4 at 2,048 rows, 1e-4 at 256, less for fewer; google-bert's README
has 2e-5. ELECTRA's advice to raise it by total / remaining steps is for a run that is
prolonged in its own workdir under a decay to 0; a run from `init_from` needs none.

The tiny variant goes on from a run of `configs/bert_tiny.py:tiny`, on the same text.
"""

import ml_collections

VARIANTS = ("full", "task", "tiny")


def get_config(variant: str = "full") -> ml_collections.ConfigDict:
    """Returns the recipe for a domain, for the text of a task, or for a minute."""
    c = ml_collections.ConfigDict()
    c.seed, c.steps, c.precision, c.log_every = 0, 12_500, "auto", 50
    c.init_from = None  # to be given on the command line
    c.init_vocabulary = "same"
    c.model = dict(family=None)  # that of init_from
    c.data = dict(
        corpus="corpora/domain",
        tokenizer="wordpiece:4000",  # of the demo corpus, in the variant
        form="segment_pair",
        second="next",
        length=512,
        batch_size=2_048,  # 2,048 rows x 512 = 1,048,576 tokens a step
        dupe_factor=10,
        masking="dynamic",
    )
    c.objectives = dict(mlm=dict(rate=0.15))
    c.optimizer = dict(
        name="adamw",
        learning_rate=5e-4,
        schedule="linear",
        warmup_steps=750,  # 6 %
        b1=0.9,
        b2=0.98,
        eps=1e-6,
        weight_decay=0.01,
        clip_norm=1.0,
        microbatches=8,
    )
    c.mesh = dict(data=-1, fsdp=1, model=1)
    c.checkpoint = dict(every=500, keep=2)
    c.eval = dict(every=500, batches=8, corpora={})
    if variant == "task":
        # Published as 100 epochs: set steps to 100 x the rows that train counts / 256.
        c.steps, c.data.batch_size, c.optimizer.learning_rate = 5_000, 256, 1e-4
        c.optimizer.warmup_steps, c.optimizer.microbatches = 300, 1
        c.eval.batches = 0
    if variant == "tiny":
        c.init_from, c.data.corpus = "runs/bert_tiny-tiny", "demo"
        c.data.length, c.data.batch_size = 128, 32
        c.steps, c.optimizer.warmup_steps, c.log_every = 60, 10, 10
        c.optimizer.learning_rate, c.optimizer.microbatches = 1e-3, 1
        c.checkpoint.every = c.eval.every = 30
        c.eval.batches = 4
    return c.lock()
