"""What the denoising objectives did to rows, for people to read."""

import collections
from typing import Any

import numpy as np

from encoderjax.data.pipeline import Batch
from encoderjax.data.tokenizers import Tokenizer, Vocabulary
from encoderjax.objectives.deletion import Deletion
from encoderjax.objectives.edits import GAPS
from encoderjax.objectives.insertion import EXTRANEOUS
from encoderjax.objectives.reordering import Reordering

_KEYS = (GAPS, EXTRANEOUS, "reordering/weights")


def noise_counts(
    batch: Batch, unmasked_BL: np.ndarray, vocabulary: Vocabulary
) -> collections.Counter[str]:
    """Counts what was done to a batch, and the tokens of its text; {} without noise.

    `unmasked_BL` are its ids as they were before masks.
    """
    counts: collections.Counter[str] = collections.Counter()
    if not any(key in batch for key in _KEYS):
        return counts
    ends = [vocabulary.cls_id, vocabulary.sep_id]
    counts["text"] = int((batch["mask"] & ~np.isin(unmasked_BL, ends)).sum())
    for name, key in (
        ("deleted", "deletion/deleted"),
        ("gaps", GAPS),
        ("inserted", EXTRANEOUS),
        ("cut", "insertion/cut"),
        ("moved", "reordering/weights"),
        ("not_moved", "reordering/dropped"),
    ):
        if key in batch:
            counts[name] = int(batch[key].sum())
    return counts


def noise_shares(counts: collections.Counter[str], tokens: int) -> dict[str, float]:
    """Returns the shares of what was done, each of the text that it was done to.

    `tokens` are all that there are, of which so many stand before gaps.
    """
    after_deletion = counts["text"] - counts["inserted"] + counts["cut"]
    before = {
        "deleted": after_deletion + counts["deleted"],
        "gaps": tokens,
        "inserted": after_deletion,
        "cut": after_deletion,
        "moved": after_deletion - counts["cut"],
        "not_moved": after_deletion - counts["cut"],
    }
    return {n: counts[n] / max(1, before[n]) for n in before if n in counts}


def noise_of(batch: Batch, row: int, tokenizer: Tokenizer) -> dict[str, Any]:
    """Returns where a row was changed, its padding not counted; {} without noise.

    `gaps` are the places before them, with the first missing token; `moved` those with
    another token than the one that belongs there, which is named.
    """
    first, found = int(batch["mask"][row].argmax()), {}
    for objective, called in ((Deletion, "gaps"), (Reordering, "moved")):
        name = objective.name
        if f"{name}/weights" not in batch:
            continue
        used = batch[f"{name}/weights"][row] > 0
        places = batch[f"{name}/positions"][row, used] - first
        labels = tokenizer.tokens(batch[f"{name}/labels"][row, used])
        found[called] = [
            {"position": int(place), "label": label}
            for place, label in zip(places, labels, strict=True)
        ]
    if EXTRANEOUS in batch:
        found["inserted"] = (np.flatnonzero(batch[EXTRANEOUS][row]) - first).tolist()
    return found


def noise_marks(
    noise: dict[str, Any], tokens: list[str]
) -> tuple[dict[int, str], dict[int, str]]:
    """Returns what is written in place of tokens, and behind them, by their place."""
    instead = {
        place: f"{tokens[place]}(inserted)" for place in noise.get("inserted", ())
    }
    for moved in noise.get("moved", ()):
        place = moved["position"]
        instead[place] = f"{tokens[place]}(moved, {moved['label']} here)"
    behind = {g["position"]: f"(missing {g['label']})" for g in noise.get("gaps", ())}
    return instead, behind
