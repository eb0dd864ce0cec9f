"""The host's work as Hugging Face's libraries do it, to be compared with ours.

They are imported here alone, when they are asked for.

Shapes: B rows, L length.
"""

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from encoderjax.data.pipeline import Batch
from encoderjax.data.tokenizers import Vocabulary
from encoderjax.errors import UserError

LIBRARIES = ("torch", "transformers", "datasets")


def check_installed() -> None:
    """Refuses the comparison where a library of it is missing."""
    for name in LIBRARIES:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise UserError(
                f"--against=hf needs {', '.join(LIBRARIES)}, and {name} cannot be "
                f"imported ({error}); pip install 'encoderjax[test]'"
            ) from error


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Keeps torch to one thread, and `datasets` from drawing bars."""
    import datasets
    import torch

    before = torch.get_num_threads()
    bars = not datasets.are_progress_bars_disabled()
    torch.set_num_threads(1)
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        torch.set_num_threads(before)
        if bars:
            datasets.enable_progress_bars()


def mapped_texts(
    folder: str | os.PathLike, texts: Sequence[str]
) -> Callable[[], object]:
    """Returns what tokenises the texts with `datasets.Dataset.map`, in batches."""
    import datasets
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    data = datasets.Dataset.from_dict({"text": list(texts)})

    def tokenised(examples: dict) -> dict:
        return tokenizer(examples["text"], add_special_tokens=False, verbose=False)

    return lambda: data.map(
        tokenised,
        batched=True,
        remove_columns="text",
        keep_in_memory=True,
        load_from_cache_file=False,
    )


def collated(
    folder: str | os.PathLike, batch: Batch, vocabulary: Vocabulary, *, words: bool
) -> Callable[[], object]:
    """Returns what masks the rows with `DataCollatorForLanguageModeling`.

    It is given what its documentation asks for: special tokens marked and, for whole
    words, the offsets of the tokens, in which the pieces of a word touch.
    """
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids_BL = batch["ids"]
    columns = {
        "input_ids": ids_BL.tolist(),
        "special_tokens_mask": vocabulary.special_V[ids_BL].astype(int).tolist(),
    }
    if words:
        starts_BL = np.cumsum(2 - vocabulary.continues_word_V[ids_BL], axis=1)
        columns["offset_mapping"] = np.stack([starts_BL, starts_BL + 1], 2).tolist()
    rows = zip(*columns.values(), strict=True)
    examples = [dict(zip(columns, row, strict=True)) for row in rows]
    collator = transformers.DataCollatorForLanguageModeling(
        tokenizer,
        whole_word_mask=words,
        mask_replace_prob=1.0 if words else 0.8,  # words it replaces by [MASK] alone
        random_replace_prob=0.0 if words else 0.1,
    )
    return lambda: collator(examples)
