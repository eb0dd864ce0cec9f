import collections
import itertools
import pickle

import numpy as np
import pytest

from encoderjax.data.shares import alpha_shares
from encoderjax.data.vocabulary_sample import VocabularySample

LENGTHS = np.random.default_rng(0).integers(20, 200, 4000).tolist()
# 100, 1,000 and 3,000 documents of one to nine sentences, in no order.
LANGUAGES = np.random.default_rng(1).permutation(
    np.repeat(["uk", "ru", "en"], [100, 1000, 2900])
)


def document(number, language):
    """Text that names itself, and its number of sentences."""
    name = f"{language}-{number} "
    return name + "x" * (LENGTHS[number] - len(name)), 1 + number % 9


def sampled(numbers, characters, languages=LANGUAGES, seed=0):
    sample = VocabularySample(seed, characters)
    for number in numbers:
        text, sentences = document(number, languages[number])
        sample.add(number, languages[number], text, sentences)
    return sample


def in_parts(parts, characters, languages=LANGUAGES):
    whole = VocabularySample(0, characters)
    for part in parts:
        made = sampled(part, characters, languages)
        whole.merge(pickle.loads(pickle.dumps(made)))
    return whole


ONE = ["en"] * len(LENGTHS)


def test_a_small_source_is_kept_whole_and_in_order():
    sample = sampled(range(50), 10**6, ONE)
    assert list(sample.texts()) == [document(i, "en")[0] for i in range(50)]


@pytest.mark.parametrize("languages", [ONE, LANGUAGES], ids=["one", "several"])
def test_size_is_bounded(languages):
    for characters in (200_000, 20_000, 300):
        size = sum(map(len, sampled(range(4000), characters, languages).texts()))
        assert size < 1.2 * characters
        if languages is ONE:
            assert characters / 4 < size <= characters


def test_one_language_is_the_same_sample_in_any_parts_and_order():
    expected = sorted(sampled(range(4000), 30_000, ONE).texts())
    for step in (1, 7, 1000, 4000):
        parts = [range(first, 4000, step) for first in range(step)]
        for some in (parts, parts[::-1]):
            if len(some) <= 1000:
                assert sorted(in_parts(some, 30_000, ONE).texts()) == expected


def test_every_document_of_a_language_is_as_likely():
    kept = collections.Counter()
    for seed in range(40):
        texts = sampled(range(2000), 20_000, ONE, seed).texts()
        kept.update(int(text.split()[0][3:]) for text in texts)
    quarters = np.bincount([number // 500 for number in kept.elements()], minlength=4)
    share = quarters.sum() / 40 / 2000
    deviation = np.sqrt(40 * 500 * share * (1 - share))
    # Documents of a seed share its limit, so the draws are not quite independent.
    assert np.abs(quarters - quarters.mean()).max() < 5 * deviation
    assert 0.05 < share < 0.2


def test_merged_parts_count_all_sentences():
    parts = [range(first, first + 500) for first in range(0, 4000, 500)]
    sample = in_parts(parts, 20_000)
    expected = collections.Counter()
    for number, language in enumerate(LANGUAGES):
        expected[language] += document(number, language)[1]
    assert sample.sentences == expected
    again = in_parts(parts, 20_000)
    assert list(sample.texts(0.3)) == list(again.texts(0.3))


def test_a_small_language_is_kept_beside_a_large_one():
    texts = sampled(range(4000), 40_000).texts_by_language(10**6)
    assert [*texts] == ["en", "ru", "uk"]
    assert len(texts["uk"]) == 100
    assert sum(map(len, itertools.chain(*texts.values()))) <= 40_000


@pytest.mark.parametrize("alpha", [0, 0.3, 0.7, 1])
@pytest.mark.parametrize("characters", [10**6, 60_000])
def test_sentences_come_in_the_shares_of_the_paper(alpha, characters):
    shares, amounts = collections.defaultdict(list), []
    for seed in range(20):
        sample = sampled(range(4000), characters, seed=seed)
        drawn = [text.split()[0].split("-") for text in sample.texts(alpha)]
        sentences = collections.Counter()
        for language, number in drawn:
            sentences[language] += document(int(number), language)[1]
        for language, count in sentences.items():
            shares[language].append(count / sentences.total())
        amounts.append(len(drawn))
    n = sample.sentences
    for name, found in shares.items():
        expected = n[name] ** alpha / sum(count**alpha for count in n.values())
        error = np.std(found) / np.sqrt(len(found))
        assert np.mean(found) == pytest.approx(expected, rel=0.005, abs=4 * error)
        assert error < 0.08 * expected
    # As much text as was kept, whatever alpha.
    kept = sum(map(len, sample.texts_by_language(10**9).values()))
    assert np.mean(amounts) == pytest.approx(kept, rel=0.2)


def test_documents_are_repeated_evenly():
    times = collections.Counter(sampled(range(4000), 10**6).texts(0))
    uk = [times[document(i, "uk")[0]] for i in np.flatnonzero(LANGUAGES == "uk")]
    assert max(uk) - min(uk) <= 1
    assert min(uk) > 5
    en = [times[document(i, "en")[0]] for i in np.flatnonzero(LANGUAGES == "en")]
    assert set(en) == {0, 1}


def test_shares_of_languages():
    shares = alpha_shares([8000, 1, 0], 1 / 3)
    assert shares == pytest.approx([20 / 21, 1 / 21, 0])
    assert alpha_shares([0], 0.3).tolist() == [0]


def test_of_texts_that_are_all_too_long_one_is_kept():
    for seed in range(8):
        sample = VocabularySample(seed, 100)
        for number in range(5):
            sample.add(number, "en", "long text " * 50, 1)
        assert len(list(sample.texts())) == 1


def test_a_smaller_sample_of_each_language():
    sample = sampled(range(4000), 10**6)
    texts = sample.texts_by_language(1000)
    assert all(sum(map(len, some)) == 1000 for some in texts.values())
    assert texts == sampled(range(4000), 10**6).texts_by_language(1000)
