"""What the corpus and the objectives decide of a model."""

import dataclasses
from collections.abc import Iterable

from encoderjax.config import ModelConfig, RunConfig
from encoderjax.data.corpora import Corpora
from encoderjax.errors import UserError
from encoderjax.models.config import EncoderConfig
from encoderjax.models.heads import HEADS, PairHead
from encoderjax.objectives import Objective, head_names


def fitted_encoder(
    encoder: EncoderConfig,
    config: RunConfig,
    corpus: Corpora,
    origin: ModelConfig | None,
) -> EncoderConfig:
    """Returns the encoder with the corpus' vocabulary, and a pooler if it is read.

    Args:
      encoder: of the run, as far as its config says.
      config: of the run.
      corpus: that it reads.
      origin: the model that it starts from, if any.
    """
    size = corpus.tokenizer.vocabulary.size
    encoder = sized_encoder(encoder, config, size, f"corpus {corpus.name}", origin)
    return _reading(encoder, corpus, settled=config.model)


def sized_encoder(
    encoder: EncoderConfig,
    config: RunConfig,
    size: int,
    whose: str,
    origin: ModelConfig | None,
) -> EncoderConfig:
    """Returns the encoder for a vocabulary of `size`, with a pooler if it is read.

    `whose` vocabulary it is, is said in messages.
    """
    rows = _vocabulary_rows(config, size, whose, origin)
    encoder = dataclasses.replace(encoder, vocab_size=rows)
    if "pooler" in config.model.changes:
        return encoder
    trained = origin is not None and origin.encoder.pooler
    pooler = trained or _reads_pooler(config.objectives, encoder)
    return dataclasses.replace(encoder, pooler=pooler)


def _vocabulary_rows(
    config: RunConfig, size: int, whose: str, origin: ModelConfig | None
) -> int:
    """Returns the rows of the token table: at least the vocabulary of the corpus.

    Some tables have more rows than their tokenizer has tokens; those stay.
    """
    if "vocab_size" not in config.model.changes:
        if origin is None or config.init_vocabulary == "replace":
            return size
        return max(size, origin.encoder.vocab_size)
    rows = config.model.changes["vocab_size"]
    if rows < size:
        raise UserError(
            f"model.vocab_size={rows} is smaller than the vocabulary of {whose}, "
            f"{size}; set it to {size} or more, or None"
        )
    return rows


def _reading(
    encoder: EncoderConfig, corpus: Corpora, settled: ModelConfig
) -> EncoderConfig:
    """Returns the encoder as it reads the rows of a corpus.

    Where positions are counted over what is not padding, the tokenizer says what that
    is, unless the model's table was trained with another.
    """
    pad_id = int(corpus.tokenizer.vocabulary.pad_id)
    if encoder.position_pad_id not in (None, pad_id):
        if settled.family is None or "position_pad_id" in settled.changes:
            raise UserError(
                f"model.position_pad_id={encoder.position_pad_id} is not the padding "
                f"of corpus {corpus.name}, {pad_id}: positions would be miscounted; "
                "prepare it with a tokenizer whose padding has that id"
            )
        encoder = dataclasses.replace(encoder, position_pad_id=pad_id)
    layout = corpus.tokenizer.layout
    most = max(layout.second, layout.final or 0, layout.pad) + 1
    has_table = encoder.num_segments > 1 and encoder.positions != "two_stream"
    if has_table and most > encoder.num_segments:
        raise UserError(
            f"model.num_segments={encoder.num_segments} is less than the {most} of the "
            f"tokenizer of corpus {corpus.name}; set it to {most}, to 0 for a model "
            "that does not read segments, or prepare with another tokenizer"
        )
    return encoder


def _reads_pooler(objectives: Iterable[Objective], encoder: EncoderConfig) -> bool:
    """Says whether an objective trains the pooler; else a run has none."""
    heads = head_names(objectives)
    pairs = any(HEADS[name] is PairHead for name in heads)
    return pairs and encoder.pair_head == "pooled"
