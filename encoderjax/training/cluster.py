"""Where a process stands among those that train one model, as the environment says.

  JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES, JAX_PROCESS_ID   explicit: all three
  SLURM_*                        of a step with several tasks, as srun sets them
  TPU_WORKER_HOSTNAMES, ...      a slice of several hosts on GKE, found by jax
  the metadata of a TPU VM       a pod slice on Google Cloud, found by jax

The first of these that is there holds. JAX_NUM_PROCESSES=1 is one process alone,
whatever else is there.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from encoderjax.errors import UserError

Environment = Mapping[str, str]

_EXPLICIT = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
_ALONE = "for one process alone set JAX_NUM_PROCESSES=1"
# Of Slurm's ports for the coordinator: those at the end, one for each job.
_LAST_PORT, _PORTS = 65_535, 2**12


def place_in(environment: Environment, *, has_tpu: bool) -> dict[str, Any] | None:
    """Returns the arguments of jax.distributed.initialize; None for one alone.

    They are empty where jax finds everything out by itself.

    Args:
      environment: the variables of the process.
      has_tpu: whether there are TPUs on this machine, which it may use.
    """
    if environment.get("JAX_NUM_PROCESSES") == "1":
        return None
    if any(name in environment for name in _EXPLICIT):
        return _explicit(environment)
    if _number(environment, "SLURM_NTASKS", 1) > 1:
        return _of_slurm(environment)
    return {} if has_tpu and _may_be_many(environment) else None


def tpu_is_here(environment: Environment) -> bool:
    """Says whether there are TPUs on this machine, and jax may use them."""
    platforms = environment.get("JAX_PLATFORMS", "")
    allowed = not platforms or "tpu" in platforms.split(",")
    devices = (*Path("/dev").glob("accel*"), *Path("/dev/vfio").glob("[0-9]*"))
    return allowed and bool(devices)


def _explicit(environment: Environment) -> dict[str, Any]:
    missing = [name for name in _EXPLICIT if not environment.get(name)]
    if missing:
        given = next(name for name in _EXPLICIT if name in environment)
        raise UserError(
            f"{given}={environment[given]} is set, but not {' and '.join(missing)}: "
            f"several processes need all of {', '.join(_EXPLICIT)}; {_ALONE}"
        )
    address, count, number = (environment[name] for name in _EXPLICIT)
    if not re.fullmatch(r"\S+:\d+", address):
        raise UserError(
            f"JAX_COORDINATOR_ADDRESS={address} must be HOST:PORT, a free port of the "
            "machine of process 0"
        )
    count = _number(environment, "JAX_NUM_PROCESSES")
    number = _number(environment, "JAX_PROCESS_ID")
    if not 0 <= number < count:
        raise UserError(
            f"JAX_PROCESS_ID={number} must be from 0 to {count - 1}, since "
            f"JAX_NUM_PROCESSES={count}; give every process its own"
        )
    return _arguments(address, count, number)


def _of_slurm(environment: Environment) -> dict[str, Any]:
    """Returns the place of a task of a Slurm step.

    jax would give each process one GPU. Here a process that has a node for itself has
    all of its GPUs, and one that Slurm has given its own GPUs has those.
    """
    nodes = environment.get("SLURM_STEP_NODELIST")
    tasks = _number(environment, "SLURM_NTASKS")
    if nodes is None:
        raise UserError(
            f"SLURM_NTASKS={tasks}, but this process is no task of a step; start it "
            f"with srun (see launch/slurm.sbatch); {_ALONE}"
        )
    # node01, node01,node02, node[01-04,07],other
    first = re.match(r"([^,\[]+)(?:\[([^,\-\]]+))?", nodes)
    if first is None:
        raise UserError(f"SLURM_STEP_NODELIST={nodes} names no node; {_ALONE}")
    host = first[1] + (first[2] or "")
    job = _number(environment, "SLURM_JOB_ID")
    port = environment.get(
        "JAX_COORDINATOR_PORT", _LAST_PORT - _PORTS + 1 + job % _PORTS
    )
    devices = None
    seen = environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if tasks > _number(environment, "SLURM_STEP_NUM_NODES", 1) and len(seen) > 1:
        devices = (_number(environment, "SLURM_LOCALID"),)
    number = _number(environment, "SLURM_PROCID")
    return _arguments(f"{host}:{port}", tasks, number, devices)


def _arguments(
    address: str, count: int, number: int, devices: tuple[int, ...] | None = None
) -> dict[str, Any]:
    return {
        "coordinator_address": address,
        "num_processes": count,
        "process_id": number,
        "local_device_ids": devices,
        "cluster_detection_method": "deactivate",  # nothing is left to find out
    }


def _may_be_many(environment: Environment) -> bool:
    """Says whether a machine with TPUs may be one of several.

    Where the variables do not tell (on Google Cloud's TPU VMs), jax asks for it.
    """
    hosts = environment.get("TPU_PROCESS_ADDRESSES") or environment.get(
        "TPU_WORKER_HOSTNAMES"
    )
    if hosts is None:
        return "TPU_SKIP_MDS_QUERY" not in environment
    slices = _number(environment, "MEGASCALE_NUM_SLICES", 1)
    return len(hosts.split(",")) * slices > 1


def _number(environment: Environment, name: str, default: int | None = None) -> int:
    text = environment.get(name, "" if default is None else str(default))
    if not re.fullmatch(r"\d+", text):
        raise UserError(f"{name}={text} must be a whole number; {_ALONE}")
    return int(text)
