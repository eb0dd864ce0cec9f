"""Memory and exchange of a training step by formula, for chips of any kind.

A compiler knows better, where there is one for the chip; docs/scaling.md compares the
two. Kept for the gradients is what `compute.remat` says; the layer in work needs
everything of its own.

Shapes: D width, F feed-forward width, H heads, L length, V vocabulary.
"""

import jax
from jax.sharding import AbstractMesh, AxisType

from encoderjax.compiling import Builder, Compiled
from encoderjax.models.config import EncoderConfig
from encoderjax.models.dot_product import BLOCK
from encoderjax.models.flops import distance_tables
from encoderjax.objectives.vocabulary_loss import MANY_SCORES
from encoderjax.phases import Stage
from encoderjax.training.hlo import Array, Collective
from encoderjax.training.mesh import AXES, batch_shards, sizes_of


def abstract_builder(stages: tuple[Stage, ...], devices: int) -> Builder:
    """Returns the shapes of a run on so many devices of no kind."""
    sizes = sizes_of(stages[0].experiment.config.mesh, devices)
    mesh = AbstractMesh(tuple(sizes.values()), AXES, axis_types=(AxisType.Auto,) * 3)
    return Builder.on("tpu", stages, mesh)  # in 16 bits, like any accelerator


def by_formula(builder: Builder, stage: Stage, available: int) -> Compiled:
    """Returns what a phase takes on a device, in the form of what was compiled.

    Args:
      builder: of the run, on its mesh.
      stage: the phase.
      available: bytes of the device.
    """
    config = stage.experiment.config
    mesh, encoders = builder.mesh, _encoders(stage)
    state, parts = builder.state_bytes(), config.optimizer.microbatches
    rows = builder.rows(stage) / batch_shards(mesh) / parts
    length, split = config.data.length, mesh.shape["model"]
    tokens = rows * length

    kept = sum(
        encoder.num_blocks * _kept(encoder, config.compute.remat, length, split)
        for encoder in encoders
    )
    in_work = max(
        _states(encoder, split) + _scores_in_work(encoder, length, split)
        for encoder in encoders
    )
    # With microbatches, the sum and what is added to it.
    gradients = state["parameters"] * (2 if parts > 1 else 1)
    memory = state | {
        "gradients": gradients,
        "activations": int(kept * tokens),
        "temporaries": int(
            in_work * tokens + _predicted(stage, rows, split) + _copies(builder, stage)
        ),
    }
    total = sum(memory.values())
    exchanged = _exchanged(builder, stage, tokens, split, parts)
    return Compiled(None if total < available else total, memory, exchanged)


def _encoders(stage: Stage) -> list[EncoderConfig]:
    """Returns the encoders that are trained."""
    generator = stage.experiment.generator
    return [stage.experiment.encoder] + ([generator.config] if generator else [])


def _kept(config: EncoderConfig, remat: str, length: int, split: int) -> float:
    """Returns the bytes a token that a layer keeps for its gradients."""
    c, gates = config, 2 if config.mlp == "gated" else 1
    if remat == "blocks":
        return 2 * c.width
    if remat == "dots":  # the input, and what the six or seven products give
        of_heads = 4 if _has_kernel(c) else 3  # a kernel keeps what it found, too
        inside = (of_heads * c.width + gates * c.mlp_width) / split
        return 2 * (3 * c.width + inside)
    # Scores of blocks of queries are made again.
    scores = 0.0 if length >= 2 * BLOCK else _scores_in_work(c, length, split)
    return _states(c, split) + scores


def _states(config: EncoderConfig, split: int) -> float:
    """Returns the bytes a token of the states that a layer makes.

    In 16 bits: two of the width, queries, keys, values and what they find; four of the
    feed-forward width (six where it is gated). Two norms keep three states each in 32.
    """
    c, gates = config, 2 if config.mlp == "gated" else 1
    inside = 4 * c.width + (2 + 2 * gates) * c.mlp_width
    return 2 * (2 * c.width + inside / split) + 24 * c.width


def _scores_in_work(config: EncoderConfig, length: int, split: int) -> float:
    """Returns the bytes a token of the scores that exist at once.

    32 bits and weights of 16, of a block of queries with all keys; those by distance
    have one more for each query, and are made before and after they are put in place.
    """
    c = config
    if _has_kernel(c):
        return 0.0
    queries = min(length, BLOCK)
    keys = length + (c.memory_length if c.positions == "two_stream" else 0)
    if c.window is not None:
        keys = min(length, 2 * c.window)
    by_distance = 8 * distance_tables(c) * (keys + queries)
    return c.num_heads * queries * (6 * keys + by_distance) / length / split


def _has_kernel(config: EncoderConfig) -> bool:
    """Says whether attention runs in a kernel, which holds no scores."""
    c = config
    return c.attention_dropout_rate == 0 and c.positions in ("learned", "rope")


def _predicted(stage: Stage, rows: float, split: int) -> float:
    """Returns the bytes of the vocabulary's scores and their gradient, in 32 bits.

    Many are made in chunks.
    """
    objectives, encoder = stage.experiment.objectives, stage.experiment.encoder
    slots = max(getattr(o, "max_predictions", None) or 0 for o in objectives)
    return 8 * min(rows * slots * encoder.vocab_size / split, MANY_SCORES)


def _copies(builder: Builder, stage: Stage) -> float:
    """Returns the bytes of what is held a second time.

    The gradient of the table of tokens is made at both of its ends. Where kinds of
    layers alternate, the weights of each kind are taken out of the stack. What is
    carried from step to step is cut into microbatches and joined again.
    """
    state, encoder = builder.state_bytes(), stage.experiment.encoder
    layers, others = _weights(builder)
    each = state["parameters"] / (layers + others)  # bytes of a weight, split or not
    copies = encoder.vocab_size * encoder.table_width * each
    if encoder.window is not None:
        copies += layers * each
    carried = 2 if stage.experiment.config.optimizer.microbatches > 1 else 1
    return copies + carried * state.get("memory", 0)


def _weights(builder: Builder) -> tuple[int, int]:
    """Returns how many there are in layers, and in tables and heads."""
    layers, others = 0, 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(builder.shapes.params):
        if "layers" in jax.tree_util.keystr(path):
            layers += leaf.size
        else:
            others += leaf.size
    return layers, others


def _exchanged(
    builder: Builder, stage: Stage, tokens: float, split: int, parts: int
) -> tuple[Collective, ...]:
    """Returns what is summed or gathered along each axis in a step."""
    mesh = builder.mesh.shape
    layers, others = _weights(builder)
    # Gradients of layers are summed in 16 bits, of tables, heads and layers that share
    # their weights in 32; those of two streams each by itself.
    shared = stage.experiment.encoder.sharing != "none"
    twice = shared or stage.experiment.encoder.positions == "two_stream"
    gradients = ((4 if twice else 2) * layers + 4 * others) / split
    blocks = sum(c.num_blocks * c.width for c in _encoders(stage))
    sizes = {
        ("all-reduce", "data"): gradients / mesh["fsdp"],
        ("all-gather", "fsdp"): 2 * gradients,  # forward and backward
        ("reduce-scatter", "fsdp"): gradients,
        ("all-reduce", "model"): 4 * 2 * tokens * blocks,  # twice a layer and way
    }
    return tuple(
        Collective(kind, (axis,), (Array("u8", (int(size),)),), parts, "by formula")
        for (kind, axis), size in sizes.items()
        if mesh[axis] > 1
    )
