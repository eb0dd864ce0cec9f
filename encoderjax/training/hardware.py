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


def peak_flops() -> float | None:
    """Returns the FLOP/s of all devices together, or None where unknown.

    Accelerators have a published peak. A CPU is measured with a matrix product; its
    devices share the same cores, so they count once.
    """
    device = jax.devices()[0]
    if device.platform == "cpu":
        return _measured_peak() * jax.process_count()
    for kind, peak in _PEAKS.items():
        if kind in device.device_kind:
            return peak * jax.device_count()
    return None


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
