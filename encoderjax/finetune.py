"""Fine-tunes an encoder for a task, or goes on where the same command stopped.

python -m encoderjax.finetune --config=configs/finetune/classify.py \
    --config.init_from=runs/bert_tiny --config.data.train=reviews.csv
"""

if __name__ == "__main__":  # before anything heavy is imported
    from encoderjax.command import restart_with_huge_pages

    restart_with_huge_pages()

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from encoderjax.command import Parser, run_command
from encoderjax.config_loading import add_config_flag, config_name, parse_with_recipe
from encoderjax.errors import UserError
from encoderjax.finetuning import FinetuneConfig
from encoderjax.loop import Loop, Program
from encoderjax.pictures import draw_confusion, draw_curves
from encoderjax.task_judge import TaskJudge, metrics_line, write_predictions
from encoderjax.task_run import TaskRun
from encoderjax.tasks.classify import Classify
from encoderjax.tasks.data import TEST, TRAIN, VALIDATION
from encoderjax.tasks.finetuner import Finetuner
from encoderjax.train import write_workdir
from encoderjax.training.checkpoint import Checkpoints, restore_params
from encoderjax.training.layerwise import keep_frozen
from encoderjax.training.mesh import make_mesh, platform_of
from encoderjax.training.metrics import MetricsWriter, Progress
from encoderjax.training.optimizer import make_optimizer
from encoderjax.training.processes import check_shared, joined
from encoderjax.training.remote_workdir import open_workdir, place_of
from encoderjax.training.step import (
    TrainState,
    abstract_state,
    init_state,
    make_eval_step,
    make_train_step,
)


def run(config: FinetuneConfig, workdir: Path) -> dict[str, float] | None:
    """Fine-tunes to the end; returns the metrics of the best step, by split.

    They are named `validation/accuracy` and so on; None when it was stopped.
    """
    speaks = jax.process_index() == 0
    report = print if speaks else lambda text: None
    mesh = make_mesh(config.mesh)
    task_run = TaskRun.open(config, workdir)
    if place_of(workdir) is None:
        check_shared(workdir, "--workdir")
    with jax.set_mesh(mesh):
        # ---- model, optimiser, state ----
        finetuner = task_run.finetuner(platform_of(mesh))
        optimizer, schedule = _optimizer(task_run)
        shapes, shardings = abstract_state(finetuner, optimizer, mesh)
        best: list[TaskJudge] = []  # the judge is made when it is known what is there
        checkpoints = Checkpoints(
            workdir, task_run.checkpoint, kept=lambda: best[0].best_step()
        )
        first = checkpoints.latest_step() or 0
        if first:
            checkpoints.check_identity(first, task_run.identity(), {})
            state = checkpoints.restore(first, shapes, shardings)
            lines = [f"resuming after step {first:,} of {task_run.steps:,}"]
        else:
            params, lines = task_run.initial_params()
            state = init_state(finetuner, optimizer, shardings, config.seed, params)
        write_workdir(workdir, task_run.described(), task_run.tokenizer)
        report(_opening_lines(task_run, state, workdir, lines))

        # ---- the loop ----
        writer = MetricsWriter(workdir, first) if speaks else None
        progress = Progress(task_run.steps, first, speaks)
        judge = TaskJudge(
            task_run, workdir, first, mesh, shardings.params, writer, progress
        )
        best.append(judge)
        program = _program(task_run, finetuner, optimizer, schedule, mesh, shardings)
        loop = Loop(task_run, (program,), judge, mesh, checkpoints, writer, progress)
        try:
            with loop:
                _, stopped_at = loop.steps(state, first)
        except OSError as error:
            raise UserError(
                f"cannot write to {workdir}: {error.strerror}; see to space and "
                "permissions, then run the same command again"
            ) from error
        if stopped_at is not None:
            report(
                f"stopped at step {stopped_at:,} and saved; the same command goes on"
            )
            return None
        return _conclusion(judge, report)


def _optimizer(
    task_run: TaskRun,
) -> tuple[optax.GradientTransformation, optax.Schedule]:
    optimizer, schedule = make_optimizer(task_run.optimizer, task_run.steps)
    if task_run.config.freeze:
        optimizer = optax.chain(optimizer, keep_frozen(task_run.config.freeze))
    return optimizer, schedule


def _program(
    task_run: TaskRun,
    finetuner: Finetuner,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    mesh: Mesh,
    shardings: TrainState,
) -> Program:
    """Returns the steps, which are compiled when they are first run."""
    config = task_run.config
    return Program(
        name="",
        last=task_run.steps,
        source=task_run.source(),
        microbatches=config.optimizer.microbatches,
        flops_per_step=task_run.flops_per_step(),
        train_step=make_train_step(
            finetuner,
            optimizer,
            schedule,
            mesh=mesh,
            shardings=shardings,
            microbatches=config.optimizer.microbatches,
            seed=config.seed,
        ),
        eval_step=make_eval_step(finetuner, mesh=mesh, shardings=shardings.params),
    )


def _conclusion(judge: TaskJudge, report) -> dict[str, float]:
    """Measures the best step on all that was held out; writes predictions, pictures."""
    run, workdir = judge.run, judge.workdir
    params, step = restore_params(workdir, judge.best_step())
    params = jax.device_put(params, judge.shardings)
    found: dict[str, float] = {}
    for split in (VALIDATION, TEST):
        if split not in run.items:
            continue
        metrics, predictions = judge.measured(params, split)
        found |= {f"{split}/{name}": value for name, value in metrics.items()}
        report(f"{split} of step {step:,}: {metrics_line(metrics)}")
        if jax.process_index() != 0:
            continue
        examples = run.examples[split]
        if table := run.task.report(examples, predictions):
            report(table)
        path = workdir / "predictions" / f"{split}.jsonl"
        write_predictions(path, examples, predictions)
        report(f"predictions in {path}")
        if isinstance(run.task, Classify):
            matrix = run.task.confusion(examples, predictions)
            if matrix is not None and run.task.labels is not None:
                draw_confusion(
                    workdir / f"confusion_{split}.png", matrix, run.task.labels, report
                )
    if jax.process_index() == 0:
        draw_curves(workdir, report)
        report(_next_commands(judge))
    return found


def _next_commands(judge: TaskJudge) -> str:
    workdir = judge.workdir
    return "\n".join(
        (
            "",
            "next:",
            f"  python -m encoderjax.{judge.run.task.used_by.format(model=workdir)}",
            f"  python -m encoderjax.export --workdir={workdir} "
            f"--out={workdir}/huggingface",
        )
    )


def _opening_lines(
    run: TaskRun, state: TrainState, workdir: Path, lines: Sequence[str]
) -> str:
    count = sum(np.prod(leaf.shape) for leaf in jax.tree.leaves(state.params))
    sizes = ", ".join(f"{name} {len(x):,}" for name, x in run.examples.items())
    items = run.items[TRAIN].encoded
    rows = f"{len(items):,} rows of at most {run.config.data.length} tokens"
    labels = run.task.labels or ()
    shown = ", ".join(labels[:8]) + (", ..." if len(labels) > 8 else "")
    return "\n".join(
        (
            f"task     {run.task.kind}"
            + f" ({len(labels)} labels: {shown})" * bool(labels),
            f"model    {run.family} {run.encoder.num_layers}x{run.encoder.width}, "
            f"{int(count):,} parameters",
            f"examples {sizes}; {rows} to train on, {run.steps:,} steps of "
            f"{run.config.data.batch_size}",
            f"workdir  {place_of(workdir) or workdir}",
            *(f"start    {line}" for line in lines),
        )
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Parses flags and fine-tunes."""
    parser = Parser(
        command="finetune",
        description="Fine-tunes an encoder for a task, or goes on where the same "
        "command stopped.",
        examples=(
            "python -m encoderjax.finetune --config=configs/finetune/classify.py "
            "--config.init_from=runs/bert_tiny --config.data.train=reviews.csv",
            "python -m encoderjax.finetune --config=configs/finetune/tag.py "
            "--config.init_from=exported --config.data.train=train.conll "
            "--config.data.validation=dev.conll --workdir=runs/ner",
            "python -m encoderjax.finetune --config=configs/finetune/glue.py:rte "
            "--config.init_from=runs/bert_base",
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
        help="exit code of a run that was told to stop and has saved; default: 0",
    )
    with joined():
        flags, values = parse_with_recipe(parser, arguments)
        config = FinetuneConfig.from_dict(values)
        workdir = open_workdir(flags.workdir or f"runs/{config_name(flags.config)}")
        metrics: Any = run(config, workdir)
    if metrics is None:
        sys.exit(flags.stopped_code)


if __name__ == "__main__":
    run_command(main)
