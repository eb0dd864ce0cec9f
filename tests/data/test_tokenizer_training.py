"""Training of tokenizers: repeatable, one pass, bounded, and refused with a reason."""

import collections
import json
import os
import subprocess
import sys

import pytest

from encoderjax.data.tokenizers import make_tokenizer
from encoderjax.errors import UserError
from tests.data.trained_kinds import TEXTS, size_of, tokenizer_of


def test_training_gives_the_same_bytes_in_every_process():
    program = (
        "import sys, json\n"
        "from encoderjax.data.tokenizers import make_tokenizer\n"
        "texts, specs = json.load(sys.stdin)\n"
        "print(*(make_tokenizer(s, lambda: texts).sha256 for s in specs))"
    )
    kinds = ("bbpe", "bbpe/modernbert", "unigram", "unigram/deberta_v2")
    specs = [f"{kind}:{size_of(kind)}" for kind in kinds]
    found = set()
    for seed, threads in ((1, 1), (2, 2)):
        variables = {"PYTHONHASHSEED": str(seed), "RAYON_NUM_THREADS": str(threads)}
        result = subprocess.run(
            [sys.executable, "-c", program],
            input=json.dumps([TEXTS, specs]),
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            check=True,
        )
        found.add(result.stdout)
    found.add(" ".join(tokenizer_of(kind).sha256 for kind in kinds) + "\n")
    assert len(found) == 1


# Blocks of lines that come again and again among others: given to it as they are,
# sentencepiece 0.2.2 is not done with these 400 kB after a minute.
_BLOCKS = """
import random, sys
from encoderjax.data.tokenizers import make_tokenizer
rng = random.Random(0)
letters = "abcdefghijklmnopqrstuvwxyz"
words = ["".join(rng.choices(letters, k=rng.randint(2, 9))) for _ in range(1500)]
lines = lambda count: [" ".join(rng.choices(words, k=12)) for _ in range(count)]
block = lines(200)
texts = [line for _ in range(26) for line in block + lines(3)]
print(*(make_tokenizer(spec, lambda: texts).vocabulary.size for spec in sys.argv[1:]))
"""


def test_repeated_blocks_do_not_stall_the_training():
    kinds = ("unigram", "unigram/xlm_roberta", "bbpe", "wordpiece")
    specs = [f"{kind}:1000" for kind in (*kinds, "wordpiece_likelihood")]
    # It takes a second or two: the limit is for what never ends.
    result = subprocess.run(
        [sys.executable, "-c", _BLOCKS, *specs],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert result.stdout.split() == ["1000"] * len(specs)


def test_texts_are_read_once():
    class Once(collections.deque):
        def __iter__(self):
            while self:
                yield self.popleft()

    for kind in ("bbpe", "unigram"):
        tokenizer = make_tokenizer(f"{kind}:{size_of(kind)}", lambda: Once(TEXTS))
        assert tokenizer.sha256 == tokenizer_of(kind).sha256


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ("bbpe:200", ["200", "at least 261"]),
        ("bbpe:90000", ["only", "ask for at most"]),
        ("bbpe/roberta:300", ["bbpe/roberta:300", "bbpe/deberta"]),
        ("bbpe:x", ["'x'", "bbpe:30522"]),
        ("unigram:90000", ["only", "90000", "ask for at most"]),
        ("unigram/xlm_roberta:20", ["20", "larger"]),
    ],
)
def test_impossible_specs_are_refused(spec, parts):
    with pytest.raises(UserError) as caught:
        make_tokenizer(spec, lambda: TEXTS)
    assert all(part in str(caught.value) for part in parts), str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["bbpe", "unigram", "unigram/xlm_roberta"])
def test_the_size_that_the_message_names_is_possible(kind):
    with pytest.raises(UserError) as caught:
        make_tokenizer(f"{kind}:9000", lambda: TEXTS)
    most = int(str(caught.value).rpartition(" ")[2])
    assert make_tokenizer(f"{kind}:{most}", lambda: TEXTS).vocabulary.size == most
    with pytest.raises(UserError):
        make_tokenizer(f"{kind}:{most + 1}", lambda: TEXTS)


@pytest.mark.parametrize("kind", ["wordpiece", "wordpiece_likelihood_cased"])
def test_chinese_alone_is_a_vocabulary_of_characters(kind):
    """Every word is a character, so there is nothing to leave room for."""
    texts = ["我在北京大学读书", "你在上海"]
    tokenizer = make_tokenizer(f"{kind}:16", lambda: texts)
    (ids,) = tokenizer.encode(texts[:1])
    assert tokenizer.tokens(ids) == list(texts[0])
    assert set(tokenizer.tokens(range(5, 16))) == set("".join(texts))
    with pytest.raises(UserError, match="ask for at most 16"):
        make_tokenizer(f"{kind}:17", lambda: texts)


def test_nothing_to_train_on():
    for kind in ("bbpe", "unigram"):
        with pytest.raises(UserError, match="no words"):
            make_tokenizer(f"{kind}:300", lambda: ["", " \n"])
