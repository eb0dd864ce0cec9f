"""A training step in PyTorch with Hugging Face's classes, in a process of its own.

The process is set up as PyTorch's users have it: with a thread for each core, and not
with the allocator settings with which our commands restart themselves. Settings of the
user's (GLIBC_TUNABLES) hold for both. Nothing of jax is imported there.

Shapes: B rows, L length.
"""

import dataclasses
import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from encoderjax import resident
from encoderjax.beside import Beside
from encoderjax.command import as_the_user_set_it


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


def threads() -> int:
    """Returns how many threads PyTorch works with: one for each core."""
    return len(os.sched_getaffinity(0))


class Remote:
    """The other process; it runs a step when it is asked to."""

    def __init__(self, work: Work):
        with as_the_user_set_it():
            self._process = Beside(
                __name__,
                ended="--against=hf: the process with PyTorch ended with "
                "exit code {}; is there memory for both?",
            )
        self._process.send(work)
        self._process.receive()  # the model is made

    def run(self) -> float:
        """Has a step made; returns the seconds that it took there."""
        self._process.send("step")
        return self._process.receive()

    def peak_memory(self) -> float:
        """Returns the bytes that it grew by at most, from before its model was made."""
        self._process.send("memory")
        return self._process.receive()

    def close(self) -> None:
        """Ends it."""
        self._process.close()


def serve(pipe: Connection) -> None:
    """Does what is asked for until the pipe is closed."""
    import torch
    import transformers  # noqa: F401 (before the memory is looked at)

    work = pipe.recv()
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
