"""Shows what the model will be fed: decoded rows, and statistics of some batches.

python -m encoderjax.preview --config=configs/bert_tiny.py
"""

import collections
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from encoderjax.command import Parser, run_command
from encoderjax.config import RunConfig, add_config_flag, parse_with_config
from encoderjax.data.forms import FORMS
from encoderjax.data.pipeline import Batch
from encoderjax.data.records import LABEL_NAMES
from encoderjax.data.tokenizers import Tokenizer, Vocabulary
from encoderjax.experiment import Experiment
from encoderjax.objectives.masking import KEPT, MASKED, REPLACED
from encoderjax.objectives.mlm import KINDS


def run(
    config: RunConfig,
    *,
    rows: int = 4,
    batches: int = 20,
    step: int = 0,
    report: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Returns {"rows": [...], "stats": {...}} of the batches from `step` on."""
    experiment = Experiment.open(config, report)
    source, tokenizer = experiment.train_source(), experiment.corpus.tokenizer
    labels = ()
    if FORMS[config.data.form].segments == 2:
        labels = LABEL_NAMES[config.data.settled_second]
    statistics = _Statistics(tokenizer.vocabulary)
    shown = []
    for number in range(step, step + batches):
        batch = source.batch(number)
        statistics.add(batch)
        for row in range(min(rows - len(shown), len(batch["ids"]))):
            shown.append(_row(batch, row, tokenizer, labels))
    return {"rows": shown, "stats": statistics.result(labels)}


class _Statistics:
    """Counts over batches."""

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary = vocabulary
        self.totals: collections.Counter[str] = collections.Counter()
        self.labels: collections.Counter[int] = collections.Counter()
        self.spans: collections.Counter[int] = collections.Counter()
        self.drawn: collections.Counter[int] = collections.Counter()
        self.per_row: list[int] = []

    def add(self, batch: Batch) -> None:
        self.totals["rows"] += len(batch["mask"])
        self.totals["tokens"] += int(batch["mask"].sum())
        self.totals["places"] += batch["mask"].size
        self.labels.update(batch["second"][batch["paired"] > 0].tolist())
        if "mlm/weights" in batch:
            self._add_predictions(batch)

    def _add_predictions(self, batch: Batch) -> None:
        used_BP = batch["mlm/weights"] > 0
        for name, kind in KINDS.items():
            self.totals[name] += int((used_BP & (batch["mlm/kinds"] == kind)).sum())
        self.per_row.extend(used_BP.sum(axis=1).tolist())
        if "mlm/dropped" in batch:
            self.totals["dropped"] += int(batch["mlm/dropped"].sum())
        if "mlm/drawn" in batch:
            drawn = batch["mlm/drawn"].sum(axis=0).tolist()
            self.drawn.update(dict(enumerate(drawn, start=1)))
        selected_BL = np.zeros(batch["ids"].shape, bool)
        row, slot = np.nonzero(used_BP)
        selected_BL[row, batch["mlm/positions"][row, slot]] = True
        original_BL = _original_ids(batch)
        vocabulary = self.vocabulary
        special_BL = np.isin(original_BL, [vocabulary.cls_id, vocabulary.sep_id])
        self.totals["places_selected"] += int(selected_BL.sum())
        self.totals["special"] += int((selected_BL & special_BL).sum())
        text_BL = batch["mask"] & ~vocabulary.special_V[original_BL]
        self.totals["split_words"] += _split_words(
            selected_BL, original_BL, text_BL, vocabulary
        )
        self.spans.update(_run_lengths(selected_BL).tolist())

    def result(self, labels: tuple[str, ...]) -> dict[str, Any]:
        tokens, pairs = self.totals["tokens"], sum(self.labels.values())
        selected = sum(self.per_row)
        share = lambda name: self.totals[name] / max(1, selected)
        return {
            "tokens": tokens,
            "padding_share": 1.0 - tokens / self.totals["places"],
            "selected_share": selected / tokens,
            "unique_share": self.totals["places_selected"] / tokens,
            "dropped_share": self.totals["dropped"]
            / max(1, selected + self.totals["dropped"]),
            "masked_share": share("masked"),
            "random_share": share("replaced"),
            "kept_share": share("kept"),
            "special_selected": self.totals["special"],
            "split_words": self.totals["split_words"],
            "span_lengths": {str(n): self.spans[n] for n in sorted(self.spans)},
            "drawn_lengths": {str(n): self.drawn[n] for n in sorted(self.drawn)},
            "predictions_per_row": {
                "min": min(self.per_row, default=0),
                "mean": selected / self.totals["rows"],
                "max": max(self.per_row, default=0),
            },
            "labels": {
                name: self.labels[number] / max(1, pairs)
                for number, name in enumerate(labels)
            },
            "languages": {},
            "fill": tokens / self.totals["places"],
        }


def _original_ids(batch: Batch) -> np.ndarray:
    """Returns the ids [B, L] as they were before anything was replaced."""
    ids_BL = batch["ids"].copy()
    if "mlm/weights" in batch:
        row, slot = np.nonzero(batch["mlm/weights"] > 0)
        ids_BL[row, batch["mlm/positions"][row, slot]] = batch["mlm/labels"][row, slot]
    return ids_BL


def _split_words(selected_BL, ids_BL, text_BL, vocabulary: Vocabulary) -> int:
    """Counts words of which some pieces are selected and others are not.

    What a special token parts, such as a word that was cut at a separator, counts as
    two.
    """
    starts_BL = ~(text_BL & vocabulary.continues_word_V[ids_BL])
    starts_BL[:, 1:] |= ~text_BL[:, :-1]
    starts_BL[:, 0] = True
    word = np.cumsum(starts_BL.ravel()) - 1
    pieces = np.bincount(word, weights=text_BL.ravel())
    chosen = np.bincount(word, weights=(selected_BL & text_BL).ravel())
    return int(((chosen > 0) & (chosen < pieces)).sum())


def _run_lengths(selected_BL: np.ndarray) -> np.ndarray:
    """Returns the lengths of runs of selected neighbours."""
    padded = np.pad(selected_BL.astype(np.int8), ((0, 0), (1, 1))).ravel()
    edges = np.diff(padded)
    return np.flatnonzero(edges == -1) - np.flatnonzero(edges == 1)


def _row(batch: Batch, row: int, tokenizer: Tokenizer, labels) -> dict[str, Any]:
    """Returns one row with its corruption spelled out."""
    real_L = batch["mask"][row]
    first, ids = int(real_L.argmax()), batch["ids"][row, real_L]
    tokens = tokenizer.tokens(ids)
    predictions, marks = [], {}
    used = batch["mlm/weights"][row] > 0 if "mlm/weights" in batch else []
    for slot in np.flatnonzero(used):
        position = int(batch["mlm/positions"][row, slot]) - first
        (label,) = tokenizer.tokens([int(batch["mlm/labels"][row, slot])])
        kind = int(batch["mlm/kinds"][row, slot])
        marks[position] = {
            MASKED: f"{tokenizer.mask_token}({label})",
            REPLACED: f"{tokens[position]}(was {label})",
            KEPT: f"{label}(kept)",
        }[kind]
        name = next(name for name, number in KINDS.items() if number == kind)
        predictions.append({"position": position, "label": label, "kind": name})
    label = labels[int(batch["second"][row])] if batch["paired"][row] else None
    shown = {"row": int(batch["row"][row]), "label": label}
    if "reversed" in batch:
        shown["reversed"] = bool(batch["reversed"][row])
    begins = set()
    if "positions" in batch:
        begins = set(np.flatnonzero(batch["positions"][row, real_L] == 0).tolist())
    return {
        **shown,
        "text": _text(tokenizer, ids, marks, begins - {0}),
        "tokens": tokens,
        "ids": ids.tolist(),
        "segments": batch["segments"][row, real_L].tolist(),
        "predictions": predictions,
    }


def _heading(row: dict[str, Any]) -> str:
    """Returns what the command says of a row before its text."""
    parts = [f"row {row['row']}"]
    if row["label"] is not None:
        parts.append(f"second segment: {row['label']}")
    if row.get("reversed"):
        parts.append("read from right to left")
    return ", ".join(parts)


def _text(
    tokenizer: Tokenizer, ids: np.ndarray, marks: dict[int, str], begins: set[int]
) -> str:
    """Joins pieces to words; special and marked tokens stand apart.

    Args:
      begins: where another document of the row begins, to be set off by a bar.
    """
    vocabulary = tokenizer.vocabulary
    words: list[str | list[int]] = []  # a mark, or the pieces of a word
    for position, i in enumerate(ids):
        if position in begins:
            words.append("|")
        before = words[-1] if words else ""
        if position in marks:
            words.append(marks[position])
        elif (
            isinstance(before, list)
            and vocabulary.continues_word_V[i]
            and not vocabulary.special_V[before[-1]]
        ):
            before.append(i)
        else:
            words.append([i])
    spelled = (w if isinstance(w, str) else tokenizer.decode(w).strip() for w in words)
    return " ".join(spelled)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parses flags and prints."""
    parser = Parser(
        command="preview",
        description="Shows decoded rows with the corruption marked, and statistics.",
        examples=(
            "python -m encoderjax.preview --config=configs/bert_tiny.py",
            "python -m encoderjax.preview --config=configs/bert_tiny.py --json "
            "--config.objectives.mlm.select=words",
        ),
    )
    add_config_flag(parser)
    parser.add_argument("--rows", type=int, default=4, help="rows to show")
    parser.add_argument("--batches", type=int, default=20, help="batches to count")
    parser.add_argument("--step", type=int, default=0, help="the first batch's step")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    flags, config = parse_with_config(parser, arguments)
    result = run(
        config,
        rows=max(0, flags.rows),
        batches=max(1, flags.batches),
        step=max(0, flags.step),
        report=(lambda text: None) if flags.json else print,
    )
    if flags.json:
        print(json.dumps(result))
        return
    for row in result["rows"]:
        print(f"{_heading(row)}\n  {row['text']}\n")
    for name, value in result["stats"].items():
        print(
            f"{name:20} {value:.4f}"
            if isinstance(value, float)
            else f"{name:20} {value}"
        )


if __name__ == "__main__":
    run_command(main)
