"""How much each language, or each corpus of a group, has of the text that is read."""

from collections.abc import Sequence

import numpy as np

ALPHA = 0.3  # XLM-R's, for its vocabulary as for its batches; mBERT had 0.7


def alpha_shares(counts: Sequence[int], alpha: float) -> np.ndarray:
    """Returns q_i = n_i^alpha / sum, the shares of members with so many sentences.

    1 leaves them as they are, 0 makes them equal (Conneau et al. 2020, section 3.1). A
    member without sentences has no share.
    """
    counts_M = np.asarray(counts, np.float64)
    powers_M = np.where(counts_M > 0, counts_M**alpha, 0.0)
    return powers_M / max(powers_M.sum(), 1e-300)
