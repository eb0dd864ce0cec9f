"""Exports a model to a folder that PyTorch and `transformers` load.

`--format=params` writes our own tree instead: plain safetensors and a list of names,
also for what Hugging Face has no class for.
"""

import dataclasses
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, get_args

from encoderjax.command import Parser, run_command
from encoderjax.data.tokenizers import Tokenizer
from encoderjax.errors import UserError
from encoderjax.interop import weights
from encoderjax.interop.huggingface import (
    architecture,
    beside,
    config_to_hf,
    family_of,
    held_heads,
    names_of,
    params_to_hf,
    without_prefix,
)
from encoderjax.interop.loading import (
    EXTRA,
    EXTRA_INDEX,
    PARAMS,
    PARAMS_INDEX,
    LoadedModel,
    load_model,
)
from encoderjax.version import VERSION

Format = Literal["hf", "params"]
Part = Literal["discriminator", "generator"]
MARKER = "encoderjax_export.json"  # lists what an export wrote, so that the next may go

_EXAMPLES = (
    "python -m encoderjax.export --workdir=runs/bert_tiny --out=exported/bert_tiny",
    "python -m encoderjax.export --workdir=runs/bert_tiny --step=1000 --out=exported/b",
    "python -m encoderjax.export --workdir=runs/bert_tiny --format=params --out=params",
    "python -m encoderjax.export --workdir=runs/electra_small --part=generator --out=g",
)


@dataclasses.dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes:
      out: the folder.
      files: the names in it.
      num_parameters: tied ones counted once.
      num_bytes: of all files.
      step: the step of the checkpoint; None for a model that came from a folder.
      usage: lines of Python that load it.
      report: a line for whatever the reader should know of it.
    """

    out: Path
    files: tuple[str, ...]
    num_parameters: int
    num_bytes: int
    step: int | None
    usage: tuple[str, ...]
    report: tuple[str, ...]


def run(
    workdir: str | Path,
    out: str | Path,
    *,
    step: int | None = None,
    format: Format = "hf",
    part: Part | None = None,
    overwrite: bool = False,
) -> Exported:
    """Exports a workdir, or a folder with a model, to `out`.

    Args:
      workdir: a workdir, a folder of Hugging Face, or an earlier export.
      out: the folder to write; it appears when it is whole.
      step: which checkpoint of a workdir; the last one when left out.
      format: `hf` for transformers, `params` for our own tree.
      part: of a model that was trained with a generator: `discriminator` (the default
        for `hf`) or `generator`; `params` holds both unless told.
      overwrite: whether files of a folder that is no earlier export may be replaced.
    """
    if format not in get_args(Format):
        raise UserError(f"format={format!r} must be one of {get_args(Format)}")
    out = Path(out).expanduser()
    _check_free(out, overwrite)
    loaded = load_model(workdir, step=step)
    if part is not None or format == "hf":
        loaded = loaded.part(part or "discriminator")
    with _whole_folder(out) as folder:
        write = {"hf": _write_hf, "params": _write_params}[format]
        num_parameters = write(folder, loaded)
        if loaded.tokenizer is not None:
            _write_tokenizer(folder, loaded.tokenizer, loaded.config.max_length)
        _write_marker(folder, loaded)
    files = tuple(sorted(weights.read_json(out / MARKER)["files"]))
    return Exported(
        out=out,
        files=files,
        num_parameters=num_parameters,
        num_bytes=sum((out / name).stat().st_size for name in files),
        step=loaded.step,
        usage=_usage(loaded, format, out),
        report=loaded.report + _notes(loaded, format, files),
    )


def _write_hf(folder: Path, loaded: LoadedModel) -> int:
    config, family = loaded.config, loaded.family
    config_json = config_to_hf(config, family, loaded.head_names)
    tensors, homeless = params_to_hf(loaded.params, family, config)
    held = held_heads(family, loaded.head_names)
    if not held:
        tensors = without_prefix(tensors, family)
    config_json |= _token_ids(loaded, config_json)
    weights.write_json(folder / "config.json", config_json)
    weights.write_safetensors(folder / weights.SAFETENSORS, tensors)
    told = family_of(config_json, folder)  # of families alike, the first
    extra = {
        "family": family,
        "model": beside(config, told, config_json),
        "heads": [name for name in loaded.head_names if name not in held],
    }
    if any(path.startswith("encoder/pooler/") for path in homeless):
        extra["model"]["pooler"] = True
    if homeless or extra["model"] or family != told:
        weights.write_json(folder / EXTRA_INDEX, extra)
    if homeless:
        weights.write_safetensors(folder / EXTRA, homeless)
    both = (*tensors.values(), *homeless.values())
    return sum(tensor.size for tensor in both)


def _token_ids(loaded: LoadedModel, config_json: dict) -> dict:
    """Returns the ids of special tokens, whose defaults are another vocabulary's."""
    fields = names_of(loaded.family).token_ids
    if loaded.tokenizer is None:
        return {field: config_json.get(field) for field in fields}
    vocabulary = loaded.tokenizer.vocabulary
    ids = {field: int(getattr(vocabulary, name)) for field, name in fields.items()}
    pad_id = loaded.config.position_pad_id
    if pad_id not in (None, ids["pad_token_id"]):
        raise UserError(
            f"model.position_pad_id={pad_id} is not the tokenizer's padding, "
            f"{ids['pad_token_id']}: Hugging Face takes one for the other; use "
            "--format=params"
        )
    return ids


def _write_params(folder: Path, loaded: LoadedModel) -> int:
    leaves = weights.leaves_of(loaded.params)
    model = {"family": loaded.family, **dataclasses.asdict(loaded.config)}
    index = {
        "format": 1,
        "model": model,
        "heads": list(loaded.head_names),
        "generator": dataclasses.asdict(loaded.generator) if loaded.generator else None,
        "parameters": {path: list(leaves[path].shape) for path in sorted(leaves)},
    }
    weights.write_json(folder / PARAMS_INDEX, index)
    weights.write_safetensors(folder / PARAMS, leaves)
    return sum(math.prod(leaf.shape) for leaf in leaves.values())


def _write_tokenizer(folder: Path, tokenizer: Tokenizer, max_length: int) -> None:
    tokenizer.save(folder)
    # Where truncation=True cuts; the tokenizer alone does not know the model's table.
    config = weights.read_json(folder / "tokenizer_config.json")
    config["model_max_length"] = max_length
    weights.write_json(folder / "tokenizer_config.json", config)


def _write_marker(folder: Path, loaded: LoadedModel) -> None:
    files = sorted(path.name for path in folder.iterdir())
    about = {"encoderjax": VERSION, "step": loaded.step, "files": [*files, MARKER]}
    weights.write_json(folder / MARKER, about)


def _usage(loaded: LoadedModel, format: Format, out: Path) -> tuple[str, ...]:
    if format == "params":
        return (
            "from safetensors.torch import load_file",
            f"params = load_file({str(out / PARAMS)!r})  # named as in {PARAMS_INDEX}",
            "table = params['encoder/token_embed/embedding']",
        )
    name = architecture(loaded.family, loaded.head_names)
    return (
        f"from transformers import AutoTokenizer, {name}",
        f"tokenizer = AutoTokenizer.from_pretrained({str(out)!r})",
        f"model = {name}.from_pretrained({str(out)!r})",
    )


def _notes(
    loaded: LoadedModel, format: Format, files: Sequence[str]
) -> tuple[str, ...]:
    notes = []
    if loaded.tokenizer is None:
        notes.append(f"{loaded.source} has no tokenizer: none was written")
    if format == "hf" and EXTRA in files:
        notes.append(
            f"{EXTRA} holds what transformers has no place for; encoderjax reads it"
        )
    if format == "hf" and loaded.config.sharing in ("attention", "ffn"):
        notes.append("what the layers share was written once for each of them")
    return tuple(notes)


def _check_free(out: Path, overwrite: bool) -> None:
    """Refuses to write over what this command did not write."""
    if out.exists() and not out.is_dir():
        raise UserError(f"out={str(out)!r} is a file; give a folder")
    if not out.is_dir() or overwrite or (out / MARKER).is_file():
        return
    if any(out.iterdir()):
        raise UserError(
            f"out={str(out)!r} is not empty and no earlier export; give another "
            "folder, or --overwrite to replace its files of the same names"
        )


@contextmanager
def _whole_folder(out: Path) -> Iterator[Path]:
    """Yields a folder to write to, which becomes `out` when all went well."""
    partial = out.with_name(f".{out.name}.partial-{os.getpid()}")
    try:
        partial.mkdir(parents=True)
        yield partial
        _put(partial, out)
    except OSError as error:
        raise UserError(f"out={str(out)!r} cannot be written: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _put(partial: Path, out: Path) -> None:
    """Moves what was written to `out`.

    Into a folder with other files it goes file by file: what an earlier export wrote
    is removed, what is not ours stays.
    """
    if not out.is_dir() or not any(out.iterdir()):
        partial.replace(out)
        return
    earlier = out / MARKER
    stale = weights.read_json(earlier)["files"] if earlier.is_file() else []
    new = [path.name for path in partial.iterdir()]
    for name in new:
        (partial / name).replace(out / name)
    for name in set(stale) - set(new):
        (out / Path(name).name).unlink(missing_ok=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Exports what the flags ask for."""
    parser = Parser(
        command="export",
        description="Export a model to a folder that transformers loads in PyTorch.",
        examples=_EXAMPLES,
    )
    parser.add_argument(
        "--workdir",
        "--model",
        required=True,
        metavar="DIR",
        help="a workdir, or a folder with a model",
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="folder to write")
    parser.add_argument(
        "--step", type=int, help="which checkpoint; default: the last one"
    )
    parser.add_argument(
        "--format",
        choices=get_args(Format),
        default="hf",
        help="hf: for transformers; params: plain safetensors under our own names",
    )
    parser.add_argument(
        "--part",
        choices=get_args(Part),
        help="of a model trained with a generator; default: the discriminator",
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace files even in a folder that is no earlier export",
    )
    flags = parser.parse_strictly(arguments)
    exported = run(
        flags.workdir,
        flags.out,
        step=flags.step,
        format=flags.format,
        part=flags.part,
        overwrite=flags.overwrite,
    )
    for line in exported.report:
        print(f"note: {line}")
    what = "the model" if exported.step is None else f"step {exported.step}"
    print(
        f"exported {what} to {exported.out}: {exported.num_parameters:,} parameters, "
        f"{exported.num_bytes / 1e6:.1f} MB ({', '.join(exported.files)})"
    )
    print("load it in PyTorch:")
    for line in exported.usage:
        print(f"  {line}")


if __name__ == "__main__":
    run_command(main)
