"""Rows of splits whose tokens tell their places, for the tests of the forms."""

import itertools
import types

import numpy as np

from encoderjax.data.forms import FORMS
from encoderjax.data.pipeline import BatchSource, DataConfig, Lexicon
from encoderjax.data.records import Cutting, Rows
from encoderjax.data.rows import RowIndex, count_tokens
from encoderjax.data.stream import TextStream, separator_places
from encoderjax.data.tokenizers import Layout

PAD, CLS, SEP = 1_000_000, 1_000_001, 1_000_002
BERT = Layout((CLS,), (SEP,), (SEP,))
XLNET = Layout((), (SEP,), (SEP, CLS), final=2, pads_left=True, pad=3)


def index_of(split, *, layout=BERT, seed=0, held_out=False, **data):
    """Cuts rows in memory; `data` are fields of DataConfig."""
    config = DataConfig(**{"corpus": "x", "batch_size": 8, "dupe_factor": 1} | data)
    settings = config.row_settings(seed, held_out=held_out)
    cutting = Cutting(split, layout, settings)
    passes = tuple(
        Rows.joined(list(FORMS[settings.form].cut(cutting, number)))
        for number in range(settings.passes)
    )
    places = None
    if settings.separators != "none":
        places = separator_places(split, settings.separators)
    tokens = sum(count_tokens(rows.pieces_S, layout) for rows in passes)
    return RowIndex(passes, TextStream(split, places, SEP), layout, settings, tokens)


def source_of(split, *, batch_size=8, seed=0, **data):
    index = index_of(split, seed=seed, batch_size=batch_size, **data)
    vocabulary = types.SimpleNamespace(pad_id=PAD)
    return BatchSource(
        index=index,
        order=index.order(seed),
        lexicon=Lexicon(vocabulary, np.zeros(1)),
        corruptions=(),
        batch_size=batch_size,
        seed=seed,
    )


def texts_of(index, number=0):
    """Returns the tokens of each row of a pass, A and B, as lists."""
    pieces = index.passes[number].pieces_S
    texts = []
    for piece in pieces:
        lengths = piece["length"].astype(int)
        ids = index.stream.read(piece["start"], lengths).tolist()
        a, b = ids[: lengths[0]], ids[lengths[0] :]
        texts.append((a[::-1], b[::-1]) if piece["reversed"] else (a, b))
    return texts


def documents_of(shards):
    """Returns the tokens that `split_of` gives: [shard][document][sentence] lists."""
    counter = itertools.count()
    return [
        [
            [list(itertools.islice(counter, length)) for length in lengths]
            for lengths in shard
        ]
        for shard in shards
    ]


def prose(seed, documents=60, longest=15, sentences=12, shards=3):
    """Returns random lengths of sentences, for `split_of`; some are empty."""
    rng = np.random.default_rng(seed)
    return [
        [
            rng.integers(0, longest, rng.integers(1, sentences)).tolist()
            for _ in range(documents)
        ]
        for _ in range(shards)
    ]


def stream_of(documents, separators):
    """Returns the text of documents with separators, as one list."""
    stream = []
    for document in documents:
        for sentence in document:
            stream += sentence
            stream += [SEP] * (separators == "sentences")
        stream += [SEP] * (separators != "none")
    return stream


def without_edges(row):
    """Returns a list without the separators at its ends."""
    while row and row[0] == SEP:
        row = row[1:]
    while row and row[-1] == SEP:
        row = row[:-1]
    return row
