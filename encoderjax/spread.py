"""A figure that was measured several times: its mean, and how far runs lie from it."""

import dataclasses
import statistics
from collections.abc import Sequence

_BEYOND = 2.0  # standard deviations of a run


@dataclasses.dataclass(frozen=True)
class Measured:
    """One figure over several runs.

    Attributes:
      mean: of the runs.
      deviation: the standard deviation of a run; None where there is only one.
    """

    mean: float
    deviation: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Measured":
        """Returns what some runs found."""
        spread = statistics.stdev(values) if len(values) > 1 else None
        return cls(statistics.mean(values), spread)

    def __str__(self) -> str:
        if self.deviation is None:
            return f"{self.mean:.3f}"
        return f"{self.mean:.3f} ± {self.deviation:.3f}"

    @property
    def reach(self) -> float | None:
        """How far from the mean a run may be expected."""
        return None if self.deviation is None else _BEYOND * self.deviation

    def within_spread_of(self, other: "Measured") -> bool | None:
        """Says whether the means differ by no more than the spread, if it is known.

        The spread is twice the standard deviation of a run, pooled over both. With
        three runs a side, chance alone goes beyond it in one comparison of fourteen
        (Student's t of 2.45 with 4 degrees of freedom), with five in one of 75.
        """
        if self.deviation is None or other.deviation is None:
            return None
        pooled = ((self.deviation**2 + other.deviation**2) / 2) ** 0.5
        return abs(self.mean - other.mean) <= _BEYOND * pooled
