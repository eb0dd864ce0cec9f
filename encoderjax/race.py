"""Held-out loss against time: a run here, and the same model in PyTorch.

python -m encoderjax.race --config=configs/bert_tiny.py --minutes=5
"""

if __name__ == "__main__":  # before anything heavy is imported
    from encoderjax.command import restart_with_huge_pages

    restart_with_huge_pages()

import contextlib
import dataclasses
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from encoderjax import torch_work
from encoderjax.command import Parser, run_command
from encoderjax.config import RunConfig
from encoderjax.config_loading import add_config_flag, config_name, parse_with_config
from encoderjax.data.pipeline import Batch, BatchSource
from encoderjax.data.rows import RowIndex
from encoderjax.errors import UserError
from encoderjax.interop.huggingface import params_to_hf
from encoderjax.interop.weights import read_json, write_json
from encoderjax.jax_race import lasting, ran
from encoderjax.objectives.mlm import MaskedLM
from encoderjax.phases import Stage, open_stages
from encoderjax.provenance import machine, made_with
from encoderjax.race_clock import measured_after, steps_in
from encoderjax.race_results import OURS, RESULTS, THEIRS, draw, table
from encoderjax.torch_race import Race, Runner
from encoderjax.train import first_program
from encoderjax.training.mesh import make_mesh
from encoderjax.training.optimizer import make_optimizer

Report = Callable[[str], None]
TABLE, PICTURE, MODEL = "table.md", "picture.png", "model"
# What PyTorch's AdamW does: bias corrected, norms and biases not decayed.
_PYTORCHS = {
    "bias_correction": True,
    "groups": {},
    "decay_exclude": ("norm", "bias"),
    "decoupled_decay": False,
    "layer_decay": 1.0,
}


def run(
    config: RunConfig,
    out: Path,
    *,
    minutes: float,
    rows: int = 1_024,
    workers: int = 1,
    command: str = "",
    report: Report = print,
) -> dict[str, Any]:
    """Trains both for as long, one after the other; returns and writes the results.

    Each is first asked for its speed, and then makes as many steps as fill the time, so
    that both go through their whole schedule of learning rates. Both begin with the
    same weights and are measured on the same held-out rows and masks, while the clock
    stands still; it began with the process, as if a command had been started. What is
    in `out` is not run again; the model that was trained here is kept there as well.

    Args:
      minutes: for each.
      rows: that are held out and measured at most.
      workers: that make PyTorch's batches ahead.
    """
    if not (minutes > 0 and math.isfinite(minutes)):
        raise UserError(f"--minutes={minutes} must be a number above 0")
    for name, value, least in (("rows", rows, 1), ("workers", workers, 0)):
        if value < least:
            raise UserError(f"--{name}={value} must be at least {least}")
    if out.exists() and not out.is_dir():
        raise UserError(f"--out={out} is a file; name a folder")
    torch_work.check_installed()
    # One cut of the text for both.
    whole = dataclasses.replace(config.data, buckets=None, dupe_factor=1)
    config = dataclasses.replace(config, phases={}, data=whole)
    stage = open_stages(config, report, None)[0]
    held_out = _held_out_rows(stage, rows)
    out.mkdir(parents=True, exist_ok=True)
    work = race_of(stage, held_out, workers)  # refused before anything is trained
    settings = {"config": stage.experiment.described(), "minutes": minutes}
    settings |= {"rows": held_out[1], "workers": workers}
    settings |= {"machine": machine(), "clock": "from the start of the process"}
    contenders, starts = {}, {}
    for name, contend in (
        (OURS, lambda: ran(stage, held_out, 60 * minutes, out / MODEL)),
        (THEIRS, lambda: _theirs(stage, work, 60 * minutes)),
    ):
        path = out / f"{name}.json"
        if not path.is_file():
            write_json(path, {"settings": settings, **contend()})
        found = read_json(path)
        _check_same(found.pop("settings"), settings, path)
        contenders[name] = found.pop("points")
        starts[name] = found
        last = contenders[name][-1]
        report(
            f"{name}: {last['step']:,} steps in {last['seconds'] / 60:.1f} min, held "
            f"out {last['mlm_loss']:.3f}"
        )
    results = {
        "minutes": minutes,
        "rows": held_out[1],
        "about": _about(stage, config),
        "theirs": f"{torch_work.described(stage.experiment)}, {workers} "
        f"worker{'s' * (workers != 1)} for its batches",
        "contenders": contenders,
        "starts": starts,
        "command": command,
        "versions": made_with(("jax", "jaxlib", *torch_work.LIBRARIES)),
        "machine": machine(),
    }
    write_json(out / RESULTS, results)
    text = table(results)
    (out / TABLE).write_text(f"{text}\n", encoding="utf-8")
    draw(results, out / PICTURE, report)
    report(f"\n{text}\n\nresults in {out}, the model trained here in {out / MODEL}")
    return results


def _held_out_rows(stage: Stage, rows: int) -> tuple[BatchSource, int]:
    """Returns the held-out rows, and how many of them are measured."""
    names = {objective.name for objective in stage.experiment.objectives}
    if "mlm" not in names:
        raise UserError(
            f"objectives {', '.join(sorted(names))}: mlm is what both are compared by"
        )
    parts = stage.experiment.validation_sources()
    if list(parts) != [""]:
        raise UserError(
            f"data.corpus={stage.experiment.corpus.name} must be one corpus with "
            "held-out documents, to be compared on"
        )
    return parts[""], min(rows, parts[""].index.num_rows)


def _check_same(before: Mapping[str, Any], now: Mapping[str, Any], path: Path) -> None:
    for name in ("minutes", "rows", "workers", "machine", "clock", "config"):
        if before.get(name) != _as_json(now[name]):
            raise UserError(
                f"{path} was made with another {name}; choose another --out, or delete "
                "it"
            )


def _as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _theirs(stage: Stage, work: Race, seconds: float) -> dict[str, Any]:
    """Returns the points of PyTorch's run and its beginning."""
    with contextlib.closing(Runner(work, seconds)) as run:
        left = max(1.0, seconds - run.start)
        steps = steps_in(left, run.seconds_per_step())
        config = lasting(stage, steps).experiment.config
        _, schedule = make_optimizer(config.optimizer, steps)
        rates = np.asarray(schedule(np.arange(steps)), np.float64)
        return {
            "start": run.start,
            "points": run.run(rates.tolist(), measured_after(steps)),
        }


def race_of(stage: Stage, held_out: tuple[BatchSource, int], workers: int) -> Race:
    """Returns the same work for PyTorch: weights, rows, held-out rows with masks."""
    experiment = stage.experiment
    optimizer = experiment.config.optimizer
    for name, theirs in _PYTORCHS.items():
        if getattr(optimizer, name) != theirs:
            raise UserError(
                f"optimizer.{name}={getattr(optimizer, name)}: PyTorch's AdamW has "
                f"{theirs} here; set that for both"
            )
    mesh = make_mesh(experiment.config.mesh)
    with jax.set_mesh(mesh):
        _, state = first_program(stage, mesh)
        params = jax.device_get(state.params)
    family = experiment.config.model.family
    assert family is not None
    tensors, _ = params_to_hf(params, family, experiment.encoder)
    work = torch_work.work_of(experiment, _whole_batches(*held_out))
    index = experiment.train_index
    source = dataclasses.replace(experiment.full_length_source(), corruptions=())
    assert isinstance(index, RowIndex)  # of one corpus, as was checked
    numbers_R = np.arange(len(index.passes[0]))  # one cut of the text
    rows = source.rows(np.zeros_like(numbers_R), numbers_R)
    more = torch_work.arguments_of(_unmasked(rows), experiment.head_names, work.config)
    for name in ("input_ids", "attention_mask", "labels"):
        del more[name]
    (objective,) = (o for o in experiment.objectives if isinstance(o, MaskedLM))
    if not isinstance(objective.rate, float):
        raise UserError(
            f"objectives.mlm.rate={objective.rate}: their collator has a number only"
        )
    _check_same_masks(objective)
    vocabulary = experiment.corpus.tokenizer.vocabulary
    return Race(
        work=work,
        tensors={name: np.asarray(x, np.float32) for name, x in tensors.items()},
        tokenizer=str(experiment.corpus.tokenizer_folder),
        ids_RL=rows["ids"],
        lengths_R=rows["mask"].sum(axis=1),
        special_RL=vocabulary.special_V[rows["ids"]],
        more=more,
        rate=objective.rate,
        replaced=(objective.replace.mask, objective.replace.random),
        batch_size=experiment.batch_size,
        seed=experiment.config.seed,
        workers=workers,
    )


def _check_same_masks(objective: MaskedLM) -> None:
    """Refuses masks that their collator does not make."""
    here, theirs = objective, MaskedLM()
    for name in ("select", "specials", "span_masks"):
        if getattr(here, name) != getattr(theirs, name):
            raise UserError(
                f"objectives.mlm.{name}={getattr(here, name)!r}: their collator has "
                f"{getattr(theirs, name)!r} alone"
            )
    for name in ("distribution", "unit", "similar"):
        if getattr(here.replace, name) != getattr(theirs.replace, name):
            raise UserError(
                f"objectives.mlm.replace.{name}={getattr(here.replace, name)!r}: their "
                f"collator has {getattr(theirs.replace, name)!r} alone"
            )


def _unmasked(rows: Batch) -> Batch:
    """Returns rows with no slots, as if they had been masked."""
    none_R0 = np.zeros((len(rows["ids"]), 0), np.int32)
    return rows | {f"mlm/{n}": none_R0 for n in ("weights", "positions", "labels")}


def _whole_batches(source: BatchSource, rows: int) -> list[Batch]:
    """Returns the held-out batches, the last one without the rows that fill it up."""
    batches = []
    for step in range(-(-rows // source.batch_size)):
        left = min(source.batch_size, rows - step * source.batch_size)
        _, rows_B = source.places(step, np.arange(left))
        batches.append(source.rows(np.zeros_like(rows_B), rows_B))
    return batches


def _about(stage: Stage, config: RunConfig) -> str:
    experiment, data, encoder = stage.experiment, config.data, stage.experiment.encoder
    return (
        f"{config.model.family} {encoder.num_layers}x{encoder.width}, vocabulary "
        f"{encoder.vocab_size:,}, {experiment.batch_size} x {data.length} a step, on "
        f"{experiment.corpus.label}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Parses flags and runs."""
    parser = Parser(
        command="race",
        description="Trains the same small model for as long here and in PyTorch, as "
        "its users do it (Hugging Face's class and collator, a DataLoader, AdamW), one "
        "after the other on the same cores: held-out loss against time.",
        examples=(
            "python -m encoderjax.race --config=configs/bert_tiny.py --minutes=5",
            "python -m encoderjax.race --config=configs/cpu_half_hour.py --minutes=30 "
            "--config.data.corpus=corpora/books --out=runs/race",
        ),
        notes=("What is in --out is not run again: the same command goes on.",),
    )
    add_config_flag(parser)
    parser.add_argument(
        "--minutes", type=float, default=30.0, help="for each (default: 30)"
    )
    parser.add_argument(
        "--rows",
        type=int,
        default=1_024,
        help="held-out rows that are measured (default: 1,024)",
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=1,
        help="that make PyTorch's batches ahead; 0: none (default: 1)",
    )
    parser.add_argument("--out", help="a folder; default: runs/race-<name>")
    flags, config = parse_with_config(parser, arguments)
    out = Path(flags.out or f"runs/race-{config_name(flags.config)}")
    given = sys.argv[1:] if arguments is None else arguments
    run(
        config,
        out,
        minutes=flags.minutes,
        rows=flags.rows,
        workers=flags.workers,
        command=" ".join(("python -m encoderjax.race", *given)),
    )


if __name__ == "__main__":
    run_command(main)
