"""Answer questions from a context: SQuAD 1.1, SQuAD 2.0 and their like.

    python -m encoderjax.finetune --config=configs/finetune/answer.py \
        --config.init_from=runs/bert_base --config.data.train=train-v1.1.json \
        --config.data.validation=dev-v1.1.json

`:squad` and `:squad2` have BERT's numbers (Devlin et al. 2019, sections 4.2 and 4.3): a
rate of 5e-5; 3 epochs in batches of 32 for 1.1, 2 in batches of 48 for 2.0. F1/EM on
the dev set of 1.1: BERT-base 88.5/80.8, BERT-large 90.9/84.1. For other files they
are those of Google's README: 3e-5 and 2 epochs. From there are all lengths and strides,
answers of up to 30 tokens, and the 20 best.

Whether questions may have no answer is told by the training examples.

`:notes` takes answers from the query stream of an XLNet (docs/notes_and_papers.md).
"""

import ml_collections

from encoderjax.recipes import sibling

VARIANTS = ("files", "squad", "squad2", "notes")


def get_config(variant: str = "files") -> ml_collections.ConfigDict:
    """Returns the recipe."""
    c = sibling(__file__, "classify", "single")
    c.epochs = 2.0
    c.optimizer.learning_rate = 3e-5
    c.task = dict(kind="answer", longest=30, nbest=20)
    c.data = dict(length=384, stride=128, cut="windows", batch_size=32, columns=dict())
    if variant == "notes":
        c.task.head = dict(answer_stream="query")
    elif variant != "files":
        version = "2.0" if variant == "squad2" else "1.1"
        c.data.update(
            train=f"squad/train-v{version}.json",
            validation=f"squad/dev-v{version}.json",
            batch_size=48 if variant == "squad2" else 32,
        )
        c.optimizer.learning_rate = 5e-5
        c.epochs = 2.0 if variant == "squad2" else 3.0
    return c.lock()
