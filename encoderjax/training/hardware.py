"""What the devices could do at best, to say which share of it a run reaches."""

import time

import jax
import jax.numpy as jnp

# Published dense bfloat16 peaks, FLOP/s of one device, by a part of `device_kind`.
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
    "H100": 989e12,
    "H200": 989e12,
    "B200": 2250e12,
    "V100": 125e12,
    "L4": 121e12,
    "T4": 65e12,
}


# GPUs that a run can be estimated for: how their kind is called, and their memory.
GPUS = {"a100": ("NVIDIA A100", 80 * 2**30), "h100": ("NVIDIA H100", 80 * 2**30)}

# Published bytes/s that a device can send to others of its pod or machine.
_LINKS = {
    "TPU v4": 300e9,
    "TPU v5 lite": 200e9,
    "TPU v5": 600e9,
    "TPU v6 lite": 448e9,
    "TPU7x": 1200e9,
    "A100": 600e9,
    "H100": 900e9,
}


def published_link(device_kind: str) -> float | None:
    """Returns the bytes/s that a device of a kind can send, or None where unknown."""
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
    return None if peak is None else peak * jax.device_count()


def published_peak(device_kind: str) -> float | None:
    """Returns the FLOP/s of one device of a kind, or None where unknown."""
    return next((peak for kind, peak in _PEAKS.items() if kind in device_kind), None)


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
