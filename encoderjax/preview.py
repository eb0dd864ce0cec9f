"""Shows what the model will be fed: decoded rows, and statistics of some batches.

python -m encoderjax.preview --config=configs/bert_tiny.py
"""

import collections
import dataclasses
import functools
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from encoderjax.command import Parser, run_command
from encoderjax.config import RunConfig
from encoderjax.config_loading import add_config_flag, parse_with_config
from encoderjax.data.forms import FORMS
from encoderjax.data.pipeline import Batch, DataConfig
from encoderjax.data.records import LABEL_NAMES
from encoderjax.data.tokenizers import Tokenizer, Vocabulary
from encoderjax.noise import noise_counts, noise_marks, noise_of, noise_shares
from encoderjax.objectives.mlm import ALL_KINDS
from encoderjax.objectives.replacement import KEPT, MASKED, REPLACED, SIMILAR
from encoderjax.objectives.single_masks import restored
from encoderjax.phases import Stage, open_stages, phases_of, stage_at


def run(
    config: RunConfig,
    *,
    rows: int = 4,
    batches: int = 20,
    step: int = 0,
    report: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Returns {"rows": [...], "stats": {...}} of the batches from `step` on."""
    stages = _stages(config, step + batches, report)
    tokenizer = stages[0].experiment.corpus.tokenizer
    statistics = _Statistics(tokenizer.vocabulary)
    shown = []
    for number in range(step, step + batches):
        stage = stage_at(stages, number + 1)
        labels = _label_names(stage.phase.config.data)
        batch, members = stage.source.batch(number), _members(stage, number)
        statistics.add(batch, labels, members)
        for row in range(min(rows - len(shown), len(batch["ids"]))):
            found = _row(batch, row, tokenizer, labels)
            shown.append({"language": members[row], **found} if members else found)
    return {"rows": shown, "stats": statistics.result()}


def _stages(
    config: RunConfig, last: int, report: Callable[[str], None]
) -> tuple[Stage, ...]:
    """Opens the phases up to step `last`; no rows of later ones are cut."""
    begun = {phase.name for phase in phases_of(config) if phase.first < last}
    phases = {name: value for name, value in config.phases.items() if name in begun}
    return open_stages(dataclasses.replace(config, phases=phases), report, None)


def _members(stage: Stage, step: int) -> list[str]:
    """Returns the member of a mixture that each row of a batch is of; [] without."""
    names = list(stage.experiment.corpus.shares)
    if not names:
        return []
    _, rows_B = stage.source.places(step, slice(None))
    return [names[member] for member in stage.source.index.members_of(rows_B)]


def _label_names(data: DataConfig) -> tuple[str, ...]:
    """Returns what the labels of second segments mean, () without such."""
    return LABEL_NAMES[data.settled_second] if FORMS[data.form].segments == 2 else ()


class _Predictions(NamedTuple):
    """The slots of a batch, all [B, P]: where, what, whether used, what was done.

    `offsets` are the tokens' numbers where one place stands for several.
    """

    positions: np.ndarray
    offsets: np.ndarray
    labels: np.ndarray
    used: np.ndarray
    kinds: np.ndarray

    @classmethod
    def of(cls, batch: Batch) -> "_Predictions":
        """Reads those of masked LM or of permutation LM, which leaves the text."""
        name = next((n for n in ("mlm", "plm") if f"{n}/weights" in batch), None)
        if name is None:
            none = np.zeros((len(batch["ids"]), 0), np.int32)
            return cls(none, none, none, none > 0, none)
        positions = batch[f"{name}/positions"]
        return cls(
            positions,
            batch.get(f"{name}/offsets", np.zeros_like(positions)),
            batch[f"{name}/labels"],
            batch[f"{name}/weights"] > 0,
            batch.get(f"{name}/kinds", np.full_like(positions, KEPT)),
        )


class _Statistics:
    """Counts over batches."""

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary = vocabulary
        self.totals: collections.Counter[str] = collections.Counter()
        self.labels: collections.Counter[str] = collections.Counter()
        self.members: collections.Counter[str] = collections.Counter()
        self.lengths: collections.Counter[int] = collections.Counter()
        self.spans: collections.Counter[int] = collections.Counter()
        self.drawn: collections.Counter[int] = collections.Counter()
        self.noise: collections.Counter[str] = collections.Counter()
        self.per_row: list[int] = []

    def add(self, batch: Batch, labels: tuple[str, ...], members: list[str]) -> None:
        self.totals["rows"] += len(batch["mask"])
        self.lengths[batch["mask"].shape[1]] += len(batch["mask"])
        self.members.update(members)
        self.totals["tokens"] += int(batch["mask"].sum())
        self.totals["places"] += batch["mask"].size
        second = batch["second"][batch["paired"] > 0]
        for number, name in enumerate(labels):
            self.labels[name] += int((second == number).sum())
        self._add_predictions(batch)

    def _add_predictions(self, batch: Batch) -> None:
        predictions = _Predictions.of(batch)
        used_BP = predictions.used
        for name, kind in ALL_KINDS.items():
            self.totals[name] += int((used_BP & (predictions.kinds == kind)).sum())
        self.per_row.extend(used_BP.sum(axis=1).tolist())
        if "mlm/dropped" in batch:
            self.totals["dropped"] += int(batch["mlm/dropped"].sum())
        if "mlm/phrases" in batch:
            self.totals["phrases"] += int(batch["mlm/phrases"].sum())
        for name in {"mlm/drawn", "plm/drawn"} & batch.keys():
            drawn = batch[name].sum(axis=0).tolist()
            self.drawn.update(dict(enumerate(drawn, start=1)))
        original_BL, mask_BL, selected_BL = restored(
            batch,
            (predictions.positions, predictions.offsets),
            predictions.labels,
            used_BP,
        )
        self.totals["text"] += int(mask_BL.sum())
        vocabulary = self.vocabulary
        self.noise.update(noise_counts(batch, original_BL, vocabulary))
        special_BL = np.isin(original_BL, [vocabulary.cls_id, vocabulary.sep_id])
        self.totals["places_selected"] += int(selected_BL.sum())
        self.totals["special"] += int((selected_BL & special_BL).sum())
        text_BL = mask_BL & ~vocabulary.special_V[original_BL]
        self.totals["split_words"] += _split_words(
            _as_written(batch, selected_BL),
            _as_written(batch, original_BL),
            _as_written(batch, text_BL),
            vocabulary,
        )
        self.spans.update(_run_lengths(selected_BL).tolist())

    def result(self) -> dict[str, Any]:
        tokens, pairs = self.totals["tokens"], sum(self.labels.values())
        text, selected = self.totals["text"], sum(self.per_row)
        share = lambda name: self.totals[name] / max(1, selected)
        return {
            "tokens": tokens,
            "padding_share": 1.0 - tokens / self.totals["places"],
            "collapsed_share": 1.0 - tokens / text,
            "selected_share": selected / text,
            "unique_share": self.totals["places_selected"] / text,
            "dropped_share": self.totals["dropped"]
            / max(1, selected + self.totals["dropped"]),
            "masked_share": share("masked"),
            "similar_share": share("similar"),
            "random_share": share("replaced"),
            "kept_share": share("kept"),
            "phrase_share": share("phrases"),
            "special_selected": self.totals["special"],
            "split_words": self.totals["split_words"],
            "span_lengths": {str(n): self.spans[n] for n in sorted(self.spans)},
            "drawn_lengths": {str(n): self.drawn[n] for n in sorted(self.drawn)},
            "predictions_per_row": {
                "min": min(self.per_row, default=0),
                "mean": selected / self.totals["rows"],
                "max": max(self.per_row, default=0),
            },
            "noise": noise_shares(self.noise, tokens),
            "labels": {n: number / max(1, pairs) for n, number in self.labels.items()},
            "languages": _shares(self.members),
            "lengths": {str(n): share for n, share in _shares(self.lengths).items()},
            "fill": tokens / self.totals["places"],
        }


def _shares(counts: collections.Counter) -> dict[Any, float]:
    """Returns the share of each in all, by name."""
    total = max(1, counts.total())
    return {name: counts[name] / total for name in sorted(counts)}


def _as_written(batch: Batch, values_BL: np.ndarray) -> np.ndarray:
    """Turns rows round that hold their text from the end."""
    if "reversed" not in batch:
        return values_BL
    return np.where(batch["reversed"][:, None], values_BL[:, ::-1], values_BL)


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
    slots, predictions, marks = _Predictions.of(batch), [], {}
    labels_at = collections.defaultdict(dict)  # position -> the tokens of that place
    for slot in np.flatnonzero(slots.used[row]):
        position = int(slots.positions[row, slot]) - first
        offset, kind = int(slots.offsets[row, slot]), int(slots.kinds[row, slot])
        (label,) = tokenizer.tokens([int(slots.labels[row, slot])])
        labels_at[position][offset] = label
        stood = " ".join(labels_at[position].values())
        marks[position] = {
            MASKED: f"{tokenizer.mask_token}({stood})",
            REPLACED: f"{tokens[position]}(was {stood})",
            SIMILAR: f"{tokens[position]}(like {stood})",
            KEPT: f"{stood}(kept)",
        }[kind]
        name = next(name for name, number in ALL_KINDS.items() if number == kind)
        prediction = {"position": position, "label": label, "kind": name}
        predictions.append(prediction | ({"offset": offset} if offset else {}))
    noise = noise_of(batch, row, tokenizer)
    instead, behind = noise_marks(noise, tokens)
    paired = bool(labels) and batch["paired"][row] > 0
    label = labels[int(batch["second"][row])] if paired else None
    shown = {"row": int(batch["row"][row]), "label": label}
    backwards = "reversed" in batch and bool(batch["reversed"][row])
    if "reversed" in batch:
        shown["reversed"] = backwards
    begins = set()
    if "positions" in batch:
        begins = set(np.flatnonzero(batch["positions"][row, real_L] == 0).tolist())
    spelled = functools.partial(
        _text, tokenizer, ids, begins=begins - {0}, backwards=backwards
    )
    return {
        **shown,
        "text": spelled(marks=instead | marks, behind=behind),
        "input": spelled(marks={}, behind={}),
        "tokens": tokens,
        "ids": ids.tolist(),
        "segments": batch["segments"][row, real_L].tolist(),
        "predictions": predictions,
        **noise,
    }


def _heading(row: dict[str, Any]) -> str:
    """Returns what the command says of a row before its text."""
    parts = [f"row {row['row']}"]
    if "language" in row:
        parts.append(row["language"])
    if row["label"] is not None:
        parts.append(f"second segment: {row['label']}")
    if row.get("reversed"):
        parts.append("read from right to left")
    return ", ".join(parts)


def _text(
    tokenizer: Tokenizer,
    ids: np.ndarray,
    marks: dict[int, str],
    behind: dict[int, str],
    begins: set[int],
    backwards: bool,
) -> str:
    """Joins pieces to words; special and marked tokens stand apart.

    Args:
      tokenizer: of the ids.
      ids: of the row.
      marks: what is written in place of tokens.
      behind: what is written behind tokens.
      begins: where another document of the row begins, to be set off by a bar.
      backwards: whether the last piece of a word comes first.
    """
    vocabulary = tokenizer.vocabulary
    words: list[str | list[int]] = []  # a mark, or the pieces of a word
    step = -1 if backwards else 1
    for position in range(len(ids))[::step]:
        if position in begins:
            words.append("|")
        before, i = words[-1] if words else "", int(ids[position])
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
        if position in behind:
            words.append(behind[position])
    spelled = (w if isinstance(w, str) else tokenizer.decode(w).strip() for w in words)
    return " ".join(list(spelled)[::step])


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
        print(f"{_heading(row)}\n  {row['text']}")
        if any("offset" in prediction for prediction in row["predictions"]):
            print(f"  is read as: {row['input']}")  # shorter than its text
        print()
    for name, value in result["stats"].items():
        print(f"{name:20} {_shown(value)}")


def _shown(value: Any) -> str:
    """Returns a statistic for people to read."""
    if isinstance(value, dict):
        return ", ".join(f"{k} {_shown(v)}" for k, v in value.items()) or "-"
    return f"{value:.4f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    run_command(main)
