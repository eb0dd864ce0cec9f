"""A config joined with its corpus: what training, preview and evaluation share.

Here everything that a config leaves open is settled: the corpus is opened (the demo
one made), the vocabulary size taken from its tokenizer, the batch counted in rows.
"""

import dataclasses
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from encoderjax.config import RunConfig
from encoderjax.data.corpus import Corpus
from encoderjax.data.pipeline import BatchSource, DataConfig, Lexicon, rows_for_tokens
from encoderjax.data.preparation import demo_corpus
from encoderjax.data.rows import (
    EpochOrder,
    RowIndex,
    RowSettings,
    SplitName,
    open_row_index,
)
from encoderjax.errors import UserError
from encoderjax.models.encoder import EncoderConfig
from encoderjax.objectives import Objective, head_names
from encoderjax.objectives.pretrainer import Pretrainer

# Held-out rows and masks are the same for every run, whatever its seed.
EVAL_SEED = 20_181_011

# What may change between the runs of one workdir; every other field must not, or the
# curve would not go on. The corpus may move: its fingerprint tells whether it is the
# same.
CHANGEABLE = (
    "steps",
    "init_from",
    "precision",
    "log_every",
    "mesh",
    "checkpoint",
    "eval",
    "optimizer.microbatches",
    "data.corpus",
    "data.tokenizer",
    "data.cache_dir",
    "data.batch_size",  # compared as resolved: data.rows_per_step
    "data.batch_tokens",
)


@dataclasses.dataclass(frozen=True, eq=False)
class Experiment:
    """A run with nothing left open.

    Attributes:
      encoder: with the vocabulary of the corpus.
      objectives: with their slots counted.
    """

    config: RunConfig
    corpus: Corpus
    encoder: EncoderConfig
    objectives: tuple[Objective, ...]
    report: Callable[[str], None]

    @classmethod
    def open(
        cls, config: RunConfig, report: Callable[[str], None] = print
    ) -> "Experiment":
        """Opens the corpus and checks it against the config."""
        corpus = open_corpus(config.data, report)
        encoder = _encoder_for(config, corpus)
        objectives = tuple(o.resolved(config.data, encoder) for o in config.objectives)
        return cls(config, corpus, encoder, objectives, report)

    @functools.cached_property
    def train_index(self) -> RowIndex:
        """The rows of the train split, cut on first use."""
        return self._index("train", self.config.data.row_settings(self.config.seed))

    @functools.cached_property
    def batch_size(self) -> int:
        """Rows of a step over all devices."""
        data = self.config.data
        if data.batch_size is not None:
            return data.batch_size
        assert data.batch_tokens is not None
        batch_size = rows_for_tokens(data.batch_tokens, self.train_index)
        self.report(
            f"data.batch_tokens={data.batch_tokens:,} is {batch_size:,} rows of "
            f"{self.train_index.mean_tokens:.1f} real tokens on average"
        )
        return batch_size

    @property
    def lexicon(self) -> Lexicon:
        """Returns what corruption needs of the vocabulary."""
        return Lexicon(self.corpus.tokenizer.vocabulary, self.corpus.unigrams_V)

    def pretrainer(self) -> Pretrainer:
        """Returns the model with its objectives, in the precision of the devices."""
        return Pretrainer.create(
            self.encoder, self.objectives, compute_dtype(self.config.precision)
        )

    def train_source(self) -> BatchSource:
        """Returns the training batches."""
        data = self.config.data
        order = EpochOrder(
            tuple(len(rows) for rows in self.train_index.passes), self.config.seed
        )
        static = data.dupe_factor if data.masking == "static" else None
        return self._source("train", self.train_index, order, self.config.seed, static)

    def validation_source(self) -> BatchSource | None:
        """Returns the held-out rows, in a fixed order; None without a split."""
        if not self.corpus.split("validation").num_documents:
            return None
        settings = dataclasses.replace(
            self.config.data.row_settings(EVAL_SEED), passes=1
        )
        index = self._index("validation", settings)
        order = EpochOrder((len(index.passes[0]),), EVAL_SEED)
        return self._source("validation", index, order, EVAL_SEED, None)

    def _index(self, split: SplitName, settings: RowSettings) -> RowIndex:
        cache_dir = self.config.data.cache_dir
        return open_row_index(
            self.corpus, split, settings, cache_dir=cache_dir, report=self.report
        )

    def _source(self, split: SplitName, index, order, seed, static) -> BatchSource:
        return BatchSource(
            split=self.corpus.split(split),
            index=index,
            order=order,
            layout=self.corpus.tokenizer.layout,
            lexicon=self.lexicon,
            corruptions=self.objectives,
            length=self.config.data.length,
            batch_size=self.batch_size,
            seed=seed,
            static_epochs=static,
        )

    def described(self) -> dict[str, Any]:
        """Returns the config with everything settled: the workdir's config.json."""
        described = self.config.to_dict()
        described["model"] = {
            "family": self.config.model.family,
            "size": self.config.model.size,
            **dataclasses.asdict(self.encoder),
        }
        # So that the workdir can be used from another folder; the demo corpus is
        # found or made anew wherever that is.
        if self.config.data.corpus != "demo":
            described["data"]["corpus"] = str(self.corpus.folder.absolute())
        return {"format": 1, **described, "heads": head_names(self.objectives)}

    def identity(self) -> dict[str, Any]:
        """Returns what a checkpoint must agree with, by name of the field."""
        described = self.described()
        fields = _flat({key: described[key] for key in self.config.to_dict()})
        return {
            **{key: value for key, value in fields.items() if not _changeable(key)},
            "tokenizer.sha256": self.corpus.tokenizer.sha256,
            "corpus.fingerprint": self.corpus.fingerprint,
            "data.rows_per_step": self.batch_size,
        }


def open_corpus(data: DataConfig, report: Callable[[str], None]) -> Corpus:
    """Opens `data.corpus`; `demo` is prepared on first use."""
    if data.corpus != "demo":
        return Corpus.open(Path(data.corpus).expanduser())
    default = Path("~/.cache/encoderjax").expanduser()
    cache = Path(os.environ.get("ENCODERJAX_CACHE", default))
    return Corpus.open(demo_corpus(data.tokenizer, cache, report))


def compute_dtype(precision: str) -> Any:
    """Returns the dtype of the arithmetic."""
    if precision == "auto":
        precision = "float32" if jax.default_backend() == "cpu" else "bfloat16"
    return jnp.dtype(precision)


def _encoder_for(config: RunConfig, corpus: Corpus) -> EncoderConfig:
    """Returns the encoder with a vocabulary that fits the corpus."""
    size = corpus.tokenizer.vocabulary.size
    encoder = config.model.encoder
    if "vocab_size" not in config.model.changes:
        return dataclasses.replace(encoder, vocab_size=size)
    if encoder.vocab_size < size:
        raise UserError(
            f"model.vocab_size={encoder.vocab_size} is smaller than the vocabulary of "
            f"corpus {corpus.folder}, {size}; set it to {size} or more, or None"
        )
    return encoder


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns {a.b: value} of nested dicts."""
    flat = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            # As JSON would give it back.
            flat[prefix + key] = list(value) if isinstance(value, tuple) else value
    return flat


def _changeable(key: str) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in CHANGEABLE)
