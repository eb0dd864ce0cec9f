"""One mask for a whole span: rows get shorter, and their text can be had back.

Shapes: B rows, L length, P prediction slots.
"""

import numpy as np

from encoderjax.data.pipeline import Batch, Lexicon
from encoderjax.objectives.edits import at_slots, edited, moved_to
from encoderjax.objectives.replacement import KEPT
from encoderjax.objectives.spans import runs


def collapsed(
    batch: Batch, used_BP: np.ndarray, longest: int, lexicon: Lexicon
) -> Batch:
    """Returns the batch with one place for each span that was masked or replaced.

    Of the tokens that were put in place of a span, the first stays. What follows in the
    row moves up, and the places that get free are padding. Labels stay;
    `mlm/positions` are the new places, and `mlm/offsets` the token's number at its
    place.

    Args:
      batch: after each selected token was replaced by itself.
      used_BP: above 0 in the slots that are used, also in rows that count for nothing.
      longest: how many tokens a place stands for; a longer run has several places.
      lexicon: of the tokens.
    """
    positions_BP = batch["mlm/positions"]
    first_BP, _ = runs(positions_BP, used_BP > 0)
    offsets_BP = (np.arange(positions_BP.shape[1]) - first_BP) % longest
    offsets_BP[(used_BP == 0) | (batch["mlm/kinds"] == KEPT)] = 0
    removed_BL = at_slots(positions_BP, offsets_BP > 0, batch["mask"].shape[1])
    kept_BL = batch["mask"] & ~removed_BL
    edit = edited(batch, kept_BL, np.zeros_like(kept_BL), lexicon)
    places_BP = moved_to(edit, positions_BP - offsets_BP)
    return edit.batch | {
        # Unused slots have the place 0, which may be padding.
        "mlm/positions": np.where(used_BP > 0, places_BP, 0).astype(np.int32),
        "mlm/offsets": offsets_BP.astype(np.int32),
    }


def restored(
    batch: Batch,
    places_BP: tuple[np.ndarray, np.ndarray],
    labels_BP: np.ndarray,
    used_BP: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the text before anything was replaced: ids, mask and selected, [B, L].

    Args:
      batch: of which `ids` and `mask` are read.
      places_BP: of what was selected: positions, and the token's number at its place.
      labels_BP: the tokens that stood there.
      used_BP: whether a slot is used.
    """
    row, slot = np.nonzero(used_BP)
    position, offset = (x_BP[row, slot] for x_BP in places_BP)
    tokens_BL = np.ones(batch["ids"].shape, np.int32)  # that a place stands for
    np.maximum.at(tokens_BL, (row, position), offset + 1)
    begins_BL = np.cumsum(tokens_BL, axis=1) - tokens_BL
    # What a row lacks is made up by its padding; where that comes first, before it.
    more_B1 = (tokens_BL - 1).sum(axis=1, keepdims=True)
    begins_BL -= more_B1 * batch["mask"][:, -1:]
    ids_BL, mask_BL = batch["ids"].copy(), np.zeros_like(batch["mask"])
    real_row, column = np.nonzero(batch["mask"])
    begin = begins_BL[real_row, column]
    ids_BL[real_row, begin] = batch["ids"][real_row, column]
    mask_BL[real_row, begin] = True
    selected_BL = np.zeros_like(mask_BL)
    place = begins_BL[row, position] + offset
    ids_BL[row, place] = labels_BP[row, slot]
    mask_BL[row, place] = selected_BL[row, place] = True
    return ids_BL, mask_BL, selected_BL
