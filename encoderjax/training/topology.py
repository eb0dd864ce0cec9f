"""Devices that are not there, for programs that are only compiled."""

import importlib.util
import itertools
import math
import os
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from encoderjax.command import enlarge_stacks_of_libtpu
from encoderjax.errors import UserError

KNOWN = "v5e:2x2, v5e:4x4, v5e:16x16, v6e:16x16, v4:4x4x4, v5p:4x4x4, tpu7x:4x4x4"
_ADVICE = (
    "write a kind of chip and how many there are along each axis, such as "
    f"{KNOWN}; of GPUs a100:64 or h100:64"
)
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

# libtpu looks for the machine it runs on, unless it is told that there is none; and
# since none is used, others may look as well.
_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


# A VM has one device for both cores of a chip of this kind; libtpu would make two.
_TOGETHER = {"v4": {"chip_config_name": "megacore"}}
# Chips along each axis of the largest pod. For more of v5e libtpu ends with a signal.
_LARGEST = {"v5e": (16, 16), "v6e": (16, 16)}


def topology_devices(name: str) -> list[Any]:
    """Returns the devices of a TPU pod such as `v5e:16x16`."""
    kind = _checked_kind(name)
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(
            "compiling for a TPU needs its compiler, libtpu: pip install "
            "'encoderjax[aot]'"
        )
    for variable, value in _ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    enlarge_stacks_of_libtpu()
    try:
        pod = topologies.get_topology_desc(
            platform="tpu", topology_name=name, **_TOGETHER.get(kind, {})
        )
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).partition(":")[2].strip().splitlines()[0]
        raise UserError(f"--topology={name}: {reason}; {_ADVICE}") from error
    return list(pod.devices)


def _checked_kind(name: str) -> str:
    """Returns the kind of chip; refuses what is no pod, or more than there are."""
    found = re.fullmatch(r"(\w+):(\d+(?:x\d+)*)", name)
    if found is None:
        raise UserError(f"--topology={name}: it is not KIND:CHIPS; {_ADVICE}")
    kind = found[1]
    sizes = [int(size) for size in found[2].split("x")]
    largest = _LARGEST.get(kind, ())
    most = itertools.zip_longest(sizes, largest, fillvalue=1)
    if largest and any(size > there for size, there in most):
        raise UserError(
            f"--topology={name}: a pod of {kind} has at most "
            f"{'x'.join(map(str, largest))} chips; choose a smaller one"
        )
    return kind


def chips_of(name: str) -> int:
    """Returns how many chips a topology has; some have two devices each."""
    return math.prod(int(n) for n in name.rpartition(":")[2].split("x"))


def available_memory(device: Any) -> int:
    """Returns the bytes of a device that programs may use, as its compiler has it."""
    sharding = NamedSharding(Mesh(np.array([device]), ("all",)), PartitionSpec())
    too_much = jax.ShapeDtypeStruct((2**18, 2**20), jnp.float32)  # a terabyte
    program = jax.jit(lambda x: x + 1, in_shardings=sharding, out_shardings=sharding)
    try:
        program.lower(too_much).compile()
    except jax.errors.JaxRuntimeError as error:
        return exceeded(error)[1]
    raise ValueError(f"{device.device_kind} is said to have room for 2 terabytes")


def exceeded(error: Exception) -> tuple[int, int]:
    """Returns the bytes that a program needs and those that there are.

    Any other error than that of too little memory is raised again.
    """
    text = str(error)
    found = re.findall(r"([\d.]+)([KMGT])\b", text)
    if "RESOURCE_EXHAUSTED" not in text or len(found) < 2:
        raise error
    needed, available = (int(float(n) * _UNITS[unit]) for n, unit in found[:2])
    return needed, available
