"""Forms of one segment that draw nothing, and the stream that they are cut from."""

import itertools

import numpy as np
import pytest

from encoderjax.data.pipeline import DataConfig
from encoderjax.data.stream import TextStream, separator_places, stream_length
from encoderjax.errors import UserError
from tests.data.cut_rows import (
    CLS,
    PAD,
    SEP,
    documents_of,
    index_of,
    prose,
    source_of,
    stream_of,
    texts_of,
    without_edges,
)
from tests.small_corpus import split_of

SEPARATORS = ("none", "documents", "sentences")


@pytest.fixture(scope="module", params=[0, 1])
def text(request, tmp_path_factory):
    """A split of three shards, the second of which may be empty, and its documents."""
    shards = prose(request.param)
    if request.param:
        shards[1] = []
    folder = tmp_path_factory.mktemp("text")
    return split_of(folder, shards), documents_of(shards)


@pytest.mark.parametrize("separators", SEPARATORS)
def test_the_stream_is_the_text_with_separators(text, separators):
    split, shards = text
    expected = stream_of(itertools.chain(*shards), separators)
    assert stream_length(split, separators) == len(expected)
    places = None
    if separators != "none":
        places = separator_places(split, separators)
        assert places.tolist() == [i for i, t in enumerate(expected) if t == SEP]
    stream = TextStream(split, places, SEP)
    rng = np.random.default_rng(0)
    starts = rng.integers(0, len(expected), 200)
    lengths = np.minimum(rng.integers(0, 60, 200), len(expected) - starts)
    starts[:2], lengths[:2] = (0, len(expected)), (len(expected), 0)
    spans = [expected[a : a + n] for a, n in zip(starts, lengths, strict=True)]
    assert stream.read(starts, lengths).tolist() == list(itertools.chain(*spans))


def whole_sentences(documents, tokens, separators, within_documents, long_sentences):
    """Walks the sentences one by one: as many as fit, with what stands between them."""
    sentences = []  # (tokens, separators before the next sentence)
    for number, document in enumerate(documents):
        if within_documents and sum(map(len, document)) <= 1:
            continue
        for place, sentence in enumerate(document):
            last = place == len(document) - 1
            after = {"none": 0, "documents": int(last), "sentences": 1 + last}
            sentences.append((number, sentence, after[separators]))
    rows, row, gap, before = [], [], 0, None

    def flush():
        nonlocal row
        if row:
            rows.append(row)
        row = []

    for number, sentence, after in sentences:
        if within_documents and number != before:
            flush()
        before = number
        if len(sentence) > tokens and long_sentences == "skip":
            flush()
        elif sentence:
            parts = [sentence[i : i + tokens] for i in range(0, len(sentence), tokens)]
            for part in parts:
                if row and len(row) + gap + len(part) > tokens:
                    flush()
                row = [*row, *[SEP] * gap, *part] if row else list(part)
                gap = 0
        gap = after + (gap if not sentence else 0)
    flush()
    return rows


@pytest.mark.parametrize("form", ["full_sentences", "doc_sentences"])
@pytest.mark.parametrize("separators", SEPARATORS)
@pytest.mark.parametrize("long_sentences", ["cut", "skip"])
@pytest.mark.parametrize("length", [9, 40])
def test_rows_are_as_many_whole_sentences_as_fit(
    text, form, separators, long_sentences, length
):
    split, shards = text
    index = index_of(
        split,
        form=form,
        separators=separators,
        long_sentences=long_sentences,
        length=length,
    )
    expected = [
        row
        for documents in shards
        for row in whole_sentences(
            documents, length - 2, separators, form == "doc_sentences", long_sentences
        )
    ]
    found = [a for a, _ in texts_of(index)]
    assert found == expected
    assert max(map(len, found)) <= length - 2
    assert not index.passes[0].pieces_S["length"][:, 1].any()


def test_every_token_comes_once(text):
    split, shards = text
    for form, separators in itertools.product(
        ("full_sentences", "contiguous"), SEPARATORS
    ):
        index = index_of(split, form=form, separators=separators, length=12)
        found = [token for a, _ in texts_of(index) for token in a if token != SEP]
        assert found == list(range(split.num_tokens))
    longer = [d for d in itertools.chain(*shards) if sum(map(len, d)) > 1]
    index = index_of(split, form="doc_sentences", length=12)
    found = [token for a, _ in texts_of(index) for token in a]
    assert found == list(itertools.chain(*itertools.chain(*longer)))


def test_the_last_separator_of_a_block_is_that_of_the_row(tmp_path):
    """As in fairseq: lines end in </s>, blocks have length - 1, <s> goes before."""
    lengths = np.random.default_rng(0).integers(1, 9, 200).tolist()
    split = split_of(tmp_path / "one", [[lengths]])
    ((document,),) = documents_of([[lengths]])
    length, blocks, block = 20, [], []
    for line in ([*sentence, SEP] for sentence in document):
        if block and len(block) + len(line) > length - 1:
            blocks.append(block)
            block = []
        block = block + line
    blocks.append(block)
    source = source_of(
        split,
        form="full_sentences",
        separators="sentences",
        length=length,
        batch_size=len(blocks),
    )
    batch = source.rows(np.zeros(len(blocks), int), np.arange(len(blocks)))
    for row, block in zip(batch["ids"].tolist(), blocks, strict=True):
        assert row == [CLS, *block] + [PAD] * (length - 1 - len(block))


@pytest.mark.parametrize("separators", SEPARATORS)
def test_contiguous_rows_are_slices_of_each_shard(text, separators):
    split, shards = text
    index = index_of(split, form="contiguous", separators=separators, length=12)
    expected = []
    for documents in shards:
        # From the first token on; what ends the shard is no text.
        stream = without_edges(stream_of(documents, separators))
        slices = (stream[i : i + 10] for i in range(0, len(stream), 10))
        expected += filter(None, map(without_edges, slices))
    assert [a for a, _ in texts_of(index)] == expected


def test_default_separators_are_those_of_the_papers(text):
    split, _ = text
    for form, separators in (
        ("full_sentences", "documents"),
        ("doc_sentences", "none"),
        ("contiguous", "none"),
        ("reuse_pair", "documents"),
    ):
        assert index_of(split, form=form, length=16).settings.separators == separators


@pytest.mark.parametrize("form", ["full_sentences", "doc_sentences", "contiguous"])
def test_what_draws_nothing_is_cut_once_for_all_seeds(text, form):
    data = DataConfig(corpus="x", batch_size=8, form=form, dupe_factor=7)
    assert data.row_settings(3).passes == 1
    assert data.row_settings(3) == data.row_settings(4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"form": "packed", "second": "random"}, "second='random'.*sentence_pair"),
        ({"form": "contiguous", "second": "swapped"}, "second='swapped'"),
        ({"form": "reuse_pair", "second": "swapped"}, "data.form to segment_pair"),
        ({"form": "segment_halves", "second": "random"}, "or reuse_pair"),
        ({"form": "full_sentences", "short_rate": 0.1}, "short_rate=0.1"),
        ({"form": "packed", "separators": "none"}, "separators='none'.*contiguous"),
        ({"separators": "documents"}, "separators='documents'"),
        ({"form": "contiguous", "long_sentences": "skip"}, "long_sentences='skip'"),
        ({"form": "packed", "negatives": "anywhere"}, "negatives='anywhere'"),
        ({"reuse_length": 8}, "reuse_length=8.*reuse_pair"),
        ({"bidirectional": True}, "bidirectional=True.*reuse_pair"),
        (
            {"form": "reuse_pair", "batch_size": None, "batch_tokens": 512},
            "batch_tokens=512.*data.batch_size",
        ),
        (
            {"form": "reuse_pair", "bidirectional": True, "batch_size": 7},
            "batch_size=7 must be even",
        ),
        ({"form": "reuse_pair", "reuse_length": 128}, "reuse_length=128"),
        ({"form": "reuse_pair", "reuse_length": -1}, "reuse_length=-1"),
    ],
)
def test_what_a_form_cannot_be_is_refused_in_a_line(changes, message):
    with pytest.raises(UserError, match=message) as error:
        DataConfig(**{"corpus": "x", "batch_size": 8} | changes)
    assert "\n" not in str(error.value)


def test_settings_that_are_left_open_follow_the_form():
    for form, second, short_rate in (
        ("segment_pair", "random", 0.1),
        ("sentence_pair", "random", 0.0),
        ("segment_halves", "next", 0.05),
        ("reuse_pair", "random", 0.0),
        ("packed", "next", 0.0),
    ):
        data = DataConfig(corpus="x", batch_size=8, form=form)
        settings = data.row_settings(0)
        assert (settings.second, settings.short_rate) == (second, short_rate)
        assert data.settled_second == second
