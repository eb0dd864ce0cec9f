"""What can be told of held-out rows without reading a text: frequencies, and looks.

Whatever a model is said to have learned must be more than that. All of it is fitted to
the held-out labels themselves, but for the table of what stands in the place, which has
so many cells that it would know them by heart.
"""

import numpy as np

from encoderjax.experiment import Experiment
from tests.torch_losses import held_out_batch

_ROUNDS = 50  # of EM, which is done long before
_NEAR = (-4, -3, -2, -1, 1, 2, 3, 4)


def entropy(counts) -> float:
    """Returns the nats of a draw with these frequencies."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def chances_of(experiment: Experiment, losses) -> dict[str, float]:
    """Returns the least loss of each kind that a run reaches without reading."""
    batch = held_out_batch(experiment)
    special_V = experiment.corpus.tokenizer.vocabulary.special_V
    found = {}
    for loss in losses:
        name = loss.removesuffix("_loss")
        if name == "deletion":
            found[loss] = by_looks(batch, batch["deletion/gaps"], special_V)
        elif name == "insertion":
            found[loss] = by_looks(batch, batch["insertion/extraneous"], special_V)
        elif name == "reordering":
            found[loss] = by_copying(batch)
        elif name == "mlm":
            found[loss] = min(frequency(batch), by_table(batch, trained_on(experiment)))
        elif name == "missing":
            found[loss] = frequency(batch, "deletion")
        else:
            assert name in ("nsp", "sop")
            second = batch["second"][batch["paired"] > 0]
            found[loss] = entropy(np.bincount(second))
    return found


def trained_on(experiment: Experiment, batches=40) -> dict[str, np.ndarray]:
    """Returns rows of the training text."""
    source = experiment.train_source()
    found = [source.batch(step) for step in range(batches)]
    return {name: np.concatenate([b[name] for b in found]) for name in found[0]}


def slots(batch, name):
    """Returns row, place and label of all used slots."""
    row, slot = np.nonzero(batch[f"{name}/weights"])
    places = batch[f"{name}/positions"][row, slot]
    return row, places, batch[f"{name}/labels"][row, slot]


def frequency(batch, name="mlm") -> float:
    """Returns the loss of predicting by how often tokens are labels."""
    return entropy(np.bincount(slots(batch, name)[2]))


def by_looks(batch, labels_BL, special_V) -> float:
    """Returns the loss of telling labels by what stands beside a token.

    It sees which of the three tokens are special, whether one is padding, and whether a
    token equals the one before.
    """
    ids_BL, mask_BL = batch["ids"], batch["mask"]
    kind_BL = np.where(mask_BL, 1 + special_V[ids_BL], 0)
    around_BM = np.pad(kind_BL, ((0, 0), (1, 1)))
    equal_BL = np.zeros_like(mask_BL)
    equal_BL[:, 1:] = ids_BL[:, 1:] == ids_BL[:, :-1]
    looks_BL = ((around_BM[:, :-2] * 3 + kind_BL) * 3 + around_BM[:, 2:]) * 2 + equal_BL
    looks, labels = looks_BL[mask_BL], labels_BL[mask_BL]
    of_each = (np.bincount(labels[looks == look]) for look in np.unique(looks))
    return sum(entropy(counts) * counts.sum() for counts in of_each) / len(labels)


def by_copying(batch) -> float:
    """Returns the loss of copying from near by, each distance as often as is best."""
    row, place, label = slots(batch, "reordering")
    ids_BM = np.pad(batch["ids"], ((0, 0), (4, 4)), constant_values=-1)
    hits = [ids_BM[row, place + 4 + offset] == label for offset in _NEAR]
    counts = np.bincount(label)
    hits = np.stack([*hits, counts[label] / counts.sum()], axis=1).astype(float)
    shares = np.full(hits.shape[1], 1 / hits.shape[1])
    for _ in range(_ROUNDS):
        parts = hits * shares
        shares = (parts / parts.sum(axis=1, keepdims=True)).mean(axis=0)
    return float(-np.log(hits @ shares).mean())


def by_table(batch, training) -> float:
    """Returns the loss of a table: how often a token was the label of another."""

    def pairs(rows):
        row, place, label = slots(rows, "mlm")
        return rows["ids"][row, place], label

    size = 1 + max(int(rows["ids"].max()) for rows in (batch, training))
    size = max(size, 1 + int(pairs(training)[1].max()), 1 + int(pairs(batch)[1].max()))
    counts_VV = np.zeros((size, size))
    np.add.at(counts_VV, pairs(training), 1.0)
    unigram_V = (counts_VV.sum(axis=0) + 1) / (counts_VV.sum() + size)
    seen, label = pairs(batch)
    losses = []
    for weight in (0.3, 1.0, 3.0, 10.0):  # of the frequencies, in examples
        table_VV = counts_VV + weight * unigram_V
        table_VV /= table_VV.sum(axis=1, keepdims=True)
        losses.append(float(-np.log(table_VV[seen, label]).mean()))
    return min(losses)
