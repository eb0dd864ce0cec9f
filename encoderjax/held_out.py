"""The held-out rows of a pretraining run: when they are measured, and what is shown."""

import dataclasses
from typing import Any

import jax
from jax.sharding import Mesh

from encoderjax.data.pipeline import BatchSource
from encoderjax.evaluate import (
    before_and_after,
    held_out_line,
    held_out_metrics,
    members_line,
)
from encoderjax.expected import Curve
from encoderjax.experiment import Experiment
from encoderjax.loop import Program
from encoderjax.measured_splits import VALIDATION, split_name
from encoderjax.phases import Stage, identity_at, stage_at
from encoderjax.training.metrics import MetricsWriter, Progress
from encoderjax.training.step import TrainState


@dataclasses.dataclass
class HeldOut:
    """Measures the stages of a run.

    Attributes:
      run: the experiment that describes all of them.
      stages: one for each program.
      writer: of metrics, in the process that writes them.
      curve: of the recipe that the run follows unchanged, where one was measured.
    """

    run: Experiment
    stages: tuple[Stage, ...]
    programs: tuple[Program, ...]
    mesh: Mesh
    writer: MetricsWriter | None
    progress: Progress
    curve: Curve | None = None

    shown_by = "encoderjax.preview --step={step} shows them"

    def identity(self, step: int) -> dict[str, Any]:
        """Returns what the checkpoint of `step` must agree with."""
        return identity_at(step, self.run, self.stages)

    def satisfied(self, step: int) -> bool:
        """Says no: pretraining runs to its last step."""
        return False

    def due(self, step: int) -> bool:
        """Says whether to measure after `step`."""
        config = self.run.config
        every, at_start = config.eval.every, config.eval.at_start
        if step == 0:
            return config.init_from is not None if at_start is None else at_start
        ends = any(step == program.last for program in self.programs)
        return ends or bool(every and step % every == 0)

    def measure(self, state: TrainState, step: int) -> dict[str, float]:
        """Measures what is not yet written; returns that of the run's own corpus."""
        stage = stage_at(self.stages, step)
        measured = {
            split: self._measured(split, parts, stage, state, step)
            for split, parts in stage.held_out.items()
        }
        own = measured.get(VALIDATION, {})
        standing = self.curve.standing(step, own) if self.curve else ""
        if standing:
            self.progress.say(standing)
        return own

    def _measured(
        self,
        split: str,
        parts: dict[str, BatchSource],
        stage: Stage,
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
            program = self.programs[self.stages.index(stage)]
            measured = held_out_metrics(
                stage.experiment,
                parts,
                program.eval_step,
                state.params,
                self.mesh,
                rows=self.run.config.eval.batches * stage.source.batch_size,
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
        before, after = map(self.writer.written, (0, self.run.config.steps))
        measured = {}
        (stage, *others) = self.stages
        for split in () if others else stage.held_out:  # else other rows
            if split in before and split in after:
                name = split.partition("/")[2] or own
                measured[name] = before[split], after[split]
        return before_and_after(measured) if measured else ""
