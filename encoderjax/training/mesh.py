"""The mesh of devices, and where parameters and batches lie on it.

Axes: `data` repeats parameters, `fsdp` splits parameters and optimiser state, both
split the batch; `model` splits heads, feed-forward width and vocabulary.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from encoderjax.errors import UserError

PyTree = Any
AXES = ("data", "fsdp", "model")
BATCH_SPEC = PartitionSpec(("data", "fsdp"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """Number of devices along each axis; -1 = all that remain, for one of them."""

    data: int = -1
    fsdp: int = 1
    model: int = 1

    def __post_init__(self):
        for axis in AXES:
            if getattr(self, axis) < 1 and getattr(self, axis) != -1:
                raise UserError(
                    f"mesh.{axis}={getattr(self, axis)} must be at least 1, or -1 for "
                    "all remaining devices"
                )
        if list(dataclasses.astuple(self)).count(-1) > 1:
            raise UserError(f"mesh: only one axis may be -1, not {self}")


def make_mesh(config: MeshConfig, devices: Sequence[Any] | None = None) -> Mesh:
    """Returns the mesh over the given devices, by default all there are."""
    devices = jax.devices() if devices is None else devices
    shape = tuple(sizes_of(config, len(devices)).values())
    # Auto axes: the compiler spreads shardings from the ones that are stated.
    return jax.make_mesh(shape, AXES, axis_types=(AxisType.Auto,) * 3, devices=devices)


def sizes_of(config: MeshConfig, devices: int) -> dict[str, int]:
    """Returns how many of the devices lie along each axis."""
    sizes = {axis: getattr(config, axis) for axis in AXES}
    given = math.prod(size for size in sizes.values() if size != -1)
    wildcard = next((axis for axis, size in sizes.items() if size == -1), None)
    if wildcard is not None:
        sizes[wildcard] = max(1, devices // given)
    if math.prod(sizes.values()) != devices:
        wanted = ", ".join(f"mesh.{axis}={getattr(config, axis)}" for axis in AXES)
        number = given if wildcard is None else f"a multiple of {given}"
        raise UserError(
            f"{wanted} needs {number} devices, but there are {devices}; set one axis "
            "to -1 to use what is there, and let the others divide it"
        )
    return sizes


def platform_of(mesh: Mesh) -> str:
    """Returns the kind of the devices: `cpu`, `gpu` or `tpu`."""
    return mesh.devices.flat[0].platform


def batch_shards(mesh: Mesh) -> int:
    """Returns into how many parts the batch is split."""
    return mesh.shape["data"] * mesh.shape["fsdp"]


def filled_rows(batch_size: int, mesh: Mesh, microbatches: int) -> int:
    """Returns how many rows devices and microbatches share: at least `batch_size`."""
    least = batch_shards(mesh) * microbatches
    return -(-batch_size // least) * least


# Every parameter matches exactly one row. The axes are those of the trailing
# dimensions; stacked layers have one more in front, which is never split.
RULES: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    (r"token_embed/embedding$", ("model", "fsdp")),
    (r"encoder/(position|segment|distance|language)_embed/embedding$", (None, "fsdp")),
    (r"encoder/query_embed$", (None,)),
    (r"encoder/embed_project/kernel$", (None, "fsdp")),
    (r"encoder/conv/conv/kernel$", (None, "fsdp", None)),
    (r"attention/(query|key|value|position_\w+)/kernel$", ("fsdp", "model", None)),
    (r"attention/(query|key|value|position_\w+)/bias$", ("model", None)),
    (r"attention/(content|position|segment)_bias$", ("model", None)),
    (r"attention/segment_embed$", (None, "model", None)),
    (r"attention/distance_embed/embedding$", (None, None)),
    (r"attention/out/kernel$", ("model", None, "fsdp")),
    (r"mlp/(up|gate)/kernel$", ("fsdp", "model")),
    (r"mlp/(up|gate)/bias$", ("model",)),
    (r"mlp/down/kernel$", ("model", "fsdp")),
    (r"pooler/kernel$", ("fsdp", None)),
    # The input of the boundary head is two states and a place: an odd width.
    (r"heads/sbo/dense/kernel$", (None, "fsdp")),
    (r"heads/(?!sbo/dense)\w+/(dense|second_dense|score)/kernel$", ("fsdp", None)),
    (r"task/(dense|score)/kernel$", ("fsdp", None)),
    (r"task/layer_(weights|scale)$", (None,)),
    (r"heads/(sbo/place|mlm/offset)_embed/embedding$", (None, None)),
    (r"heads/(mlm|sbo|missing)/bias$", ("model",)),
    (
        r"(attention/out|mlp/down|pooler|dense|score|norm|embed_project|conv)/bias$",
        (None,),
    ),
    (r"norm/scale$", (None,)),
)


def partition_spec(path: str, shape: tuple[int, ...]) -> PartitionSpec:
    """Returns how a parameter, or its optimiser state, is split; scalars are not."""
    if not shape:
        return PartitionSpec()
    hits = [axes for pattern, axes in RULES if re.search(pattern, path)]
    if len(hits) != 1:
        raise ValueError(
            f"parameter {path!r} matches {len(hits)} sharding rules, expected 1; edit "
            "RULES in encoderjax/training/mesh.py"
        )
    return PartitionSpec(*(None,) * (len(shape) - len(hits[0])), *hits[0])


def parameter_shardings(mesh: Mesh, shapes: PyTree) -> PyTree:
    """Returns the sharding of parameters, or of what an optimiser keeps of them.

    Moments lie like their parameters, since their paths end with the same names.
    """

    def sharding(name: str, leaf) -> NamedSharding:
        spec = partition_spec(name, leaf.shape)
        for dim, axis in enumerate(spec):
            if axis is not None and leaf.shape[dim] % mesh.shape[axis]:
                raise UserError(
                    f"mesh.{axis}={mesh.shape[axis]} does not divide dimension {dim} "
                    f"({leaf.shape[dim]}) of {name}; choose another mesh"
                    + _padding_advice(name, leaf.shape[dim], mesh.shape[axis])
                )
        return NamedSharding(mesh, spec)

    return map_with_names(sharding, shapes)


def _padding_advice(name: str, size: int, parts: int) -> str:
    if "token_embed" not in name and not re.search(r"heads/\w+/bias$", name):
        return ""
    return f", or pad the vocabulary: model.vocab_size={-(-size // parts) * parts}"


def map_with_names(
    function: Callable[..., Any], tree: PyTree, *others: PyTree
) -> PyTree:
    """Maps `function(name, *leaves)` over trees; names are paths such as `a/b/c`."""
    name = lambda path: jax.tree_util.keystr(path, simple=True, separator="/")
    return jax.tree_util.tree_map_with_path(
        lambda path, *leaves: function(name(path), *leaves), tree, *others
    )


class BatchPlacement:
    """Which rows of the global batch this process feeds, and how they are placed.

    The rows need not be neighbours: on a pod the mesh follows the wiring, not the
    hosts.

    Attributes:
      rows: their numbers in the global batch, ascending.
      share: of the global batch that they are. Where `model` spans processes, several
        feed the same rows.
    """

    def __init__(self, mesh: Mesh, batch_size: int):
        self.batch_size = batch_size
        self.sharding = NamedSharding(mesh, BATCH_SPEC)
        spans = self.sharding.addressable_devices_indices_map((batch_size,)).values()
        parts = [np.arange(batch_size)[span] for span in spans if span is not None]
        self.rows = np.unique(np.concatenate(parts))
        self.share = len(self.rows) / batch_size

    def put(self, batch: dict[str, np.ndarray]) -> dict[str, jax.Array]:
        """Returns the global batch, of which this process gives `rows`."""
        return {name: self._put(value) for name, value in batch.items()}

    def _put(self, value: np.ndarray) -> jax.Array:
        def part(index: Any) -> np.ndarray:
            first, stop, _ = index[0].indices(self.batch_size)
            # The rows of one device are neighbours, here as in the global batch.
            place = np.searchsorted(self.rows, first)
            return value[place : place + stop - first]

        shape = (self.batch_size, *value.shape[1:])
        return jax.make_array_from_callback(shape, self.sharding, part)
