"""Byte-level BPE: RoBERTa's, DeBERTa's and ModernBERT's; GPT-2's vocabulary form.

Text is cut before spaces, as ` ?letters`, ` ?digits` or ` ?others`; each run of bytes
is spelled with 256 printable characters (a space is Ġ) and merged pair by pair. No
text is unknown.

Training counts the different runs first, which bounds memory by their number. The
library's trainer then starts from the 256 characters in their order and breaks ties
by number, so its merges are a function of the counts alone.
"""

import collections
import dataclasses
import functools
import json
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from encoderjax.data.tokenizer_families import Family
from encoderjax.data.tokenizer_reading import (
    Beside,
    added_entries,
    check_specials,
    checked_ids,
    read_json,
    read_lines,
)
from encoderjax.data.wordpiece import repeated
from encoderjax.errors import UserError

_VERSION = "#version: 0.2"  # the first line of merges.txt
_PRE_TOKENIZER = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}


@dataclasses.dataclass(frozen=True)
class ByteLevel:
    """A vocabulary with its merges.

    Attributes:
      ids: the vocabulary, in the order of the ids.
      prefix_space: whether a text that begins with a word is given a space, so that
        its first word is spelled as any other.
      compose: whether text is brought to Unicode's composed form first (NFC).
      added: the added tokens of tokenizer.json, for those that differ from the usual.
    """

    family: Family
    ids: Mapping[str, int]
    merges: Sequence[tuple[str, str]]
    prefix_space: bool
    compose: bool = False
    added: Sequence[dict] = ()
    lowercase: bool = False

    def parts(self) -> dict:
        """Returns the parts of tokenizer.json that are this kind's."""
        prefix = {"add_prefix_space": self.prefix_space}
        return {
            "normalizer": {"type": "NFC"} if self.compose else None,
            "pre_tokenizer": {**_PRE_TOKENIZER, **prefix},
            "decoder": {**_PRE_TOKENIZER, **prefix},
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": "",
                "end_of_word_suffix": "",
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": dict(self.ids),
                "merges": [list(pair) for pair in self.merges],
            },
        }

    def config(self) -> dict:
        """Returns the options of tokenizer_config.json."""
        return {"add_prefix_space": self.prefix_space}

    def files(self) -> dict[str, bytes]:
        """Returns the files in which such vocabularies were published first."""
        lines = [_VERSION, *(f"{left} {right}" for left, right in self.merges)]
        return {
            "vocab.json": json.dumps(dict(self.ids), ensure_ascii=False).encode(),
            "merges.txt": "".join(f"{line}\n" for line in lines).encode(),
        }

    def continues_word(self, piece: str) -> bool:
        """Says whether the piece neither begins with white space nor is Chinese."""
        lead = bytes(_bytes_of_characters().get(c, 0) for c in piece[:2])
        # U+3000 to U+9FFF, and U+20000 to U+2FFFF: Chinese and kana, whose words are
        # not set apart by spaces.
        chinese = b"\xe3" <= lead[:1] <= b"\xe9" or b"\xf0\xa0" <= lead <= b"\xf0\xaf"
        return not (lead[:1].isspace() or chinese)

    def words(self, text: str) -> list[str] | None:
        """Returns the words of a text in which single spaces stand between words.

        The cut before spaces makes each of them, with its space, a text of its own;
        two spaces would belong to different words.
        """
        words = text.split()
        return words if " ".join(words) == text else None

    def word_in_text(self, word: str) -> str:
        """Returns what a word that is not the first is tokenised as."""
        return f" {word}"

    def splits_apart(self, word: str) -> bool:
        """Says whether the word has no influence on the words beside it."""
        return True  # NFC composes no mark with a space

    def reaches_over(self, added: str) -> bool:
        """Says whether an added token of this spelling can be found across words."""
        # The spaces of a text that has words are single ones.
        return re.search(r"\s", added) is not None and not re.search(r"\s\s", added)


@functools.cache
def _bytes_of_characters() -> dict[str, int]:
    """Returns the byte that each printable character stands for.

    Printable Latin-1 stands for itself, the others come after U+0100 in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    moved = {chr(256 + i): byte for i, byte in enumerate(others)}
    return {chr(byte): byte for byte in printable} | moved


# ---- training ----


def train_bytelevel(texts: Iterable[str], vocab_size: int, family: Family) -> ByteLevel:
    """Trains exactly `vocab_size` entries; one pass over `texts`."""
    compose = family.composes
    alphabet = sorted(_bytes_of_characters())
    least = len(family.specials) + len(alphabet)
    if vocab_size < least:
        raise UserError(
            f"--tokenizer: a vocabulary of {vocab_size} cannot hold the {least} bytes "
            f"and special tokens; ask for at least {least}"
        )
    counts = _count_runs(texts, compose)
    if not counts:
        raise UserError("--tokenizer: the source has no words to train on")
    size = vocab_size - len(family.specials)
    pieces, merges = _merge(counts, size, alphabet)
    if len(pieces) < size:
        most = len(pieces) + len(family.specials)
        raise UserError(
            f"--tokenizer: the text has only {most} different pieces, fewer than the "
            f"{vocab_size} asked for; ask for at most {most}"
        )
    entries = [*family.first, *pieces, *family.last]
    ids = {entry: i for i, entry in enumerate(entries)}
    return ByteLevel(family, ids, merges, prefix_space=True, compose=compose)


def _count_runs(texts: Iterable[str], compose: bool) -> dict[str, int]:
    """Counts the runs of bytes that merges stay within, every word after a space."""
    spaced: collections.Counter[str] = collections.Counter()
    for text in texts:
        spaced.update(text.split())
    split = pre_tokenizers.ByteLevel(add_prefix_space=True).pre_tokenize_str
    normalise = normalizers.NFC().normalize_str if compose else str
    counts: collections.Counter[str] = collections.Counter()
    for spelling, count in spaced.items():
        for run, _ in split(normalise(spelling)):
            counts[run] += count
    return counts


def _merge(
    counts: dict[str, int], size: int, alphabet: list[str]
) -> tuple[list[str], list[tuple[str, str]]]:
    model = tokenizers.Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=1,  # merges come by frequency, so the rarest only fill the size
        special_tokens=alphabet,  # the pieces whose numbers are given
        show_progress=False,
    )
    model.train_from_iterator(repeated(counts), trainer)
    trained = json.loads(model.to_str())["model"]
    pieces = sorted(trained["vocab"], key=trained["vocab"].__getitem__)
    return pieces, [(left, right) for left, right in trained["merges"]]


# ---- reading ----


def read_bytelevel_json(
    path: pathlib.Path, document: dict, beside: Beside
) -> ByteLevel:
    """Reads a tokenizer.json; truncation and padding are dropped."""
    model = document["model"]
    ids = checked_ids(path, model["vocab"])
    added = added_entries(path, document, ids)
    every = ids | {token["content"]: token["id"] for token in added}
    family = beside.family("bytelevel", every, path)
    check_specials(path, family, every)
    normalizer = (document.get("normalizer") or {}).get("type")
    splitter = document.get("pre_tokenizer") or {}
    if beside.is_wired(family):
        prefix_space, compose = beside.config.get("add_prefix_space", False), False
    else:
        kinds = {
            "normalizer": (normalizer, (None, "NFC")),
            "pre_tokenizer": (splitter.get("type"), ("ByteLevel",)),
            "pre_tokenizer.use_regex": (splitter.get("use_regex", True), (True,)),
            "model.ignore_merges": (model.get("ignore_merges", False), (False,)),
        }
        for part, (kind, expected) in kinds.items():
            if kind not in expected:
                raise UserError(
                    f"{path}: {part} is {kind}, expected {expected[-1]}; of BPE "
                    "tokenizers only byte-level ones of GPT-2's kind can be loaded"
                )
        prefix_space, compose = splitter["add_prefix_space"], normalizer is not None
    pairs = model.get("merges", ())
    pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in pairs]
    merges = _merges(path, ids, pairs)
    return ByteLevel(family, ids, merges, prefix_space, compose, added)


def read_bytelevel_files(path: pathlib.Path, beside: Beside) -> ByteLevel:
    """Reads a vocab.json and the merges.txt that stands beside it."""
    merges_path = path.parent / "merges.txt"
    if not merges_path.is_file():
        raise UserError(f"{path} needs a merges.txt beside it; there is none")
    ids = checked_ids(path, read_json(path))
    lines = read_lines(merges_path)
    if lines and lines[0].startswith("#version"):
        del lines[0]
    merges = _merges(merges_path, ids, (line.split(" ") for line in lines if line))
    family = beside.family("bytelevel", ids, path)
    check_specials(path, family, ids)
    prefix_space = beside.config.get("add_prefix_space", False)
    return ByteLevel(family, ids, merges, prefix_space, family.composes)


def _merges(
    path: pathlib.Path, ids: Mapping[str, int], pairs: Iterable[Sequence[str]]
) -> list[tuple[str, str]]:
    merges = []
    for number, pair in enumerate(pairs, 1):
        if len(pair) != 2:
            raise UserError(f"{path}: merge {number}, {' '.join(pair)!r}, is no pair")
        left, right = pair
        for piece in (left, right, left + right):
            if piece not in ids:
                raise UserError(
                    f"{path}: merge {number}, {left} {right}, needs {piece!r}, which "
                    "the vocabulary does not have; take both from the same tokenizer"
                )
        merges.append((left, right))
    return merges
