"""A whole run: nested plain values -> frozen dataclasses, once.

The parts of `RunConfig` check themselves; what spans parts is checked here. Where the
values come from: `config_loading.py`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from encoderjax.command import did_you_mean
from encoderjax.data.corpora import spelled
from encoderjax.data.forms import FORMS
from encoderjax.data.pipeline import DataConfig
from encoderjax.errors import UserError
from encoderjax.fields import Override, as_typed, build, converted, is_required
from encoderjax.interop.vocabulary import Change
from encoderjax.models.compute import Compute
from encoderjax.models.config import EncoderConfig
from encoderjax.models.families import preset
from encoderjax.models.heads import HEADS, DetectionHead
from encoderjax.objectives import OBJECTIVES, Objective, generator_of
from encoderjax.objectives.objective import check_together
from encoderjax.training.checkpoint import CheckpointConfig
from encoderjax.training.mesh import MeshConfig
from encoderjax.training.optimizer import OptimizerConfig

_ABSOLUTE = ("learned", "rope")  # positions that a batch may give


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A published size, and the fields of its encoder that differ from it.

    Without `vocab_size` among the changes, the model takes that of the corpus.

    Attributes:
      family: None = the model is that of the folder `init_from`, with the changes.
      size: None = not a published one: the changes name every field.
    """

    family: str | None
    size: str | None
    changes: Mapping[str, Any]

    @classmethod
    def whole(cls, family: str, encoder: EncoderConfig) -> "ModelConfig":
        """Returns the model that is exactly `encoder`."""
        return cls(family=family, size=None, changes=dataclasses.asdict(encoder))

    @property
    def encoder(self) -> EncoderConfig:
        """Returns the encoder, with the published vocabulary unless changed."""
        if self.family is None:
            raise UserError(
                "model.family=None leaves the model to init_from: give "
                "--config.init_from=FOLDER (a workdir, an export or a folder of "
                "Hugging Face), or model.family and model.size"
            )
        if self.size is None:
            return EncoderConfig(**self.changes)
        return dataclasses.replace(preset(self.family, self.size), **self.changes)

    def following(self, origin: "ModelConfig") -> "ModelConfig":
        """Returns the model itself, or where it is left open `origin`, changed."""
        if self.family is not None or origin.family is None:
            return self
        encoder = dataclasses.replace(origin.encoder, **self.changes)
        return ModelConfig.whole(origin.family, encoder)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """Held-out evaluation.

    Attributes:
      every: steps between evaluations; 0 = only at the end.
      batches: how many batches of held-out rows, of all members of a mixture together;
        0 = all rows there are.
      at_start: whether to measure before the first step as well; None = where the run
        starts from other parameters than new ones.
      corpora: name -> folder: other corpora whose held-out documents are measured, too.
        The members of a mixture are measured by themselves anyway.
    """

    every: int = 0
    batches: int = 0
    at_start: bool | None = None
    corpora: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        for name in ("every", "batches"):
            if getattr(self, name) < 0:
                raise UserError(f"eval.{name}={getattr(self, name)} must be at least 0")
        for name, folder in self.corpora.items():
            if not isinstance(folder, str) or not folder:
                raise UserError(
                    f"eval.corpora.{name}={folder!r} must be the folder of a corpus"
                )
        # Plain text, also where it was typed on the command line.
        plain = {
            name: spelled(folder, f"eval.corpora.{name}")
            for name, folder in self.corpora.items()
        }
        object.__setattr__(self, "corpora", plain)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that a run depends on.

    Attributes:
      steps: optimiser updates.
      init_from: a folder to take parameters from: a workdir, an export, or one of
        Hugging Face's form. Its step and optimiser stay behind: a run begins at 0.
      init_vocabulary: what may happen to its vocabulary. `same` nothing; `extend` the
        corpus may have more tokens behind those of the folder; `replace` any other.
        A token that both have keeps its row, a new one is the mean of the pieces that
        spelled it.
      init_layers: which layers of the folder become those of the run, in this order; a
        student may begin as every other layer of its teacher. None = all.
      precision: of the arithmetic; `auto` is bfloat16 where the device has it.
        Parameters, softmax, norms and losses stay in float32.
      log_every: steps between lines of metrics.
      phases: name -> what differs in a part of the run: `after`, the step after which
        it begins, and fields of `data`, `model`, `objectives` and `optimizer`; see
        `phases.py`.
    """

    seed: int = 0
    steps: int
    init_from: str | None = None
    init_vocabulary: Change = "same"
    init_layers: tuple[int, ...] | None = None
    precision: Literal["float32", "bfloat16", "auto"] = "auto"
    log_every: int = 10
    model: ModelConfig
    data: DataConfig
    objectives: tuple[Objective, ...]
    optimizer: OptimizerConfig
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)
    compute: Compute = dataclasses.field(default_factory=Compute)
    checkpoint: CheckpointConfig = dataclasses.field(default_factory=CheckpointConfig)
    eval: EvalConfig = dataclasses.field(default_factory=EvalConfig)
    phases: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        for name in ("steps", "log_every"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)} must be at least 1")
        if not 0 <= self.seed < 2**32:
            raise UserError(f"seed={self.seed} must be in [0, 2^32)")
        if not self.objectives:
            raise UserError("objectives is empty: name at least one, such as mlm")
        check_together(self.objectives)
        if self.init_layers is not None and self.init_from is None:
            raise UserError(
                f"init_layers={self.init_layers} needs init_from: the folder whose "
                "layers they are"
            )
        if self.optimizer.warmup_steps > self.steps:
            raise UserError(
                f"optimizer.warmup_steps={self.optimizer.warmup_steps} exceeds steps="
                f"{self.steps}: the peak learning rate would never be reached"
            )
        batch, parts = self.data.batch_size, self.optimizer.microbatches
        if batch is not None and batch % parts and not self.data.fill_batch:
            raise UserError(
                f"data.batch_size={batch} is not divisible by optimizer.microbatches="
                f"{parts}"
            )
        for pattern, group in self.optimizer.groups.items():
            if group.get("warmup_steps", 0) > self.steps:
                raise UserError(
                    f"optimizer.groups.{pattern}.warmup_steps={group['warmup_steps']} "
                    f"exceeds steps={self.steps}"
                )
        if self.model.family is not None:
            self._check_model(self.model.encoder)

    def _check_model(self, encoder: EncoderConfig) -> None:
        """Checks the rest against the model, once it is known."""
        if self.data.length > encoder.max_length:
            raise UserError(
                f"data.length={self.data.length} is longer than the position table, "
                f"model.max_length={encoder.max_length}; shorten the rows or enlarge "
                "the table"
            )
        if FORMS[self.data.form].parallel and encoder.positions not in _ABSOLUTE:
            raise UserError(
                f"data.form={self.data.form!r} begins positions anew in the second "
                f"text, which model.positions={encoder.positions!r} does not read; set "
                f"it to {' or '.join(_ABSOLUTE)}"
            )
        unable = {"rtd", "distillation"} & {o.name for o in self.objectives}
        if encoder.languages and unable:
            raise UserError(
                f"model.languages does not go with objectives.{min(unable)}: its other "
                "network is not told languages; leave one out"
            )
        self._check_detection(encoder)
        for objective in self.objectives:
            objective.resolved(self.data, encoder)
        self.compute.check(encoder)
        generator = generator_of(self.objectives, encoder)
        if generator is not None:
            self.compute.check(generator.config, "objectives.rtd.generator")

    def _check_detection(self, encoder: EncoderConfig) -> None:
        """Refuses scores that would read what other documents of a row say."""
        if encoder.detection_head != "with_cls" or not FORMS[self.data.form].packed:
            return
        for objective in self.objectives:
            if any(HEADS[name] is DetectionHead for name in objective.heads):
                raise UserError(
                    f"objectives.{objective.name} does not go with data.form="
                    f"{self.data.form!r}: model.detection_head='with_cls' adds the "
                    "first state of a row to all, also to those of other documents; "
                    "set it to 'dense'"
                )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "RunConfig":
        """Builds and checks a run from nested plain values."""
        parts = {
            "model": _model(group_of(values, "model")),
            "objectives": _objectives(group_of(values, "objectives")),
            "optimizer": optimizer_of(group_of(values, "optimizer")),
            "phases": typed(group_of(values, "phases")),
        }
        return build(cls, {**values, **parts}, "")

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> "RunConfig":
        """Builds the run that a workdir's config.json describes."""
        known = {field.name for field in dataclasses.fields(cls)}
        return cls.from_dict(
            {name: value for name, value in description.items() if name in known}
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns nested plain values; `from_dict` takes them back."""
        plain: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            group = hasattr(value, "__dataclass_fields__")
            plain[field.name] = dataclasses.asdict(value) if group else value
        plain["model"] = {
            "family": self.model.family,
            "size": self.model.size,
            **self.model.changes,
        }
        plain["objectives"] = {o.name: dataclasses.asdict(o) for o in self.objectives}
        return plain


def group_of(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns the fields of a group of a config; none where it is left out."""
    group = values.get(name, {})
    if isinstance(group, Override):
        group = as_typed(group)
    if not isinstance(group, Mapping):
        raise UserError(f"{name}={group!r} must be a group of fields")
    return dict(group)


def typed(values: Any) -> Any:
    """Returns nested values with those of the command line as what they stand for."""
    if isinstance(values, Mapping):
        return {name: typed(value) for name, value in values.items()}
    return as_typed(values) if isinstance(values, Override) else values


def optimizer_of(values: dict[str, Any]) -> OptimizerConfig:
    """Builds the optimiser; the fields of its groups are checked like its own."""
    converted = {}
    for pattern, group in group_of(values, "groups").items():
        where = f"optimizer.groups.{pattern}"
        if not isinstance(group, Mapping):
            raise UserError(f"{where}={group!r} must be a group of fields")
        for name in ("name", "microbatches", "groups"):
            if name in group:
                raise UserError(f"{where}.{name} cannot differ between groups")
        checked = build(OptimizerConfig, {"learning_rate": 0.0, **group}, f"{where}.")
        converted[pattern] = {name: getattr(checked, name) for name in group}
    return build(OptimizerConfig, {**values, "groups": converted}, "optimizer.")


def _model(values: dict[str, Any]) -> ModelConfig:
    """Builds the model; without a family it is left to `init_from`."""
    where = "model."
    # None asks for what follows from elsewhere, as if it were left out.
    for name in ("family", "size", "vocab_size"):
        if values.get(name, 0) in (None, "None"):
            del values[name]
    family, size = values.pop("family", None), values.pop("size", None)
    given = converted(EncoderConfig, values, where)
    if family is None:
        if size is not None:
            raise UserError(f"{where}size={str(size)!r} needs {where}family")
        return ModelConfig(family=None, size=None, changes=given)
    if size is None:
        required = [f.name for f in dataclasses.fields(EncoderConfig) if is_required(f)]
        if any(name not in given for name in required):
            raise UserError(f"{where}size is missing")
        changes = dataclasses.asdict(EncoderConfig(**given))
        return ModelConfig(family=str(family), size=None, changes=changes)
    model = ModelConfig(family=str(family), size=str(size), changes=given)
    _ = model.encoder  # checks itself
    return model


def _objectives(values: dict[str, Any]) -> tuple[Objective, ...]:
    """Builds the objectives, in the order of OBJECTIVES: later ones read earlier."""
    for name in values:
        if name not in OBJECTIVES:
            raise UserError(
                f"objectives.{name} does not exist{did_you_mean(name, OBJECTIVES)} "
                f"(objectives: {', '.join(OBJECTIVES)})"
            )
    built = []
    for name in (name for name in OBJECTIVES if name in values):
        fields = values[name]
        if isinstance(fields, Override):
            fields = as_typed(fields)
        if fields is None:
            continue  # switched off
        if not isinstance(fields, Mapping):
            raise UserError(f"objectives.{name}={fields!r} must be a dict or None")
        built.append(build(OBJECTIVES[name], fields, f"objectives.{name}."))
    return tuple(built)
