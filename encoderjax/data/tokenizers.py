"""Tokenizers: text to ids and back, loading, saving, and what rows need of them.

There are three kinds, each with a module: WordPiece, byte-level BPE and SentencePiece
unigram. A `Tokenizer` is fully described by its `tokenizer.json`, which is written
here: the same vocabulary and options give the same bytes, and so the same sha256,
whatever the version of the `tokenizers` library.

Shapes: V vocabulary.
"""

import dataclasses
import functools
import hashlib
import json
import os
import pathlib
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import tokenizers

from encoderjax.data.bytelevel import (
    read_bytelevel_files,
    read_bytelevel_json,
    train_bytelevel,
)
from encoderjax.data.offsets import Pieces, Splitter, pieces_of_text, pieces_of_words
from encoderjax.data.tokenizer_families import FAMILIES, ROLES, UNUSED, Family
from encoderjax.data.tokenizer_json import (
    Scheme,
    tokenizer_document,
    without_specials,
)
from encoderjax.data.tokenizer_reading import Beside, read_json
from encoderjax.data.unigram import (
    read_unigram_json,
    read_unigram_model,
    train_unigram,
)
from encoderjax.data.word_cache import WordCache
from encoderjax.data.wordpiece import (
    read_wordpiece_json,
    read_wordpiece_vocabulary,
    train_wordpiece,
)
from encoderjax.data.wordpiece_likelihood import merge_by_likelihood
from encoderjax.errors import UserError


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

    Attributes:
      second: the segment of the second text; 0 where both have the same.
      final: the segment of the last special token, if it has one of its own.
      pads_left: whether padding stands before the row.
      pad: the segment of padding.
    """

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    second: int = 1
    final: int | None = None
    pads_left: bool = False
    pad: int = 0

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
    mask_token: str

    def __init__(self, scheme: Scheme):
        self._scheme = scheme
        document = tokenizer_document(scheme)
        self._json = json.dumps(document, ensure_ascii=False, indent=1)
        self._prompts = tokenizers.Tokenizer.from_str(self._json)
        # A second one for corpora, in which "[MASK]" is five characters of text.
        corpus = tokenizers.Tokenizer.from_str(json.dumps(without_specials(document)))
        corpus.encode_special_tokens = True
        found = [token for token in document["added_tokens"] if not token["special"]]
        self._splitter = Splitter.of(corpus, scheme.family.kind)
        self._cache = WordCache(corpus, scheme, found)
        self.lowercase = scheme.lowercase
        self.sha256 = hashlib.sha256(self._json.encode()).hexdigest()
        self.vocabulary = _vocabulary(self._prompts, scheme, document["added_tokens"])
        self.layout = _layout(scheme.family, self.vocabulary)
        self.mask_token = scheme.family.names["mask"]

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns the ids of each text, int32 and read-only, without special tokens.

        A special token that is spelled out in a text is text like any other.
        """
        return self._cache.encode(texts)

    def encode_with_offsets(self, text: str) -> Pieces:
        """Returns the ids that `encode` gives, each with its place in the text."""
        return pieces_of_text(self._splitter, text)

    def encode_words(self, words: Sequence[str]) -> Pieces:
        """Returns the pieces of the words, joined by spaces, and each one's word."""
        return pieces_of_words(self._splitter, words)

    def encode_with_specials(
        self, text: str, pair: str | None = None
    ) -> tuple[list[int], list[int]]:
        """Returns the ids and segments of a row; `mask_token` is the mask here."""
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

    @property
    def files(self) -> tuple[str, ...]:
        """The names of the files that `save` writes."""
        others = ("tokenizer_config.json", "tokenizer.json")
        return (*self._scheme.files(), *others)

    def save(self, folder: str | os.PathLike) -> None:
        """Writes `files` to `folder`; tokenizer.json last, so it means the others."""
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        family = self._scheme.family
        config = {
            "tokenizer_class": family.hf_class,
            **self._scheme.config(),
            **{f"{role}_token": family.names[role] for role in ROLES},
        }
        if family.pads_left:
            config["padding_side"] = "left"
        if family.asks_for_segments:
            names = ["input_ids", "token_type_ids", "attention_mask"]
            config["model_input_names"] = names
        for name, content in self._scheme.files().items():
            (folder / name).write_bytes(content)
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2))
        partial = folder / "tokenizer.json.partial"
        partial.write_bytes(self._json.encode())
        os.replace(partial, folder / "tokenizer.json")


# ---- what follows from the tokenizer ----


def _vocabulary(
    library: tokenizers.Tokenizer, scheme: Scheme, added: Sequence[dict]
) -> Vocabulary:
    size = library.get_vocab_size()
    entries = [library.id_to_token(i) or "" for i in range(size)]
    special = {*scheme.family.specials, *(t["content"] for t in added if t["special"])}
    special_V = np.array([entry in special for entry in entries])
    continues = [scheme.continues_word(entry) for entry in entries]
    ids = {entry: i for i, entry in enumerate(entries)}
    named = {f"{role}_id": ids[scheme.family.names[role]] for role in ROLES}
    return Vocabulary(
        size=size,
        **named,
        special_V=special_V,
        unused_V=np.array([bool(UNUSED.fullmatch(entry)) for entry in entries]),
        continues_word_V=np.array(continues) & ~special_V,
    )


def _layout(family: Family, vocabulary: Vocabulary) -> Layout:
    places = family.places(2)
    a, b = (places.index(p) for p in places if p[0] in ("A", "B"))
    before, between, after = (
        tuple(getattr(vocabulary, f"{role}_id") for role, _ in part)
        for part in (places[:a], places[a + 1 : b], places[b + 1 :])
    )
    (_, second), (_, last) = places[b], places[-1]
    return Layout(
        before,
        between,
        after,
        second=second,
        final=None if last == second else last,
        pads_left=family.pads_left,
        pad=family.pad_segment,
    )


# ---- training ----


_wordpiece = functools.partial(train_wordpiece, family=FAMILIES["bert"])
_likelihood = functools.partial(_wordpiece, merge=merge_by_likelihood)
_TRAINED: dict[str, Callable[[Iterable[str], int], Scheme]] = {
    "wordpiece": functools.partial(_wordpiece, lowercase=True),
    "wordpiece_cased": functools.partial(_wordpiece, lowercase=False),
    "wordpiece_likelihood": functools.partial(_likelihood, lowercase=True),
    "wordpiece_likelihood_cased": functools.partial(_likelihood, lowercase=False),
    "bbpe": functools.partial(train_bytelevel, family=FAMILIES["roberta"]),
    "unigram": functools.partial(train_unigram, family=FAMILIES["albert"]),
    "unigram_cased": functools.partial(
        train_unigram, family=FAMILIES["albert"], cased=True
    ),
}
_TRAINED |= {
    f"bbpe/{name}": functools.partial(train_bytelevel, family=FAMILIES[name])
    for name in ("deberta", "modernbert")
}
_TRAINED |= {
    f"unigram/{name}": functools.partial(train_unigram, family=FAMILIES[name])
    for name in ("xlnet", "xlm_roberta", "deberta_v2")
}

FILE_NAMES = ("tokenizer.json", "vocab.txt", "vocab.json")
FILE_NAMES += tuple(
    dict.fromkeys(f.model_file for f in FAMILIES.values() if f.model_file)
)
# All that a tokenizer's folder may hold of it.
TOKENIZER_FILES = (*FILE_NAMES, "merges.txt", "tokenizer_config.json")
FORMS = f"{', '.join(_TRAINED)}, each with :SIZE, or a path to "
FORMS += f"{', '.join(FILE_NAMES)} or a folder that holds one"


def make_tokenizer(spec: str, texts: Callable[[], Iterable[str]]) -> Tokenizer:
    """Returns the tokenizer of `spec`: trained on `texts()`, or loaded.

    A trained one has exactly the size asked for, special tokens included. The same
    texts give the same bytes, whatever the number of threads.
    """
    check_spec(spec)
    if is_trained(spec):
        kind, _, size = spec.partition(":")
        return Tokenizer(_TRAINED[kind](texts(), int(size)))
    return load_tokenizer(spec)


def check_spec(spec: str) -> None:
    """Refuses what is neither a path nor asks for training."""
    if is_trained(spec):
        kind, _, size = spec.partition(":")
        if not (size.isascii() and size.isdigit()):
            raise UserError(
                f"--tokenizer={spec}: {size!r} is not a vocabulary size; "
                f"write for example {kind}:30522"
            )
    elif not pathlib.Path(spec).exists():
        raise UserError(f"--tokenizer={spec} is no file, folder or form; use {FORMS}")


def is_trained(spec: str) -> bool:
    """Says whether `spec` asks for training, as opposed to a tokenizer's path."""
    return spec.partition(":")[0] in _TRAINED


# ---- loading ----


def load_tokenizer(path: str | os.PathLike) -> Tokenizer:
    """Loads a tokenizer from one of its files, or from a folder with one.

    A tokenizer_config.json and a config.json beside it are respected as transformers
    does: they name the class, and so the family, and its options.
    """
    path = pathlib.Path(path)
    if path.is_dir():
        found = [path / name for name in FILE_NAMES if (path / name).is_file()]
        if not found:
            names = " or ".join((", ".join(FILE_NAMES[:-1]), FILE_NAMES[-1]))
            raise UserError(f"--tokenizer={path} has no {names}")
        path = found[0]
    if not path.is_file():
        raise UserError(f"--tokenizer={path} does not exist; use {FORMS}")
    return Tokenizer(_read(path, Beside.of(path.parent)))


_JSON_READERS: dict[str, Callable[[pathlib.Path, dict, Beside], Scheme]] = {
    "WordPiece": read_wordpiece_json,
    "BPE": read_bytelevel_json,
    "Unigram": read_unigram_json,
}


def _read(path: pathlib.Path, beside: Beside) -> Scheme:
    if path.suffix == ".model":
        return read_unigram_model(path, beside)
    if path.name == "vocab.json":
        return read_bytelevel_files(path, beside)
    if path.suffix != ".json":
        return read_wordpiece_vocabulary(path, beside)
    document = read_json(path)
    model = document.get("model")
    if not isinstance(model, dict) or "vocab" not in model:
        raise UserError(f"{path} has no model with a vocabulary; is it a tokenizer?")
    kind = model.get("type", _untyped(model))
    if kind not in _JSON_READERS:
        raise UserError(
            f"{path}: model is {kind}; only {', '.join(_JSON_READERS)} can be loaded"
        )
    return _JSON_READERS[kind](path, document, beside)


def _untyped(model: dict) -> str:
    """Returns the kind of a model of the time when it was not written down."""
    if "merges" in model:
        return "BPE"
    return "Unigram" if isinstance(model["vocab"], list) else "WordPiece"
