"""How a model is computed, which changes its speed and memory and not its meaning.

Which attention each call can have is said here, once: training asks before it begins,
and the model when it is traced.
"""

import dataclasses
import typing
from typing import Any, Literal

import jax
import jax.numpy as jnp

from encoderjax.errors import UserError
from encoderjax.models.config import EncoderConfig

Kernel = Literal["auto", "xla", "splash", "cudnn"]
Remat = Literal["none", "dots", "blocks"]

_PLATFORMS = {"splash": "tpu", "cudnn": "gpu"}
# A loop over a few blocks costs more than it saves. On a CPU it copies what it keeps:
# without it, a step of 12 blocks of 768 columns takes 12 % less time and 5 % less
# memory, and is compiled in 12 seconds instead of 7.
_UNROLLED, _UNROLLED_ON_CPU = 4, 24


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compute:
    """The kernels of a model, and what it keeps for the gradients.

    Attributes:
      attention: `xla` runs everywhere; `splash` on TPU and `cudnn` on GPU never hold
        the scores, but neither drops attention weights nor adds scores by distance.
        `auto` takes the kernel of the devices where it can be had.
      remat: what of a layer is made again for its gradients instead of kept: `none`;
        `dots`, all but its large matrix products; `blocks`, all but its input.
      unroll: up to how many layers the loop over them is written out, which makes a
        step faster and its compilation slower; None = as suits the devices.
    """

    attention: Kernel = "auto"
    remat: Remat = "none"
    unroll: int | None = None

    def __post_init__(self):
        for name, values in (("attention", Kernel), ("remat", Remat)):
            if getattr(self, name) not in typing.get_args(values):
                raise UserError(
                    f"compute.{name}={getattr(self, name)!r} must be one of "
                    f"{typing.get_args(values)}"
                )
        if self.unroll is not None and self.unroll < 0:
            raise UserError(
                f"compute.unroll={self.unroll} must be at least 0, which unrolls none"
            )

    @property
    def unrolled_blocks(self) -> int:
        """Up to how many blocks the loop over them is written out."""
        if self.remat != "none":  # the compiler would merge what is made twice
            return 0
        return _UNROLLED if self.unroll is None else self.unroll

    def check(self, config: EncoderConfig, where: str = "model") -> None:
        """Refuses a kernel that was asked for and cannot train this encoder."""
        if self.attention in ("auto", "xla"):
            return
        kernel = f"compute.attention={self.attention!r}"
        if config.positions not in ("learned", "rope"):
            raise UserError(
                f"{kernel} adds no scores by distance, which {where}.positions="
                f"{config.positions!r} needs; choose 'auto' or 'xla'"
            )
        if config.attention_dropout_rate:
            raise UserError(
                f"{kernel} drops no attention weights, but {where}."
                f"attention_dropout_rate={config.attention_dropout_rate}; set that to "
                "0, or choose 'auto' or 'xla'"
            )

    def on(self, platform: str, dtype: Any) -> "Compute":
        """Returns itself with `auto` settled for devices of a platform.

        What remains is used wherever it `applies`. Other devices are refused.
        """
        half = jnp.dtype(dtype).itemsize == 2
        if self.unroll is None and platform == "cpu":
            return dataclasses.replace(self, unroll=_UNROLLED_ON_CPU).on(
                platform, dtype
            )
        if self.attention == "auto":
            kernels: dict[str, Kernel] = {"tpu": "splash"}
            if half:
                kernels["gpu"] = "cudnn"
            return dataclasses.replace(self, attention=kernels.get(platform, "xla"))
        kernel = f"compute.attention={self.attention!r}"
        if self.attention in _PLATFORMS and platform != _PLATFORMS[self.attention]:
            raise UserError(
                f"{kernel} runs on a {_PLATFORMS[self.attention].upper()}, but the "
                f"devices are of the kind {platform!r}; choose 'auto' or 'xla'"
            )
        if self.attention == "cudnn" and not half:
            raise UserError(
                f"{kernel} computes in 16 bits, not in {jnp.dtype(dtype)}; set "
                "precision='bfloat16', or choose 'auto' or 'xla'"
            )
        return self


PLAIN = Compute(attention="xla")


def compute_dtype(precision: str, platform: str | None = None) -> Any:
    """Returns the dtype of the arithmetic on devices of a platform, or of this one."""
    if precision == "auto":
        on_cpu = (platform or jax.default_backend()) == "cpu"
        precision = "float32" if on_cpu else "bfloat16"
    return jnp.dtype(precision)
