"""Random batches with the keys of masked LM and next-sentence prediction."""

import numpy as np


def random_pretraining_batch(
    *, rows: int, length: int, slots: int, vocab_size: int, seed: int = 0
) -> dict[str, np.ndarray]:
    """Returns a batch whose rows differ in length and in masked tokens."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(length // 2, length + 1, (rows, 1))
    mask = np.arange(length) < lengths
    used = np.arange(slots) < rng.integers(1, slots + 1, (rows, 1))
    positions = np.sort(
        rng.permuted(np.tile(np.arange(length // 2), (rows, 1)), axis=1)[:, :slots]
    )
    return {
        "ids": np.where(mask, rng.integers(5, vocab_size, mask.shape), 0).astype("i4"),
        "mask": mask,
        "segments": ((np.arange(length) > lengths // 2) & mask).astype("i4"),
        "second": rng.integers(0, 2, rows).astype("i4"),
        "row": rng.integers(0, 2**20, rows).astype("u4"),
        "row_weights": np.ones(rows, "f4"),
        "paired": np.ones(rows, "f4"),
        "mlm/positions": np.where(used, positions, 0).astype("i4"),
        "mlm/labels": rng.integers(0, vocab_size, (rows, slots)).astype("i4"),
        "mlm/weights": used.astype("f4"),
        "mlm/kinds": rng.integers(0, 3, (rows, slots)).astype("i4"),
    }
