"""AdamW as the published runs used it, with settings by parameter group."""

import dataclasses
import math
import re
from collections.abc import Hashable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from encoderjax.errors import UserError
from encoderjax.training.mesh import map_with_names
from encoderjax.training.schedules import Shape, learning_rate_schedule

PyTree = Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """How parameters are updated.

    Attributes:
      learning_rate: the peak.
      schedule: see `learning_rate_schedule`; `end_share`, `power` and `decay_steps`
        belong to some shapes.
      bias_correction: True as in PyTorch and fairseq, False as in Google's BERT, whose
        first steps are then about three times as large.
      weight_decay: decoupled, times the learning rate.
      decay_exclude: parameters whose path contains one of these are not decayed.
      clip_norm: bound of the global gradient norm (of each group); 0 = no bound.
      microbatches: parts that a batch is worked through in, to save memory.
      groups: path pattern -> fields of this class that differ for those parameters.
    """

    name: Literal["adamw"] = "adamw"
    learning_rate: float
    schedule: Shape = "linear"
    warmup_steps: int = 0
    end_share: float = 0.0
    power: float = 1.0
    decay_steps: int = 0
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-6
    bias_correction: bool = True
    weight_decay: float = 0.01
    decay_exclude: tuple[str, ...] = ("norm", "bias")
    clip_norm: float = 1.0
    microbatches: int = 1
    groups: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        at_least = {"learning_rate": 0, "warmup_steps": 0, "weight_decay": 0}
        at_least |= {"clip_norm": 0, "decay_steps": 0, "microbatches": 1}
        for name, least in at_least.items():
            if getattr(self, name) < least:
                raise UserError(
                    f"optimizer.{name}={getattr(self, name)} must be at least {least}"
                )
        if not (self.eps > 0 and math.isfinite(self.learning_rate)):
            raise UserError(
                f"optimizer.eps={self.eps} must be above 0 and optimizer.learning_rate="
                f"{self.learning_rate} finite"
            )
        if self.schedule == "wsd" and not self.decay_steps:
            raise UserError(
                "optimizer.schedule='wsd' needs optimizer.decay_steps above 0: the "
                "last steps, over which it decays"
            )
        if not 0.0 <= self.end_share <= 1.0:
            raise UserError(f"optimizer.end_share={self.end_share} must be in [0, 1]")
        for name in ("b1", "b2"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise UserError(
                    f"optimizer.{name}={getattr(self, name)} must be in [0, 1)"
                )


class AdamState(NamedTuple):
    """Moments, and the number of updates made."""

    count: jax.Array
    mu: PyTree
    nu: PyTree


def scale_by_adam(
    b1: float, b2: float, eps: float, bias_correction: bool
) -> optax.GradientTransformation:
    """Returns m / (sqrt(v) + eps), with or without correction for the zero start."""

    def init(params: PyTree) -> AdamState:
        zeros = lambda: jax.tree.map(jnp.zeros_like, params)
        return AdamState(jnp.zeros((), jnp.int32), zeros(), zeros())

    def update(updates: PyTree, state: Any, params: PyTree = None):
        del params
        count = state.count + 1
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, updates)
        nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, state.nu, updates)
        first = 1 - b1**count if bias_correction else 1.0
        second = 1 - b2**count if bias_correction else 1.0
        scaled = jax.tree.map(
            lambda m, v: (m / first) / (jnp.sqrt(v / second) + eps), mu, nu
        )
        return scaled, AdamState(count, mu, nu)

    return optax.GradientTransformation(init, update)


def make_optimizer(
    config: OptimizerConfig, steps: int
) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """Returns the optimiser, and the learning rate of the default group."""
    if not config.groups:
        return _adamw(config, steps), _schedule(config, steps)
    settings: dict[Hashable, OptimizerConfig] = {"": config}
    for pattern, changes in config.groups.items():
        settings[pattern] = dataclasses.replace(config, groups={}, **changes)

    def labels(params: PyTree) -> PyTree:
        return map_with_names(lambda name, _: _group(name, config.groups), params)

    transforms = {label: _adamw(group, steps) for label, group in settings.items()}
    return optax.partition(transforms, labels), _schedule(config, steps)


def _group(name: str, groups: Mapping[str, Any]) -> str:
    """Returns the first pattern that is found in a parameter's path, or ''."""
    return next((pattern for pattern in groups if re.search(pattern, name)), "")


def _schedule(config: OptimizerConfig, steps: int) -> optax.Schedule:
    return learning_rate_schedule(
        config.schedule,
        peak=config.learning_rate,
        steps=steps,
        warmup_steps=config.warmup_steps,
        end_share=config.end_share,
        power=config.power,
        decay_steps=config.decay_steps,
    )


def _adamw(config: OptimizerConfig, steps: int) -> optax.GradientTransformation:
    def decayed(params: PyTree) -> PyTree:
        excluded = config.decay_exclude
        return map_with_names(
            lambda name, _: not any(part in name for part in excluded), params
        )

    parts = [
        scale_by_adam(config.b1, config.b2, config.eps, config.bias_correction),
        optax.add_decayed_weights(config.weight_decay, mask=decayed),
        optax.scale_by_learning_rate(_schedule(config, steps)),
    ]
    if config.clip_norm:
        parts.insert(0, optax.clip_by_global_norm(config.clip_norm))
    return optax.chain(*parts)
