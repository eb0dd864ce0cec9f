"""Held-out losses of an exported folder, computed by `transformers` alone."""

import json
from pathlib import Path

import numpy as np
import torch
import transformers

from encoderjax.experiment import Experiment

_LONG = lambda x: torch.tensor(np.asarray(x), dtype=torch.long)


def held_out_batch(experiment: Experiment) -> dict[str, np.ndarray]:
    """Returns all held-out rows, corrupted as they are measured."""
    (source,) = experiment.validation_sources().values()
    count = len(source.index.passes[0])
    return source.rows(*source.order.at(np.arange(count)))


def torch_losses(folder: Path, batch: dict[str, np.ndarray]) -> dict[str, float]:
    """Returns the losses of the heads that the folder's class has."""
    config = json.loads((folder / "config.json").read_text())
    (name,) = config["architectures"]
    model = getattr(transformers, name).from_pretrained(folder).eval()
    if "plm/order" in batch:
        return {"plm_loss": _permutation_loss(model, batch)}
    if "documents" in batch:
        batch = _unpacked(batch)
    inputs = {
        "input_ids": _LONG(batch["ids"]),
        "attention_mask": _LONG(batch["mask"]),
        "token_type_ids": _LONG(batch["segments"]),
    }
    if config.get("type_vocab_size", 1) < 2:
        del inputs["token_type_ids"]
    with torch.no_grad():
        out = model(**inputs)
    logits = out.prediction_logits if "prediction_logits" in out else out.logits
    row, slot = np.nonzero(batch["mlm/weights"])
    losses = {
        "mlm_loss": torch.nn.functional.cross_entropy(
            logits[row, batch["mlm/positions"][row, slot]],
            _LONG(batch["mlm/labels"][row, slot]),
        )
    }
    for loss, scores in (("nsp", "seq_relationship_logits"), ("sop", "sop_logits")):
        if scores in out:
            paired = batch["paired"] > 0
            losses[f"{loss}_loss"] = torch.nn.functional.cross_entropy(
                out[scores][paired], _LONG(batch["second"][paired])
            )
    return {name: float(loss) for name, loss in losses.items()}


def torch_detection_loss(folder: Path, batch: dict[str, np.ndarray]) -> float:
    """Returns ELECTRA's loss of detection in rows whose masks a generator filled."""
    model = transformers.ElectraForPreTraining.from_pretrained(folder).eval()
    with torch.no_grad():
        out = model(
            input_ids=_LONG(batch["ids"]),
            attention_mask=_LONG(batch["mask"]),
            token_type_ids=_LONG(batch["segments"]),
            labels=_LONG(batch["rtd/labels"]),
        )
    return float(out.loss)


def _unpacked(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns a row for each document of packed rows."""
    length = batch["ids"].shape[1]
    found = {name: [] for name in ("ids", "mask", "segments")}
    found |= {f"mlm/{name}": [] for name in ("positions", "labels", "weights")}
    for row, documents_L in enumerate(batch["documents"]):
        for document in range(1, documents_L.max() + 1):
            places = np.flatnonzero(documents_L == document)
            for name in ("ids", "mask", "segments"):
                values = np.zeros(length, batch[name].dtype)
                values[: len(places)] = batch[name][row, places]
                found[name].append(values)
            positions = batch["mlm/positions"][row] - places[0]
            inside = (positions >= 0) & (positions < len(places))
            found["mlm/positions"].append(np.where(inside, positions, 0))
            found["mlm/labels"].append(batch["mlm/labels"][row])
            found["mlm/weights"].append(batch["mlm/weights"][row] * inside)
    return {name: np.stack(rows) for name, rows in found.items()}


def _permutation_loss(model: torch.nn.Module, batch: dict[str, np.ndarray]) -> float:
    """XLNet's: who may look at whom, as its paper has it; there is no memory."""
    ids, length = batch["ids"], batch["ids"].shape[1]
    live = batch["plm/weights"] > 0
    row, slot = np.nonzero(live)
    places = batch["plm/positions"][row, slot]
    targets = np.zeros(ids.shape, bool)
    targets[row, places] = True
    special = np.isin(ids, [3, 4])  # [CLS] and [SEP] of its tokenizer
    text = ~targets & ~special
    order = batch["plm/order"]
    reused = np.arange(length) < model.config.reuse_len
    # Text is seen by all; a target or special token by those that come after it.
    later = order[:, None, :] < order[:, :, None]
    own = np.eye(length, dtype=bool) & special[:, :, None]
    seen = text[:, None, :] | (~text[:, :, None] & (later | own))
    across = reused[:, None] != reused[None, :]
    seen = np.where(across, reused[None, None, :], seen)
    padded = ~batch["mask"]
    mapping = np.eye(length, dtype=np.float32)[batch["plm/positions"]]
    with torch.no_grad():
        out = model(
            input_ids=_LONG(ids),
            token_type_ids=_LONG(batch["segments"]),
            input_mask=torch.tensor(padded.astype(np.float32)),
            perm_mask=torch.tensor((~seen).astype(np.float32)),
            target_mapping=torch.tensor(mapping * live[:, :, None]),
        )
    labels = _LONG(batch["plm/labels"][row, slot])
    return float(torch.nn.functional.cross_entropy(out.logits[row, slot], labels))
