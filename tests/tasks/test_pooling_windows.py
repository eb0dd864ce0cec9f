import numpy as np
import pytest

from encoderjax.errors import UserError
from encoderjax.tasks.pooling_windows import pooled_scores


@pytest.mark.parametrize("how", ["mean", "max"])
def test_windows_become_one_score(how):
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(40, 3)).astype(np.float32)
    example_of_row = rng.permutation(np.r_[np.arange(9), rng.integers(0, 9, 31)])
    pooled = pooled_scores(scores, example_of_row, how)
    wanted = [getattr(scores[example_of_row == x], how)(0) for x in range(9)]
    np.testing.assert_allclose(pooled, wanted, rtol=1e-6)
    assert pooled.dtype == scores.dtype


def test_a_text_of_one_row_keeps_its_scores():
    scores = np.array([[0.1, 0.9], [0.3, 0.7]], np.float32)
    for how in ("mean", "max"):
        assert (pooled_scores(scores, np.array([0, 1]), how) == scores).all()


def test_what_cannot_be_pooled():
    scores = np.zeros((2, 2))
    with pytest.raises(UserError, match="pool='min' must be one of mean, max"):
        pooled_scores(scores, np.array([0, 1]), "min")
    with pytest.raises(ValueError, match="example 1 has no row"):
        pooled_scores(scores, np.array([0, 2]))
