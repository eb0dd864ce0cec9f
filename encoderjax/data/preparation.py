"""Makes a prepared corpus of documents: sample, tokenizer, shards, manifest.

Each pass over the source is one function of a part of it, run by whoever there is
(`workers`). A run that was interrupted passes over the shards that are whole and goes
on; the folder it leaves is the same, byte for byte, as that of a run without
interruption, by any number of workers.
"""

import array
import collections
import dataclasses
import functools
import pathlib
import shutil
import tempfile
from collections.abc import Iterable

from encoderjax.data import beginning, sources, storage
from encoderjax.data import corpus as corpus_format
from encoderjax.data.corpus import MIXTURE, Corpus
from encoderjax.data.documents import DocumentForm, Reading, SentenceForm
from encoderjax.data.finishing import finish_corpus, no_tokens
from encoderjax.data.meter import Meter, Report
from encoderjax.data.selection import Selection, digest_of, repeated, sorted_digests
from encoderjax.data.sharding import (
    Job,
    Progress,
    Task,
    digests_name,
    repeats_name,
    write_shards,
)
from encoderjax.data.shares import ALPHA
from encoderjax.data.sources import Part
from encoderjax.data.tokenizers import is_trained
from encoderjax.data.trouble import Trouble
from encoderjax.data.vocabularies import (
    check_tokenizer,
    refuse_other_tokenizer,
    save_tokenizer,
)
from encoderjax.data.workers import InPlace, Workers
from encoderjax.errors import UserError

_SHARDS = 64  # of a corpus, unless they would be smaller or larger than
_SHARD_SIZES = (16 * 10**6, 256 * 10**6)  # bytes of text


def prepare_corpus(*, out: str | pathlib.Path, **options) -> Corpus:
    """Prepares one corpus, as `prepare` does, and opens it."""
    prepare(out=out, **options)
    return Corpus.open(out)


def prepare(
    *,
    source: str,
    out: str | pathlib.Path,
    tokenizer: str,
    text_key: str = "text",
    sentences: SentenceForm = "auto",
    documents: DocumentForm = "auto",
    language_key: str = "",
    languages: str = "",
    alpha: float = ALPHA,
    min_chars: int = 1,
    max_chars: int = 0,
    sample: float = 1.0,
    deduplicate: bool = False,
    strict: bool = False,
    tfds_dir: str = "",
    validation: float = 0.01,
    seed: int = 0,
    shard_mb: int = 0,
    extend_vocabulary: int = 0,
    workers: Workers | None = None,
    report: Report = print,
) -> None:
    """Prepares `source` to the folder `out`, or continues, or finds it done.

    With languages, each has a corpus of its own in `out`.

    Args:
      tokenizer: a path, or a kind and size to train, such as "wordpiece:30522".
      text_key: and the next three, strict, tfds_dir: see `Reading`.
      languages: those that are taken, separated by commas; '' = all.
      alpha: a language with n sentences has a part of n^alpha in the sample that a
        tokenizer is trained on.
      min_chars: and the next: documents with less or more text are left out.
      sample: the share of documents that is taken.
      deduplicate: whether of documents with the same text only the first is taken.
      validation: the share of documents that is held out, at most one half.
      shard_mb: megabytes (10^6) of text in a shard; 0 = by the size of the source.
      extend_vocabulary: how many words of the source a loaded tokenizer is given, of
        those that it splits.
      workers: who does the work; this process if not given.
      report: is given lines for people to read.
    """
    reading = Reading(text_key, sentences, documents, language_key, strict, tfds_dir)
    selection = Selection(
        min_chars=min_chars,
        max_chars=max_chars,
        languages=tuple(filter(None, map(str.strip, languages.split(",")))),
        share=sample,
        seed=seed,
    )
    settings = {
        "source": source,
        "tokenizer": tokenizer,
        "text_key": text_key,
        "sentences": sentences,
        "documents": documents,
        "language_key": language_key,
        "languages": languages,
        "alpha": alpha,
        "min_chars": min_chars,
        "max_chars": max_chars,
        "sample": sample,
        "deduplicate": deduplicate,
        "validation": validation,
        "seed": seed,
        "shard_mb": shard_mb,
        "extend_vocabulary": extend_vocabulary,
    }
    _check(settings)
    check_tokenizer(tokenizer)
    parts = tuple(sources.source_parts(source, reading, without=out))
    settings["input"] = beginning.input_digest(source, parts)
    if beginning.begin(out, settings, parts):
        refuse_other_tokenizer(str(out), settings)
        report(f"{out} is already prepared")
    else:
        job = Job(
            out=str(out),
            parts=parts,
            reading=reading,
            selection=selection,
            shard_size=shard_mb * 10**6 or _shard_size(parts),
            validation=validation,
            seed=seed,
            without_repeats=deduplicate,
        )
        _Preparation(job, settings, workers or InPlace(), report).run()


def _check(settings: dict) -> None:
    """Refuses settings that have no meaning, those of `Reading` etc. aside."""
    validation, alpha = settings["validation"], settings["alpha"]
    if not 0 <= validation <= 0.5:
        raise UserError(f"--validation={validation} is not a share from 0 to 0.5")
    if not 0 <= alpha <= 1:
        raise UserError(f"--alpha={alpha} is not a number from 0 to 1")
    if not 0 <= settings["seed"] < 2**64:
        raise UserError(f"--seed={settings['seed']} is not a number from 0 to 2^64 - 1")
    if settings["shard_mb"] < 0:
        raise UserError(
            f"--shard_mb={settings['shard_mb']} is not a size; use 1 or more, or 0 for "
            "one that follows from the source's"
        )
    if settings["languages"] and not settings["language_key"]:
        raise UserError(
            f"--languages={settings['languages']} needs --language_key, which tells "
            "the language of a document: a field of its record, 'file' or 'folder'"
        )
    extend_by, tokenizer = settings["extend_vocabulary"], settings["tokenizer"]
    if extend_by < 0 or (extend_by and is_trained(tokenizer)):
        raise UserError(
            f"--extend_vocabulary={extend_by} must be 0 or a number of words for a "
            f"tokenizer that is loaded, not --tokenizer={tokenizer}; give its path, or "
            "train a larger one"
        )


def _shard_size(parts: Iterable[Part]) -> int:
    """Returns bytes of text, so that there are neither too many shards nor too few."""
    smallest, largest = _SHARD_SIZES
    expected = sum(part.expected_text for part in parts)
    return min(max(expected // _SHARDS, smallest), largest)


# ---- the passes ----


@dataclasses.dataclass
class _Preparation:
    """One run of preparing: what is needed on the way, then the shards."""

    job: Job
    settings: dict
    workers: Workers
    report: Report

    def run(self) -> None:
        """Does what is missing."""
        job = self.job
        beginning.remove_partial(job.out)
        storage.make_folder(job.work)
        if job.without_repeats:
            self._find_repeats()
        save_tokenizer(job, self.settings, self.workers, self.report)
        self._write()
        beginning.end(job.out)

    def _find_repeats(self) -> None:
        """Lists the documents that come again, for all later passes."""
        job, numbers = self.job, range(len(self.job.parts))
        if all(
            storage.find_file(storage.join(job.work, repeats_name(part)))
            for part in numbers
        ):
            return
        alone = dataclasses.replace(job, without_repeats=False)
        meter = Meter("duplicates", self._expected(), self.report)
        hash_part = functools.partial(_hash_part, alone)
        total = 0
        for _, count in self.workers.results(hash_part, numbers, meter.add):
            total += count
        corpus_format.allow_open_files(len(numbers))
        with tempfile.TemporaryDirectory() as scratch:
            digests = [
                corpus_format.mapped_array(
                    storage.join(job.work, digests_name(part)), scratch
                )
                for part in numbers
            ]
            found = repeated(digests)
        for part, again_D in zip(numbers, found, strict=True):
            corpus_format.write_array(
                storage.join(job.work, repeats_name(part)), again_D
            )
        count = sum(map(len, found))
        self.report(f"{count:,} of {total:,} documents repeat an earlier one")

    def _write(self) -> None:
        """Writes the shards, and the manifests over them."""
        job = self.job
        tasks = self._tasks()
        meter = Meter("tokens", self._expected(), self.report)
        write = functools.partial(write_shards, job)
        shards: dict[str, set[str]] = collections.defaultdict(set)
        forms: collections.Counter[tuple[str, str]] = collections.Counter()
        trouble = Trouble()
        for number, written in self.workers.results(write, tasks, meter.add):
            for language, name in written.shards:
                shards[language].add(name)
            if tasks[number].stripe == 0:  # the others have read the same
                forms += written.forms
                trouble.merge(written.trouble)
        source = self.settings["source"]
        if not shards:
            raise sources.no_documents(source, trouble)
        self._look_again()
        for (of_sentences, of_documents), count in sorted(forms.items()):
            form = f"sentences={of_sentences}, documents={of_documents}"
            self.report(f"{count:,} {'file' if count == 1 else 'files'}: {form}")
        finished = [
            language
            for language, names in sorted(shards.items())
            if finish_corpus(
                job, language, sorted(names), self.settings, forms, self.report
            )
        ]
        if not finished:
            raise no_tokens(source)
        for language in job.selection.languages:
            if language not in shards:
                self.report(f"warning: no document of language {language} was found")
        if job.reading.language_key:
            mixture = {"format": 1, "members": finished, "settings": self.settings}
            corpus_format.write_json(storage.join(job.out, MIXTURE), mixture)
        for line in trouble.lines():
            self.report(line)
        self.report(meter.summary())

    def _look_again(self) -> None:
        """Refuses a source that has changed while it was read."""
        job, settings = self.job, self.settings
        parts = sources.source_parts(settings["source"], job.reading, without=job.out)
        beginning.refuse_changed_files(job.out, settings, parts)

    def _tasks(self) -> list[Task]:
        """Returns the work on the shards, the largest pieces of it first.

        The shards of a part are shared where there are few parts for the workers.
        """
        job, count = self.job, self.workers.count
        tasks = []
        for number, part in enumerate(job.parts):
            expected = part.expected_text
            stripes = 1
            if len(job.parts) < 2 * count:
                stripes = max(1, min(count, round(expected / job.shard_size)))
            tasks += [
                (-expected / stripes, Task(number, stripe, stripes))
                for stripe in range(stripes)
            ]
        return [task for _, task in sorted(tasks, key=lambda pair: pair[0])]

    def _expected(self) -> int:
        """Returns about how many bytes of text the source has."""
        return sum(part.expected_text for part in self.job.parts)


def _hash_part(job: Job, part: int, progress: Progress) -> int:
    """Keeps the hashes of the documents of a part; returns how many there are."""
    digests = array.array("Q")
    for number, document in job.documents(part, Trouble()):
        digests.extend((*digest_of(document.text), number))
        progress(document.size)
    digests_D = sorted_digests(digests)
    corpus_format.write_array(storage.join(job.work, digests_name(part)), digests_D)
    return len(digests_D)


# ---- the demo ----


def demo_corpus(
    tokenizer_spec: str, cache: pathlib.Path, report: Report = print
) -> pathlib.Path:
    """Returns the folder of the prepared demo corpus, preparing it on first use.

    Several processes may ask at once: each prepares a folder of its own and the
    first to finish moves it into place.
    """
    spec = tokenizer_spec.replace(":", "-").replace("/", "-")
    target = cache / f"demo-{spec}-{corpus_format.FORMAT}"
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
