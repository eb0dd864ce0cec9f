"""Pretrains an encoder, or goes on where the same command stopped.

python -m encoderjax.train --config=configs/bert_tiny.py
"""

if __name__ == "__main__":  # before anything heavy is imported
    from encoderjax.command import restart_with_huge_pages

    restart_with_huge_pages()

import dataclasses
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from encoderjax.command import Parser, run_command
from encoderjax.config import RunConfig
from encoderjax.config_loading import add_config_flag, config_name, parse_with_config
from encoderjax.data.opening import check_corpus
from encoderjax.data.tokenizers import Tokenizer
from encoderjax.demonstration import demonstration, next_commands
from encoderjax.errors import UserError
from encoderjax.expected import curve_of
from encoderjax.experiment import Experiment
from encoderjax.held_out import HeldOut
from encoderjax.interop.start import Start
from encoderjax.loop import Loop, Program
from encoderjax.origin import origin_of
from encoderjax.phases import (
    Stage,
    identity_at,
    identity_labels,
    open_stages,
    phases_of,
    whole_run,
)
from encoderjax.training.checkpoint import Checkpoints
from encoderjax.training.mesh import batch_shards, make_mesh, platform_of
from encoderjax.training.metrics import MetricsWriter, Progress
from encoderjax.training.optimizer import make_optimizer
from encoderjax.training.processes import check_shared, in_turns, joined
from encoderjax.training.remote_workdir import open_workdir, place_of
from encoderjax.training.step import (
    TrainState,
    abstract_state,
    init_state,
    make_eval_step,
    make_train_step,
)


def run(config: RunConfig, workdir: Path) -> dict[str, float] | None:
    """Trains to the last step; returns the held-out metrics, or None when stopped."""
    speaks = jax.process_index() == 0
    report = print if speaks else lambda text: None

    # ---- corpus and batches ----
    phases = phases_of(config)
    for phase in phases:
        check_corpus(phase.config.data)
    mesh = make_mesh(config.mesh)
    for phase in phases:
        if phase.config.data.batch_size is not None:
            check_batch(phase.config, mesh, phase.config.data.batch_size)
    origin, start = origin_of(config, workdir)
    with in_turns():
        stages = open_stages(config, report, origin)
    experiment = whole_run(config, stages)
    if start is not None:
        corpus = experiment.corpus
        start.check(experiment.encoder, corpus.tokenizer, corpus.name)
    for stage in stages:
        check_batch(stage.experiment.config, mesh, stage.experiment.batch_size)

    if place_of(workdir) is None:
        check_shared(workdir, "--workdir")
    with jax.set_mesh(mesh):
        # ---- model, optimiser, state ----
        frozen, rows = experiment.frozen(), stages[0].experiment.batch_size
        pretrainer = experiment.pretrainer(platform_of(mesh))
        optimizer, _ = make_optimizer(config.optimizer, config.steps)
        shapes, shardings = abstract_state(
            pretrainer, optimizer, mesh, rows=rows, frozen=frozen
        )
        checkpoints = Checkpoints(workdir, config.checkpoint)
        first = checkpoints.latest_step() or 0
        start_lines: Sequence[str] = ()
        if first:
            identity = identity_at(first, experiment, stages)
            labels = identity_labels(experiment, stages)
            checkpoints.check_identity(first, identity, labels)
            state = checkpoints.restore(first, shapes, shardings)
            state = _with_unsaved(state, pretrainer, shardings, rows, frozen)
        else:
            params, start_lines = _initial_params(experiment, start)
            state = init_state(
                pretrainer,
                optimizer,
                shardings,
                config.seed,
                params,
                rows=rows,
                frozen=frozen,
            )
        write_workdir(workdir, experiment.described(), experiment.corpus.tokenizer)
        curve = curve_of(experiment, stages)
        report(_opening_lines(experiment, stages, mesh, state, workdir, first))
        for line in start_lines:
            report(f"start    {line}")
        if curve is not None:
            report(f"curve    {curve.recipe} unchanged, whose curve is known")

        # ---- the loop ----
        programs = tuple(program_of(stage, mesh, shardings) for stage in stages)
        writer = MetricsWriter(workdir, first) if speaks else None
        progress = Progress(config.steps, first, speaks)
        judge = HeldOut(experiment, stages, programs, mesh, writer, progress, curve)
        loop = Loop(config, programs, judge, mesh, checkpoints, writer, progress)
        try:
            with loop:
                metrics, stopped_at = loop.steps(state, first)
                table = judge.before_and_after()
        except OSError as error:
            raise UserError(
                f"cannot write to {workdir}: {error.strerror}; see to space and "
                "permissions, then run the same command again"
            ) from error

    # ---- afterwards ----
    if stopped_at is not None:
        report(f"stopped at step {stopped_at:,} and saved; the same command goes on")
        return None
    if speaks:
        if table:
            report(table)
        report(demonstration(workdir, experiment))
        report(next_commands(workdir, experiment))
    return metrics


def first_program(stage: Stage, mesh: Mesh) -> tuple[Program, TrainState]:
    """Returns the steps of a run that has one stage, and the state that it begins with.

    The parameters are new ones, whatever the run would start from.
    """
    experiment = stage.experiment
    frozen, rows = experiment.frozen(), experiment.batch_size
    pretrainer = experiment.pretrainer(platform_of(mesh))
    optimizer, _ = make_optimizer(experiment.config.optimizer, stage.phase.last)
    _, shardings = abstract_state(pretrainer, optimizer, mesh, rows=rows, frozen=frozen)
    seed = experiment.config.seed
    state = init_state(pretrainer, optimizer, shardings, seed, rows=rows, frozen=frozen)
    return program_of(stage, mesh, shardings), state


def program_of(stage: Stage, mesh: Mesh, shardings: TrainState) -> Program:
    """Returns a stage with its steps, which are compiled when they are first run."""
    config, phase = stage.experiment.config, stage.phase
    pretrainer = stage.experiment.pretrainer(platform_of(mesh))
    optimizer, schedule = make_optimizer(
        config.optimizer, phase.config.steps, phase.schedule_first
    )
    train_step = make_train_step(
        pretrainer,
        optimizer,
        schedule,
        mesh=mesh,
        shardings=shardings,
        microbatches=config.optimizer.microbatches,
        seed=config.seed,
    )
    eval_step = make_eval_step(
        pretrainer, mesh=mesh, shardings=shardings.params, frozen=shardings.frozen
    )
    return Program(
        name=phase.name,
        last=phase.last,
        source=stage.source,
        microbatches=config.optimizer.microbatches,
        flops_per_step=stage.flops_per_step,
        train_step=train_step,
        eval_step=eval_step,
    )


def _with_unsaved(
    state: TrainState, pretrainer, shardings: TrainState, rows: int, frozen: Any
) -> TrainState:
    """Returns a restored state with what no checkpoint holds.

    A carry that was not saved begins anew; what is frozen comes from its own folder.
    """
    carry = state.carry
    if jax.tree.leaves(shardings.carry) and not jax.tree.leaves(carry):
        make = lambda: pretrainer.init_carry(rows)
        carry = jax.jit(make, out_shardings=shardings.carry)()
    frozen = jax.device_put(frozen, shardings.frozen)
    return dataclasses.replace(state, carry=carry, frozen=frozen)


def check_batch(config: RunConfig, mesh: Mesh, batch_size: int) -> None:
    """Refuses a batch that cannot be split evenly, before anything is made."""
    shards, parts = batch_shards(mesh), config.optimizer.microbatches
    least = shards * parts
    if batch_size % least == 0 or config.data.fill_batch:
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
        f"optimizer.microbatches; the nearest that is: data.batch_size={near}; or set "
        "data.fill_batch=True, for rows that count for nothing beside these"
    )


def _initial_params(
    experiment: Experiment, start: Start | None
) -> tuple[Any, Sequence[str]]:
    """Returns parameters and where they come from, or None for new ones."""
    if start is None:
        return None, ()
    tokenizer, seed = experiment.corpus.tokenizer, experiment.config.seed
    return start.params_for(experiment.pretrainer().model, tokenizer, seed)


def write_workdir(
    workdir: Path, described: Mapping[str, Any], tokenizer: Tokenizer
) -> None:
    """Writes config.json and the tokenizer, from which others load the model."""
    if jax.process_index() != 0:
        return
    try:
        tokenizer.save(workdir / "tokenizer")
        partial = workdir / "config.json.partial"
        partial.write_text(json.dumps(described, indent=2) + "\n")
        os.replace(partial, workdir / "config.json")
    except OSError as error:
        raise UserError(
            f"--workdir={workdir} cannot be written: {error.strerror}"
        ) from error


def _opening_lines(
    experiment: Experiment,
    stages: Sequence[Stage],
    mesh: Mesh,
    state: TrainState,
    workdir: Path,
    first: int,
) -> str:
    count = sum(np.prod(leaf.shape) for leaf in jax.tree.leaves(state.params))
    config, encoder = experiment.config, experiment.encoder
    model = config.model
    size = model.size or f"{encoder.num_layers}x{encoder.width}"
    axes = " x ".join(f"{axis} {size}" for axis, size in mesh.shape.items() if size > 1)
    device, processes = jax.devices()[0], jax.process_count()
    names = [objective.name for objective in experiment.objectives]
    lines = [
        f"model    {model.family} {size}, {int(count):,} parameters, vocabulary "
        f"{encoder.vocab_size:,}; objectives {', '.join(names)}",
        *(line for stage in stages for line in _stage_lines(stage)),
        f"devices  {jax.device_count()} {device.device_kind} ({axes or 'one'}), "
        + f"{processes} processes, " * (processes > 1)
        + f"{experiment.pretrainer().model.dtype}",
        f"workdir  {place_of(workdir) or workdir}",
    ]
    if first:
        lines.append(f"resuming after step {first:,} of {config.steps:,}")
    return "\n".join(lines)


def _stage_lines(stage: Stage) -> list[str]:
    experiment, phase, corpus = stage.experiment, stage.phase, stage.experiment.corpus
    data, index = experiment.config.data, experiment.train_index
    cuts = index.settings.passes
    steps = f"{phase.name}, steps {phase.first + 1:,} to {phase.last:,}: "
    lines = [
        f"corpus   {steps if phase.name else ''}{corpus.name}: "
        f"{corpus.count('documents'):,} documents, {corpus.count('tokens'):,} tokens; "
        f"{index.num_rows:,} rows of {data.length} ({data.form}) in {cuts} "
        f"cut{'s' if cuts > 1 else ''}, {experiment.batch_size:,} a step"
    ]
    if corpus.mixed:
        power = "" if corpus.alpha is None else f"alpha {corpus.alpha:g}, "
        lines.append(f"shares   {power}{_largest(corpus.shares)}")
    if data.buckets:
        shares = {f"to {b.length}": b.share for b in experiment.buckets}
        lines.append(f"buckets  {_largest(shares)} of the steps")
    return lines


def _largest(shares: Mapping[str, float], most: int = 8) -> str:
    """Returns shares for people to read: the largest, and how many more there are."""
    names = sorted(shares, key=lambda name: -shares[name])
    shown = [f"{name} {shares[name]:.1%}" for name in names[:most]]
    return ", ".join(shown) + f" and {len(names) - most} more" * (len(names) > most)


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
            "python -m encoderjax.train --config=configs/roberta_base.py "
            "--config.data.corpus=corpora/web:0.7,corpora/books:0.3",
            "launch/local_processes.sh 2 --config=configs/bert_tiny.py",
        ),
        notes=(
            "Several processes train together where the environment says so: on a TPU "
            "pod or GKE, under srun, or with JAX_COORDINATOR_ADDRESS, "
            "JAX_NUM_PROCESSES and JAX_PROCESS_ID (launch/README.md).",
            "Compiled programs are kept under ENCODERJAX_CACHE (~/.cache/encoderjax), "
            "or in JAX_COMPILATION_CACHE_DIR; empty, it keeps none.",
        ),
    )
    add_config_flag(parser)
    parser.add_argument(
        "--workdir", help="a folder, or gs://...; default: runs/<name of the config>"
    )
    parser.add_argument(
        "--stopped_code",
        type=int,
        default=0,
        help="exit code of a run that was told to stop (SIGTERM, Ctrl-C) and has "
        "saved, for launchers that start it again; default: 0",
    )
    with joined():
        flags, config = parse_with_config(parser, arguments)
        workdir = open_workdir(flags.workdir or f"runs/{config_name(flags.config)}")
        metrics = run(config, workdir)
    if metrics is None:
        sys.exit(flags.stopped_code)


if __name__ == "__main__":
    run_command(main)
