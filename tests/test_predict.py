"""What is drawn and refused without a model."""

import numpy as np
import pytest

from encoderjax import pictures, predict
from encoderjax.errors import UserError


def test_labels_of_any_letters_have_a_picture(tmp_path):
    """Of a $ no formula is made; of very many names some are left out."""
    labels = ["$a\\bad$", "$5", *(f"x{i}" for i in range(130))]
    pictures.draw_confusion(tmp_path / "a.png", np.eye(132, dtype=int), labels, print)
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_a_folder_of_vectors_says_what_uses_it(tmp_path):
    (tmp_path / "config.json").write_text('{"model": {}, "sentence": {}}')
    with pytest.raises(UserError, match=r"encoderjax\.embed --model=.*\.npy$"):
        predict.Predictor.load(tmp_path)
