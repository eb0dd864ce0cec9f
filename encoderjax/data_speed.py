"""How fast the host makes batches out of text, on one core.

Figures carry their units in their names. Tokens are real ones, special ones included.
A ratio to something says how many times as fast ours is. What is compared takes turns
in one run.
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, get_args

import numpy as np
import tokenizers

from encoderjax import hf_speed
from encoderjax.data.corpus import Corpus
from encoderjax.data.documents import Document, Origin, Reading
from encoderjax.data.pipeline import Batch, BatchSource
from encoderjax.data.random import Draws
from encoderjax.data.rows import open_row_index
from encoderjax.data.sources import read_source
from encoderjax.data.tokenizers import Tokenizer, load_tokenizer
from encoderjax.data.trouble import Trouble
from encoderjax.experiment import Experiment
from encoderjax.objectives import Objective
from encoderjax.objectives.masking import Count
from encoderjax.objectives.mlm import MaskedLM
from encoderjax.objectives.selectors import SELECTORS
from encoderjax.timing import Work, best_rates, doing, one_core

Figures = dict[str, float]

FAR = 1_000_000  # the step that is sought
_SEEKS = 30
_STRIDE = 10_000  # steps between first batches, so that each is of an epoch of its own
_SENTENCES = 4096  # tokenised at a time, as in preparation
_TURNS, _SECONDS = 10, 0.05  # of each kind of work that is short
_LONG_TURNS = 3  # of what takes seconds


def measured(
    experiment: Experiment,
    *,
    texts: str | None,
    sample_mb: float,
    all_selectors: bool,
    against_hf: bool,
) -> Figures:
    """Returns all figures of a run's data.

    Args:
      texts: a source as `prepare` takes it; None = the corpus' own text, decoded.
      sample_mb: megabytes (10^6) of text that are tokenised.
      all_selectors: whether every selector of the masked LM is measured.
      against_hf: whether Hugging Face's libraries are, too.
    """
    if against_hf:
        hf_speed.check_installed()
    corpus = experiment.corpus.members[0].corpus
    source = experiment.full_length_source()
    found = decoded(corpus)
    if texts is not None:
        found = read_source(texts, Reading(), Trouble())
    with one_core(), hf_speed.one_thread() if against_hf else contextlib.nullcontext():
        figures = preparation(corpus, _sample(found, sample_mb), against_hf)
        figures |= opening(experiment) | seeking(source) | loading(source)
        figures |= corrupting(source, experiment.objectives)
        if all_selectors:
            figures |= selecting(source, experiment)
        if against_hf:
            figures |= collating(source, experiment)
    return figures


# ---- preparation ----


def decoded(corpus: Corpus) -> Iterator[Document]:
    """Yields the documents of the train split as prose, as far as ids tell it."""
    split, tokenizer = corpus.split("train"), corpus.tokenizer
    origin = Origin(str(corpus.folder), "split", "file")
    for number in range(split.num_documents):
        first, stop = split.document_starts.slice(number, number + 2)
        bounds = split.sentence_starts.slice(int(first), int(stop) + 1)
        ids = split.tokens.slice(int(bounds[0]), int(bounds[-1]))
        sentences = (ids[a:b] for a, b in itertools.pairwise(bounds - bounds[0]))
        yield Document(" ".join(map(tokenizer.decode, sentences)), origin)


def _sample(documents: Iterable[Document], megabytes: float) -> list[Document]:
    """Returns the first documents with so much text, or all."""
    kept, size = [], 0
    for document in documents:
        kept.append(document)
        size += len(document.text.encode())
        if size >= megabytes * 1e6:
            break
    return kept


def preparation(
    corpus: Corpus, documents: Sequence[Document], against_hf: bool
) -> Figures:
    """Splits sentences and tokenises them, beside the library alone.

    The library is given the sentences as they were found. Ours begins each time with
    no word known.
    """
    sentences = [s for document in documents for s in document.sentences()]
    megabytes = sum(len(document.text.encode()) for document in documents) / 1e6
    fresh = [load_tokenizer(corpus.folder) for _ in range(_LONG_TURNS + 1)]
    library = tokenizers.Tokenizer.from_file(str(corpus.folder / "tokenizer.json"))

    def prepare(number: int) -> float:
        _num_tokens(fresh[number], documents)
        return megabytes

    def alone() -> None:
        for batch in _batched(sentences):
            library.encode_batch_fast(batch, add_special_tokens=False)

    work = {"prepare": prepare, "tokenizers": doing(megabytes, alone)}
    if against_hf:
        mapped = hf_speed.mapped_texts(corpus.folder, [d.text for d in documents])
        work["datasets"] = doing(megabytes, mapped)
    rates = best_rates(work, _LONG_TURNS)
    tokens = _num_tokens(fresh[0], documents) / megabytes
    figures = {"prepare_tokens_per_second": tokens * rates["prepare"]}
    figures |= {f"{name}_mb_per_second": rate for name, rate in rates.items()}
    for rival in list(work)[1:]:
        figures[f"prepare_to_{rival}_ratio"] = rates["prepare"] / rates[rival]
    return figures


def _num_tokens(tokenizer: Tokenizer, documents: Sequence[Document]) -> int:
    """Tokenises as preparation does."""
    sentences = [s for document in documents for s in document.sentences()]
    batches = (tokenizer.encode(batch) for batch in _batched(sentences))
    return sum(len(ids) for batch in batches for ids in batch)


def _batched(sentences: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(sentences), _SENTENCES):
        yield sentences[start : start + _SENTENCES]


# ---- rows ----


def opening(experiment: Experiment) -> Figures:
    """Opens the corpus, and the row index that was cut for it."""
    corpus, data = experiment.corpus.members[0].corpus, experiment.config.data
    settings, cache_dir = data.row_settings(experiment.config.seed), data.cache_dir
    work = {
        "open_corpus": doing(
            1, lambda: Corpus.open(corpus.folder).split("train").tokens
        ),
        "open_rows": doing(
            1, lambda: open_row_index(corpus, "train", settings, cache_dir=cache_dir)
        ),
    }
    rates = best_rates(work, _TURNS, _SECONDS)
    return {f"{name}_seconds": 1 / rate for name, rate in rates.items()}


def seeking(source: BatchSource) -> Figures:
    """Makes the first batch of a run, and of one that goes on from a late step.

    Each time in an epoch that was not seen before, whose order is not known yet. The
    ratio is that of the times.
    """

    def batches_from(first: int) -> Work:
        return lambda number: len(source.batch(first + _STRIDE * number)) > 0

    near, far = "first_batch", f"first_batch_at_{FAR}"
    work = {near: batches_from(0), far: batches_from(FAR)}
    rates = best_rates(work, _SEEKS)
    figures = {f"{name}_seconds": 1 / rate for name, rate in rates.items()}
    return figures | {"late_first_batch_ratio": rates[near] / rates[far]}


def loading(source: BatchSource) -> Figures:
    """Makes batches, and the same without corruption."""
    plain = dataclasses.replace(source, corruptions=())
    work: dict[str, Work] = {
        "loader": lambda number: _real_tokens(source.batch(number)),
        "loader_uncorrupted": lambda number: _real_tokens(plain.batch(number)),
    }
    return _tokens_per_second(best_rates(work, _TURNS, _SECONDS))


def _real_tokens(batch: Batch) -> int:
    return int(np.count_nonzero(batch["mask"]))


def _tokens_per_second(rates: dict[str, float]) -> Figures:
    return {f"{name}_tokens_per_second": rate for name, rate in rates.items()}


# ---- corruption ----


def corrupting(source: BatchSource, objectives: Iterable[Objective]) -> Figures:
    """Applies the objectives one after the other, those that do anything."""
    batch, draws = _plain_batch(source)
    work: dict[str, Work] = {}
    for objective in objectives:
        if type(objective).corrupt is not Objective.corrupt:
            name = f"corrupt_{objective.name}"
            work[name] = _corrupting(source, batch, draws, objective)
            batch = objective.corrupt(batch, draws, source.lexicon)
    return _tokens_per_second(best_rates(work, _TURNS, _SECONDS))


def selecting(source: BatchSource, experiment: Experiment) -> Figures:
    """Masks the same rows with every selector; phrases only where the run has some."""
    batch, draws = _plain_batch(source)
    work: dict[str, Work] = {}
    for select, selector in SELECTORS.items():
        if select == "phrases" and not len(source.lexicon.phrases):
            continue
        counts = get_args(Count) if "count" in selector.options else ("",)
        for count in counts:
            fields = {"count": count} if count else {}
            name = "_".join(filter(None, ("select", select, count)))
            objective = _masking(experiment, select=select, **fields)
            work[name] = _corrupting(source, batch, draws, objective)
    return _tokens_per_second(best_rates(work, _TURNS, _SECONDS))


def collating(source: BatchSource, experiment: Experiment) -> Figures:
    """Masks rows as Hugging Face's collator does: tokens, and whole words.

    Its input is a list of rows, its output a batch of tensors; ours has arrays.
    """
    batch, draws = _plain_batch(source)
    folder, vocabulary = experiment.corpus.tokenizer_folder, source.lexicon.vocabulary
    figures: Figures = {}
    for select in ("tokens", "words"):
        collate = hf_speed.collated(folder, batch, vocabulary, words=select == "words")
        objective = _masking(experiment, select=select)
        work = {
            f"mask_{select}": _corrupting(source, batch, draws, objective),
            f"hf_mask_{select}": doing(_real_tokens(batch), collate),
        }
        rates = best_rates(work, _TURNS, _SECONDS)
        figures |= _tokens_per_second(rates)
        ours, theirs = rates.values()
        figures[f"mask_{select}_to_hf_ratio"] = ours / theirs
    return figures


def _plain_batch(source: BatchSource) -> tuple[Batch, Draws]:
    """Returns the first batch before it is corrupted, and its random numbers."""
    plain = dataclasses.replace(source, corruptions=())
    return plain.batch(0), Draws(source.seed, *source.places(0, slice(None)), 0)


def _corrupting(
    source: BatchSource, batch: Batch, draws: Draws, objective: Objective
) -> Work:
    lexicon = source.lexicon
    return doing(_real_tokens(batch), lambda: objective.corrupt(batch, draws, lexicon))


def _masking(experiment: Experiment, **fields: Any) -> MaskedLM:
    """Returns a masked LM of the usual rate for the rows of a run."""
    return MaskedLM(**fields).resolved(experiment.config.data, experiment.encoder)
