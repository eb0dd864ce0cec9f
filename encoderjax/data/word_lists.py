"""Lists of words that a user brings: phrases, and words with others like them.

A list is text, and is read with the tokenizer of the corpus. What the tokenizer cannot
spell is left out and counted.

Shapes: N words, T tokens of all candidates, V vocabulary, K neighbours, D width.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from encoderjax.data import storage
from encoderjax.data.token_sequences import NO_SEQUENCES, TokenSequences
from encoderjax.data.tokenizers import Tokenizer, Vocabulary
from encoderjax.errors import UserError

NEIGHBOURS = 10  # of a token in a model's table
_BLOCK = 512  # tokens that are compared with all others at a time


@dataclasses.dataclass(frozen=True, eq=False)
class SimilarWords:
    """Words, and what may stand in their place: others of as many pieces.

    Attributes:
      words: that have others like them.
      counts_N: how many each has.
      ids_T: the pieces of those, word by word.
      starts_N: where those of each word begin.
    """

    words: TokenSequences
    counts_N: np.ndarray
    ids_T: np.ndarray
    starts_N: np.ndarray

    @classmethod
    def of(
        cls, similar: Mapping[tuple[int, ...], Sequence[tuple[int, ...]]]
    ) -> "SimilarWords":
        """Makes the list of what each word may become, all as long as the word."""
        words = TokenSequences.of(np.asarray(word, np.int64) for word in similar)
        counts_N = np.asarray([len(others) for others in similar.values()], np.int64)
        pieces = (i for others in similar.values() for ids in others for i in ids)
        ends_N = np.cumsum(counts_N * words.sizes_N)
        starts_N = ends_N - counts_N * words.sizes_N
        return cls(words, counts_N, np.fromiter(pieces, np.int64), starts_N)


NO_SIMILAR_WORDS = SimilarWords(
    NO_SEQUENCES, np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64)
)


# ---- phrases ----


def read_phrases(
    content: bytes, where: str, tokenizer: Tokenizer
) -> tuple[TokenSequences, int]:
    """Returns the phrases of a file, one a line, and how many were left out.

    Args:
      content: of the file.
      where: the setting and the file, for messages.
      tokenizer: of the corpus.
    """
    lines = _lines(content, where)
    spelled = [ids for pair in _spellings(lines, tokenizer) for ids in pair]
    phrases = TokenSequences.of(ids for ids in spelled if ids is not None)
    if not len(phrases):
        raise UserError(
            f"{where} has no phrase that the corpus' tokenizer can spell; give a file "
            "with a phrase a line"
        )
    return phrases, sum(ids is None for ids in spelled[::2])


def _lines(content: bytes, where: str) -> list[str]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{where} is not UTF-8; convert it") from error
    return [line for line in map(str.strip, text.splitlines()) if line]


def _spellings(
    texts: Sequence[str], tokenizer: Tokenizer
) -> list[tuple[np.ndarray | None, np.ndarray | None]]:
    """Returns the tokens of each text, at the beginning of a line and behind a space.

    They differ where a piece holds the space before it. None where a token is missing.
    """
    vocabulary = tokenizer.vocabulary
    found = []
    for text_ids in (
        tokenizer.encode(texts),
        tokenizer.encode([f" {t}" for t in texts]),
    ):
        known = (ids.size and not vocabulary.special_V[ids].any() for ids in text_ids)
        found.append([i if k else None for i, k in zip(text_ids, known, strict=True)])
    return list(zip(*found, strict=True))


# ---- similar words ----


def read_similar_words(
    content: bytes, where: str, tokenizer: Tokenizer
) -> tuple[SimilarWords, int]:
    """Returns the similar words of a file, and how many words were left out.

    A line is a word and those like it, parted by tabs, or by spaces where it has no
    tab; of a .jsonl it is {"word": ..., "similar": [...]}. Of those like it only such
    are taken as have as many pieces, so that a row keeps its length; a word that has
    none is left out.
    """
    entries = list(_entries(_lines(content, where), where))
    texts = [text for entry in entries for text in entry]
    spelled = iter(_spellings(texts, tokenizer))
    similar: dict[tuple[int, ...], dict[tuple[int, ...], None]] = {}
    left_out = 0
    for entry in entries:
        word, *others = [next(spelled) for _ in entry]
        fit = False
        for form in range(2):  # at the beginning of a line, and behind a space
            ids = _word(word[form], tokenizer.vocabulary)
            if ids is None:
                continue
            known = (_word(other[form], tokenizer.vocabulary) for other in others)
            alike = {i: None for i in known if i and len(i) == len(ids) and i != ids}
            if alike:
                similar.setdefault(ids, {}).update(alike)
                fit = True
        left_out += not fit
    if not similar:
        raise UserError(
            f"{where} has no word with another of as many pieces; give a file with a "
            "word and those like it in each line"
        )
    return SimilarWords.of(
        {w: tuple(others) for w, others in similar.items()}
    ), left_out


def _entries(lines: Iterable[str], where: str) -> Iterable[list[str]]:
    for number, line in enumerate(lines, start=1):
        if where.endswith(".jsonl"):
            try:
                record = json.loads(line)
                entry = [record["word"], *record["similar"]]
            except (ValueError, TypeError, KeyError):
                entry = []
        else:
            entry = [
                part for part in line.split("\t" if "\t" in line else None) if part
            ]
        if len(entry) < 2 or not all(isinstance(text, str) for text in entry):
            form = "a word and those like it, parted by tabs"
            if where.endswith(".jsonl"):
                form = '{"word": ..., "similar": [...]}'
            raise UserError(f"{where}, line {number} of text: it must be {form}")
        yield entry


def _word(ids: np.ndarray | None, vocabulary: Vocabulary) -> tuple[int, ...] | None:
    """Returns the pieces if they are those of one word."""
    if ids is None or not vocabulary.continues_word_V[ids[1:]].all():
        return None
    return tuple(ids.tolist())


def neighbours(table_VD: np.ndarray, vocabulary: Vocabulary) -> SimilarWords:
    """Returns the nearest tokens of each by the cosine of their rows in a table.

    Only of those that are words by themselves: neither special nor pieces that continue
    a word.
    """
    words = vocabulary.ordinary_ids
    words = words[~vocabulary.continues_word_V[words] & (words < len(table_VD))]
    rows_ND = np.asarray(table_VD, np.float32)[words]
    norms_N1 = np.linalg.norm(rows_ND, axis=1, keepdims=True)
    rows_ND = rows_ND / np.maximum(norms_N1, np.finfo(np.float32).tiny)
    count = min(NEIGHBOURS, len(words) - 1)
    similar: dict[tuple[int, ...], tuple[tuple[int, ...], ...]] = {}
    for first in range(0, len(words) if count > 0 else 0, _BLOCK):
        cosines = rows_ND[first : first + _BLOCK] @ rows_ND.T
        own = np.arange(len(cosines))
        cosines[own, first + own] = -np.inf
        near = np.argpartition(-cosines, count - 1, axis=1)[:, :count]
        near.sort(axis=1)
        order = np.argsort(-np.take_along_axis(cosines, near, 1), axis=1, kind="stable")
        for word, ids in zip(
            words[first : first + _BLOCK].tolist(),
            words[np.take_along_axis(near, order, axis=1)].tolist(),
            strict=True,
        ):
            similar[(word,)] = tuple((i,) for i in ids)
    return SimilarWords.of(similar)


def read_list(path: str, field: str) -> bytes:
    """Returns the content of the file that `field` names."""
    if storage.find_file(path) is None:
        raise UserError(f"{field}={path} does not exist; give a file of UTF-8 text")
    return storage.read_bytes(path)
