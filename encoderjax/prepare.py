"""Prepares a corpus: documents, sentences, tokenizer, and the arrays to train on."""

from collections.abc import Sequence

from encoderjax.command import Parser, run_command
from encoderjax.data.corpus import Corpus
from encoderjax.data.preparation import prepare_corpus
from encoderjax.data.sources import DocumentForm, SentenceForm
from encoderjax.errors import UserError

_EXAMPLES = (
    "python -m encoderjax.prepare --source=demo --out=corpora/demo "
    "--tokenizer=wordpiece:8000",
    "python -m encoderjax.prepare --source='books/*.txt.gz' --out=corpora/books",
    "python -m encoderjax.prepare --source=wiki.jsonl.zst --text_key=body "
    "--out=corpora/wiki --tokenizer=vocab.txt",
    "python -m encoderjax.prepare --source='books/*.txt.gz' --out=corpora/bbpe "
    "--tokenizer=bbpe:50265",
    "python -m encoderjax.prepare --source='notes/*.txt' --out=corpora/notes "
    "--tokenizer=exported/bert --extend_vocabulary=1000",
    "python -m encoderjax.prepare --verify --out=corpora/wiki",
)

_SOURCE = (
    "'demo', or files, folders and globs, separated by commas: text or .jsonl, each "
    "also .gz or .zst"
)
_OPTIONS = {
    "tokenizer": (
        "wordpiece:30522",
        "KIND:SIZE to train one, KIND being wordpiece or wordpiece_cased (BERT), bbpe "
        "(RoBERTa), bbpe/deberta, bbpe/modernbert, unigram or unigram_cased (ALBERT), "
        "unigram/xlnet, unigram/xlm_roberta or unigram/deberta_v2; or a path to a "
        "tokenizer.json, a vocab.txt, a vocab.json with its merges.txt, a "
        "SentencePiece .model, or a folder with one",
    ),
    "text_key": ("text", "the field of a JSON line that holds its text"),
    "sentences": (
        "auto",
        "lines: one a line; split: prose, to be split; auto: by each file's head",
    ),
    "documents": (
        "auto",
        "what a document of a text file is: blank_line (ends it), file or line; "
        "auto: blank_line for sentences=lines, file for prose",
    ),
    "validation": (0.01, "share of documents to hold out"),
    "seed": (0, "of the held-out choice and of the tokenizer's sample"),
    "shard_mb": (64, "megabytes of text in a shard, which bounds memory"),
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
    tokenizer: str = "wordpiece:30522",
    text_key: str = "text",
    sentences: SentenceForm = "auto",
    documents: DocumentForm = "auto",
    validation: float = 0.01,
    seed: int = 0,
    shard_mb: int = 64,
    extend_vocabulary: int = 0,
) -> Corpus:
    """Prepares `source` to the folder `out`, or continues where it was interrupted."""
    corpus = prepare_corpus(
        source=source,
        out=out,
        tokenizer=tokenizer,
        text_key=text_key,
        sentences=sentences,
        documents=documents,
        validation=validation,
        seed=seed,
        shard_mb=shard_mb,
        extend_vocabulary=extend_vocabulary,
    )
    recipe = "bert_tiny.py"
    if extend_vocabulary:
        recipe = "continue_pretraining.py --config.init_vocabulary=extend "
        recipe += "--config.init_from=MODEL"
    print(
        f"next: python -m encoderjax.train --config=configs/{recipe} "
        f"--config.data.corpus={out}"
    )
    return corpus


def verify(out: str) -> Corpus:
    """Opens the corpus in `out` and compares every file with its sha256."""
    corpus = Corpus.open(out)
    corpus.verify()
    print(f"{out}: all {len(corpus.manifest['files'])} files are as they were written")
    return corpus


def main(arguments: Sequence[str] | None = None) -> Corpus:
    """Parses the flags and runs."""
    flags = _parser().parse_strictly(arguments)
    if flags.verify:
        return verify(flags.out)
    if flags.source is None:
        raise UserError("--source is missing; give files, a folder, a glob or 'demo'")
    options = {k: v for k, v in vars(flags).items() if k != "verify"}
    return run(**options)


def _parser() -> Parser:
    parser = Parser(command="prepare", description=__doc__ or "", examples=_EXAMPLES)
    parser.add_argument("--source", help=_SOURCE)
    parser.add_argument("--out", required=True, help="the folder; a rerun continues")
    for name, (default, text) in _OPTIONS.items():
        text = f"{text} (default: {default})"
        parser.add_argument(f"--{name}", type=type(default), default=default, help=text)
    parser.add_argument(
        "--verify", action="store_true", help="only check the hashes of --out's files"
    )
    return parser


if __name__ == "__main__":
    run_command(main)
