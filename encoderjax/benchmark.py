"""Measures how fast a run is: the training step, or with --data the host's side.

python -m encoderjax.benchmark --config=configs/bert_tiny.py --against=hf
"""

if __name__ == "__main__":  # before anything heavy is imported
    from encoderjax.command import restart_with_huge_pages

    restart_with_huge_pages()

import dataclasses
import importlib.metadata
import json
import platform
from collections.abc import Callable, Sequence
from typing import Any

import jax

from encoderjax import data_speed, hf_speed, step_speed, torch_work
from encoderjax.command import Parser, run_command
from encoderjax.config import RunConfig
from encoderjax.config_loading import add_config_flag, load_config, overrides_of
from encoderjax.errors import UserError
from encoderjax.experiment import Experiment
from encoderjax.fields import Override
from encoderjax.phases import Stage, open_stages

# How figures are shown: the end of a name, the factor, and the unit.
_UNITS = (
    ("_mb_per_second", 1.0, "MB/s"),
    ("tokens_per_second", 1.0, "tokens/s"),
    ("_flops_per_second", 1e-9, "GFLOP/s"),
    ("_seconds", 1e3, "ms"),
    ("_share", 1e2, "%"),
    ("_mb", 1.0, "MB"),
    ("_ratio", 1.0, "x"),
)


def run_data(
    config: RunConfig,
    *,
    source: str | None = None,
    sample_mb: float = 4.0,
    all_selectors: bool = False,
    against_hf: bool = False,
    report: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Measures preparation, rows and corruption on one core.

    Of a run with phases, what stands outside of them is measured; of one with buckets,
    all rows at their full length; of a mixture, the text of its first member and the
    rows of all.

    Returns:
      What was measured, and `figures`: name -> number, the unit at the name's end.
    """
    if sample_mb <= 0:
        raise UserError(f"--sample_mb={sample_mb} must be above 0")
    experiment = Experiment.open(dataclasses.replace(config, phases={}), report)
    index = experiment.train_index
    figures = data_speed.measured(
        experiment,
        texts=source,
        sample_mb=sample_mb,
        all_selectors=all_selectors,
        against_hf=against_hf,
    )
    libraries = ("numpy", "tokenizers", *(hf_speed.LIBRARIES if against_hf else ()))
    return {
        "corpus": experiment.corpus.name,
        "form": config.data.form,
        "length": config.data.length,
        "batch_size": experiment.batch_size,
        "rows": index.num_rows,
        "cores": 1,
        "versions": _versions(libraries),
        "figures": figures,
    }


def run_step(
    config: RunConfig,
    *,
    other: RunConfig | None = None,
    turns: int = 10,
    against_hf: bool = False,
    report: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Measures the training step on all devices.

    Of a run with phases, what stands outside of them is measured; of one with buckets,
    all rows at their full length. Weights are new ones.

    Args:
      config: the run.
      other: the same with other settings, to be compared.
      turns: timed steps of each.
      against_hf: whether PyTorch makes the same steps beside ours.

    Returns:
      What was measured, and `figures`: name -> number, the unit at the name's end.
    """
    if turns < 1:
        raise UserError(f"--turns={turns} must be at least 1")
    stage = _stage(config, report)
    figures = step_speed.measured(
        stage,
        turns=turns,
        against_hf=against_hf,
        other=None if other is None else _stage(other, report),
    )
    experiment, device = stage.experiment, jax.devices()[0]
    libraries = ("jax", "jaxlib", *(torch_work.LIBRARIES if against_hf else ()))
    beside = {"hf": torch_work.described(experiment)} if against_hf else {}
    return {
        "corpus": experiment.corpus.name,
        "form": config.data.form,
        "length": config.data.length,
        "batch_size": experiment.batch_size,
        "rows": experiment.train_index.num_rows,
        "devices": f"{jax.device_count()} {device.device_kind}",
        "precision": str(experiment.pretrainer().model.dtype),
        **beside,
        "flops_per_step": stage.flops_per_step,
        "versions": _versions(libraries),
        "figures": figures,
    }


def _stage(config: RunConfig, report: Callable[[str], None]) -> Stage:
    whole = dataclasses.replace(config.data, buckets=None)
    config = dataclasses.replace(config, phases={}, data=whole)
    return open_stages(config, report, None)[0]


def _versions(libraries: Sequence[str]) -> dict[str, str]:
    installed = {name: importlib.metadata.version(name) for name in libraries}
    return {"python": platform.python_version(), **installed}


def table(result: dict[str, Any]) -> str:
    """Returns what was measured, for people to read."""
    versions = ", ".join(f"{k} {v}" for k, v in result["versions"].items())
    where = "one core, by CPU time"
    if "devices" in result:
        where = f"{result['devices']}, {result['precision']}, medians"
    lines = [
        f"{result['corpus']}: {result['rows']:,} rows, {result['form']}, "
        f"{result['batch_size']} x {result['length']} a batch",
        f"{where}; {versions}",
        *([f"hf: {result['hf']}"] if "hf" in result else []),
        "",
    ]
    for name, value in result["figures"].items():
        ending, factor, unit = next(u for u in _UNITS if name.endswith(u[0]))
        label = name.removesuffix(ending).rstrip("_").replace("_", " ") or "ours"
        shown = value * factor
        digits = 0 if shown >= 1000 else 2 if shown >= 1 else 4
        lines.append(f"{label:32} {shown:12,.{digits}f} {unit}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parses flags and prints."""
    parser = Parser(
        command="benchmark",
        description="Measures the speed of a run. By default its training step: "
        "tokens/s, the share of what the devices could do, memory, compile time. With "
        "--data, how fast the host prepares text, makes batches and corrupts them, on "
        "one core, by CPU time.",
        examples=(
            "python -m encoderjax.benchmark --config=configs/bert_tiny.py --against=hf",
            "python -m encoderjax.benchmark --config=configs/bert_tiny.py "
            "--against=compute.remat=blocks,data.batch_size=64",
            "python -m encoderjax.benchmark --data --config=configs/bert_base.py:tiny",
            "python -m encoderjax.benchmark --data --config=configs/roberta_base.py "
            "--config.data.corpus=corpora/books --source='books/*.txt' --against=hf",
        ),
    )
    add_config_flag(parser)
    parser.add_argument(
        "--data", action="store_true", help="measure the host: text to batches"
    )
    parser.add_argument(
        "--turns", type=int, default=10, help="steps that are timed (default: 10)"
    )
    parser.add_argument(
        "--source",
        help="with --data: text to tokenise, as in prepare (default: the corpus' own)",
    )
    parser.add_argument(
        "--sample_mb",
        type=float,
        default=4.0,
        help="with --data: megabytes of it (default: 4)",
    )
    parser.add_argument(
        "--all_selectors",
        action="store_true",
        help="with --data: measure every selector of the masked LM",
    )
    parser.add_argument(
        "--against",
        help="hf: measure PyTorch and Hugging Face's libraries at the same work beside "
        "it; FIELD=VALUE[,FIELD=VALUE]: the same recipe with these settings",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    flags, rest = parser.parse_known_args(arguments)
    overrides = overrides_of(parser, rest)
    config = load_config(flags.config, overrides)
    against_hf = flags.against == "hf"
    report = (lambda text: None) if flags.json else print
    if flags.data:
        if flags.against and not against_hf:
            raise UserError(f"--against={flags.against}: with --data it can be hf only")
        result = run_data(
            config,
            source=flags.source,
            sample_mb=flags.sample_mb,
            all_selectors=flags.all_selectors,
            against_hf=against_hf,
            report=report,
        )
    else:
        other = None
        if flags.against and not against_hf:
            changes = _changes(flags.against)
            other = load_config(flags.config, overrides | changes)
        result = run_step(
            config,
            other=other,
            turns=flags.turns,
            against_hf=against_hf,
            report=report,
        )
    print(json.dumps(result) if flags.json else table(result))


def _changes(text: str) -> dict[str, Override]:
    """Returns the overrides of `FIELD=VALUE,FIELD=VALUE`."""
    changes = {}
    for item in text.split(","):
        name, equals, value = item.partition("=")
        if not equals:
            raise UserError(
                f"--against={text}: {item!r} is not FIELD=VALUE; give hf, or settings "
                "such as compute.remat=blocks"
            )
        changes[name] = Override(value)
    return changes


if __name__ == "__main__":
    run_command(main)
