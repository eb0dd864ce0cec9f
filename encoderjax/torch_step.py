"""A training step in PyTorch with Hugging Face's classes, in a process of its own.

The same work as ours: sizes, rows, dropout, precision float32, optimiser and clipping,
with the scores of the whole vocabulary at every token, as those classes compute them.
The process is set up as PyTorch's users have it: with a thread for each core, and not
with the allocator settings with which our commands restart themselves. Settings of the
user's (GLIBC_TUNABLES) hold for both.

Shapes: B rows, L length.
"""

import dataclasses
import importlib
import multiprocessing
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from encoderjax import resident
from encoderjax.command import as_the_user_set_it
from encoderjax.data.pipeline import Batch
from encoderjax.errors import UserError
from encoderjax.experiment import Experiment
from encoderjax.interop.huggingface import architecture, config_to_hf, held_heads
from encoderjax.interop.writing import token_ids

LIBRARIES = ("torch", "transformers")
# The objectives that a class of theirs trains, and what it calls their labels.
_PAIR_LABELS = {"nsp": "next_sentence_label", "sop": "sentence_order_label"}
_IGNORED = -100


@dataclasses.dataclass(frozen=True)
class Work:
    """What the other process is to do.

    Attributes:
      architecture: the name of the class.
      config: its config.json.
      batches: the arguments of its call.
    """

    architecture: str
    config: dict[str, Any]
    batches: list[dict[str, np.ndarray]]
    learning_rate: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    clip_norm: float


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


def threads() -> int:
    """Returns how many threads PyTorch works with: one for each core."""
    return len(os.sched_getaffinity(0))


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


class Remote:
    """The other process; it runs a step when it is asked to."""

    def __init__(self, work: Work):
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, work))
        with as_the_user_set_it():
            self._process.start()
        theirs.close()
        self._answer()  # the model is made

    def _answer(self) -> float:
        try:
            return self._pipe.recv()
        except EOFError:
            self._process.join()
            raise UserError(
                "--against=hf: the process with PyTorch ended with exit code "
                f"{self._process.exitcode}; is there memory for both?"
            ) from None

    def run(self) -> float:
        """Has a step made; returns the seconds that it took there."""
        self._pipe.send("step")
        return self._answer()

    def peak_memory(self) -> float:
        """Returns the bytes that it grew by at most, from before its model was made."""
        self._pipe.send("memory")
        return self._answer()

    def close(self) -> None:
        """Ends it."""
        self._pipe.close()
        self._process.join()


def _serve(pipe: Any, work: Work) -> None:
    """Does what is asked for until the pipe is closed."""
    import torch
    import transformers  # noqa: F401 (before the memory is looked at)

    torch.set_num_threads(threads())
    before = resident.bytes_now()
    step = _train_step(work)
    pipe.send(0.0)
    count = 0
    while True:
        try:
            wanted = pipe.recv()
        except EOFError:
            return
        if wanted == "memory":
            pipe.send(resident.peak_bytes() - before)
            continue
        start = time.perf_counter()
        step(work.batches[count % len(work.batches)])
        pipe.send(time.perf_counter() - start)
        count += 1


def new_model(work: Work) -> Any:
    """Returns their model with new weights, ready to be trained."""
    import transformers

    kind = getattr(transformers, work.architecture)
    return kind(kind.config_class(**work.config)).train()


def loss_of(model: Any, arguments: dict[str, np.ndarray]) -> Any:
    """Returns their loss of a batch."""
    import torch

    tensors = {name: torch.from_numpy(value) for name, value in arguments.items()}
    return model(**tensors).loss


def _train_step(work: Work) -> Callable[[dict[str, np.ndarray]], float]:
    """Returns what makes a step on a batch, and returns its loss."""
    model = new_model(work)
    optimizer = optimizer_of(model, work)

    def step(arguments: dict[str, np.ndarray]) -> float:
        return trained(model, optimizer, loss_of(model, arguments), work)

    return step


def optimizer_of(model: Any, work: Work) -> Any:
    """Returns their AdamW, which spares norms and biases from weight decay."""
    import torch

    parameters = list(model.parameters())
    return torch.optim.AdamW(
        [
            {"params": [p for p in parameters if p.ndim > 1]},
            {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
        ],
        lr=work.learning_rate,
        betas=work.betas,
        eps=work.eps,
        weight_decay=work.weight_decay,
        fused=True,  # the fastest that it has
    )


def trained(model: Any, optimizer: Any, loss: Any, work: Work) -> float:
    """Makes an update; returns the loss."""
    import torch

    loss.backward()
    if work.clip_norm:
        torch.nn.utils.clip_grad_norm_(list(model.parameters()), work.clip_norm)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return float(loss.detach())
