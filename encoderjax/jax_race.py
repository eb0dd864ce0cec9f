"""Our side of a race: the run, its model, and how long a run takes to begin.

The clock begins with the process, as that of a user who starts a command does: it runs
while libraries are imported, the corpus is opened and the step is compiled. It stands
still while the model is measured.
"""

import contextlib
import dataclasses
import itertools
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from encoderjax.beside import Beside
from encoderjax.caching import keep_compiled_programs
from encoderjax.config import RunConfig
from encoderjax.data.pipeline import BatchSource, prefetched
from encoderjax.experiment import Experiment
from encoderjax.interop.export_folder import whole_folder
from encoderjax.interop.loading import LoadedModel
from encoderjax.interop.writing import write_hf, write_tokenizer
from encoderjax.loop import Program
from encoderjax.phases import Stage, open_stages
from encoderjax.race_clock import WARM_UP, Point, measured_after, steps_in, timed_enough
from encoderjax.train import first_program
from encoderjax.training.evaluation import evaluate
from encoderjax.training.mesh import BatchPlacement, make_mesh
from encoderjax.training.step import TrainState

_ENDLESS = 10**9  # steps
_AT_ONCE = 10  # steps that are waited for together, as in training


def ran(
    stage: Stage, held_out: tuple[BatchSource, int], seconds: float, model: Path
) -> dict[str, Any]:
    """Returns the points of our run and its beginning, and writes its model.

    The second and every later start of a run finds the programs that the first one
    compiled: `start` is that of those, `first_start` the very first one.
    """
    first, later = _starts(stage.experiment.config)
    mesh = make_mesh(stage.experiment.config.mesh)
    with jax.set_mesh(mesh):
        left = max(1.0, seconds - later)
        steps = steps_in(left, _seconds_per_step(stage, mesh, seconds))
        program, state = first_program(lasting(stage, steps), mesh)
        points, state = _points(program, state, mesh, held_out, later)
    _write(stage.experiment, jax.device_get(state.params), model)
    return {"first_start": first, "start": later, "points": points}


def lasting(stage: Stage, steps: int) -> Stage:
    """Returns the same run with so many steps, and the shape of its schedule."""
    config = stage.experiment.config
    share = steps / config.steps
    optimizer = dataclasses.replace(
        config.optimizer,
        warmup_steps=round(share * config.optimizer.warmup_steps),
        decay_steps=round(share * config.optimizer.decay_steps),
    )
    changed = dataclasses.replace(config, steps=steps, optimizer=optimizer)
    return open_stages(changed, lambda text: None, None)[0]


def _starts(config: RunConfig) -> tuple[float, float]:
    """Returns how long it takes to begin, for the first time and from then on."""
    with tempfile.TemporaryDirectory() as programs:
        first, later = (_start(config, Path(programs)) for _ in range(2))
    return first, later


def _start(config: RunConfig, programs: Path) -> float:
    """Returns how long a process of its own takes until it can make a step."""
    ended = "the process whose start is timed ended with exit code {}; see above"
    begun = time.time()
    with contextlib.closing(Beside(__name__, ended)) as process:
        process.send((config, programs, begun))
        return process.receive()


def serve(pipe: Connection) -> None:
    """Does all that comes before the first step, and says how long it took."""
    config, programs, begun = pipe.recv()
    keep_compiled_programs(programs)
    stage = open_stages(config, lambda text: None, None)[0]
    mesh = make_mesh(stage.experiment.config.mesh)
    with jax.set_mesh(mesh):
        program, state = first_program(stage, mesh)
        with contextlib.closing(_batches(program, mesh, 1)) as batches:
            program.train_step.lower(state, next(batches)).compile()
            jax.block_until_ready(state)
    pipe.send(time.time() - begun)


def _seconds_per_step(stage: Stage, mesh: Mesh, seconds: float) -> float:
    """Times steps of a run that is then thrown away."""
    program, state = first_program(stage, mesh)
    taken, start = 0.0, 0.0
    with contextlib.closing(_batches(program, mesh, _ENDLESS)) as batches:
        for step, batch in enumerate(batches, start=1 - WARM_UP):
            state, metrics = program.train_step(state, batch)
            if step % _AT_ONCE == 0:
                jax.block_until_ready((state, metrics))
                taken = time.perf_counter() - start if step else 0.0
                start = start if step else time.perf_counter()
                if timed_enough(step, taken, seconds):
                    break
    return taken / step


def _points(
    program: Program,
    state: TrainState,
    mesh: Mesh,
    held_out: tuple[BatchSource, int],
    spent: float,
) -> tuple[list[Point], TrainState]:
    """Returns what is measured of a run that took `spent` seconds to begin."""
    source, rows = held_out

    def measured() -> Point:
        means = evaluate(
            program.eval_step, state.params, source, mesh=mesh, num_rows=rows
        ).means()
        return {name: means[name] for name in ("mlm_loss", "mlm_accuracy")}

    points = [{"seconds": spent, "step": 0, **measured()}]
    marks = measured_after(program.last)
    with contextlib.closing(_batches(program, mesh, program.last)) as batches:
        first = next(batches)
        train_step = program.train_step.lower(state, first).compile()
        start = time.perf_counter()
        for step, batch in enumerate(itertools.chain((first,), batches), start=1):
            state, metrics = train_step(state, batch)
            if step % _AT_ONCE == 0 or step in marks:
                jax.block_until_ready((state, metrics))
            if step in marks:
                spent += time.perf_counter() - start
                points.append({"seconds": spent, "step": step, **measured()})
                start = time.perf_counter()
    return points, state


def _write(experiment: Experiment, params: dict, folder: Path) -> None:
    """Writes a trained model as `transformers` has it."""
    family, tokenizer = experiment.config.model.family, experiment.corpus.tokenizer
    assert family is not None
    loaded = LoadedModel(
        family=family,
        config=experiment.encoder,
        params=params,
        head_names=experiment.head_names,
        tokenizer=tokenizer,
        source=folder,
    )
    with whole_folder(folder) as partial:
        write_hf(partial, loaded, "float32")
        write_tokenizer(partial, tokenizer, experiment.encoder.max_length)


def _batches(program: Program, mesh: Mesh, steps: int):
    """Yields the batches of a run on their devices, made ahead as in training."""
    placement = BatchPlacement(mesh, program.source.batch_size)
    make = lambda step: program.source.batch(step, placement.rows)
    with contextlib.closing(prefetched(make, range(steps))) as batches:
        for batch in batches:
            yield placement.put(batch)
