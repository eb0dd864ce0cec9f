"""The weight files of a folder: named tensors, read and written without PyTorch.

Everything is read as float32, whatever it was stored as.
"""

import json
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flax.traverse_util
import ml_dtypes  # noqa: F401  teaches numpy the name bfloat16, which files use
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from encoderjax.errors import UserError

SAFETENSORS, PICKLED = "model.safetensors", "pytorch_model.bin"
INT8 = "model.int8.safetensors"  # of `export --dtype=int8`; see precision.py
SCALE = ".scale"  # what the name of an int8 tensor's factor ends with


def read_tensors(folder: Path) -> dict[str, np.ndarray]:
    """Returns all tensors of a folder, from one file or from shards."""
    for name, read in (
        (SAFETENSORS, read_safetensors),
        (INT8, read_safetensors),
        (PICKLED, read_pickled),
    ):
        if (folder / name).is_file():
            return read(folder / name)
        index = folder / f"{name}.index.json"
        if index.is_file():
            tensors = {}
            for shard in _shards(index):
                tensors |= read(shard)
            return tensors
    raise UserError(
        f"{folder} holds no weights: neither {SAFETENSORS} nor {PICKLED} (nor their "
        ".index.json) is there; save the model with save_pretrained or export it"
    )


def _shards(index: Path) -> list[Path]:
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise UserError(f"{index} has no weight_map; save the model again")
    if not all(isinstance(name, str) for name in names.values()):
        raise UserError(f"{index}: weight_map must name files; save the model again")
    shards = [index.parent / name for name in sorted(set(names.values()))]
    for shard in shards:
        if not shard.is_file():
            raise UserError(
                f"{shard} is missing, though {index.name} names it; copy all shards"
            )
    return shards


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Returns the tensors of one safetensors file; int8 ones times their scales."""
    try:
        with safe_open(path, framework="np") as file:
            names = set(file.keys())
            scales = {
                name for name in names if name.removesuffix(SCALE) in names - {name}
            }
            tensors = {
                name: np.asarray(file.get_tensor(name), np.float32)
                for name in sorted(names)
            }
            for name in scales:
                tensors[name.removesuffix(SCALE)] *= tensors.pop(name)
            return tensors
    except (SafetensorError, OSError, AttributeError, TypeError) as error:
        raise UserError(
            f"{path} cannot be read as safetensors ({_one_line(error)}): it is "
            "incomplete, damaged or of a precision that is not known; save it again"
        ) from error


def read_pickled(path: Path) -> dict[str, np.ndarray]:
    """Returns the tensors of one file of torch.save, running none of its code."""
    try:
        import torch
    except ImportError as error:
        raise UserError(
            f"{path} is in PyTorch's own format, which only PyTorch reads: install "
            f"torch, or save the model as {SAFETENSORS} (save_pretrained does)"
        ) from error
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
        raise UserError(
            f"{path} holds more than tensors, or is damaged ({_one_line(error)}); save "
            f"the model as {SAFETENSORS}"
        ) from error
    plain = isinstance(tensors, dict) and all(
        isinstance(name, str) and torch.is_tensor(tensor)
        for name, tensor in tensors.items()
    )
    if not plain:
        raise UserError(
            f"{path} is no plain dictionary of tensors (a trainer's checkpoint?); save "
            f"the model alone, as {SAFETENSORS}"
        )
    return {name: tensor.float().numpy() for name, tensor in tensors.items()}


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes tensors to one safetensors file that PyTorch's loaders accept."""
    # save_file writes the memory behind an array as it lies: a transposed view
    # would be stored untransposed, without an error.
    whole = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    save_file(whole, path, metadata={"format": "pt"})
    # save_file lets the owner alone read it; who may read the folder may read this.
    path.chmod(path.parent.stat().st_mode & 0o666)


def leaves_of(tree: Mapping) -> dict[str, Any]:
    """Returns the arrays of a tree of parameters by their paths, with slashes."""
    return dict(flax.traverse_util.flatten_dict(tree, sep="/"))


def tree_of(leaves: Mapping[str, Any]) -> dict:
    """Returns the tree that has these arrays at these paths."""
    return flax.traverse_util.unflatten_dict(leaves, sep="/")


def read_json(path: Path) -> dict:
    """Returns the object in a json file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {_one_line(error)}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} must hold one object of fields, not a list or value")
    return content


def write_json(path: Path, content: Mapping) -> None:
    """Writes an object as json that people can read, whole or not at all."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    os.replace(partial, path)


def _one_line(error: Exception) -> str:
    return str(error).split("\n")[0][:120]
