"""The share of tokens to predict: a number, a range, a schedule, or by density.

Shapes: B rows, L length, V vocabulary.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeGuard

import numpy as np

from encoderjax.data.pipeline import Batch, Lexicon
from encoderjax.data.random import Draws
from encoderjax.errors import UserError
from encoderjax.objectives.masking import Rate, candidates

DENSITY = "density"
_MEAN, _LEAST, _MOST = 0.15, 0.1, 0.225  # of the rates by density


@dataclasses.dataclass(frozen=True, kw_only=True)
class RateSchedule:
    """A rate that moves in a straight line over the first steps of a run, then stays.

    Attributes:
      first: of step 0.
      last: from step `steps` on, and in evaluation.
      steps: from one to the other.
    """

    first: float
    last: float
    steps: int

    def __post_init__(self):
        shares = {"first": self.first, "last": self.last}
        for name, share in shares.items():
            if not _is_share(share):
                raise UserError(f"objectives.mlm.rate.{name}={share} must be in (0, 1]")
            object.__setattr__(self, name, float(share))
        if not _is_whole(self.steps) or self.steps < 1:
            raise UserError(
                f"objectives.mlm.rate.steps={self.steps} must be a whole number, at "
                "least 1"
            )

    def at(self, step: int | None) -> float:
        """Returns the rate of a step; None = evaluation."""
        if step is None or step >= self.steps:
            return self.last
        return self.first + (self.last - self.first) * (step / self.steps)


# What a recipe may say: 0.15, (0.1, 0.3), dict(first=0.3, last=0.15, steps=10_000) or
# "density".
RateSetting = float | tuple[float, float] | RateSchedule | str


def checked_rate(rate: object) -> RateSetting:
    """Returns `rate` in plain types, or refuses it."""
    if isinstance(rate, RateSchedule):
        return rate
    if isinstance(rate, Mapping):
        return _schedule(rate)
    if isinstance(rate, str) and rate == DENSITY:
        return DENSITY
    if _is_share(rate):
        return float(rate)
    if isinstance(rate, tuple | list) and len(rate) == 2 and all(map(_is_share, rate)):
        low, high = map(float, rate)
        if low <= high:
            return low, high
    raise UserError(
        f"objectives.mlm.rate={rate} must be in (0, 1], or two such numbers, "
        f"(low, high), to draw from for each row, or dict(first=, last=, steps=), or "
        f"{DENSITY!r}"
    )


def _schedule(values: Mapping) -> RateSchedule:
    """Builds a schedule from plain values, or from what was typed for them."""
    names = [field.name for field in dataclasses.fields(RateSchedule)]
    if set(values) != set(names):
        raise UserError(
            f"objectives.mlm.rate={dict(values)} must have exactly the fields "
            f"{', '.join(names)}"
        )
    return RateSchedule(**{name: _untyped(values[name]) for name in names})


def _untyped(value: Any) -> Any:
    """Returns the number that a text spells; what is none is returned as it is."""
    if not isinstance(value, str):
        return value
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_share(value: object) -> TypeGuard[float]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0.0 < value <= 1.0


def largest_rate(rate: RateSetting) -> float:
    """Returns the largest rate that a row may have."""
    if isinstance(rate, str):
        return _MOST
    if isinstance(rate, RateSchedule):
        return max(rate.first, rate.last)
    return rate[1] if isinstance(rate, tuple) else rate


def row_rates(rate: RateSetting, batch: Batch, draws: Draws, lexicon: Lexicon) -> Rate:
    """Returns the rate of all rows, or of each, [B].

    By density: 0.15 x the mean surprisal of the corpus / that of the row, between 0.1
    and 0.225. Where each token tells much, fewer can be spared.
    """
    if isinstance(rate, tuple):
        low, high = rate
        share_B = draws.uniform("mlm/rate", 1)[:, 0].astype(np.float64)
        return low + (high - low) * share_B
    if isinstance(rate, RateSchedule):
        return rate.at(draws.step)
    if isinstance(rate, float):
        return rate
    counts_V = lexicon.unigrams_V + 1.0
    shares_V = counts_V / counts_V.sum()
    surprisal_V = -np.log(shares_V)
    among_BL = candidates(batch, lexicon)
    row_B = (surprisal_V[batch["ids"]] * among_BL).sum(axis=1)
    row_B /= np.maximum(among_BL.sum(axis=1), 1)
    mean = (shares_V * surprisal_V).sum()
    return np.clip(_MEAN * mean / np.maximum(row_B, 1e-9), _LEAST, _MOST)
