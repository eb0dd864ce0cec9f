"""One mask for a whole span: rows get shorter, and their text can be had back.

Shapes: B rows, L length, P prediction slots.
"""

import numpy as np

from encoderjax.data.pipeline import Batch
from encoderjax.objectives.replacement import KEPT
from encoderjax.objectives.spans import runs


def collapsed(batch: Batch, used_BP: np.ndarray, longest: int, pad_id: int) -> Batch:
    """Returns the batch with one place for each span that was masked or replaced.

    Of the tokens that were put in place of a span, the first stays. What follows in the
    row moves up, and the places that get free are padding at its end. Labels stay;
    `mlm/positions` are the new places, and `mlm/offsets` the token's number at its
    place.

    Args:
      batch: after each selected token was replaced by itself.
      used_BP: above 0 in the slots that are used, also in rows that count for nothing.
      longest: how many tokens a place stands for; a longer run has several places.
    """
    positions_BP = batch["mlm/positions"]
    first_BP, _ = runs(positions_BP, used_BP > 0)
    offsets_BP = (np.arange(positions_BP.shape[1]) - first_BP) % longest
    offsets_BP[(used_BP == 0) | (batch["mlm/kinds"] == KEPT)] = 0
    removed_BL = np.zeros(batch["mask"].shape, bool)
    row, slot = np.nonzero(offsets_BP)
    removed_BL[row, positions_BP[row, slot]] = True
    places_BL = np.cumsum(~removed_BL, axis=1, dtype=np.int32) - np.int32(1)
    places_BP = np.take_along_axis(places_BL, positions_BP - offsets_BP, axis=1)
    return (
        batch
        | _without(batch, removed_BL, pad_id)
        | {"mlm/positions": places_BP, "mlm/offsets": offsets_BP.astype(np.int32)}
    )


def _without(batch: Batch, removed_BL: np.ndarray, pad_id: int) -> Batch:
    """Returns what says something of each place, without some of them."""
    columns_L = np.arange(removed_BL.shape[1])
    filled_BL = columns_L < (~removed_BL).sum(axis=1)[:, None]
    moved: Batch = {}
    for name in {"ids", "mask", "segments", "documents"} & batch.keys():
        padding = pad_id if name == "ids" else 0
        moved[name] = np.full_like(batch[name], padding)
        moved[name][filled_BL] = batch[name][~removed_BL]
    if "positions" in batch:
        # They count up within a document, as before.
        begins_BL = np.diff(moved["documents"], axis=1, prepend=0) > 0
        begin_BL = np.maximum.accumulate(np.where(begins_BL, columns_L, 0), axis=1)
        positions_BL = (columns_L - begin_BL) * (moved["documents"] > 0)
        moved["positions"] = positions_BL.astype(batch["positions"].dtype)
    return moved


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
