"""Arithmetic of a model by formula, since compilers count a scanned layer once."""

from encoderjax.models.encoder import EncoderConfig


def train_flops_per_row(config: EncoderConfig, length: int, predictions: int) -> float:
    """Returns the floating-point operations of training on one row.

    Matrix products only: two operations for each multiply-add, and twice as much
    backward as forward. Padding counts, since it is computed.
    """
    c = config
    projections = 4 * c.width**2 + 2 * c.width * c.mlp_width
    attention = 2 * length * c.width  # scores and their weighted sum
    layers = c.num_layers * length * (projections + attention)
    head = predictions * (c.width**2 + c.width * c.vocab_size)
    pooler = c.width**2 if c.pooler else 0
    return 3.0 * 2.0 * (layers + head + pooler)
