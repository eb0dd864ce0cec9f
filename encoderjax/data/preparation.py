"""Makes a prepared corpus of documents: sample, tokenizer, shards, manifest.

A run that was interrupted reads the source again, passes over the shards that are
whole, and goes on; the folder it leaves is the same, byte for byte, as that of a
run without interruption.
"""

import hashlib
import json
import pathlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from encoderjax.data import corpus as corpus_format
from encoderjax.data import sources
from encoderjax.data.corpus import MANIFEST, UNFINISHED, Corpus
from encoderjax.data.random import hash_words, site_number
from encoderjax.data.sharding import Report, Sharding
from encoderjax.data.sources import Document, DocumentForm, SentenceForm
from encoderjax.data.tokenizers import (
    Tokenizer,
    is_trained,
    load_tokenizer,
    make_tokenizer,
)
from encoderjax.data.vocabulary_extension import extend_tokenizer
from encoderjax.errors import UserError

_SAMPLE = 200_000_000  # characters of text that a tokenizer is trained on


def prepare_corpus(
    *,
    source: str,
    out: str | pathlib.Path,
    tokenizer: str,
    text_key: str = "text",
    sentences: SentenceForm = "auto",
    documents: DocumentForm = "auto",
    validation: float = 0.01,
    seed: int = 0,
    shard_mb: int = 64,
    extend_vocabulary: int = 0,
    report: Report = print,
) -> Corpus:
    """Prepares `source` to the folder `out`, or continues, or finds it done.

    Args:
      tokenizer: a path, or a kind and size to train, such as "wordpiece:30522".
      extend_vocabulary: how many words of the source a loaded tokenizer is given, of
        those that it splits.
      validation: the share of documents that is held out, at most one half.
      shard_mb: megabytes (10^6) of text in a shard; memory grows with it.
      report: is given lines for people to read.
    """
    if not 0 <= validation <= 0.5:
        raise UserError(f"--validation={validation} is not a share from 0 to 0.5")
    if seed < 0:
        raise UserError(f"--seed={seed} is negative; use 0 or more")
    if shard_mb < 1:
        raise UserError(f"--shard_mb={shard_mb} is not a size; use 1 or more")
    if extend_vocabulary < 0 or (extend_vocabulary and is_trained(tokenizer)):
        raise UserError(
            f"--extend_vocabulary={extend_vocabulary} must be 0 or a number of words "
            f"for a tokenizer that is loaded, not --tokenizer={tokenizer}; give its "
            "path, or train a larger one"
        )
    settings = {
        "source": source,
        "tokenizer": tokenizer,
        "text_key": text_key,
        "sentences": sentences,
        "documents": documents,
        "validation": validation,
        "seed": seed,
        "shard_mb": shard_mb,
        "extend_vocabulary": extend_vocabulary,
        "input": _input_digest(source),
    }
    out = pathlib.Path(out)
    if _begin(out, settings):
        report(f"{out} is already prepared")
        return Corpus.open(out)

    def read() -> Iterator[Document]:
        return sources.documents(
            source, text_key=text_key, sentences=sentences, documents=documents
        )

    made = _saved_tokenizer(out, tokenizer, extend_vocabulary, seed, read, report)
    job = Sharding(out, made, validation, seed, shard_mb * 10**6, report)
    job.write_shards(read())
    return job.finish(settings)


# ---- beginning and continuing ----


def _input_digest(source: str) -> str:
    """Names the source's files by name and size: other input, other digest."""
    files = [(path.name, path.stat().st_size) for path in sources.source_files(source)]
    if source == "demo":
        files.append((sources.demo_version(), 0))
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()


def _begin(out: pathlib.Path, settings: dict) -> bool:
    """Marks `out` as being prepared; returns whether it is finished already."""
    for name in (MANIFEST, UNFINISHED):
        # Without a tokenizer nothing was made yet, and settings may still change.
        if (out / name).is_file() and (out / "tokenizer.json").is_file():
            _refuse_other_settings(out, _read_settings(out / name), settings)
            return name == MANIFEST
    begun = (out / UNFINISHED).is_file()
    if out.is_file() or (out.is_dir() and any(out.iterdir()) and not begun):
        raise UserError(
            f"--out={out} is there and is not a corpus; choose a new or empty folder"
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out={out} cannot be made: {error.strerror}") from error
    corpus_format.write_json(out / UNFINISHED, {"settings": settings})
    return False


def _read_settings(path: pathlib.Path) -> dict:
    try:
        return json.loads(path.read_bytes())["settings"]
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{path} is damaged; delete {path.parent} and prepare it anew"
        ) from error


def _refuse_other_settings(out: pathlib.Path, found: dict, settings: dict) -> None:
    found = {"extend_vocabulary": 0, **found}  # which older corpora do not say
    for name, value in settings.items():
        if found.get(name) == value:
            continue
        remedy = "choose another --out or delete that folder"
        if name == "input":
            raise UserError(
                f"--out={out} was prepared when --source={settings['source']} had "
                f"other files or sizes; {remedy}"
            )
        raise UserError(
            f"--{name}={value} differs from {found.get(name)}, with which --out={out} "
            f"was prepared; {remedy}"
        )


# ---- the tokenizer ----


def _saved_tokenizer(
    out: pathlib.Path,
    spec: str,
    extend_by: int,
    seed: int,
    read: Callable[[], Iterable[Document]],
    report: Report,
) -> Tokenizer:
    """Returns the tokenizer that lies in `out`, making it first if need be."""
    spec = _inside_workdir(spec)
    if not (out / "tokenizer.json").is_file():
        start = time.perf_counter()
        made = make_tokenizer(spec, lambda: _sample(read(), seed))
        if extend_by:
            made = _extended(made, spec, _sample(read(), seed), extend_by, report)
        try:
            made.save(out)
        except OSError as error:
            raise corpus_format.write_error(out, error) from error
        seconds = time.perf_counter() - start
        did = f"trained in {seconds:.1f} s" if is_trained(spec) else f"from {spec}"
        cased = "uncased" if made.lowercase else "cased"
        report(f"tokenizer: {made.vocabulary.size:,} entries, {cased}, {did}")
        return made
    kept = load_tokenizer(out)
    if not is_trained(spec) and not _comes_from(kept, load_tokenizer(spec), extend_by):
        raise UserError(
            f"--tokenizer={spec} has changed since --out={out} was begun; choose "
            "another --out or delete that folder"
        )
    return kept


def _inside_workdir(spec: str) -> str:
    """Returns `spec`, or where it is a run's workdir the folder of its tokenizer."""
    inner = pathlib.Path(spec) / "tokenizer"
    return str(inner) if (inner / "tokenizer.json").is_file() else spec


def _comes_from(kept: Tokenizer, loaded: Tokenizer, extend_by: int) -> bool:
    """Says whether the kept tokenizer is the loaded one, or was extended from it."""
    if not extend_by:
        return kept.sha256 == loaded.sha256
    size = loaded.vocabulary.size
    longer = kept.vocabulary.size >= size
    return longer and kept.tokens(range(size)) == loaded.tokens(range(size))


def _extended(
    tokenizer: Tokenizer, spec: str, texts: Iterable[str], count: int, report: Report
) -> Tokenizer:
    """Returns the tokenizer with words of the source behind its vocabulary."""
    extended, words = extend_tokenizer(tokenizer, texts, count, spec)
    shown = ", ".join(words[:8]) + (", ..." if len(words) > 8 else "")
    fewer = "" if len(words) == count else f" of {count:,} (it splits no more)"
    sizes = f"{tokenizer.vocabulary.size:,} -> {extended.vocabulary.size:,} entries"
    report(f"vocabulary: {len(words):,}{fewer} words added, {sizes}: {shown}")
    return extended


def _sample(documents: Iterable[Document], seed: int) -> list[str]:
    """Returns the texts of at most about `_SAMPLE` characters of documents.

    Each document has a random 32-bit number, and those below a limit are kept; the
    limit is halved whenever they are too many. So it is one pass, in bounded
    memory, and the sample is uniform whatever the length of the source.
    """
    site = site_number("prepare/sample")
    kept: list[tuple[int, str]] = []
    size, limit = 0, 2**32
    for index, document in enumerate(documents):
        if limit < 2**32 and hash_words(seed, site, index)[0] >= limit:
            continue
        kept.append((index, document.text))
        size += len(document.text)
        while size > _SAMPLE and len(kept) > 1:
            limit //= 2
            numbers = hash_words(seed, site, np.array([index for index, _ in kept]))
            kept = [k for k, n in zip(kept, numbers, strict=True) if n < limit]
            size = sum(len(text) for _, text in kept)
    return [text for _, text in kept]


# ---- the demo ----


def demo_corpus(
    tokenizer_spec: str, cache: pathlib.Path, report: Report = print
) -> pathlib.Path:
    """Returns the folder of the prepared demo corpus, preparing it on first use.

    Several processes may ask at once: each prepares a folder of its own and the
    first to finish moves it into place.
    """
    target = cache / f"demo-{tokenizer_spec.replace(':', '-').replace('/', '-')}"
    if target.is_dir():
        return target
    try:
        cache.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(prefix=".demo-", dir=cache)
    except OSError as error:
        raise UserError(
            f"cannot write the demo corpus to {cache} ({error.strerror}); set the "
            "environment variable ENCODERJAX_CACHE to a folder that can be written"
        ) from error
    with folder as private:
        own = pathlib.Path(private) / "corpus"
        report(f"preparing the demo corpus in {target}, once")
        prepare_corpus(
            source="demo",
            out=own,
            tokenizer=tokenizer_spec,
            validation=0.05,
            report=report,
        )
        try:
            own.rename(target)
        except OSError:
            if not target.is_dir():
                raise
            shutil.rmtree(own)  # another process was first, with the same bytes
    return target
