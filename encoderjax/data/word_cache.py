"""Text to ids through a memory of the words that were seen before.

A spelling comes again and again, so each is tokenised once and then looked up: on
English prose about five times as fast on a core. That is exact where no piece
reaches over white space, and what is done to a word does not depend on its
neighbours. Every kind of tokenizer says where that is so; other texts are tokenised
as a whole.
"""

import functools
import itertools
import re
import sys
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import tokenizers

_MEMO_WORDS = 2**20
_UNSPACED_LENGTH = 12  # characters a "word" above which few words come twice


class Words(Protocol):
    """What a kind of tokenizer knows of words."""

    def words(self, text: str) -> list[str] | None:
        """Returns the words of the text, or None if it is tokenised as a whole."""
        ...

    def word_in_text(self, word: str) -> str:
        """Returns what a word that is not the first is tokenised as."""
        ...

    def splits_apart(self, word: str) -> bool:
        """Says whether the word has no influence on the words beside it."""
        ...

    def reaches_over(self, added: str) -> bool:
        """Says whether an added token of this spelling can be found across words."""
        ...


class WordCache:
    """Encodes texts with a tokenizer of the library, remembering words."""

    def __init__(
        self, library: tokenizers.Tokenizer, kind: Words, added: Sequence[dict]
    ):
        """Takes a library's tokenizer and its added tokens that are found in texts."""
        self._library, self._kind = library, kind
        self._whole = any(
            token["rstrip"] or kind.reaches_over(token["content"]) for token in added
        )
        self._joining = _joining_spaces(library)
        # Word -> the bytes of its ids, which join fastest; None for a word that has
        # to be seen in its text. The first word of a text is kept with a space before
        # it, since it may be split in another way than inside.
        self._known: dict[str, bytes | None] = {}

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns the ids of each text, int32 and read-only, without special tokens."""
        if len(self._known) > _MEMO_WORDS:
            self._known = {}
        words_T = [self._words(text) for text in texts]
        self._learn(set().union(*filter(None, words_T)).difference(self._known))
        joined = [None if words is None else self._joined(words) for words in words_T]
        whole_T = [ids is None for ids in joined]
        rest = iter(self._encode_whole(list(itertools.compress(texts, whole_T))))
        return [
            np.frombuffer(next(rest) if ids is None else ids, np.int32)
            for ids in joined
        ]

    def _words(self, text: str) -> list[str] | None:
        if self._whole or self._joining.search(text):
            return None
        words = self._kind.words(text)
        # Chinese, Thai, ... have few spaces; and without words there is nothing to do.
        if not words or len(text) > _UNSPACED_LENGTH * len(words):
            return None
        words[0] = f" {words[0]}"
        return words

    def _learn(self, new: set[str]) -> None:
        apart = [word for word in new if self._kind.splits_apart(word.lstrip(" "))]
        as_text = [
            word[1:] if word[0] == " " else self._kind.word_in_text(word)
            for word in apart
        ]
        self._known.update(dict.fromkeys(new))
        self._known.update(zip(apart, self._encode_whole(as_text), strict=True))

    def _joined(self, words: list[str]) -> bytes | None:
        ids = list(map(self._known.__getitem__, words))
        return None if None in ids else b"".join(ids)  # pyright: ignore

    def _encode_whole(self, texts: Sequence[str]) -> list[bytes]:
        encodings = self._library.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, np.int32).tobytes() for encoding in encodings]


def _joining_spaces(library: tokenizers.Tokenizer) -> re.Pattern:
    """Finds the white space, to Python, that the tokenizer does not cut at."""

    def ids(text: str) -> list[int]:
        return library.encode(text, add_special_tokens=False).ids

    joining = [c for c in _spaces() if ids(f"x{c}x") != ids("x") * 2]
    return re.compile(f"[{re.escape(''.join(joining))}]" if joining else "(?!)")


@functools.cache
def _spaces() -> list[str]:
    return [c for c in map(chr, range(sys.maxunicode)) if c.isspace()]
