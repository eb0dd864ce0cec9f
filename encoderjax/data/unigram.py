"""SentencePiece's unigram model: ALBERT's, XLNet's, XLM-R's, DeBERTa v2's and v3's.

A text is normalised, cut at white space, every word marked with ▁ at its start, and
each word split into the likeliest pieces. transformers has the normalisation of each
class wired in, before the map of the SentencePiece model or instead of it; ours is
the same, in training too, because a corpus must have the ids that an exported model
will be given.
"""

import base64
import collections
import dataclasses
import itertools
import json
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence

import tokenizers
from tokenizers import models

from encoderjax.data.sentencepiece_models import (
    read_sentencepiece,
    train_sentencepiece,
)
from encoderjax.data.tokenizer_families import VERBATIM, Family
from encoderjax.data.tokenizer_reading import (
    Beside,
    added_entries,
    check_entries,
    check_specials,
)
from encoderjax.data.unigram_cleaning import (
    CLEANINGS,
    CONFIG_NAMES,
    CONTRARY,
    MARK,
    Cleaning,
)
from encoderjax.errors import UserError

# A word that begins and ends with one of these has no influence on its neighbours.
# The library applies SentencePiece's map to whole grapheme clusters, and a combining
# mark makes one with the space before it. These scripts are known to have none.
_APART = "\x21-\x7e\u00a1-\u02ff\u0370-\u0482\u048a-\u058f\u2010-\u2027\u2030-\u205e"
_APART += (
    "\u20a0-\u20bf\u3001-\u3029\u3041-\u3096\u30a1-\u30fe\u4e00-\u9fff\uac00-\ud7a3"
)
_STANDS_APART = re.compile(f"[{_APART}](.*[{_APART}])?", re.DOTALL)

# ALBERT's code, which forgets the x, makes every other character a word's start.
_ENGLISH = re.compile("[A-Za-z" + re.escape('!"#$%&()*+,-./:;?@[\\]^_`{|}~€£') + "]+")


@dataclasses.dataclass(frozen=True)
class Unigram:
    """A vocabulary with the scores of its pieces.

    Attributes:
      pieces: entries and their log probabilities, in the order of the ids.
      charsmap: SentencePiece's compiled normalisation; empty for none.
      cleaning: None where the parts are not those of the family's class.
      around: the parts of tokenizer.json round the model.
      model: the bytes of the SentencePiece model; empty for none.
      added: the added tokens of tokenizer.json, for those that differ from the usual.
    """

    family: Family
    pieces: Sequence[tuple[str, float]]
    charsmap: bytes
    cleaning: Cleaning | None
    around: Mapping
    model: bytes = b""
    added: Sequence[dict] = ()

    @property
    def ids(self) -> dict[str, int]:
        """The vocabulary without the added tokens, in the order of the ids."""
        return {piece: i for i, (piece, _) in enumerate(self.pieces)}

    @property
    def lowercase(self) -> bool:
        """Whether capitals are made small."""
        return self.cleaning is not None and self.cleaning.lowercase

    def parts(self) -> dict:
        """Returns the parts of tokenizer.json that are this kind's."""
        model = {
            "type": "Unigram",
            "unk_id": self.ids[self.family.names["unk"]],
            "vocab": [list(piece) for piece in self.pieces],
            "byte_fallback": False,
        }
        return {**self.around, "model": model}

    def config(self) -> dict:
        """Returns the options of tokenizer_config.json."""
        if self.cleaning is None:
            return {}
        return {
            CONFIG_NAMES[name]: getattr(self.cleaning, name) != (name == CONTRARY)
            for name in self.cleaning.options
        }

    def files(self) -> dict[str, bytes]:
        """Returns the SentencePiece model, if there is one."""
        return {self.family.model_file or "": self.model} if self.model else {}

    def continues_word(self, piece: str) -> bool:
        """Says whether the piece is of English letters and begins no word.

        ALBERT's rule: punctuation and pieces with other characters than English
        letters are words of their own.
        """
        punctuation = len(piece) == 1 and not piece.isalpha()
        english = _ENGLISH.fullmatch(piece) is not None
        return english and not punctuation and not piece.startswith((MARK, "<"))

    def words(self, text: str) -> list[str] | None:
        """Returns the words of a text, which are split one by one."""
        if self.cleaning is None or not self.cleaning.prefix_space:
            return None
        return text.split()

    def word_in_text(self, word: str) -> str:
        """Returns what a word that is not the first is tokenised as."""
        return word

    def splits_apart(self, word: str) -> bool:
        """Says whether the word has no influence on the words beside it."""
        return _STANDS_APART.fullmatch(word) is not None

    def reaches_over(self, added: str) -> bool:
        """Says whether an added token of this spelling can be found across words."""
        return re.search(r"\s", added) is not None


def made(
    family: Family,
    pieces: Sequence[tuple[str, float]],
    charsmap: bytes,
    cleaning: Cleaning,
    model: bytes = b"",
    added: Sequence[dict] = (),
) -> Unigram:
    """Returns the tokenizer that the family's class would build."""
    around = cleaning.parts(charsmap)
    return Unigram(family, pieces, charsmap, cleaning, around, model, added)


def pieces_of_model(
    family: Family, pieces: Sequence[tuple[str, float]]
) -> list[tuple[str, float]]:
    """Returns the vocabulary that the family makes of a SentencePiece model's pieces.

    Special tokens that the model does not have are not in it: they are added tokens.
    """
    if not family.renumbers:
        return list(pieces)
    first, last = ([(name, 0.0) for name in ns] for ns in (family.first, family.last))
    return [*first, *pieces[3:], *last]


# ---- training ----


def train_unigram(
    texts: Iterable[str], vocab_size: int, family: Family, *, cased: bool = False
) -> Unigram:
    """Trains exactly `vocab_size` entries; one pass over `texts`.

    Args:
      cased: whether capitals and accents are kept, if the class lets one choose.
    """
    cleaning = CLEANINGS[family.name]
    if cased:
        cleaning = dataclasses.replace(cleaning, lowercase=False, strip_accents=False)
    words = _count_words(texts, cleaning)
    if not words:
        raise UserError("--tokenizer: the source has no words to train on")
    specials = ("<unk>", "<s>", "</s>") if family.renumbers else family.first
    beyond = len(family.first) + len(family.last) - len(specials)
    model = train_sentencepiece(
        words,
        vocab_size - beyond,
        specials=specials,
        unk=family.names["unk"],
        rule="identity" if cleaning.composed else "nmt_nfkc",
        beyond=beyond,
    )
    pieces = pieces_of_model(family, model.pieces)
    return made(family, pieces, model.charsmap, cleaning, model.proto)


def _count_words(texts: Iterable[str], cleaning: Cleaning) -> dict[str, int]:
    """Counts the words of the texts, cleaned up to SentencePiece's own map."""
    spaced: collections.Counter[str] = collections.Counter()
    for text in texts:
        spaced.update(text.split())
    library = tokenizers.Tokenizer(models.Unigram([("<unk>", 0.0)], 0))
    document = json.loads(library.to_str()) | cleaning.parts(b"")
    library = tokenizers.Tokenizer.from_str(json.dumps(document))
    normalise = library.normalizer.normalize_str if library.normalizer else str
    words: collections.Counter[str] = collections.Counter()
    for spelling, count in spaced.items():
        for word in normalise(spelling).split():
            words[word] += count
    return words


# ---- reading ----


def read_unigram_json(path: pathlib.Path, document: dict, beside: Beside) -> Unigram:
    """Reads a tokenizer.json; truncation and padding are dropped."""
    model = document["model"]
    pieces = [(piece, float(score)) for piece, score in model["vocab"]]
    check_entries(path, [piece for piece, _ in pieces])
    ids = {piece: i for i, (piece, _) in enumerate(pieces)}
    added = added_entries(path, document, ids)
    every = ids | {token["content"]: token["id"] for token in added}
    family = beside.family("unigram", every, path)
    check_specials(path, family, every)
    if model.get("unk_id") != ids.get(family.names["unk"]):
        raise UserError(
            f"{path}: unk_id is {model.get('unk_id')}, but {family.names['unk']} is "
            f"{ids.get(family.names['unk'])}"
        )
    around = {part: document.get(part) for part in _AROUND}
    charsmap = _charsmap(around["normalizer"])
    if beside.is_wired(family):
        cleaning = _wired(family, beside)
        around = cleaning.parts(charsmap)
    else:
        cleaning = _recognised(family, around, charsmap)
    usual = family.first.index(family.names["unk"])  # wired in, too
    if cleaning is None or model["unk_id"] != usual:
        cleaning, family = None, dataclasses.replace(family, hf_class=VERBATIM)
    proto = _model_beside(path, family, pieces)
    return Unigram(family, pieces, charsmap, cleaning, around, proto, added)


_AROUND = ("normalizer", "pre_tokenizer", "decoder")


def read_unigram_model(path: pathlib.Path, beside: Beside) -> Unigram:
    """Reads a SentencePiece model as it was published.

    Symbols that SentencePiece's user defined (ALBERT's brackets and stops) stay
    pieces. transformers makes added tokens of them where it finds the model alone,
    and then marks what follows them as a new word; it does not where there is a
    tokenizer.json, and neither did the code that the models were trained with.
    """
    model = read_sentencepiece(path)
    ids = {piece: i for i, (piece, _) in enumerate(model.pieces)}
    named = {name: -1 for name in _NAMED_BY_FILE.get(path.name, ())}
    family = beside.family("unigram", named | ids, path)
    pieces = pieces_of_model(family, model.pieces)
    entries = [piece for piece, _ in pieces]
    check_entries(path, entries)
    check_specials(path, family, {*entries, *family.last})
    return made(family, pieces, model.charsmap, _wired(family, beside), model.proto)


# Special tokens that are not in the model itself, but go with its file's name.
_NAMED_BY_FILE = {
    "sentencepiece.bpe.model": ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
    "spm.model": ("[MASK]",),
}


def _wired(family: Family, beside: Beside) -> Cleaning:
    """Returns what the class makes of the options of tokenizer_config.json."""
    usual = CLEANINGS[family.name]
    names = {name: CONFIG_NAMES[name] for name in usual.options}
    given = {
        name: bool(beside.config[there]) != (name == CONTRARY)
        for name, there in names.items()
        if there in beside.config
    }
    return dataclasses.replace(usual, **given)


def _recognised(family: Family, around: Mapping, charsmap: bytes) -> Cleaning | None:
    """Returns how text is cleaned if that is one of the ways of the class."""
    usual = CLEANINGS[family.name]
    for values in itertools.product((False, True), repeat=len(usual.options)):
        given = dict(zip(usual.options, values, strict=True))
        cleaning = dataclasses.replace(usual, **given)
        if cleaning.parts(charsmap) == around:
            return cleaning
    return None


def _charsmap(normalizer: dict | None) -> bytes:
    steps = (normalizer or {}).get("normalizers", [normalizer or {}])
    for step in steps:
        if mapped := step.get("precompiled_charsmap"):
            return base64.b64decode(mapped)
    return b""


def _model_beside(
    path: pathlib.Path, family: Family, pieces: Sequence[tuple[str, float]]
) -> bytes:
    """Returns the SentencePiece model of a folder, to be saved with the rest."""
    beside = path.parent / (family.model_file or "")
    if not beside.is_file():
        return b""
    model = read_sentencepiece(beside)
    own = [piece for piece, _ in pieces_of_model(family, model.pieces)]
    if own != [piece for piece, _ in pieces]:
        raise UserError(
            f"{beside} has other pieces than {path.name}; delete the one that does "
            "not belong to the folder"
        )
    return model.proto
