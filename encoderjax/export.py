"""Exports a model to a folder that PyTorch and `transformers` load.

`--format=params` writes our own tree instead: plain safetensors and a list of names,
also for what Hugging Face has no class for.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from encoderjax.command import Parser, run_command
from encoderjax.errors import UserError
from encoderjax.interop import weights
from encoderjax.interop.export_folder import (
    MARKER,
    check_free,
    names_in,
    whole_folder,
)
from encoderjax.interop.huggingface import architecture
from encoderjax.interop.loading import LoadedModel, load_model
from encoderjax.interop.own_files import EXTRA, PARAMS, PARAMS_INDEX
from encoderjax.interop.precision import Dtype
from encoderjax.interop.sentence_loading import (
    LoadedSentence,
    holds_sentence,
    load_sentence,
)
from encoderjax.interop.task_loading import LoadedTask, holds_task, load_task
from encoderjax.interop.writing import (
    write_hf,
    write_params,
    write_sentence_transformers,
    write_task_hf,
    write_tokenizer,
)
from encoderjax.models.pooling import NORMALISE, POOLINGS, Normalise, Pooling
from encoderjax.models.task_heads import task_form
from encoderjax.precision_change import Examples, metrics_change, read_examples
from encoderjax.tasks.whitening import Whitening
from encoderjax.version import VERSION

Format = Literal["hf", "sentence_transformers", "params"]
Loaded = LoadedModel | LoadedTask | LoadedSentence
Part = Literal["discriminator", "generator"]

_TABLE = "encoder/token_embed/embedding"
_EXAMPLES = (
    "python -m encoderjax.export --workdir=runs/bert_tiny --out=exported/bert_tiny",
    "python -m encoderjax.export --workdir=runs/bert_tiny --step=1000 --out=exported/b",
    "python -m encoderjax.export --workdir=runs/bert_tiny --format=params --out=params",
    "python -m encoderjax.export --workdir=runs/electra_small --part=generator --out=g",
    "python -m encoderjax.export --workdir=runs/classify --dtype=bfloat16 --out=half",
    "python -m encoderjax.export --workdir=runs/bert_tiny --out=st "
    "--format=sentence_transformers --pooling=mean --normalise=l2",
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
      loaded: the model itself, in float32.
      examples: those that were asked for, to measure what fewer bits change.
    """

    out: Path
    files: tuple[str, ...]
    num_parameters: int
    num_bytes: int
    step: int | None
    usage: tuple[str, ...]
    report: tuple[str, ...]
    loaded: Loaded
    examples: Examples | None = None


def run(
    workdir: str | Path,
    out: str | Path,
    *,
    step: int | None = None,
    format: Format | None = None,
    part: Part | None = None,
    dtype: Dtype = "float32",
    overwrite: bool = False,
    pooling: Pooling | None = None,
    normalise: Normalise | None = None,
    length: int | None = None,
    whitening: str | Path | None = None,
    examples: str | None = None,
) -> Exported:
    """Exports a workdir, or a folder with a model, to `out`.

    Args:
      workdir: a workdir, a folder of Hugging Face, or an earlier export.
      out: the folder to write; it appears when it is whole.
      step: which checkpoint of a workdir; the last one when left out, of a fine-tuned
        one the best.
      format: `hf` for transformers, `sentence_transformers`, or `params` for our own
        tree; None = `sentence_transformers` for what gives texts vectors, else `hf`.
      part: of a model that was trained with a generator: `discriminator` (the default
        for `hf`) or `generator`; `params` holds both unless told.
      dtype: of the weights; `int8` is read by encoderjax, and by PyTorch with the lines
        that `usage` gives.
      overwrite: whether files of a folder that is no earlier export may be replaced.
      pooling: of sentence_transformers; None = the model's own, or `mean`.
      normalise: likewise; None = the model's own, or `none`.
      length: likewise, of rows; None = the model's own, or all it can read to 512.
      whitening: likewise, an .npz that `embed --save_whitening` wrote.
      examples: a file with labels, or pairs with scores, that is read before anything
        is written; for a `dtype` of fewer bits.
    """
    if format is None:
        format = "sentence_transformers" if holds_sentence(workdir) else "hf"
    for name, value, allowed in (
        ("format", format, get_args(Format)),
        ("dtype", dtype, get_args(Dtype)),
    ):
        if value not in allowed:
            raise UserError(f"{name}={value!r} must be one of {allowed}")
    if examples is not None and dtype == "float32":
        raise UserError(
            f"examples={examples!r} measure what fewer bits change; give a --dtype of "
            "fewer, or leave them out"
        )
    out = Path(out).expanduser()
    check_free(out, overwrite)
    loaded = _load(workdir, step, format, part)
    changes: dict[str, Any] = {"pooling": pooling, "normalise": normalise}
    changes |= {"length": length, "whitening": whitening}
    if isinstance(loaded, LoadedSentence):
        loaded = _changed(loaded, **changes)
    elif given := [name for name, value in changes.items() if value is not None]:
        raise UserError(
            f"{given[0]}={changes[given[0]]!r} belongs to vectors of texts; use "
            "--format=sentence_transformers"
        )
    found = None if examples is None else _examples(loaded, examples)
    with whole_folder(out) as folder:
        if format == "params":
            num_parameters = write_params(folder, loaded, dtype)
        elif isinstance(loaded, LoadedSentence):
            num_parameters = write_sentence_transformers(folder, loaded, dtype)
        elif isinstance(loaded, LoadedTask):
            num_parameters = write_task_hf(folder, loaded, dtype)
        else:
            num_parameters = write_hf(folder, loaded, dtype)
        if loaded.tokenizer is not None:
            longest = loaded.config.max_length
            if isinstance(loaded, LoadedSentence) and format != "params":
                longest = loaded.description.length  # where they are cut there
            write_tokenizer(folder, loaded.tokenizer, longest)
        _write_marker(folder, loaded)
    files = tuple(sorted(weights.read_json(out / MARKER)["files"]))
    return Exported(
        out=out,
        files=files,
        num_parameters=num_parameters,
        num_bytes=sum((out / name).stat().st_size for name in files),
        step=loaded.step,
        usage=_usage(loaded, format, dtype, out),
        report=loaded.report + _notes(loaded, format, dtype, files),
        loaded=loaded,
        examples=found,
    )


def _examples(loaded: Loaded, path: str) -> Examples:
    if isinstance(loaded, LoadedModel):
        raise UserError(
            f"examples={path!r}: {loaded.source} has no task to be measured by; leave "
            "them out"
        )
    return read_examples(loaded, path)


def _load(
    workdir: str | Path, step: int | None, format: Format, part: Part | None
) -> Loaded:
    vectors = format == "params" and holds_sentence(workdir)
    if format == "sentence_transformers" or vectors:
        if part is not None:
            raise UserError(
                f"part={part!r}: vectors of texts are the discriminator's; leave it out"
            )
        return load_sentence(workdir, step)
    if not holds_task(workdir):
        loaded = load_model(workdir, step=step)
        if part is not None or format == "hf":
            loaded = loaded.part(part or "discriminator")
        return loaded
    if part == "generator":
        raise UserError(
            f"part={part!r}: {workdir} is fine-tuned for a task and has no generator"
        )
    return load_task(workdir, step)


def _changed(
    loaded: LoadedSentence, whitening: str | Path | None, **changes: Any
) -> LoadedSentence:
    loaded = loaded.changed(**changes)
    if whitening is None:
        return loaded
    kept = Whitening.load(Path(whitening).expanduser())
    return loaded.whitened(kept.mean, kept.kernel)


def _write_marker(folder: Path, loaded: Loaded) -> None:
    files = sorted(names_in(folder))
    about = {"encoderjax": VERSION, "step": loaded.step, "files": [*files, MARKER]}
    weights.write_json(folder / MARKER, about)


def _usage(loaded: Loaded, format: Format, dtype: Dtype, out: Path) -> tuple[str, ...]:
    if format == "params":
        return (
            "from safetensors.torch import load_file",
            f"params = load_file({str(out / PARAMS)!r})  # named as in {PARAMS_INDEX}",
            f"name = {_TABLE!r}",
            f"table = params[name] * params[name + {weights.SCALE!r}]"
            if dtype == "int8"
            else "table = params[name]",
        )
    if isinstance(loaded, LoadedSentence):
        return (
            "from sentence_transformers import SentenceTransformer",
            f"model = SentenceTransformer({str(out)!r})",
            'vectors = model.encode(["a text", "another"])',
        )
    if isinstance(loaded, LoadedTask):
        name = task_form(loaded.family, loaded.description.kind).architecture
    else:
        name = architecture(loaded.family, loaded.head_names)
    if dtype == "int8":
        return (
            f"from transformers import AutoConfig, AutoTokenizer, {name}",
            "from safetensors.torch import load_file",
            f"tokenizer = AutoTokenizer.from_pretrained({str(out)!r})",
            f"stored = load_file({str(out / weights.INT8)!r})",
            f"scale = lambda n: stored.get(n + {weights.SCALE!r}, 1)",
            "whole = {n: scale(n) * t for n, t in stored.items()}",
            f"model = {name}(AutoConfig.from_pretrained({str(out)!r})).eval()",
            "model.load_state_dict(whole, strict=False)",
        )
    return (
        f"from transformers import AutoTokenizer, {name}",
        f"tokenizer = AutoTokenizer.from_pretrained({str(out)!r})",
        f"model = {name}.from_pretrained({str(out)!r})",
    )


def _notes(
    loaded: Loaded,
    format: Format,
    dtype: Dtype,
    files: Sequence[str],
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
    if format == "hf" and dtype == "int8":
        notes.append(
            f"{weights.INT8} is encoderjax's own form, which from_pretrained does not "
            "read: encoderjax does, and PyTorch with the lines below"
        )
    return tuple(notes)


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
        "--step",
        type=int,
        help="which checkpoint; default: the last one, of a fine-tuned run the best",
    )
    parser.add_argument(
        "--format",
        choices=get_args(Format),
        help="hf: for transformers; sentence_transformers: default of a model that was "
        "trained for texts' vectors; params: plain safetensors under our own names",
    )
    parser.add_argument(
        "--part",
        choices=get_args(Part),
        help="of a model trained with a generator; default: the discriminator",
    )
    parser.add_argument(
        "--dtype",
        choices=get_args(Dtype),
        default="float32",
        help="of the weights; int8: weight-only, a scale for each output",
    )
    parser.add_argument(
        "--examples",
        metavar="FILE",
        help="with --dtype: labelled examples, or pairs with scores, to measure the "
        "change on; default: the run's validation examples",
    )
    for name, choices in (("pooling", POOLINGS), ("normalise", NORMALISE)):
        parser.add_argument(
            f"--{name}", choices=choices, help="of texts' vectors; see embed"
        )
    parser.add_argument("--length", type=int, help="of sentence_transformers' rows")
    parser.add_argument(
        "--whitening", metavar="FILE", help="of texts' vectors: what embed saved"
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
        dtype=flags.dtype,
        overwrite=flags.overwrite,
        pooling=flags.pooling,
        normalise=flags.normalise,
        length=flags.length,
        whitening=flags.whitening,
        examples=flags.examples,
    )
    for line in exported.report:
        print(f"note: {line}")
    what = "the model" if exported.step is None else f"step {exported.step}"
    print(
        f"exported {what} to {exported.out}: {exported.num_parameters:,} parameters, "
        f"{exported.num_bytes / 1e6:.1f} MB ({', '.join(exported.files)})"
    )
    loaded = exported.loaded
    if flags.dtype != "float32" and not isinstance(loaded, LoadedModel):
        print(metrics_change(loaded, flags.dtype, exported.examples))
    print("load it in PyTorch:")
    for line in exported.usage:
        print(f"  {line}")


if __name__ == "__main__":
    run_command(main)
