"""The tensors of a Hugging Face folder, row by row of a family's names.

A row stands for one tensor, or for one of each layer (`models/families/names.py`).
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from encoderjax.errors import UserError
from encoderjax.interop.layouts import LAYOUTS, Layout
from encoderjax.interop.weights import tree_of
from encoderjax.models.config import EncoderConfig
from encoderjax.models.families.names import Names, Row


@dataclasses.dataclass(frozen=True)
class Tensor:
    """One tensor there and its place here.

    Attributes:
      name: the name there.
      paths: where its parts are here, with slashes.
      entry: which entry of the stacks at `paths` it is, or None for the whole.
      layout: how the parts make the tensor.
    """

    name: str
    paths: tuple[str, ...]
    entry: int | None
    layout: Layout

    def _shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> list[tuple[int, ...]]:
        skipped = 0 if self.entry is None else 1
        return [shapes[path][skipped:] for path in self.paths]

    def shape_there(self, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
        """Returns the shape there, of the leaves' shapes here."""
        return self.layout.shape(self._shapes(shapes))

    def to_hf(self, leaves: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns the tensor there of the leaves here."""
        whole = self.entry is None
        parts = [
            leaves[path] if whole else leaves[path][self.entry] for path in self.paths
        ]
        return self.layout.join(parts)

    def put(self, tensor: np.ndarray, leaves: Mapping[str, np.ndarray]) -> None:
        """Writes a tensor there to its place in the leaves here."""
        shapes = self._shapes({path: leaves[path].shape for path in self.paths})
        parts = self.layout.split(tensor, shapes)
        for path, part in zip(self.paths, parts, strict=True):
            leaves[path][... if self.entry is None else self.entry] = part


def expand_rows(
    rows: Iterable[Row], config: EncoderConfig, shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[Tensor]:
    """Yields every tensor that rows of names stand for in a model."""
    for name, paths, layout in rows:
        for there, here, kind in LAYOUTS[layout]:
            places = tuple(path + here for path in paths.split())
            if places[0] not in shapes:
                continue
            if "{" not in name:
                yield Tensor(name + there, places, None, kind)
                continue
            # The first layer may have no norm before it.
            part = places[0].split("/")[2]
            missing = int(part == "attention_norm" and not config.first_norm)
            for entry in range(shapes[places[0]][0]):
                group, inner = divmod(entry, config.inner_layers)
                layer = name.format(i=entry + missing, group=group, inner=inner)
                yield Tensor(layer + there, places, entry, kind)


def read_rows(
    rows: Sequence[Tensor],
    tensors: Mapping[str, np.ndarray],
    shapes: Mapping[str, tuple[int, ...]],
    where: object,
) -> tuple[dict, tuple[str, ...]]:
    """Returns the parameters of these shapes, and a line for what was not used."""
    leaves = {path: np.empty(shape, np.float32) for path, shape in shapes.items()}
    for row in rows:
        row.put(_checked(tensors, row.name, row.shape_there(shapes), where), leaves)
    unused = sorted(set(tensors) - {row.name for row in rows})
    report = (f"{where}: not used: {', '.join(unused)}",) if unused else ()
    return tree_of(leaves), report


def _checked(
    tensors: Mapping[str, np.ndarray], name: str, shape: tuple, where: object
) -> np.ndarray:
    if name not in tensors:
        raise UserError(
            f"{where}: tensor {name} is missing; config.json asks for it with "
            f"shape {list(shape)}: the weights are not whole or of another model"
        )
    tensor = tensors[name]
    if tensor.shape != shape:
        raise UserError(
            f"{where}: tensor {name} has shape {list(tensor.shape)}, config.json "
            f"asks for {list(shape)}: the weights belong to another model"
        )
    return tensor


def modern_names(
    tensors: Mapping[str, np.ndarray], names: Names, where: object
) -> dict[str, np.ndarray]:
    """Returns the tensors under the names that the rows use.

    Older files call a norm's tensors gamma and beta, keep the numbers of the positions
    as a tensor, and hold tied tensors twice; models without heads have no prefix.
    """
    starts = tuple(
        row.removeprefix(names.prefix).split(".")[0]
        for row, _, _ in names.rows
        if row.startswith(names.prefix)
    )
    modern = {}
    for name, tensor in tensors.items():
        if name.endswith("position_ids"):
            continue
        if name.split(".")[0] in starts:
            name = names.prefix + name
        for other, ours in names.aliases.items():
            if name.startswith(other):
                name = ours + name.removeprefix(other)
        if name.endswith(".gamma"):
            name = name.removesuffix("gamma") + "weight"
        if name.endswith(".beta"):
            name = name.removesuffix("beta") + "bias"
        modern[name] = tensor
    for second, first in names.tied.items():
        tensor = modern.pop(second, None)
        if tensor is None:
            continue
        if not np.array_equal(tensor, modern.setdefault(first, tensor)):
            raise UserError(
                f"{where}: tensors {second} and {first} differ; this encoder ties "
                "them, so it cannot hold both"
            )
    return modern
