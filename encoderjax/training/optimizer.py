"""The optimisers of the published runs, with settings by parameter group."""

import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from encoderjax.command import did_you_mean
from encoderjax.errors import UserError
from encoderjax.training.adam import scale_by_adam
from encoderjax.training.lamb import scale_by_trust_ratio
from encoderjax.training.layerwise import scale_by_depth
from encoderjax.training.mesh import map_with_names
from encoderjax.training.schedules import Shape, learning_rate_schedule
from encoderjax.training.stable_adamw import scale_by_stable_adam

PyTree = Any
_SPARED = ("norm", "bias")
_WITHOUT_POWER = ("wsd", "inverse_sqrt", "constant")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """How parameters are updated.

    What was published, where it differs from the defaults:

      Google's Adam (BERT, ELECTRA, XLNet)  bias_correction=False
      fairseq's (RoBERTa)                   decay_exclude=(), clip_norm=0
      Composer's (MosaicBERT)               decoupled_decay=True, decay_exclude=()
      ALBERT's LAMB                         name="lamb", bias_correction=False
      NVIDIA's LAMB                         name="lamb", trust_ratio="decayed"
      ModernBERT's                          name="stable_adamw", decoupled_decay=True,
                                            clip_norm=0

    Attributes:
      name: `adamw`; `lamb`, whose steps are as long as the weights of a tensor are
        large; `stable_adamw`, which shortens the step of a tensor whose gradient is
        large beside its running square.
      learning_rate: the peak.
      schedule: see `learning_rate_schedule`; `end_share`, `power` and `decay_steps`
        belong to some shapes, and are refused with others.
      layer_decay: the update of a layer is that of the one above times this; the last
        layer comes below the heads, embeddings come lowest; 1 = all alike.
      bias_correction: True as in PyTorch and fairseq, False as in Google's BERT, whose
        first steps are then about three times as large.
      weight_decay: of the weights, times the learning rate.
      decoupled_decay: times the learning rate's share of its peak instead, so that
        `weight_decay` is what the weights lose in a step at the peak: 1e-5, not 0.01.
      decay_exclude: parameters whose path contains one of these are not decayed.
      trust_ratio: which parameters LAMB scales: those not in `decay_exclude` (ALBERT),
        those that are decayed (NVIDIA: none where weight_decay is 0) or all
        (`use_nvlamb`).
      clip_norm: bound of the global gradient norm (of each group); 0 = no bound.
      microbatches: parts that a batch is worked through in, to save memory.
      groups: path pattern -> fields of this class that differ for those parameters.
    """

    name: Literal["adamw", "lamb", "stable_adamw"] = "adamw"
    learning_rate: float
    schedule: Shape = "linear"
    warmup_steps: int = 0
    end_share: float = 0.0
    power: float = 1.0
    decay_steps: int = 0
    layer_decay: float = 1.0
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-6
    bias_correction: bool = True
    weight_decay: float = 0.01
    decoupled_decay: bool = False
    decay_exclude: tuple[str, ...] = _SPARED
    trust_ratio: Literal["not_excluded", "decayed", "all"] = "not_excluded"
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
        if not (self.power > 0 and math.isfinite(self.power)):
            raise UserError(
                f"optimizer.power={self.power} must be above 0 and finite; 1 falls in "
                "a line"
            )
        if self.power != 1.0 and self.schedule in _WITHOUT_POWER:
            raise UserError(
                f"optimizer.power={self.power} is not read by optimizer.schedule="
                f"{self.schedule!r}; set it to 1"
            )
        if not 0.0 < self.layer_decay <= 1.0:
            raise UserError(
                f"optimizer.layer_decay={self.layer_decay} must be in (0, 1]; 1 trains "
                "all layers alike"
            )
        if self.name == "lamb" and self.decoupled_decay:
            raise UserError(
                "optimizer.decoupled_decay=True does not go with optimizer.name="
                "'lamb', whose ratio is of the update with its decay; set it to False"
            )
        if self.schedule == "wsd" and not self.decay_steps:
            raise UserError(
                "optimizer.schedule='wsd' needs optimizer.decay_steps above 0: the "
                "last steps, over which it decays"
            )
        if not 0.0 <= self.end_share <= 1.0:
            raise UserError(f"optimizer.end_share={self.end_share} must be in [0, 1]")
        if self.end_share and self.schedule == "constant":
            raise UserError(
                f"optimizer.end_share={self.end_share} is not read by "
                "optimizer.schedule='constant', which stays at the peak; set it to 0"
            )
        for name in ("b1", "b2"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise UserError(
                    f"optimizer.{name}={getattr(self, name)} must be in [0, 1)"
                )


def make_optimizer(
    config: OptimizerConfig, steps: int, first: int = 0
) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """Returns the optimiser, and the learning rate of the default group.

    Args:
      config: its settings.
      steps: over which the learning rate runs.
      first: the step of the run at which it begins. Optimisers that differ in this or
        in numbers only keep the same state: one may go on with what another left.
    """
    settings = group_settings(config)
    group_of = lambda name: _group(name, config.groups)

    if config.groups:
        labels = lambda params: map_with_names(lambda name, _: group_of(name), params)
        transforms = {
            label: _transform(group, steps, first) for label, group in settings.items()
        }
        optimizer = optax.partition(transforms, labels)
    else:
        optimizer = _transform(config, steps, first)
    # Of all groups at once: how deep a parameter lies is seen in the whole tree.
    depth = scale_by_depth(lambda name: settings[group_of(name)].layer_decay)
    by_layer = any(group.layer_decay != 1.0 for group in settings.values())

    def init(params: PyTree):
        check_found(config, _names(params))
        return optimizer.init(params)

    def update(updates: PyTree, state: Any, params: PyTree = None):
        updates, state = optimizer.update(updates, state, params)
        # No link of a chain, whose state would tell optimisers with it from others.
        if by_layer:
            updates, _ = depth.update(updates, optax.EmptyState(), params)
        return updates, state

    transformation = optax.GradientTransformation(init, update)
    return transformation, _schedule(config, steps, first)


def group_settings(config: OptimizerConfig) -> dict[Hashable, OptimizerConfig]:
    """Returns the settings of each group by its pattern; by '' those of the rest.

    What a group would ignore is refused.
    """
    settings: dict[Hashable, OptimizerConfig] = {}
    for pattern, changes in {"": {}, **config.groups}.items():
        try:
            group = dataclasses.replace(config, groups={}, **changes)
            _check_read(group)
        except UserError as error:
            where = f"optimizer.groups.{pattern}: " if pattern else ""
            raise UserError(f"{where}{error}") from error
        settings[pattern] = group
    return settings


def _check_read(config: OptimizerConfig) -> None:
    """Refuses what would be ignored.

    Where a config is made it cannot be told: a group may have these fields alone, and
    take what they belong to from the run.
    """
    if config.decay_steps and config.schedule != "wsd":
        raise UserError(
            f"optimizer.decay_steps={config.decay_steps} is read by optimizer.schedule="
            f"'wsd' alone, not by {config.schedule!r}; set it to 0"
        )
    if config.trust_ratio != "not_excluded" and config.name != "lamb":
        raise UserError(
            f"optimizer.trust_ratio={config.trust_ratio!r} is read by optimizer.name="
            f"'lamb' alone, not by {config.name!r}; leave it out"
        )


def check_found(config: OptimizerConfig, names: Collection[str]) -> None:
    """Refuses what no parameter is called by.

    Args:
      config: its groups, and what it does not decay.
      names: paths of all parameters.
    """
    parts = sorted({part for name in names for part in name.split("/")})
    near = lambda text: (
        f"{did_you_mean(text, [*parts, *names])} (paths are made of {', '.join(parts)})"
    )
    taken = {_group(name, config.groups) for name in names}
    for pattern in config.groups:
        if pattern not in taken:
            raise UserError(
                f"optimizer.groups.{pattern} is found in the path of no parameter, or "
                "of such only as an earlier group has; correct it or leave it out"
                f"{near(pattern)}"
            )
    excluded = [config.decay_exclude]
    excluded += [group.get("decay_exclude", ()) for group in config.groups.values()]
    for text in itertools.chain(*excluded):
        if text not in _SPARED and not any(text in name for name in names):
            raise UserError(
                f"optimizer.decay_exclude has {text!r}, which is in the path of no "
                f"parameter; correct it or leave it out{near(text)}"
            )


def _names(params: PyTree) -> list[str]:
    """Returns the paths of all parameters."""
    return jax.tree.leaves(map_with_names(lambda name, _: name, params))


def _group(name: str, groups: Mapping[str, Any]) -> str:
    """Returns the first pattern that is found in a parameter's path, or ''."""
    return next((pattern for pattern in groups if re.search(pattern, name)), "")


def _schedule(config: OptimizerConfig, steps: int, first: int) -> optax.Schedule:
    rate = learning_rate_schedule(
        config.schedule,
        peak=config.learning_rate,
        steps=steps,
        warmup_steps=config.warmup_steps,
        end_share=config.end_share,
        power=config.power,
        decay_steps=config.decay_steps,
    )
    return (lambda t: rate(t - first)) if first else rate


def _transform(
    config: OptimizerConfig, steps: int, first: int
) -> optax.GradientTransformation:
    """Returns the optimiser of one group."""
    included = lambda name: not any(part in name for part in config.decay_exclude)
    moments = config.b1, config.b2, config.eps, config.bias_correction
    decay = _decay(config)
    # In its place also without a bound: the state is the same.
    parts = [_clip(config.clip_norm) if config.clip_norm else optax.identity()]
    if config.name == "stable_adamw":
        decay_of = lambda name: decay if included(name) else 0.0
        parts += [scale_by_stable_adam(*moments, decay_of)]
    else:
        mask = lambda params: map_with_names(lambda name, _: included(name), params)
        parts += [
            scale_by_adam(*moments),
            optax.add_decayed_weights(decay, mask=mask),
        ]
    if config.name == "lamb":
        parts += [scale_by_trust_ratio(_trusted(config, included))]
    schedule = _schedule(config, steps, first)
    return optax.chain(*parts, optax.scale_by_learning_rate(schedule))


def _clip(bound: float) -> optax.GradientTransformation:
    """Returns what shortens gradients whose norm, of all together, is above a bound.

    By one factor: optax divides by the norm first, for which gradients are written and
    read once more.
    """

    def update(updates: PyTree, state: Any, params: PyTree = None):
        del params
        factor = bound / jnp.maximum(optax.tree.norm(updates), bound)
        return jax.tree.map(lambda g: g * factor, updates), state

    return optax.GradientTransformation(optax.init_empty_state, update)


def _decay(config: OptimizerConfig) -> float:
    """Returns the weight decay that the learning rate is multiplied with."""
    if not config.decoupled_decay:
        return config.weight_decay
    # What has a learning rate of 0 stays as it is.
    return config.weight_decay / config.learning_rate if config.learning_rate else 0.0


def _trusted(
    config: OptimizerConfig, included: Callable[[str], bool]
) -> Callable[[str], bool]:
    """Returns whether LAMB scales a parameter, by its path."""
    if config.trust_ratio == "all":
        return lambda name: True
    if config.trust_ratio == "decayed" and not config.weight_decay:
        return lambda name: False
    return included
