"""What both sides of a race go by: when they are timed, and when they are measured."""

import itertools

Point = dict[str, float]  # seconds, step and held-out metrics

WARM_UP = 3  # steps that are not timed
_LEAST, _SHARE, _LONGEST = 10, 1 / 60, 30.0  # steps, of the run, and seconds that are
_MEASURED = 16  # times in a run, evenly, and more often before the first of them


def timed_enough(steps: int, taken: float, seconds: float) -> bool:
    """Says whether so many steps tell how many a run of so many seconds will have."""
    return steps >= _LEAST and taken >= min(_LONGEST, _SHARE * seconds)


def steps_in(seconds: float, seconds_per_step: float) -> int:
    """Returns how many steps fill a time."""
    return max(1, round(seconds / seconds_per_step))


def measured_after(steps: int) -> list[int]:
    """Returns after which steps a run of so many is measured.

    At first after 1, 2, 4, ..., so that the beginning is seen.
    """
    marks = {max(1, round(steps * n / _MEASURED)) for n in range(1, _MEASURED + 1)}
    early = itertools.takewhile(lambda n: n < min(marks), (2**n for n in range(64)))
    return sorted(marks.union(early))
