"""Pretraining in PyTorch as its users do it, in a process of its own.

Hugging Face's class with the scores of the whole vocabulary at every token, their
collator, a DataLoader with a worker that masks ahead, AdamW. Rows, initial weights and
learning rates are given; the clock begins with the process and stands still while it is
measured.

Shapes: R rows, L length.
"""

import dataclasses
import itertools
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from encoderjax.beside import Beside
from encoderjax.command import as_the_user_set_it
from encoderjax.race_clock import WARM_UP, Point, timed_enough
from encoderjax.torch_step import Work, new_model, optimizer_of, threads
from encoderjax.torch_step import trained as one_update


@dataclasses.dataclass(frozen=True)
class Race:
    """What the other process is to do.

    Attributes:
      work: the model and its optimiser; its batches are the held-out ones, masked.
      tensors: the initial weights.
      tokenizer: its folder.
      ids_RL: the rows to train on, padded.
      lengths_R: how many of their tokens are real.
      special_RL: which of them are [CLS] and [SEP].
      more: other columns of the rows, such as segments and pair labels.
      rate: of the tokens that are selected.
      replaced: the shares of these that become [MASK], and random tokens.
      seed: of the order and the masks.
      workers: of the DataLoader.
    """

    work: Work
    tensors: dict[str, np.ndarray]
    tokenizer: str
    ids_RL: np.ndarray
    lengths_R: np.ndarray
    special_RL: np.ndarray
    more: dict[str, np.ndarray]
    rate: float
    replaced: tuple[float, float]
    batch_size: int
    seed: int
    workers: int = 1


class Rows:
    """The rows as a data set of PyTorch: a dict of lists for each."""

    def __init__(self, race: Race):
        self.ids_RL, self.lengths_R = race.ids_RL, race.lengths_R
        self.special_RL, self.more = race.special_RL, race.more

    def __len__(self) -> int:
        return len(self.ids_RL)

    def __getitem__(self, row: int) -> dict[str, Any]:
        length = self.lengths_R[row]
        example = {
            "input_ids": self.ids_RL[row, :length].tolist(),
            "special_tokens_mask": self.special_RL[row, :length].astype(int).tolist(),
        }
        for name, column in self.more.items():
            value = column[row]
            example[name] = value[:length].tolist() if value.ndim else int(value)
        return example


class Runner:
    """The other process, asked for its speed and then for a run.

    Attributes:
      start: how many seconds it took until it could make a step.
    """

    def __init__(self, race: Race, seconds: float):
        begun = time.time()
        with as_the_user_set_it():
            self._process = Beside(
                __name__,
                ended="the process with PyTorch ended with exit code {}; "
                "what it says stands above",
            )
        self._process.send((race, seconds, begun))
        self.start: float = self._process.receive()

    def seconds_per_step(self) -> float:
        """Returns how long a step takes, with its batch."""
        return self._process.receive()

    def run(self, rates: Sequence[float], measured: Sequence[int]) -> list[Point]:
        """Has a step made for each learning rate; returns what was measured after.

        Args:
          rates: of every step.
          measured: after how many steps.
        """
        self._process.send((list(rates), list(measured)))
        return self._process.receive()

    def close(self) -> None:
        """Ends it."""
        self._process.close()


def serve(pipe: Connection) -> None:
    """Says when it can begin and how long a step takes; makes those asked for."""
    import torch

    race, seconds, begun = pipe.recv()
    torch.set_num_threads(threads())
    torch.manual_seed(race.seed)
    model, batches = _model(race), _batches(race)
    first = next(batches)  # its worker has started
    start = time.time() - begun
    pipe.send(start)
    again = itertools.chain((first,), batches)
    pipe.send(_seconds_per_step(race, model, again, seconds))
    batches.close()
    try:
        rates, measured = pipe.recv()
    except EOFError:
        return
    pipe.send(_trained(race, rates, measured, start, pipe))


def _seconds_per_step(
    race: Race, model: Any, batches: Iterator[Any], seconds: float
) -> float:
    """Times steps of a model that is then thrown away."""
    optimizer = optimizer_of(model, race.work)
    taken, start = 0.0, 0.0
    for step in itertools.count(1 - WARM_UP):
        one_update(model, optimizer, model(**next(batches)).loss, race.work)
        taken = time.perf_counter() - start if step else 0.0
        start = start if step else time.perf_counter()
        if timed_enough(step, taken, seconds):
            break
    return taken / step


def _trained(
    race: Race,
    rates: Sequence[float],
    measured: Sequence[int],
    spent: float,
    pipe: Connection,
) -> list[Point]:
    """Returns what is measured of a run that took `spent` seconds to begin."""
    model = _model(race)
    optimizer, batches = optimizer_of(model, race.work), _batches(race)
    batch = next(batches)  # the start of the worker was counted
    points = [{"seconds": spent, "step": 0, **_held_out(model, race.work)}]
    start = time.perf_counter()
    for step, rate in enumerate(rates, start=1):
        for group in optimizer.param_groups:
            group["lr"] = rate
        one_update(model, optimizer, model(**batch).loss, race.work)
        batch = next(batches)
        if step in measured:
            spent += time.perf_counter() - start
            points.append(
                {"seconds": spent, "step": step, **_held_out(model, race.work)}
            )
            start = time.perf_counter()
        if pipe.poll():  # nothing is sent: it was closed
            sys.exit("the process that asked for this run is gone")
    batches.close()
    return points


def _model(race: Race) -> Any:
    """Returns their model with the weights that ours begins with."""
    import torch

    model = new_model(race.work)
    tensors = {name: torch.from_numpy(x.copy()) for name, x in race.tensors.items()}
    found = model.load_state_dict(tensors, strict=False)
    model.tie_weights()
    tied = set(model.all_tied_weights_keys)
    missing = [n for n in found.missing_keys if n not in tied]
    if missing or found.unexpected_keys:
        raise AssertionError(f"weights do not fit: {missing + found.unexpected_keys}")
    return model


def _batches(race: Race) -> Generator[Any, None, None]:
    """Yields masked batches without end, every pass in a new order."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(race.tokenizer)
    collator = transformers.DataCollatorForLanguageModeling(
        tokenizer,
        mlm_probability=race.rate,
        mask_replace_prob=race.replaced[0],
        random_replace_prob=race.replaced[1],
    )
    loader = torch.utils.data.DataLoader(
        Rows(race),  # type: ignore[arg-type]  # has all that a data set needs
        batch_size=race.batch_size,
        shuffle=True,
        collate_fn=collator,
        num_workers=race.workers,
        persistent_workers=race.workers > 0,
        generator=torch.Generator().manual_seed(race.seed),
    )
    for _ in itertools.count():
        yield from loader


def _held_out(model: Any, work: Work) -> Point:
    """Returns the masked LM's loss and accuracy on the held-out batches."""
    import torch

    loss = hits = count = 0.0
    model.eval()
    with torch.no_grad():
        for batch in work.batches:
            tensors = {name: torch.from_numpy(value) for name, value in batch.items()}
            labels_BL = tensors.pop("labels")
            outputs = model(**tensors)
            name = "logits" if "logits" in outputs else "prediction_logits"
            predicted = labels_BL >= 0
            scores, labels = outputs[name][predicted], labels_BL[predicted]
            loss += float(
                torch.nn.functional.cross_entropy(scores, labels, reduction="sum")
            )
            hits += float((scores.argmax(-1) == labels).sum())
            count += len(labels)
    model.train()
    return {"mlm_loss": loss / count, "mlm_accuracy": hits / count}
