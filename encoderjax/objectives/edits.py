"""Tokens taken out of rows and put in: numpy, whole batches.

Rows stay as wide as they are: what is freed becomes padding. A text here is a run of
tokens without [CLS], [SEP] or padding between them; tokens are taken out of it and put
into it, never at its ends, so that every text keeps some and special tokens stay.

Shapes: B rows, L length, P slots.
"""

import dataclasses

import numpy as np

from encoderjax.data.pipeline import Batch, Lexicon

GAPS = "deletion/gaps"  # int32 [B, L], a label that goes with its token


@dataclasses.dataclass(frozen=True, eq=False)
class Edited:
    """Rows after an edit.

    Attributes:
      batch: with what is known of tokens at their new places.
      source_BL: where each token stood before; for a new one, where the token before it
        stood; -1 on padding.
      new_BL: whether a token was put in.
    """

    batch: Batch
    source_BL: np.ndarray
    new_BL: np.ndarray


def edited(
    batch: Batch, kept_BL: np.ndarray, followed_BL: np.ndarray, lexicon: Lexicon
) -> Edited:
    """Returns rows of the kept tokens alone, a free place after some of them.

    What stands at the free places is for the caller to say. They are of the segment and
    the document of the token before them.
    """
    sizes_BL = kept_BL + (kept_BL & followed_BL).astype(np.int64)
    ends_BL = np.cumsum(sizes_BL, axis=1)
    num_rows, length = kept_BL.shape
    begin_B1 = length - ends_BL[:, -1:] if lexicon.pads_left else 0
    place_BL = begin_B1 + ends_BL - sizes_BL
    source_BL = np.full((num_rows, length), -1)
    new_BL = np.zeros((num_rows, length), bool)
    for row, column, after in (
        (*np.nonzero(kept_BL), 0),
        (*np.nonzero(kept_BL & followed_BL), 1),
    ):
        source_BL[row, place_BL[row, column] + after] = column
        new_BL[row, place_BL[row, column] + after] = bool(after)

    mask_BL, from_BL = source_BL >= 0, np.maximum(source_BL, 0)
    out = batch | {"mask": mask_BL}
    # What is known of each token, and what of padding.
    known = {"ids": lexicon.vocabulary.pad_id, "segments": lexicon.pad_segment}
    known |= {"documents": 0, GAPS: 0}
    for name, padding in known.items():
        if name in batch:
            moved_BL = np.take_along_axis(batch[name], from_BL, axis=1)
            out[name] = np.where(mask_BL, moved_BL, padding).astype(np.int32)
    if GAPS in out:
        out[GAPS] = out[GAPS] * ~new_BL
    if "documents" in out:
        out["positions"] = _positions(out["documents"])
    return Edited(out, source_BL, new_BL)


def _positions(documents_BL: np.ndarray) -> np.ndarray:
    """Returns the place of each token in its document, 0 on padding."""
    begins_BL = np.ones(documents_BL.shape, bool)
    begins_BL[:, 1:] = documents_BL[:, 1:] != documents_BL[:, :-1]
    place_L = np.arange(documents_BL.shape[1], dtype=np.int32)
    first_BL = np.maximum.accumulate(np.where(begins_BL, place_L, 0), axis=1)
    return (place_L - first_BL) * (documents_BL > 0)


def moved_to(edit: Edited, positions_BP: np.ndarray) -> np.ndarray:
    """Returns where tokens stand after an edit, -1 if they are gone."""
    place_BL = np.full(edit.source_BL.shape, -1)
    row, column = np.nonzero((edit.source_BL >= 0) & ~edit.new_BL)
    place_BL[row, edit.source_BL[row, column]] = column
    return np.take_along_axis(place_BL, positions_BP, axis=1)


def before(marked_BL: np.ndarray) -> np.ndarray:
    """Returns bool [B, L]: the places of which the next one is marked."""
    return np.pad(marked_BL[:, 1:], ((0, 0), (0, 1)))


def after(marked_BL: np.ndarray) -> np.ndarray:
    """Returns bool [B, L]: the places of which the one before is marked."""
    return np.pad(marked_BL[:, :-1], ((0, 0), (1, 0)))


def inside(text_BL: np.ndarray) -> np.ndarray:
    """Returns bool [B, L]: the tokens of texts that neither begin nor end one."""
    return text_BL & before(text_BL) & after(text_BL)


def last_text(text_BL: np.ndarray) -> np.ndarray:
    """Returns bool [B, L]: the last text of each row without its first token."""
    # Past the end of the last text: text does not come again, or only its own does.
    later_BL = np.cumsum((text_BL & ~before(text_BL))[:, ::-1], axis=1)[:, ::-1]
    return text_BL & (later_BL == 1) & after(text_BL)


def at_slots(positions_BP: np.ndarray, used_BP: np.ndarray, length: int) -> np.ndarray:
    """Returns bool [B, L]: the places that used slots name."""
    marked_BL = np.zeros((len(positions_BP), length), bool)
    row, slot = np.nonzero(used_BP)
    marked_BL[row, positions_BP[row, slot]] = True
    return marked_BL


def counted(marked_BL: np.ndarray, batch: Batch) -> np.ndarray:
    """Returns how many are marked in each row, float32 [B]; 0 of rows that fill up."""
    return (marked_BL.sum(axis=1) * batch["row_weights"]).astype(np.float32)
