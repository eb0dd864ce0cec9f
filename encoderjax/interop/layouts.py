"""How tensors lie in Hugging Face's files, and here.

A row of a family's names gives a name there, a path here and a layout:

  same             one tensor, as it is
  flat             [H K]                 [H, K]
  one_row          [1, 1, D]             [D]
  width_last       [D, H, K]             [H, K, D]
  norm             weight, bias          scale, bias
  dense            weight [out, in]      kernel [in, out]
  convolution      weight [out, in, w]   kernel [w, in, out]
  to_heads         weight [H K, D]       kernel [D, H, K], bias [H, K]
  from_heads       weight [D, H K]       kernel [H, K, D]
  stacked          weight [n out, in]    n kernels [in, out] or [D, H, K]
  heads_of_stacks  weight [H n K, D]     n kernels [D, H, K]

What has no bias here has none there.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np


@dataclasses.dataclass(frozen=True)
class Layout:
    """How one tensor there is laid out in one or more leaves here.

    Attributes:
      shape: the shape there, of the shapes here.
      join: the tensor there, of the leaves here.
      split: the leaves here, of the tensor there and the shapes here.
    """

    shape: Callable[[list[tuple[int, ...]]], tuple[int, ...]]
    join: Callable[[list[np.ndarray]], np.ndarray]
    split: Callable[[np.ndarray, list[tuple[int, ...]]], list[np.ndarray]]


def _reshaped(shape: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Layout:
    return Layout(
        shape=lambda shapes: shape(shapes[0]),
        join=lambda leaves: leaves[0].reshape(shape(leaves[0].shape)),
        split=lambda tensor, shapes: [tensor.reshape(shapes[0])],
    )


def _transposed(*axes: int) -> Layout:
    """The axes there, as those here."""
    back = tuple(np.argsort(axes))
    return Layout(
        shape=lambda shapes: tuple(shapes[0][axis] for axis in axes),
        join=lambda leaves: leaves[0].transpose(axes),
        split=lambda tensor, shapes: [tensor.transpose(back)],
    )


def _kernel(num_inputs: int, heads_first: bool = False) -> Layout:
    """Kernels [*inputs, *outputs] here; [n outputs, inputs] there.

    With `heads_first` the first axis of the outputs comes before that of the kernels.
    """

    def shape(shapes):
        inputs, outputs = shapes[0][:num_inputs], shapes[0][num_inputs:]
        return len(shapes) * math.prod(outputs), math.prod(inputs)

    def join(leaves):
        inputs = math.prod(leaves[0].shape[:num_inputs])
        outputs = leaves[0].shape[num_inputs:]
        stack = np.stack([leaf.reshape(inputs, *outputs) for leaf in leaves], axis=1)
        if heads_first:
            stack = np.swapaxes(stack, 1, 2)
        return stack.reshape(inputs, -1).T

    def split(tensor, shapes):
        outputs, count = shapes[0][num_inputs:], len(shapes)
        if heads_first:
            stack = tensor.T.reshape(-1, outputs[0], count, *outputs[1:])
            stack = np.swapaxes(stack, 1, 2)
        else:
            stack = tensor.T.reshape(-1, count, *outputs)
        return [stack[:, n].reshape(shape) for n, shape in enumerate(shapes)]

    return Layout(shape, join, split)


_SAME = _reshaped(lambda shape: shape)
_FLAT = _reshaped(lambda shape: (math.prod(shape),))
# For each tensor of a layout: what its name ends with there and here, and how it lies.
LAYOUTS: dict[str, tuple[tuple[str, str, Layout], ...]] = {
    "same": (("", "", _SAME),),
    "flat": (("", "", _FLAT),),
    "one_row": (("", "", _reshaped(lambda shape: (1, 1, *shape))),),
    "width_last": (("", "", _transposed(2, 0, 1)),),
    "norm": ((".weight", "/scale", _SAME), (".bias", "/bias", _SAME)),
    "dense": ((".weight", "/kernel", _kernel(1)), (".bias", "/bias", _SAME)),
    "convolution": (
        (".weight", "/kernel", _transposed(2, 1, 0)),
        (".bias", "/bias", _SAME),
    ),
    "to_heads": ((".weight", "/kernel", _kernel(1)), (".bias", "/bias", _FLAT)),
    "from_heads": ((".weight", "/kernel", _kernel(2)), (".bias", "/bias", _SAME)),
    "stacked": ((".weight", "/kernel", _kernel(1)),),
    "heads_of_stacks": ((".weight", "/kernel", _kernel(1, heads_first=True)),),
}
