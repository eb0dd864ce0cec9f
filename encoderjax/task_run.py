"""A fine-tuning config joined with its examples and its encoder.

Here everything that a config leaves open is settled: the encoder is taken from
`init_from`, labels from the training examples, steps from the number of rows.
"""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from encoderjax.data.tokenizers import Tokenizer
from encoderjax.errors import UserError
from encoderjax.finetuning import FinetuneConfig
from encoderjax.identity import flat_fields
from encoderjax.interop.task_start import TaskStart
from encoderjax.interop.weights import read_json
from encoderjax.models.compute import PLAIN, compute_dtype
from encoderjax.models.config import EncoderConfig
from encoderjax.models.flops import TRAINING, encoder_flops
from encoderjax.tasks.batches import Items, TaskSource
from encoderjax.tasks.data import TRAIN, VALIDATION
from encoderjax.tasks.finetuner import Finetuner, blank_scores
from encoderjax.tasks.task import Description, Model, Prediction, Task
from encoderjax.training.checkpoint import CheckpointConfig, saved_steps
from encoderjax.training.optimizer import OptimizerConfig

# What may change between the runs of one workdir. Examples may move: hashes of them
# tell whether they are the same.
_CHANGEABLE = ("init_from", "precision", "log_every", "mesh", "compute", "keep")
_CHANGEABLE += ("optimizer.microbatches", "epochs", "steps")
_CHANGEABLE += ("eval.batch_size", "eval.metric", "eval.patience")
_CHANGEABLE += ("data.train", "data.validation", "data.test", "data.form")
_CHANGEABLE += ("data.columns", "data.validation_columns", "data.limit")
_INIT_SHA256 = "init_sha256"  # in config.json


@dataclasses.dataclass(frozen=True, eq=False)
class TaskRun:
    """A run with nothing left open.

    Attributes:
      task: with its labels.
      model: that is trained.
      start: where the parameters come from; None = a checkpoint.
      init_sha256: a hash of the encoder that the run began with.
      examples: by split.
      judging: the task as the examples of each split are measured by.
      items: their rows.
    """

    config: FinetuneConfig
    task: Task
    family: str
    model: Model
    tokenizer: Tokenizer
    start: TaskStart | None
    init_sha256: str
    examples: Mapping[str, Sequence[Any]]
    judging: Mapping[str, Task]
    items: Mapping[str, Items]

    @classmethod
    def open(cls, config: FinetuneConfig, workdir: Path) -> "TaskRun":
        """Reads the encoder and the examples, and checks them against each other."""
        start, config, init_sha256 = _open_start(config, workdir)
        task, examples = config.data.read(config.task)
        encoder = dataclasses.replace(start.config, **config.model)
        if config.data.length > encoder.max_length:
            raise UserError(
                f"data.length={config.data.length} is longer than the encoder can "
                f"read, {encoder.max_length}; give at most that, and data.cut="
                "'windows' for longer texts"
            )
        if config.freeze > encoder.num_layers:
            raise UserError(
                f"freeze={config.freeze}: the encoder has {encoder.num_layers} layers; "
                "-1 freezes all of it"
            )
        tokenizer = start.need_tokenizer()
        encoding = config.data.encoding(tokenizer)
        judging = {
            name: task if name == TRAIN else task.judging(found)
            for name, found in examples.items()
        }
        items = {
            name: Items(
                judge.encode(examples[name], encoding),
                tokenizer,
                config.data.length,
                judge.group,
            )
            for name, judge in judging.items()
        }
        run = cls(
            config=config,
            task=task,
            family=start.family,
            model=task.model(start.family, encoder),
            tokenizer=tokenizer,
            start=None if saved_steps(workdir) else start,
            init_sha256=init_sha256,
            examples=examples,
            judging=judging,
            items=items,
        )
        run._check_metric()
        return run

    def _check_metric(self) -> None:
        """Refuses an `eval.metric` that will not be measured."""
        name = self.config.eval.metric
        if name is None:
            return
        blank = blank_scores(self.finetuner(split=VALIDATION), self.items[VALIDATION])
        metrics, _ = self.judged(VALIDATION, *blank)
        if name not in metrics:
            raise UserError(
                f"eval.metric={name!r} is not measured (metrics: "
                f"{', '.join(metrics)}); name one of them"
            )

    @property
    def encoder(self) -> EncoderConfig:
        """The encoder, without what the head does not read."""
        return self.model.config

    @property
    def steps(self) -> int:
        """Optimiser updates."""
        return self.config.steps_of(len(self.items[TRAIN].encoded))

    @property
    def log_every(self) -> int:
        """Steps between lines of metrics."""
        return self.config.log_every

    @property
    def checkpoint(self) -> CheckpointConfig:
        """Checkpoints: one at every evaluation."""
        every = self.config.steps_between_evaluations(len(self.items[TRAIN].encoded))
        return CheckpointConfig(every=every, keep=self.config.keep)

    @property
    def optimizer(self) -> OptimizerConfig:
        """The optimiser, its warm-up counted in steps."""
        return self.config.optimizer_for(self.steps)

    def epoch_of(self, step: int) -> float:
        """Returns how often the examples were seen after a step."""
        return step * self.config.data.batch_size / len(self.items[TRAIN].encoded)

    def source(self) -> TaskSource:
        """Returns the training batches."""
        config = self.config
        return TaskSource.of(self.items[TRAIN], config.data.batch_size, config.seed)

    def flops_per_step(self) -> float:
        """Returns the arithmetic of a step with rows of the greatest length."""
        rows = self.config.data.batch_size * self.task.group
        return TRAINING * rows * encoder_flops(self.encoder, self.config.data.length)

    def finetuner(self, platform: str | None = None, split: str = TRAIN) -> Finetuner:
        """Returns the model with its loss, as devices of a platform compute it."""
        dtype = compute_dtype(self.config.precision, platform)
        compute = self.config.compute
        compute = PLAIN if platform is None else compute.on(platform, dtype)
        model = self.model.clone(dtype=dtype, compute=compute)
        return Finetuner(model, self.judging[split], self.config.freeze)

    def judged(
        self, split: str, scores: Sequence[np.ndarray], losses: Mapping[str, float]
    ) -> tuple[dict[str, float], list[Prediction]]:
        """Returns the metrics of a split, and what is predicted of each example.

        Args:
          split: whose items were scored.
          scores: of each item.
          losses: the means of what the task sums up.
        """
        examples, task = self.examples[split], self.judging[split]
        predictions = task.predictions(examples, self.items[split].encoded, scores)
        metrics = task.metrics(examples, predictions)
        return metrics | task.mean_terms(losses), predictions

    def initial_params(self) -> tuple[Any, list[str]]:
        """Returns parameters and where they come from, or None for new ones."""
        if self.start is None:
            return None, []
        if self.config.from_scratch:
            return None, [f"new parameters, in the form of {self.start.name}"]
        return self.task.init_from(self.start, self.model, self.config.seed)

    def description(self) -> Description:
        """Returns what is needed to use the model again."""
        data = self.config.data
        return self.task.description(
            self.model, length=data.length, cut=data.cut, stride=data.stride
        )

    def described(self) -> dict[str, Any]:
        """Returns the workdir's config.json, from which others load the model."""
        run = self.config.to_dict() | {"steps": self.steps}
        return {
            "format": 1,
            _INIT_SHA256: self.init_sha256,
            "model": {"family": self.family, **dataclasses.asdict(self.encoder)},
            self.task.described_as: self.description().to_json(),
            "finetune": {name: run[name] for name in run if name != "model"},
        }

    def identity(self) -> dict[str, Any]:
        """Returns what a checkpoint must agree with, by name of the field."""
        # What the examples decide counts, not whether the config says it as well.
        fields = flat_fields(self.config.to_dict() | {"task": self.task.to_fields()})
        fields = {
            name: value
            for name, value in fields.items()
            if not any(name == x or name.startswith(f"{x}.") for x in _CHANGEABLE)
        }
        fields |= flat_fields({"model": dataclasses.asdict(self.encoder)})
        fields |= flat_fields({"task": self.description().to_json()})
        fields |= {
            "tokenizer.sha256": self.tokenizer.sha256,
            "the training examples": _rows_hash(self.items[TRAIN]),
        }
        if VALIDATION in self.items:  # or the best step would be that of two files
            examples, judging = self.examples[VALIDATION], self.judging[VALIDATION]
            fields["the validation examples"] = _examples_hash(examples)
            if judging.compares_examples:
                fields["eval.batch_size"] = self.config.eval.batch_size
        return fields


def _open_start(
    config: FinetuneConfig, workdir: Path
) -> tuple[TaskStart, FinetuneConfig, str]:
    """Returns the encoder, the config with its name, and its hash.

    A workdir with a checkpoint stands alone, and keeps the name and hash of what the
    run began with: another encoder is refused, one that cannot be read is not.
    """
    described = _described(workdir)
    if _INIT_SHA256 not in described:
        start = _given_start(config)
        return start, config, start.sha256(with_params=not config.from_scratch)
    sha256, began = described[_INIT_SHA256], described["finetune"]
    try:
        given = _given_start(config).sha256(with_params=not began["from_scratch"])
    except UserError:  # the folder may be gone by now
        given = sha256
    if given != sha256:
        raise UserError(
            f"init_from={config.init_from} is another encoder than "
            f"{began['init_from']}, which the run in {workdir} began with; use that, "
            "or another --workdir"
        )
    config = dataclasses.replace(config, init_from=began["init_from"])
    return TaskStart.open(workdir, saved_steps(workdir)[-1]), config, sha256


def _described(workdir: Path) -> dict[str, Any]:
    """Returns what a run that is to go on says of itself; nothing of a new one."""
    path = workdir / "config.json"
    return read_json(path) if saved_steps(workdir) and path.is_file() else {}


def _given_start(config: FinetuneConfig) -> TaskStart:
    """Returns what `init_from` names."""
    if config.init_from is None:
        raise UserError(
            "init_from is missing: give --config.init_from=FOLDER, the encoder to "
            "fine-tune (a workdir, an export or a folder of Hugging Face)"
        )
    return TaskStart.open(config.init_from, config.init_step, new_head=config.new_head)


def _examples_hash(examples: Sequence[Any]) -> str:
    """Returns a hash of all that examples say, wherever they stand."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(repr(dataclasses.replace(example, where="")).encode())
    return digest.hexdigest()[:16]


def _rows_hash(items: Items) -> str:
    """Returns a hash of all rows and of what is learned from them."""
    digest = hashlib.sha256()
    encoded = items.encoded
    for rows in encoded.items:
        for row in rows:
            digest.update(row.ids.tobytes())
    for targets in (encoded.values, encoded.at_places, encoded.places):
        for name in sorted(targets):
            for target in targets[name]:
                digest.update(target.tobytes())
    return digest.hexdigest()[:16]
