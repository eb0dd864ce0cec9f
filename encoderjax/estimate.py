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
    config, experiment = stage.experiment.config, stage.experiment
    mesh = builder.mesh
    state, parts = builder.state_bytes(), config.optimizer.microbatches
    rows = builder.rows(stage) / batch_shards(mesh) / parts
    tokens, split = rows * config.data.length, mesh.shape["model"]
    slots = max(getattr(o, "max_predictions", None) or 0 for o in experiment.objectives)

    kept = in_work = 0.0
    for encoder in _encoders(stage):
        kept += encoder.num_blocks * _kept(encoder, config.compute.remat, stage, split)
        in_work = max(in_work, _whole_layer(encoder, config.data.length, split))
    # Scores and their gradient, in 32 bits, unless they are made in chunks.
    scores = rows * slots * experiment.encoder.vocab_size / split
    scores = 8 * min(scores, MANY_SCORES)
    # With microbatches, the sum and what is added to it.
    gradients = state["parameters"] * (2 if parts > 1 else 1)
    memory = state | {
        "gradients": gradients,
        "activations": int(kept * tokens),
        "temporaries": int(in_work * tokens + scores),
    }
    total = sum(memory.values())
    exchanged = _exchanged(builder, stage, tokens, split, parts)
    return Compiled(None if total < available else total, memory, exchanged)


def _encoders(stage: Stage) -> list[EncoderConfig]:
    """Returns the encoders that are trained."""
    generator = stage.experiment.generator
    return [stage.experiment.encoder] + ([generator.config] if generator else [])


def _kept(config: EncoderConfig, remat: str, stage: Stage, split: int) -> float:
    """Returns the bytes a token that a layer keeps for its gradients."""
    c, gates = config, 2 if config.mlp == "gated" else 1
    if remat == "blocks":
        return 2 * c.width
    if remat == "dots":  # the input, and what the six or seven products give
        inside = (3 * c.width + gates * c.mlp_width) / split
        return 2 * (3 * c.width + inside)
    return _whole_layer(config, stage.experiment.config.data.length, split)


def _whole_layer(config: EncoderConfig, length: int, split: int) -> float:
    """Returns the bytes a token of all that a layer makes.

    States in 16 bits: two of the width, queries, keys, values and what they find; four
    of the feed-forward width (six where it is gated). Two norms keep three states each
    in 32 bits. Scores have 32 bits and weights 16, where no kernel is used.
    """
    c, gates = config, 2 if config.mlp == "gated" else 1
    inside = 4 * c.width + (2 + 2 * gates) * c.mlp_width
    keys = length if c.window is None else min(length, 2 * c.window)
    if c.attention_dropout_rate == 0 and c.positions in ("learned", "rope"):
        keys = 0  # a kernel holds no scores
    return (
        2 * (2 * c.width + inside / split)
        + 24 * c.width
        + (6 * c.num_heads * keys / split)
    )


def _exchanged(
    builder: Builder, stage: Stage, tokens: float, split: int, parts: int
) -> tuple[Collective, ...]:
    """Returns what is summed or gathered along each axis in a step."""
    mesh = builder.mesh.shape
    layers, others = 0, 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(builder.shapes.params):
        if "layers" in jax.tree_util.keystr(path):
            layers += leaf.size
        else:
            others += leaf.size
    # Gradients of layers are summed in 16 bits, of tables and heads in 32.
    gradients = (2 * layers + 4 * others) / split
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
