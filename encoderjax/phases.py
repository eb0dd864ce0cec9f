"""The phases of a run: parts that differ in their rows, their rates or their losses.

A run without phases has one. With them, BERT's 90 % of the steps at length 128 and the
rest at 512 are one run with one resume, as is a batch that grows. A phase says after
which step it begins, and what differs from the run around it:

    phases = dict(
        long=dict(
            after=900_000,
            data=dict(length=512),
            objectives=dict(mlm=dict(max_predictions=77)),
        ),
    )

It ends where the next one begins. Parameters and optimiser state go on from phase to
phase. So does the learning rate, unless a phase names its own, which then runs from the
first to the last step of the phase. Rows go on where the phase before stopped if they
are cut alike, corpus by corpus, else they start at their beginning.
"""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from encoderjax.config import ModelConfig, RunConfig
from encoderjax.data.buckets import BucketedSource
from encoderjax.data.corpora import Corpora
from encoderjax.data.pipeline import BatchSource, Used
from encoderjax.errors import UserError
from encoderjax.experiment import Bucket, Experiment
from encoderjax.identity import content_identity, row_identity, run_identity
from encoderjax.interop.huggingface import leaf_shapes
from encoderjax.measured_splits import VALIDATION, held_out_sources
from encoderjax.models.flops import TRAINING, encoder_flops
from encoderjax.objectives.distillation import Distillation
from encoderjax.training.optimizer import check_found, group_settings

_START = "start"  # the name of what comes before the first phase that is named
_GROUPS = ("model", "data", "objectives", "optimizer")
_OF_THE_SCHEDULE = frozenset(
    ("learning_rate", "schedule", "warmup_steps", "end_share", "power", "decay_steps")
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phase:
    """A part of a run.

    Attributes:
      name: '' where it is the whole run.
      first: the step after which it begins.
      last: its last step.
      config: what holds in it. Its `steps` are those that the learning rate runs over,
        from `schedule_first` on.
    """

    name: str
    first: int
    last: int
    config: RunConfig
    schedule_first: int = 0


def phases_of(config: RunConfig) -> tuple[Phase, ...]:
    """Returns the phases of a run, one after the other."""
    _ = group_settings(config.optimizer)  # checks itself
    if not config.phases:
        return (Phase(name="", first=0, last=config.steps, config=config),)
    begins = {name: _begin(name, changes) for name, changes in config.phases.items()}
    changes = dict(config.phases)
    if 0 not in begins.values():
        begins[_START], changes[_START] = 0, {}
    names = sorted(begins, key=lambda name: begins[name])
    for name, follower in itertools.pairwise(names):
        if begins[name] == begins[follower]:
            raise UserError(
                f"phases.{follower}.after={begins[follower]} is that of phases.{name}, "
                "too; let one begin later"
            )
    whole = config.to_dict() | {"phases": {}}
    ends = [*(begins[name] for name in names[1:]), config.steps]
    phases = []
    for name, end in zip(names, ends, strict=True):
        if begins[name] >= config.steps:
            break  # a run that was cut short does not get there
        try:
            phase = _phase(name, changes[name], begins[name], end, whole)
        except UserError as error:
            raise UserError(f"phases.{name}: {error}") from error
        last = min(end, config.steps)
        phases.append(dataclasses.replace(phase, last=last))
    return tuple(phases)


def _begin(name: str, changes: Any) -> int:
    """Returns the step after which a phase begins."""
    where = f"phases.{name}"
    if not isinstance(changes, Mapping):
        raise UserError(f"{where}={changes!r} must be a group of fields")
    after = changes.get("after")
    if not isinstance(after, int) or isinstance(after, bool) or after < 0:
        raise UserError(
            f"{where}.after={after!r} must be a whole number: the step after which the "
            "phase begins, 0 for the first"
        )
    return after


def _phase(
    name: str, changes: Mapping, first: int, last: int, whole: dict[str, Any]
) -> Phase:
    for group in changes:
        if group != "after" and group not in _GROUPS:
            raise UserError(
                f"{group} cannot differ between phases ({', '.join(_GROUPS)} can)"
            )
    optimizer = changes.get("optimizer", {})
    for field in ("name", "groups"):
        if field in optimizer:
            raise UserError(
                f"optimizer.{field} cannot differ between phases: its state goes on"
            )
    unknown = set(changes.get("objectives", {})) - set(whole["objectives"])
    if unknown:
        raise UserError(
            f"objectives.{min(unknown)} is not an objective of the run; its heads "
            "would have no parameters before this phase"
        )
    groups = {key: value for key, value in changes.items() if key != "after"}
    values = merged(whole, groups)
    own_schedule = not _OF_THE_SCHEDULE.isdisjoint(optimizer)
    if own_schedule:
        values["steps"] = last - first
    config = RunConfig.from_dict(values)
    _ = group_settings(config.optimizer)  # checks itself
    return Phase(
        name=name,
        first=first,
        last=last,
        config=config,
        schedule_first=first if own_schedule else 0,
    )


def merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns nested values with some of them changed."""
    whole = dict(values)
    for name, change in changes.items():
        old: Any = whole.get(name)
        both = isinstance(old, Mapping) and isinstance(change, Mapping)
        whole[name] = merged(old, change) if both else change
    return whole


@dataclasses.dataclass(frozen=True, eq=False)
class Stage:
    """A phase joined with its corpus, ready to be run.

    Attributes:
      source: its training batches, by the step of the run.
      held_out: its held-out rows, by the name of the split in metrics.jsonl, and of
        the members of a mixture in it.
    """

    phase: Phase
    experiment: Experiment
    source: BatchSource | BucketedSource
    held_out: dict[str, dict[str, BatchSource]]

    @property
    def flops_per_step(self) -> float:
        """Arithmetic of a step, forward and backward; the mean over buckets."""
        flops = sum(b.share * self._flops_per_row(b) for b in self.experiment.buckets)
        return self.source.batch_size * flops

    def _flops_per_row(self, bucket: Bucket) -> float:
        experiment, length, objectives = (
            self.experiment,
            bucket.length,
            bucket.objectives,
        )
        slots = {o.name: getattr(o, "max_predictions", None) for o in objectives}
        # What has none of its own reads those of the text's selection.
        selected = slots.get("mlm") or slots.get("plm") or 0
        places = lambda objective: slots[objective.name] or selected
        taken_over = {name for o in objectives for name in o.takes_over}
        own = [o for o in objectives if o.name not in taken_over]
        flops = encoder_flops(experiment.encoder, length)
        flops += sum(o.flops(experiment.encoder, length, places(o)) for o in own)
        flops *= TRAINING
        if experiment.teacher is not None:  # runs forward only
            teacher = experiment.teacher[0].config
            flops += encoder_flops(teacher, length)
            compared = (o for o in own if isinstance(o, Distillation))
            flops += sum(o.flops(teacher, length, places(o)) for o in compared)
        return flops


def open_stages(
    config: RunConfig, report: Callable[[str], None], origin: ModelConfig | None
) -> tuple[Stage, ...]:
    """Opens the corpus of every phase, and checks that they can follow each other."""
    stages: list[Stage] = []
    for phase in phases_of(config):
        experiment = Experiment.open(phase.config, report, origin)
        source = experiment.train_source()
        source = source.starting(phase.first, _used_rows(stages, experiment))
        if stages:
            _check_follows(stages[0].experiment, experiment, phase)
        if phase.config.optimizer.decay_exclude != config.optimizer.decay_exclude:
            _check_excluded(experiment, phase)
        held_out = held_out_sources(experiment)
        stages.append(Stage(phase, experiment, source, held_out))
    if not any(VALIDATION in stage.held_out for stage in stages):
        report("the corpus has no held-out documents: it will not be evaluated")
    return tuple(stages)


def stage_at(stages: tuple[Stage, ...], step: int) -> Stage:
    """Returns the stage that makes step number `step`, the first at step 0."""
    return next((s for s in stages if step <= s.phase.last), stages[-1])


def whole_run(config: RunConfig, stages: tuple[Stage, ...]) -> Experiment:
    """Returns the experiment that describes the run, with all of its phases."""
    first = stages[0].experiment
    if not config.phases:
        return first
    return dataclasses.replace(
        first, config=dataclasses.replace(config, model=first.config.model)
    )


def identity_at(step: int, run: Experiment, stages: Sequence[Stage]) -> dict[str, Any]:
    """Returns what the checkpoint of `step` must agree with, by name of the field.

    Of the corpora of phases only those that were begun: a run may be cut short.
    """
    identity = run_identity(run)
    for stage in stages[1:]:
        if stage.phase.first < step:
            identity |= _of_phase(stage, content_identity(stage.experiment))
    return identity


def identity_labels(run: Experiment, stages: Sequence[Stage]) -> dict[str, str]:
    """Returns how messages call those names that say little by themselves."""
    labels = run.corpus.labels()
    for stage in stages[1:]:
        of_phase = _of_phase(stage, stage.experiment.corpus.labels())
        labels |= {k: f"phases.{stage.phase.name}.{v}" for k, v in of_phase.items()}
    return labels


def _of_phase(stage: Stage, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"phases.{stage.phase.name}.{key}": value for key, value in values.items()}


def _used_rows(stages: list[Stage], experiment: Experiment) -> Used:
    """Returns the rows that were used already of the corpora of a phase.

    Corpora are known by their fingerprints: members that stay in a mixture go on,
    whatever their shares.
    """
    if not stages:
        return {}
    before = stages[-1]
    if row_identity(before.experiment) != row_identity(experiment):
        return {}
    old, new = (_numbered(e.corpus) for e in (before.experiment, experiment))
    now = {old[key]: new[key] for key in old.keys() & new.keys()}
    used = before.source.used(before.phase.last).items()
    return {(length, now[m]): place for (length, m), place in used if m in now}


def _numbered(corpus: Corpora) -> dict[tuple[str, int], int]:
    """Returns the number of each member, by its fingerprint and how often it came."""
    prints = corpus.fingerprints
    return {(f, prints[:number].count(f)): number for number, f in enumerate(prints)}


def _check_follows(first: Experiment, other: Experiment, phase: Phase) -> None:
    where = f"phases.{phase.name}"
    if other.corpus.tokenizer.sha256 != first.corpus.tokenizer.sha256:
        raise UserError(
            f"{where}: corpus {other.corpus.name} has another tokenizer than "
            f"{first.corpus.name}; prepare it with --tokenizer="
            f"{first.corpus.tokenizer_folder}"
        )
    if _shapes(first) != _shapes(other):
        raise UserError(
            f"{where}: it changes the parameters of the model, which go on from phase "
            "to phase; leave model and objectives as they are"
        )
    carries = first.encoder.memory_length > 0
    if carries and other.batch_size != first.batch_size:
        raise UserError(
            f"{where}: data.batch_size={other.batch_size} must stay "
            f"{first.batch_size}: each row of a batch carries its own memory"
        )


def _check_excluded(experiment: Experiment, phase: Phase) -> None:
    """Refuses what a phase would not decay, and no parameter is called by."""
    try:
        check_found(phase.config.optimizer, _shapes(experiment))
    except UserError as error:
        raise UserError(f"phases.{phase.name}: {error}") from error


def _shapes(experiment: Experiment) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every parameter by its path."""
    return leaf_shapes(experiment.encoder, experiment.head_names, experiment.generator)
