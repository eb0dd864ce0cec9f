"""Hugging Face's folders: config.json and tensors, both ways.

A family file lists its names as data (`models/families/names.py`); this is the engine
that reads them, row by row.
"""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

import jax
import numpy as np

from encoderjax.command import did_you_mean
from encoderjax.errors import UserError
from encoderjax.interop.tensor_rows import expand_rows, modern_names, read_rows
from encoderjax.interop.weights import leaves_of
from encoderjax.models.config import EncoderConfig
from encoderjax.models.families import FAMILIES
from encoderjax.models.families.names import Names, told
from encoderjax.models.heads import (
    HEADS,
    EncoderModel,
    Generator,
    PairHead,
    init_params,
)
from encoderjax.models.stack import weights_of

ACTIVATIONS = {  # theirs to ours; ours is written as the first of its names
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}

_ACTIVATION_FIELDS = ("activation", "head_activation", "conv_activation")

# Fields that Hugging Face's classes do without: they change how a model is trained, or
# a part that is kept beside the classes. What layers share is written for each of them.
_BESIDE = {"mask_decoder_layers", "mask_decoder_shared"}
_BESIDE |= {"boundary_slots", "mask_slots"}
_BESIDE |= {"init", "init_std", "scaled_out_init", "init_projection"}
_BESIDE |= {"dropout_rate", "attention_dropout_rate", "inner_dropout_rate"}
_BESIDE |= {"attention_out_dropout_rate"}
_BESIDE |= {"max_length", "sharing", "layer_groups"}


def names_of(family: str) -> Names:
    """Returns what a family's fields and tensors are called."""
    return FAMILIES[family].HF


# ---- config.json ----


def family_of(config_json: Mapping, where: object) -> str:
    """Returns the family that the `model_type` of a config.json names."""
    known: dict[str, str] = {}
    for family in FAMILIES:
        known.setdefault(names_of(family).model_type, family)
    model_type = config_json.get("model_type")
    if model_type is None:
        raise UserError(
            f"{where}: config.json has no model_type; add it (known: "
            f"{', '.join(known)})"
        )
    if not isinstance(model_type, str) or model_type not in known:
        raise UserError(
            f"{where}: model_type={model_type!r} is not known"
            f"{did_you_mean(str(model_type), known)} (known: {', '.join(known)})"
        )
    return known[model_type]


def config_from_hf(
    config_json: Mapping, family: str, where: object, *, pooler: bool
) -> EncoderConfig:
    """Returns the encoder that a config.json describes."""
    names = names_of(family)
    try:
        for field, value in names.fixed.items():
            if config_json.get(field, value) != value:
                raise UserError(
                    f"{field}={config_json[field]!r} is not supported; this encoder "
                    f"has {field}={value!r} only"
                )
        fields: dict[str, Any] = dict(names.structure)
        for theirs, ours, default in names.fields:
            value = told(config_json, theirs, default)
            if theirs in config_json and config_json[theirs] is None:
                raise UserError(f"{theirs}=None must be of the kind of {default!r}")
            named = ours in _ACTIVATION_FIELDS
            fields[ours] = activation_from_hf(theirs, value) if named else value
        fields |= names.from_fields(config_json)
        fields["pooler"] = pooler
        return EncoderConfig(**fields)
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
    except TypeError as error:
        raise UserError(
            f"{where}: config.json has a field of the wrong kind"
        ) from error


def activation_from_hf(name: str, value: object) -> str:
    """Returns our name of an activation that the field `name` has."""
    if value not in ACTIVATIONS:
        raise UserError(
            f"{name}={value!r} is not supported (supported: {', '.join(ACTIVATIONS)})"
        )
    return ACTIVATIONS[str(value)]


def config_to_hf(
    config: EncoderConfig,
    family: str,
    head_names: tuple[str, ...],
    *,
    unread: Collection[str] = (),
) -> dict[str, object]:
    """Returns the config.json of an encoder with these heads.

    A field that Hugging Face has no word for, and that would change what its classes
    compute, is refused: they would load the weights and be wrong. What is `unread`
    changes nothing in the class that is meant.
    """
    names = names_of(family)
    written: dict[object, str] = {}
    for theirs, ours in ACTIVATIONS.items():
        written.setdefault(ours, theirs)
    fields = {}
    for theirs, ours, default in names.fields:
        value = getattr(config, ours)
        if ours in _ACTIVATION_FIELDS:
            value = written[value or config.activation]
        if value == 0 and ours == "num_segments" and default:
            raise UserError(
                f"model.num_segments=0: Hugging Face's {names.model_type} always has "
                "segments; use --format=params"
            )
        fields[theirs] = value
    config_json = {
        "architectures": [architecture(family, head_names)],
        "model_type": names.model_type,
        **fields,
        **names.fixed,
        **names.to_fields(config),
        "dtype": "float32",
    }
    different = beside(config, family, config_json)
    held = held_heads(family, head_names)
    unread = _BESIDE | set(unread)
    if "rtd" not in held:
        unread.add("detection_head")
    if not _has_pooler(config, held):
        unread.add("summary")
    if wrong := sorted(set(different) - unread):
        name = wrong[0]
        raise UserError(
            f"model.{name}={different[name]!r}: Hugging Face's {names.model_type} has "
            "no such thing and would compute something else with these weights; use "
            "--format=params"
        )
    return config_json


def beside(
    config: EncoderConfig, family: str, config_json: Mapping
) -> dict[str, object]:
    """Returns the fields that a config.json does not tell."""
    read = config_from_hf(config_json, family, "export", pooler=config.pooler)
    ours, theirs = _meaning(config), _meaning(read)
    values = dataclasses.asdict(config)
    return {name: values[name] for name in ours if theirs[name] != ours[name]}


def _meaning(config: EncoderConfig) -> dict[str, object]:
    """Returns the fields, where two ways to say one thing are one."""
    fields = dataclasses.asdict(config)
    fields["head_activation"] = config.head_activation or config.activation
    if all(config.sees_all(block) for block in range(config.num_blocks)):
        fields |= {"window": None, "global_every": 1}
    return fields


def _has_pooler(config: EncoderConfig, held: tuple[str, ...]) -> bool:
    """Says whether the class has it too; those that predict tokens alone do not."""
    return config.pooler and (not held or any(HEADS[n] is PairHead for n in held))


def architecture(family: str, head_names: tuple[str, ...]) -> str:
    """Returns the class of Hugging Face that holds just these heads."""
    return names_of(family).architectures[held_heads(family, head_names)]


def held_heads(family: str, head_names: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the most of these heads that one class of Hugging Face holds."""
    known = names_of(family).architectures
    fitting = [heads for heads in known if set(heads) <= set(head_names)]
    return max(fitting, key=len)


# ---- tensors ----


def params_to_hf(
    params: Mapping, family: str, config: EncoderConfig
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns a tree of parameters, or of their gradients, under the names there.

    The second dictionary holds the leaves that have no name there.
    """
    leaves = {path: np.asarray(leaf) for path, leaf in leaves_of(params).items()}
    leaves = unshared(leaves, family, config)
    head_names = tuple(params.get("heads", {}))
    held = held_heads(family, head_names)
    # The mask decoder's positions are no input's: under that name they would be.
    plain = dataclasses.replace(
        config, mask_decoder_layers=0, pooler=_has_pooler(config, held)
    )
    known = leaf_shapes(plain, tuple(n for n in head_names if n in held))
    shapes = {path: leaf.shape for path, leaf in leaves.items() if path in known}
    rows = list(expand_rows(names_of(family).rows, config, shapes))
    named = {path for row in rows for path in row.paths}
    homeless = {path: leaf for path, leaf in leaves.items() if path not in named}
    return {row.name: row.to_hf(leaves) for row in rows}, homeless


def unshared(
    leaves: dict[str, np.ndarray], family: str, config: EncoderConfig
) -> dict[str, np.ndarray]:
    """Returns a copy for each layer of what layers there cannot share."""
    groups = any("{group}" in name for name, _, _ in names_of(family).rows)
    if config.sharing == "none" or (config.sharing == "all" and groups):
        return leaves
    copied = dict(leaves)
    for path, leaf in leaves.items():
        if path.startswith("encoder/layers/"):
            copied[path] = leaf[weights_of(config, path.split("/")[2])]
    return copied


def without_prefix(
    tensors: Mapping[str, np.ndarray], family: str
) -> dict[str, np.ndarray]:
    """Returns the tensors under the names of the model without heads."""
    prefix = names_of(family).prefix
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}


def params_from_hf(
    config_json: Mapping, tensors: Mapping[str, np.ndarray], where: object
) -> tuple[str, EncoderConfig, tuple[str, ...], dict, tuple[str, ...]]:
    """Reads a whole model.

    Returns the family, the encoder's config, the names of its heads, the parameters,
    and a line for whatever the folder holds and nothing here can use.
    """
    family = family_of(config_json, where)
    names = names_of(family)
    tensors = modern_names(tensors, names, where)
    head_names = tuple(name for name in HEADS if _holds(names, tensors, name))
    pooler = _holds(names, tensors, "pooler")
    pooler |= any(HEADS[name] is PairHead for name in head_names)
    # The heads that are there say more than the class that is named, if one is.
    config_json = {**config_json, "architectures": [architecture(family, head_names)]}
    config = config_from_hf(config_json, family, where, pooler=pooler)
    shapes = leaf_shapes(config, head_names)
    rows = list(expand_rows(names.rows, config, shapes))
    params, report = read_rows(rows, tensors, shapes, where)
    return family, config, head_names, params, report


def leaf_shapes(
    config: EncoderConfig,
    head_names: tuple[str, ...],
    generator: Generator | None = None,
) -> dict[str, tuple[int, ...]]:
    """Returns the path and shape of every parameter of a model."""
    model = EncoderModel(config, head_names, with_generator=generator)
    tree = jax.eval_shape(lambda key: init_params(model, key), jax.random.key(0))
    return {path: leaf.shape for path, leaf in leaves_of(tree).items()}


def _holds(names: Names, tensors: Mapping[str, np.ndarray], part: str) -> bool:
    """Returns whether anything of a head, or of the pooler, is there."""
    rows = [name for name, path, _ in names.rows if part in path.split("/")]
    return any(name.startswith(row) for name in tensors for row in rows)
