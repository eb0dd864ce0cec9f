"""Writes the vectors of texts, and shows what they are good for.

python -m encoderjax.embed --model=DIR --input=texts.txt --out=vectors.npy

The file holds a row for each text, in their order; it appears when it is whole, and
memory does not grow with it. With `--nearest` the rows are printed that are nearest to
a query, with `--anisotropy` how unevenly the vectors point, with `--sts` how well they
tell whether two texts mean the same.
"""

import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import jax.numpy as jnp
import numpy as np

from encoderjax.command import Parser, run_command
from encoderjax.errors import UserError
from encoderjax.interop.sentence_loading import LoadedSentence, load_sentence
from encoderjax.interop.task_description import Cut
from encoderjax.models.pooling import NORMALISE, POOLINGS
from encoderjax.models.sentence import Layers
from encoderjax.tasks import sts
from encoderjax.tasks.anisotropy import Anisotropy, TokenNorms, anisotropy, report
from encoderjax.tasks.array_files import GrowingArray, scratch_folder
from encoderjax.tasks.embedding import Embedder
from encoderjax.tasks.records import Form, encodable
from encoderjax.tasks.retrieval import nearest
from encoderjax.tasks.vector_files import (
    TextSource,
    finish,
    gather,
    text_blocks,
    write_tokens,
)
from encoderjax.tasks.whitening import Whitening, check_place

Level = Literal["texts", "tokens"]
Dtype = Literal["float32", "float16"]
FIT = "fit"
_SAMPLE = 1000  # texts whose tokens are measured
_SHOWN = 100  # characters of a text that was found

_EXAMPLES = (
    "python -m encoderjax.embed --model=runs/bert_tiny --input=texts.txt --out=v.npy",
    "python -m encoderjax.embed --model=DIR --input=a.csv --column=review --out=v.npy "
    "--pooling=cls --normalise=l2 --dtype=float16",
    "python -m encoderjax.embed --model=DIR --input=texts.txt --out=v.npy "
    "--whiten=fit --components=256 --save_whitening=w.npz --anisotropy",
    "python -m encoderjax.embed --model=DIR --input=texts.txt --nearest='a fine day'",
    "python -m encoderjax.embed --model=DIR --input=texts.txt --out=tokens.npz "
    "--level=tokens",
    "python -m encoderjax.embed --model=DIR --sts=stsb-dev.csv --columns=0,1,2",
)


@dataclasses.dataclass(frozen=True)
class Found:
    """A row that is near a query."""

    row: int
    cosine: float
    text: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Embedded:
    """What was made.

    Attributes:
      out: the file; None where none was asked for.
      rows: texts.
      width: columns of a vector.
      tokens: of all texts, where their vectors were asked for.
      nearest: of each query, the nearest rows.
      before, after: the measures of pooled and of finished vectors.
    """

    out: Path | None
    rows: int
    width: int
    tokens: int | None = None
    nearest: tuple[tuple[Found, ...], ...] = ()
    before: Anisotropy | None = None
    after: Anisotropy | None = None


def run(
    embedder: Embedder,
    source: TextSource,
    out: str | Path | None = None,
    *,
    level: Level = "texts",
    dtype: Dtype = "float32",
    fit_whitening: bool = False,
    components: int | None = None,
    save_whitening: str | Path | None = None,
    queries: Sequence[str] = (),
    top: int = 5,
    measure: bool = False,
) -> Embedded:
    """Writes the vectors of a file's texts, and looks at them.

    Args:
      embedder: the model, and how vectors are made.
      source: the texts.
      out: .npy, or .npz for tokens; None = nothing is kept.
      level: a vector for each text, or for each token (see `write_tokens`).
      dtype: of the file.
      fit_whitening: whether vectors are whitened by what these texts have in common.
      components: how many columns the whitening keeps; None = all that differ.
      save_whitening: an .npz for the whitening that was fitted.
      queries: texts whose nearest rows are asked for.
      top: how many.
      measure: whether to measure anisotropy, before and after.
    """
    out = None if out is None else Path(out).expanduser()
    suffix = ".npz" if level == "tokens" else ".npy"
    if out is not None and out.suffix != suffix:
        raise UserError(
            f"out={str(out)!r} must end in {suffix}, as vectors of {level} are written"
        )
    if level == "tokens" and (fit_whitening or queries or measure):
        raise UserError(
            "level='tokens' has vectors of tokens alone; leave out --whiten=fit, "
            "--nearest and --anisotropy"
        )
    if queries and top < 1:
        raise UserError(f"top={top} must be at least 1")
    most = embedder.pooled_width
    if components is not None and not 1 <= components <= most:
        raise UserError(
            f"components={components} must be from 1 to {most}, the columns of a vector"
        )
    if save_whitening is not None:
        save_whitening = Path(save_whitening).expanduser()
        check_place(save_whitening)
    kind = np.dtype(dtype)
    with scratch_folder(out) as folder:
        if level == "tokens":
            file, rows, tokens = write_tokens(embedder, source.texts(), folder, kind)
            _put(file, out)
            width = embedder.width
            return Embedded(out=out, rows=rows, width=width, tokens=tokens)
        file, pooled = folder / "vectors.npy", None
        if fit_whitening or measure:  # after all vectors were seen
            array = GrowingArray(
                folder / "pooled.npy", np.dtype(np.float32), (embedder.pooled_width,)
            )
            pooled = _gathered(embedder.pooled, source, array)
            if fit_whitening:
                whitening = Whitening.fit(pooled, components)
                embedder = embedder.whitened(whitening)
                if save_whitening is not None:
                    whitening.save(save_whitening)
            array = GrowingArray(file, kind, (embedder.width,))
            finish(embedder, pooled, array)
            finished = array.read()
        else:
            array = GrowingArray(file, kind, (embedder.width,))
            finished = _gathered(embedder.vectors, source, array)
        _put(file, out)  # and what was mapped stays
        found = _nearest(embedder, source, finished, queries, top)
        before = after = None
        if pooled is not None and measure:
            before, after = _measured(embedder, source, pooled, finished)
    return Embedded(
        out=out,
        rows=len(finished),
        width=embedder.width,
        nearest=found,
        before=before,
        after=after,
    )


def _gathered(vectors_of: Any, source: TextSource, array: GrowingArray) -> np.ndarray:
    def told(rows: int) -> None:
        if sys.stderr.isatty():
            print(f"\r{rows:,} texts", end="", file=sys.stderr, flush=True)

    vectors = gather(vectors_of, source.texts(), array, told).read()
    if sys.stderr.isatty():
        print(file=sys.stderr)
    return vectors


def _put(file: Path, out: Path | None) -> None:
    if out is not None:
        os.replace(file, out)


def _nearest(
    embedder: Embedder,
    source: TextSource,
    vectors_RK: np.ndarray,
    queries: Sequence[str],
    top: int,
) -> tuple[tuple[Found, ...], ...]:
    if not queries:
        return ()
    numbers_QT, cosines_QT = nearest(embedder.vectors(queries), vectors_RK, top)
    texts = source.chosen(numbers_QT.reshape(-1).tolist())
    return tuple(
        tuple(
            Found(number, cosine, texts[number])
            for number, cosine in zip(numbers, cosines, strict=True)
        )
        for numbers, cosines in zip(
            numbers_QT.tolist(), cosines_QT.tolist(), strict=True
        )
    )


def _measured(
    embedder: Embedder, source: TextSource, pooled: np.ndarray, finished: np.ndarray
) -> tuple[Anisotropy, Anisotropy]:
    """Returns the measures of all vectors, and of the tokens of some texts."""
    tokenizer = embedder.loaded.need_tokenizer()
    size = tokenizer.vocabulary.size
    frequency_V = np.zeros(size, np.int64)
    for block in text_blocks(source.texts()):
        ids = np.concatenate(tokenizer.encode(block))
        frequency_V += np.bincount(ids, minlength=size)
    rows = len(pooled)
    sample = np.random.default_rng(0).permutation(rows)[:_SAMPLE]
    before, after = TokenNorms(size), TokenNorms(size)
    for block in text_blocks(source.chosen(sample.tolist()).values(), 64):
        tokens = embedder.tokens(block)
        ids = np.concatenate([text.ids for text in tokens])
        states = np.concatenate([text.vectors for text in tokens])
        before.add(ids, states)
        after.add(ids, embedder.finish(states))
    return (
        anisotropy(pooled, before.by_frequency(frequency_V)),
        anisotropy(finished, after.by_frequency(frequency_V)),
    )


# ---- the command ----


def main(arguments: Sequence[str] | None = None) -> None:
    """Embeds and prints what the flags ask for."""
    flags = _parser().parse_strictly(arguments)
    if (flags.input is None) == (flags.sts is None):
        raise UserError("give the texts, --input=FILE, or pairs of them, --sts=FILE")
    asked = flags.nearest or flags.queries or flags.anisotropy
    if flags.input is not None and flags.out is None and not asked:
        raise UserError("give --out=FILE.npy for the vectors, or --nearest='a query'")
    loaded = load_sentence(flags.model, flags.step).changed(
        pooling=flags.pooling,
        normalise=flags.normalise,
        layers=flags.layers,
        length=flags.length,
        cut=flags.cut,
        stride=flags.stride,
    )
    for line in loaded.report:
        print(f"note: {line}", file=sys.stderr)
    loaded = _with_whitening(loaded, flags)
    embedder = Embedder(
        loaded, batch_size=flags.batch_size, dtype=jnp.dtype(flags.precision)
    )
    if flags.input is None:
        _print_sts(embedder, flags)
        return
    queries = [encodable(text) for text in flags.nearest]
    if flags.queries is not None:
        queries += TextSource(flags.queries).texts()
    embedded = run(
        embedder,
        TextSource(flags.input, flags.column, flags.form),
        flags.out,
        level=flags.level,
        dtype=flags.dtype,
        fit_whitening=flags.whiten == FIT,
        components=flags.components,
        save_whitening=flags.save_whitening,
        queries=queries,
        top=flags.top,
        measure=flags.anisotropy,
    )
    _print_result(embedded, queries, flags)


def _with_whitening(loaded: LoadedSentence, flags: Any) -> LoadedSentence:
    if flags.whiten != FIT:
        for name in ("components", "save_whitening"):
            if getattr(flags, name) is not None:
                raise UserError(f"--{name} goes with --whiten=fit; give both")
    elif loaded.description.head.components is not None:
        raise UserError(
            f"{loaded.source} has a whitening of its own; leave out --whiten=fit"
        )
    if flags.whiten in (None, FIT):
        return loaded
    whitening = Whitening.load(Path(flags.whiten).expanduser())
    return loaded.whitened(whitening.mean, whitening.kernel)


def _print_sts(embedder: Embedder, flags: Any) -> None:
    names = flags.columns.split(",")
    if len(names) != len(sts.COLUMNS):
        raise UserError(
            f"columns={flags.columns!r} must name three: both texts and the score, "
            "such as 0,1,2"
        )
    columns = dict(zip(sts.COLUMNS, names, strict=True))
    pairs = sts.read_pairs(flags.sts, columns, flags.form)
    print(f"{len(pairs):,} pairs; Spearman's correlation of the {flags.similarity}:")
    print(sts.table_text(sts.sts_table(embedder, pairs, flags.similarity)))
    head = embedder.loaded.description.head
    whitened = "" if head.components is None else ", whitened"
    print(f"as it is ({head.pooling}, {head.layers}, {head.normalise}{whitened}):")
    for name, value in sts.evaluate_sts(embedder, pairs).items():
        print(f"  {name:<18} {100 * value:.2f}")


def _print_result(embedded: Embedded, queries: Sequence[str], flags: Any) -> None:
    for query, found in zip(queries, embedded.nearest, strict=True):
        print(query)
        for near in found:
            text = " ".join(near.text.split())
            more = "..." if len(text) > _SHOWN else ""
            print(f"  {near.cosine:.4f}  row {near.row}: {text[:_SHOWN]}{more}")
    if embedded.before is not None:
        print(report(embedded.before, embedded.after))
    if embedded.out is not None:
        tokens = "" if embedded.tokens is None else f", {embedded.tokens:,} tokens"
        print(
            f"wrote {embedded.out}: {embedded.rows:,} texts{tokens}, {embedded.width} "
            f"columns, {flags.dtype}"
        )


def _parser() -> Parser:
    parser = Parser(
        command="embed",
        description="Write the vectors of texts to a file, or compare texts by them.",
        examples=_EXAMPLES,
    )
    add = parser.add_argument
    add("--model", required=True, metavar="DIR", help="a workdir, or a folder")
    add("--step", type=int, help="which checkpoint; default: the best, or the last")
    add("--input", metavar="FILE", help="texts: .txt (one a line), .csv, .tsv, .jsonl")
    add("--column", default="text", help="of a table: where the texts stand")
    add("--form", choices=get_args(Form), help="of the file; default: by its name")
    add("--out", metavar="FILE", help=".npy, or .npz for tokens")
    add("--dtype", choices=get_args(Dtype), default="float32", help="of the file")
    add("--pooling", choices=POOLINGS, help="default: the model's own, or mean")
    add("--normalise", choices=NORMALISE, help="default: the model's own, or none")
    add("--layers", choices=get_args(Layers), help="default: the model's own, or last")
    add(
        "--whiten",
        metavar="fit|FILE",
        help="fit a whitening on these texts, or take a saved one",
    )
    add("--components", type=int, help="columns that a fitted whitening keeps")
    add("--save_whitening", metavar="FILE", help="keep a fitted whitening, as .npz")
    add(
        "--level",
        choices=get_args(Level),
        default="texts",
        help="a vector for each text, or for each of its tokens, as .npz: vectors, "
        "rows (where each text begins), ids, starts, ends, vocabulary",
    )
    add("--length", type=int, help="of rows, in tokens")
    add("--cut", choices=get_args(Cut), help="what is read of a longer text")
    add("--stride", type=int, help="of windows: from one's start to the next's")
    add("--batch_size", type=int, default=64, help="rows that are read at once")
    add("--precision", choices=("float32", "bfloat16"), default="float32")
    add(
        "--nearest",
        action="append",
        default=[],
        metavar="TEXT",
        help="print the rows that are nearest to this text; may be repeated",
    )
    add("--queries", metavar="FILE", help="the same for each line of a .txt")
    add("--top", type=int, default=5, help="how many")
    add("--anisotropy", action="store_true", help="print how unevenly vectors point")
    add("--sts", metavar="FILE", help="pairs with scores: print a table of poolings")
    add("--columns", default="0,1,2", help="of --sts: both texts and the score")
    add(
        "--similarity",
        choices=get_args(sts.Similarity),
        default="cosine",
        help="of --sts: what tells how alike two vectors are",
    )
    return parser


if __name__ == "__main__":
    run_command(main)
