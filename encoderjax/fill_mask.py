"""Fills the masks of a text with what the model finds likely.

Several masks of one text are filled from one pass (`--order=together`), or one after
the other, each seeing the ones before it: from the left, or the surest first. With
`--pair`, the probability that the second text follows the first.

Shapes: B batch, L length, P masks asked for in a batch, T top predictions.
"""

import dataclasses
import functools
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, TypeVar, get_args

import jax
import jax.numpy as jnp
import numpy as np

from encoderjax.command import Parser, run_command
from encoderjax.data.tokenizers import Tokenizer
from encoderjax.errors import UserError
from encoderjax.interop.loading import LoadedModel, load_model
from encoderjax.models.heads import HEADS, EncoderModel, PairHead

Order = Literal["together", "left", "surest"]
Item = TypeVar("Item")

_BATCH_SIZE = 16
# Sizes are rounded up to these, so that a new text seldom means a new compilation.
_LENGTH_STEP, _MASKS_STEP = 32, 16

_EXAMPLES = (
    'python -m encoderjax.fill_mask --model=runs/bert_tiny "The [MASK] of the [MASK]"',
    'python -m encoderjax.fill_mask --model=DIR --order=surest --top=3 "I [MASK] you."',
    "python -m encoderjax.fill_mask --model=DIR --file=texts.txt --json",
    'python -m encoderjax.fill_mask --model=DIR --pair "It rained." "We got wet."',
)


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One prediction for a mask."""

    token: str
    id: int
    probability: float


@dataclasses.dataclass(frozen=True)
class Filled:
    """A text and what fills it.

    Attributes:
      text: as it was given.
      filled: the text with the first candidate in place of each mask.
      masks: the candidates of each mask in the order of the text, likeliest first,
        as they were when that mask was filled.
      sequence: the masks in the order in which they were filled.
    """

    text: str
    filled: str
    masks: tuple[tuple[Candidate, ...], ...]
    sequence: tuple[int, ...]


# ---- masks ----


def fill_masks(
    model: LoadedModel, texts: list[str], *, top: int = 5, order: Order = "together"
) -> list[Filled]:
    """Fills the masks of every text; see the module's docstring for `order`."""
    if order not in _CHOICES:
        raise UserError(f"order={order!r} must be one of {', '.join(_CHOICES)}")
    model = model.part_with("mlm")
    tokenizer = model.need_tokenizer()
    drafts = [_Draft(text, tokenizer, model.config.max_length) for text in texts]
    top = _checked_top(top, tokenizer)
    encoder, params = _on_device(model, "mlm")
    while waiting := [draft for draft in drafts if draft.waiting]:
        for batch in _batches(waiting, lambda draft: len(draft.ids)):
            predictions = _predict_masks(encoder, params, tokenizer, batch, top)
            for draft, candidates in zip(batch, predictions, strict=True):
                draft.fill(_CHOICES[order](candidates), candidates)
    return [draft.result(tokenizer) for draft in drafts]


# Which of the masks that still wait are filled after a pass.
_CHOICES: dict[str, Callable[[list[list[Candidate]]], list[int]]] = {
    "together": lambda candidates: list(range(len(candidates))),
    "left": lambda candidates: [0],
    "surest": lambda candidates: [
        int(np.argmax([ranked[0].probability for ranked in candidates]))
    ],
}


class _Draft:
    """A text on its way to being filled."""

    def __init__(self, text: str, tokenizer: Tokenizer, max_length: int):
        self.text = text
        # BERT's spelling of the mask is known to all, and means the mask to any model.
        text = text.replace("[MASK]", tokenizer.mask_token)
        ids, segments = _encoded(tokenizer, text, None, max_length)
        self.ids, self.segments = ids.copy(), segments
        self.positions = np.flatnonzero(ids == tokenizer.vocabulary.mask_id).tolist()
        if not self.positions:
            raise UserError(
                f"text {self.text!r} has no {tokenizer.mask_token}; write one where to "
                "predict"
            )
        self.waiting = list(self.positions)
        self.masks: dict[int, tuple[Candidate, ...]] = {}

    def fill(self, chosen: list[int], candidates: list[list[Candidate]]) -> None:
        """Fills the chosen ones of the waiting masks with their first candidate."""
        for index in chosen:
            position = self.waiting[index]
            self.masks[position] = tuple(candidates[index])
            self.ids[position] = candidates[index][0].id
        self.waiting = [p for p in self.waiting if p not in self.masks]

    def result(self, tokenizer: Tokenizer) -> Filled:
        """Returns the filled text."""
        layout = tokenizer.layout
        end = len(self.ids) - len(layout.after)
        return Filled(
            text=self.text,
            filled=tokenizer.decode(self.ids[len(layout.before) : end]).strip(),
            masks=tuple(self.masks[position] for position in self.positions),
            sequence=tuple(self.positions.index(position) for position in self.masks),
        )


def _predict_masks(
    encoder: EncoderModel,
    params: dict,
    tokenizer: Tokenizer,
    batch: list[_Draft],
    top: int,
) -> list[list[list[Candidate]]]:
    """Returns the candidates of every waiting mask of every text of a batch."""
    inputs = _padded([(d.ids, d.segments) for d in batch], tokenizer, encoder)
    most = max(len(draft.waiting) for draft in batch)
    places_BP = np.zeros((len(inputs[0]), _rounded(most, _MASKS_STEP)), np.int32)
    for row, draft in enumerate(batch):
        begin = _begin(tokenizer, len(draft.ids), inputs[0].shape[1])
        places_BP[row] = draft.waiting[0]
        places_BP[row, : len(draft.waiting)] = draft.waiting
        places_BP[row] += begin
    ordinary_V = np.zeros(encoder.config.vocab_size, bool)
    ordinary_V[tokenizer.vocabulary.ordinary_ids] = True
    ids_BPT, chances_BPT = jax.device_get(
        _score_masks(encoder, params, inputs, places_BP, ordinary_V, top)
    )
    return [
        [
            _candidates(tokenizer, ids_BPT[row, p], chances_BPT[row, p])
            for p in range(len(draft.waiting))
        ]
        for row, draft in enumerate(batch)
    ]


def _candidates(tokenizer: Tokenizer, ids_T, chances_T) -> list[Candidate]:
    ranked = zip(tokenizer.tokens(ids_T), ids_T, chances_T, strict=True)
    return [Candidate(token, int(i), float(chance)) for token, i, chance in ranked]


@functools.partial(jax.jit, static_argnames=("encoder", "top"))
def _score_masks(encoder, params, inputs, places_BP, ordinary_V, top: int):
    """Returns the ids and probabilities [B, P, T] of the likeliest ordinary tokens."""
    logits_BPV = encoder.apply(
        {"params": params}, *inputs, places_BP, method=EncoderModel.fill
    )
    probabilities_BPV = jax.nn.softmax(logits_BPV)
    ranked_BPV = jnp.where(ordinary_V, probabilities_BPV, -1.0)
    probabilities_BPT, ids_BPT = jax.lax.top_k(ranked_BPV, top)
    return ids_BPT, probabilities_BPT


def _checked_top(top: int, tokenizer: Tokenizer) -> int:
    ordinary = len(tokenizer.vocabulary.ordinary_ids)
    if not 1 <= top <= ordinary:
        raise UserError(f"top={top} must be from 1 to the {ordinary} ordinary tokens")
    return top


# ---- pairs ----


def pair_probability(model: LoadedModel, pairs: list[tuple[str, str]]) -> list[float]:
    """Returns, for each pair, the probability that the second text is the next."""
    tokenizer = model.need_tokenizer()
    trained = [name for name in model.head_names if HEADS[name] is PairHead]
    encoder, params = _on_device(model, trained[0] if trained else "nsp")
    coded = [_encoded(tokenizer, *pair, model.config.max_length) for pair in pairs]
    numbers = list(range(len(pairs)))
    found = {}
    for batch in _batches(numbers, lambda number: len(coded[number][0])):
        inputs = _padded([coded[number] for number in batch], tokenizer, encoder)
        next_B = jax.device_get(_score_pairs(encoder, params, inputs))
        found |= {number: float(next_B[row]) for row, number in enumerate(batch)}
    return [found[number] for number in numbers]


@functools.partial(jax.jit, static_argnames=("encoder",))
def _score_pairs(encoder, params, inputs) -> jax.Array:
    """Returns [B]: the probability of class 0, which is `next`."""
    outputs = encoder.apply({"params": params}, *inputs)
    return jax.nn.softmax(outputs.logits)[:, 0]


# ---- batches ----


def _on_device(model: LoadedModel, head: str) -> tuple[EncoderModel, dict]:
    encoder, params = model.with_heads(head)
    return encoder, jax.device_put(params)


def _encoded(
    tokenizer: Tokenizer, text: str, pair: str | None, max_length: int
) -> tuple[np.ndarray, np.ndarray]:
    for part in (text, pair):
        if part is not None and not part.strip():
            raise UserError("a text is empty; write something to predict from")
    ids_L, segments_L = tokenizer.encode_with_specials(text, pair)
    if len(ids_L) > max_length:
        raise UserError(
            f"text {text[:40]!r}... has {len(ids_L)} tokens with its special tokens, "
            f"the model takes {max_length}; shorten it"
        )
    return np.asarray(ids_L, np.int32), np.asarray(segments_L, np.int32)


def _batches(items: list[Item], length: Callable[[Item], int]) -> list[list[Item]]:
    """Returns the items in batches of like length."""
    items = sorted(items, key=length)
    starts = range(0, len(items), _BATCH_SIZE)
    return [items[start : start + _BATCH_SIZE] for start in starts]


def _padded(
    texts: list[tuple[np.ndarray, np.ndarray]],
    tokenizer: Tokenizer,
    encoder: EncoderModel,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns ids, mask and segments [B, L], both sizes rounded up."""
    longest = max(len(ids) for ids, _ in texts)
    length = min(_rounded(longest, _LENGTH_STEP), encoder.config.max_length)
    num_rows = 1 << (len(texts) - 1).bit_length()
    ids_BL = np.full((num_rows, length), tokenizer.vocabulary.pad_id, np.int32)
    mask_BL = np.zeros((num_rows, length), bool)
    segments_BL = np.full((num_rows, length), tokenizer.layout.pad, np.int32)
    for row, (ids, segments) in enumerate(texts):
        begin = _begin(tokenizer, len(ids), length)
        columns = slice(begin, begin + len(ids))
        ids_BL[row, columns] = ids
        mask_BL[row, columns] = True
        segments_BL[row, columns] = segments
    return ids_BL, mask_BL, segments_BL


def _begin(tokenizer: Tokenizer, size: int, length: int) -> int:
    """Returns the column where a text begins in a padded row."""
    return length - size if tokenizer.layout.pads_left else 0


def _rounded(size: int, step: int) -> int:
    return -(-size // step) * step


# ---- the command ----


def run(
    model: LoadedModel,
    texts: list[str],
    pairs: list[tuple[str, str]],
    *,
    top: int = 5,
    order: Order = "together",
) -> dict:
    """Returns what `--json` prints: the filled texts and the judged pairs."""
    filled = fill_masks(model, texts, top=top, order=order) if texts else []
    chances = pair_probability(model, pairs) if pairs else []
    judged = [
        {"first": first, "second": second, "next": chance, "random": 1.0 - chance}
        for (first, second), chance in zip(pairs, chances, strict=True)
    ]
    return {"texts": [dataclasses.asdict(text) for text in filled], "pairs": judged}


def _lines(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"file={str(path)!r} cannot be read: {error}") from error
    texts = [line for line in lines if line.strip()]
    if not texts:
        raise UserError(f"file={str(path)!r} has no text; write one a line")
    return texts


def _print_result(result: dict) -> None:
    for text in result["texts"]:
        print(text["text"])
        for number, mask in enumerate(text["masks"], 1):
            ranked = (f"{c['token']} {c['probability']:.3f}" for c in mask)
            print(f"  mask {number}: {'  '.join(ranked)}")
        print(f"  filled: {text['filled']}")
    for pair in result["pairs"]:
        print(f"{pair['first']} | {pair['second']}")
        print(f"  next {pair['next']:.3f}  random {pair['random']:.3f}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Fills and prints what the flags ask for."""
    parser = Parser(
        command="fill_mask",
        description="Fill the masks of a text, or judge whether two texts follow.",
        examples=_EXAMPLES,
    )
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="text with masks")
    parser.add_argument(
        "--model", required=True, metavar="DIR", help="a workdir, or a folder"
    )
    parser.add_argument("--file", type=Path, help="texts with masks, one a line")
    parser.add_argument("--top", type=int, default=5, help="predictions per mask")
    parser.add_argument(
        "--order",
        choices=get_args(Order),
        default="together",
        help="how several masks are filled: from one pass, or one after the other",
    )
    parser.add_argument(
        "--pair",
        nargs=2,
        action="append",
        default=[],
        metavar=("A", "B"),
        help="print the probability that B follows A",
    )
    parser.add_argument("--json", action="store_true", help="print one json object")
    flags = parser.parse_strictly(arguments)
    texts = flags.texts + (_lines(flags.file) if flags.file is not None else [])
    if not texts and not flags.pair:
        raise UserError("no text given: write one, or --file=F, or --pair A B")
    model = load_model(flags.model)
    report = (model.part_with("mlm") if texts else model).report
    pairs = [(first, second) for first, second in flags.pair]
    result = run(model, texts, pairs, top=flags.top, order=flags.order)
    for line in report:
        print(f"note: {line}", file=sys.stderr)
    if flags.json:
        print(json.dumps(result, indent=2, ensure_ascii=False))
    else:
        _print_result(result)


if __name__ == "__main__":
    run_command(main)
