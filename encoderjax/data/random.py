"""Host randomness as a pure function of what is being drawn for.

Every draw is a hash of (seed, epoch, row, site, column), evaluated on whole
arrays. Nothing is advanced, so a batch is the same whatever the number of hosts,
threads and restarts, and any step can be reached at once.

Shapes: B rows of a batch, C columns of a draw.
"""

import dataclasses
import functools
import zlib

import numpy as np

_WORD = 0xFFFFFFFF
_GOLDEN = np.uint32(0x9E3779B9)  # 2^32 / golden ratio: spreads neighbouring columns


def mix(x: np.ndarray) -> np.ndarray:
    """Mixes 32-bit words, in place: every output bit depends on every input bit.

    The multipliers and shifts are those of the `lowbias32` permutation, found by
    search for the lowest bias of any two-multiplication mixer.
    """
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x7FEB352D)
    x ^= x >> np.uint32(15)
    x *= np.uint32(0x846CA68B)
    x ^= x >> np.uint32(16)
    return x


def site_number(site: str) -> int:
    """Returns the 32-bit number of a named place of drawing, such as 'mlm/select'."""
    return zlib.crc32(site.encode())


def hash_words(*words: int | np.ndarray) -> np.ndarray:
    """Hashes integers of up to 64 bits, broadcast against each other, to uint32."""
    state = np.zeros(np.broadcast_shapes(*(np.shape(word) for word in words)), "u4")
    state = np.atleast_1d(state)
    for word in words:
        word = np.asarray(word, np.uint64)
        for half in (word & np.uint64(_WORD), word >> np.uint64(32)):
            state = mix((state + _GOLDEN) ^ half.astype(np.uint32))
    return state


@dataclasses.dataclass(frozen=True)
class Draws:
    """The random numbers of a batch: one stream for each row and named site.

    Attributes:
      step: the training step, for what changes in the course of a run; None in
        evaluation. No draw depends on it.
    """

    seed: int
    epochs_B: np.ndarray
    rows_B: np.ndarray
    step: int | None = None

    def bits(self, site: str, columns: int) -> np.ndarray:
        """Returns uint32 [B, columns], uniform over all 32-bit words."""
        number = site_number(site)
        first_B = hash_words(self.seed, self.epochs_B, self.rows_B, number)
        second_B = hash_words(number, self.rows_B, self.epochs_B, self.seed)
        with np.errstate(over="ignore"):
            columns_C = np.arange(columns, dtype=np.uint32) * _GOLDEN
        bits_BC = mix(first_B[:, None] + columns_C)
        bits_BC ^= second_B[:, None]
        return mix(bits_BC)

    def uniform(self, site: str, columns: int) -> np.ndarray:
        """Returns float32 [B, columns] in [0, 1)."""
        return (self.bits(site, columns) >> np.uint32(8)) * np.float32(2.0**-24)

    def integers(self, site: str, columns: int, bound: int | np.ndarray) -> np.ndarray:
        """Returns int64 [B, columns] in [0, bound); `bound` at most 2^31."""
        wide = self.bits(site, columns).astype(np.uint64)
        return ((wide * np.asarray(bound, np.uint64)) >> np.uint64(32)).astype(np.int64)


@dataclasses.dataclass(frozen=True)
class KeyedDraws:
    """The random numbers of things that have a hashed key each, while rows are cut.

    Attributes:
      key: uint32, one for each thing, such as a document.
      number: which of its parts is drawn for, such as a chunk of the document.
    """

    key: np.ndarray
    number: int = 0

    def only(self, chosen: np.ndarray) -> "KeyedDraws":
        """Returns the draws of the chosen things."""
        return KeyedDraws(self.key[chosen], self.number)

    def bits(self, site: str, word: int = 0) -> np.ndarray:
        """Returns uint32, uniform over all 32-bit words; `word` tells several apart."""
        return hash_words(self.key, self.number, site_number(site) + (word << 32))

    def integers(self, site: str, bound: int | np.ndarray) -> np.ndarray:
        """Returns int64 in [0, bound)."""
        wide = self.bits(site).astype(np.uint64) * np.asarray(bound).astype(np.uint64)
        return (wide >> np.uint64(32)).astype(np.int64)

    def coin(self, site: str) -> np.ndarray:
        """Returns True or False, each as likely."""
        return self.bits(site) >= np.uint32(1 << 31)

    def happens(self, site: str, rate: float) -> np.ndarray:
        """Returns True at `rate`."""
        return self.bits(site) < np.uint32(round(rate * (2**32 - 1)))


# ---- the order of an epoch ----

_TINY = 32  # below this many items a batch may have thousands of epochs of them
_SMALL = 65_536  # below this many items a plain shuffle is cheap and simpler
_ROUNDS = 6


def permuted(
    indices: np.ndarray, sizes: int | np.ndarray, seed: int, epochs: int | np.ndarray
) -> np.ndarray:
    """Returns where pseudo-random permutations of range(size) put `indices`, int64 [B].

    There is one for each size and epoch, which are broadcast against the indices. Any
    part of one costs the same: those of many items are computed, not held.
    """
    indices_B, sizes_B, epochs_B = np.broadcast_arrays(indices, sizes, epochs)
    found_B = np.empty(len(indices_B), np.int64)
    tiny_B, large_B = sizes_B < _TINY, sizes_B >= _SMALL
    for chosen_B, place in (
        (tiny_B, _placed_tiny),
        (~tiny_B & ~large_B, _placed_small),
        (large_B, _placed_large),
    ):
        if chosen_B.any():
            found_B[chosen_B] = place(
                indices_B[chosen_B], sizes_B[chosen_B], epochs_B[chosen_B], seed
            )
    return found_B


def _placed_tiny(
    indices_B: np.ndarray, sizes_B: np.ndarray, epochs_B: np.ndarray, seed: int
) -> np.ndarray:
    """Sorts random keys of all items of each epoch, all epochs at once."""
    items_C = np.arange(sizes_B.max())
    keys_BC = hash_words(seed, epochs_B[:, None], items_C).astype(np.uint64)
    keys_BC[items_C >= sizes_B[:, None]] = _WORD + 1  # what there is not comes last
    order_BC = np.argsort(keys_BC, axis=1, kind="stable")
    return order_BC[np.arange(len(indices_B)), indices_B]


def _placed_small(
    indices_B: np.ndarray, sizes_B: np.ndarray, epochs_B: np.ndarray, seed: int
) -> np.ndarray:
    """Reads from shuffles of all items, which are kept for a while."""
    found_B = np.empty(len(indices_B), np.int64)
    shuffle_B = epochs_B * _SMALL + sizes_B
    for number in np.unique(shuffle_B).tolist():
        here = shuffle_B == number
        epoch, size = divmod(number, _SMALL)
        found_B[here] = _shuffled(size, seed, epoch)[indices_B[here]]
    return found_B


def _placed_large(
    indices_B: np.ndarray, sizes_B: np.ndarray, epochs_B: np.ndarray, seed: int
) -> np.ndarray:
    """Walks a Feistel network over the next power of two until it is below the size.

    Under two walks on average.
    """
    bits_B = np.frexp((sizes_B - 1).astype(np.float64))[1].astype(np.uint64)
    values_B = indices_B.astype(np.uint64)
    outside = np.ones(len(values_B), bool)
    while outside.any():
        values_B[outside] = _feistel(
            values_B[outside], bits_B[outside], seed, epochs_B[outside]
        )
        outside = values_B >= sizes_B.astype(np.uint64)
    return values_B.astype(np.int64)


@functools.lru_cache(maxsize=512)  # one or two a member of a mixture; 128 KB at most
def _shuffled(size: int, seed: int, epoch: int) -> np.ndarray:
    key = (int(hash_words(seed, epoch)[0]) << 32) | int(hash_words(epoch, seed)[0])
    order = np.random.Generator(np.random.Philox(key=key)).permutation(size)
    return order.astype(np.uint16)


def _feistel(
    values_B: np.ndarray, bits_B: np.ndarray, seed: int, epochs_B: np.ndarray
) -> np.ndarray:
    """Applies the rounds; the halves differ by a bit when the bits are odd."""
    one = np.uint64(1)
    low_B, high_B = bits_B >> one, bits_B - (bits_B >> one)
    right_B = values_B & ((one << low_B) - one)
    left_B = values_B >> low_B
    for number in range(_ROUNDS):  # even, so the halves end with their own widths
        width_B = high_B if number % 2 == 0 else low_B
        noise_B = hash_words(seed, epochs_B, number, right_B).astype(np.uint64)
        left_B, right_B = right_B, left_B ^ (noise_B & ((one << width_B) - one))
    return (left_B << low_B) | right_B
