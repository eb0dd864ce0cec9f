"""What figures were measured with: versions, and the kind of machine."""

import importlib.metadata
import os
import platform
from collections.abc import Sequence
from pathlib import Path

import jax

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
