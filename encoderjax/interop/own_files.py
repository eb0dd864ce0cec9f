"""What our own folders hold, read and checked: config, names, shapes, tokenizer."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from encoderjax.command import did_you_mean
from encoderjax.data.tokenizers import FILE_NAMES, Tokenizer, load_tokenizer
from encoderjax.errors import UserError
from encoderjax.interop import weights
from encoderjax.models.config import EncoderConfig
from encoderjax.models.families import FAMILIES
from encoderjax.models.heads import HEADS, Generator
from encoderjax.models.stack import weights_of
from encoderjax.training.remote_workdir import open_workdir

PARAMS, PARAMS_INDEX = "params.safetensors", "params.json"
# Beside Hugging Face's files: what its classes have no place for.
EXTRA, EXTRA_INDEX = "encoderjax.safetensors", "encoderjax.json"


def existing_folder(path: str | Path) -> Path:
    """Returns the folder, fetched where it is elsewhere; refuses what is none."""
    folder = open_workdir(str(path))
    if not folder.is_dir():
        raise UserError(
            f"{str(folder)!r} is not a folder; give a workdir or a downloaded model "
            "(for a name on the hub: hf download NAME --local-dir DIR)"
        )
    return folder


def config_json_of(path: Path) -> dict:
    """Returns the config.json of a folder."""
    file = path / "config.json"
    if not file.is_file():
        raise UserError(
            f"{path} holds no model: config.json is not there; give a workdir or a "
            "folder that save_pretrained or export wrote"
        )
    return weights.read_json(file)


def shared_layers(leaves: dict, config: EncoderConfig, where: Path) -> dict:
    """Returns one copy of what the layers share, from one for each layer."""
    shared = dict(leaves)
    for path, leaf in leaves.items():
        if not path.startswith("encoder/layers/"):
            continue
        entries = weights_of(config, path.split("/")[2])
        if len(leaf) != len(entries) or entries[0] < 0:
            continue
        _, first = np.unique(entries, return_index=True)
        shared[path] = leaf[first]
        if not np.array_equal(shared[path][entries], leaf):
            raise UserError(
                f"{where}: the layers differ in {path}, which model.sharing="
                f"{config.sharing!r} says they share; the files do not belong together"
            )
    return shared


def described_model(model: Mapping, where: Path) -> tuple[str, EncoderConfig]:
    """Returns the family and the encoder of a `model` group of our own files."""
    family = model.get("family")
    if family not in FAMILIES:
        raise UserError(
            f"{where}: model.family={family!r} is not known (families: "
            f"{', '.join(FAMILIES)})"
        )
    known = {field.name for field in dataclasses.fields(EncoderConfig)}
    fields = {name: model[name] for name in model if name not in ("family", "size")}
    if unknown := sorted(set(fields) - known):
        raise UserError(
            f"{where}: model.{unknown[0]} is not a field of this version's encoder; "
            "load it with the version that wrote it"
        )
    try:
        return family, EncoderConfig(**fields)
    except TypeError as error:
        raise UserError(f"{where}: the model group is not whole: {error}") from error


def described_generator(fields: Mapping | None, where: Path) -> Generator | None:
    """Returns the generator of a `generator` group, if there is one."""
    if fields is None:
        return None
    try:
        return Generator(**fields)
    except TypeError as error:
        raise UserError(f"{where}: the generator is not whole: {error}") from error


def known_heads(names: object, where: Path) -> tuple[str, ...]:
    """Returns the named heads in the order of `HEADS`; refuses unknown ones."""
    names = tuple(names) if isinstance(names, list | tuple) else (names,)
    for name in names:
        if name not in HEADS:
            near = did_you_mean(str(name), HEADS)
            raise UserError(
                f"{where}: head={name!r} does not exist{near} (heads: "
                f"{', '.join(HEADS)})"
            )
    return tuple(name for name in HEADS if name in names)


def fitting(
    params: Mapping, shapes: Mapping[str, tuple[int, ...]], where: Path
) -> dict:
    """Returns `params` as float32, after a look at every name and shape."""
    leaves = weights.leaves_of(params)
    for path in sorted(set(leaves) | set(shapes)):
        found = list(leaves[path].shape) if path in leaves else "missing"
        wanted = list(shapes[path]) if path in shapes else "none"
        if found != wanted:
            raise UserError(
                f"{where}: parameter {path} is {found}, its config asks for {wanted}: "
                "config and parameters belong to different models"
            )
    return weights.tree_of(
        {path: np.asarray(leaf, np.float32) for path, leaf in leaves.items()}
    )


def tokenizer_of(folder: Path, config: EncoderConfig) -> Tokenizer | None:
    """Returns the tokenizer of a folder, if there is one; refuses another model's."""
    if not any((folder / name).is_file() for name in FILE_NAMES):
        return None
    tokenizer = load_tokenizer(folder)
    if tokenizer.vocabulary.size > config.vocab_size:
        raise UserError(
            f"{folder}: the tokenizer has {tokenizer.vocabulary.size} tokens, the "
            f"model a table of {config.vocab_size}: they do not belong together"
        )
    return tokenizer


def needed_tokenizer(tokenizer: Tokenizer | None, where: Path) -> Tokenizer:
    """Returns the tokenizer, or says how a folder comes by one."""
    if tokenizer is None:
        raise UserError(
            f"{where} has no tokenizer; put its files there: {', '.join(FILE_NAMES)}"
        )
    return tokenizer


def check_family(told: str, family: str, where: Path) -> None:
    """Refuses a family that config.json's model_type does not stand for."""
    model_type = FAMILIES[family].HF.model_type
    if FAMILIES[told].HF.model_type != model_type:
        raise UserError(
            f"{where}: family={told!r} is no {model_type}, which config.json names; "
            "the files belong to different models"
        )
