"""Measures how fast a run is; so far the host's side, with --data.

python -m encoderjax.benchmark --data --config=configs/bert_tiny.py
"""

import dataclasses
import importlib.metadata
import json
import platform
from collections.abc import Callable, Sequence
from typing import Any

from encoderjax import data_speed, hf_speed
from encoderjax.command import Parser, run_command
from encoderjax.config import RunConfig, add_config_flag, parse_with_config
from encoderjax.errors import UserError
from encoderjax.experiment import Experiment

# How figures are shown: the end of a name, the factor, and the unit.
_UNITS = (
    ("_mb_per_second", 1.0, "MB/s"),
    ("_tokens_per_second", 1e-6, "M tokens/s"),
    ("_seconds", 1e3, "ms"),
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
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in libraries},
        },
        "figures": figures,
    }


def table(result: dict[str, Any]) -> str:
    """Returns what was measured, for people to read."""
    versions = ", ".join(f"{k} {v}" for k, v in result["versions"].items())
    lines = [
        f"{result['corpus']}: {result['rows']:,} rows, {result['form']}, "
        f"{result['batch_size']} x {result['length']} a batch",
        f"one core, by CPU time; {versions}",
        "",
    ]
    for name, value in result["figures"].items():
        ending, factor, unit = next(u for u in _UNITS if name.endswith(u[0]))
        label = name.removesuffix(ending).replace("_", " ")
        lines.append(f"{label:32} {value * factor:10.2f} {unit}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parses flags and prints."""
    parser = Parser(
        command="benchmark",
        description="Measures the speed of a run: with --data, how fast the host "
        "prepares text, makes batches and corrupts them, on one core, by CPU time.",
        examples=(
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
        "--source", help="text to tokenise, as in prepare (default: the corpus' own)"
    )
    parser.add_argument(
        "--sample_mb", type=float, default=4.0, help="megabytes of it (default: 4)"
    )
    parser.add_argument(
        "--all_selectors",
        action="store_true",
        help="measure every selector of the masked LM",
    )
    parser.add_argument(
        "--against",
        choices=("hf",),
        help="measure Hugging Face's datasets and collator beside it",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    flags, config = parse_with_config(parser, arguments)
    if not flags.data:
        raise UserError("only data is measured so far; add --data")
    result = run_data(
        config,
        source=flags.source,
        sample_mb=flags.sample_mb,
        all_selectors=flags.all_selectors,
        against_hf=flags.against == "hf",
        report=(lambda text: None) if flags.json else print,
    )
    print(json.dumps(result) if flags.json else table(result))


if __name__ == "__main__":
    run_command(main)
