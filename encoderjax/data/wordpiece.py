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
import json
from collections.abc import Iterable, Iterator

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from encoderjax.errors import UserError

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
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


# ---- tokenizer.json ----


def tokenizer_json(ids: dict[str, int], options: Options, added: list[dict]) -> str:
    """Returns the text of tokenizer.json; `ids` in ascending order."""
    template = {
        "type": "TemplateProcessing",
        "single": _template("[CLS]:0 A:0 [SEP]:0"),
        "pair": _template("[CLS]:0 A:0 [SEP]:0 B:1 [SEP]:1"),
        "special_tokens": {
            token: {"id": token, "ids": [ids[token]], "tokens": [token]}
            for token in ("[CLS]", "[SEP]")
        },
    }
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": _normalizer(options),
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": template,
        "decoder": {"type": "WordPiece", "prefix": PREFIX, "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": PREFIX,
            "max_input_chars_per_word": MAX_WORD_LENGTH,
            "vocab": ids,
        },
    }
    return json.dumps(document, ensure_ascii=False, indent=1)


def _template(spelled: str) -> list[dict]:
    parts = []
    for part in spelled.split():
        name, _, segment = part.partition(":")
        kind = "Sequence" if name in ("A", "B") else "SpecialToken"
        parts.append({kind: {"id": name, "type_id": int(segment)}})
    return parts


def _normalizer(options: Options) -> dict:
    return {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": options.isolate_chinese,
        "strip_accents": options.strip_accents,
        "lowercase": options.lowercase,
    }


def added_token(i: int, token: str) -> dict:
    """Returns the entry of a special token in tokenizer.json."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False}
    return {"id": i, "content": token, **flags, "normalized": False, "special": True}


# ---- training ----


def train_pieces(
    texts: Iterable[str],
    vocab_size: int,
    options: Options,
) -> list[str]:
    """Returns `vocab_size` pieces: the specials, the characters, then the merges.

    Words that are too long are left out, and so are words with characters that are
    too rare for the vocabulary: the tokenizer makes them [UNK].
    """
    words = _count_words(texts, options)
    if not words:
        raise UserError("--tokenizer: the source has no words to train on")
    alphabet = _alphabet(words, vocab_size)
    words = {w: count for w, count in words.items() if alphabet.issuperset(w)}
    first = [*SPECIALS, *sorted(alphabet), *_continuations(words)]
    pieces = _merge(words, vocab_size, first)
    if len(pieces) < vocab_size:
        raise UserError(
            f"--tokenizer: the text has only {len(pieces)} different pieces, fewer "
            f"than the {vocab_size} asked for; ask for at most {len(pieces)}"
        )
    return pieces


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


def _alphabet(words: dict[str, int], vocab_size: int) -> frozenset[str]:
    """Returns the most frequent characters, the smaller first among equals."""
    counts: collections.Counter[str] = collections.Counter()
    for word, count in words.items():
        for character in word:
            counts[character] += count
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    kept = ranked[: vocab_size // _ALPHABET_SHARE]
    if sum(counts[character] for character in kept) < _COVERAGE * counts.total():
        raise UserError(
            f"--tokenizer: a vocabulary of {vocab_size} cannot hold the {len(counts)} "
            "different characters of the text; ask for a larger one"
        )
    return frozenset(kept)


def _continuations(words: Iterable[str]) -> list[str]:
    inner = set(itertools.chain.from_iterable(word[1:] for word in words))
    return [PREFIX + character for character in sorted(inner)]


def _merge(words: dict[str, int], vocab_size: int, first: list[str]) -> list[str]:
    model = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    model.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=_MIN_FREQUENCY,
        special_tokens=first,  # the only pieces whose numbers can be given
        continuing_subword_prefix=PREFIX,
        show_progress=False,
    )
    model.train_from_iterator(_repeated(words), trainer)
    return sorted(model.get_vocab(), key=model.get_vocab().__getitem__)


def _repeated(words: dict[str, int]) -> Iterator[str]:
    """Yields every word as often as it was counted; the trainer takes no counts."""
    most = 10_000  # words a text, so that no text is large
    for word, count in words.items():
        spaced = word + " "
        for done in range(0, count, most):
            yield spaced * min(most, count - done)
