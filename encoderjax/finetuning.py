"""A fine-tuning run: config file and overrides -> frozen dataclasses, once."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

from encoderjax.command import did_you_mean
from encoderjax.config import group_of, optimizer_of
from encoderjax.errors import UserError
from encoderjax.fields import Override, as_typed, build, converted
from encoderjax.models.compute import Compute
from encoderjax.models.config import EncoderConfig
from encoderjax.tasks import TASKS
from encoderjax.tasks.data import TaskData
from encoderjax.tasks.task import Task
from encoderjax.training.mesh import MeshConfig
from encoderjax.training.optimizer import OptimizerConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskEval:
    """When the validation examples are measured, and what for.

    Attributes:
      every: steps between evaluations, each with a checkpoint; 0 = after every epoch.
      metric: which one tells the best checkpoint; None = the task's first.
      patience: after how many evaluations without a better one the run ends; 0 = never.
      batch_size: rows that are measured at once.
    """

    every: int = 0
    metric: str | None = None
    patience: int = 0
    batch_size: int = 64

    def __post_init__(self):
        for name, least in {"every": 0, "patience": 0, "batch_size": 1}.items():
            if getattr(self, name) < least:
                raise UserError(
                    f"eval.{name}={getattr(self, name)} must be at least {least}"
                )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneConfig:
    """Everything that a fine-tuning run depends on.

    Attributes:
      init_from: the encoder: a workdir, an export, or a folder of Hugging Face, also
        one that was fine-tuned before.
      init_step: which checkpoint of a workdir; None = the last, of a fine-tuned one the
        best.
      from_scratch: takes sizes and tokenizer of `init_from`, and new parameters: what
        pretraining is measured against.
      new_head: whether the head begins anew where the folder has one of the same kind.
      epochs: passes over the training examples.
      steps: optimiser updates; None = as many as the epochs have.
      warmup: the share of the steps over which the learning rate rises;
        `optimizer.warmup_steps`, where given, counts instead.
      freeze: how much of the encoder stays as it is: 0 = nothing, n = the embeddings
        and the first n layers, -1 = all of it.
      keep: how many of the newest checkpoints stay beside the best.
      model: fields of the encoder that differ from the folder's, such as its dropout.
    """

    seed: int = 0
    init_from: str | None = None
    init_step: int | None = None
    from_scratch: bool = False
    new_head: bool = False
    epochs: float = 3.0
    steps: int | None = None
    warmup: float = 0.1
    freeze: int = 0
    keep: int = 1
    precision: Literal["float32", "bfloat16", "auto"] = "auto"
    log_every: int = 10
    model: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    task: Task
    data: TaskData
    optimizer: OptimizerConfig
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)
    compute: Compute = dataclasses.field(default_factory=Compute)
    eval: TaskEval = dataclasses.field(default_factory=TaskEval)

    def __post_init__(self):
        for name in ("keep", "log_every"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)} must be at least 1")
        if not 0 <= self.seed < 2**32:
            raise UserError(f"seed={self.seed} must be in [0, 2^32)")
        if self.steps is not None and self.steps < 1:
            raise UserError(f"steps={self.steps} must be at least 1, or None")
        if not (self.epochs > 0 and math.isfinite(self.epochs)):
            raise UserError(f"epochs={self.epochs} must be above 0")
        if not 0.0 <= self.warmup <= 1.0:
            raise UserError(f"warmup={self.warmup} must be in [0, 1]")
        if self.freeze < -1:
            raise UserError(f"freeze={self.freeze} must be -1 (all), 0, 1, ...")
        for name in ("metric", "patience"):
            value = getattr(self.eval, name)
            if value and not (self.data.validation or self.data.validation_share):
                raise UserError(
                    f"eval.{name}={value!r} needs validation examples; give "
                    "data.validation or a data.validation_share above 0, or leave it "
                    "out"
                )
        if self.task.compares_examples and self.optimizer.microbatches > 1:
            raise UserError(
                f"optimizer.microbatches={self.optimizer.microbatches} must be 1: the "
                "task compares the examples of a batch, and would find fewer in a part"
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "FinetuneConfig":
        """Builds and checks a run from nested plain values."""
        parts = {
            "model": converted(EncoderConfig, group_of(values, "model"), "model."),
            "task": _task(group_of(values, "task")),
            "data": _data(group_of(values, "data")),
            "optimizer": optimizer_of(group_of(values, "optimizer")),
        }
        return build(cls, {**values, **parts}, "")

    def steps_of(self, num_items: int) -> int:
        """Returns the steps of a run with so many training items."""
        if self.steps is not None:
            return self.steps
        return max(1, round(self.epochs * num_items / self.data.batch_size))

    def steps_between_evaluations(self, num_items: int) -> int:
        """Returns the steps of an epoch, or as many as were asked for."""
        steps = self.eval.every or math.ceil(num_items / self.data.batch_size)
        return min(steps, self.steps_of(num_items))

    def optimizer_for(self, steps: int) -> OptimizerConfig:
        """Returns the optimiser with its warm-up counted."""
        optimizer = self.optimizer
        if optimizer.warmup_steps:
            if optimizer.warmup_steps > steps:
                raise UserError(
                    f"optimizer.warmup_steps={optimizer.warmup_steps} exceeds the "
                    f"{steps} steps of the run"
                )
            return optimizer
        return dataclasses.replace(optimizer, warmup_steps=round(self.warmup * steps))

    def to_dict(self) -> dict[str, Any]:
        """Returns nested plain values; `from_dict` takes them back."""
        plain: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            group = hasattr(value, "__dataclass_fields__")
            plain[field.name] = dataclasses.asdict(value) if group else value
        plain["task"] = self.task.to_fields()
        return plain


def _task(values: dict[str, Any]) -> Task:
    kind = str(values.pop("kind", None))
    if kind not in TASKS:
        raise UserError(
            f"task.kind={kind!r} is not known{did_you_mean(kind, TASKS)} (kinds: "
            f"{', '.join(TASKS)})"
        )
    values["head"] = group_of(values, "head")
    weights = values.get("class_weights")
    if isinstance(weights, Override):  # a word, or a mapping
        values["class_weights"] = as_typed(weights)
    return TASKS[kind].from_fields(values)


def _data(values: dict[str, Any]) -> TaskData:
    for name in ("columns", "validation_columns"):
        values[name] = group_of(values, name)
    return build(TaskData, values, "data.")
