"""The training step of a phase, compiled from shapes, and what its program tells."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from encoderjax.outline import Outline
from encoderjax.phases import Stage
from encoderjax.train import check_batch, program_of
from encoderjax.training.hlo import Array, Collective, Program, global_arrays
from encoderjax.training.mesh import (
    BATCH_SPEC,
    batch_shards,
    filled_rows,
    map_with_names,
    platform_of,
)
from encoderjax.training.optimizer import make_optimizer
from encoderjax.training.step import TrainState, abstract_state
from encoderjax.training.topology import exceeded

PyTree = Any

# All-gathers below this, together, are of scores and the like: a few numbers a row.
_NOTABLE = 2**20
# For the compiler of TPUs, from -1 to 1. At -1 it crashes on some programs, and others
# take half as much memory again.
_QUICK: dict[str, Any] = {"exec_time_optimization_effort": -0.5}


@dataclasses.dataclass(frozen=True)
class Compiled:
    """What is known of the step of a phase.

    Attributes:
      needed: where it does not fit, the bytes that it needs on a device.
      memory: kind -> bytes on a device; of one that does not fit, of the state alone.
      collectives: what the devices exchange in a step.
      gathered: all-gathers of something else than parameters, the large ones.
      whole: arrays of the global batch, and what makes each.
      seconds: that compiling took.
    """

    needed: int | None
    memory: Mapping[str, int]
    collectives: tuple[Collective, ...] = ()
    gathered: tuple[Collective, ...] = ()
    whole: Mapping[str, str] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0

    @property
    def fits(self) -> bool:
        """Whether a device has room for it."""
        return self.needed is None

    @property
    def total(self) -> int:
        """Bytes on a device."""
        return sum(self.memory.values()) if self.needed is None else self.needed


@contextlib.contextmanager
def _not_kept() -> Iterator[None]:
    """Keeps programs of devices that are not here out of the cache of compiled ones.

    Without the devices they cannot be read from it again.
    """
    name = "jax_persistent_cache_min_compile_time_secs"
    before = getattr(jax.config, name)
    jax.config.update(name, math.inf)
    try:
        yield
    finally:
        jax.config.update(name, before)


@dataclasses.dataclass(frozen=True)
class Builder:
    """The shapes of a run's state on a mesh, which all of its phases share."""

    mesh: Mesh
    shapes: TrainState
    shardings: TrainState

    @classmethod
    def of(cls, stages: tuple[Stage, ...], mesh: Mesh) -> "Builder":
        """Makes the state as training does, without its arrays."""
        with jax.set_mesh(mesh):
            return cls.on(platform_of(mesh), stages, mesh)

    @classmethod
    def on(cls, platform: str, stages: tuple[Stage, ...], mesh: Any) -> "Builder":
        """The same on a mesh that may be abstract, of devices of a platform."""
        first = stages[0].experiment
        for stage in stages:
            check_batch(stage.experiment.config, mesh, stage.experiment.batch_size)
        optimizer, _ = make_optimizer(first.config.optimizer, first.config.steps)
        shapes, shardings = abstract_state(
            first.pretrainer(platform),
            optimizer,
            mesh,
            rows=first.batch_size,
            frozen=first.frozen(),
        )
        return cls(mesh, shapes, shardings)

    def state_bytes(self) -> dict[str, int]:
        """Returns what the state takes on a device, by kind."""
        of = lambda part: _bytes(
            getattr(self.shapes, part), getattr(self.shardings, part)
        )
        kinds = {
            "parameters": of("params"),
            "optimiser": of("opt_state"),
            "teacher": of("frozen"),
            "memory": of("carry"),
        }
        return {kind: size for kind, size in kinds.items() if size}

    def rows(self, stage: Stage) -> int:
        """Returns the rows that devices share in a step, with those that fill up."""
        return filled_rows(stage.experiment.batch_size, self.mesh, _parts(stage))

    def compiled(self, stage: Stage, *, quick: bool = False) -> Compiled:
        """Compiles the step of a phase.

        Args:
          stage: the phase.
          quick: whether to spend little on making the program fast.
        """
        assert isinstance(stage.experiment, Outline)
        by_row = NamedSharding(self.mesh, BATCH_SPEC)
        shapes = stage.experiment.batch_shapes(self.rows(stage))
        batch = {name: _placed(shape, by_row) for name, shape in shapes.items()}
        state = jax.tree.map(_placed, self.shapes, self.shardings)
        memory = self.state_bytes()
        memory["batch"] = _bytes(batch, dict.fromkeys(batch, by_row))
        start = time.perf_counter()
        with jax.set_mesh(self.mesh), _not_kept():
            step = program_of(stage, self.mesh, self.shardings).train_step
            try:
                compiled = step.lower(state, batch).compile(_QUICK if quick else None)
            except jax.errors.JaxRuntimeError as error:
                seconds = time.perf_counter() - start
                return Compiled(exceeded(error)[0], memory, seconds=seconds)
        seconds = time.perf_counter() - start
        program = Program(compiled.as_text())
        rows, lengths = self._sizes(stage, shapes)
        kept = _kept(program, rows[-1], lengths)
        stats = compiled.memory_analysis()
        assert stats is not None
        # The peak is less than arguments and temporaries: donated arrays are used anew.
        inside = stats.peak_memory_in_bytes - stats.argument_size_in_bytes
        memory["padding"] = stats.argument_size_in_bytes - sum(memory.values())
        memory["activations"] = min(kept, inside)
        memory["temporaries"] = inside - memory["activations"]
        memory["program"] = stats.generated_code_size_in_bytes
        collectives = program.collectives(self.mesh.shape)
        return Compiled(
            None,
            memory,
            tuple(collectives),
            self._gathered(collectives),
            global_arrays(program, set(rows[:2]) - set(rows[2:]), lengths),
            seconds,
        )

    def _sizes(
        self, stage: Stage, shapes: Mapping[str, jax.ShapeDtypeStruct]
    ) -> tuple[tuple[int, ...], set[int]]:
        """Returns the rows of a batch and of a microbatch, all and on one device.

        Also what comes after them: the length, and the slots that are predicted.
        """
        rows, parts = self.rows(stage), _parts(stage)
        shards = batch_shards(self.mesh)
        every = (rows, rows // parts, rows // shards, rows // shards // parts)
        return every, {s.shape[1] for s in shapes.values() if len(s.shape) == 2}

    def _gathered(self, collectives: list[Collective]) -> tuple[Collective, ...]:
        """Returns the large all-gathers whose size is not that of a parameter.

        Parameters are gathered whole or layer by layer, over all axes but `model`.
        """
        sizes: set[int] = set()

        def note(name: str, leaf) -> None:
            axes = [axis for part in leaf.sharding.spec for axis in _as_tuple(part)]
            size = leaf.size // (self.mesh.shape["model"] if "model" in axes else 1)
            sizes.update((size, size // leaf.shape[0]) if leaf.shape else (size,))

        params = jax.tree.map(_placed, self.shapes.params, self.shardings.params)
        map_with_names(note, params)
        if self.shapes.frozen:
            frozen = jax.tree.map(_placed, self.shapes.frozen, self.shardings.frozen)
            map_with_names(note, frozen)
        known = lambda array: array.size in sizes
        return tuple(
            collective
            for collective in collectives
            if collective.kind == "all-gather"
            and not all(map(known, collective.arrays))
            and collective.bytes >= _NOTABLE
        )


def _parts(stage: Stage) -> int:
    return stage.experiment.config.optimizer.microbatches


def _as_tuple(axes: Any) -> tuple[str, ...]:
    return axes if isinstance(axes, tuple) else (axes,)


def _placed(shape, sharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)


def _bytes(shapes: PyTree, shardings: PyTree) -> int:
    """Returns what arrays take on one device."""
    size = lambda leaf, sharding: (
        jax.ShapeDtypeStruct(sharding.shard_shape(leaf.shape), leaf.dtype).size
        * leaf.dtype.itemsize
    )
    return sum(jax.tree.leaves(jax.tree.map(size, shapes, shardings)))


def _kept(program: Program, rows: int, lengths: set[int]) -> int:
    """Returns the bytes of states that the layers leave for their gradients.

    They are what the loop over the layers carries along: [layers, rows, length, ...].
    """

    def is_kept(array: Array) -> bool:
        _, *dims = array.dims or (0,)
        return dims[:1] == [rows] and not lengths.isdisjoint(dims[1:])

    of = lambda state: sum(array.bytes for array in state if is_kept(array))
    return max(map(of, program.loop_states()), default=0)
