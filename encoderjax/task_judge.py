"""Measures a fine-tuning run on its validation examples, and knows the best step."""

import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from encoderjax.interop.task_loading import BEST
from encoderjax.task_run import TaskRun
from encoderjax.tasks.data import VALIDATION
from encoderjax.tasks.finetuner import make_score_step, scores_of
from encoderjax.tasks.task import Prediction
from encoderjax.training.mesh import batch_shards, platform_of
from encoderjax.training.metrics import MetricsWriter, Progress, read_metrics
from encoderjax.training.step import TrainState

_SMALLER_IS_BETTER = ("loss", "mse")


@dataclasses.dataclass
class TaskJudge:
    """Measures a run when it is due, and ends it when it gets no better.

    What is the best step follows from metrics.jsonl alone, so that a run that is
    resumed knows it as well.

    Attributes:
      first: the step that the run goes on after.
      shardings: of the parameters.
      writer: of metrics, in the process that writes them.
    """

    run: TaskRun
    workdir: Path
    first: int
    mesh: Mesh
    shardings: Any
    writer: MetricsWriter | None
    progress: Progress
    # Step -> metric, of every evaluation so far.
    curve: dict[int, float] = dataclasses.field(default_factory=dict)
    # By the task that a split is measured by.
    _score_steps: dict[int, Callable] = dataclasses.field(default_factory=dict)

    shown_by = "numbers of rows, counted through the training examples"

    def __post_init__(self):
        for line in read_metrics(self.workdir, VALIDATION) if self.first else ():
            if line["step"] <= self.first:
                self._note(line["step"], line)
        self._write_best()

    def identity(self, step: int) -> dict[str, Any]:
        """Returns what the checkpoint of `step` must agree with."""
        return self.run.identity()

    def due(self, step: int) -> bool:
        """Says whether to measure after `step`."""
        if VALIDATION not in self.run.items or step == 0:
            return False
        return step == self.run.steps or step % self.run.checkpoint.every == 0

    def measure(self, state: TrainState, step: int) -> dict[str, float]:
        """Returns the metrics of the validation examples."""
        if step in self.curve:  # measured before the run was stopped
            return {}
        metrics, _ = self.measured(state.params, VALIDATION)
        self._note(step, metrics)
        if self.writer is not None:
            self.writer.write(step, VALIDATION, metrics)
        self._write_best()
        best = "  (best so far)" if self.best_step() == step else ""
        epoch = f"epoch {self.run.epoch_of(step):.1f}"
        self.progress.say(
            f"validation at step {step:,} ({epoch}): {metrics_line(metrics)}{best}"
        )
        return metrics

    def measured(
        self, params: Any, split: str
    ) -> tuple[dict[str, float], list[Prediction]]:
        """Returns the metrics of a split, and what is predicted of each example."""
        run, shards = self.run, batch_shards(self.mesh)
        batch_size = -(-run.config.eval.batch_size // shards) * shards
        scores, losses = scores_of(
            self._score_step(split),
            params,
            run.items[split],
            mesh=self.mesh,
            batch_size=batch_size,
        )
        return run.judged(split, scores, losses)

    def _score_step(self, split: str) -> Callable:
        """Returns the step for a split; splits with one task share what is compiled."""
        task = self.run.judging[split]
        if id(task) not in self._score_steps:
            self._score_steps[id(task)] = make_score_step(
                self.run.finetuner(platform_of(self.mesh), split),
                mesh=self.mesh,
                shardings=self.shardings,
                answered=True,
            )
        return self._score_steps[id(task)]

    # ---- the best ----

    def _note(self, step: int, metrics: dict[str, float]) -> None:
        name = self.run.config.eval.metric or next(
            name for name in metrics if name not in ("step", "split")
        )
        self.curve[step] = (
            -metrics[name] if name in _SMALLER_IS_BETTER else metrics[name]
        )

    def best_step(self) -> int | None:
        """Returns the step with the best metric, of equal ones the first."""
        return max(self.curve, key=lambda step: self.curve[step], default=None)

    def satisfied(self, step: int) -> bool:
        """Says whether there were `eval.patience` evaluations without a better one."""
        patience, best = self.run.config.eval.patience, self.best_step()
        if not patience or best is None:
            return False
        return sum(best < later <= step for later in self.curve) >= patience

    def _write_best(self) -> None:
        best = self.best_step()
        if jax.process_index() != 0 or best is None:
            return
        partial = self.workdir / f"{BEST}.partial"
        partial.write_text(json.dumps({"step": best}) + "\n")
        os.replace(partial, self.workdir / BEST)


def metrics_line(metrics: dict[str, float]) -> str:
    """Returns metrics for people to read."""
    return "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())


def write_predictions(
    path: Path, examples: Sequence[Any], predictions: Sequence[Prediction]
) -> None:
    """Writes what is predicted of each example, one JSON object a line."""
    path.parent.mkdir(exist_ok=True)
    partial = path.with_suffix(".partial")
    with open(partial, "w", encoding="utf-8") as file:
        for example, prediction in zip(examples, predictions, strict=True):
            line = {"where": example.where, **prediction}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
    os.replace(partial, path)
