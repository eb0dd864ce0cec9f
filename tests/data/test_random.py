import numpy as np
import pytest

from encoderjax.data.random import Draws, hash_words, permuted


def draws(rows=256, epoch=0, seed=1):
    return Draws(seed, np.full(rows, epoch), np.arange(rows))


def test_draws_are_uniform_and_uncorrelated():
    u = draws().uniform("site", 512)
    # 131,072 draws: the mean of uniforms has a standard error of 0.0008.
    assert abs(u.mean() - 0.5) < 0.004
    histogram = np.histogram(u, 64, (0, 1))[0]
    expected = u.size / 64
    chi_square = ((histogram - expected) ** 2 / expected).sum()
    assert chi_square < 63 + 5 * np.sqrt(2 * 63)
    for shifted in (u[:, 1:], u[1:]):
        rows, columns = shifted.shape
        assert (
            abs(np.corrcoef(u[:rows, :columns].ravel(), shifted.ravel())[0, 1]) < 0.02
        )


@pytest.mark.parametrize("other", ["site", "epoch", "seed"])
def test_streams_are_independent(other):
    first = draws().uniform("mlm/select", 512)
    second = {
        "site": draws().uniform("mlm/replace", 512),
        "epoch": draws(epoch=1).uniform("mlm/select", 512),
        "seed": draws(seed=2).uniform("mlm/select", 512),
    }[other]
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.02


def test_a_row_draws_the_same_in_any_company():
    alone = Draws(1, np.array([3]), np.array([77])).bits("site", 20)
    rows = np.array([5, 77, 2**40 + 77])
    among = Draws(1, np.array([0, 3, 3]), rows).bits("site", 20)
    assert np.array_equal(alone[0], among[1])
    assert not np.array_equal(among[1], among[2])  # the high words count


def test_integers_stay_in_bounds_and_reach_all_of_them():
    values = draws().integers("site", 64, 7)
    assert set(np.unique(values)) == set(range(7))


def test_hash_of_wide_integers_uses_all_bits():
    assert hash_words(1)[0] != hash_words(1 + (1 << 32))[0]


@pytest.mark.parametrize("size", [1, 2, 1000, 65_535, 65_536, 100_003, 131_072])
def test_permutation_hits_everything_once(size):
    places = permuted(np.arange(size), size, seed=3, epochs=1)
    assert np.array_equal(np.sort(places), np.arange(size))


@pytest.mark.parametrize("size", [1000, 100_003])
def test_permutation_looks_random(size):
    first = permuted(np.arange(size), size, seed=3, epochs=0)
    second = permuted(np.arange(size), size, seed=3, epochs=1)
    for a, b in ((np.arange(size), first), (first, second), (first[:-1], first[1:])):
        assert abs(np.corrcoef(a, b)[0, 1]) < 5 / np.sqrt(size)
    # A random permutation has one fixed point on average.
    assert (first == np.arange(size)).sum() < 10


def test_permutations_of_many_sizes_at_once_are_those_of_each():
    """Of tiny, small and large ones, and of any epochs."""
    rng = np.random.default_rng(0)
    sizes = rng.choice([1, 3, 31, 32, 500, 70_000, 10**9 + 1], 400)
    epochs, indices = rng.integers(0, 9, 400), rng.integers(0, sizes)
    together = permuted(indices, sizes, 3, epochs)
    apart = [
        permuted(np.asarray([index]), int(size), 3, int(epoch))[0]
        for index, size, epoch in zip(indices, sizes, epochs, strict=True)
    ]
    assert together.tolist() == apart


def test_epochs_of_few_items_differ():
    epochs, items = np.divmod(np.arange(18_000), 3)
    orders = permuted(items, 3, 3, epochs)
    _, counts = np.unique(orders.reshape(-1, 3), axis=0, return_counts=True)
    # All six orders, each 1,000 times but for chance: a deviation is 29.
    assert len(counts) == 6
    assert np.abs(counts - 1_000).max() < 5 * 29


def test_permutation_is_seekable_far_beyond_memory():
    size = 10**12
    indices = np.array([0, 1, 999_999_999_999, 123_456_789_012])
    together = permuted(indices, size, seed=3, epochs=5)
    apart = [permuted(indices[i : i + 1], size, 3, 5)[0] for i in range(4)]
    assert together.tolist() == apart
    assert len(set(apart)) == 4
    assert max(apart) < size
