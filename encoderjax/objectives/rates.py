"""The share of tokens to predict: a number, a range, or by the density of the text.

Shapes: B rows, L length, V vocabulary.
"""

from typing import TypeGuard

import numpy as np

from encoderjax.data.pipeline import Batch, Lexicon
from encoderjax.data.random import Draws
from encoderjax.errors import UserError
from encoderjax.objectives.masking import Rate, candidates

# What a recipe may say: 0.15, (0.1, 0.3) or "density".
RateSetting = float | tuple[float, float] | str

DENSITY = "density"
_MEAN, _LEAST, _MOST = 0.15, 0.1, 0.225  # of the rates by density


def checked_rate(rate: object) -> RateSetting:
    """Returns `rate` in plain types, or refuses it."""
    if rate == DENSITY:
        return DENSITY
    if _is_share(rate):
        return float(rate)
    if isinstance(rate, tuple | list) and len(rate) == 2 and all(map(_is_share, rate)):
        low, high = map(float, rate)
        if low <= high:
            return low, high
    raise UserError(
        f"objectives.mlm.rate={rate} must be in (0, 1], or two such numbers, "
        f"(low, high), to draw from for each row, or {DENSITY!r}"
    )


def _is_share(value: object) -> TypeGuard[float]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0.0 < value <= 1.0


def largest_rate(rate: RateSetting) -> float:
    """Returns the largest rate that a row may have."""
    if isinstance(rate, str):
        return _MOST
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
