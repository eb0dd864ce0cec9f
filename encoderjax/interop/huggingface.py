"""Hugging Face's folders: config.json and tensors, both ways.

A family file lists its names as data (`HF_ROWS` and what stands beside it); this is
the engine that reads them. A row gives a name there, a path here and a layout:

  same        one tensor, as it is
  norm        weight, bias          scale, bias
  dense       weight [out, in]      kernel [in, out]
  to_heads    weight [H K, D]       kernel [D, H, K], bias [H, K]
  from_heads  weight [D, H K]       kernel [H, K, D]

and `{i}` in the name is the layer, stacked on axis 0 here.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from types import ModuleType

import jax
import numpy as np

from encoderjax.command import did_you_mean
from encoderjax.errors import UserError
from encoderjax.interop.weights import leaves_of, tree_of
from encoderjax.models.encoder import EncoderConfig
from encoderjax.models.families import FAMILIES
from encoderjax.models.heads import HEADS, EncoderModel, PairHead, init_params

ACTIVATIONS = {  # theirs to ours; ours is written as the first of its names
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
}


# ---- config.json ----


def family_of(config_json: Mapping, where: object) -> str:
    """Returns the family that the `model_type` of a config.json names."""
    known = {module.HF_MODEL_TYPE: name for name, module in FAMILIES.items()}
    model_type = config_json.get("model_type")
    if model_type is None:
        raise UserError(
            f"{where}: config.json has no model_type; add it (known: "
            f"{', '.join(known)})"
        )
    if model_type not in known:
        raise UserError(
            f"{where}: model_type={model_type!r} is not known"
            f"{did_you_mean(str(model_type), known)} (known: {', '.join(known)})"
        )
    return known[model_type]


def config_from_hf(
    config_json: Mapping, family: str, where: object, *, pooler: bool
) -> EncoderConfig:
    """Returns the encoder that a config.json describes."""
    module = FAMILIES[family]
    for field, value in module.HF_FIXED.items():
        if config_json.get(field, value) != value:
            raise UserError(
                f"{where}: {field}={config_json[field]!r} is not supported; this "
                f"encoder has {field}={value!r} only"
            )
    fields = {}
    for theirs, ours, default in module.HF_FIELDS:
        value = config_json.get(theirs, default)
        kinds = (int, float) if isinstance(default, float) else (type(default),)
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise UserError(
                f"{where}: {theirs}={value!r} must be of the kind of {default!r}"
            )
        fields[ours] = type(default)(value)
    if fields["activation"] not in ACTIVATIONS:
        raise UserError(
            f"{where}: hidden_act={fields['activation']!r} is not supported "
            f"(supported: {', '.join(ACTIVATIONS)})"
        )
    fields["activation"] = ACTIVATIONS[fields["activation"]]
    try:
        return EncoderConfig(**fields, pooler=pooler)
    except UserError as error:
        raise UserError(f"{where}: {error}") from error


def config_to_hf(
    config: EncoderConfig, family: str, head_names: tuple[str, ...]
) -> dict[str, object]:
    """Returns the config.json of an encoder with these heads."""
    module = FAMILIES[family]
    fields = {theirs: getattr(config, ours) for theirs, ours, _ in module.HF_FIELDS}
    written = {}
    for theirs, ours in ACTIVATIONS.items():
        written.setdefault(ours, theirs)
    fields["hidden_act"] = written[config.activation]
    return {
        "architectures": [architecture(family, head_names)],
        "model_type": module.HF_MODEL_TYPE,
        **fields,
        **module.HF_FIXED,
        "dtype": "float32",
    }


def architecture(family: str, head_names: tuple[str, ...]) -> str:
    """Returns the class of Hugging Face that holds just these heads."""
    known = FAMILIES[family].HF_ARCHITECTURES
    if head_names not in known:
        raise UserError(
            f"Hugging Face's {family} cannot hold the heads {', '.join(head_names)}; "
            "use --format=params"
        )
    return known[head_names]


# ---- tensors ----


@dataclasses.dataclass(frozen=True)
class Tensor:
    """One tensor there and its place here.

    Attributes:
      name: the name there.
      path: the path here, with slashes.
      layer: which entry of the stack at `path` it is, or None for the whole.
      num_inputs: how many leading dimensions of a kernel are inputs; 0 if no kernel.
    """

    name: str
    path: str
    layer: int | None
    num_inputs: int

    def shape_there(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape there of a leaf with `shape` here."""
        shape = shape if self.layer is None else shape[1:]
        if self.num_inputs:
            inputs, outputs = shape[: self.num_inputs], shape[self.num_inputs :]
            return math.prod(outputs), math.prod(inputs)
        # The biases of the heads lie flat there; tables stay as they are.
        return (math.prod(shape),) if self.path.endswith("/bias") else shape

    def to_hf(self, leaf: np.ndarray) -> np.ndarray:
        """Returns the tensor there of a leaf here."""
        shape = self.shape_there(leaf.shape)
        leaf = leaf if self.layer is None else leaf[self.layer]
        return leaf.reshape(shape[::-1]).T if self.num_inputs else leaf.reshape(shape)

    def from_hf(self, tensor: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Returns the leaf (or its layer) of `shape` here of a tensor there."""
        tensor = tensor.T if self.num_inputs else tensor
        return tensor.reshape(shape if self.layer is None else shape[1:])


_PARTS = {  # layout: (suffix there, suffix here, leading inputs of the kernel)
    "same": (("", "", 0),),
    "norm": ((".weight", "/scale", 0), (".bias", "/bias", 0)),
    "dense": ((".weight", "/kernel", 1), (".bias", "/bias", 0)),
    "to_heads": ((".weight", "/kernel", 1), (".bias", "/bias", 0)),
    "from_heads": ((".weight", "/kernel", 2), (".bias", "/bias", 0)),
}


def expand_rows(family: str, num_layers: int) -> Iterator[Tensor]:
    """Yields every tensor that the family's rows stand for."""
    for name, path, layout in FAMILIES[family].HF_ROWS:
        for there, here, num_inputs in _PARTS[layout]:
            if "{i}" not in name:
                yield Tensor(name + there, path + here, None, num_inputs)
                continue
            for i in range(num_layers):
                yield Tensor(name.format(i=i) + there, path + here, i, num_inputs)


def params_to_hf(
    params: Mapping, family: str, num_layers: int
) -> dict[str, np.ndarray]:
    """Returns a tree of parameters (or of their gradients) under the names there."""
    leaves = leaves_of(params)
    rows = [row for row in expand_rows(family, num_layers) if row.path in leaves]
    homeless = sorted(set(leaves) - {row.path for row in rows})
    if homeless:
        raise UserError(
            f"Hugging Face's {family} cannot hold {', '.join(homeless)}; use "
            "--format=params"
        )
    return {row.name: row.to_hf(np.asarray(leaves[row.path])) for row in rows}


def without_prefix(
    tensors: Mapping[str, np.ndarray], family: str
) -> dict[str, np.ndarray]:
    """Returns the tensors under the names of the model without heads."""
    prefix = FAMILIES[family].HF_PREFIX
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}


def params_from_hf(
    config_json: Mapping, tensors: Mapping[str, np.ndarray], where: object
) -> tuple[str, EncoderConfig, tuple[str, ...], dict, tuple[str, ...]]:
    """Reads a whole model.

    Returns the family, the encoder's config, the names of its heads, the parameters,
    and a line for whatever the folder holds and nothing here can use.
    """
    family = family_of(config_json, where)
    module = FAMILIES[family]
    tensors = _modern_names(tensors, module, where)
    head_names = tuple(name for name in HEADS if _holds(module, tensors, name))
    pooler = _holds(module, tensors, "pooler")
    pooler |= any(HEADS[name] is PairHead for name in head_names)
    config = config_from_hf(config_json, family, where, pooler=pooler)
    shapes = leaf_shapes(config, head_names)
    leaves, used = {}, set()
    for row in expand_rows(family, config.num_layers):
        if row.path not in shapes:
            continue
        shape = shapes[row.path]
        tensor = _checked(tensors, row, row.shape_there(shape), where)
        used.add(row.name)
        if row.layer is None:
            leaves[row.path] = np.ascontiguousarray(row.from_hf(tensor, shape))
        else:
            stack = leaves.setdefault(row.path, np.empty(shape, np.float32))
            stack[row.layer] = row.from_hf(tensor, shape)
    unused = sorted(set(tensors) - used)
    report = (f"{where}: not used: {', '.join(unused)}",) if unused else ()
    return family, config, head_names, tree_of(leaves), report


def leaf_shapes(
    config: EncoderConfig, head_names: tuple[str, ...]
) -> dict[str, tuple[int, ...]]:
    """Returns the path and shape of every parameter of a model."""
    model = EncoderModel(config, head_names)
    tree = jax.eval_shape(lambda key: init_params(model, key), jax.random.key(0))
    return {path: leaf.shape for path, leaf in leaves_of(tree).items()}


def _holds(module: ModuleType, tensors: Mapping[str, np.ndarray], part: str) -> bool:
    """Returns whether anything of a head, or of the pooler, is there."""
    rows = [name for name, path, _ in module.HF_ROWS if part in path.split("/")]
    return any(name.startswith(row) for name in tensors for row in rows)


def _checked(
    tensors: Mapping[str, np.ndarray], row: Tensor, shape: tuple, where: object
) -> np.ndarray:
    if row.name not in tensors:
        raise UserError(
            f"{where}: tensor {row.name} is missing; config.json asks for it with "
            f"shape {list(shape)}: the weights are not whole or of another model"
        )
    tensor = tensors[row.name]
    if tensor.shape != shape:
        raise UserError(
            f"{where}: tensor {row.name} has shape {list(tensor.shape)}, config.json "
            f"asks for {list(shape)}: the weights belong to another model"
        )
    return tensor


def _modern_names(
    tensors: Mapping[str, np.ndarray], module: ModuleType, where: object
) -> dict[str, np.ndarray]:
    """Returns the tensors under the names that the rows use.

    Older files call a norm's tensors gamma and beta, keep the numbers of the positions
    as a tensor, and hold tied tensors twice; BertModel leaves the prefix away.
    """
    starts = tuple(
        row.removeprefix(module.HF_PREFIX).split(".")[0]
        for row, _, _ in module.HF_ROWS
        if row.startswith(module.HF_PREFIX)
    )
    modern = {}
    for name, tensor in tensors.items():
        if name.endswith("position_ids"):
            continue
        if name.split(".")[0] in starts:
            name = module.HF_PREFIX + name
        if name.endswith("LayerNorm.gamma"):
            name = name.removesuffix("gamma") + "weight"
        if name.endswith("LayerNorm.beta"):
            name = name.removesuffix("beta") + "bias"
        modern[name] = tensor
    for second, first in module.HF_TIED.items():
        tensor = modern.pop(second, None)
        if tensor is None:
            continue
        if not np.array_equal(tensor, modern.setdefault(first, tensor)):
            raise UserError(
                f"{where}: tensors {second} and {first} differ; this encoder ties "
                "them, so it cannot hold both"
            )
    return modern
