import jax
import jax.numpy as jnp
import numpy as np
import pytest

from encoderjax.models.dropout import DropoutKey, drop

B, L, D = 64, 48, 96


def key(step=0, seed=0, rows=range(B)):
    return DropoutKey.create(seed, jnp.asarray(step), jnp.asarray(list(rows)))


def dropped(rate=0.1, site=1, **changes):
    """Returns the mask of dropped elements of a [B, L, D] tensor."""
    return np.asarray(drop(jnp.ones((B, L, D)), rate, key(**changes), site)) == 0.0


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_rate_and_scale(rate):
    out = np.asarray(drop(jnp.ones((B, L, D)), rate, key(), 1))
    share = np.mean(out == 0.0)
    assert abs(share - rate) < 5 * np.sqrt(rate * (1 - rate) / out.size)
    assert np.allclose(out[out != 0], 1 / (1 - rate))
    # The same in every row, at every position and in every column.
    for axes in ((1, 2), (0, 2), (0, 1)):
        means = np.mean(out == 0.0, axis=axes)
        error = np.sqrt(rate * (1 - rate) * len(means) / out.size)
        assert np.abs(means - rate).max() < 5.5 * error


def correlation(first, second):
    return abs(np.corrcoef(first.ravel(), second.ravel())[0, 1])


def test_neighbours_are_independent():
    mask = dropped(0.5)
    bound = 5 / np.sqrt(mask.size)
    assert correlation(mask[1:], mask[:-1]) < bound
    assert correlation(mask[:, 1:], mask[:, :-1]) < bound
    assert correlation(mask[:, :, 1:], mask[:, :, :-1]) < bound
    assert correlation(mask[1:, 1:, 1:], mask[:-1, :-1, :-1]) < bound


@pytest.mark.parametrize("change", [{"step": 1}, {"seed": 1}, {"site": 2}])
def test_steps_seeds_and_sites_are_independent(change):
    first, second = dropped(0.5), dropped(0.5, **change)
    assert correlation(first, second) < 5 / np.sqrt(first.size)


def test_layers_are_independent():
    x = jnp.ones((B, L, D))
    masks = [np.asarray(drop(x, 0.5, key().fold(layer), 1)) == 0 for layer in (0, 1)]
    assert correlation(*masks) < 5 / np.sqrt(x.size)


def test_pairs_of_bits_are_equally_likely():
    """Four neighbouring columns take all sixteen patterns alike."""
    mask = dropped(0.5).reshape(-1, 4)
    patterns = np.bincount(mask @ [1, 2, 4, 8], minlength=16)
    expected = len(mask) / 16
    assert ((patterns - expected) ** 2 / expected).sum() < 15 + 5 * np.sqrt(30)


def test_mask_of_a_row_does_not_depend_on_its_place():
    rows = [7, 3, 11]
    x = jnp.ones((3, L, D))
    together = drop(x, 0.3, key(rows=rows), 1)
    alone = drop(x[:1], 0.3, key(rows=[11]), 1)
    assert np.array_equal(together[2], alone[0])


def test_gradient_passes_through_the_same_mask():
    x = jax.random.normal(jax.random.key(0), (4, 5, 6))
    gradient = jax.grad(lambda x: jnp.sum(drop(x, 0.4, key(rows=range(4)), 1) * 3))(x)
    out = drop(jnp.ones_like(x), 0.4, key(rows=range(4)), 1)
    assert np.allclose(gradient, 3 * out)


def test_attention_weights_drop_independently_by_head_and_query():
    weights = jnp.ones((8, 4, 32, 32))
    out = np.asarray(drop(weights, 0.5, key(rows=range(8)), 0)) == 0
    assert correlation(out[:, 1:], out[:, :-1]) < 5 / np.sqrt(out.size)
    assert correlation(out[:, :, 1:], out[:, :, :-1]) < 5 / np.sqrt(out.size)


def test_nothing_is_dropped_without_a_key():
    x = jnp.ones((2, 3, 4))
    assert drop(x, 0.5, None, 0) is x
