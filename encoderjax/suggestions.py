"""Settings with which a run fits devices that it is too large for."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from encoderjax.config import RunConfig
from encoderjax.errors import UserError
from encoderjax.outline import outline_stages
from encoderjax.phases import Stage, merged
from encoderjax.pod import Pod

Report = Callable[[str], None]
Changes = dict[str, Any]  # fields of a run, such as compute.remat
_MICROBATCHES = "optimizer.microbatches"


def program_key(stage: Stage) -> tuple:
    """Returns what tells programs apart, but for the number of rows.

    Phases that differ in their schedules run the same program. Of those that differ in
    rows only, the largest needs the most memory, and is the one that is compiled.
    """
    config = stage.experiment.config
    model = (stage.experiment.encoder, stage.experiment.objectives)
    return (config.data.length, config.optimizer.microbatches, *map(str, model))


def largest_stages(stages: Sequence[Stage]) -> Iterator[tuple[tuple, Stage]]:
    """Yields the phase with the most rows of each kind."""
    ordered = sorted(stages, key=lambda stage: stage.experiment.batch_size)
    yield from {program_key(stage): stage for stage in ordered}.items()


@dataclasses.dataclass(frozen=True)
class Fitting:
    """A run that is to be fitted to a pod."""

    config: RunConfig
    pod: Pod
    teacher: str | None
    report: Report

    def suggestion(self) -> Changes | None:
        """Returns the first settings that were tried and fit; None if none do.

        Those that cost the least time come first.
        """
        remat: Changes = {}
        kinds = ("none", "dots", "blocks")
        for kind in kinds[kinds.index(self.config.compute.remat) + 1 :]:
            remat = {"compute.remat": kind}
            if self._share(remat) <= 1:
                return remat
        for split in self._splits():
            found = self._in_parts(remat | split)
            if found is not None:
                return found
        return None

    def _splits(self) -> Iterator[Changes]:
        """Yields ways to split the state, beginning with that of the run."""
        yield {}
        size = 2
        while size <= self.pod.chips:
            yield {"mesh.data": -1, "mesh.fsdp": size, "mesh.model": 1}
            size *= 2
        for model in (2, 4, 8):
            yield {"mesh.data": 1, "mesh.fsdp": -1, "mesh.model": model}

    def _in_parts(self, changes: Changes) -> Changes | None:
        """Returns the changes with as many microbatches as make them fit, if any do.

        Those of phases that have their own grow with those of the run.
        """
        before, own, times = math.inf, self._microbatches(), 1
        parts = own[_MICROBATCHES]
        while True:
            tried = changes | {name: times * count for name, count in own.items()}
            share = self._share(tried)
            if share <= 1:
                return tried
            if math.isinf(share) or share >= before:  # it is not the activations
                return None
            # From one to two there are gradients to add up: twice as many of them.
            before = share if times * parts > 1 else math.inf
            # Twice as many save half of the memory at best: fewer would not do.
            times *= 2 ** math.ceil(math.log2(share))

    def _microbatches(self) -> dict[str, int]:
        """Returns the fields that say how many there are, of the run and of phases."""
        found = {_MICROBATCHES: self.config.optimizer.microbatches}
        for name, phase in self.config.phases.items():
            own = phase.get("optimizer", {}).get("microbatches")
            if own is not None:
                found[f"phases.{name}.{_MICROBATCHES}"] = own
        return found

    def _share(self, changes: Changes) -> float:
        """Returns how much of the memory a run takes that is changed so.

        Infinite where that cannot be helped by microbatches: rows, heads or tables
        that cannot be split so, or a state that is too large by itself.
        """
        config, pod = changed(self.config, changes), self.pod
        try:
            stages = outline_stages(
                config, teacher=self.teacher, report=lambda line: None
            )
            builder = pod.builder(stages)
        except UserError:
            return math.inf
        if sum(builder.state_bytes().values()) >= pod.available:
            return math.inf
        self.report("trying   " + spelled(changes))
        found = (pod.step(builder, stage) for _, stage in largest_stages(stages))
        return max(step.total / pod.available for step in found)


def changed(config: RunConfig, changes: Changes) -> RunConfig:
    """Returns the run with some fields of its groups, or of its phases, changed."""
    groups: dict[str, Changes] = {}
    phases: Mapping[str, Any] = config.phases
    for name, value in changes.items():
        *outer, group, field = name.split(".")
        if outer:
            _, phase = outer
            phases = merged(phases, {phase: {group: {field: value}}})
        else:
            groups.setdefault(group, {})[field] = value
    replaced: Changes = {
        group: dataclasses.replace(getattr(config, group), **fields)
        for group, fields in groups.items()
    }
    return dataclasses.replace(config, **replaced, phases=phases)


def spelled(changes: Changes) -> str:
    """Returns changes as they are written on the command line."""
    return " ".join(f"--config.{name}={value}" for name, value in changes.items())
