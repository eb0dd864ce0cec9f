"""Pairs of segments (BERT) or of sentences (RoBERTa), cut into rows of token spans.

The cut follows the reference code for pretraining data of BERT, decision by
decision, but every draw is a hash of (seed, pass, document, chunk), and all
documents of a shard are walked at once: a loop over the chunks of a document, never
over documents, sentences or tokens.

For each document a target length is drawn once: the longest that fits, or, at
`short_rate`, anything from 2 up. Sentences are gathered into a chunk until it
reaches the target. The chunk is split after a random sentence into A and B. B is
kept, or replaced by text from elsewhere; then the unused sentences go back and start
the next chunk. At last the pair is cut to the length, a token at a time from the
longer side, its front or its back.

Pairs of sentences are the same with chunks of two sentences, whatever their length, and
a single sentence from elsewhere.

Shapes: R rows, D live documents of a shard.
"""

import dataclasses
from typing import Literal

import numpy as np

from encoderjax.data.corpus import ShardedArray, Split
from encoderjax.data.random import KeyedDraws, hash_words
from encoderjax.data.records import ROW, Negatives, Second, ShardText


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairCut:
    """How pairs are cut.

    Attributes:
      tokens: how many ordinary tokens a row holds at most.
      second: what B may be besides the continuation: `next` nothing else, `random`
        text from elsewhere in half of the rows, `swapped` A and B in the wrong order
        in half of the rows. A single sentence has no order: with `swapped` it is
        followed by text from elsewhere, with `swapped_only` it stays alone.
      negatives: whether random text comes from another document or from anywhere.
      short_rate: share of documents with a shorter target length.
      unit: whether A and B are segments of several sentences, or one sentence each.
    """

    tokens: int
    second: Second
    negatives: Negatives
    short_rate: float
    seed: int
    unit: Literal["segment", "sentence"] = "segment"


def cut_pairs(split: Split, shard: int, number: int, cut: PairCut) -> np.ndarray:
    """Returns the rows of one shard as [R] of `ROW`, for pass `number`."""
    text = ShardText.of(split, shard)
    document, sentence, end = text.documents_D, text.first_D, text.end_D
    offsets = text.offsets_S  # so that chunk ends are one searchsorted
    key = hash_words(cut.seed, number, document)
    target = _target_lengths(key, cut)
    rows, owners = [], []
    for chunk in range(len(offsets)):
        if not document.size:
            break
        draw = KeyedDraws(key, chunk)
        if cut.unit == "sentence":
            reached = sentence + 2
        else:
            reached = np.searchsorted(offsets, offsets[sentence] + target)
        after = np.maximum(np.minimum(reached, end), sentence + 1)
        count = after - sentence
        middle = sentence + 1 + draw.integers("split", np.maximum(count - 1, 1))

        part = np.zeros(document.size, ROW)
        length = np.empty((document.size, 2), np.int64)
        part["start"][:, 0] = offsets[sentence]
        part["start"][:, 1] = offsets[middle]
        length[:, 0] = offsets[middle] - offsets[sentence]
        length[:, 1] = offsets[after] - offsets[middle]

        single = count == 1
        odd = _odd_pairs(single, cut, draw)
        elsewhere = odd if cut.second == "random" else odd & single
        if elsewhere.any():
            wanted = target[elsewhere] - length[elsewhere, 0]
            if cut.unit == "sentence":
                wanted = np.ones_like(wanted)
            part["start"][elsewhere, 1], length[elsewhere, 1] = _spans_elsewhere(
                split,
                cut,
                draw.only(elsewhere),
                document[elsewhere],
                middle[elsewhere] + text.origin,
                wanted,
            )
        swapped = odd & ~elsewhere
        part["start"][swapped] = part["start"][swapped, ::-1]
        length[swapped] = length[swapped, ::-1]
        part["label"] = odd
        # A short chunk may pass its target, as in the reference; two sentences do not.
        most = target if cut.unit == "sentence" else cut.tokens
        _truncate(part, length, most, draw)
        rows.append(part)
        owners.append(document)

        # What B did not use goes back, to begin the next chunk.
        sentence = np.where(elsewhere, middle, after)
        live = sentence < end
        document, sentence, end = document[live], sentence[live], end[live]
        key, target = key[live], target[live]
    order = np.argsort(np.concatenate(owners), kind="stable")
    return np.concatenate(rows)[order]


def _odd_pairs(single: np.ndarray, cut: PairCut, draw: KeyedDraws) -> np.ndarray:
    """Returns which pairs are not what follows in the text."""
    if cut.second == "next":
        return np.zeros_like(single)
    odd = draw.coin("odd")
    return odd & ~single if cut.second == "swapped_only" else odd | single


def _target_lengths(key: np.ndarray, cut: PairCut) -> np.ndarray:
    """Returns the target length of each document, drawn once for a pass."""
    draw = KeyedDraws(key, 0)
    lengths = 2 + draw.integers("length", cut.tokens - 1)
    return np.where(draw.happens("short", cut.short_rate), lengths, cut.tokens)


def _spans_elsewhere(
    split: Split,
    cut: PairCut,
    draw: KeyedDraws,
    document: np.ndarray,
    continuation: np.ndarray,
    wanted: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns start and length of random text that is not the continuation.

    The document is drawn uniformly, then its first sentence; sentences follow until
    `wanted` tokens are reached or the document ends.
    """
    if cut.negatives == "document":
        other = draw.integers("document", split.num_documents - 1)
        other += other >= document
    else:
        other = draw.integers("document", split.num_documents)
    first = split.document_starts.take(other)
    stop = split.document_starts.take(other + 1)
    # Leave the true continuation out of the choice, where it is in this document.
    inside = (first <= continuation) & (continuation < stop) & (stop - first > 1)
    sentence = first + draw.integers("sentence", stop - first - inside)
    sentence += inside & (sentence >= continuation)
    start = split.sentence_starts.take(sentence)
    last = np.minimum(stop, sentence + np.maximum(wanted, 1))
    after = _first_reaching(split.sentence_starts, sentence + 1, last, start + wanted)
    return start, split.sentence_starts.take(after) - start


def _first_reaching(
    starts: ShardedArray, low: np.ndarray, high: np.ndarray, value: np.ndarray
) -> np.ndarray:
    """Returns the first index in [low, high] whose start is >= value, else high."""
    low, high = low.copy(), high.copy()
    while (low < high).any():
        middle = (low + high) // 2
        reached = starts.take(middle) >= value
        open_ = low < high
        high = np.where(open_ & reached, middle, high)
        low = np.where(open_ & ~reached, middle + 1, low)
    return low


def _truncate(
    part: np.ndarray, length: np.ndarray, tokens: int | np.ndarray, draw: KeyedDraws
) -> None:
    """Cuts pairs to `tokens`, in place: the longer side, ties from B.

    Each token goes from the front or the back with equal chance, so the number from
    the front is a count of random bits.
    """
    kept = truncated_lengths(length, tokens)
    for side, name in enumerate(("front_a", "front_b")):
        excess = length[:, side] - kept[:, side]
        part["start"][:, side] += _count_of_heads(excess, draw, name)
    part["length"] = kept


def truncated_lengths(length_R2: np.ndarray, tokens: int | np.ndarray) -> np.ndarray:
    """Returns what is left when tokens go one by one from the longer side, B in ties.

    Args:
      tokens: how many may be left, of all rows or of each.
    """
    a, b = length_R2[:, 0], length_R2[:, 1]
    half_b = tokens // 2
    half_a = tokens - half_b
    kept_a = np.where(b <= half_b, tokens - b, half_a)
    kept_a = np.minimum(a, kept_a)
    kept_b = np.minimum(b, tokens - kept_a)
    fits = a + b <= tokens
    return np.where(fits[:, None], length_R2, np.stack([kept_a, kept_b], axis=1))


def _count_of_heads(tosses: np.ndarray, draw: KeyedDraws, site: str) -> np.ndarray:
    """Returns binomial(tosses, 1/2) draws: the set bits among so many random ones."""
    heads = np.zeros(tosses.shape, np.int64)
    live = np.flatnonzero(tosses > 0)
    word = 0
    while live.size:
        left = tosses[live] - 32 * word
        bits = draw.only(live).bits(site, word)
        unused = np.clip(32 - left, 0, 31).astype(np.uint32)
        heads[live] += np.bitwise_count(bits >> unused)
        live = live[left > 32]
        word += 1
    return heads
