"""Speeds of work that is compared: taking turns in one run, the best of several.

Seconds are those of the processor, over all threads. On a busy machine work of half a
second is always interrupted and work of milliseconds often is not, so that by the clock
on the wall the short one would look several times better than it is. Waiting, as for a
disk, does not count.
"""

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping

# Called with 0, 1, 2, ...; returns how much was done.
Work = Callable[[int], float]


def doing(amount: float, call: Callable[[], object]) -> Work:
    """Returns the work that calls, and counts as so much each time."""

    def work(number: int) -> float:
        call()
        return amount

    return work


def best_rates(
    work: Mapping[str, Work], turns: int, seconds: float = 0.0
) -> dict[str, float]:
    """Returns how much of each kind of work was done in a second, at its best.

    They take turns, so that what else the machine does falls on all of them. The first
    call of each is for its caches and does not count.

    Args:
      seconds: how long a turn is at least: short work is called several times.
    """
    numbers = {name: itertools.count() for name in work}
    for name, call in work.items():
        call(next(numbers[name]))
    best = dict.fromkeys(work, 0.0)
    for _ in range(turns):
        for name, call in work.items():
            end = time.monotonic() + seconds
            while True:
                start = time.process_time()
                done = call(next(numbers[name]))
                spent = time.process_time() - start
                if spent > 0:  # some systems count in large steps
                    best[name] = max(best[name], done / spent)
                if time.monotonic() >= end:
                    break
    return best


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Keeps the `tokenizers` library, which takes all cores it sees, to one of them."""
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ[name] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
