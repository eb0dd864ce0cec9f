"""Insertion: random tokens are put in, and found extraneous.

Shapes: B batch, L length, P slots.
"""

import dataclasses
import math
from typing import ClassVar, Literal

import numpy as np

from encoderjax.data.pipeline import Batch, Lexicon
from encoderjax.data.random import Draws
from encoderjax.models.config import EncoderConfig
from encoderjax.models.encoder import Outputs
from encoderjax.models.flops import detection_flops
from encoderjax.models.heads import EncoderModel
from encoderjax.objectives.denoising import Denoising, binary_counts, binary_sums
from encoderjax.objectives.edits import (
    GAPS,
    after,
    at_slots,
    before,
    counted,
    edited,
    last_text,
    moved_to,
)
from encoderjax.objectives.masking import (
    ALTERED,
    candidates,
    rounded_at_random,
    smallest_keys,
)
from encoderjax.objectives.objective import DeviceBatch, Terms
from encoderjax.objectives.random_tokens import random_tokens

EXTRANEOUS = "insertion/extraneous"
_NAMES = {
    "loss": "insertion_loss",
    "accuracy": "insertion_accuracy",
    "share": "insertion_inserted_share",
    "positive": "insertion_accuracy_inserted",
    "negative": "insertion_accuracy_original",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Insertion(Denoising):
    """Tells the tokens that were put in from those of the text.

    There is at most one between two neighbours of a text. Of equal neighbours the last
    ones count as put in. Where the padding of a row is too short for them (tokens that
    deletion took out make room as well), the last text of the row loses its last
    tokens, as if the row had been cut there. It keeps its first one; so a row whose
    last text is short may have fewer put in.

    Batch keys: `insertion/extraneous` int32 [B, L] (1 = put in); `insertion/cut`
    float32 [B], how many tokens made room; `altered` bool [B, L], what masked LM leaves
    alone.

    Terms: `insertion_loss`, `insertion_accuracy` by real token, [CLS] and [SEP] too,
    with the accuracies of both kinds, `insertion_accuracy_inserted` and
    `insertion_accuracy_original`, and the share `insertion_inserted_share`.

    Attributes:
      distribution: of the tokens: `unigram` as often as in the training text, so that a
        token does not tell by itself what it is; `ordinary` all alike but special ones.
    """

    name: ClassVar[str] = "insertion"
    heads: ClassVar[tuple[str, ...]] = ("insertion",)

    distribution: Literal["unigram", "ordinary"] = "unigram"

    # ---- host ----

    def corrupt(self, batch: Batch, draws: Draws, lexicon: Lexicon) -> Batch:
        """Puts tokens in."""
        text_BL, mask_BL = candidates(batch, lexicon), batch["mask"]
        length = text_BL.shape[1]
        slots = math.ceil(self.rate * length)
        room_B, may_go_BL = (~mask_BL).sum(axis=1), last_text(text_BL)
        between_BL = text_BL & before(text_BL)
        if GAPS in batch:
            between_BL &= batch[GAPS] == 0
        counts_B = rounded_at_random(
            self.rate * text_BL.sum(axis=1), draws, "insertion/round"
        )
        # What is cut is lost as a place, too.
        places_B = between_BL.sum(axis=1)
        most_B = np.minimum(places_B, (places_B + room_B) // 2)
        counts_B = np.minimum(counts_B, most_B)
        counts_B = np.minimum(counts_B, room_B + may_go_BL.sum(axis=1))
        # From the end of the last text.
        number_BL = np.cumsum(may_go_BL[:, ::-1], axis=1)[:, ::-1]
        cut_BL = may_go_BL & (number_BL <= (counts_B - room_B)[:, None])

        between_BL &= before(text_BL & ~cut_BL)
        keys_BL = draws.bits("insertion/select", length)
        chosen = smallest_keys(keys_BL, between_BL, counts_B, slots)
        used_BP = chosen.weights_BP > 0
        followed_BL = at_slots(chosen.positions_BP, used_BP, length)
        if GAPS in batch:  # what is cut behind a gap leaves nothing to tell it by
            batch = batch | {GAPS: batch[GAPS] * ~before(cut_BL)}
        edit = edited(batch, mask_BL & ~cut_BL, followed_BL, lexicon)
        ids_BP = random_tokens(
            used_BP, self.distribution, draws, lexicon, site="insertion/random"
        )
        ids_BL = edit.batch["ids"]
        ids_BL[edit.new_BL] = ids_BP[used_BP]  # both in the order of their places
        put_in_BL = _last_of_equals(edit.batch, edit.new_BL)
        out = edit.batch | {
            EXTRANEOUS: put_in_BL.astype(np.int32),
            ALTERED: put_in_BL,
            "insertion/cut": counted(cut_BL, batch),
        }
        if GAPS in batch:  # gaps go with their tokens, and may be cut
            positions_BP = moved_to(edit, batch["deletion/positions"])
            at_BP = np.maximum(positions_BP, 0)
            gap_BP = np.take_along_axis(edit.batch[GAPS], at_BP, axis=1) > 0
            there_BP = (positions_BP >= 0) & gap_BP
            out["deletion/positions"] = np.where(there_BP, positions_BP, 0).astype("i4")
            out["deletion/weights"] = batch["deletion/weights"] * there_BP
        return out

    # ---- device ----

    def counts(self, batch: DeviceBatch) -> Terms:
        """Counts real tokens, all and by kind."""
        return binary_counts(batch, batch[EXTRANEOUS], _NAMES)

    def flops(self, model: EncoderConfig, length: int, slots: int) -> float:
        """Counts a score of every token."""
        return detection_flops(model, length)

    def sums(self, model: EncoderModel, outputs: Outputs, batch: DeviceBatch) -> Terms:
        """Adds up binary cross-entropy and hits over all real tokens."""
        scores_BL = model.detection_logits(outputs, self.name)
        return binary_sums(batch, batch[EXTRANEOUS], scores_BL, _NAMES)


def _last_of_equals(batch: Batch, new_BL: np.ndarray) -> np.ndarray:
    """Returns which tokens count as put in: the last ones of those that are equal.

    Of equal neighbours nobody could tell which. A token before a gap is always of the
    text, since nothing is put in there.
    """
    begins_BL = np.ones(new_BL.shape, bool)
    begins_BL[:, 1:] = batch["ids"][:, 1:] != batch["ids"][:, :-1]
    if GAPS in batch:
        gaps_BL = batch[GAPS] > 0
        begins_BL |= gaps_BL | after(gaps_BL)
    run_BL = (np.cumsum(begins_BL) - 1).reshape(new_BL.shape)
    sizes_R, put_in_R = np.bincount(run_BL.ravel()), np.bincount(run_BL[new_BL])
    put_in_R = np.pad(put_in_R, (0, len(sizes_R) - len(put_in_R)))
    ends_R = np.cumsum(sizes_R)
    left_BL = ends_R[run_BL] - np.arange(new_BL.size).reshape(new_BL.shape)
    return left_BL <= put_in_R[run_BL]
