"""How fast a training step is: beside the same one in PyTorch, or another setting.

What is compared takes turns, step by step, in one run; times are medians by the clock
on the wall. Figures carry their units in their names.
"""

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax
import numpy as np

from encoderjax import resident, torch_step, torch_work
from encoderjax.data.pipeline import Batch
from encoderjax.experiment import Experiment
from encoderjax.phases import Stage
from encoderjax.train import first_program
from encoderjax.training.hardware import peak_flops
from encoderjax.training.mesh import BatchPlacement, filled_rows, make_mesh

Figures = dict[str, float]

_BATCHES = 4  # different ones, used in turn
_WARM_UP = 2  # steps of each that do not count


class OurStep:
    """The step of `encoderjax.train`, with the state that it goes on with.

    Attributes:
      compile_seconds: what tracing and compiling took, of which a cache may save most.
      planned_bytes: memory that the compiled step takes on one device.
    """

    def __init__(self, stage: Stage, batches: list[Batch]):
        self.mesh = make_mesh(stage.experiment.config.mesh)
        with jax.set_mesh(self.mesh):
            program, self.state = first_program(stage, self.mesh)
            placement = BatchPlacement(self.mesh, len(batches[0]["ids"]))
            self.batches = [placement.put(batch) for batch in batches]
            start = time.perf_counter()
            lowered = program.train_step.lower(self.state, self.batches[0])
            self.step = lowered.compile()
            self.compile_seconds = time.perf_counter() - start
        plan = self.step.memory_analysis()
        self.planned_bytes = plan.argument_size_in_bytes + plan.temp_size_in_bytes
        self.count = 0

    def run(self) -> float:
        """Makes a step; returns the seconds that it took."""
        batch = self.batches[self.count % len(self.batches)]
        self.count += 1
        start = time.perf_counter()
        self.state, metrics = self.step(self.state, batch)
        jax.block_until_ready((self.state, metrics))
        return time.perf_counter() - start


def measured(
    stage: Stage,
    *,
    turns: int,
    against_hf: bool = False,
    other: Stage | None = None,
) -> Figures:
    """Returns the figures of a training step.

    Args:
      stage: what is run.
      turns: timed steps of each contender.
      against_hf: whether PyTorch does the same work beside it.
      other: the same recipe with other settings, to be compared.
    """
    if against_hf:
        torch_work.check_installed()
    batches, host_seconds = _batches(stage)
    with contextlib.ExitStack() as stack:
        theirs = None
        if against_hf:
            theirs = stack.enter_context(_in_pytorch(stage.experiment, batches))
        resident.forget_peak()
        before = resident.bytes_now()
        ours = OurStep(stage, batches)
        contenders = {"": ours.run}
        tokens = {"": _tokens(batches), "hf_": _tokens(batches)}
        if other is not None:
            batches, _ = _batches(other)
            contenders["other_"] = OurStep(other, batches).run
            tokens["other_"] = _tokens(batches)
        if theirs is not None:
            contenders["hf_"] = theirs.run
        seconds, peak = _taking_turns(contenders, turns)
        figures = {
            "compile_seconds": ours.compile_seconds,
            "host_batch_seconds": host_seconds,
            "planned_memory_mb": ours.planned_bytes / 1e6,
        }
        if other is None:  # else it is the memory of both
            figures["memory_mb"] = _peak_memory(before) / 1e6
        if theirs is not None:
            figures["hf_memory_mb"] = theirs.peak_memory() / 1e6
    if peak is not None:
        figures["matmul_peak_flops_per_second"] = peak
        figures["of_matmul_peak_share"] = stage.flops_per_step / seconds[""] / peak
    for name, taken in seconds.items():
        figures[f"{name}step_seconds"] = taken
        figures[f"{name}tokens_per_second"] = tokens[name] / taken
        if name:
            own, there = (figures[f"{n}tokens_per_second"] for n in ("", name))
            figures[f"to_{name}ratio"] = own / there
    return figures


def _batches(stage: Stage) -> tuple[list[Batch], float]:
    """Returns the first batches of a run, and the seconds that making one takes."""
    config, batches, seconds = stage.experiment.config, [], []
    rows = np.arange(
        filled_rows(
            stage.source.batch_size,
            make_mesh(config.mesh),
            config.optimizer.microbatches,
        )
    )
    for step in range(_BATCHES):
        start = time.perf_counter()
        batches.append(stage.source.batch(step, rows))
        seconds.append(time.perf_counter() - start)
    return batches, statistics.median(seconds)


def _tokens(batches: Sequence[Batch]) -> float:
    """Returns the real tokens of a batch, in the mean."""
    return statistics.mean(float(batch["mask"].sum()) for batch in batches)


def _taking_turns(
    contenders: Mapping[str, Callable[[], float]], turns: int
) -> tuple[dict[str, float], float | None]:
    """Returns the median seconds of each, and the FLOP/s that the devices could do."""
    for run in contenders.values():
        for _ in range(_WARM_UP):
            run()
    resident.forget_peak()
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    peaks = []
    for _ in range(turns):
        for name, run in contenders.items():
            taken[name].append(run())
        # A CPU's is measured, and so among the steps: it changes as they do.
        peaks.append(peak_flops())
    medians = {name: statistics.median(values) for name, values in taken.items()}
    return medians, None if peaks[0] is None else statistics.median(peaks)


def _peak_memory(before: int) -> int:
    """Returns the bytes of the busiest device, or what this process grew by."""
    stats = [device.memory_stats() for device in jax.local_devices()]
    peaks = [found["peak_bytes_in_use"] for found in stats if found]
    return max(peaks) if peaks else resident.peak_bytes() - before


@contextlib.contextmanager
def _in_pytorch(
    experiment: Experiment, batches: list[Batch]
) -> Iterator[torch_step.Remote]:
    work = torch_work.work_of(experiment, batches)
    remote = torch_step.Remote(work)
    try:
        yield remote
    finally:
        remote.close()
