"""Folders of sentence-transformers, as version 6 writes and reads them.

modules.json names the modules in their order: an encoder in Hugging Face's files, its
pooling, and what follows: a dense layer (a whitening is one), a normalisation. Each
has a folder with a config.json, and weights where it has any.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from encoderjax.errors import UserError
from encoderjax.interop import weights
from encoderjax.interop.precision import Dtype, cast
from encoderjax.models.config import EncoderConfig
from encoderjax.models.pooling import Normalise, Pooling
from encoderjax.models.sentence import SentenceHead
from encoderjax.version import VERSION

MODULES = "modules.json"
_ABOUT, _TRANSFORMER = "config_sentence_transformers.json", "sentence_bert_config.json"
_TYPES = {
    "Transformer": "sentence_transformers.base.modules.transformer.Transformer",
    "Pooling": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    "Dense": "sentence_transformers.base.modules.dense.Dense",
    "LayerNorm": (
        "sentence_transformers.sentence_transformer.modules.layer_norm.LayerNorm"
    ),
    "Normalize": "sentence_transformers.base.modules.normalize.Normalize",
}
_NORMALISING: dict[str, Normalise] = {"Normalize": "l2", "LayerNorm": "layer_norm"}
_IDENTITY = "torch.nn.modules.linear.Identity"
# Of version 5 and before: a switch for each pooling.
_SWITCHES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_TOLERANCE = 1e-4


def _pooling_there(pooling: Pooling, config: EncoderConfig) -> str:
    """Returns what a pooling is called there, where `cls` is the first token."""
    if pooling == "cls":
        return "cls" if config.summary == "first" else "lasttoken"
    return "lasttoken" if pooling == "last" else pooling


# ---- writing ----


def write_modules(
    folder: Path,
    head: SentenceHead,
    config: EncoderConfig,
    whiten: Mapping[str, np.ndarray] | None,
    dtype: Dtype,
) -> None:
    """Writes what stands beside the encoder's files in its folder."""
    if head.layers != "last":
        raise UserError(
            f"layers={head.layers!r}: a folder of sentence-transformers has the last "
            "layer's states; use --layers=last, or --format=params"
        )
    if dtype == "int8":
        raise UserError(
            "dtype='int8' is not read by sentence-transformers; use bfloat16 or "
            "float16, or --format=params"
        )
    width = head.pooled_width(config)
    mode = _pooling_there(head.pooling, config)
    pooling = {"embedding_dimension": width, "pooling_mode": mode}
    named = [("Transformer", ""), ("Pooling", "1_Pooling")]
    _write_module(folder / "1_Pooling", pooling | {"include_prompt": True})
    if whiten is not None:
        named.append(("Dense", "2_Dense"))
        _write_dense(folder / "2_Dense", whiten, dtype)
        width = whiten["kernel"].shape[1]
    for name, ours in _NORMALISING.items():
        if head.normalise == ours:
            path = f"{len(named)}_{name}"
            named.append((name, path))
            _write_normalising(folder / path, name, width, dtype)
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": _TYPES[name]}
        for i, (name, path) in enumerate(named)
    ]
    (folder / MODULES).write_text(json.dumps(modules, indent=2) + "\n")
    about = {
        "__version__": {"encoderjax": VERSION},
        "model_type": "SentenceTransformer",
        "prompts": {"query": "", "document": ""},
        "default_prompt_name": None,
        "similarity_fn_name": "cosine",
    }
    weights.write_json(folder / _ABOUT, about)
    text = {"method": "forward", "method_output_name": "last_hidden_state"}
    transformer = {
        "transformer_task": "feature-extraction",
        "modality_config": {"text": text},
        "module_output_name": "token_embeddings",
    }
    weights.write_json(folder / _TRANSFORMER, transformer)


def _write_module(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray] | None = None,
    dtype: Dtype = "float32",
) -> None:
    folder.mkdir()
    weights.write_json(folder / "config.json", config)
    if tensors is not None:
        weights.write_safetensors(folder / weights.SAFETENSORS, cast(tensors, dtype))


_BETWEEN = {
    "module_input_name": "sentence_embedding",
    "module_output_name": "sentence_embedding",
}


def _write_dense(folder: Path, whiten: Mapping[str, np.ndarray], dtype: Dtype) -> None:
    """Writes (x - mean) kernel as x kernel + bias."""
    kernel_XK = np.asarray(whiten["kernel"], np.float64)
    bias_K = -np.asarray(whiten["mean"], np.float64) @ kernel_XK
    config = {
        "in_features": kernel_XK.shape[0],
        "out_features": kernel_XK.shape[1],
        "bias": True,
        "activation_function": _IDENTITY,
        **_BETWEEN,
    }
    tensors = {
        "linear.weight": kernel_XK.T.astype(np.float32),
        "linear.bias": bias_K.astype(np.float32),
    }
    _write_module(folder, config, tensors, dtype)


def _write_normalising(folder: Path, name: str, width: int, dtype: Dtype) -> None:
    if name == "Normalize":
        _write_module(folder, _BETWEEN)
        return
    ones, zeros = np.ones(width, np.float32), np.zeros(width, np.float32)
    tensors = {"norm.weight": ones, "norm.bias": zeros}
    _write_module(folder, {"dimension": width}, tensors, dtype)


# ---- reading ----


@dataclasses.dataclass(frozen=True, kw_only=True)
class Modules:
    """What a folder says of its vectors.

    Attributes:
      encoder: the folder of the encoder, in this one.
      pooling: as it is called there.
      whiten: of a dense layer, its `mean` and `kernel`.
      length: of rows; None = it does not say.
      report: a line for whatever the reader should know.
    """

    folder: Path
    encoder: str
    pooling: str
    normalise: Normalise
    whiten: dict[str, np.ndarray] | None
    length: int | None
    report: tuple[str, ...]

    def head(self, config: EncoderConfig) -> SentenceHead:
        """Returns how vectors are made, with this encoder."""
        known: dict[str, Pooling] = {}
        for pooling in ("cls", "mean", "max", "last"):
            known.setdefault(_pooling_there(pooling, config), pooling)
        if self.pooling not in known:
            raise UserError(
                f"{self.folder}: pooling_mode={self.pooling!r} is not known for this "
                f"encoder (known: {', '.join(known)}); give another --pooling with the "
                "encoder's own folder"
            )
        return SentenceHead(
            pooling=known[self.pooling],
            normalise=self.normalise,
            components=None if self.whiten is None else self.whiten["kernel"].shape[1],
        )


def read_modules(folder: Path) -> Modules:
    """Reads modules.json and what it names, but for the encoder."""
    modules = _listed(folder)
    kinds = [kind for kind, _ in modules]
    # Dropout does nothing where nothing is learned.
    rest = [(kind, path) for kind, path in modules[2:] if kind != "Dropout"]
    if kinds[:2] != ["Transformer", "Pooling"]:
        raise _unknown(folder, kinds)
    whiten = None
    if rest and rest[0][0] == "Dense":
        whiten = _read_dense(folder / rest.pop(0)[1])
    normalise: Normalise = "none"
    if rest and rest[0][0] in _NORMALISING:
        kind, path = rest.pop(0)
        normalise = _NORMALISING[kind]
        if kind == "LayerNorm":
            _check_plain_norm(folder / path)
    if rest:
        raise _unknown(folder, kinds)
    encoder = modules[0][1]
    length, report = _read_about(folder, folder / encoder)
    return Modules(
        folder=folder,
        encoder=encoder,
        pooling=_read_pooling(folder / modules[1][1]),
        normalise=normalise,
        whiten=whiten,
        length=length,
        report=report,
    )


def _unknown(folder: Path, kinds: list[str]) -> UserError:
    return UserError(
        f"{folder}: its modules are {', '.join(kinds)}; known are Transformer, "
        "Pooling, then at most a Dense and a Normalize or LayerNorm"
    )


def _listed(folder: Path) -> list[tuple[str, str]]:
    """Returns the kind and the folder of each module."""
    where = folder / MODULES
    try:
        listed = json.loads(where.read_text(encoding="utf-8"))
        named = [(str(m["type"]).rpartition(".")[2], str(m["path"])) for m in listed]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{where} is no list of modules, each with a type and a path; save the "
            "model again with sentence-transformers"
        ) from error
    for _, path in named:
        if Path(path).is_absolute() or ".." in Path(path).parts:
            raise UserError(f"{where}: path={path!r} leads out of the folder")
    return named


def _read_pooling(folder: Path) -> str:
    config = weights.read_json(folder / "config.json")
    modes = config.get("pooling_mode")
    if modes is None:
        modes = [mode for name, mode in _SWITCHES.items() if config.get(name)]
    modes = list(modes) if isinstance(modes, list | tuple) else [str(modes)]
    if len(modes) > 1:
        raise UserError(
            f"{folder / 'config.json'}: several poolings side by side "
            f"({', '.join(map(str, modes))}) are not known; use one"
        )
    return str(modes[0]) if modes else "mean"


def _read_dense(folder: Path) -> dict[str, np.ndarray]:
    """Returns the mean and kernel that compute what a dense layer does."""
    config = weights.read_json(folder / "config.json")
    activation = str(config.get("activation_function", "torch.nn.Tanh"))
    if activation.rpartition(".")[2] != "Identity" or config.get("use_residual"):
        raise UserError(
            f"{folder / 'config.json'}: a Dense with activation_function={activation} "
            "or a residual is not known; without an activation (Identity) it is"
        )
    tensors = weights.read_tensors(folder)
    kernel_XK = tensors["linear.weight"].T
    bias_K = tensors.get("linear.bias", np.zeros(kernel_XK.shape[1], np.float32))
    mean_X, *_ = np.linalg.lstsq(
        kernel_XK.T.astype(np.float64), -bias_K.astype(np.float64)
    )
    missed = np.abs(mean_X @ kernel_XK + bias_K).max()
    if missed > _TOLERANCE * max(1.0, np.abs(bias_K).max()):
        raise UserError(
            f"{folder}: a Dense from {kernel_XK.shape[0]} to {kernel_XK.shape[1]} "
            "columns whose bias is no shift of its input is not known"
        )
    return {"mean": mean_X.astype(np.float32), "kernel": kernel_XK}


def _check_plain_norm(folder: Path) -> None:
    tensors = weights.read_tensors(folder)
    weight, bias = tensors["norm.weight"], tensors["norm.bias"]
    if not ((weight == 1).all() and (bias == 0).all()):
        raise UserError(
            f"{folder}: a LayerNorm with weights of its own is not known; without "
            "(weight 1, bias 0) it is"
        )


def _read_about(folder: Path, encoder: Path) -> tuple[int | None, tuple[str, ...]]:
    """Returns the length of rows, and what should be known of prompts."""
    report: tuple[str, ...] = ()
    if (folder / _ABOUT).is_file():
        about = weights.read_json(folder / _ABOUT)
        named = [name for name, text in (about.get("prompts") or {}).items() if text]
        if named:
            report = (
                f"{folder}: its prompts ({', '.join(named)}) are not put before texts; "
                "write them there where they belong",
            )
    lengths = []
    for name, field in (
        (_TRANSFORMER, "max_seq_length"),
        ("tokenizer_config.json", "model_max_length"),
    ):
        if (encoder / name).is_file():
            length = weights.read_json(encoder / name).get(field)
            if isinstance(length, int):  # a float of 1e30 means that nobody knows
                lengths.append(length)
    return min(lengths, default=None), report
