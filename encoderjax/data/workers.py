"""Runs one function over many tasks: here, in processes, or under Apache Beam.

What a task gives does not depend on who does it, nor when.
"""

import concurrent.futures
import contextlib
import multiprocessing
import os
import pickle
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from encoderjax.data import storage
from encoderjax.errors import UserError

_POLL = 0.2  # seconds between looks at what the workers say
_TOLD = 0.5  # seconds between two words of a worker

# (task, progress) -> result
Function = Callable[[Any, Callable[[int], object]], Any]


class Workers(Protocol):
    """Whoever does the tasks."""

    count: int

    def results(
        self, function: Function, tasks: Sequence, progress: Callable[[int], object]
    ) -> Iterator[tuple[int, Any]]:
        """Yields number and result of each task, as they are done."""
        ...


class InPlace:
    """This process, one task after the other."""

    count = 1

    def results(
        self, function: Function, tasks: Sequence, progress: Callable[[int], object]
    ) -> Iterator[tuple[int, Any]]:
        """Yields number and result of each task, in their order."""
        for number, task in enumerate(tasks):
            yield number, function(task, progress)


class Processes:
    """Processes on this machine, each with one thread.

    They are started anew, not forked: threads of this process, of tokenizers for
    example, do not survive a fork.
    """

    def __init__(self, count: int):
        self.count = count

    def results(
        self, function: Function, tasks: Sequence, progress: Callable[[int], object]
    ) -> Iterator[tuple[int, Any]]:
        """Yields number and result of each task, as they are done."""
        context = multiprocessing.get_context("spawn")
        said: Any = context.Queue()
        pool = concurrent.futures.ProcessPoolExecutor(
            min(self.count, len(tasks)), context, _begin, (said, os.getpid())
        )
        try:
            with _single_threaded():
                futures = {
                    pool.submit(_done, function, task): number
                    for number, task in enumerate(tasks)
                }
            waiting = set(futures)
            while waiting:
                finished, waiting = concurrent.futures.wait(
                    waiting, _POLL, concurrent.futures.FIRST_COMPLETED
                )
                with contextlib.suppress(queue.Empty):
                    while True:
                        progress(said.get_nowait())
                for future in finished:
                    yield futures[future], _result(future)
        finally:
            # Also on the way out of an error: nobody waits for the rest.
            for process in list((pool._processes or {}).values()):
                process.terminate()
            pool.shutdown(wait=True, cancel_futures=True)


def _result(future: concurrent.futures.Future) -> Any:
    try:
        return future.result()
    except concurrent.futures.process.BrokenProcessPool as error:
        raise UserError(
            "a worker ended without a word, perhaps for lack of memory; run the same "
            "command again with fewer --workers or a smaller --shard_mb, it continues"
        ) from error


@contextlib.contextmanager
def _single_threaded() -> Iterator[None]:
    """Lets processes that are started here use one thread each."""
    names = ("TOKENIZERS_PARALLELISM", "RAYON_NUM_THREADS", "OMP_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(zip(names, ("false", "1", "1"), strict=True))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


_said: Any = None  # in a worker: where it tells its progress


def _begin(said: Any, parent: int) -> None:
    """Prepares a worker: it does not outlive the process that started it."""
    global _said
    _said = said

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _done(function: Function, task: Any) -> Any:
    """Does a task in a worker."""
    told, amount = time.monotonic(), 0

    def progress(done: int) -> None:
        nonlocal told, amount
        amount += done
        if time.monotonic() - told > _TOLD:
            _said.put(amount)
            told, amount = time.monotonic(), 0

    result = function(task, progress)
    _said.put(amount)
    return result


class Beam:
    """Whatever runner Apache Beam was told to use.

    Results come back as files in a folder that all of its workers can reach.
    """

    def __init__(self, count: int, folder: str, options: Sequence[str]):
        try:
            import apache_beam  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise UserError(
                "--runner=beam needs the package 'apache-beam'; run pip install "
                "'encoderjax[beam]'"
            ) from error
        self.count, self._beam = count, apache_beam
        self._folder, self._options = folder, list(options)

    def results(
        self, function: Function, tasks: Sequence, progress: Callable[[int], object]
    ) -> Iterator[tuple[int, Any]]:
        """Yields number and result of each task, when all are done."""
        del progress  # nothing is heard of a task before its end
        beam, folder = self._beam, self._folder
        options = beam.options.pipeline_options.PipelineOptions(self._options)
        with beam.Pipeline(options=options) as pipeline:
            _ = (
                pipeline
                | beam.Create(list(enumerate(tasks)))
                | beam.Reshuffle()
                | beam.Map(_kept, function, folder)
            )
        for number in range(len(tasks)):
            yield number, pickle.loads(storage.read_bytes(_result_path(folder, number)))


def _kept(numbered: tuple[int, Any], function: Function, folder: str) -> None:
    number, task = numbered
    result = pickle.dumps(function(task, lambda done: None))
    storage.write_file(_result_path(folder, number), (result,))


def _result_path(folder: str, number: int) -> str:
    return storage.join(folder, f"result-{number:05d}.pickle")
