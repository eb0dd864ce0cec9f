"""The same work for PyTorch: a run's model, rows and optimiser as it has them.

Sizes, rows, dropout, precision float32, optimiser and clipping are ours; scores are of
the whole vocabulary at every token, as those classes compute them.

Shapes: B rows, L length.
"""

import importlib
import os
from typing import Any

import numpy as np

from encoderjax.command import as_the_user_set_it
from encoderjax.data.pipeline import Batch
from encoderjax.errors import UserError
from encoderjax.experiment import Experiment
from encoderjax.interop.huggingface import architecture, config_to_hf, held_heads
from encoderjax.interop.writing import token_ids
from encoderjax.torch_step import Work, threads

LIBRARIES = ("torch", "transformers")
# The objectives that a class of theirs trains, and what it calls their labels.
_PAIR_LABELS = {"nsp": "next_sentence_label", "sop": "sentence_order_label"}
_IGNORED = -100


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


def work_of(experiment: Experiment, batches: list[Batch]) -> Work:
    """Returns the same work for PyTorch; refuses what no class of theirs trains."""
    family, heads = experiment.config.model.family, experiment.head_names
    names = {objective.name for objective in experiment.objectives}
    assert family is not None
    if experiment.generator is not None or not names <= {"mlm", *_PAIR_LABELS}:
        raise UserError(
            f"--against=hf: transformers has no class that trains "
            f"{', '.join(sorted(names))}; it can with mlm alone, or with nsp (bert) or "
            "sop (albert)"
        )
    if set(held_heads(family, heads)) != set(heads):
        raise UserError(
            f"--against=hf: no class of transformers for {family} has the heads "
            f"{', '.join(heads)}"
        )
    if "documents" in batches[0]:
        raise UserError(
            "--against=hf: its classes do not know rows of several documents; choose "
            "another data.form"
        )
    if "mlm/offsets" in batches[0]:
        raise UserError(
            "--against=hf: its classes predict one token a place; set "
            "objectives.mlm.span_masks='each'"
        )
    optimizer = experiment.config.optimizer
    if optimizer.name != "adamw":
        raise UserError(
            f"--against=hf has AdamW alone, not optimizer.name={optimizer.name!r}"
        )
    config = config_to_hf(experiment.encoder, family, heads)
    config |= token_ids(family, experiment.encoder, experiment.corpus.tokenizer)
    return Work(
        architecture=architecture(family, heads),
        config=config,
        batches=[arguments_of(batch, heads, config) for batch in batches],
        learning_rate=optimizer.learning_rate,
        betas=(optimizer.b1, optimizer.b2),
        eps=optimizer.eps,
        weight_decay=optimizer.weight_decay,
        clip_norm=optimizer.clip_norm,
    )


def described(experiment: Experiment) -> str:
    """Returns what is run there, and how, in a line."""
    family = experiment.config.model.family
    assert family is not None
    with as_the_user_set_it():
        settings = os.environ.get("GLIBC_TUNABLES", "the C library's defaults")
    name = architecture(family, experiment.head_names)
    return f"{name} in PyTorch, {threads()} threads, malloc with {settings}"


def arguments_of(
    batch: Batch, heads: tuple[str, ...], config: dict[str, Any]
) -> dict[str, np.ndarray]:
    """Returns the arguments of their call: labels stand at their tokens."""
    labels_BL = np.full(batch["ids"].shape, _IGNORED, np.int64)
    row, slot = np.nonzero(batch["mlm/weights"])
    places = batch["mlm/positions"][row, slot]
    labels_BL[row, places] = batch["mlm/labels"][row, slot]
    arguments = {
        "input_ids": batch["ids"].astype(np.int64),
        "attention_mask": batch["mask"].astype(np.int64),
        "labels": labels_BL,
    }
    if config.get("type_vocab_size", 1) > 1:
        arguments["token_type_ids"] = batch["segments"].astype(np.int64)
    for head in heads:
        if head in _PAIR_LABELS:
            labels_B = np.where(batch["paired"] > 0, batch["second"], _IGNORED)
            arguments[_PAIR_LABELS[head]] = labels_B.astype(np.int64)
    return arguments
