import collections
import random

import numpy as np
import pytest

from encoderjax.data.segment_pairs import PairCut, cut_pairs, truncated_lengths
from tests.small_corpus import split_of


def cut(split, **changes):
    settings = dict(tokens=20, second="random", negatives="document", short_rate=0.0)
    settings |= {"seed": 0} | changes
    return np.concatenate(
        [cut_pairs(split, s, 0, PairCut(**settings)) for s in range(split.num_shards)]
    )


def spans(rows):
    """Returns (a_first, a_after, b_first, b_after, label) of each row, as ints."""
    for row in rows:
        (a, b), (m, n) = row["start"].tolist(), row["length"].tolist()
        yield a, a + m, b, b + n, int(row["label"])


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """Three shards of documents whose sentences are one token each.

    Then chunks meet their target exactly, nothing is truncated, and every decision
    of the reference can be read off the spans.
    """
    rng = np.random.default_rng(0)
    shards = [[[1] * rng.integers(1, 90) for _ in range(40)] for _ in range(3)]
    return split_of(tmp_path_factory.mktemp("words"), shards)


def document_bounds(split):
    return split.document_starts.slice(0, split.num_documents + 1)


def by_document(split, rows):
    bounds = document_bounds(split)
    found = collections.defaultdict(list)
    for span in spans(rows):
        found[int(np.searchsorted(bounds, span[0], "right")) - 1].append(span)
    return bounds, found


def test_unused_sentences_are_put_back_and_none_is_skipped(words):
    bounds, found = by_document(words, cut(words))
    assert len(found) == words.num_documents
    for document, rows in found.items():
        expected = bounds[document]
        for a, a_end, b, b_end, label in rows:
            assert a == expected  # begins where the last chunk's used part ended
            if label == 0:
                assert b == a_end
            expected = b_end if label == 0 else a_end
        assert expected == bounds[document + 1]


def test_chunks_reach_the_target_unless_the_document_ends(words):
    bounds, found = by_document(words, cut(words))
    for document, rows in found.items():
        full = [r for r in rows if r[4] == 0 and r[3] < bounds[document + 1]]
        assert all(b_end - a == 20 for a, _, _, b_end, _ in full)
        assert all(b_end - a <= 20 for a, _, _, b_end, label in rows if label == 0)


def test_random_text_is_from_another_document_and_half_or_more_of_the_rows(words):
    bounds, found = by_document(words, cut(words))
    labels = []
    for document, rows in found.items():
        for a, a_end, b, b_end, label in rows:
            labels.append(label)
            if label == 1:
                other = int(np.searchsorted(bounds, b, "right")) - 1
                assert other != document
                assert b_end <= bounds[other + 1]
                # It fills up to the target, or to the end of its document.
                assert (
                    (a_end - a) + (b_end - b) == 20
                    or b_end == bounds[other + 1]
                    or (b_end - b == 1)
                )
    assert 0.5 < np.mean(labels) < 0.65  # single-sentence chunks are forced


def test_single_sentence_chunks_are_always_random(tmp_path):
    # Sentences longer than the target: every chunk is one of them.
    split = split_of(tmp_path / "long", [[[30] * 5, [30] * 5]])
    rows = cut(split)
    assert len(rows) == 10
    assert rows["label"].tolist() == [1] * 10


def test_short_targets_are_drawn_once_for_a_document(words):
    bounds, found = by_document(words, cut(words, short_rate=1.0, second="next"))
    targets = []
    for document, rows in found.items():
        whole = [r for r in rows if r[3] < bounds[document + 1]]
        lengths = {b_end - a for a, _, _, b_end, _ in whole}
        assert len(lengths) <= 1
        targets += lengths
    assert min(targets) >= 2
    assert max(targets) <= 20
    assert len(set(targets)) > 8
    unchanged = by_document(words, cut(words, short_rate=0.0, second="next"))[1]
    assert {b - a for rows in unchanged.values() for a, _, _, b, _ in rows[:-1]} == {20}


def test_share_of_short_documents(tmp_path):
    split = split_of(tmp_path / "many", [[[1] * 60] * 2000])
    rows = cut(split, short_rate=0.1, second="next")
    firsts = {
        int(a // 60): b_end - a for a, _, _, b_end, _ in reversed(list(spans(rows)))
    }
    short = np.mean([length < 20 for length in firsts.values()])
    assert abs(short - 0.1 * 18 / 19) < 0.03  # one of 2..20 is the full target


def test_split_point_is_uniform(tmp_path):
    split = split_of(tmp_path / "points", [[[1] * 20] * 4000])
    rows = cut(split, second="next")
    lengths = np.bincount(rows["length"][:, 0], minlength=20)[1:20]
    expected = len(rows) / 19  # A has 1..19 of the 20 sentences
    assert ((lengths - expected) ** 2 / expected).sum() < 18 + 5 * 6


def test_negatives_from_anywhere_are_never_the_continuation(tmp_path):
    split = split_of(tmp_path / "one", [[[1] * 300]])
    for seed in range(20):
        rows = cut(split, negatives="anywhere", seed=seed)
        for _, a_end, b, _, label in spans(rows):
            assert (b != a_end) or label == 0
    assert rows["label"].any()


def test_two_documents_always_take_the_other_one(tmp_path):
    split = split_of(tmp_path / "two", [[[1] * 4000], [[1] * 4000]])
    for a, _, b, _, label in spans(cut(split)):
        if label == 1:
            assert (a < 4000) != (b < 4000)


def test_swapped_keeps_the_text_and_puts_nothing_back(words):
    bounds, found = by_document(words, cut(words, second="swapped"))
    swaps = 0
    for document in found:
        for a, a_end, b, b_end, label in found[document]:
            other = not bounds[document] <= b < bounds[document + 1]
            if label == 1 and not other:
                assert b_end == a  # the second part comes first
                swaps += 1
            elif label == 0:
                assert b == a_end
    assert swaps > 50


def reference_truncation(a, b, limit):
    """Drops one token at a time from the longer side, from B when equal."""
    while a + b > limit:
        if a > b:
            a -= 1
        else:
            b -= 1
    return a, b


def test_truncation_takes_from_the_longer_side_and_from_b_when_equal():
    pairs = np.array([(a, b) for a in range(1, 40) for b in range(1, 40)])
    for limit in (5, 12, 13, 29):
        kept = truncated_lengths(pairs, limit)
        expected = [reference_truncation(a, b, limit) for a, b in pairs.tolist()]
        assert kept.tolist() == [list(pair) for pair in expected]


def test_truncation_takes_front_and_back_alike(tmp_path):
    lengths = [[150, 150]] * 1500  # each document one chunk of 300 tokens, cut to 20
    split = split_of(tmp_path / "cut", [lengths])
    rows = cut(split, second="next", tokens=200)
    assert (rows["length"].sum(axis=1) == 200).all()
    front = rows["start"][:, 0] - np.arange(1500) * 300
    assert front.min() >= 0
    # 50 tosses of a fair coin: mean 25, variance 12.5.
    assert abs(front.mean() - 25) < 0.5
    assert abs(front.var() - 12.5) < 2
    # A stays inside its sentence.
    assert ((front + rows["length"][:, 0]) <= 150).all()


def test_cuts_differ_between_passes_and_repeat_for_a_seed(words):
    settings = PairCut(
        tokens=20, second="random", negatives="document", short_rate=0.1, seed=3
    )
    first, again, other = (cut_pairs(words, 1, n, settings) for n in (0, 0, 1))
    assert np.array_equal(first, again)
    assert len(first) != len(other) or not np.array_equal(first, other)


def test_statistics_follow_the_reference_code(tmp_path):
    """Compares with a plain walk of the published algorithm, in distribution."""
    rng = np.random.default_rng(1)
    documents = [rng.integers(1, 12, rng.integers(2, 60)).tolist() for _ in range(1500)]
    rows = cut(split_of(tmp_path / "prose", [documents]), tokens=40)
    reference = plain_walk(documents, tokens=40)
    ours = [
        (m, n, label)
        for (m, n), label in zip(rows["length"], rows["label"], strict=True)
    ]
    for column in range(3):
        a = np.array([row[column] for row in ours], float)
        b = np.array([row[column] for row in reference], float)
        error = np.sqrt(a.var() / len(a) + b.var() / len(b))
        assert abs(a.mean() - b.mean()) < 4 * error
    assert abs(len(ours) - len(reference)) < 0.01 * len(reference)


def plain_walk(documents, tokens):
    """BERT's instances of documents of sentence lengths: (len A, len B, random)."""
    rng, out = random.Random(0), []
    for number, document in enumerate(documents):
        target, chunk, i = tokens, [], 0
        while i < len(document):
            chunk.append(document[i])
            if i == len(document) - 1 or sum(chunk) >= target:
                a_end = rng.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
                a, is_random = sum(chunk[:a_end]), len(chunk) == 1 or rng.random() < 0.5
                b = sum(chunk[a_end:])
                if is_random:
                    other = rng.choice(
                        [n for n in range(len(documents)) if n != number]
                    )
                    start, b = rng.randrange(len(documents[other])), 0
                    for length in documents[other][start:]:
                        b += length
                        if b >= target - a:
                            break
                    i -= len(chunk) - a_end
                out.append((*reference_truncation(a, b, tokens), is_random))
                chunk = []
            i += 1
    return out


def test_two_long_sides_are_cut_to_halves():
    pairs = np.random.default_rng(0).integers(30, 500, (1000, 2))
    for limit in (58, 59):
        kept = truncated_lengths(pairs, limit)
        assert set((kept[:, 0] - kept[:, 1]).tolist()) == {limit % 2}  # ties go from B
