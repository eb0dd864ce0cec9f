"""Parameters in fewer bits, for export.

`bfloat16` and `float16` are casts of everything. `int8` is weight-only: tables and
kernels become whole numbers from -127 to 127, with a float32 scale for each row of a
table and for each output of a kernel; biases and norms stay float32. In a file, the
scale of a tensor `NAME` is `NAME.scale`, of a shape that broadcasts, and the weight is
their product.
"""

import re
from collections.abc import Mapping
from typing import Literal

import ml_dtypes
import numpy as np

from encoderjax.errors import UserError
from encoderjax.interop.weights import SCALE, leaves_of, tree_of

Dtype = Literal["float32", "bfloat16", "float16", "int8"]
FLOATS = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
}
_LARGEST = 127
_WEIGHTS = re.compile(r"(^|/)(kernel|embedding)$")
_STACKED = re.compile(r"(^|/)(decoder_)?layers/")
_TWO_INPUTS = re.compile(
    r"(attention/out|conv/conv)/kernel$"
)  # [H, K, D], [w, in, out]


def quantised(params: Mapping, dtype: Dtype) -> dict:
    """Returns the float32 parameters that an export in `dtype` is read back as."""
    leaves = host_leaves(params)
    if dtype != "int8":
        made = cast(leaves, dtype)
        return tree_of({path: made[path].astype(np.float32) for path in made})
    made, scales = int8_leaves(leaves)
    for path, scale in scales.items():
        made[path] = made[path].astype(np.float32) * scale
    return tree_of(made)


def host_leaves(params: Mapping) -> dict[str, np.ndarray]:
    """Returns the arrays of a tree of parameters by their paths, on the host."""
    return {path: np.asarray(leaf) for path, leaf in leaves_of(params).items()}


def cast(leaves: Mapping[str, np.ndarray], dtype: Dtype) -> dict[str, np.ndarray]:
    """Returns arrays of fewer bits; refuses values that those cannot hold."""
    made = {}
    for path, leaf in leaves.items():
        with np.errstate(over="ignore"):  # seen to below
            made[path] = leaf.astype(FLOATS[dtype])
        if not np.isfinite(made[path]).all() and np.isfinite(leaf).all():
            raise UserError(
                f"dtype={dtype!r} cannot hold {path}, whose largest value is "
                f"{np.abs(leaf).max():.4g}; use bfloat16"
            )
    return made


def int8_leaves(
    leaves: Mapping[str, np.ndarray],
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns the leaves, weights among them as int8, and the scales of those."""
    made, scales = {}, {}
    for path, leaf in leaves.items():
        if not _WEIGHTS.search(path):
            made[path] = leaf
            continue
        largest = np.abs(leaf).max(axis=_input_axes(path, leaf.ndim), keepdims=True)
        scale = np.where(largest > 0, largest / _LARGEST, 1.0).astype(np.float32)
        made[path] = np.rint(leaf / scale).clip(-_LARGEST, _LARGEST).astype(np.int8)
        scales[path] = scale
    return made, scales


def _input_axes(path: str, ndim: int) -> tuple[int, ...]:
    """Returns the axes whose entries share a scale."""
    if path.endswith("embedding"):
        return (ndim - 1,)
    first = 1 if _STACKED.search(path) else 0
    return tuple(range(first, first + (2 if _TWO_INPUTS.search(path) else 1)))


def with_scales(
    tensors: Mapping[str, np.ndarray], scales: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Returns the tensors of a file: whole numbers beside their scales.

    `scales` are as large as the tensors; each is stored as small as it broadcasts.
    """
    stored = dict(tensors)
    for name, tensor in tensors.items():
        if tensor.dtype == np.int8:
            stored[name + SCALE] = _narrowed(scales[name])
    return stored


def _narrowed(full: np.ndarray) -> np.ndarray:
    for axis in range(full.ndim):
        first = full.take([0], axis)
        if (full == first).all():
            full = first
    return full
