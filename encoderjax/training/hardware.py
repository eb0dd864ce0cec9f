"""What the devices could do at best, to say which share of it a run reaches."""

import re
import time

import jax
import jax.numpy as jnp

# Published dense bfloat16 peaks, FLOP/s of one chip, by a part of `device_kind`, of
# which the first counts: those of docs.cloud.google.com/tpu/docs, and of NVIDIA's data
# sheets, where sparse products stand first and are twice as fast; float16 for V100 and
# T4, which have no bfloat16. H100 PCIe, NVL and L40 cards were not checked there.
_PEAKS = {
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5p": 459e12,
    "TPU v5": 459e12,
    "TPU v6 lite": 918e12,
    "TPU v6e": 918e12,
    "TPU7x": 2307e12,
    "A100": 312e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "H200 NVL": 835e12,
    "H200": 989e12,
    "B200": 2250e12,
    "V100": 125e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
    "T4": 65e12,
}


# GPUs that a run can be estimated for: how their kind is called, and the memory that
# jax takes of the 80 GiB unless it is told otherwise (XLA_PYTHON_CLIENT_MEM_FRACTION).
GPUS = {"a100": ("NVIDIA A100", 60 * 2**30), "h100": ("NVIDIA H100", 60 * 2**30)}

# Bytes/s that a chip can send over all of its links together, one way. What is
# published counts both ways: 400 GB/s for v5e, 1,200 for v5p and TPU7x, 800 for v6e,
# 600 for A100 (NVLink 3) and 900 for H100 (NVLink 4). Google's all-reduce bandwidth of
# a pod is the number here times its chips (51.2 TB/s for 256 v5e, 1.1 PB/s for 4,096
# v4). NVLink ends at the machine, usually of eight GPUs: its network is slower.
_LINKS = {
    "TPU v4": 270e9,
    "TPU v5 lite": 200e9,
    "TPU v5": 600e9,
    "TPU v6 lite": 400e9,
    "TPU7x": 600e9,
    "A100": 300e9,
    "H100": 450e9,
}


def published_link(device_kind: str) -> float | None:
    """Returns the bytes/s that a chip of a kind can send, or None where unknown."""
    return next((speed for kind, speed in _LINKS.items() if kind in device_kind), None)


def peak_flops() -> float | None:
    """Returns the FLOP/s of all devices together, or None where unknown.

    Accelerators have a published peak. A CPU is measured with a matrix product; its
    devices share the same cores, so they count once.
    """
    device = jax.devices()[0]
    if device.platform == "cpu":
        return _measured_peak() * jax.process_count()
    peak = published_peak(device.device_kind)
    return None if peak is None else peak * _chips()


def _chips() -> int:
    """Returns how many chips there are: each half of a TPU7x is a device."""
    place = lambda device: (
        getattr(device, "slice_index", 0),
        tuple(getattr(device, "coords", (device.id,))),
    )
    return len(set(map(place, jax.devices())))


def published_peak(device_kind: str) -> float | None:
    """Returns the FLOP/s of one chip of a kind, or None where unknown."""
    # To the end of a word: an RTX A1000 is no A100.
    found = (p for kind, p in _PEAKS.items() if re.search(rf"{kind}\b", device_kind))
    return next(found, None)


def _measured_peak(size: int = 1024, repeats: int = 6) -> float:
    device = jax.local_devices()[0]
    with jax.default_device(device):
        product = jax.jit(lambda a, b: a @ b)
        a = jnp.ones((size, size), jnp.float32)
        product(a, a).block_until_ready()
        seconds = []
        for _ in range(repeats):
            start = time.perf_counter()
            product(a, a).block_until_ready()
            seconds.append(time.perf_counter() - start)
    return 2.0 * size**3 / min(seconds)
