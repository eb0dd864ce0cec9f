"""Whitening and the measures of anisotropy, beside short references."""

import numpy as np
import pytest
from scipy.stats import ortho_group
from sklearn.decomposition import PCA

from encoderjax.errors import UserError
from encoderjax.tasks import whitening
from encoderjax.tasks.anisotropy import (
    Anisotropy,
    TokenNorms,
    anisotropy,
    first_share,
    mean_cosine,
    report,
)
from encoderjax.tasks.whitening import Whitening

RNG = np.random.default_rng(0)
# A common direction, and columns of different sizes that hang together.
VECTORS = RNG.normal(size=(300, 8)) * np.geomspace(3, 0.1, 8)
VECTORS = (VECTORS @ ortho_group.rvs(8, random_state=0) + 5.0).astype(np.float32)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(whitening, "_BLOCK", 64)  # several, the last one not full


def published(vectors, components):
    """Su et al. 2021, their own six lines."""
    mu = vectors.mean(axis=0, keepdims=True)
    cov = np.cov(vectors.T)
    u, s, _ = np.linalg.svd(cov)
    kernel = np.dot(u, np.diag(1 / np.sqrt(s)))
    return (vectors - mu).dot(kernel[:, :components])


@pytest.mark.parametrize("components", [None, 3])
def test_whitening_is_that_of_the_paper(components):
    fitted = Whitening.fit(VECTORS, components)
    assert fitted.components == (components or 8)
    found = fitted.apply(VECTORS)
    wanted = published(VECTORS.astype(np.float64), components)
    # Directions have no sign.
    signs = np.sign((found * wanted).sum(0))
    np.testing.assert_allclose(found * signs, wanted, atol=2e-4)
    theirs = PCA(components, whiten=True).fit_transform(VECTORS.astype(np.float64))
    np.testing.assert_allclose(np.abs(found), np.abs(theirs), atol=2e-4)
    np.testing.assert_allclose(np.cov(found.T), np.eye(components or 8), atol=1e-4)


def test_no_direction_is_made_of_rounding_errors(tmp_path):
    few = VECTORS[:5]
    fitted = Whitening.fit(few)
    assert fitted.components == 4  # five vectors differ in four directions
    assert np.abs(fitted.apply(few)).max() < 10
    with pytest.raises(UserError, match="components=5 must be from 1 to 4"):
        Whitening.fit(few, 5)
    with pytest.raises(UserError, match="do not differ"):
        Whitening.fit(np.ones((4, 3), np.float32))
    fitted.save(tmp_path / "w.npz")
    again = Whitening.load(tmp_path / "w.npz")
    np.testing.assert_array_equal(again.apply(VECTORS), fitted.apply(VECTORS))
    for content in (b"", b"PK nothing"):
        (tmp_path / "bad.npz").write_bytes(content)
        with pytest.raises(UserError, match="holds no whitening"):
            Whitening.load(tmp_path / "bad.npz")
    with pytest.raises(UserError, match=r"bad\.npz/w' cannot be written"):
        Whitening.fit(VECTORS).save(tmp_path / "bad.npz" / "w")
    Whitening.fit(VECTORS).save(tmp_path / "made" / "w.npz")
    for name in ("w.npz", "new.npz"):
        whitening.check_place(tmp_path / name)
    np.testing.assert_array_equal(Whitening.load(tmp_path / "w.npz").mean, fitted.mean)
    assert not (tmp_path / "new.npz").exists()
    np.savez(tmp_path / "odd.npz", mean=np.zeros(3), kernel=np.zeros((2, 2)))
    with pytest.raises(UserError, match="do not belong together"):
        Whitening.load(tmp_path / "odd.npz")


def test_measures_are_those_of_all_pairs_and_directions():
    unit = VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True)
    cosines = (unit @ unit.T)[~np.eye(len(unit), dtype=bool)]
    np.testing.assert_allclose(mean_cosine(VECTORS), cosines.mean(), atol=1e-6)
    share = PCA().fit(VECTORS).explained_variance_ratio_[0]
    np.testing.assert_allclose(first_share(VECTORS), share, atol=1e-6)
    after = anisotropy(Whitening.fit(VECTORS).apply(VECTORS))
    assert abs(after.mean_cosine) < 0.01
    np.testing.assert_allclose(after.first_share, 1 / 8, atol=1e-4)
    assert anisotropy(np.zeros((1, 3))) == Anisotropy(0.0, 0.0)


def test_norms_are_grouped_by_how_frequent_a_token_is():
    # Token t occurs t + 1 times, with vectors of lengths around t.
    ids = np.repeat(np.arange(40), np.arange(40) + 1)
    lengths = RNG.uniform(size=len(ids)) + ids
    means = np.array([lengths[ids == t].mean() for t in range(40)])
    norms = TokenNorms(50)
    for part in np.array_split(RNG.permutation(len(ids)), 3):
        norms.add(ids[part], lengths[part, None] * np.array([[0.6, 0.8]]))
    frequency = np.zeros(50, np.int64)
    frequency[:40] = np.arange(40) + 1
    wanted = means.reshape(10, 4).mean(1)
    np.testing.assert_allclose(norms.by_frequency(frequency), wanted)
    table = report(
        Anisotropy(0.5, 0.25, norms.by_frequency(frequency)), Anisotropy(0.0, 0.125)
    )
    assert [line.split()[0] for line in table.split("\n")] == [
        "mean",
        "before",
        "after",
    ]
    assert "0.5000" in table
    assert f"{wanted[9]:.2f}" in table
