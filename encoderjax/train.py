"""Pretrains an encoder, or goes on where the same command stopped.

python -m encoderjax.train --config=configs/bert_tiny.py
"""

import dataclasses
import json
import math
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from encoderjax.command import Parser, run_command
from encoderjax.config import RunConfig, add_config_flag, config_name, parse_with_config
from encoderjax.data.pipeline import BatchSource, prefetched
from encoderjax.demonstration import demonstrate, next_commands
from encoderjax.errors import UserError
from encoderjax.evaluate import held_out_line, held_out_metrics
from encoderjax.experiment import Experiment
from encoderjax.interop.loading import load_model
from encoderjax.models.flops import train_flops_per_row
from encoderjax.training.checkpoint import Checkpoints
from encoderjax.training.hardware import peak_flops
from encoderjax.training.mesh import batch_shards, local_rows, make_mesh, put_batch
from encoderjax.training.metrics import MetricsWriter, Progress
from encoderjax.training.optimizer import make_optimizer
from encoderjax.training.step import (
    TrainState,
    init_state,
    make_eval_step,
    make_train_step,
)


def run(config: RunConfig, workdir: Path) -> dict[str, float]:
    """Trains to the last step; returns the held-out metrics, or {} when stopped."""
    speaks = jax.process_index() == 0
    report = print if speaks else lambda text: None

    # ---- corpus and batches ----
    mesh = make_mesh(config.mesh)
    if config.data.batch_size is not None:
        _check_batch(config, mesh, config.data.batch_size)
    experiment = Experiment.open(config, report)
    _check_batch(config, mesh, experiment.batch_size)
    source = experiment.train_source()
    validation = experiment.validation_source()
    if validation is None:
        report("the corpus has no held-out documents: nothing will be evaluated")

    with jax.set_mesh(mesh):
        # ---- model, optimiser, state ----
        pretrainer = experiment.pretrainer()
        optimizer, schedule = make_optimizer(config.optimizer, config.steps)
        checkpoints = Checkpoints(workdir, config.checkpoint)
        first = checkpoints.latest_step()
        if first is not None:
            checkpoints.check_identity(first, experiment.identity())
        _write_workdir(workdir, experiment)
        params = _initial_params(experiment) if first is None else None
        state, shardings = init_state(pretrainer, optimizer, mesh, config.seed, params)
        if first is not None:
            state = checkpoints.restore(first, state, shardings)
        train_step = make_train_step(
            pretrainer,
            optimizer,
            schedule,
            mesh=mesh,
            shardings=shardings,
            microbatches=config.optimizer.microbatches,
            seed=config.seed,
        )
        eval_step = make_eval_step(pretrainer, mesh=mesh, shardings=shardings.params)
        report(_opening_lines(experiment, mesh, state, workdir, first))

        # ---- the loop ----
        loop = _Loop(
            experiment=experiment,
            mesh=mesh,
            source=source,
            validation=validation,
            eval_step=eval_step,
            checkpoints=checkpoints,
            writer=MetricsWriter(workdir, first or 0) if speaks else None,
            progress=Progress(config.steps, first or 0, speaks),
        )
        try:
            state, metrics, finished = loop.run(train_step, state, first or 0)
            checkpoints.wait()
        finally:
            loop.close()

    # ---- afterwards ----
    if not finished:
        report(
            f"stopped at step {int(state.step):,} and saved; the same command goes on"
        )
        return {}
    if speaks:
        report(demonstrate(workdir, experiment))
        report(next_commands(workdir, experiment))
    return metrics


@dataclasses.dataclass
class _Loop:
    """The steps of one run, with what happens between them."""

    experiment: Experiment
    mesh: Mesh
    source: BatchSource
    validation: BatchSource | None
    eval_step: Any
    checkpoints: Checkpoints
    writer: MetricsWriter | None
    progress: Progress

    def run(
        self, train_step, state: TrainState, first: int
    ) -> tuple[TrainState, dict[str, float], bool]:
        """Returns the last state, its held-out metrics, and whether all steps ran."""
        config = self.experiment.config
        rows = local_rows(self.mesh, self.source.batch_size)
        metrics: dict[str, float] = {}
        clock = _Clock(self.experiment)
        pending: list[tuple[int, dict[str, jax.Array]]] = []
        batches = prefetched(
            lambda step: self.source.batch(step, rows), range(first, config.steps)
        )
        with _StopSignal() as stop:
            for step, batch in enumerate(batches, start=first + 1):
                tokens = int(batch["mask"].sum()) * jax.process_count()
                state, values = train_step(state, put_batch(self.mesh, batch))
                pending.append((step, values))
                last = step == config.steps
                save = last or step % config.checkpoint.every == 0
                stopping = stop.requested(step)
                if last or save or stopping or step % config.log_every == 0:
                    values = self._finite(pending)
                    clock.tick(step, tokens)
                    self._log(step, values, clock)
                else:
                    clock.add(tokens)
                if save or stopping:
                    self.checkpoints.save(state, step, self.experiment.identity())
                if stopping and not last:
                    batches.close()
                    return state, {}, False
                evaluating = config.eval.every and step % config.eval.every == 0
                if last or evaluating:
                    metrics = self.evaluate(state.params, step)
                clock.restart()
        if first >= config.steps:
            metrics = self.evaluate(state.params, first)
        return state, metrics, True

    def _finite(self, pending: list) -> dict[str, float]:
        """Fetches the metrics of all steps since the last time; stops at a NaN."""
        fetched = jax.device_get(pending)
        pending.clear()
        for step, values in fetched:
            if not math.isfinite(values["loss"]):
                self._stop_at_nan(step, float(values["loss"]))
        return {name: float(value) for name, value in fetched[-1][1].items()}

    def _stop_at_nan(self, step: int, loss: float) -> None:
        _, rows_B = self.source.places(step - 1, slice(None))
        kept = self.checkpoints.latest_step()
        safe = "nothing was saved yet" if kept is None else f"step {kept} is saved"
        raise UserError(
            f"the loss became {loss} at step {step}, on rows {rows_B.tolist()}; {safe}."
            " Try a lower optimizer.learning_rate, more optimizer.warmup_steps, a "
            "smaller optimizer.clip_norm or precision='float32', or go on from the "
            "checkpoint with another data order in a new workdir (init_from, seed)"
        )

    def _log(self, step: int, values: dict[str, float], clock: "_Clock") -> None:
        config = self.experiment.config
        line = values | clock.speeds()
        if self.writer is not None and (
            step % config.log_every == 0 or step == config.steps
        ):
            self.writer.write(step, "train", line)
        left = (config.steps - step) * clock.seconds_per_step
        self.progress.update(step, line, left)

    def evaluate(self, params, step: int) -> dict[str, float]:
        """Measures the held-out rows, and writes what comes out."""
        if self.validation is None:
            return {}
        rows = self.experiment.config.eval.batches * self.validation.batch_size
        metrics = held_out_metrics(
            self.experiment, self.validation, self.eval_step, params, self.mesh, rows
        )
        if self.writer is not None:
            self.writer.write(step, "validation", metrics)
        self.progress.say(held_out_line(step, metrics))
        return metrics

    def close(self) -> None:
        """Ends what runs in the background."""
        self.progress.close()
        if self.writer is not None:
            self.writer.close()
        self.checkpoints.close()


class _Clock:
    """Speed over the steps since the last line, compiling and evaluating left out."""

    def __init__(self, experiment: Experiment):
        slots = max(
            getattr(o, "max_predictions", 0) or 0 for o in experiment.objectives
        )
        self.flops_per_step = experiment.batch_size * train_flops_per_row(
            experiment.encoder, experiment.config.data.length, slots
        )
        self.peak = peak_flops()
        self.start = self.mark = time.perf_counter()
        self.steps = self.tokens = 0
        self.seconds_per_step = 0.0
        self.tokens_per_second: float | None = None
        self.warm = False  # the first interval holds the compilation

    def add(self, tokens: int) -> None:
        self.steps += 1
        self.tokens += tokens

    def tick(self, step: int, tokens: int) -> None:
        """Ends an interval; the device has finished what was asked of it."""
        self.add(tokens)
        seconds = time.perf_counter() - self.mark
        if self.warm:
            self.seconds_per_step = seconds / self.steps
            self.tokens_per_second = self.tokens / seconds
        self.warm = True
        self.ticked = True
        self.steps = self.tokens = 0

    ticked = False

    def restart(self) -> None:
        """Begins an interval after what followed the last one: saving, evaluating."""
        if self.ticked:
            self.mark = time.perf_counter()
            self.ticked = False

    def speeds(self) -> dict[str, float | None]:
        speed, mfu = self.seconds_per_step, None
        if speed and self.peak is not None:
            mfu = self.flops_per_step / speed / self.peak
        return {
            "tokens_per_second": self.tokens_per_second,
            "mfu": mfu,
            "seconds": time.perf_counter() - self.start,
        }


class _StopSignal:
    """Notes SIGTERM and Ctrl-C, so that the loop can save before it ends."""

    def __enter__(self) -> "_StopSignal":
        self.received: int | None = None
        self.previous = {
            number: signal.signal(number, self._note)
            for number in (signal.SIGTERM, signal.SIGINT)
        }
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:  # asked twice: at once
            raise KeyboardInterrupt
        self.received = number

    def requested(self, step: int) -> bool:
        """Returns whether to stop after `step`; all processes agree on it."""
        if jax.process_count() > 1:
            return multihost_utils.reached_preemption_sync_point(step)
        return self.received is not None

    def __exit__(self, *error) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)


def _check_batch(config: RunConfig, mesh: Mesh, batch_size: int) -> None:
    """Refuses a batch that cannot be split evenly, before anything is made."""
    shards, parts = batch_shards(mesh), config.optimizer.microbatches
    if batch_size % (shards * parts):
        least = shards * parts
        near = max(least, round(batch_size / least) * least)
        raise UserError(
            f"data.batch_size={batch_size} is not divisible by {shards} devices (mesh "
            f"data x fsdp) x {parts} optimizer.microbatches; the nearest one is {near}"
        )


def _initial_params(experiment: Experiment) -> Any:
    """Returns parameters from `init_from`, or None for new ones."""
    if experiment.config.init_from is None:
        return None
    heads = tuple(head for o in experiment.objectives for head in o.heads)
    loaded = load_model(experiment.config.init_from, need_heads=heads)
    ours = dataclasses.asdict(experiment.encoder)
    for name, value in dataclasses.asdict(loaded.config).items():
        if name.endswith("rate") or name.startswith("init") or ours[name] == value:
            continue
        raise UserError(
            f"model.{name}={ours[name]!r} does not fit init_from="
            f"{experiment.config.init_from}, which has {value!r}; set it to that"
        )
    for line in loaded.report:
        experiment.report(line)
    return {
        "encoder": loaded.params["encoder"],
        "heads": {head: loaded.params["heads"][head] for head in heads},
    }


def _write_workdir(workdir: Path, experiment: Experiment) -> None:
    """Writes config.json and the tokenizer, from which others load the model."""
    if jax.process_index() != 0:
        return
    experiment.corpus.tokenizer.save(workdir / "tokenizer")
    partial = workdir / "config.json.partial"
    partial.write_text(json.dumps(experiment.described(), indent=2) + "\n")
    os.replace(partial, workdir / "config.json")


def _opening_lines(
    experiment: Experiment, mesh: Mesh, state: TrainState, workdir: Path, first
) -> str:
    count = sum(np.prod(leaf.shape) for leaf in jax.tree.leaves(state.params))
    train = experiment.corpus.split("train")
    model, config = experiment.config.model, experiment.config
    axes = " x ".join(f"{axis} {size}" for axis, size in mesh.shape.items() if size > 1)
    device = jax.devices()[0]
    names = [objective.name for objective in experiment.objectives]
    lines = [
        f"model    {model.family} {model.size}, {int(count):,} parameters, vocabulary "
        f"{experiment.encoder.vocab_size:,}; objectives {', '.join(names)}",
        f"corpus   {experiment.corpus.folder}: {train.num_documents:,} documents, "
        f"{train.num_tokens:,} tokens; {experiment.train_index.num_rows:,} rows of "
        f"{config.data.length} in {config.data.dupe_factor} cuts",
        f"devices  {jax.device_count()} {device.device_kind} ({axes or 'one'}), "
        f"{experiment.pretrainer().model.dtype}; {experiment.batch_size:,} rows a step",
        f"workdir  {workdir}",
    ]
    if first is not None:
        lines.append(f"resuming after step {first:,} of {config.steps:,}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parses flags and trains."""
    parser = Parser(
        command="train",
        description="Trains a recipe, or goes on where the same command stopped.",
        examples=(
            "python -m encoderjax.train --config=configs/bert_tiny.py",
            "python -m encoderjax.train --config=configs/bert_tiny.py:tiny",
            "python -m encoderjax.train --config=configs/bert_base.py "
            "--config.data.corpus=my_corpus --workdir=runs/mine",
        ),
    )
    add_config_flag(parser)
    parser.add_argument("--workdir", help="default: runs/<name of the config>")
    flags, config = parse_with_config(parser, arguments)
    workdir = Path(flags.workdir or Path("runs") / config_name(flags.config))
    run(config, workdir)


if __name__ == "__main__":
    run_command(main)
