"""Rows of several corpora in one stream, each with a fixed share.

A pattern assigns every place of the stream to a member, so that a member's own place is
arithmetic: nothing is counted, and any step is found at once. A member keeps its own
rows, order and epochs. Its rows are numbered after those of the members before it, and
its text lies behind theirs; so everything that reads rows by number reads a mixture.

Shapes: B rows of a batch, S pieces or spans of them, T tokens, M members.
"""

import dataclasses
import functools
import typing
from collections.abc import Mapping, Sequence

import numpy as np

from encoderjax.data.forms import Form
from encoderjax.data.random import permuted
from encoderjax.data.records import RowSettings, joined_ranges
from encoderjax.data.rows import EpochOrder, Lengths, Order, RowIndex
from encoderjax.data.stream import TextStream, stream_length
from encoderjax.data.tokenizers import Layout

_PERIOD = 1 << 18  # places after which a pattern repeats: the fineness of its shares
_GOLDEN = 0.618034  # whose multiples fall evenly between 0 and 1


@dataclasses.dataclass(frozen=True, eq=False)
class Pattern:
    """Which member each place of an endless sequence belongs to.

    Every member is spread evenly: of any number of neighbouring places it has its share
    to within a few. A share below one place in a period gets one.

    Attributes:
      counts_M: places of each member in a period.
      members: of the places of a period,
      numbers: and how many places of that member stand before each.
    """

    counts_M: np.ndarray
    members: np.ndarray
    numbers: np.ndarray

    @classmethod
    def of(cls, shares: Sequence[float]) -> "Pattern":
        """Returns the pattern of shares, which need not add up to 1."""
        exact_M = np.asarray(shares, np.float64) * (_PERIOD / np.sum(shares))
        counts_M = np.maximum(1, np.floor(exact_M)).astype(np.int64)
        # What rounding left goes to those that lack most, or comes from the largest.
        left = _PERIOD - int(counts_M.sum())
        if left > 0:
            counts_M[np.argsort(counts_M - exact_M, kind="stable")[:left]] += 1
        counts_M[np.argmax(counts_M)] += min(left, 0)
        members = np.repeat(np.arange(len(counts_M), dtype=np.int32), counts_M)
        numbers = joined_ranges(np.zeros_like(counts_M), counts_M)
        # Members with equal counts would otherwise always come one after the other.
        phases_M = (0.5 + _GOLDEN * np.arange(len(counts_M))) % 1
        order = np.argsort(
            (numbers + phases_M[members]) / counts_M[members], kind="stable"
        )
        return cls(counts_M, members[order], numbers[order])

    def at(self, places_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the member [B] of places, and which of its own places they are."""
        periods_B, rest_B = np.divmod(np.asarray(places_B, np.int64), _PERIOD)
        members_B = self.members[rest_B]
        return members_B, periods_B * self.counts_M[members_B] + self.numbers[rest_B]

    def before(self, place: int) -> np.ndarray:
        """Returns how many places of each member [M] come before `place`."""
        periods, rest = divmod(place, _PERIOD)
        begun_M = np.bincount(self.members[:rest], minlength=len(self.counts_M))
        return periods * self.counts_M + begun_M


@dataclasses.dataclass(frozen=True, eq=False)
class MixedOrder:
    """The order of rows of several members.

    Attributes:
      numbers_M: which members of the index they are: not all have rows of any length.
      orders: of each member's own rows, all with one seed.
      first_M: the number of each one's first row.
      used_M: how many of its own places each has left behind.
    """

    pattern: Pattern
    numbers_M: np.ndarray
    orders: tuple[EpochOrder, ...]
    first_M: np.ndarray
    used_M: np.ndarray

    def at(self, places_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns epoch [B], the member's own, and row [B] of places in the stream."""
        members_B, own_B = self.pattern.at(places_B)
        own_B += self.used_M[members_B]
        epochs_B, within_B, sizes_B = np.empty((3, len(own_B)), np.int64)
        present = [(m, np.flatnonzero(members_B == m)) for m in np.unique(members_B)]
        for member, here in present:
            parts = self.orders[member].within(own_B[here])
            epochs_B[here], within_B[here], sizes_B[here] = parts
        # Of all members at once: most of the time goes by the number of calls.
        rows_B = permuted(within_B, sizes_B, self.orders[0].seed, epochs_B)
        for member, here in present:
            rows = self.orders[member].numbers(epochs_B[here], rows_B[here])
            rows_B[here] = rows + self.first_M[member]
        return epochs_B, rows_B


def places_used(order: Order, place: int) -> dict[int, int]:
    """Returns how many own places each member has before `place`, by its number."""
    if not isinstance(order, MixedOrder):
        return {0: place}
    used_M = order.used_M + order.pattern.before(place)
    return dict(zip(order.numbers_M.tolist(), used_M.tolist(), strict=True))


def order_after(order: Order, used: Mapping[int, int]) -> tuple[Order, int]:
    """Returns the order that goes on after the places used, and where in it."""
    if not isinstance(order, MixedOrder):
        return order, used.get(0, 0)
    used_M = np.asarray([used.get(number, 0) for number in order.numbers_M.tolist()])
    return dataclasses.replace(order, used_M=used_M), 0


@dataclasses.dataclass(frozen=True, eq=False)
class JoinedStream:
    """The text of several members, one behind the other.

    Attributes:
      first_M: where each one's text begins.
    """

    streams: tuple[TextStream, ...]
    first_M: np.ndarray

    def read(self, starts_S: np.ndarray, lengths_S: np.ndarray) -> np.ndarray:
        """Returns the ids of all spans, one after the other."""
        members_S = np.searchsorted(self.first_M, starts_S, side="right") - 1
        order_S = np.argsort(members_S, kind="stable")
        counts_M = np.bincount(members_S, minlength=len(self.streams))
        ends_M = np.cumsum(counts_M)
        parts = []
        for member in np.flatnonzero(counts_M):
            spans = order_S[ends_M[member] - counts_M[member] : ends_M[member]]
            starts = starts_S[spans] - self.first_M[member]
            parts.append(self.streams[member].read(starts, lengths_S[spans]))
        # Read member by member; now each span back to its place.
        begin_S = np.empty_like(starts_S)
        sorted_S = lengths_S[order_S]
        begin_S[order_S] = np.cumsum(sorted_S) - sorted_S
        return np.concatenate(parts)[joined_ranges(begin_S, lengths_S)]


@dataclasses.dataclass(frozen=True, eq=False)
class MixedIndex:
    """The rows of several members, numbered through; see `RowIndex`.

    Attributes:
      indexes: of the members, all cut alike.
      shares: of the rows that are trained on.
    """

    indexes: tuple[RowIndex, ...]
    shares: tuple[float, ...]

    @property
    def settings(self) -> RowSettings:
        """How the rows were cut."""
        return self.indexes[0].settings

    @property
    def layout(self) -> Layout:
        """The special tokens of a row."""
        return self.indexes[0].layout

    @property
    def form(self) -> Form:
        """What kind of rows these are."""
        return self.indexes[0].form

    @property
    def num_rows(self) -> int:
        """Rows of all passes of all members."""
        return sum(index.num_rows for index in self.indexes)

    @property
    def mean_tokens(self) -> float:
        """Mean number of real tokens of a row that is trained on."""
        means = [index.mean_tokens for index in self.indexes]
        return float(np.dot(means, self.shares) / sum(self.shares))

    @functools.cached_property
    def first_M(self) -> np.ndarray:  # noqa: N802 (an array, named by shape)
        """The number of each member's first row."""
        longest = [max(map(len, index.passes)) for index in self.indexes]
        return np.cumsum([0, *longest[:-1]], dtype=np.int64)

    @functools.cached_property
    def stream(self) -> JoinedStream:
        """The text of all members."""
        streams = tuple(index.stream for index in self.indexes)
        sizes = [stream_length(s.split, self.settings.separators) for s in streams]
        return JoinedStream(streams, np.cumsum([0, *sizes[:-1]], dtype=np.int64))

    def members_of(self, rows_B: np.ndarray) -> np.ndarray:
        """Returns the member [B] that each row belongs to."""
        return np.searchsorted(self.first_M, rows_B, side="right") - 1

    def take(
        self, epochs_B: np.ndarray, rows_B: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the pieces of rows, and the row of the batch that each belongs to."""
        members_B = self.members_of(rows_B)
        pieces, places = [], []
        for member in np.unique(members_B):
            here_B = np.flatnonzero(members_B == member)
            own_B = rows_B[here_B] - self.first_M[member]
            records_S, row_S = self.indexes[member].take(epochs_B[here_B], own_B)
            records_S["start"] += self.stream.first_M[member]
            pieces.append(records_S)
            places.append(here_B[row_S])
        row_S = np.concatenate(places)
        order_S = np.argsort(row_S, kind="stable")
        return np.concatenate(pieces)[order_S], row_S[order_S]

    def share(self, lengths: Lengths) -> float:
        """Returns the share of rows with so many tokens, as they are trained on."""
        return sum(self._shares(lengths)) / sum(self.shares)

    def order(self, seed: int, lengths: Lengths | None = None) -> MixedOrder:
        """Returns the order in which the rows are trained on; see `RowIndex.order`."""
        shares = self.shares if lengths is None else self._shares(lengths)
        chosen = [member for member, share in enumerate(shares) if share > 0]
        orders = (self.indexes[member].order(seed, lengths) for member in chosen)
        return MixedOrder(
            Pattern.of([shares[member] for member in chosen]),
            np.asarray(chosen),
            # Rows in streams, which have another order, are not mixed.
            tuple(typing.cast(EpochOrder, order) for order in orders),
            self.first_M[chosen],
            np.zeros(len(chosen), np.int64),
        )

    def _shares(self, lengths: Lengths) -> list[float]:
        """Returns the share of each member's rows of those lengths in all rows."""
        pairs = zip(self.shares, self.indexes, strict=True)
        return [share * index.share(lengths) for share, index in pairs]


def mixed_index(
    indexes: Sequence[RowIndex], shares: Sequence[float]
) -> RowIndex | MixedIndex:
    """Returns one index of all members; that of a single one is its own."""
    if len(indexes) == 1:
        return indexes[0]
    return MixedIndex(tuple(indexes), tuple(shares))
