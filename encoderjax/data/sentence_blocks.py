"""Rows of one segment that follow the text: whole sentences, or slices of a length.

Nothing is drawn. A row neither begins nor ends with a separator of the text: the one
after its last sentence is the row's own final one, as in fairseq's blocks, where the
last line's separator ends the row.

Shapes: S sentences or parts of them, R rows.
"""

import numpy as np

from encoderjax.data.records import ROW, Cutting, LongSentences, joined_ranges
from encoderjax.data.stream import StreamSentences


def cut_sentences(cutting: Cutting, shard: int, within_documents: bool) -> np.ndarray:
    """Returns rows of whole sentences of one shard, as many as fit, [R] of `ROW`.

    Args:
      within_documents: whether a row ends with its document; documents of a single
        token are then left out.
    """
    settings, tokens = cutting.settings, cutting.tokens(1)
    sentences = StreamSentences.of(cutting.split, shard, settings.separators)
    barrier_S = np.zeros(len(sentences.starts_S), bool)
    if within_documents:
        sentences = _longer_documents(sentences)
        barrier_S = np.diff(sentences.documents_S, prepend=-1) > 0
    starts_S, ends_S, group_S = _parts(
        sentences, barrier_S, tokens, settings.long_sentences
    )
    if not len(starts_S):
        return np.zeros(0, ROW)
    beyond_S = np.searchsorted(ends_S, starts_S + tokens, "right")
    next_S = np.minimum(beyond_S, np.searchsorted(group_S, group_S, "right"))
    # Where a row begins depends on all rows before it: a chain, followed once.
    following, first_R, part = next_S.tolist(), [], 0
    while part < len(following):
        first_R.append(part)
        part = following[part]
    return _rows(starts_S[first_R], ends_S[next_S[first_R] - 1])


def cut_slices(cutting: Cutting, shard: int) -> np.ndarray:
    """Returns slices of one shard, whatever stands where they end, [R] of `ROW`."""
    settings, tokens = cutting.settings, cutting.tokens(1)
    sentences = StreamSentences.of(cutting.split, shard, settings.separators)
    if not len(sentences.starts_S):
        return np.zeros(0, ROW)
    begin, end = sentences.starts_S[0], sentences.ends_S[-1]
    starts_R = np.arange(begin, end, tokens)
    ends_R = np.minimum(starts_R + tokens, end)
    # Separators at the edges are left out.
    first_R = np.searchsorted(sentences.ends_S, starts_R, "right")
    last_R = np.searchsorted(sentences.starts_S, ends_R) - 1
    starts_R = np.maximum(starts_R, sentences.starts_S[first_R])
    ends_R = np.minimum(ends_R, sentences.ends_S[last_R])
    full_R = starts_R < ends_R
    return _rows(starts_R[full_R], ends_R[full_R])


def _longer_documents(sentences: StreamSentences) -> StreamSentences:
    """Leaves out documents of a single token."""
    documents_S = sentences.documents_S - sentences.documents_S[:1]
    tokens = np.bincount(documents_S, sentences.ends_S - sentences.starts_S)
    return sentences.only(tokens[documents_S] > 1)


def _parts(
    sentences: StreamSentences,
    barrier_S: np.ndarray,
    tokens: int,
    long_sentences: LongSentences,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns start, end and group of what is never divided; rows stay in a group.

    Args:
      barrier_S: the sentences before which a row must end.
    """
    starts_S, ends_S = sentences.starts_S, sentences.ends_S
    group_S = np.cumsum(barrier_S)
    if long_sentences == "skip":  # no row reaches across what is longer than a row
        fits_S = ends_S - starts_S <= tokens
        return starts_S[fits_S], ends_S[fits_S], group_S[fits_S]
    slices_S = -(-(ends_S - starts_S) // tokens)
    group_S = np.repeat(group_S, slices_S)
    number_S = joined_ranges(np.zeros_like(slices_S), slices_S)
    starts_S = np.repeat(starts_S, slices_S) + tokens * number_S
    return starts_S, np.minimum(starts_S + tokens, np.repeat(ends_S, slices_S)), group_S


def _rows(starts_R: np.ndarray, ends_R: np.ndarray) -> np.ndarray:
    rows_R = np.zeros(len(starts_R), ROW)
    rows_R["start"][:, 0] = starts_R
    rows_R["length"][:, 0] = ends_R - starts_R
    return rows_R
