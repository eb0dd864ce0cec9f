"""The sample of documents that a tokenizer is trained on.

Each document has a random 32-bit number, and those below a limit are kept: one limit a
language, halved for the language with the most text whenever all together is too
much. So it is one pass in bounded memory, whatever the length of the source and the
number of its languages, and what is kept of a language is a uniform sample of its
documents.

Parts of a source can be sampled apart, in other processes, and merged in their order.
The result then depends on the parts alone; for one language not even on those.
"""

import collections
import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from encoderjax.data.random import hash_words, site_number
from encoderjax.data.shares import alpha_shares

_ALL = 2**32  # the limit that every document is below
_WAITING = 16  # of the sample's size, the part that may wait to be hashed at once


class _Sampled(NamedTuple):
    number: int
    sentences: int
    text: str


@dataclasses.dataclass
class _Language:
    """What is kept of one language; `size` in characters."""

    limit: int = _ALL
    size: int = 0
    documents: list[_Sampled] = dataclasses.field(default_factory=list)

    def take(self, document: _Sampled) -> None:
        """Keeps the document if its number is below the limit."""
        if document.number < self.limit:
            self.documents.append(document)
            self.size += len(document.text)

    def narrow(self, limit: int) -> None:
        """Lowers the limit; of documents that are all above it the lowest stays."""
        if limit < self.limit and self.documents:
            below = [d for d in self.documents if d.number < limit]
            self.documents = below or [min(self.documents)]
            self.size = sum(len(document.text) for document in self.documents)
        self.limit = min(limit, self.limit)


@dataclasses.dataclass
class VocabularySample:
    """A sample of about `characters` characters; can be pickled.

    Attributes:
      sentences: how many each language has, in all documents, kept or not.
    """

    seed: int
    characters: int
    sentences: collections.Counter[str] = dataclasses.field(
        default_factory=collections.Counter
    )

    def __post_init__(self):
        self._languages: dict[str, _Language] = {}
        self._waiting: list[tuple[int, str, int, str]] = []
        self._waiting_size = 0

    def add(self, key: int, language: str, text: str, sentences: int) -> None:
        """Adds a document.

        Args:
          key: no other document of the source has it; below 2^64.
          sentences: their number, by which languages are weighed against each other;
            any will do where there is one language.
        """
        self.sentences[language] += sentences
        self._waiting.append((key, language, sentences, text))
        self._waiting_size += len(text)
        if self._waiting_size > self.characters // _WAITING:
            self._settle()

    def merge(self, other: "VocabularySample") -> None:
        """Adds the documents of the part of the source that follows."""
        self._settle()
        self.sentences.update(other.sentences)
        for name, theirs in other._languages.items():
            own = self._languages.setdefault(name, _Language())
            own.narrow(theirs.limit)
            for document in theirs.documents:
                own.take(document)
        self._thin()
        self._waiting = list(other._waiting)
        self._settle()

    def texts(self, alpha: float = 1.0) -> Iterator[str]:
        """Yields texts, about as much as was kept, with the languages' shares at alpha.

        The unit is the sentence, as in the paper's n_i: of the sentences that are
        yielded a language has the share q_i on average. Every document of a language
        comes equally often, up to the fraction, which a hash decides: large languages
        are thinned and small ones repeated. One language comes as it was kept.
        """
        self._settle()
        counts = [self.sentences[name] for name in self._languages]
        shares = dict(zip(self._languages, alpha_shares(counts, alpha), strict=True))
        kept = {
            name: sum(document.sentences for document in language.documents)
            for name, language in self._languages.items()
        }
        for name, language in self._languages.items():
            rate = 1.0
            if len(self._languages) > 1:
                rate = shares[name] * sum(kept.values()) / max(kept[name], 1)
            yield from self._repeated(language.documents, rate)

    def texts_by_language(self, characters: int) -> dict[str, list[str]]:
        """Returns a smaller sample, at most `characters` of each language.

        The languages with the most sentences come first.
        """
        self._settle()
        texts: dict[str, list[str]] = {}
        for name in sorted(self._languages, key=lambda n: (-self.sentences[n], n)):
            texts[name], left = [], characters
            for document in sorted(self._languages[name].documents):
                texts[name].append(document.text[:left])
                left -= len(texts[name][-1])
                if left == 0:
                    break
        return texts

    def _repeated(self, documents: list[_Sampled], rate: float) -> Iterator[str]:
        numbers = np.array([document.number for document in documents], np.uint64)
        draws = hash_words(self.seed, site_number("prepare/repeat"), numbers)
        times = int(rate) + (draws < (rate - int(rate)) * 2.0**32)
        for document, count in zip(documents, times.tolist(), strict=True):
            for _ in range(count):
                yield document.text

    def _settle(self) -> None:
        """Numbers the documents that wait, and keeps those below the limits."""
        keys = np.array([key for key, *_ in self._waiting], np.uint64)
        numbers = hash_words(self.seed, site_number("prepare/sample"), keys).tolist()
        for number, waiting in zip(numbers, self._waiting, strict=True):
            _, name, sentences, text = waiting
            language = self._languages.setdefault(name, _Language())
            language.take(_Sampled(number, sentences, text))
        self._waiting, self._waiting_size = [], 0
        self._thin()

    def _thin(self) -> None:
        """Halves limits until the sample has its size."""
        while sum(language.size for language in self._languages.values()) > (
            self.characters
        ):
            several = [x for x in self._languages.values() if len(x.documents) > 1]
            if not several:
                return
            largest = max(several, key=lambda language: language.size)
            largest.narrow(largest.limit // 2)
