"""Arithmetic of a model by formula, since compilers count a scanned layer once.

Matrix products only, two operations for each multiply-add, of one row and forward;
training costs `TRAINING` times as much. Padding counts, since it is computed. Layers
that share their weights still compute each for itself. What is projected once for a
batch, such as a table of distances, is left out, and so is what a compiler makes again
to save memory.
"""

from encoderjax.models.config import EncoderConfig
from encoderjax.models.heads import BOUNDARY_WIDTH

TRAINING = 3.0  # twice as much backward as forward


def encoder_flops(
    config: EncoderConfig, length: int, *, queries: int = 0, memory: int = 0
) -> float:
    """Returns the operations of an encoder, without heads.

    Args:
      config: of the encoder.
      length: tokens of the row.
      queries: places of a second stream.
      memory: states of the row before that are looked at as well.
    """
    c, width = config, config.width
    rows = length + queries
    in_layers = c.num_blocks * (
        rows * (2 * width**2 + _mlp(c)) + (length + memory) * 2 * width**2
    )
    for block in range(c.num_blocks):
        in_layers += rows * _attention(c, length, memory, c.sees_all(block))
    embedding = 0 if c.embed_width is None else length * c.embed_width * width
    embedding += length * c.conv_width * width**2
    pooler = width**2 if c.pooler else 0
    return 2.0 * (embedding + in_layers + pooler)


def vocabulary_flops(config: EncoderConfig, length: int, places: int) -> float:
    """Returns the operations of the scores at some places of a row of `length`."""
    c = config
    transform = c.width * c.table_width if c.mlm_head == "transform" else 0
    scores = places * (transform + c.table_width * c.vocab_size)
    # The mask decoder looks at all states, from the places that are predicted.
    decoder = c.mask_decoder_layers * (
        places * (2 * c.width**2 + _mlp(c) + _attention(c, length, 0, True))
        + length * 2 * c.width**2
    )
    return 2.0 * (scores + decoder)


def detection_flops(config: EncoderConfig, length: int) -> float:
    """Returns the operations of telling replaced tokens, at every place."""
    return 2.0 * length * (config.width**2 + config.width)


def boundary_flops(config: EncoderConfig, places: int) -> float:
    """Returns the operations of scores from the two ends of spans."""
    c = config
    dense = (2 * c.width + BOUNDARY_WIDTH) * c.width + c.width * c.table_width
    return 2.0 * places * (dense + c.table_width * c.vocab_size)


def _mlp(config: EncoderConfig) -> int:
    """Returns the multiply-adds of the feed-forward block for one token."""
    return (3 if config.mlp == "gated" else 2) * config.width * config.mlp_width


def _attention(config: EncoderConfig, length: int, memory: int, sees_all: bool) -> int:
    """Returns the multiply-adds of one query: scores and their weighted sum."""
    c, keys = config, length + memory
    if not sees_all and c.window is not None:
        keys = min(length, 2 * c.window)
    # Each is scored against all distances.
    by_distance = distance_tables(c) * (2 * length + memory) * c.width
    return 2 * keys * c.width + by_distance


def distance_tables(config: EncoderConfig) -> int:
    """Returns how many tables of distances queries or keys are multiplied by."""
    tables = {"two_stream": 1, "relative_key": 1}
    tables["disentangled"] = len(config.position_terms)
    return tables.get(config.positions, 0)
