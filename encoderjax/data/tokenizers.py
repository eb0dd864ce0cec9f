"""WordPiece tokenizers: training, loading, saving, and what rows need of them.

A `Tokenizer` is fully described by its `tokenizer.json`, which this module writes
itself (`wordpiece.tokenizer_json`): the same vocabulary and options give the same
bytes, and so the same sha256, whatever the version of the `tokenizers` library.

Shapes: V vocabulary.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
import os
import pathlib
import re
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import tokenizers

from encoderjax.data.wordpiece import (
    PREFIX,
    SPECIALS,
    Options,
    added_token,
    tokenizer_json,
    train_pieces,
)
from encoderjax.errors import UserError

FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt")

_MEMO_WORDS = 2**20
_UNSPACED_LENGTH = 12  # characters a "word" above which few words come twice
# White space to Python, but removed as control characters by BERT's normaliser.
_REMOVED = re.compile("[\v\f\x1c-\x1f\x85]")

_UNUSED = re.compile(r"\[unused\d+\]")
_FORMS = "wordpiece:SIZE, wordpiece_cased:SIZE, or a path to vocab.txt, "
_FORMS += "tokenizer.json or a folder that holds one"


@dataclasses.dataclass(frozen=True, eq=False)
class Vocabulary:
    """The ids that masking and row assembly have to know."""

    size: int
    pad_id: int
    unk_id: int
    cls_id: int
    sep_id: int
    mask_id: int
    special_V: np.ndarray  # bool: the five above and added special tokens
    unused_V: np.ndarray  # bool: placeholders such as [unused7]
    continues_word_V: np.ndarray  # bool: pieces that continue the word before

    @functools.cached_property
    def ordinary_ids(self) -> np.ndarray:
        """The ids that stand for text, ascending, int64."""
        return np.flatnonzero(~(self.special_V | self.unused_V))


@dataclasses.dataclass(frozen=True)
class Layout:
    """The special tokens round one or two segments, by id.

    `before` and `between` belong to segment 0, `after` to the last segment.
    """

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]

    def num_special(self, segments: int) -> int:
        """Returns how many special tokens a row of 1 or 2 segments has."""
        ends = len(self.before) + len(self.after)
        return ends + (segments - 1) * len(self.between)


class Tokenizer:
    """Text to ids and back; immutable."""

    vocabulary: Vocabulary
    layout: Layout
    lowercase: bool
    sha256: str  # of the bytes of tokenizer.json

    def __init__(
        self,
        pieces: Sequence[str],
        options: Options,
        added: Sequence[dict] = (),
    ):
        ids = {piece: i for i, piece in enumerate(pieces)}
        special = {token: ids[token] for token in SPECIALS}
        added = list(added) or [added_token(i, t) for t, i in special.items()]
        self._pieces = tuple(pieces)
        self._options = options
        self._json = tokenizer_json(ids, options, sorted(added, key=lambda t: t["id"]))
        self._prompts = tokenizers.Tokenizer.from_str(self._json)
        # A second one for corpora, in which "[MASK]" is five characters of text.
        self._corpus = tokenizers.Tokenizer.from_str(self._json)
        self._corpus.encode_special_tokens = True
        self._added_text = not all(token["special"] for token in added)
        self._known: dict[str, bytes] = {}
        self.lowercase = options.lowercase
        self.sha256 = hashlib.sha256(self._json.encode()).hexdigest()
        self.vocabulary = _vocabulary(self._prompts, added)
        separator = (self.vocabulary.sep_id,)
        self.layout = Layout((self.vocabulary.cls_id,), separator, separator)

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns the ids of each text, int32 and read-only, without special tokens.

        A special token that is spelled out in a text is text like any other.

        No piece reaches over white space, so each spelling is tokenised once and
        then looked up: on English prose about five times as fast on a core.
        """
        words_T = [text.split() for text in texts]
        whole_T = list(map(self._is_whole, texts, words_T))
        if len(self._known) > _MEMO_WORDS:
            self._known = {}
        known = self._known  # word -> the bytes of its ids, which join fastest
        spaced = itertools.compress(words_T, (not whole for whole in whole_T))
        new = list(set().union(*spaced).difference(known))
        known.update(zip(new, self._encode_whole(new), strict=True))
        rest = iter(self._encode_whole(list(itertools.compress(texts, whole_T))))
        joined = (
            next(rest) if whole else b"".join(map(known.__getitem__, words))
            for words, whole in zip(words_T, whole_T, strict=True)
        )
        return [np.frombuffer(ids, np.int32) for ids in joined]

    def _is_whole(self, text: str, words: list[str]) -> bool:
        """Says whether `text` has to be, or had better be, tokenised as a whole."""
        unspaced = len(text) > _UNSPACED_LENGTH * len(words)  # Chinese, Thai, ...
        return unspaced or self._added_text or _REMOVED.search(text) is not None

    def _encode_whole(self, texts: Sequence[str]) -> list[bytes]:
        encodings = self._corpus.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, np.int32).tobytes() for encoding in encodings]

    def encode_with_specials(
        self, text: str, pair: str | None = None
    ) -> tuple[list[int], list[int]]:
        """Returns the ids and segments of a whole row; "[MASK]" is the mask here."""
        encoding = self._prompts.encode(text, pair)
        return encoding.ids, encoding.type_ids

    def decode(
        self, ids: Sequence[int] | np.ndarray, skip_special: bool = False
    ) -> str:
        """Returns the text of `ids`, pieces of words joined."""
        ids = [int(i) for i in ids]
        return self._prompts.decode(ids, skip_special_tokens=skip_special)

    def tokens(self, ids: Sequence[int] | np.ndarray) -> list[str]:
        """Returns the vocabulary's entry for each id."""
        return [self._entry(int(i)) for i in ids]

    def _entry(self, i: int) -> str:
        token = self._prompts.id_to_token(i)
        if token is None:
            raise IndexError(f"id {i} is not in 0..{self.vocabulary.size - 1}")
        return token

    def save(self, folder: str | os.PathLike) -> None:
        """Writes FILES to `folder`; tokenizer.json last, so it means the others."""
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        config = {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": self._options.lowercase,
            "strip_accents": self._options.strip_accents,
            "tokenize_chinese_chars": self._options.isolate_chinese,
            **{f"{name[1:-1].lower()}_token": name for name in SPECIALS},
        }
        lines = "".join(f"{piece}\n" for piece in self._pieces)
        (folder / "vocab.txt").write_bytes(lines.encode())
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2))
        partial = folder / "tokenizer.json.partial"
        partial.write_bytes(self._json.encode())
        os.replace(partial, folder / "tokenizer.json")


def _vocabulary(tokenizer: tokenizers.Tokenizer, added: Sequence[dict]) -> Vocabulary:
    size = tokenizer.get_vocab_size()
    entries = [tokenizer.id_to_token(i) or "" for i in range(size)]
    ids = {token: i for i, token in enumerate(entries)}
    special = {*SPECIALS, *(t["content"] for t in added if t["special"])}
    continues = [len(e) > len(PREFIX) and e.startswith(PREFIX) for e in entries]
    named = {f"{name[1:-1].lower()}_id": ids[name] for name in SPECIALS}
    return Vocabulary(
        size=size,
        **named,
        special_V=np.array([entry in special for entry in entries]),
        unused_V=np.array([bool(_UNUSED.fullmatch(entry)) for entry in entries]),
        continues_word_V=np.array(continues),
    )


# ---- training ----


def train_wordpiece(
    texts: Iterable[str], vocab_size: int, *, lowercase: bool = True
) -> Tokenizer:
    """Trains a vocabulary of exactly `vocab_size` entries; one pass over `texts`.

    [PAD] [UNK] [CLS] [SEP] [MASK] are 0 to 4. The same texts give the same bytes,
    whatever the number of threads.
    """
    options = Options(lowercase)
    return Tokenizer(train_pieces(texts, vocab_size, options), options)


def make_tokenizer(spec: str, texts: Callable[[], Iterable[str]]) -> Tokenizer:
    """Returns the tokenizer of `spec`: trained on `texts()`, or loaded."""
    kind, _, size = spec.partition(":")
    if kind in ("wordpiece", "wordpiece_cased"):
        if not (size.isascii() and size.isdigit()):
            raise UserError(
                f"--tokenizer={spec}: {size!r} is not a vocabulary size; "
                f"write for example {kind}:30522"
            )
        return train_wordpiece(texts(), int(size), lowercase=kind == "wordpiece")
    if not pathlib.Path(spec).exists():
        raise UserError(f"--tokenizer={spec} is no file, folder or form; use {_FORMS}")
    return load_tokenizer(spec)


def is_trained(spec: str) -> bool:
    """Says whether `spec` asks for training, as opposed to a tokenizer's path."""
    return spec.partition(":")[0] in ("wordpiece", "wordpiece_cased")


# ---- loading ----


def load_tokenizer(path: str | os.PathLike) -> Tokenizer:
    """Loads a vocab.txt, a tokenizer.json, or a folder with either.

    `do_lower_case` of a tokenizer_config.json beside it is respected. A vocab.txt
    alone is taken for an uncased one when no entry has a capital.
    """
    path = pathlib.Path(path)
    if path.is_dir():
        found = [path / name for name in ("tokenizer.json", "vocab.txt")]
        found = [file for file in found if file.is_file()]
        if not found:
            raise UserError(f"--tokenizer={path} has no tokenizer.json or vocab.txt")
        path = found[0]
    if not path.is_file():
        raise UserError(f"--tokenizer={path} does not exist; use {_FORMS}")
    config_path = path.parent / "tokenizer_config.json"
    config = _read_json(config_path) if config_path.is_file() else {}
    read = _read_tokenizer_json if path.suffix == ".json" else _read_vocabulary
    return read(path, config)


def _read_vocabulary(path: pathlib.Path, config: dict) -> Tokenizer:
    try:
        lines = path.read_bytes().decode().replace("\r\n", "\n").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not a vocabulary: byte {error.start} is not UTF-8"
        ) from error
    pieces = lines[:-1] if lines[-1] == "" else lines
    _check_pieces(path, pieces)
    ordinary = (p for p in pieces if p not in SPECIALS and not _UNUSED.fullmatch(p))
    uncased = all(piece == piece.lower() for piece in ordinary)
    return Tokenizer(pieces, _options(config, Options(lowercase=uncased)))


def _read_tokenizer_json(path: pathlib.Path, config: dict) -> Tokenizer:
    """Reads BERT's kind of tokenizer.json; the truncation and padding are dropped."""
    document = _read_json(path)
    model = document.get("model") or {}
    normalizer = document.get("normalizer") or {}
    splitter = document.get("pre_tokenizer") or {}
    kinds = {
        "model": (model.get("type", "WordPiece"), "WordPiece"),
        "prefix": (model.get("continuing_subword_prefix"), PREFIX),
        "normalizer": (normalizer.get("type"), "BertNormalizer"),
        "pre_tokenizer": (splitter.get("type"), "BertPreTokenizer"),
    }
    for part, (kind, expected) in kinds.items():
        if kind != expected:
            raise UserError(
                f"{path}: {part} is {kind}, expected {expected}; "
                "only WordPiece tokenizers of BERT's kind can be loaded"
            )
    options = Options(
        lowercase=normalizer["lowercase"],
        strip_accents=normalizer["strip_accents"],
        isolate_chinese=normalizer["handle_chinese_chars"],
    )
    pieces = [piece for piece, _ in sorted(model["vocab"].items(), key=lambda x: x[1])]
    added = document.get("added_tokens") or []
    ids = sorted({*model["vocab"].values(), *(token["id"] for token in added)})
    if ids != list(range(len(ids))):
        raise UserError(f"{path}: the ids of the vocabulary are not 0..{len(ids) - 1}")
    _check_pieces(path, pieces)
    return Tokenizer(pieces, _options(config, options), added)


def _check_pieces(path: pathlib.Path, pieces: Sequence[str]) -> None:
    if missing := [token for token in SPECIALS if token not in pieces]:
        raise UserError(f"{path} has no {missing[0]}; BERT's five must be there")
    if len(set(pieces)) < len(pieces):
        line = next(i for i, p in enumerate(pieces) if p in pieces[:i])
        raise UserError(f"{path}, line {line + 1}: {pieces[line]!r} is there twice")


def _read_json(path: pathlib.Path) -> dict:
    try:
        document = json.loads(path.read_bytes())
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise UserError(f"{path} is not a JSON object")
    return document


def _options(config: dict, default: Options) -> Options:
    return Options(
        lowercase=config.get("do_lower_case", default.lowercase),
        strip_accents=config.get("strip_accents", default.strip_accents),
        isolate_chinese=config.get("tokenize_chinese_chars", default.isolate_chinese),
    )
