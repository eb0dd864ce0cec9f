"""WordPiece's merges by likelihood, next to a walk in plain Python."""

import collections
import fractions
import itertools
import os
import random
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from encoderjax.data.tokenizers import make_tokenizer
from encoderjax.data.wordpiece import merge_by_counts
from encoderjax.data.wordpiece_likelihood import merge_by_likelihood
from encoderjax.errors import UserError
from tests.small_corpus import documents


def characters(words):
    starts = {word[0] for word in words}
    return [*sorted(starts), *sorted({"##" + c for word in words for c in word[1:]})]


def joined(pieces, pair, new):
    result = []
    for piece in pieces:
        if result and (result[-1], piece) == pair:
            result[-1] = new
        else:
            result.append(piece)
    return result


def walked(words, size, first):
    """Counts everything anew for each merge; scores are fractions."""
    pieces, limit = list(first), None
    split = {word: [word[0], *("##" + c for c in word[1:])] for word in words}
    while len(pieces) < size:
        singles, pairs = collections.Counter(), collections.Counter()
        for word, parts in split.items():
            for part in parts:
                singles[part] += words[word]
            for pair in itertools.pairwise(parts):
                pairs[pair] += words[word]
        if not pairs:
            break
        limit = limit or max(pairs.values())
        while limit > max(pairs.values()):
            limit //= 2

        def rank(pair, singles=singles, pairs=pairs):
            a, b = pair
            score = fractions.Fraction(pairs[pair], singles[a] * singles[b])
            return -score, -pairs[pair], pieces.index(a), pieces.index(b)

        best = min((pair for pair in pairs if pairs[pair] >= limit), key=rank)
        new = best[0] + best[1].removeprefix("##")
        if new not in pieces:
            pieces.append(new)
        split = {word: joined(parts, best, new) for word, parts in split.items()}
    return pieces


# Few letters and small counts: repeats within words, and many equal scores.
WORDS = st.dictionaries(
    st.text("abc", min_size=1, max_size=7), st.integers(1, 9), min_size=1, max_size=25
)


@settings(max_examples=300, deadline=None, database=None)
@given(WORDS, st.integers(1, 60))
def test_merges_are_those_of_the_walk(words, more):
    first = characters(words)
    size = len(first) + more
    assert merge_by_likelihood(words, size, first) == walked(words, size, first)


def test_merges_of_text_are_those_of_the_walk():
    words = collections.Counter(" ".join(documents(6)).lower().split())
    first = characters(words)
    size = len(first) + 150
    assert merge_by_likelihood(words, size, first) == walked(words, size, first)


def test_a_pair_less_like_chance_comes_before_a_more_frequent_one():
    words = {"xb": 50, "ab": 30, "a": 50, "cd": 25, "ef": 7}
    first = [*"abcdefx", "##b", "##d", "##f"]
    # The limit is 50, then 25: cd scores 25/(25*25), ab 30/(80*30). ef, which scores
    # the highest of all, has to wait for the limit of 6.
    expected = [*first, "xb", "cd", "ab", "ef"]
    assert merge_by_likelihood(words, len(expected), first) == expected
    by_counts = [*first, "xb", "ab", "cd", "ef"]
    assert merge_by_counts(words, len(expected), first) == by_counts


TEXTS = [line for text in documents(12) for line in text.splitlines()]


def test_training_gives_the_same_bytes_in_every_process_and_order():
    program = (
        "import sys\n"
        "from encoderjax.data.tokenizers import make_tokenizer\n"
        "texts = sys.stdin.read().splitlines()\n"
        "print(make_tokenizer('wordpiece_likelihood:120', lambda: texts).sha256)"
    )
    shuffled = random.Random(0).sample(TEXTS, len(TEXTS))
    result = subprocess.run(
        [sys.executable, "-c", program],
        input="\n".join(shuffled),
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    trained = make_tokenizer("wordpiece_likelihood:120", lambda: TEXTS)
    assert result.stdout.strip() == trained.sha256
    assert trained.sha256 != make_tokenizer("wordpiece:120", lambda: TEXTS).sha256


@pytest.mark.parametrize("kind", ["wordpiece_likelihood", "wordpiece_likelihood_cased"])
def test_every_text_is_split_and_joined_again(kind):
    tokenizer = make_tokenizer(f"{kind}:120", lambda: TEXTS)
    assert tokenizer.vocabulary.size == 120
    assert tokenizer.lowercase is (kind == "wordpiece_likelihood")
    ids = tokenizer.encode(TEXTS)
    assert not any((i == tokenizer.vocabulary.unk_id).any() for i in ids)
    assert tokenizer.tokens(range(5)) == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def test_the_size_that_the_message_names_is_possible():
    with pytest.raises(UserError, match="ask for at most") as caught:
        make_tokenizer("wordpiece_likelihood:9000", lambda: TEXTS)
    most = int(str(caught.value).rpartition(" ")[2])
    tokenizer = make_tokenizer(f"wordpiece_likelihood:{most}", lambda: TEXTS)
    assert tokenizer.vocabulary.size == most
