"""What figures were measured with: versions, the kind of machine, and how long."""

import importlib.metadata
import itertools
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from encoderjax.training.metrics import read_metrics
from encoderjax.version import VERSION

_CPU = Path("/proc/cpuinfo")


def versions(libraries: Sequence[str]) -> dict[str, str]:
    """Returns the versions of Python and of some libraries."""
    installed = {name: importlib.metadata.version(name) for name in libraries}
    return {"python": platform.python_version(), **installed}


def made_with(libraries: Sequence[str] = ("jax", "jaxlib", "numpy")) -> dict[str, str]:
    """Returns the versions that a result belongs to, this project's first."""
    return {"encoderjax": VERSION, **versions(libraries)}


def machine() -> str:
    """Returns the kind of the devices, such as `2 cores, AMD EPYC 7B13`."""
    device = jax.devices()[0]
    if device.platform != "cpu":
        return f"{jax.device_count()} x {device.device_kind}"
    cores = _cores()
    return f"{cores} core{'s' * (cores > 1)}, {_processor()}"


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _processor() -> str:
    lines = _CPU.read_text().splitlines() if _CPU.is_file() else ()
    names = [line.partition(":")[2] for line in lines if line.startswith("model name")]
    return names[0].strip() if names else platform.machine()


def said(made: dict[str, str]) -> str:
    """Returns versions in a line."""
    return ", ".join(f"{name} {version}" for name, version in made.items())


def made_here() -> dict[str, Any]:
    """Returns the versions and the machine of this process, to be kept with a result.

    Whoever makes a table of several results may run elsewhere.
    """
    return {"versions": made_with(), "machine": machine()}


def kinds_of(results: Iterable[Mapping[str, Any]]) -> list[str]:
    """Returns the machines and versions that some results keep, each kind once.

    Results from before they were kept have none.
    """
    return sorted({_kind_of(result) for result in results})


def _kind_of(result: Mapping[str, Any]) -> str:
    if "machine" not in result:
        return "an unknown machine"
    return f"{result['machine']}; {said(result['versions'])}"


def seconds_of(workdir: Path) -> float:
    """Returns how long the steps of a run took, by the clock of its metrics; 0 = none.

    That clock begins anew in each phase, and where a stopped run goes on.
    """
    lines = read_metrics(workdir, "train")
    ends = (now for now, after in itertools.pairwise(lines) if _begins_anew(now, after))
    return sum(line["seconds"] for line in (*ends, *lines[-1:]))


def _begins_anew(now: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Says whether the clock was set to 0 between two lines of metrics.

    The first line after that has no speed, since its steps were compiled.
    """
    unknown = [line.get("tokens_per_second") is None for line in (now, after)]
    return after["seconds"] < now["seconds"] or unknown == [False, True]
