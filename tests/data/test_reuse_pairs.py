"""XLNet's rows, against plain loops over the text."""

import bisect
import itertools
import math

import numpy as np
import pytest

from encoderjax.data.rows import StreamOrder
from tests.data.cut_rows import (
    CLS,
    SEP,
    XLNET,
    documents_of,
    index_of,
    prose,
    source_of,
    stream_of,
    texts_of,
)
from tests.data.test_segment_pairs import reference_truncation
from tests.small_corpus import split_of

LENGTH, REUSE, BATCH = 32, 12, 6
TOKENS = LENGTH - REUSE - 3


@pytest.fixture(scope="module", params=[15, 60])
def shards(request):
    """Sentences that end in every row, and some that are longer than a pair."""
    return [
        [[n or 1 for n in document] for document in shard]
        for shard in prose(5, documents=80, longest=request.param)
    ]


@pytest.fixture(scope="module")
def split(shards, tmp_path_factory):
    return split_of(tmp_path_factory.mktemp("streams"), shards)


def rows_of(split, **changes):
    settings = dict(form="reuse_pair", length=LENGTH, reuse_length=REUSE)
    settings |= dict(batch_size=BATCH, layout=XLNET) | changes
    return index_of(split, **settings)


def streams_of(shards, number, separators="documents"):
    """Returns the text of each stream, and where sentences end in it.

    A separator belongs to the sentence before it.
    """
    documents = list(itertools.chain(*documents_of(shards)))
    text = stream_of(documents, separators)
    starts = {sentence[0] for document in documents for sentence in document}
    size = len(text) // number
    for stream in range(number):
        part = text[stream * size : (stream + 1) * size]
        yield part, [0, *(i for i in range(1, size) if part[i] in starts), size]


def mirrored(streams):
    for part, bounds in streams:
        yield part[::-1], [len(part) - bound for bound in reversed(bounds)]


@pytest.mark.parametrize("second", ["random", "next"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_rows_are_cut_as_in_the_reference(shards, split, second, bidirectional):
    index = rows_of(split, second=second, bidirectional=bidirectional)
    streams = list(streams_of(shards, BATCH // (1 + bidirectional)))
    slots = [*streams, *(mirrored(streams) if bidirectional else ())]
    assert len(slots) == BATCH
    rows = zip(texts_of(index), index.passes[0].pieces_S, strict=True)
    odd = free = uncut = met = 0
    for text, bounds in slots:
        where = {token: i for i, token in enumerate(text) if token != SEP}
        block = 0
        # As long as the pair's continuation lies in the stream.
        while block * REUSE + REUSE + TOKENS <= len(text):
            (first, b), record = next(rows)
            start = block * REUSE
            begin = start + REUSE
            assert first == text[start : start + len(first)]
            a = first[REUSE:]
            assert len(a) + len(b) == TOKENS
            assert a
            cuts = [c for c in bounds if begin < c < begin + TOKENS]
            end = next(c for c in bounds if c >= begin + TOKENS)
            if record["label"] == 0 and not cuts and second == "random":
                # The random place was that of the continuation.
                assert b == text[end : end + len(b)]
                met += 1
            elif record["label"] == 0:
                a_end = begin + TOKENS // 2  # where no sentence ends
                if cuts:
                    a_end = begin + len(a)
                    while text[a_end : a_end + len(b)] != b:
                        a_end += 1
                    assert a_end in cuts
                pair = reference_truncation(a_end - begin, end - a_end, TOKENS)
                assert (len(a), len(b)) == pair
                assert b == text[a_end : a_end + len(b)]
            else:
                known = next(i for i, token in enumerate(b) if token != SEP)
                b_begin = where[b[known]] - known
                assert b_begin in bounds
                assert b == text[b_begin : b_begin + len(b)]
                ends = [c for c in (cuts or [end]) if c - begin >= len(a)]
                assert ends
                # A was cut only if it was longer than B.
                assert begin + len(a) in ends or len(a) >= len(b)
            if cuts:
                odd, free = odd + int(record["label"]), free + 1
            else:
                uncut += 1
            block += 1
        assert block == len(index.passes[0]) // BATCH
    assert next(rows, None) is None
    assert (uncut > 100) == (max(itertools.chain(*itertools.chain(*shards))) > 15)
    assert met <= 0.03 * uncut
    if second == "random":
        assert abs(odd / free - 0.5) < 5 * math.sqrt(0.25 / free)
    else:
        assert not odd


def test_cut_points_and_random_places_are_uniform(tmp_path):
    """Sentences of one token: every place is a cut point and a sentence start."""
    split = split_of(tmp_path / "tokens", [[[1] * 60_000]])
    index = rows_of(split, batch_size=2, separators="none")
    rows = index.passes[0].pieces_S
    size = split.num_tokens // 2
    follows = rows[rows["label"] == 0]
    a = follows["length"][:, 0].astype(int) - REUSE
    counts = np.bincount(a, minlength=TOKENS)[1:TOKENS]
    expected = len(a) / (TOKENS - 1)
    freedom = TOKENS - 2
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < freedom + 5 * math.sqrt(2 * freedom)
    elsewhere = rows[rows["label"] == 1]
    stream = elsewhere["start"][:, 0] // size
    place = elsewhere["start"][:, 1] - stream * size
    assert ((place >= 0) & (place < size)).all()  # of the same stream
    assert abs(place.mean() / size - 0.5) < 5 * math.sqrt(1 / 12 / len(place))


def test_batches_are_laid_out_as_xlnets(split):
    source = source_of(
        split,
        form="reuse_pair",
        length=LENGTH,
        reuse_length=REUSE,
        layout=XLNET,
        batch_size=BATCH,
        bidirectional=True,
    )
    batch = source.batch(4)
    assert batch["mask"].all()  # no padding
    assert (batch["ids"][:, -1] == CLS).all()
    assert (batch["ids"][:, -2] == SEP).all()
    assert batch["reversed"].tolist() == [False] * 3 + [True] * 3
    assert batch["paired"].all()
    records, _ = source.index.take(*source.places(4, slice(None)))
    for row, (a, b) in enumerate(records["length"].astype(int).tolist()):
        expected = [0] * (a + 1) + [1] * (b + 1) + [2]
        assert batch["segments"][row].tolist() == expected
        assert batch["ids"][row, a] == SEP
    assert np.array_equal(batch["second"], records["label"])


@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_slot_goes_on_from_step_to_step(shards, split, bidirectional):
    source = source_of(
        split,
        form="reuse_pair",
        length=LENGTH,
        reuse_length=REUSE,
        layout=XLNET,
        batch_size=BATCH,
        bidirectional=bidirectional,
        dupe_factor=2,
    )
    streams = list(streams_of(shards, BATCH // (1 + bidirectional)))
    slots = [*streams, *(mirrored(streams) if bidirectional else ())]
    blocks = len(source.index.passes[0]) // BATCH
    for step in range(2 * blocks + 3):
        epochs, _ = source.places(step, slice(None))
        assert set(epochs.tolist()) == {step // blocks}
        batch = source.batch(step)
        begin = (step % blocks) * REUSE
        for slot, (text, _) in enumerate(slots):
            reuse = batch["ids"][slot, :REUSE].tolist()
            assert reuse == text[begin : begin + REUSE]
            # A follows, at least by a token.
            assert batch["ids"][slot, REUSE] == text[begin + REUSE]
    first, second, third = (source.batch(step) for step in (0, blocks, 2 * blocks))
    assert not np.array_equal(first["ids"], second["ids"])  # another cut
    assert np.array_equal(first["ids"], third["ids"])


def test_a_far_step_is_where_walking_would_arrive():
    order, state = StreamOrder(slots=4, blocks=7), [(0, 0)] * 4
    for step in range(40):
        epochs, rows = order.at(np.arange(4) + 4 * step)
        assert list(zip(epochs.tolist(), rows.tolist(), strict=True)) == [
            (epoch, slot * 7 + block) for slot, (epoch, block) in enumerate(state)
        ]
        state = [(e + (b == 6), (b + 1) % 7) for e, b in state]
    far = order.at(np.arange(4) + 4 * (7 * 10**12 + 3))
    assert far[0].tolist() == [10**12] * 4
    assert far[1].tolist() == [3, 10, 17, 24]


def test_any_part_of_a_batch_is_the_same(split):
    source = source_of(
        split,
        form="reuse_pair",
        length=LENGTH,
        reuse_length=REUSE,
        layout=XLNET,
        batch_size=BATCH,
        bidirectional=True,
    )
    whole = source.batch(9)
    for part in (slice(0, 3), slice(3, 6), np.array([5, 0])):
        batch = source.batch(9, part)
        assert batch.keys() == whole.keys()
        assert all(np.array_equal(batch[name], whole[name][part]) for name in whole)


def test_held_out_rows_are_one_stream_whatever_the_batches(split):
    one, other = (
        rows_of(split, held_out=True, batch_size=size, bidirectional=True)
        for size in (2, 8)
    )
    assert np.array_equal(one.passes[0].pieces_S, other.passes[0].pieces_S)
    rows = one.passes[0].pieces_S
    assert not rows["reversed"].any()
    assert np.array_equal(rows["start"][:, 0], REUSE * np.arange(len(rows)))


def test_without_reuse_a_row_begins_where_the_last_one_fits_to(split):
    index = rows_of(split, reuse_length=0, batch_size=1, separators="none")
    rows = index.passes[0].pieces_S
    assert np.array_equal(rows["start"][:, 0], (LENGTH - 3) * np.arange(len(rows)))
    assert len(rows) == split.num_tokens // (LENGTH - 3)
    assert (rows["length"].sum(axis=1) == LENGTH - 3).all()


def test_separators_belong_to_the_sentence_before(shards, split):
    """A random B begins with a sentence, never with what ends the one before."""
    for separators in ("documents", "sentences"):
        index = rows_of(split, separators=separators, batch_size=1)
        ((text, bounds),) = streams_of(shards, 1, separators)
        for piece in index.passes[0].pieces_S:
            place = bisect.bisect_left(bounds, piece["start"][1])
            if piece["label"]:
                assert bounds[place] == piece["start"][1]
                assert text[bounds[place]] != SEP
