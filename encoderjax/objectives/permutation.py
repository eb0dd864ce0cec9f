"""Permutation language modelling (XLNet): targets in a random order, text as it is.

The row has two parts where a memory is carried: what is reused, and the rest. Each has
its own targets and its own order.

Shapes: B batch, L length, P prediction slots, V vocabulary, T tokens of a part, N
tokens of an n-gram, C n-grams of a part, S places that are permuted together.
"""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from encoderjax.data.pipeline import Batch, DataConfig, Lexicon
from encoderjax.data.random import Draws
from encoderjax.errors import UserError
from encoderjax.models.config import EncoderConfig
from encoderjax.models.encoder import Outputs
from encoderjax.models.flops import encoder_flops, vocabulary_flops
from encoderjax.models.heads import EncoderModel
from encoderjax.models.two_stream import Streams
from encoderjax.objectives.masking import candidates, chosen_tokens, smallest_keys
from encoderjax.objectives.ngrams import draw_lengths
from encoderjax.objectives.objective import DeviceBatch, Objective, Terms
from encoderjax.objectives.vocabulary_loss import predicted


@dataclasses.dataclass(frozen=True, kw_only=True)
class PermutationLM(Objective):
    """Predicts tokens from all text that is no target, and from the targets before.

    Batch keys: `plm/positions`, `plm/labels` int32 and `plm/weights` float32 [B, P], as
    those of masked LM; `plm/order` int32 [B, L], the place of a target, of [CLS] and of
    [SEP] in the order, -1 for other text; `plm/sees` int32 [B, L], below which order a
    token sees the others of its part; `plm/drawn` int32 [B, max_ngram], how often each
    length of n-grams was drawn.

    So text that is no target sees only its like, a target all before it, and [CLS] and
    [SEP] themselves as well. The reused part sees nothing of the rest, which sees all
    of it.

    Attributes:
      predict_share: of a row's tokens. [CLS] and [SEP] count, and may be chosen, but
        are not predicted.
      max_ngram: tokens of the longest n-gram. There is one in each window of
        n / predict_share tokens, from the start of a word; what is missing at the end
        of the row is drawn token by token.
      permute_within: places that are permuted together; those after them come later,
        in the same permutation. None = all of a part.
      max_predictions: slots of a row; by default what `predict_share` asks of a full
        one.
      reuse_length: tokens of the first part; follows data.reuse_length.
    """

    name: ClassVar[str] = "plm"
    heads: ClassVar[tuple[str, ...]] = ("mlm",)
    excludes: ClassVar[Mapping[str, str]] = {
        "mlm": "it corrupts the text, which plm reads as it is",
        "sbo": "it predicts masked spans, and plm masks nothing",
        "rtd": "it replaces tokens of the text, which plm reads as it is",
    }

    predict_share: float = 1 / 6
    max_ngram: int = 5
    permute_within: int | None = None
    max_predictions: int | None = None
    reuse_length: int | None = None

    def __post_init__(self):
        super().__post_init__()
        if not 0.0 < self.predict_share <= 1.0:
            raise UserError(
                f"objectives.plm.predict_share={self.predict_share} must be in (0, 1]"
            )
        if self.max_ngram < 1:
            raise UserError(
                f"objectives.plm.max_ngram={self.max_ngram} must be at least 1"
            )
        for name in ("permute_within", "max_predictions"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(
                    f"objectives.plm.{name}={value} must be at least 1, or None"
                )

    def resolved(self, data: DataConfig, model: EncoderConfig) -> "PermutationLM":
        """Fills in slots and parts; refuses models and rows that have no order."""
        if model.positions != "two_stream":
            raise UserError(
                "objectives.plm needs model.positions='two_stream', not "
                f"{model.positions!r}: only a query stream predicts a token unseen"
            )
        if data.form == "packed":
            raise UserError(
                "objectives.plm does not go with data.form='packed': an order is that "
                "of one text; choose another form"
            )
        if self.reuse_length not in (None, data.reuse_length):
            raise UserError(
                f"objectives.plm.reuse_length={self.reuse_length} must be that of the "
                f"rows, data.reuse_length={data.reuse_length}; leave it out"
            )
        if model.memory_length:
            _check_memory(data, model)
        slots = self.max_predictions or int(_share_of(data.length, self.predict_share))
        return dataclasses.replace(
            self,
            max_predictions=min(max(1, slots), data.length),
            reuse_length=data.reuse_length,
        )

    # ---- host ----

    def corrupt(self, batch: Batch, draws: Draws, lexicon: Lexicon) -> Batch:
        """Chooses targets and draws the order; the text stays as it is."""
        assert self.max_predictions is not None  # set by `resolved`
        text_BL = candidates(batch, lexicon)
        chosen_BL, drawn_BN = self._chosen(batch, draws, lexicon)
        target_BL = chosen_BL & text_BL
        ordered_BL = target_BL | (batch["mask"] & ~text_BL)
        order_BL = np.where(ordered_BL, self._permutation(batch, draws), -1)
        positions_BP, weights_BP = chosen_tokens(target_BL, self.max_predictions)
        labels_BP = np.take_along_axis(batch["ids"], positions_BP, axis=1)
        return batch | {
            "plm/positions": positions_BP.astype(np.int32),
            "plm/labels": labels_BP.astype(np.int32),
            "plm/weights": weights_BP * batch["row_weights"][:, None],
            "plm/order": order_BL.astype(np.int32),
            "plm/sees": (order_BL + ~target_BL).astype(np.int32),
            "plm/drawn": drawn_BN,
        }

    def _parts(self, length: int) -> tuple[slice, ...]:
        """Returns the columns of the parts."""
        reused = self.reuse_length or 0
        both = (slice(0, reused), slice(reused, length))
        return tuple(part for part in both if part.start < part.stop)

    def _chosen(
        self, batch: Batch, draws: Draws, lexicon: Lexicon
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns as many tokens of each part as are to be predicted, bool [B, L].

        And how often each length of n-grams was drawn, int32 [B, N].
        """
        assert self.max_predictions is not None
        ids_BL, mask_BL = batch["ids"], batch["mask"]
        length = ids_BL.shape[1]
        starts_BL = ~lexicon.vocabulary.continues_word_V[ids_BL]
        flipped_B = _reversed_rows(batch)

        window = max(1, round(1.0 / self.predict_share))
        parts = self._parts(length)
        columns = -(-length // (1 + window))  # more than any walk has steps
        lengths_BC = draw_lengths(draws, len(parts) * columns, self.max_ngram)
        bits_BC = draws.bits("plm/left", len(parts) * columns)

        tokens_B = mask_BL.sum(axis=1)
        goals_B = _share_of(tokens_B, self.predict_share)
        goals_B = np.minimum(goals_B, self.max_predictions)
        # Each part has its share, the first one rounded up: 43 and 42 of 512.
        ends_B = [
            -(-goals_B * mask_BL[:, : part.stop].sum(axis=1) // np.maximum(tokens_B, 1))
            for part in parts
        ]
        chosen_BL, before_B = np.zeros_like(mask_BL), np.zeros_like(goals_B)
        drawn_BN = np.zeros((len(ids_BL), self.max_ngram), np.int32)
        for number, (part, end_B) in enumerate(zip(parts, ends_B, strict=True)):
            drawn = slice(number * columns, (number + 1) * columns)
            text = _Text.of(starts_BL[:, part], mask_BL[:, part], flipped_B)
            goal_B, before_B = end_B - before_B, end_B
            marked_BT, walked_BC = text.ngrams(
                goal_B, lengths_BC[:, drawn], bits_BC[:, drawn], window
            )
            for n in range(1, self.max_ngram + 1):
                same_BC = walked_BC & (lengths_BC[:, drawn] == n)
                drawn_BN[:, n - 1] += same_BC.sum(axis=1, dtype=np.int32)
            keys_BT = draws.bits(f"plm/fill/{number}", marked_BT.shape[1])
            missing_B = goal_B - marked_BT.sum(axis=1)
            free_BT = text.real_BT & ~marked_BT
            filled = smallest_keys(keys_BT, free_BT, missing_B, self.max_predictions)
            row, slot = np.nonzero(filled.weights_BP)
            marked_BT[row, filled.positions_BP[row, slot]] = True
            chosen_BL[:, part] = text.in_columns(marked_BT)
        return chosen_BL, drawn_BN

    def _permutation(self, batch: Batch, draws: Draws) -> np.ndarray:
        """Returns int64 [B, L]: the rank of each place among those of its part."""
        ranks_BT = []
        for number, part in enumerate(self._parts(batch["ids"].shape[1])):
            tokens = part.stop - part.start
            size = self.permute_within or tokens
            keys_BS = draws.bits(f"plm/order/{number}", size)
            rank_BS = np.argsort(np.argsort(keys_BS, axis=1), axis=1)
            place_T = np.arange(tokens)
            ranks_BT.append(rank_BS[:, place_T % size] + place_T // size * size)
        return np.concatenate(ranks_BT, axis=1)

    # ---- device ----

    def flops(self, model: EncoderConfig, length: int, slots: int) -> float:
        """Counts the query stream, the memory that both look at, and the scores."""
        memory = model.memory_length
        both = encoder_flops(model, length, queries=slots, memory=memory)
        one = encoder_flops(model, length)
        return both - one + vocabulary_flops(model, length, slots)

    def streams(self, batch: DeviceBatch) -> Streams:
        """Returns who sees whom, and the places to predict."""
        order_BL, sees_BL = batch["plm/order"], batch["plm/sees"]
        rest_L = jnp.arange(order_BL.shape[1]) >= (self.reuse_length or 0)
        later_LL = rest_L[:, None] & ~rest_L[None, :]
        same_LL = rest_L[:, None] == rest_L[None, :]
        before_BLL = order_BL[:, None, :] < sees_BL[:, :, None]
        if "reversed" in batch:
            reversed_B = batch["reversed"]
        else:
            reversed_B = jnp.zeros(len(order_BL), bool)
        return Streams(
            visible_BLL=later_LL | (same_LL & before_BLL),
            targets_BP=batch["plm/positions"],
            reversed_B=reversed_B,
        )

    def counts(self, batch: DeviceBatch) -> Terms:
        """Counts predictions."""
        count = jnp.sum(batch["plm/weights"])
        return {"plm_loss": count, "plm_accuracy": count}

    def sums(self, model: EncoderModel, outputs: Outputs, batch: DeviceBatch) -> Terms:
        """Adds up cross-entropy and hits of the query stream."""
        found = predicted(model.mlm_scores(outputs), batch["plm/labels"])
        weights_BP = batch["plm/weights"]
        return {
            "plm_loss": jnp.sum(found.loss_BP * weights_BP),
            "plm_accuracy": jnp.sum(found.hit_BP * weights_BP),
        }


def _share_of(tokens, share: float) -> np.ndarray:
    """Returns the share rounded down; what is whole but for float error stays so."""
    return np.floor(tokens * share + 1e-9).astype(np.int64)


def _reversed_rows(batch: Batch) -> np.ndarray:
    """Returns bool [B]: the rows that hold their text from the end."""
    return (
        batch["reversed"] if "reversed" in batch else np.zeros(len(batch["ids"]), bool)
    )


def _check_memory(data: DataConfig, model: EncoderConfig) -> None:
    if data.form != "reuse_pair":
        raise UserError(
            f"model.memory_length={model.memory_length} needs data.form='reuse_pair', "
            f"whose rows follow one another, not {data.form!r}; or set it to 0"
        )
    if model.reuse_length != data.reuse_length:
        raise UserError(
            f"model.reuse_length={model.reuse_length} must be data.reuse_length="
            f"{data.reuse_length}: the memory holds what the next row follows"
        )


@dataclasses.dataclass(frozen=True, eq=False)
class _Text:
    """The real tokens of a part, in the order in which they were written.

    Attributes:
      column_BT: where each stands in the part; padding comes last.
      real_BT: whether it is one.
      starts_BT: whether it starts a word.
    """

    column_BT: np.ndarray
    real_BT: np.ndarray
    starts_BT: np.ndarray

    @classmethod
    def of(
        cls, starts_BT: np.ndarray, mask_BT: np.ndarray, flipped_B: np.ndarray
    ) -> "_Text":
        """Turns rows round that hold their text from the end."""
        tokens = mask_BT.shape[1]
        place_T = np.arange(tokens)
        place_BT = np.where(flipped_B[:, None], place_T[::-1], place_T)
        column_BT = np.argsort(place_BT + tokens * ~mask_BT, axis=1)
        return cls(
            column_BT,
            np.take_along_axis(mask_BT, column_BT, axis=1),
            np.take_along_axis(starts_BT, column_BT, axis=1),
        )

    def in_columns(self, values_BT: np.ndarray) -> np.ndarray:
        """Returns values of the text where their tokens stand."""
        out_BT = np.zeros_like(values_BT)
        np.put_along_axis(out_BT, self.column_BT, values_BT, axis=1)
        return out_BT

    def ngrams(
        self,
        goal_B: np.ndarray,
        lengths_BC: np.ndarray,
        bits_BC: np.ndarray,
        window: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Marks n-grams from the left, bool [B, T], at most the goal.

        An n-gram of n tokens has window x n others round it, a random number of them
        before, and then moves right to where a word starts. The walk ends at the goal,
        or with the first n-gram that reaches the last token. Also returns which
        lengths it came to, bool [B, C], that one included.
        """
        num_rows, tokens = self.starts_BT.shape
        tokens_B = self.real_BT.sum(axis=1)
        begins_BT = np.where(self.starts_BT & self.real_BT, np.arange(tokens), tokens)
        begins_BT = np.minimum.accumulate(begins_BT[:, ::-1], axis=1)[:, ::-1]
        begins_BT = np.pad(begins_BT, ((0, 0), (0, 1)), constant_values=tokens)

        longest = int(lengths_BC.max())
        marked_BT = np.zeros((num_rows, tokens + longest), bool)
        row_B, steps_N = np.arange(num_rows), np.arange(longest)
        cursor_B, left_B = np.zeros(num_rows, np.int64), goal_B.copy()
        bits_BC = bits_BC.astype(np.uint64)
        walked_BC = np.zeros(lengths_BC.shape, bool)
        for column, (n_B, bits_B) in enumerate(
            zip(lengths_BC.T, bits_BC.T, strict=True)
        ):
            walked_BC[:, column] = (left_B > 0) & (cursor_B < tokens_B)
            n_B = np.minimum(n_B, left_B)
            around_B = window * n_B
            before_B = (bits_B * around_B.astype(np.uint64)) >> np.uint64(32)
            before_B = before_B.astype(np.int64)
            begin_B = begins_BT[row_B, np.minimum(cursor_B + before_B, tokens)]
            end_B = begin_B + n_B
            walks_B = (n_B > 0) & (end_B < tokens_B)
            inside_BN = (steps_N < n_B[:, None]) & walks_B[:, None]
            marked_BT[row_B[:, None], begin_B[:, None] + steps_N] |= inside_BN
            left_B = left_B - n_B * walks_B
            cursor_B = np.where(walks_B, end_B + around_B - before_B, tokens)
            if not walks_B.any():
                break
        return marked_BT[:, :tokens], walked_BC
