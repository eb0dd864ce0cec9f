"""BERT's WordPiece: its tokenizer.json, and training that repeats itself.

The trainer of the `tokenizers` library numbers the pieces ##a, ##b, ... in the
order of a hash map and breaks ties between merges by those numbers, so that two
trainings on one text give two vocabularies. Here words are counted first, which
also bounds memory by the number of different words; from them come the
characters, sorted, and the library is given all of these as its first pieces. Its
merges are then a function of the counts alone.
"""

import collections
import dataclasses
import itertools
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from encoderjax.data.tokenizer_families import UNUSED, Family
from encoderjax.data.tokenizer_reading import (
    Beside,
    added_entries,
    check_entries,
    check_specials,
    checked_ids,
    read_lines,
)
from encoderjax.errors import UserError

PREFIX = "##"  # of a piece that continues a word

# Longer words become [UNK]. BERT's own code has 200 here, but transformers builds
# its BertTokenizer from the vocabulary alone, with 100 whatever tokenizer.json
# says. An exported model must see the ids that it was trained on, so it is 100.
MAX_WORD_LENGTH = 100

_MIN_FREQUENCY = 1  # merges come by frequency, so the rarest only fill the size
# A character takes up to two pieces (x and ##x), so a third of the vocabulary in
# characters leaves at least a third for longer pieces, also for Chinese.
_ALPHABET_SHARE = 3
_COVERAGE = 0.95  # of the characters in the text; with fewer, [UNK] is everywhere


@dataclasses.dataclass(frozen=True)
class Options:
    """What besides the vocabulary determines the ids."""

    lowercase: bool
    strip_accents: bool | None = None  # None: as `lowercase`
    isolate_chinese: bool = True


@dataclasses.dataclass(frozen=True)
class WordPiece:
    """A vocabulary and how text is brought to it.

    Attributes:
      ids: the vocabulary, in the order of the ids.
      added: the added tokens of tokenizer.json, for those that differ from the usual.
    """

    family: Family
    ids: Mapping[str, int]
    options: Options
    added: Sequence[dict] = ()

    @property
    def lowercase(self) -> bool:
        """Whether capitals are made small."""
        return self.options.lowercase

    def parts(self) -> dict:
        """Returns the parts of tokenizer.json that are this kind's."""
        return {
            "normalizer": _normalizer(self.options),
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "decoder": {"type": "WordPiece", "prefix": PREFIX, "cleanup": True},
            "model": {
                "type": "WordPiece",
                "unk_token": self.family.names["unk"],
                "continuing_subword_prefix": PREFIX,
                "max_input_chars_per_word": MAX_WORD_LENGTH,
                "vocab": dict(self.ids),
            },
        }

    def config(self) -> dict:
        """Returns the options of tokenizer_config.json."""
        return {
            "do_lower_case": self.options.lowercase,
            "strip_accents": self.options.strip_accents,
            "tokenize_chinese_chars": self.options.isolate_chinese,
        }

    def files(self) -> dict[str, bytes]:
        """Returns the file in which such vocabularies were published first."""
        return {"vocab.txt": "".join(f"{piece}\n" for piece in self.ids).encode()}

    def continues_word(self, piece: str) -> bool:
        """Says whether the piece is marked as going on."""
        return len(piece) > len(PREFIX) and piece.startswith(PREFIX)

    def words(self, text: str) -> list[str] | None:
        """Returns the words of a text, which are split one by one."""
        return text.split()

    def word_in_text(self, word: str) -> str:
        """Returns what a word that is not the first is tokenised as."""
        return word

    def splits_apart(self, word: str) -> bool:
        """Says whether the word has no influence on the words beside it."""
        return True

    def reaches_over(self, added: str) -> bool:
        """Says whether an added token of this spelling can be found across words."""
        return re.search(r"\s", added) is not None


def _normalizer(options: Options) -> dict:
    return {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": options.isolate_chinese,
        "strip_accents": options.strip_accents,
        "lowercase": options.lowercase,
    }


# ---- training ----

# Counts of words, size of the vocabulary, first pieces -> all pieces in order.
Merge = Callable[[Mapping[str, int], int, Sequence[str]], list[str]]


def merge_by_counts(
    words: Mapping[str, int], vocab_size: int, first: Sequence[str]
) -> list[str]:
    """Returns `first` and the pieces that the library makes of it, as BPE does.

    In each step it joins the pair that occurs most often.
    """
    model = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    model.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=_MIN_FREQUENCY,
        special_tokens=list(first),  # the only pieces whose numbers can be given
        continuing_subword_prefix=PREFIX,
        show_progress=False,
    )
    model.train_from_iterator(repeated(words), trainer)
    ids = model.get_vocab()
    return sorted(ids, key=ids.__getitem__)


def train_wordpiece(
    texts: Iterable[str],
    vocab_size: int,
    family: Family,
    *,
    lowercase: bool,
    merge: Merge = merge_by_counts,
) -> WordPiece:
    """Trains exactly `vocab_size` entries; one pass over `texts`.

    First come the special tokens, then the characters, then the merges. Words that
    are too long are left out, and so are words with characters that are too rare for
    the vocabulary: the tokenizer makes them [UNK].
    """
    options = Options(lowercase)
    words = _count_words(texts, options)
    if not words:
        raise UserError("--tokenizer: the source has no words to train on")
    # Of Chinese alone every word is a character, and there is nothing to merge.
    merges = any(len(word) > 1 for word in words)
    characters = vocab_size // _ALPHABET_SHARE if merges else vocab_size
    characters = min(characters, vocab_size - len(family.first))
    alphabet = _alphabet(words, vocab_size, characters)
    words = {w: count for w, count in words.items() if alphabet.issuperset(w)}
    first = [*family.first, *sorted(alphabet), *_continuations(words)]
    pieces = merge(words, vocab_size, first)
    if len(pieces) < vocab_size:
        raise UserError(
            f"--tokenizer: the text has only {len(pieces)} different pieces, fewer "
            f"than the {vocab_size} asked for; ask for at most {len(pieces)}"
        )
    return WordPiece(family, {p: i for i, p in enumerate(pieces)}, options)


def _count_words(texts: Iterable[str], options: Options) -> dict[str, int]:
    spaced: collections.Counter[str] = collections.Counter()
    for text in texts:
        spaced.update(text.split())
    # Normalising is slow, and here every spelling passes it once.
    parameters = _normalizer(options)
    del parameters["type"]
    normalise = normalizers.BertNormalizer(**parameters).normalize_str
    split = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    words: collections.Counter[str] = collections.Counter()
    for spelling, count in spaced.items():
        for word, _ in split(normalise(spelling)):
            if len(word) <= MAX_WORD_LENGTH:
                words[word] += count
    return words


def _alphabet(words: dict[str, int], vocab_size: int, most: int) -> frozenset[str]:
    """Returns the `most` frequent characters, the smaller first among equals."""
    counts: collections.Counter[str] = collections.Counter()
    for word, count in words.items():
        for character in word:
            counts[character] += count
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    kept = ranked[: max(0, most)]
    if sum(counts[character] for character in kept) < _COVERAGE * counts.total():
        raise UserError(
            f"--tokenizer: a vocabulary of {vocab_size} cannot hold the {len(counts)} "
            "different characters of the text; ask for a larger one"
        )
    return frozenset(kept)


def _continuations(words: Iterable[str]) -> list[str]:
    inner = set(itertools.chain.from_iterable(word[1:] for word in words))
    return [PREFIX + character for character in sorted(inner)]


def repeated(words: Mapping[str, int]) -> Iterator[str]:
    """Yields every word as often as it was counted; the trainer takes no counts."""
    most = 10_000  # words a text, so that no text is large
    for word, count in words.items():
        spaced = word + " "
        for done in range(0, count, most):
            yield spaced * min(most, count - done)


# ---- reading ----


def read_wordpiece_vocabulary(path: pathlib.Path, beside: Beside) -> WordPiece:
    """Reads a vocab.txt, taken for an uncased one when no entry has a capital."""
    pieces = read_lines(path)
    check_entries(path, pieces)
    ids = {piece: i for i, piece in enumerate(pieces)}
    family = beside.family("wordpiece", ids, path)
    check_specials(path, family, ids)
    specials = set(family.specials)
    ordinary = (p for p in pieces if p not in specials and not UNUSED.fullmatch(p))
    uncased = all(piece == piece.lower() for piece in ordinary)
    return WordPiece(family, ids, _options(beside, Options(lowercase=uncased)))


def read_wordpiece_json(
    path: pathlib.Path, document: dict, beside: Beside
) -> WordPiece:
    """Reads BERT's kind of tokenizer.json; truncation and padding are dropped."""
    model, normalizer = document["model"], document.get("normalizer") or {}
    splitter = document.get("pre_tokenizer") or {}
    kinds = {
        "prefix": (model.get("continuing_subword_prefix"), PREFIX),
        "normalizer": (normalizer.get("type"), "BertNormalizer"),
        "pre_tokenizer": (splitter.get("type"), "BertPreTokenizer"),
    }
    for part, (kind, expected) in kinds.items():
        if kind != expected:
            raise UserError(
                f"{path}: {part} is {kind}, expected {expected}; of WordPiece "
                "tokenizers only those of BERT's kind can be loaded"
            )
    options = Options(
        lowercase=normalizer["lowercase"],
        strip_accents=normalizer["strip_accents"],
        isolate_chinese=normalizer["handle_chinese_chars"],
    )
    ids = checked_ids(path, model["vocab"])
    added = added_entries(path, document, ids)
    every = ids | {token["content"]: token["id"] for token in added}
    family = beside.family("wordpiece", every, path)
    check_specials(path, family, ids)
    return WordPiece(family, ids, _options(beside, options), added)


def _options(beside: Beside, default: Options) -> Options:
    config = beside.config
    return Options(
        lowercase=config.get("do_lower_case", default.lowercase),
        strip_accents=config.get("strip_accents", default.strip_accents),
        isolate_chinese=config.get("tokenize_chinese_chars", default.isolate_chinese),
    )
