"""Pretrains an encoder, or goes on where the same command stopped.

python -m encoderjax.train --config=configs/bert_tiny.py
"""

if __name__ == "__main__":  # before anything heavy is imported
    from encoderjax.command import restart_with_huge_pages

    restart_with_huge_pages()

import contextlib
import dataclasses
import json
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from encoderjax.command import Parser, run_command
from encoderjax.config import (
    ModelConfig,
    RunConfig,
    add_config_flag,
    config_name,
    parse_with_config,
)
from encoderjax.data.pipeline import BatchSource, prefetched
from encoderjax.demonstration import demonstration, next_commands
from encoderjax.errors import UserError
from encoderjax.evaluate import before_and_after, held_out_line, held_out_metrics
from encoderjax.experiment import VALIDATION, Experiment, model_of, open_start
from encoderjax.interop.start import Start
from encoderjax.interop.weights import read_json
from encoderjax.models.flops import train_flops_per_row
from encoderjax.training.checkpoint import FOLDER, Checkpoints
from encoderjax.training.mesh import BatchPlacement, batch_shards, make_mesh
from encoderjax.training.metrics import Clock, MetricsWriter, Progress
from encoderjax.training.optimizer import make_optimizer
from encoderjax.training.step import (
    TrainState,
    abstract_state,
    init_state,
    make_eval_step,
    make_train_step,
)
from encoderjax.training.stopping import StopSignal


def run(config: RunConfig, workdir: Path) -> dict[str, float]:
    """Trains to the last step; returns the held-out metrics, or {} when stopped."""
    speaks = jax.process_index() == 0
    report = print if speaks else lambda text: None

    # ---- corpus and batches ----
    mesh = make_mesh(config.mesh)
    if config.data.batch_size is not None:
        _check_batch(config, mesh, config.data.batch_size)
    origin, start = _origin(config, workdir)
    experiment = Experiment.open(config, report, origin)
    config, corpus = experiment.config, experiment.corpus
    if start is not None:
        start.check(experiment.encoder, corpus.tokenizer, corpus.folder)
    _check_batch(config, mesh, experiment.batch_size)
    source = experiment.train_source()
    held_out = experiment.held_out_sources()
    if VALIDATION not in held_out:
        report("the corpus has no held-out documents: it will not be evaluated")

    with jax.set_mesh(mesh):
        # ---- model, optimiser, state ----
        pretrainer = experiment.pretrainer()
        optimizer, schedule = make_optimizer(config.optimizer, config.steps)
        shapes, shardings = abstract_state(pretrainer, optimizer, mesh)
        checkpoints = Checkpoints(workdir, config.checkpoint)
        first = checkpoints.latest_step() or 0
        start_lines: Sequence[str] = ()
        if first:
            checkpoints.check_identity(first, experiment.identity())
            state = checkpoints.restore(first, shapes, shardings)
        else:
            params, start_lines = _initial_params(experiment, start)
            state = init_state(pretrainer, optimizer, shardings, config.seed, params)
        _write_workdir(workdir, experiment)
        train_step = make_train_step(
            pretrainer,
            optimizer,
            schedule,
            mesh=mesh,
            shardings=shardings,
            microbatches=config.optimizer.microbatches,
            seed=config.seed,
        )
        report(_opening_lines(experiment, mesh, state, workdir, first))
        for line in start_lines:
            report(f"start    {line}")

        # ---- the loop ----
        loop = _Loop(
            experiment=experiment,
            mesh=mesh,
            source=source,
            held_out=held_out,
            eval_step=make_eval_step(pretrainer, mesh=mesh, shardings=shardings.params),
            checkpoints=checkpoints,
            writer=MetricsWriter(workdir, first) if speaks else None,
            progress=Progress(config.steps, first, speaks),
        )
        try:
            metrics, stopped_at = loop.run(train_step, state, first)
            table = loop.before_and_after()
        except OSError as error:
            raise UserError(
                f"cannot write to {workdir}: {error.strerror}; see to space and "
                "permissions, then run the same command again"
            ) from error
        finally:
            loop.close()

    # ---- afterwards ----
    if stopped_at is not None:
        report(f"stopped at step {stopped_at:,} and saved; the same command goes on")
        return {}
    if speaks:
        if table:
            report(table)
        report(demonstration(workdir, experiment))
        report(next_commands(workdir, experiment))
    return metrics


@dataclasses.dataclass
class _Loop:
    """The steps of one run, with what happens between them."""

    experiment: Experiment
    mesh: Mesh
    source: BatchSource
    held_out: dict[str, BatchSource]  # by the name of the split in metrics.jsonl
    eval_step: Callable
    checkpoints: Checkpoints
    writer: MetricsWriter | None
    progress: Progress

    def run(
        self, train_step: Callable, state: TrainState, first: int
    ) -> tuple[dict[str, float], int | None]:
        """Returns the last held-out metrics, and the step where it was stopped."""
        config = self.experiment.config
        placement = BatchPlacement(self.mesh, self.source.batch_size)
        clock = Clock(_flops_per_step(self.experiment))
        pending: list[tuple[int, dict[str, jax.Array]]] = []
        batches = prefetched(
            lambda step: self.source.batch(step, placement.rows),
            range(first, config.steps),
        )
        metrics = self.evaluate_if_due(state, first)
        with StopSignal() as stop, contextlib.closing(batches):
            for step, batch in enumerate(batches, start=first + 1):
                clock.add(int(batch["mask"].sum()))
                state, values = train_step(state, placement.put(batch))
                pending.append((step, values))
                stopping = stop.requested(step)
                save = step == config.steps or step % config.checkpoint.every == 0
                due = save or stopping or self._evaluates(step)
                if not (due or step % config.log_every == 0):
                    continue
                values = self._finite(pending)
                clock.measure()
                self._log(step, values, clock)
                if save or stopping:
                    self.checkpoints.save(state, step, self.experiment.identity())
                if stopping and step < config.steps:
                    self.checkpoints.wait()
                    return {}, step
                metrics = self.evaluate_if_due(state, step) or metrics
                clock.begin()
            self.checkpoints.wait()
        return metrics, None

    def _finite(self, pending: list) -> dict[str, float]:
        """Fetches the metrics of all steps since the last time; stops at a NaN."""
        fetched = jax.device_get(pending)
        pending.clear()
        for step, values in fetched:
            # The loss is that of the parameters before the update, which may spoil
            # them; what would be saved is checked as well.
            for name in ("loss", "grad_norm", "param_norm"):
                if not math.isfinite(values[name]):
                    raise self._nan_error(step, f"{name} became {values[name]}")
        return {name: float(value) for name, value in fetched[-1][1].items()}

    def _nan_error(self, step: int, what: str) -> UserError:
        _, rows_B = self.source.places(step - 1, slice(None))
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
        config = self.experiment.config
        line = values | clock.speeds()
        if self.writer is not None and (
            step % config.log_every == 0 or step == config.steps
        ):
            self.writer.write(step, "train", line)
        left = (config.steps - step) * clock.seconds_per_step
        self.progress.update(step, line, left)

    def _evaluates(self, step: int) -> bool:
        config = self.experiment.config
        every, at_start = config.eval.every, config.eval.at_start
        if step == 0:
            return config.init_from is not None if at_start is None else at_start
        return step == config.steps or bool(every and step % every == 0)

    def evaluate_if_due(self, state: TrainState, step: int) -> dict[str, float]:
        """Measures the held-out rows where that is due and not yet written.

        Returns the metrics of the run's own corpus.
        """
        if not self._evaluates(step):
            return {}
        measured = {
            split: self._measured(split, source, state, step)
            for split, source in self.held_out.items()
        }
        return measured.get(VALIDATION, {})

    def _measured(
        self, split: str, source: BatchSource, state: TrainState, step: int
    ) -> dict[str, float]:
        metrics = self.writer.written(step, split) if self.writer else None
        if metrics is None or jax.process_count() > 1:
            rows = self.experiment.config.eval.batches * source.batch_size
            metrics = held_out_metrics(
                self.experiment, source, self.eval_step, state.params, self.mesh, rows
            )
            if self.writer is not None:
                self.writer.write(step, split, metrics)
        corpus = split.partition("/")[2]
        self.progress.say(held_out_line(step, metrics, corpus))
        return metrics

    def before_and_after(self) -> str:
        """Returns a table of what training changed, where it was measured before."""
        if self.writer is None:
            return ""
        own, steps = self.experiment.corpus.folder.name, self.experiment.config.steps
        measured = {}
        for split in self.held_out:
            both = [self.writer.written(step, split) for step in (0, steps)]
            if None not in both:
                measured[split.partition("/")[2] or own] = both
        return before_and_after(measured) if measured else ""

    def close(self) -> None:
        """Ends what runs in the background."""
        self.progress.close()
        if self.writer is not None:
            self.writer.close()
        self.checkpoints.close()


def _flops_per_step(experiment: Experiment) -> float:
    slots = (getattr(o, "max_predictions", None) or 0 for o in experiment.objectives)
    return experiment.batch_size * train_flops_per_row(
        experiment.encoder, experiment.config.data.length, max(slots)
    )


def _check_batch(config: RunConfig, mesh: Mesh, batch_size: int) -> None:
    """Refuses a batch that cannot be split evenly, before anything is made."""
    shards, parts = batch_shards(mesh), config.optimizer.microbatches
    least = shards * parts
    if batch_size % least == 0:
        return
    near = max(least, round(batch_size / least) * least)
    tokens = config.data.batch_tokens
    given = (
        f"data.batch_size={batch_size}"
        if tokens is None
        else f"data.batch_tokens={tokens} ({batch_size} rows)"
    )
    raise UserError(
        f"{given} is not divisible by {shards} devices (mesh data x fsdp) x {parts} "
        f"optimizer.microbatches; the nearest that is: data.batch_size={near}"
    )


def _origin(
    config: RunConfig, workdir: Path
) -> tuple[ModelConfig | None, Start | None]:
    """Returns the model that a run goes on with, and the folder it starts from.

    A workdir with a checkpoint stands alone: that folder may have vanished since.
    """
    described = workdir / "config.json"
    saved = any(path.name.isdigit() for path in (workdir / FOLDER).glob("*"))
    if not (saved and described.is_file()):
        start = open_start(config)
        return model_of(start), start
    if config.init_from is None and config.model.family is not None:
        return None, None
    return RunConfig.from_description(read_json(described)).model, None


def _initial_params(
    experiment: Experiment, start: Start | None
) -> tuple[Any, Sequence[str]]:
    """Returns parameters and where they come from, or None for new ones."""
    if start is None:
        return None, ()
    tokenizer, seed = experiment.corpus.tokenizer, experiment.config.seed
    return start.params_for(experiment.pretrainer().model, tokenizer, seed)


def _write_workdir(workdir: Path, experiment: Experiment) -> None:
    """Writes config.json and the tokenizer, from which others load the model."""
    if jax.process_index() != 0:
        return
    try:
        experiment.corpus.tokenizer.save(workdir / "tokenizer")
        partial = workdir / "config.json.partial"
        partial.write_text(json.dumps(experiment.described(), indent=2) + "\n")
        os.replace(partial, workdir / "config.json")
    except OSError as error:
        raise UserError(
            f"--workdir={workdir} cannot be written: {error.strerror}"
        ) from error


def _opening_lines(
    experiment: Experiment, mesh: Mesh, state: TrainState, workdir: Path, first: int
) -> str:
    count = sum(np.prod(leaf.shape) for leaf in jax.tree.leaves(state.params))
    train = experiment.corpus.split("train")
    config, encoder = experiment.config, experiment.encoder
    model = config.model
    size = model.size or f"{encoder.num_layers}x{encoder.width}"
    axes = " x ".join(f"{axis} {size}" for axis, size in mesh.shape.items() if size > 1)
    device = jax.devices()[0]
    names = [objective.name for objective in experiment.objectives]
    lines = [
        f"model    {model.family} {size}, {int(count):,} parameters, vocabulary "
        f"{encoder.vocab_size:,}; objectives {', '.join(names)}",
        f"corpus   {experiment.corpus.folder}: {train.num_documents:,} documents, "
        f"{train.num_tokens:,} tokens; {experiment.train_index.num_rows:,} rows of "
        f"{config.data.length} in {config.data.dupe_factor} cuts",
        f"devices  {jax.device_count()} {device.device_kind} ({axes or 'one'}), "
        f"{experiment.pretrainer().model.dtype}; {experiment.batch_size:,} rows a step",
        f"workdir  {workdir}",
    ]
    if first:
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
    run(config, _workdir(flags.workdir or f"runs/{config_name(flags.config)}"))


def _workdir(name: str) -> Path:
    if "://" in name:
        raise UserError(
            f"--workdir={name} is an object store; give a local or mounted folder"
        )
    return Path(name).expanduser()


if __name__ == "__main__":
    run_command(main)
