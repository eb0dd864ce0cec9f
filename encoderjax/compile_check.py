"""Compiles the training step of a recipe for a TPU pod, on a machine that has none.

python -m encoderjax.compile_check --config=configs/bert_large.py --topology=v5e:16x16
"""

import os

if __name__ == "__main__":  # before jax is imported; devices here are not used
    os.environ["JAX_PLATFORMS"] = "cpu"

import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

import jax

from encoderjax.command import Parser, run_command
from encoderjax.compiling import Builder, Compiled
from encoderjax.config import RunConfig
from encoderjax.config_loading import add_config_flag, parse_with_config
from encoderjax.errors import UserError
from encoderjax.estimate import by_formula
from encoderjax.outline import outline_stages
from encoderjax.phases import Stage
from encoderjax.pod import Pod
from encoderjax.suggestions import Fitting, largest_stages, program_key, spelled
from encoderjax.training.mesh import batch_shards
from encoderjax.training.topology import KNOWN

Report = Callable[[str], None]


def run(
    config: RunConfig,
    topology: str,
    *,
    utilization: float = 0.4,
    teacher: str | None = None,
    suggest: bool = True,
    quick: bool = False,
    report: Report = print,
) -> dict[str, Any]:
    """Compiles every phase of a run for a pod.

    Args:
      config: of the run.
      topology: such as `v5e:16x16`.
      utilization: the share of the chips' peak at which times are given.
      teacher: FAMILY:SIZE, in place of a folder that is not here.
      suggest: whether to look for settings that fit where these do not.
      quick: whether to compile with little optimisation.
      report: takes a line for what had to be assumed.

    Returns what was found: the pod, and for each phase its size, memory, collectives
    and times; `suggestion` has fields of the config that do fit.
    """
    if not 0 < utilization <= 1:
        raise UserError(f"--utilization={utilization} must be above 0 and at most 1")
    pod = Pod.of(topology, quick=quick)
    stages = outline_stages(config, teacher=teacher, report=report)
    builder = pod.builder(stages)
    found = {key: pod.step(builder, stage) for key, stage in largest_stages(stages)}
    phases = [
        _size(stage, builder)
        | _program(found[program_key(stage)], pod)
        | {"formula_bytes": by_formula(builder, stage, pod.available).total}
        | _times(stage, builder, utilization * pod.peak)
        for stage in stages
    ]
    result = {
        "topology": topology,
        "by_formula": not pod.devices,
        "quick": quick,
        "chips": pod.chips,
        "device": pod.device,
        "available_bytes": pod.available,
        "utilization": utilization,
        "mesh": dict(builder.mesh.shape),
        "attention": config.compute.attention,
        "remat": config.compute.remat,
        "parameters": sum(x.size for x in jax.tree.leaves(builder.shapes.params)),
        "fits": all(phase["fits"] for phase in phases),
        "hours": sum(phase["hours"] for phase in phases),
        "phases": phases,
    }
    if not result["fits"] and suggest:
        result["suggestion"] = Fitting(config, pod, teacher, report).suggestion()
    return result


def _size(stage: Stage, builder: Builder) -> dict[str, Any]:
    """Returns what a phase asks for."""
    rows, config = stage.experiment.batch_size, stage.experiment.config
    filled = builder.rows(stage)
    return {
        "name": stage.phase.name,
        "steps": stage.phase.last - stage.phase.first,
        "rows": rows,
        "empty_rows": filled - rows,
        "length": config.data.length,
        "tokens_per_step": rows * config.data.length,
        "rows_per_device": filled // batch_shards(builder.mesh),
        "microbatches": config.optimizer.microbatches,
    }


def _program(found: Compiled, pod: Pod) -> dict[str, Any]:
    """Returns what its program takes."""
    exchanged = sum(collective.bytes for collective in found.collectives)
    return {
        "fits": found.fits,
        "bytes": found.total,
        "memory": dict(found.memory),
        "collectives": _by_kind(found),
        # A sum passes twice: to whoever adds, and back.
        "exchange_seconds": 2 * exchanged / pod.link,
        "activation_gathers": [
            {"array": str(c.arrays[0]), "count": c.times, "source": c.source}
            for c in found.gathered
        ],
        "global_buffers": dict(found.whole),
        "compile_seconds": round(found.seconds, 1),
    }


def _times(stage: Stage, builder: Builder, speed: float) -> dict[str, float]:
    """Returns its arithmetic, and how long it takes at a speed.

    Rows that fill a batch up take their time, but are nothing that was asked for.
    """
    filled = builder.rows(stage) / stage.experiment.batch_size
    seconds = filled * stage.flops_per_step / speed
    steps = stage.phase.last - stage.phase.first
    return {
        "flops_per_step": stage.flops_per_step,
        "seconds_per_step": seconds,
        "hours": steps * seconds / 3600,
    }


def _by_kind(compiled: Compiled) -> list[dict[str, Any]]:
    """Returns the collectives of each kind and axes of the mesh, added up."""
    key = lambda c: (c.kind, "+".join(c.axes) or "devices")
    groups = itertools.groupby(sorted(compiled.collectives, key=key), key)
    return [
        {
            "kind": kind,
            "axes": axes,
            "count": sum(c.times for c in found),
            "bytes": sum(c.bytes for c in found),
        }
        for (kind, axes), group in groups
        for found in [list(group)]
    ]


# ---- for people to read ----


def table(result: dict[str, Any]) -> str:
    """Returns what was found as text."""
    mesh = " x ".join(f"{axis} {size}" for axis, size in result["mesh"].items())
    lines = [
        f"{result['topology']}: {result['chips']} chips ({result['device']}), {mesh}; "
        f"remat {result['remat']}; {result['parameters']:,} parameters",
    ]
    if result["by_formula"]:
        lines.append(
            "by formula (docs/scaling.md): nothing is compiled for this chip; links "
            "between machines are slower than those that are meant here"
        )
    for phase in result["phases"]:
        lines += ["", *_phase_lines(phase, result)]
    verdict = "fits" if result["fits"] else "does not fit"
    lines += [
        "",
        f"{verdict}; {_duration(result['hours'])} at {result['utilization']:.0%} of "
        "the published peak",
    ]
    if result.get("suggestion"):
        lines.append(f"this fits: {spelled(result['suggestion'])}")
    elif result.get("suggestion", ...) is None:
        lines.append("no setting was found that fits: take a larger topology")
    return "\n".join(lines)


def _phase_lines(phase: dict[str, Any], result: dict[str, Any]) -> list[str]:
    available = result["available_bytes"]
    parts = phase["microbatches"]
    name = f"phase {phase['name']}: " if phase["name"] else ""
    lines = [
        f"{name}{phase['rows']:,} rows of {phase['length']:,}, "
        f"{phase['tokens_per_step']:,} tokens a step, {phase['steps']:,} steps",
        _line(
            "rows a chip",
            f"{phase['rows_per_device']:g}",
            f"in {parts} microbatch{'es' if parts > 1 else ''}" + _filling(phase),
        ),
        _line(
            "HBM a chip",
            _gib(phase["bytes"]),
            f"of {_gib(available)}: {'fits' if phase['fits'] else 'DOES NOT FIT'}",
        ),
        *(_line(f"  {kind}", _gib(size)) for kind, size in phase["memory"].items()),
    ]
    for found in phase["collectives"]:
        what = f"{found['count']:,} times, over {found['axes']}"
        lines.append(_line(found["kind"], _gib(found["bytes"]), what))
    if phase["fits"] and not result["by_formula"]:
        gathers = [g["array"] for g in phase["activation_gathers"]]
        lines.append(_line("gathers of states", ", ".join(gathers) or "none"))
        lines.append(
            _line("global buffers", ", ".join(phase["global_buffers"]) or "none")
        )
    if phase["exchange_seconds"]:
        least = f"{phase['exchange_seconds']:.3g} s"
        lines.append(_line("exchange", least, "a step at the links' published speed"))
    step = f"{phase['seconds_per_step']:.3g} s a step, {_duration(phase['hours'])}"
    lines.append(_line("model FLOPs a step", f"{phase['flops_per_step']:.3g}", step))
    if not result["by_formula"]:
        lines.append(_line("compiled in", f"{phase['compile_seconds']} s"))
    return lines


def _filling(phase: dict[str, Any]) -> str:
    empty = phase["empty_rows"]
    return f"; {empty:,} of {phase['rows'] + empty:,} only fill up" if empty else ""


def _line(label: str, value: str, note: str = "") -> str:
    return f"  {label:20} {value:>12}  {note}".rstrip()


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**27 else f"{size / 2**20:.1f} MiB"


def _duration(hours: float) -> str:
    return f"{hours:.1f} hours" if hours < 72 else f"{hours / 24:.1f} days"


def main(arguments: Sequence[str] | None = None) -> None:
    """Parses flags, compiles and prints; fails where the run does not fit."""
    parser = Parser(
        command="compile_check",
        description="Compiles the training step of every phase of a recipe for a TPU "
        "pod, on a machine that has none: whether it fits, the memory of a chip by "
        "kind, what chips exchange, and how long the run would take. Needs no corpus. "
        "Ends with code 1 where it does not fit, and says what would.",
        examples=(
            "python -m encoderjax.compile_check --config=configs/bert_large.py "
            "--topology=v5e:16x16",
            "python -m encoderjax.compile_check --config=configs/bert_base.py "
            "--topology=v6e:2x2 --config.optimizer.microbatches=2 --json",
        ),
    )
    add_config_flag(parser)
    parser.add_argument(
        "--topology",
        required=True,
        help=f"the pod, such as {KNOWN}; or a100:64, h100:64, for which nothing is "
        "compiled: by formula, as if NVLink joined all",
    )
    parser.add_argument(
        "--utilization",
        type=float,
        default=0.4,
        help="share of the chips' published peak that times are given for "
        "(default: 0.4)",
    )
    parser.add_argument(
        "--teacher",
        metavar="FAMILY:SIZE",
        help="of distillation, where its folder is not here: bert:base",
    )
    parser.add_argument(
        "--no_suggestion",
        action="store_true",
        help="do not look for settings that fit",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="compile with less optimisation, which takes less time",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    flags, config = parse_with_config(parser, arguments)
    result = run(
        config,
        flags.topology,
        utilization=flags.utilization,
        teacher=flags.teacher,
        suggest=not flags.no_suggestion,
        quick=flags.quick,
        report=(lambda line: None) if flags.json else print,
    )
    print(json.dumps(result) if flags.json else table(result))
    if not result["fits"]:
        raise SystemExit(1)


if __name__ == "__main__":
    run_command(main)
