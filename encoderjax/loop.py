"""The steps of a run, and what happens between them: logs, checkpoints, evaluation."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Generator
from typing import Any

import jax
from jax.sharding import Mesh

from encoderjax.config import RunConfig
from encoderjax.data.buckets import BucketedSource
from encoderjax.data.pipeline import Batch, BatchSource, prefetched
from encoderjax.errors import UserError
from encoderjax.evaluate import (
    before_and_after,
    held_out_line,
    held_out_metrics,
    members_line,
)
from encoderjax.experiment import VALIDATION, Experiment, split_name
from encoderjax.phases import Stage, identity_at, stage_at
from encoderjax.training.checkpoint import Checkpoints
from encoderjax.training.mesh import BatchPlacement, filled_rows
from encoderjax.training.metrics import Clock, MetricsWriter, Progress
from encoderjax.training.step import TrainState
from encoderjax.training.stopping import StopSignal


@dataclasses.dataclass(frozen=True)
class Program:
    """A stage with what was compiled for it."""

    stage: Stage
    train_step: Callable
    eval_step: Callable


@dataclasses.dataclass
class Loop:
    """The steps of one run, through its stages.

    Attributes:
      run: the experiment that describes all of them.
      writer: of metrics, in the process that writes them.
    """

    run: Experiment
    programs: tuple[Program, ...]
    mesh: Mesh
    checkpoints: Checkpoints
    writer: MetricsWriter | None
    progress: Progress

    @property
    def config(self) -> RunConfig:
        """The run as a whole."""
        return self.run.config

    def steps(
        self, state: TrainState, first: int
    ) -> tuple[dict[str, float], int | None]:
        """Returns the last held-out metrics, and the step where it was stopped."""
        metrics = self.evaluate_if_due(state, first)
        with StopSignal() as stop:
            for program in self.programs:
                phase = program.stage.phase
                if first >= phase.last:
                    continue
                if phase.name:
                    self.progress.say(f"phase {phase.name}, to step {phase.last:,}")
                state, found, stopped_at = self._stage(program, state, first, stop)
                metrics = found or metrics
                if stopped_at is not None:
                    return {}, stopped_at
                first = phase.last
            self.checkpoints.wait()
        return metrics, None

    def _stage(
        self, program: Program, state: TrainState, first: int, stop: StopSignal
    ) -> tuple[TrainState, dict[str, float], int | None]:
        """Runs the steps of one stage after `first`."""
        config, stage = self.config, program.stage
        parts = stage.experiment.config.optimizer.microbatches
        rows = filled_rows(stage.source.batch_size, self.mesh, parts)
        placement = BatchPlacement(self.mesh, rows)
        clock = Clock(stage.flops_per_step)
        pending: list[tuple[int, dict[str, jax.Array]]] = []
        metrics: dict[str, float] = {}
        batches = self._batches(stage, placement, first)
        with contextlib.closing(batches):
            for step, batch in enumerate(batches, start=first + 1):
                real_BL = batch["mask"][batch["row_weights"] > 0]
                clock.add(int(real_BL.sum()), batch["mask"].shape[1])
                state, values = program.train_step(state, placement.put(batch))
                pending.append((step, values))
                stopping = stop.requested(step)
                save = step == config.steps or step % config.checkpoint.every == 0
                due = save or stopping or self._evaluates(step)
                if not (due or step % config.log_every == 0):
                    continue
                line = self._finite(pending, stage.source)
                clock.measure()
                self._log(step, line, clock)
                if save or stopping:
                    self.checkpoints.save(state, step, self._identity(step))
                if stopping and step < config.steps:
                    self.checkpoints.wait()
                    return state, {}, step
                metrics = self.evaluate_if_due(state, step) or metrics
                clock.begin()
        return state, metrics, None

    def _identity(self, step: int) -> dict[str, Any]:
        return identity_at(step, self.run, [p.stage for p in self.programs])

    def _batches(
        self, stage: Stage, placement: BatchPlacement, first: int
    ) -> Generator[Batch, None, None]:
        make = lambda step: stage.source.batch(step, placement.rows)
        return prefetched(make, range(first, stage.phase.last))

    def _finite(
        self, pending: list, source: BatchSource | BucketedSource
    ) -> dict[str, float]:
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

    def _nan_error(
        self, step: int, what: str, source: BatchSource | BucketedSource
    ) -> UserError:
        _, rows_B = source.places(step - 1, slice(None))
        shown = ", ".join(map(str, rows_B[:64]))
        more = f" and {len(rows_B) - 64} more" if len(rows_B) > 64 else ""
        kept = self.checkpoints.latest_step()
        safe = "nothing was saved yet" if kept is None else f"step {kept} is saved"
        return UserError(
            f"{what} at step {step}, on rows {shown}{more} (encoderjax.preview "
            f"--step={step - 1} shows them); {safe}. Try a lower "
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

    # ---- held-out rows ----

    def _evaluates(self, step: int) -> bool:
        config = self.config
        every, at_start = config.eval.every, config.eval.at_start
        if step == 0:
            return config.init_from is not None if at_start is None else at_start
        ends = any(step == program.stage.phase.last for program in self.programs)
        return ends or bool(every and step % every == 0)

    def evaluate_if_due(self, state: TrainState, step: int) -> dict[str, float]:
        """Measures the held-out rows where that is due and not yet written.

        Returns the metrics of the run's own corpus.
        """
        if not self._evaluates(step):
            return {}
        stage = stage_at(tuple(p.stage for p in self.programs), step)
        program = next(p for p in self.programs if p.stage is stage)
        measured = {
            split: self._measured(split, parts, program, state, step)
            for split, parts in stage.held_out.items()
        }
        return measured.get(VALIDATION, {})

    def _measured(
        self,
        split: str,
        parts: dict[str, BatchSource],
        program: Program,
        state: TrainState,
        step: int,
    ) -> dict[str, float]:
        """Measures a split and the members of a mixture in it; returns the whole."""
        of = lambda name: split_name(split, name)
        # The whole comes last: where it is written, so is every member.
        names = [*filter(None, parts), ""]
        written = self.writer.written(step) if self.writer else {}
        measured = {name: written.get(of(name), {}) for name in names}
        if split not in written or jax.process_count() > 1:
            measured = held_out_metrics(
                program.stage.experiment,
                parts,
                program.eval_step,
                state.params,
                self.mesh,
                rows=self.config.eval.batches * program.stage.source.batch_size,
                frozen=state.frozen,
            )
            for name in names:
                if self.writer is not None and of(name) not in written:
                    self.writer.write(step, of(name), measured[name])
        corpus = split.partition("/")[2]
        self.progress.say(held_out_line(step, measured[""], corpus))
        members = {name: measured[name] for name in names if name}
        if members:
            self.progress.say(members_line(members))
        return measured[""]

    def before_and_after(self) -> str:
        """Returns a table of what training changed, where it was measured before."""
        if self.writer is None:
            return ""
        own = self.run.corpus.label
        before, after = map(self.writer.written, (0, self.config.steps))
        measured = {}
        (program, *others) = self.programs
        for split in () if others else program.stage.held_out:  # else other rows
            if split in before and split in after:
                name = split.partition("/")[2] or own
                measured[name] = before[split], after[split]
        return before_and_after(measured) if measured else ""

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
