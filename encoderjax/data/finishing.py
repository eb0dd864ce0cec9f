"""Ends the preparation of a corpus: counts over all shards, the manifest, a summary.

Shapes: V vocabulary.
"""

import numpy as np

from encoderjax.data import corpus as corpus_format
from encoderjax.data import storage
from encoderjax.data.corpus import MANIFEST, SPLITS
from encoderjax.data.meter import Report
from encoderjax.data.sharding import Job, folder_of, saved_tokenizer
from encoderjax.data.tokenizers import Tokenizer
from encoderjax.data.vocabularies import write_tokenizer
from encoderjax.errors import UserError

_NO_TOKENS = "its text is empty to the tokenizer"
_UNKNOWN_SHARE = 0.01  # above this the tokenizer does not fit the text


def finish_corpus(
    job: Job,
    language: str,
    shards: list[str],
    settings: dict,
    forms: dict[tuple[str, str], int],
    report: Report,
) -> bool:
    """Writes what concerns the whole corpus of a language, the manifest last.

    Returns whether it has any text; a corpus without languages must.

    Args:
      shards: their names, in their order.
      forms: files of the source by the form of their sentences and documents.
    """
    folder = folder_of(job.out, language)
    tokenizer = saved_tokenizer(job.out)
    records = [_record(folder, name) for name in shards]
    counts = _counts(records)
    if counts["train"]["tokens"] == 0 and counts["validation"]["tokens"] > 0:
        # A rare language whose few documents all were drawn: those of one shard stay.
        held_out = [record["counts"]["validation"]["tokens"] for record in records]
        first = next(i for i, tokens in enumerate(held_out) if tokens)
        records[first] = _train_on_all(folder, tokenizer, shards[first])
        counts = _counts(records)
    if counts["train"]["tokens"] == 0:
        if not language:
            raise no_tokens(settings["source"])
        report(f"warning: {language} is left out: {_NO_TOKENS}")
        storage.remove_folder(folder)
        return False
    unigrams_V = np.zeros(tokenizer.vocabulary.size, np.int64)
    for name in shards:
        path = storage.join(folder, corpus_format.unigrams_name(name))
        unigrams_V += corpus_format.read_array(path)
    files = {
        "unigrams.npy": corpus_format.write_array(
            storage.join(folder, "unigrams.npy"), unigrams_V
        ),
        **write_tokenizer(tokenizer, folder),
    }
    for record in records:
        files.update(record["files"])
    manifest = {
        "format": corpus_format.FORMAT,
        "tokenizer": tokenizer.sha256,
        "dtype": corpus_format.token_dtype(tokenizer.vocabulary.size).name,
        "counts": counts,
        "language": language,
        "settings": settings,
        "forms": [
            {"sentences": form[0], "documents": form[1], "files": count}
            for form, count in sorted(forms.items())
        ],
        "shards": [
            {"name": name, **record["counts"]}
            for name, record in zip(shards, records, strict=True)
        ],
        "files": dict(sorted(files.items())),
    }
    corpus_format.write_json(storage.join(folder, MANIFEST), manifest)
    _summarise(tokenizer, language, counts, unigrams_V, job.validation, report)
    return True


def no_tokens(source: str) -> UserError:
    """Returns what to raise where nothing is left to train on."""
    return UserError(f"--source={source} has no tokens to train on: {_NO_TOKENS}")


def _counts(records: list[dict]) -> dict[str, dict[str, int]]:
    """Returns the documents, sentences and tokens of each split in some shards."""
    return {
        split: {
            kind: sum(record["counts"][split][kind] for record in records)
            for kind in ("documents", "sentences", "tokens")
        }
        for split in SPLITS
    }


def _train_on_all(folder: str, tokenizer: Tokenizer, name: str) -> dict:
    """Rewrites a shard whose documents all are held out: all are trained on.

    Without its record meanwhile: whoever is interrupted here begins it anew.
    """
    storage.remove_file(corpus_format.record_path(folder, name))
    held_out = corpus_format.read_shard_split(folder, name, "validation")
    none = corpus_format.ShardSplit.from_documents([], held_out.tokens_T.dtype)
    unigrams_V = np.bincount(held_out.tokens_T, minlength=tokenizer.vocabulary.size)
    splits = {"train": held_out, "validation": none}
    return corpus_format.write_shard(folder, name, splits, unigrams_V)


def _record(folder: str, name: str) -> dict:
    record = corpus_format.shard_record(folder, name)
    assert record is not None, f"shard {name} of {folder} was written and is not there"
    return record


def _summarise(
    tokenizer: Tokenizer,
    language: str,
    counts: dict,
    unigrams_V: np.ndarray,
    validation: float,
    report: Report,
) -> None:
    vocabulary = tokenizer.vocabulary
    unknown = unigrams_V[vocabulary.unk_id] / unigrams_V.sum()
    of = f"{language} " if language else ""
    train, held_out = (counts[split] for split in SPLITS)
    if language:  # there may be a hundred: a line for each
        report(
            f"{language}: {_counted(train)}, {unknown:.3%} unknown; held out: "
            f"{held_out['documents']:,} documents, {held_out['tokens']:,} tokens"
        )
    else:
        words = unigrams_V[~vocabulary.continues_word_V].sum()
        fertility = unigrams_V.sum() / max(words, 1)
        report(
            f"train: {_counted(train)} ({fertility:.2f} a word, {unknown:.3%} unknown)"
        )
        report(f"validation: {_counted(held_out)}")
    if validation > 0 and held_out["documents"] == 0:
        report(
            f"warning: too few documents ({train['documents']:,}) for --validation="
            f"{validation}, so none {of and f'of {of}'}is held out"
        )
    if unknown > _UNKNOWN_SHARE:
        report(
            f"warning: {unknown:.1%} of the tokens {of and f'of {of}'}are [UNK]: the "
            "tokenizer does not fit the text; train one with --tokenizer=wordpiece:SIZE"
        )


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
