"""Reordering: neighbouring words change places, and what belongs there is predicted.

Shapes: B batch, L length, P slots, W words of a row, N windows of a row.
"""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from encoderjax.data.pipeline import Batch, DataConfig, Lexicon
from encoderjax.data.random import Draws
from encoderjax.errors import UserError
from encoderjax.models.config import EncoderConfig
from encoderjax.models.encoder import Outputs
from encoderjax.models.flops import vocabulary_flops
from encoderjax.models.heads import EncoderModel
from encoderjax.objectives.denoising import Denoising
from encoderjax.objectives.edits import GAPS, after
from encoderjax.objectives.masking import (
    ALTERED,
    Words,
    candidates,
    chosen_tokens,
)
from encoderjax.objectives.objective import DeviceBatch, Terms
from encoderjax.objectives.vocabulary_loss import predicted


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reordering(Denoising):
    """Predicts what belongs where neighbouring words were moved.

    A text is divided into windows of so many words, from a random one on. Windows are
    drawn until the share of tokens is reached; the one that passes it is taken as often
    as keeps the mean. Each word of such a window moves, in one random cycle, and keeps
    its pieces. The head is that of masked LM: it is asked the same, and a token from
    next door stands in the place of the mask.

    Batch keys, all [B, P]: `reordering/positions` int32, the places whose token came
    from another; `reordering/labels` int32, the tokens that belong there;
    `reordering/weights` float32. `reordering/dropped` float32 [B]: tokens of windows
    for which there were no slots. `altered` bool [B, L]: what masked LM leaves alone.

    Attributes:
      window: words that change places with each other; fewer where a text ends.
      max_predictions: slots of a row; by default what the rate asks of a full row, and
        room for a window of words with four pieces. A window for which there are none
        is not moved.
    """

    name: ClassVar[str] = "reordering"
    heads: ClassVar[tuple[str, ...]] = ("mlm",)

    window: int = 3
    max_predictions: int | None = None

    def __post_init__(self):
        super().__post_init__()
        if self.window < 2:
            raise UserError(
                f"objectives.reordering.window={self.window} must be at least 2: a "
                "word alone has no order"
            )
        if self.max_predictions is not None and self.max_predictions < self.window:
            raise UserError(
                f"objectives.reordering.max_predictions={self.max_predictions} must be "
                f"at least window={self.window}, or nothing would be moved; None takes "
                "what the rate asks of a full row"
            )

    def resolved(self, data: DataConfig, model: EncoderConfig) -> "Reordering":
        """Fills in the number of slots."""
        super().resolved(data, model)
        slots = self.max_predictions or round(self.rate * data.length) + 4 * self.window
        return dataclasses.replace(self, max_predictions=min(slots, data.length))

    # ---- host ----

    def corrupt(self, batch: Batch, draws: Draws, lexicon: Lexicon) -> Batch:
        """Moves words."""
        assert self.max_predictions is not None  # set by `resolved`
        ids_BL, free_BL = batch["ids"], candidates(batch, lexicon)
        begins_BL = free_BL & ~after(free_BL)
        if GAPS in batch:
            begins_BL |= free_BL & after(batch[GAPS] == 1)
        continues_BL = lexicon.vocabulary.continues_word_V[ids_BL]
        words = Words.begun(free_BL, begins_BL | (free_BL & ~continues_BL))
        windows = _Windows.of(words, begins_BL, self.window, draws)
        goal_B = self.rate * free_BL.sum(axis=1)
        chosen_BW, dropped_B = windows.chosen(goal_B, self.max_predictions, draws)
        source_BL = _source(words, chosen_BW, windows, draws)

        moved_BL = source_BL != np.arange(source_BL.shape[1])
        positions_BP, weights_BP = chosen_tokens(moved_BL, self.max_predictions)
        labels_BP = np.take_along_axis(ids_BL, positions_BP, axis=1)
        altered_BL = batch.get(ALTERED, False) | moved_BL
        return batch | {
            "ids": np.take_along_axis(ids_BL, source_BL, axis=1),
            ALTERED: altered_BL,
            "reordering/positions": positions_BP.astype(np.int32),
            "reordering/labels": labels_BP.astype(np.int32),
            "reordering/weights": weights_BP * batch["row_weights"][:, None],
            "reordering/dropped": dropped_B * batch["row_weights"],
        }

    # ---- device ----

    def counts(self, batch: DeviceBatch) -> Terms:
        """Counts moved places."""
        count = jnp.sum(batch["reordering/weights"])
        return {"reordering_loss": count, "reordering_accuracy": count}

    def flops(self, model: EncoderConfig, length: int, slots: int) -> float:
        """Counts the scores at the moved places."""
        return vocabulary_flops(model, length, slots)

    def sums(self, model: EncoderModel, outputs: Outputs, batch: DeviceBatch) -> Terms:
        """Adds up cross-entropy and hits at the moved places."""
        scores = model.mlm_scores(outputs, batch["reordering/positions"])
        found = predicted(scores, batch["reordering/labels"])
        weights_BP = batch["reordering/weights"]
        return {
            "reordering_loss": jnp.sum(found.loss_BP * weights_BP),
            "reordering_accuracy": jnp.sum(found.hit_BP * weights_BP),
        }


@dataclasses.dataclass(frozen=True, eq=False)
class _Windows:
    """Windows of neighbouring words.

    Attributes:
      window_BW: the window of each word.
      first_BW: the first word of that window.
      sizes_BN: tokens of each window; 0 where its words are fewer than two.
    """

    window_BW: np.ndarray
    first_BW: np.ndarray
    sizes_BN: np.ndarray

    @classmethod
    def of(
        cls, words: Words, begins_BL: np.ndarray, most: int, draws: Draws
    ) -> "_Windows":
        """Divides texts; `begins_BL` is where they begin."""
        num_rows, num_words = words.sizes_BW.shape
        word_W = np.arange(num_words)
        begins_BW = np.zeros(num_rows * num_words, bool)
        begins_BW[words.place_BL[begins_BL]] = True
        begins_BW = begins_BW.reshape(num_rows, num_words)
        text_BW = np.maximum.accumulate(np.where(begins_BW, word_W, 0), axis=1)
        phase_B1 = draws.integers("reordering/phase", 1, most)
        begins_BW |= (word_W - text_BW + phase_B1) % most == 0
        begins_BW |= words.sizes_BW == 0  # no words, behind a row's last one
        begins_BW[:, 0] = True
        window_BW = np.cumsum(begins_BW, axis=1) - 1
        first_BW = np.maximum.accumulate(np.where(begins_BW, word_W, 0), axis=1)

        place_BW = np.arange(num_rows)[:, None] * num_words + window_BW
        count = lambda values_BW: np.bincount(
            place_BW.ravel(), values_BW.ravel(), num_rows * num_words
        ).reshape(num_rows, num_words)
        sizes_BN = count(words.sizes_BW).astype(np.int64)
        sizes_BN[count(words.sizes_BW > 0) < 2] = 0
        return cls(window_BW, first_BW, sizes_BN)

    def chosen(
        self, goal_B: np.ndarray, slots: int, draws: Draws
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draws windows until the goal is reached.

        Returns:
          bool [B, W], the words of windows that are taken, and [B], how many tokens
          those have for which there were no slots.
        """
        keys_BN = draws.bits("reordering/select", self.sizes_BN.shape[1])
        keys_BN = np.where(self.sizes_BN > 0, keys_BN.astype(np.int64), 1 << 32)
        order_BN = np.argsort(keys_BN, axis=1, kind="stable")
        sizes_BN = np.take_along_axis(self.sizes_BN, order_BN, axis=1)
        ends_BN = np.cumsum(sizes_BN, axis=1)
        # Of the window that passes the goal a share would be needed: its probability.
        part_B1 = draws.uniform("reordering/last", 1)
        wanted_BN = ends_BN - sizes_BN + part_B1 * sizes_BN < goal_B[:, None]
        wanted_BN &= sizes_BN > 0
        fits_BN = ends_BN <= slots
        chosen_BN = np.zeros(wanted_BN.shape, bool)
        np.put_along_axis(chosen_BN, order_BN, wanted_BN & fits_BN, axis=1)
        dropped_B = (sizes_BN * (wanted_BN & ~fits_BN)).sum(axis=1)
        return np.take_along_axis(chosen_BN, self.window_BW, axis=1), dropped_B


def _source(
    words: Words, chosen_BW: np.ndarray, windows: _Windows, draws: Draws
) -> np.ndarray:
    """Returns [B, L]: from where the token of each place comes.

    The words of a window stand in a circle, in random order, and each goes to the place
    of the next one: that is a random cycle, any as likely as any other.
    """
    num_words = chosen_BW.shape[1]
    keys_BW = draws.bits("reordering/order", num_words).astype(np.int64)
    circle_BW = np.argsort((windows.window_BW << 32) | keys_BW, axis=1, kind="stable")
    # Windows lie in the circle where they lie in the row.
    last_BW = np.ones(chosen_BW.shape, bool)
    last_BW[:, :-1] = windows.window_BW[:, 1:] != windows.window_BW[:, :-1]
    next_W = np.minimum(np.arange(num_words) + 1, num_words - 1)
    next_BW = np.where(last_BW, windows.first_BW, next_W)
    goes_BW = np.zeros(chosen_BW.shape, np.int64)  # to the place of which word
    to_BW = np.take_along_axis(circle_BW, next_BW, axis=1)
    np.put_along_axis(goes_BW, circle_BW, to_BW, axis=1)

    moving_BL = words.tokens(chosen_BW)
    num_rows, length = moving_BL.shape
    column_BL = np.broadcast_to(np.arange(length), (num_rows, length))
    window_BL = windows.window_BW.ravel()[words.place_BL]
    goes_on_BL = moving_BL & after(moving_BL)
    goes_on_BL[:, 1:] &= window_BL[:, 1:] == window_BL[:, :-1]
    # Windows stay where they begin; in them tokens go where their word goes.
    begin_BL = np.maximum.accumulate(np.where(goes_on_BL, 0, column_BL), axis=1)
    rank_BL = begin_BL * length + moving_BL * goes_BW.ravel()[words.place_BL]
    return np.argsort(rank_BL, axis=1, kind="stable")
