"""Answer questions from a context: SQuAD 1.1, SQuAD 2.0 and their like.

    python -m encoderjax.finetune --config=configs/finetune/answer.py \
        --config.init_from=runs/bert_base --config.data.train=train-v1.1.json \
        --config.data.validation=dev-v1.1.json

Google's README trains BERT on SQuAD with length 384, stride 128, batch 12 to 32, a rate
of 3e-5 to 5e-5 and 2 epochs; answers of up to 30 tokens, the 20 best kept. Published
F1/EM on the dev set of 1.1: BERT-base 88.5/80.8, BERT-large 90.9/84.1.

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
        )
    return c.lock()
