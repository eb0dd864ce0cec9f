"""Single tokens, not all alike: by frequency (DistilBERT), or repeated (ELECTRA).

Shapes: B rows, L length, P prediction slots, V vocabulary.
"""

import numpy as np

from encoderjax.data.pipeline import Batch, Lexicon
from encoderjax.data.random import Draws
from encoderjax.objectives.masking import (
    Rate,
    Selected,
    candidates,
    in_slots,
    prediction_counts,
    rounded_at_random,
    smallest_keys,
)


def select_weighted(
    batch: Batch,
    rate: Rate,
    slots: int,
    draws: Draws,
    lexicon: Lexicon,
    *,
    smoothing: float = 0.7,
) -> Selected:
    """Chooses rare tokens more often: one after the other, by frequency^-smoothing.

    DistilBERT counts and draws over a whole batch. Here each row has its share, rounded
    up or down at random, so that the share of a batch is the same. Special tokens are
    not selected, the unknown one included.
    """
    ids_BL = batch["ids"]
    among_BL = candidates(batch, lexicon) & ~lexicon.vocabulary.special_V[ids_BL]
    counts_B = rounded_at_random(rate * batch["mask"].sum(axis=1), draws)
    counts_B = np.minimum(counts_B, slots)
    # Waiting times with these rates end in the order of draws without replacement.
    waits_V = np.maximum(lexicon.unigrams_V, 1).astype(np.float32) ** smoothing
    waits_V /= waits_V.max()
    bits_BL = (draws.bits("mlm/select", ids_BL.shape[1]) >> 8).astype(np.float32)
    keys_BL = -np.log((bits_BL + np.float32(0.5)) * np.float32(2.0**-24))
    keys_BL *= waits_V[ids_BL]
    # The bits of positive floats are in the order of their values.
    return smallest_keys(keys_BL.view(np.uint32), among_BL, counts_B, slots)


def select_with_replacement(
    batch: Batch, rate: Rate, slots: int, draws: Draws, lexicon: Lexicon
) -> Selected:
    """Draws single tokens, each time from all of them (ELECTRA).

    The number of draws is BERT's count. A token that was drawn twice has two slots, so
    it counts twice in the loss.
    """
    among_BL = candidates(batch, lexicon) & (batch["ids"] != lexicon.vocabulary.mask_id)
    tokens_B, length = among_BL.sum(axis=1), among_BL.shape[1]
    counts_B = prediction_counts(batch["mask"], rate, slots) * (tokens_B > 0)
    _, column = np.nonzero(among_BL)
    first_B1 = (np.cumsum(tokens_B) - tokens_B)[:, None]
    place_BP = first_B1 + draws.integers("mlm/select", slots, tokens_B[:, None])
    used_BP = np.arange(slots) < counts_B[:, None]
    positions_BP = np.full(place_BP.shape, length)
    positions_BP[used_BP] = column[place_BP[used_BP]]
    return in_slots(positions_BP, length, slots, np.zeros(len(tokens_B), int))
