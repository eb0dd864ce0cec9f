"""Where the pieces of a text stand in it, in characters of the text as it was given.

Shapes: N pieces, C characters.
"""

import dataclasses
import unicodedata
from collections.abc import Sequence

import numpy as np
import tokenizers

from encoderjax.data.tokenizer_families import Kind

# How a space is spelled; alone, it may be one that the text has not.
SPACES: dict[Kind, str] = {"bytelevel": "Ġ", "unigram": "▁"}


@dataclasses.dataclass(frozen=True, eq=False)
class Pieces:
    """The pieces of a text, without special tokens.

    A piece has the characters starts..ends, without white space at either end. One
    that is white space alone has none: both are the place behind it. Where a
    character was split (bytes, ligatures), each of its pieces has it.

    Attributes:
      words: the number of the word each piece belongs to, counted from 0; -1 for white
        space that stands before no word.
    """

    ids: np.ndarray  # int32 [N]
    starts: np.ndarray  # int32 [N]
    ends: np.ndarray  # int32 [N]
    words: np.ndarray  # int32 [N]

    def __len__(self) -> int:
        return len(self.ids)

    def within(self, start: int, end: int) -> range:
        """Returns the numbers of the pieces that have a character of start..end."""
        found = np.flatnonzero((self.starts < end) & (self.ends > start))
        return range(found[0], found[-1] + 1) if len(found) else range(0)


@dataclasses.dataclass(frozen=True)
class Splitter:
    """A tokenizer of the library, and the id of a space alone, if it has one."""

    library: tokenizers.Tokenizer
    space_id: int | None

    @classmethod
    def of(cls, library: tokenizers.Tokenizer, kind: Kind) -> "Splitter":
        """Finds the space of a kind of tokenizer."""
        return cls(library, library.token_to_id(SPACES.get(kind, "")))


def pieces_of_text(splitter: Splitter, text: str) -> Pieces:
    """Returns the pieces of a text; its words are what stands between white space."""
    is_space_C = np.array([c.isspace() for c in text], bool)
    begins_C = ~is_space_C
    begins_C[1:] &= is_space_C[:-1]
    word_C = np.where(is_space_C, -1, np.cumsum(begins_C) - 1)
    return _pieces(splitter, text, is_space_C, word_C)


def pieces_of_words(splitter: Splitter, words: Sequence[str]) -> Pieces:
    """Returns the pieces of words joined by spaces; the words are those given.

    A word of which the normalisation leaves nothing has no piece.
    """
    text = " ".join(words)
    is_space_C = np.array([c.isspace() for c in text], bool)
    lengths = np.array([len(word) + 1 for word in words], int)
    word_C = np.repeat(np.arange(len(words)), lengths)[: len(text)]
    # The joining spaces are no word's, but white space inside a word is its own.
    word_C[(np.cumsum(lengths) - 1)[:-1]] = -1
    return _pieces(splitter, text, is_space_C, word_C)


def _pieces(
    splitter: Splitter, text: str, is_space_C: np.ndarray, word_C: np.ndarray
) -> Pieces:
    encoding = splitter.library.encode(text, add_special_tokens=False)
    ids = np.array(encoding.ids, np.int32)
    offsets_N2 = np.array(encoding.offsets, np.int32).reshape(-1, 2)
    starts, ends = _trimmed(offsets_N2[:, 0], offsets_N2[:, 1], is_space_C)
    if splitter.space_id is not None:
        ends = np.where(ids == splitter.space_id, starts, ends)
    word_N = np.append(word_C, -1).astype(np.int32)[starts]
    starts, ends = _with_lost_characters(text, starts, ends, word_C)
    return Pieces(ids, starts, ends, word_N)


def _trimmed(
    starts_N: np.ndarray, ends_N: np.ndarray, is_space_C: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ranges without white space at their ends, as new arrays."""
    size = len(is_space_C)
    places_C = np.arange(size, dtype=np.int32)
    # The next character at or after each place that is no space, and the last before.
    following = np.where(is_space_C, size, places_C)[::-1]
    following = np.append(np.minimum.accumulate(following)[::-1], size)
    before = np.where(is_space_C, 0, places_C + 1)
    before = np.append(0, np.maximum.accumulate(before))
    starts = np.minimum(following[starts_N], ends_N)
    return starts.astype(np.int32), np.maximum(before[ends_N], starts).astype(np.int32)


def _with_lost_characters(
    text: str, starts_N: np.ndarray, ends_N: np.ndarray, word_C: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ranges with the characters that normalisation merged into theirs.

    The library counts e + accent, composed, as the e alone, and a `` that became a
    quotation mark as its second half. What is lost inside a word is the piece's
    before it, at the start of a word the piece's behind it. Controls are nobody's.
    """
    change = np.zeros(len(text) + 1, np.int32)
    np.add.at(change, starts_N, 1)
    np.add.at(change, ends_N, -1)
    covered_C = np.cumsum(change)[:-1] > 0
    lost = [
        c
        for c in np.flatnonzero(~covered_C & (word_C >= 0))
        if unicodedata.category(text[c])[0] not in "CZ"
    ]
    if not lost:
        return starts_N, ends_N
    cuts = np.flatnonzero(np.diff(lost) > 1) + 1
    new_start, new_end = np.tile(np.arange(len(text) + 1, dtype=np.int32), (2, 1))
    for run in np.split(np.array(lost), cuts):
        first, behind = run[0], run[-1] + 1
        if first > 0 and covered_C[first - 1] and word_C[first - 1] == word_C[first]:
            new_end[first] = behind
        elif behind < len(text) and word_C[behind] == word_C[first]:
            new_start[behind] = first
    visible_N = ends_N > starts_N
    return (
        np.where(visible_N, new_start[starts_N], starts_N),
        np.where(visible_N, new_end[ends_N], ends_N),
    )
