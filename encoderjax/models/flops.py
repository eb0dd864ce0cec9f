"""Arithmetic of a model by formula, since compilers count a scanned layer once."""

from encoderjax.models.config import EncoderConfig


def train_flops_per_row(config: EncoderConfig, length: int, predictions: int) -> float:
    """Returns the floating-point operations of training on one row.

    Matrix products only: two operations for each multiply-add, and twice as much
    backward as forward. Padding counts, since it is computed. Layers that share their
    weights still compute each for itself.
    """
    c = config
    mlp = (3 if c.mlp == "gated" else 2) * c.width * c.mlp_width
    layers = c.num_blocks * length * (4 * c.width**2 + mlp)
    for block in range(c.num_blocks):
        layers += length * _attention(c, length, c.sees_all(block))
    width = c.table_width
    embedding = 0 if c.embed_width is None else length * width * c.width
    embedding += length * c.conv_width * c.width**2
    transform = c.width * width if c.mlm_head == "transform" else 0
    head = predictions * (transform + width * c.vocab_size)
    decoder = c.mask_decoder_layers * (
        predictions * (2 * c.width**2 + mlp + _attention(c, length, True))
        + 2 * length * c.width**2
    )
    pooler = c.width**2 if c.pooler else 0
    return 3.0 * 2.0 * (embedding + layers + head + decoder + pooler)


def _attention(config: EncoderConfig, length: int, sees_all: bool) -> int:
    """Returns the multiply-adds of one query: scores and their weighted sum."""
    c = config
    keys = length if sees_all or c.window is None else min(length, 2 * c.window)
    # Each is scored against all distances; those are projected once for the batch.
    tables = {"two_stream": 1, "relative_key": 1, "disentangled": len(c.position_terms)}
    by_distance = tables.get(c.positions, 0) * 2 * length * c.width
    return 2 * keys * c.width + by_distance
