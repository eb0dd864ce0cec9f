"""WordPiece's merges by likelihood, after Schuster and Nakajima (2012).

The pair a b is joined whose score count(ab) / (count(a) count(b)) is the highest: of
the pairs that could be joined it is the one that least looks like chance. (The
trainer of the `tokenizers` library joins the most frequent pair, as BPE does.) Alone
this score would spend the vocabulary on the rarest words of all, whose letters occur
nowhere else. So only frequent pairs compete: those that occur at least as often as a
limit, which begins with the most frequent pair and is halved when no pair is left.

Among equal scores the more frequent pair is first, then the one whose pieces are
older. So the merges are a function of the counts of words alone.

Every merge changes the counts of two pieces, and with them the scores of all pairs
that they are in, upwards as well as down. A heap would have to be told of each; here
the scores are an array, of which the touched places are computed anew.
"""

import array
import collections
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from encoderjax.data.wordpiece import PREFIX


def merge_by_likelihood(
    words: Mapping[str, int], vocab_size: int, first: Sequence[str]
) -> list[str]:
    """Returns `first` and the pieces made of it, `vocab_size` where there are enough.

    Args:
      words: counts of words, whose characters are all in `first`.
    """
    pieces = list(first)
    ids = {piece: i for i, piece in enumerate(pieces)}
    split = _SplitWords(words, ids)
    while len(pieces) < vocab_size and (pair := split.best_pair()):
        left, right = pair
        joined = pieces[left] + pieces[right].removeprefix(PREFIX)
        if joined not in ids:  # a + ##bc and ab + ##c are one piece
            ids[joined] = len(pieces)
            pieces.append(joined)
            split.add_piece()
        split.join(left, right, ids[joined])
    return pieces


class _SplitWords:
    """All words as they are split so far, with the counts of pieces and pairs.

    A word is a string with a character for each piece, the one whose code is the
    piece's id; a pair is such a string of two. So joining is `str.replace`.
    """

    def __init__(self, words: Mapping[str, int], ids: Mapping[str, int]):
        self._words: list[str] = []
        self._word_counts: list[int] = []
        self._piece_counts = array.array("d")
        self._pairs_of_piece: list[array.array] = []  # numbers of the pairs it is in
        # By the number of the pair. Views of these must be short-lived: an array
        # cannot grow while there is one.
        self._numbers: dict[str, int] = {}
        self._lefts, self._rights = array.array("q"), array.array("q")
        self._pair_counts, self._scores = array.array("d"), array.array("d")
        self._words_of_pair: list[array.array] = []  # some may have it no more
        for _ in ids:
            self.add_piece()
        changes: collections.Counter[str] = collections.Counter()
        for word, count in words.items():
            pieces = [word[0], *(PREFIX + character for character in word[1:])]
            split = "".join(chr(ids[piece]) for piece in pieces)
            self._words.append(split)
            self._word_counts.append(count)
            for piece in split:
                self._piece_counts[ord(piece)] += count
            for pair in _pairs(split):
                changes[pair] += count
            self._note(set(_pairs(split)), len(self._words) - 1)
        self._limit = max(changes.values(), default=1)
        self._change(changes, ())

    def add_piece(self) -> None:
        """Makes room for the piece with the next id."""
        self._piece_counts.append(0)
        self._pairs_of_piece.append(array.array("q"))

    def best_pair(self) -> tuple[int, int] | None:
        """Returns the ids of the pair to be joined next; None if no pair is left."""
        while not (best := np.asarray(self._scores).max(initial=0)):
            if self._limit == 1:
                return None
            self._limit //= 2
            self._score(np.arange(len(self._scores)))
        numbers = np.flatnonzero(np.asarray(self._scores) == best)
        lefts, rights = np.asarray(self._lefts), np.asarray(self._rights)
        counts = np.asarray(self._pair_counts)[numbers]
        order = np.lexsort((rights[numbers], lefts[numbers], -counts))
        number = numbers[order[0]]
        return int(lefts[number]), int(rights[number])

    def join(self, left: int, right: int, joined: int) -> None:
        """Replaces the pair by the piece `joined` in all words, from the left."""
        pair, changes, total = chr(left) + chr(right), collections.Counter(), 0
        number = self._numbers[pair]
        places, self._words_of_pair[number] = (
            self._words_of_pair[number],
            array.array("q"),
        )
        for place in places:
            before, count = self._words[place], self._word_counts[place]
            after = self._words[place] = before.replace(pair, chr(joined))
            total += (len(before) - len(after)) * count
            for old in _pairs(before):
                changes[old] -= count
            for new in _pairs(after):
                changes[new] += count
            self._note(set(_pairs(after)).difference(_pairs(before)), place)
        for piece, change in ((left, -total), (right, -total), (joined, total)):
            self._piece_counts[piece] += change
        self._change(changes, (left, right, joined))

    def _note(self, pairs: Iterable[str], place: int) -> None:
        """Remembers that the word at `place` has these pairs, numbering new ones."""
        for pair in pairs:
            number = self._numbers.setdefault(pair, len(self._numbers))
            if number == len(self._words_of_pair):
                left, right = map(ord, pair)
                self._lefts.append(left)
                self._rights.append(right)
                self._pair_counts.append(0)
                self._scores.append(0)
                self._words_of_pair.append(array.array("q"))
                self._pairs_of_piece[left].append(number)
                self._pairs_of_piece[right].append(number)
            self._words_of_pair[number].append(place)

    def _change(self, changes: Mapping[str, int], pieces: Iterable[int]) -> None:
        """Adds to the counts of pairs; scores them and those with one of `pieces`."""
        size = len(changes)
        numbers = np.fromiter(map(self._numbers.__getitem__, changes), np.int64, size)
        amounts = np.fromiter(changes.values(), np.float64, size)
        np.asarray(self._pair_counts)[numbers] += amounts
        touched = (np.asarray(self._pairs_of_piece[piece]) for piece in pieces)
        self._score(np.concatenate([numbers, *touched]))

    def _score(self, numbers: np.ndarray) -> None:
        """Scores the pairs, those below the limit with 0."""
        counts = np.asarray(self._pair_counts)[numbers]
        of_piece = np.asarray(self._piece_counts)
        lefts = of_piece[np.asarray(self._lefts)[numbers]]
        rights = of_piece[np.asarray(self._rights)[numbers]]
        competes = counts >= self._limit
        scores = np.divide(counts, lefts * rights, out=0 * counts, where=competes)
        np.asarray(self._scores)[numbers] = scores


def _pairs(split: str) -> list[str]:
    return [split[i : i + 2] for i in range(len(split) - 1)]
