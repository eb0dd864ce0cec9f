"""The steps of a run, and what happens between them: logs, checkpoints, evaluation."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Generator
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import Mesh

from encoderjax.data.pipeline import Batch, prefetched
from encoderjax.errors import UserError
from encoderjax.training.checkpoint import CheckpointConfig, Checkpoints
from encoderjax.training.mesh import BatchPlacement, filled_rows
from encoderjax.training.metrics import Clock, MetricsWriter, Progress
from encoderjax.training.step import TrainState
from encoderjax.training.stopping import StopSignal


class Source(Protocol):
    """The training batches of a run, any of them at once."""

    @property
    def batch_size(self) -> int:
        """Rows of a step over all devices."""
        ...

    def batch(self, step: int, rows: np.ndarray) -> Batch:
        """Returns the given rows of the global batch of `step`."""
        ...

    def places(self, step: int, rows: slice) -> tuple[np.ndarray, np.ndarray]:
        """Returns epoch and number of the given rows of `step`."""
        ...


@dataclasses.dataclass(frozen=True)
class Program:
    """A part of a run with what was compiled for it.

    Attributes:
      name: '' where it is the whole run.
      last: its last step.
      microbatches: parts that a batch is worked through in.
    """

    name: str
    last: int
    source: Source
    microbatches: int
    flops_per_step: float
    train_step: Callable
    eval_step: Callable


class Settings(Protocol):
    """What a loop asks of a run."""

    @property
    def steps(self) -> int:
        """Optimiser updates."""
        ...

    @property
    def log_every(self) -> int:
        """Steps between lines of metrics."""
        ...

    @property
    def checkpoint(self) -> CheckpointConfig:
        """When to save."""
        ...


class Judge(Protocol):
    """Who measures a run on what is held out, and says what it is."""

    # What a user looks at the rows of a step with; {step} is its number from 0.
    shown_by: str

    def due(self, step: int) -> bool:
        """Says whether to measure after `step`."""
        ...

    def measure(self, state: TrainState, step: int) -> dict[str, float]:
        """Returns the main metrics, and has them written and shown."""
        ...

    def satisfied(self, step: int) -> bool:
        """Says whether the run may end after `step`, before its last one."""
        ...

    def identity(self, step: int) -> dict[str, Any]:
        """Returns what the checkpoint of `step` must agree with."""
        ...


@dataclasses.dataclass
class Loop:
    """The steps of one run, through its programs.

    Attributes:
      writer: of metrics, in the process that writes them.
    """

    config: Settings
    programs: tuple[Program, ...]
    judge: Judge
    mesh: Mesh
    checkpoints: Checkpoints
    writer: MetricsWriter | None
    progress: Progress

    def steps(
        self, state: TrainState, first: int
    ) -> tuple[dict[str, float], int | None]:
        """Returns the last held-out metrics, and the step where it was stopped."""
        metrics = self._measured(state, first)
        with StopSignal() as stop:
            for program in self.programs:
                if first >= program.last or self.judge.satisfied(first):
                    continue
                if program.name:
                    self.progress.say(f"phase {program.name}, to step {program.last:,}")
                state, found, stopped_at = self._run(program, state, first, stop)
                metrics = found or metrics
                if stopped_at is not None:
                    return {}, stopped_at
                first = program.last
            self.checkpoints.wait()
        return metrics, None

    def _run(
        self, program: Program, state: TrainState, first: int, stop: StopSignal
    ) -> tuple[TrainState, dict[str, float], int | None]:
        """Runs the steps of one program after `first`."""
        config, source = self.config, program.source
        rows = filled_rows(source.batch_size, self.mesh, program.microbatches)
        placement = BatchPlacement(self.mesh, rows)
        clock = Clock(program.flops_per_step)
        pending: list[tuple[int, dict[str, jax.Array]]] = []
        metrics: dict[str, float] = {}
        batches = self._batches(program, placement, first)
        with contextlib.closing(batches):
            for step, batch in enumerate(batches, start=first + 1):
                real = batch["mask"][batch["row_weights"] > 0]
                # Those of this process stand for all.
                tokens = int(real.sum()) / placement.share
                clock.add(tokens, batch["mask"].shape[-1])
                state, values = program.train_step(state, placement.put(batch))
                pending.append((step, values))
                stopping = stop.requested(step)
                save = step == config.steps or step % config.checkpoint.every == 0
                due = save or stopping or self.judge.due(step)
                if not (due or step % config.log_every == 0):
                    continue
                line = self._finite(pending, source)
                clock.measure()
                self._log(step, line, clock)
                if save or stopping:
                    self.checkpoints.save(state, step, self.judge.identity(step))
                if stopping and step < config.steps:
                    self.checkpoints.wait()
                    return state, {}, step
                metrics = self._measured(state, step) or metrics
                if self.judge.satisfied(step):
                    self.checkpoints.save(state, step, self.judge.identity(step))
                    break
                clock.begin()
        return state, metrics, None

    def _measured(self, state: TrainState, step: int) -> dict[str, float]:
        return self.judge.measure(state, step) if self.judge.due(step) else {}

    def _batches(
        self, program: Program, placement: BatchPlacement, first: int
    ) -> Generator[Batch, None, None]:
        make = lambda step: program.source.batch(step, placement.rows)
        return prefetched(make, range(first, program.last))

    def _finite(self, pending: list, source: Source) -> dict[str, float]:
        """Fetches the metrics of all steps since the last time; stops at a NaN."""
        fetched = jax.device_get(pending)
        pending.clear()
        for step, values in fetched:
            # The loss is that of the parameters before the update, which may spoil
            # them; what would be saved is checked as well.
            for name in ("loss", "grad_norm", "param_norm"):
                if not math.isfinite(values[name]):
                    what = f"{name} became {values[name]}"
                    raise self._nan_error(step, what, source)
        return {name: float(value) for name, value in fetched[-1][1].items()}

    def _nan_error(self, step: int, what: str, source: Source) -> UserError:
        _, rows_B = source.places(step - 1, slice(None))
        shown = ", ".join(map(str, rows_B[:64]))
        more = f" and {len(rows_B) - 64} more" if len(rows_B) > 64 else ""
        kept = self.checkpoints.latest_step()
        safe = "nothing was saved yet" if kept is None else f"step {kept} is saved"
        return UserError(
            f"{what} at step {step}, on rows {shown}{more} "
            f"({self.judge.shown_by.format(step=step - 1)}); {safe}. Try a lower "
            "optimizer.learning_rate, more optimizer.warmup_steps, a smaller "
            "optimizer.clip_norm or precision='float32', or go on from the checkpoint "
            "with another data order in a new workdir (init_from, seed)"
        )

    def _log(self, step: int, values: dict[str, float], clock: Clock) -> None:
        config = self.config
        line = values | clock.speeds()
        if self.writer is not None and (
            step % config.log_every == 0 or step == config.steps
        ):
            self.writer.write(step, "train", line)
        left = (config.steps - step) * clock.seconds_per_step
        self.progress.update(step, line, left)

    def __enter__(self) -> "Loop":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error) -> None:
        """Ends what runs in the background.

        After an error, other processes may not be there to finish a checkpoint with.
        """
        self.progress.close()
        if self.writer is not None:
            self.writer.close()
        if kind is None or jax.process_count() == 1:
            self.checkpoints.close()
