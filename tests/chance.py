"""What one answer to all would reach, on the held-out rows of a run."""

import numpy as np


def entropy(counts) -> float:
    """Returns the nats of a draw with these frequencies."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def chances(batch: dict[str, np.ndarray], losses) -> dict[str, float]:
    """Returns the least loss that one answer to all can have, by loss."""
    labels = {
        f"{name}_loss": batch[key][batch["mask"]]
        for name, key in (
            ("deletion", "deletion/gaps"),
            ("insertion", "insertion/extraneous"),
        )
        if key in batch
    }
    labels |= {
        f"{name}_loss": batch[f"{key}/labels"][batch[f"{key}/weights"] > 0]
        for name, key in (
            ("mlm", "mlm"),
            ("missing", "deletion"),
            ("reordering", "reordering"),
        )
        if f"{key}/labels" in batch
    }
    for name in ("nsp_loss", "sop_loss"):
        labels[name] = batch["second"][batch["paired"] > 0]
    return {loss: entropy(np.bincount(labels[loss])) for loss in losses}
