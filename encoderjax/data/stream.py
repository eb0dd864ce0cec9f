"""The text of a split as one sequence, with separators between its parts.

Places in the stream count tokens and separators alike. Without separators they are the
places of the split's tokens.

Shapes: S sentences or spans, N separators, T tokens read.
"""

import dataclasses

import numpy as np

from encoderjax.data.corpus import Split
from encoderjax.data.records import Separators, ShardText, joined_ranges
from encoderjax.data.tokenizers import Tokenizer

END_OF_DOCUMENT = "<eod>"  # XLNet's own separator of documents

_LONG = 32  # tokens, on average, from which spans are copied one by one


@dataclasses.dataclass(frozen=True, eq=False)
class TextStream:
    """Reads spans of the stream.

    Attributes:
      separators_N: the places of the separators, ascending; None where there are none.
      separator_id: the token that stands there.
    """

    split: Split
    separators_N: np.ndarray | None = None
    separator_id: int = 0

    def read(self, starts_S: np.ndarray, lengths_S: np.ndarray) -> np.ndarray:
        """Returns the ids of all spans, one after the other."""
        if self.separators_N is None:
            return self._tokens(starts_S, lengths_S)
        # The tokens of a span are as many places back as separators stand before it.
        before_S = np.searchsorted(self.separators_N, starts_S)
        inside_S = np.searchsorted(self.separators_N, starts_S + lengths_S) - before_S
        tokens = self._tokens(starts_S - before_S, lengths_S - inside_S)
        found = self.separators_N[joined_ranges(before_S, inside_S)]
        found += np.repeat(np.cumsum(lengths_S) - lengths_S - starts_S, inside_S)
        ids_T = np.full(len(tokens) + len(found), self.separator_id, tokens.dtype)
        is_token_T = np.ones(len(ids_T), bool)
        is_token_T[found] = False
        ids_T[is_token_T] = tokens
        return ids_T

    def _tokens(self, starts_S: np.ndarray, lengths_S: np.ndarray) -> np.ndarray:
        """Returns the tokens of spans that are counted without separators."""
        if lengths_S.sum() < _LONG * len(lengths_S):
            return self.split.tokens.take(joined_ranges(starts_S, lengths_S))
        return self.split.tokens.read(starts_S, lengths_S)


def separator_of(tokenizer: Tokenizer) -> int:
    """Returns the separator of documents: <eod> where there is one, else [SEP]."""
    special = np.flatnonzero(tokenizer.vocabulary.special_V)
    names = tokenizer.tokens(special)
    if END_OF_DOCUMENT in names:
        return int(special[names.index(END_OF_DOCUMENT)])
    return tokenizer.vocabulary.sep_id


def stream_length(split: Split, separators: Separators) -> int:
    """Returns how many tokens and separators there are."""
    documents = split.num_documents * (separators != "none")
    sentences = split.num_sentences * (separators == "sentences")
    return split.num_tokens + documents + sentences


def separator_places(split: Split, separators: Separators) -> np.ndarray:
    """Returns where the separators stand in the stream, int64 [N].

    `documents`: after each. `sentences`: after each, and once more after each document,
    as in files with a sentence a line and an empty line between documents.
    """
    parts = [np.zeros(0, np.int64)]
    end = 0
    for shard in range(split.num_shards):
        text = ShardText.of(split, shard)
        if separators == "documents":
            lines = np.diff(text.offsets_S[np.append(0, text.end_D)]) + 1
        else:
            lines = np.insert(np.diff(text.offsets_S) + 1, text.end_D, 1)
        parts.append(end + np.cumsum(lines, dtype=np.int64) - 1)
        end += int(lines.sum())
    return np.concatenate(parts)


@dataclasses.dataclass(frozen=True, eq=False)
class StreamSentences:
    """Sentences that are not empty, by their places in the stream.

    Attributes:
      ends_S: where each ends, without the separators behind it.
      documents_S: the document of each.
    """

    starts_S: np.ndarray
    ends_S: np.ndarray
    documents_S: np.ndarray

    @classmethod
    def of(
        cls, split: Split, shard: int, separators: Separators = "none"
    ) -> "StreamSentences":
        """Returns the sentences of one shard."""
        text = ShardText.of(split, shard)
        documents_S = np.repeat(text.documents_D, text.end_D - text.first_D)
        lengths_S = np.diff(text.offsets_S)
        starts_S = text.offsets_S[:-1].copy()
        if separators != "none":
            starts_S += documents_S
        if separators == "sentences":
            starts_S += text.origin + np.arange(len(starts_S))
        sentences = cls(starts_S, starts_S + lengths_S, documents_S)
        return sentences.only(lengths_S > 0)

    def only(self, chosen_S: np.ndarray) -> "StreamSentences":
        """Returns the chosen ones."""
        parts = (self.starts_S, self.ends_S, self.documents_S)
        return StreamSentences(*(part[chosen_S] for part in parts))
