"""Writes a model's files: Hugging Face's, or plain parameters of our own."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from encoderjax.data.tokenizers import Tokenizer
from encoderjax.errors import UserError
from encoderjax.interop import weights
from encoderjax.interop.huggingface import (
    beside,
    config_to_hf,
    family_of,
    held_heads,
    names_of,
    params_to_hf,
    without_prefix,
)
from encoderjax.interop.loading import LoadedModel
from encoderjax.interop.own_files import EXTRA, EXTRA_INDEX, PARAMS, PARAMS_INDEX
from encoderjax.interop.precision import (
    Dtype,
    cast,
    host_leaves,
    int8_leaves,
    with_scales,
)
from encoderjax.interop.sentence_loading import SENTENCE, LoadedSentence
from encoderjax.interop.sentence_transformers import write_modules
from encoderjax.interop.task_huggingface import (
    encoder_fields,
    head_beside,
    task_config_to_hf,
    task_params_to_hf,
)
from encoderjax.interop.task_loading import TASK, LoadedTask
from encoderjax.models.config import EncoderConfig
from encoderjax.models.task_heads import task_form

Tensors = dict[str, np.ndarray]
# Names for tensors that have them there, and the leaves that have none.
Named = Callable[[Mapping], tuple[Tensors, Tensors]]


def write_hf(folder: Path, loaded: LoadedModel, dtype: Dtype) -> int:
    """Writes a folder of Hugging Face; returns the number of parameters."""
    config, family = loaded.config, loaded.family
    config_json = config_to_hf(config, family, loaded.head_names)
    held = held_heads(family, loaded.head_names)

    def named(params: Mapping) -> tuple[Tensors, Tensors]:
        tensors, homeless = params_to_hf(params, family, config)
        return (tensors if held else without_prefix(tensors, family)), homeless

    told = family_of(config_json, folder)  # of families alike, the first
    extra = {
        "family": family,
        "model": beside(config, told, config_json),
        "heads": [name for name in loaded.head_names if name not in held],
    }
    _, homeless = named(loaded.params)
    if any(path.startswith("encoder/pooler/") for path in homeless):
        extra["model"]["pooler"] = True
    if homeless or extra["model"] or family != told:
        weights.write_json(folder / EXTRA_INDEX, extra)
    return _write_hf_files(folder, loaded, config_json, named, dtype)


def write_task_hf(folder: Path, loaded: LoadedTask, dtype: Dtype) -> int:
    """Writes a folder of Hugging Face with the class of the task."""
    config, family, task = loaded.config, loaded.family, loaded.description
    config_json = task_config_to_hf(config, family, task)
    told = family_of(config_json, folder)
    own = task.to_json()
    kept = {name: own[name] for name in ("length", "cut", "stride", "settings")}
    kept["head"] = head_beside(config, family, task, config_json)
    plain = encoder_fields(config_json, family, task.kind)
    extra = {"family": family, "model": beside(config, told, plain), TASK: kept}
    weights.write_json(folder / EXTRA_INDEX, extra)
    form = task_form(family, task.kind)
    named = lambda params: (task_params_to_hf(params, family, config, form), {})
    return _write_hf_files(folder, loaded, config_json, named, dtype)


def write_sentence_transformers(
    folder: Path, loaded: LoadedSentence, dtype: Dtype
) -> int:
    """Writes a folder of sentence-transformers; returns the number of parameters."""
    whiten = loaded.params.get("whiten")
    write_modules(folder, loaded.description.head, loaded.config, whiten, dtype)
    encoder = LoadedModel(
        family=loaded.family,
        config=loaded.config,
        params={"encoder": loaded.params["encoder"]},
        head_names=(),
        tokenizer=loaded.tokenizer,
        source=loaded.source,
    )
    beside = sum(leaf.size for leaf in (whiten or {}).values())
    return beside + write_hf(folder, encoder, dtype)


def _write_hf_files(
    folder: Path,
    loaded: LoadedModel | LoadedTask,
    config_json: dict[str, object],
    named: Named,
    dtype: Dtype,
) -> int:
    """Writes config.json and weights; returns the number of parameters."""
    config_json |= _token_ids(loaded, config_json)
    config_json["dtype"] = "float32" if dtype == "int8" else dtype
    weights.write_json(folder / "config.json", config_json)
    tensors, homeless = named(loaded.params)
    count = sum(tensor.size for tensor in (*tensors.values(), *homeless.values()))
    file = weights.SAFETENSORS
    if dtype == "int8":
        # Under its usual name transformers would take the whole numbers for weights.
        file = weights.INT8
        tensors, homeless = _int8_files(loaded.params, named)
    else:
        tensors, homeless = cast(tensors, dtype), cast(homeless, dtype)
    weights.write_safetensors(folder / file, tensors)
    if homeless:
        weights.write_safetensors(folder / EXTRA, homeless)
    return count


def _int8_files(params: Mapping, named: Named) -> tuple[Tensors, Tensors]:
    """Returns the tensors of both files, those of int8 with their scales.

    Scales take the way of their weights, as large as those: transposed, split or
    stacked alike.
    """
    leaves = {
        path: np.asarray(leaf) for path, leaf in weights.leaves_of(params).items()
    }
    whole, scales = int8_leaves(leaves)
    full = {
        path: np.broadcast_to(scales.get(path, np.float32(1)), leaf.shape)
        for path, leaf in leaves.items()
    }
    stored, sizes = named(weights.tree_of(whole)), named(weights.tree_of(full))
    files = [with_scales(*both) for both in zip(stored, sizes, strict=True)]
    return files[0], files[1]


def _token_ids(loaded: LoadedModel | LoadedTask, config_json: dict) -> dict:
    if loaded.tokenizer is None:
        fields = names_of(loaded.family).token_ids
        return {field: config_json.get(field) for field in fields}
    return token_ids(loaded.family, loaded.config, loaded.tokenizer)


def token_ids(
    family: str, config: EncoderConfig, tokenizer: Tokenizer
) -> dict[str, int]:
    """Returns the ids of special tokens, whose defaults are another vocabulary's."""
    fields = names_of(family).token_ids
    ids = {field: int(getattr(tokenizer.vocabulary, n)) for field, n in fields.items()}
    if config.position_pad_id not in (None, ids["pad_token_id"]):
        raise UserError(
            f"model.position_pad_id={config.position_pad_id} is not the tokenizer's "
            f"padding, {ids['pad_token_id']}: Hugging Face takes one for the other; "
            "use --format=params"
        )
    return ids


def write_params(
    folder: Path, loaded: LoadedModel | LoadedTask | LoadedSentence, dtype: Dtype
) -> int:
    """Writes our own tree and a list of its names; returns the number of parameters."""
    leaves = host_leaves(loaded.params)
    index: dict[str, object] = {
        "format": 1,
        "model": {"family": loaded.family, **dataclasses.asdict(loaded.config)},
        "dtype": dtype,
    }
    if isinstance(loaded, LoadedTask):
        index[TASK] = loaded.description.to_json()
    elif isinstance(loaded, LoadedSentence):
        index[SENTENCE] = loaded.description.to_json()
    else:
        generator = loaded.generator
        index["heads"] = list(loaded.head_names)
        index["generator"] = dataclasses.asdict(generator) if generator else None
    index["parameters"] = {path: list(leaves[path].shape) for path in sorted(leaves)}
    weights.write_json(folder / PARAMS_INDEX, index)
    if dtype == "int8":
        stored, _ = _int8_files(
            loaded.params, lambda tree: (weights.leaves_of(tree), {})
        )
    else:
        stored = cast(leaves, dtype)
    weights.write_safetensors(folder / PARAMS, stored)
    return sum(leaf.size for leaf in leaves.values())


def write_tokenizer(folder: Path, tokenizer: Tokenizer, max_length: int) -> None:
    """Writes a tokenizer's files, and where rows are cut."""
    tokenizer.save(folder)
    # Where truncation=True cuts; the tokenizer alone does not know the model's table.
    config = weights.read_json(folder / "tokenizer_config.json")
    config["model_max_length"] = max_length
    weights.write_json(folder / "tokenizer_config.json", config)
