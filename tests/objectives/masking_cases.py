"""Batches, words and bounds for the tests of masking."""

import math

import numpy as np

from encoderjax.data.pipeline import Lexicon
from encoderjax.data.random import Draws
from encoderjax.data.tokenizers import Vocabulary

PAD, UNK, CLS, SEP, MASK = range(5)
VOCAB = 200
# Which ids continue a word: few (WordPiece), half (byte-level), most (characters of
# a small unigram vocabulary).
KINDS = {"wordpiece": 160, "bytelevel": 100, "unigram": 60}


def make_lexicon(kind="wordpiece"):
    ids = np.arange(VOCAB)
    vocabulary = Vocabulary(
        size=VOCAB,
        pad_id=PAD,
        unk_id=UNK,
        cls_id=CLS,
        sep_id=SEP,
        mask_id=MASK,
        special_V=ids < 5,
        continues_word_V=ids >= KINDS[kind],
        unused_V=np.zeros(VOCAB, bool),
    )
    unigrams = np.where(ids < 5, 0, 10_000 // (ids + 1))
    return Lexicon(vocabulary, unigrams)


def draws(rows, epoch=0):
    return Draws(0, np.full(rows, epoch), np.arange(rows))


def make_batch(lengths, width=128, seed=0):
    """Rows [CLS] a ... [SEP] b ... [SEP], some tokens unknown."""
    rng = np.random.default_rng(seed)
    lengths = np.asarray(lengths)
    ids = rng.integers(5, VOCAB, (len(lengths), width)).astype(np.int32)
    ids[rng.random(ids.shape) < 0.03] = UNK
    mask = np.arange(width) < lengths[:, None]
    ids[~mask] = PAD
    rows = np.arange(len(lengths))
    ids[:, 0] = CLS
    ids[rows, lengths // 2] = SEP
    ids[rows, lengths - 1] = SEP
    return {"ids": ids, "mask": mask, "row_weights": np.ones(len(lengths), np.float32)}


def mixed_batch():
    """Rows of many lengths, the shortest without text."""
    return make_batch([*np.random.default_rng(1).integers(4, 129, 60), 128, 3])


def within(found, share, number, deviations=5):
    """Whether a share of `number` cases may be `found`."""
    return abs(found - share) < deviations * math.sqrt(share * (1 - share) / number)


def chi_square_fits(counts, shares):
    expected = np.asarray(shares) * np.sum(counts)
    freedom = len(expected) - 1
    found = ((counts - expected) ** 2 / expected).sum()
    return found < freedom + 5 * math.sqrt(2 * freedom)


def candidates_of(batch, row, excluded):
    real = np.flatnonzero(batch["mask"][row])
    return [int(p) for p in real if batch["ids"][row, p] not in excluded]


def words_of(batch, row, lexicon, excluded=(CLS, SEP)):
    words = []
    for place in candidates_of(batch, row, excluded):
        if words and lexicon.vocabulary.continues_word_V[batch["ids"][row, place]]:
            words[-1].append(place)
        else:
            words.append([place])
    return words
