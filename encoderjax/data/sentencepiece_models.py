"""Files of SentencePiece's unigram models: reading one, and training one.

The trainer builds a suffix array over its sentences, and stalls where blocks of them
repeat. Since pieces do not reach over white space, it is given words instead, sorted
and with their counts, so that no repeat is longer than a word. Expectation and
maximisation are then those of the whole text. Only the seed pieces are chosen by the
words as listed; so a frequent word is listed twice, with half its count.

The trainer adds up its expectations by thread. The number of threads is fixed here,
so that a machine's number of cores does not change the sums.
"""

import dataclasses
import io
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence

import sentencepiece
from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2

from encoderjax.errors import UserError

_THREADS = 8
_LISTED = 2  # times; a word that is listed once is no repeat, and so no seed
_LONGEST = 256  # characters of a "word"; more than a piece's 16 is never needed
_UNIGRAM = 1  # TrainerSpec.ModelType


@dataclasses.dataclass(frozen=True)
class SentencePieceModel:
    """What a .model file holds.

    Attributes:
      proto: the bytes of the file.
      pieces: entries and scores, in the order of the ids.
      charsmap: the compiled normalisation; empty for none.
    """

    proto: bytes
    pieces: Sequence[tuple[str, float]]
    charsmap: bytes


def parse_sentencepiece(proto: bytes, source: str) -> SentencePieceModel:
    """Reads the bytes of a .model; `source` is named in errors."""
    model = sentencepiece_model_pb2.ModelProto()  # pyright: ignore
    try:
        model.ParseFromString(proto)
    except DecodeError:
        model.Clear()
    # The pieces come first in the file: without the rest it was cut off.
    if not (model.pieces and model.HasField("normalizer_spec")):
        raise UserError(
            f"{source} is not a whole SentencePiece model ({len(proto):,} bytes); "
            "fetch it again"
        )
    if model.trainer_spec.model_type != _UNIGRAM:
        raise UserError(
            f"{source} is a SentencePiece model of another type than unigram; only "
            "unigram models can be loaded"
        )
    return SentencePieceModel(
        proto=proto,
        pieces=[(piece.piece, piece.score) for piece in model.pieces],
        charsmap=model.normalizer_spec.precompiled_charsmap,
    )


def read_sentencepiece(path: pathlib.Path) -> SentencePieceModel:
    """Reads a .model file."""
    return parse_sentencepiece(path.read_bytes(), str(path))


def train_sentencepiece(
    words: Mapping[str, int],
    num_pieces: int,
    *,
    specials: Sequence[str],
    unk: str,
    rule: str,
    beyond: int,
) -> SentencePieceModel:
    """Trains a model of exactly `num_pieces` pieces.

    Args:
      words: counts of words, without white space.
      specials: the pieces with the ids from 0 on, `unk` among them.
      rule: the name of SentencePiece's normalisation.
      beyond: entries of the vocabulary that are not in the model; for errors.
    """
    others = [name for name in specials if name != unk]
    written = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_listed(words),
            input_format="tsv",
            model_writer=written,
            model_type="unigram",
            vocab_size=num_pieces,
            unk_id=specials.index(unk),
            unk_piece=unk,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            control_symbols=others,
            normalization_rule_name=rule,
            num_threads=_THREADS,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise _training_error(str(error), beyond) from error
    return parse_sentencepiece(written.getvalue(), "the trained model")


def _listed(words: Mapping[str, int]) -> Iterator[str]:
    """Yields lines of a word and its count."""
    for word in sorted(words):
        times = min(words[word], _LISTED)
        for i in range(times):
            count = words[word] // times + (i < words[word] % times)
            for first in range(0, len(word), _LONGEST):
                yield f"{word[first : first + _LONGEST]}\t{count}"


def _training_error(message: str, beyond: int) -> Exception:
    if found := re.search(r"size too high \((\d+)\).* <= (\d+)", message):
        asked, most = (int(number) + beyond for number in found.groups())
        return UserError(
            f"--tokenizer: the text has only {most} different pieces, fewer than the "
            f"{asked} asked for; ask for at most {most}"
        )
    if found := re.search(r"smaller than required_chars. (\d+) vs (\d+)", message):
        asked, least = (int(number) + beyond for number in found.groups())
        return UserError(
            f"--tokenizer: a vocabulary of {asked} cannot hold the {least} characters "
            "and special tokens of the text; ask for a larger one"
        )
    return RuntimeError(message)
