"""Prepares a corpus: documents, sentences, tokenizer, and the arrays to train on."""

import os
import shlex
from collections.abc import Sequence
from typing import Literal

from encoderjax.command import Parser, run_command
from encoderjax.data import storage
from encoderjax.data.corpus import (
    MIXTURE,
    WORK,
    read_json,
    read_manifest,
    verify_files,
)
from encoderjax.data.preparation import prepare
from encoderjax.data.shares import ALPHA
from encoderjax.data.workers import Beam, InPlace, Processes, Workers
from encoderjax.errors import UserError

_EXAMPLES = (
    "python -m encoderjax.prepare --source=demo --out=corpora/demo "
    "--tokenizer=wordpiece:8000",
    "python -m encoderjax.prepare --source='books/*.txt.gz' --out=corpora/books",
    "python -m encoderjax.prepare --source=wiki.jsonl.zst --text_key=body "
    "--out=corpora/wiki --tokenizer=vocab.txt --deduplicate --min_chars=200",
    "python -m encoderjax.prepare --source='gs://bucket/wiki/*.parquet' "
    "--out=gs://bucket/corpora/wiki --tokenizer=bbpe:50265",
    "python -m encoderjax.prepare --source=tfds:lm1b@train --out=corpora/lm1b",
    "python -m encoderjax.prepare --source='cc100/*.jsonl.gz' --language_key=file "
    "--out=corpora/cc100 --tokenizer=unigram/xlm_roberta:250002",
    "python -m encoderjax.prepare --source='pairs/*.jsonl' --text_key=en,fr "
    "--sentences=fields --out=corpora/en_fr --tokenizer=unigram/xlm_roberta:8000",
    "python -m encoderjax.prepare --source='notes/*.txt' --out=corpora/notes "
    "--tokenizer=exported/bert --extend_vocabulary=1000",
    "python -m encoderjax.prepare --out=corpora/wiki --rows_for=configs/bert_base.py",
    "python -m encoderjax.prepare --verify --out=corpora/wiki",
)

_SOURCE = (
    "'demo', 'tfds:NAME[/CONFIG][:VERSION][@SPLIT]', or files, folders, globs and URLs "
    "(gs://, s3://), separated by commas: text, .jsonl (each also .gz, .zst, ...) or "
    ".parquet"
)
_OPTIONS = {
    "tokenizer": (
        "wordpiece:30522",
        "KIND:SIZE to train one, KIND being wordpiece or wordpiece_cased (BERT), "
        "wordpiece_likelihood (also _cased), bbpe (RoBERTa), bbpe/deberta, "
        "bbpe/modernbert, unigram or unigram_cased (ALBERT), unigram/xlnet, "
        "unigram/xlm_roberta or unigram/deberta_v2; or a path to a tokenizer.json, a "
        "vocab.txt, a vocab.json with its merges.txt, a SentencePiece .model, or a "
        "folder with one",
    ),
    "text_key": (
        "text",
        "the field of a record that holds its text; of several, separated by commas, "
        "each is a paragraph",
    ),
    "sentences": (
        "auto",
        "lines: one a line; split: prose, to be split; auto: by each file's head; "
        "fields: a line and its translation, the two fields of --text_key, which are "
        "called by their languages",
    ),
    "documents": (
        "auto",
        "what a document of a text file is: blank_line (ends it), file or line; "
        "auto: blank_line for sentences=lines, file for prose",
    ),
    "language_key": (
        "",
        "what tells the language of a document: a field of its record, 'file' (its "
        "name up to the first dot) or 'folder'; each becomes a corpus in --out",
    ),
    "languages": ("", "those that are taken, separated by commas; all if not given"),
    "alpha": (
        ALPHA,
        "a language with n sentences has a part of n^alpha in the sample that a "
        "tokenizer is trained on",
    ),
    "min_chars": (1, "documents with less text are left out"),
    "max_chars": (
        0,
        "documents with more text, or cut for their length, are left out; 0: none",
    ),
    "sample": (1.0, "the share of documents that is taken"),
    "deduplicate": (False, "take only the first of documents with the same text"),
    "strict": (False, "stop at broken input instead of skipping and counting it"),
    "tfds_dir": ("", "where data sets of tfds lie, if not in TFDS_DATA_DIR"),
    "validation": (
        0.01,
        "share of documents to hold out: one of every 2, 3, 4, ..., which is nearest",
    ),
    "seed": (0, "of the held-out choice and of the samples"),
    "shard_mb": (0, "megabytes of text in a shard; 0: 16 to 256, by the source's size"),
    "extend_vocabulary": (
        0,
        "how many words of the source, the most frequent that a loaded tokenizer "
        "splits, are added behind its vocabulary",
    ),
}


def run(
    *,
    source: str,
    out: str,
    workers: int = 0,
    runner: Literal["local", "beam"] = "local",
    beam_options: str = "",
    **options,
) -> None:
    """Prepares `source` to the folder `out`, or continues where it was interrupted.

    Args:
      workers: processes; 0 = one for each core.
      beam_options: of Apache Beam, such as "--runner=FlinkRunner --parallelism=64".
      options: of `preparation.prepare`.
    """
    prepare(
        source=source,
        out=out,
        workers=_workers(workers, runner, beam_options, out),
        **options,
    )
    recipe = "bert_tiny.py"
    if options.get("language_key"):
        recipe = "xlm_roberta_base.py:tiny"
    if options.get("sentences") == "fields":
        languages = tuple(options["text_key"].split(","))
        recipe = f'xlm_tlm_base.py:tiny --config.model.languages="{languages}"'
    if options.get("extend_vocabulary"):
        recipe = "continue_pretraining.py --config.init_vocabulary=extend "
        recipe += "--config.init_from=MODEL"
    print(
        f"next: python -m encoderjax.train --config=configs/{recipe} "
        f"--config.data.corpus={out}"
    )


def _workers(count: int, runner: str, beam_options: str, out: str) -> Workers:
    if count < 0:
        raise UserError(f"--workers={count} must be 0 (one for each core) or more")
    count = count or _num_cores()
    if runner == "beam":
        return Beam(count, storage.join(out, WORK), shlex.split(beam_options))
    if beam_options:
        raise UserError(f"--beam_options={beam_options!r} needs --runner=beam")
    return InPlace() if count == 1 else Processes(count)


def _num_cores() -> int:
    """Returns the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def verify(out: str) -> None:
    """Compares every file of the corpus in `out`, or of each in it, with its sha256."""
    mixture = storage.join(out, MIXTURE)
    members = [""]
    if storage.find_file(mixture) is not None:
        try:
            members = list(read_json(mixture)["members"])
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(
                f"{mixture} is damaged; copy it again or delete {out} and prepare it "
                "anew"
            ) from error
    for member in members:
        folder = storage.join(out, member) if member else out
        manifest = read_manifest(folder)
        verify_files(folder, manifest)
        count = len(manifest["files"])
        print(f"{folder}: all {count} files are as they were written")


def cut_rows(config: str, out: str, overrides: Sequence[str] = ()) -> None:
    """Cuts the rows that a recipe reads of the corpus in `out`, ahead of its run.

    Args:
      overrides: of the recipe, such as --config.data.length=512.
    """
    # Only here: the rest of this command does without jax.
    from encoderjax.config_loading import load_config, overrides_of
    from encoderjax.phases import open_stages

    changes = {**overrides_of(_parser(), overrides), "data.corpus": out}
    stages = open_stages(load_config(config, changes), print, None)
    for stage in stages:
        name = stage.phase.name or "train"
        print(f"{name}: rows of {stage.phase.config.data.length} are cut")


def main(arguments: Sequence[str] | None = None) -> None:
    """Parses the flags and runs."""
    flags, overrides = _parser().parse_known_args(arguments)
    if flags.rows_for is None:  # a recipe's fields mean nothing without one
        flags = _parser().parse_strictly(arguments)
    settings = dict(vars(flags))
    only_verify, rows_for = settings.pop("verify"), settings.pop("rows_for")
    if only_verify:
        verify(flags.out)
    elif flags.source is not None:
        run(**settings)
    elif rows_for is None:
        raise UserError("--source is missing; give files, a folder, a glob or 'demo'")
    if rows_for is not None:
        cut_rows(rows_for, flags.out, overrides)


def _parser() -> Parser:
    parser = Parser(command="prepare", description=__doc__ or "", examples=_EXAMPLES)
    parser.add_argument("--source", help=_SOURCE)
    parser.add_argument("--out", required=True, help="the folder; a rerun continues")
    for name, (default, text) in _OPTIONS.items():
        if default is False:
            parser.add_argument(f"--{name}", action="store_true", help=text)
            continue
        text = f"{text} (default: {default})" if default != "" else text
        parser.add_argument(f"--{name}", type=type(default), default=default, help=text)
    parser.add_argument(
        "--workers", type=int, default=0, help="processes; 0: one for each core"
    )
    parser.add_argument(
        "--runner",
        choices=("local", "beam"),
        default="local",
        help="beam: the same work under Apache Beam (default: local)",
    )
    parser.add_argument(
        "--beam_options",
        default="",
        help="for Apache Beam, in one string: '--runner=FlinkRunner --parallelism=64'",
    )
    parser.add_argument(
        "--rows_for",
        metavar="CONFIG",
        help="cut the rows that this recipe reads, too, with its fields overridden by "
        "--config.a.b=c; with --out alone, only that",
    )
    parser.add_argument(
        "--verify", action="store_true", help="only check the hashes of --out's files"
    )
    return parser


if __name__ == "__main__":
    run_command(main)
