"""Small encoders of every family with a tokenizer of their own, for texts' vectors."""

import dataclasses
from pathlib import Path

from encoderjax.interop.sentence_loading import LoadedSentence, SentenceDescription
from encoderjax.interop.writing import write_params, write_tokenizer
from encoderjax.models.families import preset
from encoderjax.models.sentence import SentenceHead
from tests.data.trained_kinds import size_of, tokenizer_of
from tests.families import random_params
from tests.task_folders import SIZES

TOKENIZERS = {
    "bert": "wordpiece_likelihood",
    "roberta": "bbpe",
    "albert": "unigram",
    "xlnet": "unigram/xlnet",
    "deberta_v3": "unigram/deberta_v2",
    "electra": "wordpiece_likelihood",
    "distilbert": "wordpiece_likelihood",
    "modernbert": "bbpe/modernbert",
}
LENGTH = 24
TEXTS = [
    "The cat of the king was kind.",
    "Rain.",
    "we love the naïve café owners because they do not sleep",
    "a day " * 30,
    "",
    "baco duco feco gigi hoho juju",
]


def small_sentence(family: str, **head) -> LoadedSentence:
    """Returns a model as if it had been loaded."""
    kind = TOKENIZERS[family]
    sizes = SIZES | {"vocab_size": size_of(kind)}
    config = dataclasses.replace(
        preset(family, "base"), **sizes, pooler=False, mask_decoder_layers=0
    )
    return LoadedSentence(
        family=family,
        config=config,
        description=SentenceDescription(head=SentenceHead(**head), length=LENGTH),
        params=random_params(config),
        tokenizer=tokenizer_of(kind),
        source=Path("nowhere"),
    )


def write_exported(folder: Path, loaded: LoadedSentence) -> Path:
    """Writes a folder of our own parameters, with the tokenizer."""
    folder.mkdir()
    write_params(folder, loaded, "float32")
    write_tokenizer(folder, loaded.need_tokenizer(), loaded.config.max_length)
    return folder
