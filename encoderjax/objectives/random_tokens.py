"""Tokens drawn at random, to stand where they do not belong.

Shapes: B rows, P places, V vocabulary.
"""

from typing import Literal

import numpy as np

from encoderjax.data.pipeline import Lexicon
from encoderjax.data.random import Draws
from encoderjax.errors import UserError

Distribution = Literal["uniform", "ordinary", "unigram"]


def random_tokens(
    wanted_BP: np.ndarray,
    distribution: Distribution,
    draws: Draws,
    lexicon: Lexicon,
    *,
    site: str,
    skip_first: int = 0,
) -> np.ndarray:
    """Returns ids [B, P], of no meaning where none is wanted.

    Args:
      wanted_BP: where they are.
      distribution: `uniform` over the whole vocabulary, `ordinary` over tokens that are
        not special, `unigram` as often as in the training text.
      draws: of the rows.
      lexicon: of the tokens.
      site: names the drawing.
      skip_first: with `uniform`, ids below this are never drawn.
    """
    slots = wanted_BP.shape[1]
    if distribution == "uniform":
        size = lexicon.vocabulary.size
        if skip_first >= size:
            raise UserError(
                f"objectives.mlm.replace.skip_first={skip_first} leaves nothing of a "
                f"vocabulary of {size}"
            )
        return skip_first + draws.integers(site, slots, size - skip_first)
    if distribution == "ordinary":
        ordinary = lexicon.vocabulary.ordinary_ids
        return ordinary[draws.integers(site, slots, len(ordinary))]
    total = lexicon.cumulative_V[-1]
    # 53 random bits, because a corpus has more tokens than 32 bits can count.
    high = draws.bits(site, slots)[wanted_BP]
    low = draws.bits(f"{site}_low", slots)[wanted_BP]
    share = high * 2.0**-32 + low * 2.0**-64
    ids_BP = np.zeros(wanted_BP.shape, np.int64)
    ids_BP[wanted_BP] = np.searchsorted(
        lexicon.cumulative_V, (share * total).astype(np.int64), "right"
    )
    return ids_BP
