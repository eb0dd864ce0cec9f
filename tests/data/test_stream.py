import itertools

import numpy as np
import pytest

from encoderjax.data.stream import TextStream, separator_places, stream_length
from tests.small_corpus import split_of

SEP = 1_000_000
SHARDS = [[[30, 2], [41]], [[1, 1, 70]], [[5], [90, 3]]]


def written_out(separators):
    """Returns the stream token by token; tokens count up."""
    counter, stream = itertools.count(), []
    for document in itertools.chain(*SHARDS):
        for length in document:
            stream += itertools.islice(counter, length)
            stream += [SEP] * (separators == "sentences")
        stream += [SEP] * (separators != "none")
    return np.array(stream)


@pytest.mark.parametrize("separators", ["none", "documents", "sentences"])
@pytest.mark.parametrize("longest", [6, 250])  # few tokens at once, and many
def test_spans_are_those_of_the_stream_written_out(tmp_path, separators, longest):
    split, expected = split_of(tmp_path, SHARDS), written_out(separators)
    assert stream_length(split, separators) == len(expected)
    places = None if separators == "none" else separator_places(split, separators)
    rng = np.random.default_rng(0)
    starts = rng.integers(0, len(expected), 200)
    lengths = np.minimum(rng.integers(0, longest + 1, 200), len(expected) - starts)
    found = TextStream(split, places, SEP).read(starts, lengths)
    spans = [expected[a : a + n] for a, n in zip(starts, lengths, strict=True)]
    assert np.array_equal(found, np.concatenate(spans))
