"""The tokenizer of a corpus that is being prepared: trained on it, loaded, extended."""

import functools
import pathlib
import tempfile
import time
from collections.abc import Iterable

from encoderjax.data import storage
from encoderjax.data.fertility import fertility_lines, measure_fertility
from encoderjax.data.meter import Meter, Report
from encoderjax.data.sharding import Job, Progress, saved_tokenizer
from encoderjax.data.tokenizers import (
    Tokenizer,
    check_spec,
    is_trained,
    load_tokenizer,
    make_tokenizer,
)
from encoderjax.data.trouble import Trouble
from encoderjax.data.vocabulary_extension import extend_tokenizer
from encoderjax.data.vocabulary_sample import VocabularySample
from encoderjax.data.workers import Workers
from encoderjax.errors import UserError

_SAMPLE = 200_000_000  # characters of text that a tokenizer is trained on
_PARTS = 64  # of a large source that are read for them
_MEASURED = 200_000  # characters of each language on which tokenizers are compared


def save_tokenizer(job: Job, settings: dict, workers: Workers, report: Report) -> None:
    """Puts the tokenizer into the corpus' folder, making it first if need be."""
    spec = _inside_workdir(settings["tokenizer"])
    extend_by = settings["extend_vocabulary"]
    if storage.find_file(storage.join(job.out, "tokenizer.json")) is not None:
        refuse_other_tokenizer(job.out, settings)
        return
    start = time.perf_counter()
    alpha = settings["alpha"] if job.reading.language_key else 1.0
    sample = functools.cache(lambda: _sampled(job, workers, report))
    made = make_tokenizer(spec, lambda: sample().texts(alpha))
    if extend_by:
        made = _extended(made, spec, sample().texts(alpha), extend_by, report)
    write_tokenizer(made, job.out)
    seconds = time.perf_counter() - start
    did = f"trained in {seconds:.1f} s" if is_trained(spec) else f"from {spec}"
    cased = "uncased" if made.lowercase else "cased"
    report(f"tokenizer: {made.vocabulary.size:,} entries, {cased}, {did}")
    if job.reading.language_key and is_trained(spec):
        _report_fertility(made, spec, sample(), alpha, report)


def refuse_other_tokenizer(out: str, settings: dict) -> None:
    """Compares the tokenizer in `out` with the one that it was loaded from."""
    spec = _inside_workdir(settings["tokenizer"])
    if is_trained(spec):
        return
    kept, loaded = saved_tokenizer(out), load_tokenizer(spec)
    if not _comes_from(kept, loaded, settings["extend_vocabulary"]):
        raise UserError(
            f"--tokenizer={spec} has changed since --out={out} was begun; choose "
            "another --out or delete that folder"
        )


def check_tokenizer(spec: str) -> None:
    """Refuses what is neither a kind and size to train nor a tokenizer's path."""
    check_spec(_inside_workdir(spec))


def write_tokenizer(tokenizer: Tokenizer, folder: str) -> dict[str, dict]:
    """Writes a tokenizer's files; returns their hashes and sizes.

    tokenizer.json comes last, so that it means the others.
    """
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer.save(scratch)
        return {
            name: storage.write_file(
                storage.join(folder, name),
                ((pathlib.Path(scratch) / name).read_bytes(),),
            )
            for name in tokenizer.files
        }


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


# ---- the sample ----


def _sampled(job: Job, workers: Workers, report: Report) -> VocabularySample:
    """Returns a sample of the source, the same for any number of workers."""
    parts = list(range(len(job.parts)))
    if len(parts) > _PARTS and not job.reading.language_key:
        # Some of a large source are enough; languages may lie in any of them.
        parts = [parts[len(parts) * i // _PARTS] for i in range(_PARTS)]
    expected = sum(job.parts[part].expected_text for part in parts)
    meter = Meter("sample", expected, report)
    total = sum(job.parts[part].size for part in parts)
    sample_part = functools.partial(_sample_part, job, total)
    merged = VocabularySample(job.seed, _SAMPLE)
    ready: dict[int, VocabularySample] = {}
    following = 0
    for number, sample in workers.results(sample_part, parts, meter.add):
        ready[number] = sample
        while following in ready:  # in the order of the parts
            merged.merge(ready.pop(following))
            following += 1
    return merged


def _sample_part(
    job: Job, total: int, part: int, progress: Progress
) -> VocabularySample:
    """Returns a part's sample: twice its share of the whole one, to choose from.

    With languages not less than a sixteenth: small ones may lie in one part alone.
    """
    languages = bool(job.reading.language_key)
    share = 2 * job.parts[part].size / max(total, 1)
    share = min(1.0, max(share, 1 / 16 if languages else 0.0))
    sample = VocabularySample(job.seed, int(_SAMPLE * share))
    for number, document in job.documents(part, Trouble()):
        sentences = len(document.sentences()) if languages else 0
        key = (part << 32) + number
        sample.add(key, document.language, document.text, sentences)
        progress(document.size)
    return sample


def _report_fertility(
    made: Tokenizer, spec: str, sample: VocabularySample, alpha: float, report: Report
) -> None:
    """Shows what alpha does for each language, beside a tokenizer without it."""
    plain = made if alpha == 1 else make_tokenizer(spec, lambda: sample.texts(1.0))
    texts = sample.texts_by_language(_MEASURED)
    columns = {
        f"alpha={value:g}": measure_fertility(tokenizer, texts)
        for value, tokenizer in ((alpha, made), (1.0, plain))
    }
    for line in fertility_lines(columns):
        report(line)
