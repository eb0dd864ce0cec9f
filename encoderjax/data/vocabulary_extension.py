"""Adds the words of a new domain to a tokenizer that is already in use.

The old entries keep their ids, and the new ones come behind them, so a trained model
needs new rows at the end of its table and nothing else. They are entries of the model
itself, not "added tokens" beside it: a word is found, marked and joined like any other,
and transformers gives the same ids.

  WordPiece   the longest entry wins, so the word alone is enough
  unigram     the likeliest split wins: the word scores as one of its pieces on average
  BPE         the word's old pieces are merged from the left, after all older merges;
              what stands between is an entry, too
"""

import collections
import itertools
import json
import pathlib
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from encoderjax.data.tokenizers import Tokenizer, load_tokenizer
from encoderjax.data.unigram import MARK
from encoderjax.errors import UserError

_WORD = re.compile(r"[^\W\d_]{2,}")
_BATCH = 10_000  # words that are split at a time


def extend_tokenizer(
    tokenizer: Tokenizer, texts: Iterable[str], count: int, where: str
) -> tuple[Tokenizer, list[str]]:
    """Returns the tokenizer with `count` more words, and those words.

    They are the most frequent ones of `texts` that it splits into several pieces; fewer
    where the texts do not have as many. `where` names the tokenizer in messages.
    """
    # A few to spare, for words that normalisation never leaves as they are.
    spelled = dict(_split_words(tokenizer, texts, count + count // 4 + 10))
    while True:
        chosen = dict(itertools.islice(spelled.items(), count))
        extended = _extended(tokenizer, chosen, where)
        old_size, encoded = tokenizer.vocabulary.size, _inside_text(extended, [*chosen])
        failed = [w for w, ids in encoded if len(ids) != 1 or ids[0] < old_size]
        if not failed:
            return extended, list(chosen)
        for word in failed:
            del spelled[word]


def _extended(
    tokenizer: Tokenizer, spelled: dict[str, list[str]], where: str
) -> Tokenizer:
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        tokenizer.save(folder)
        document = json.loads((folder / "tokenizer.json").read_bytes())
        model, size = document["model"], len(document["model"]["vocab"])
        if size != tokenizer.vocabulary.size:
            raise UserError(
                f"--extend_vocabulary: {where} has added tokens behind its {size:,} "
                "pieces, where new ones would have to stand; add words with add_tokens "
                "of transformers, save that, and give it as --tokenizer"
            )
        _EXTENSIONS[model["type"]](model, spelled)
        for file in folder.iterdir():
            if file.suffix != ".json" or file.name == "vocab.json":
                file.unlink()  # the vocabulary as it was, in an older form
        (folder / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
        return load_tokenizer(folder)


# ---- the words ----


def _split_words(
    tokenizer: Tokenizer, texts: Iterable[str], count: int
) -> Iterator[tuple[str, list[str]]]:
    """Yields `count` words and the pieces they are split into, frequent ones first."""
    counts: collections.Counter[str] = collections.Counter()
    for text in texts:
        counts.update(_WORD.findall(text.lower() if tokenizer.lowercase else text))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    unknown = tokenizer.vocabulary.unk_id
    for first in range(0, len(ranked), _BATCH):
        for word, ids in _inside_text(tokenizer, ranked[first : first + _BATCH]):
            if len(ids) < 2 and unknown not in ids:
                continue
            if count == 0:
                return
            count -= 1
            yield word, tokenizer.tokens(ids)


def _inside_text(
    tokenizer: Tokenizer, words: Sequence[str]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields words with their ids behind another word, which is how most stand."""
    head, *encoded = tokenizer.encode(["a", *(f"a {word}" for word in words)])
    for word, ids in zip(words, encoded, strict=True):
        yield word, ids[len(head) :]


# ---- the kinds of model ----
# A word that is an entry already, and was not found, will not be found now either.


def _extend_wordpiece(model: dict, spelled: dict[str, list[str]]) -> None:
    for word in spelled:
        model["vocab"].setdefault(word, len(model["vocab"]))


def _extend_unigram(model: dict, spelled: dict[str, list[str]]) -> None:
    scores, (unknown, _) = dict(model["vocab"]), model["vocab"][model["unk_id"]]
    least = min(scores.values())
    for word, pieces in spelled.items():
        known = [scores[piece] for piece in pieces if piece != unknown]
        score = sum(known) / len(known) if known else least
        if MARK + word not in scores:
            model["vocab"].append([MARK + word, score])


def _extend_bpe(model: dict, spelled: dict[str, list[str]]) -> None:
    ranks: dict[tuple[str, str], int] = {}
    for pieces in spelled.values():
        # With the merges of the words before it: they come first in a text as well.
        joined, *rest = _merged(pieces, ranks)
        for piece in rest:
            ranks[joined, piece] = len(ranks)
            joined += piece
            model["vocab"].setdefault(joined, len(model["vocab"]))
    model["merges"] += [list(pair) for pair in ranks]


def _merged(pieces: Sequence[str], ranks: dict[tuple[str, str], int]) -> list[str]:
    """Joins neighbours by the merge of the lowest rank, as long as there is one."""
    pieces = list(pieces)
    while True:
        pairs = list(itertools.pairwise(pieces))
        known = [pair for pair in pairs if pair in ranks]
        if not known:
            return pieces
        i = pairs.index(min(known, key=ranks.__getitem__))
        pieces[i : i + 2] = ["".join(pairs[i])]


_EXTENSIONS = {
    "WordPiece": _extend_wordpiece,
    "Unigram": _extend_unigram,
    "BPE": _extend_bpe,
}
