"""A config joined with its corpus: what training, preview and evaluation share.

Here everything that a config leaves open is settled: the corpus is opened (the demo
one made), the model taken from `init_from` where the config names none, the vocabulary
size from the tokenizer, the batch counted in rows.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from encoderjax.config import ModelConfig, RunConfig
from encoderjax.data.corpus import Corpus
from encoderjax.data.pipeline import BatchSource, DataConfig, Lexicon, rows_for_tokens
from encoderjax.data.preparation import demo_corpus
from encoderjax.data.records import RowSettings
from encoderjax.data.rows import EpochOrder, RowIndex, SplitName, open_row_index
from encoderjax.errors import UserError
from encoderjax.interop.loading import load_model
from encoderjax.interop.start import Start
from encoderjax.interop.vocabulary import check_readable
from encoderjax.models.config import EncoderConfig
from encoderjax.models.heads import HEADS, EncoderModel, Generator, PairHead
from encoderjax.objectives import Objective, generator_of, head_names
from encoderjax.objectives.distillation import Distillation
from encoderjax.objectives.pretrainer import Pretrainer

PyTree = Any

# Held-out rows and masks are the same for every run, whatever its seed.
EVAL_SEED = 20_181_011

# The name of held-out metrics; with a slash and a name, those of another corpus.
VALIDATION = "validation"

# What may change between the runs of one workdir; every other field must not, or the
# curve would not go on. The corpus may move: its fingerprint tells whether it is the
# same.
CHANGEABLE = (
    "steps",
    "init_from",
    "init_vocabulary",
    "init_layers",
    "precision",
    "log_every",
    "mesh",
    "checkpoint",
    "eval",
    "optimizer.microbatches",
    "objectives.distillation.teacher",
    "data.corpus",
    "data.source",
    "data.tokenizer",
    "data.cache_dir",
    "data.batch_size",  # compared as resolved: data.rows_per_step
    "data.batch_tokens",
)


@dataclasses.dataclass(frozen=True, eq=False)
class Experiment:
    """A run with nothing left open.

    Attributes:
      config: with the whole model.
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
        cls,
        config: RunConfig,
        report: Callable[[str], None] = print,
        origin: ModelConfig | None = None,
    ) -> "Experiment":
        """Opens the corpus and checks it against the config.

        Args:
          origin: the model that the run starts from or goes on with, for what the
            config leaves open; the folder `init_from` is read where it is needed and
            not given.
        """
        if origin is None and config.model.family is None:
            origin = model_of(open_start(config))
        model = config.model if origin is None else config.model.following(origin)
        encoder = model.encoder  # refused where it is still open, before all else
        corpus = open_corpus(config.data, report)
        rows = _vocabulary_rows(config, corpus, origin)
        encoder = dataclasses.replace(encoder, vocab_size=rows)
        encoder = _reading(encoder, corpus, settled=config.model)
        if "pooler" not in config.model.changes:
            trained = origin is not None and origin.encoder.pooler
            pooler = trained or _reads_pooler(config.objectives, encoder)
            encoder = dataclasses.replace(encoder, pooler=pooler)
        config = dataclasses.replace(config, model=model)
        objectives = tuple(o.resolved(config.data, encoder) for o in config.objectives)
        return cls(config, corpus, encoder, objectives, report)

    @functools.cached_property
    def train_index(self) -> RowIndex:
        """The rows of the train split, cut on first use."""
        settings = self.config.data.row_settings(self.config.seed)
        return self._index(self.corpus, "train", settings)

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
    def head_names(self) -> tuple[str, ...]:
        """The heads that are trained, without a generator's."""
        return head_names(self.objectives)

    @property
    def generator(self) -> Generator | None:
        """The second network that is trained, where there is one."""
        return generator_of(self.objectives, self.encoder)

    @functools.cached_property
    def teacher(self) -> tuple[EncoderModel, PyTree] | None:
        """The model that an objective learns from, read on first use."""
        learning = (o for o in self.objectives if isinstance(o, Distillation))
        objective = next(learning, None)
        if objective is None:
            return None
        loaded = load_model(objective.teacher)
        check_readable(
            loaded.need_tokenizer(),
            self.corpus.tokenizer,
            where=f"corpus {self.corpus.folder}",
            remedy=f"prepare it with --tokenizer={loaded.source}",
        )
        objective.check_teacher(self.encoder, loaded.config, loaded.head_names)
        return loaded.with_heads(*objective.teacher_heads)

    def pretrainer(self) -> Pretrainer:
        """Returns the model with its objectives, in the precision of the devices."""
        dtype = compute_dtype(self.config.precision)
        teacher = self.teacher and self.teacher[0].clone(dtype=dtype)
        return Pretrainer.create(self.encoder, self.objectives, dtype, teacher)

    def frozen(self) -> dict[str, Any]:
        """Returns the parameters that are used but not trained."""
        return {} if self.teacher is None else {"teacher": self.teacher[1]}

    def train_source(self) -> BatchSource:
        """Returns the training batches."""
        data = self.config.data
        order = self.train_index.order(self.config.seed)
        static = data.dupe_factor if data.masking == "static" else None
        seed = self.config.seed
        return self._source(self.corpus, self.train_index, order, seed, static)

    def validation_source(self) -> BatchSource | None:
        """Returns the held-out rows, in a fixed order; None without a split."""
        return self._held_out(self.corpus)

    def held_out_sources(self) -> dict[str, BatchSource]:
        """Returns all held-out rows that are measured, by the split's name in metrics.

        `validation` is the run's own, where it has any; `validation/<name>` are those
        of `eval.corpora`. They are read as they were written: with a vocabulary that
        was extended since, an old corpus gives the rows and masks that the old model
        is measured with.
        """
        own = self.validation_source()
        sources = {} if own is None else {VALIDATION: own}
        for name, folder in self.config.eval.corpora.items():
            field = f"eval.corpora.{name}"
            sources[f"{VALIDATION}/{name}"] = self._other_source(field, folder)
        return sources

    def _other_source(self, field: str, folder: str) -> BatchSource:
        data = dataclasses.replace(self.config.data, corpus=folder)
        corpus = open_corpus(data, self.report, field)
        check_readable(
            self.corpus.tokenizer,
            corpus.tokenizer,
            where=f"{field}={folder}",
            remedy=f"prepare it with --tokenizer={self.corpus.folder}",
        )
        source = self._held_out(corpus)
        if source is None:
            raise UserError(
                f"{field}={folder} has no held-out documents; prepare it with "
                "--validation above 0"
            )
        return source

    def _held_out(self, corpus: Corpus) -> BatchSource | None:
        if not corpus.split("validation").num_documents:
            return None
        settings = self.config.data.row_settings(EVAL_SEED, held_out=True)
        index = self._index(corpus, "validation", settings)
        order = EpochOrder((len(index.passes[0]),), EVAL_SEED)
        return self._source(corpus, index, order, EVAL_SEED, None)

    def _index(
        self, corpus: Corpus, split: SplitName, settings: RowSettings
    ) -> RowIndex:
        cache_dir = self.config.data.cache_dir
        return open_row_index(
            corpus, split, settings, cache_dir=cache_dir, report=self.report
        )

    def _source(self, corpus: Corpus, index, order, seed, static) -> BatchSource:
        return BatchSource(
            index=index,
            order=order,
            lexicon=Lexicon(corpus.tokenizer.vocabulary, corpus.unigrams_V),
            corruptions=self.objectives,
            batch_size=self.batch_size,
            seed=seed,
            static_epochs=static,
        )

    def row_identity(self) -> dict[str, Any]:
        """Returns what the rows and their order depend on."""
        settings = self.config.data.row_settings(self.config.seed)
        return {"corpus": self.corpus.fingerprint, **dataclasses.asdict(settings)}

    def described(self) -> dict[str, Any]:
        """Returns the config with everything settled: the workdir's config.json."""
        described = self.config.to_dict()
        described["model"] = {
            "family": self.config.model.family,
            "size": self.config.model.size,
            **dataclasses.asdict(self.encoder),
        }
        # So that the workdir can be used from another folder.
        described["data"]["corpus"] = _from_anywhere(self.config.data.corpus)
        if distillation := described["objectives"].get("distillation"):
            distillation["teacher"] = _from_anywhere(distillation["teacher"])
        described["eval"]["corpora"] = {
            name: _from_anywhere(folder)
            for name, folder in self.config.eval.corpora.items()
        }
        described = {"format": 1, **described, "heads": self.head_names}
        if self.generator is not None:
            described["generator"] = dataclasses.asdict(self.generator)
        return described

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


def open_corpus(
    data: DataConfig, report: Callable[[str], None], field: str = "data.corpus"
) -> Corpus:
    """Opens the corpus that `field` names; `demo` is prepared on first use."""
    if data.corpus != "demo":
        folder = Path(data.corpus).expanduser()
        if not folder.exists():
            raise UserError(
                f"{field}={data.corpus} does not exist; make it with python -m "
                f"encoderjax.prepare --source={data.source!r} --tokenizer="
                f"{data.tokenizer} --out={data.corpus} (texts: docs/data.md)"
            )
        return Corpus.open(folder)
    default = Path("~/.cache/encoderjax").expanduser()
    cache = Path(os.environ.get("ENCODERJAX_CACHE", default))
    return Corpus.open(demo_corpus(data.tokenizer, cache, report))


def _from_anywhere(folder: str) -> str:
    """Returns a folder's name for use anywhere; the demo corpus is made wherever."""
    return folder if folder == "demo" else str(Path(folder).expanduser().absolute())


def compute_dtype(precision: str) -> Any:
    """Returns the dtype of the arithmetic."""
    if precision == "auto":
        precision = "float32" if jax.default_backend() == "cpu" else "bfloat16"
    return jnp.dtype(precision)


def open_start(config: RunConfig) -> Start | None:
    """Loads the folder `init_from`; None where a run begins with new parameters."""
    if config.init_from is None:
        return None
    heads = head_names(config.objectives)
    return Start.open(
        config.init_from, heads, config.init_vocabulary, config.init_layers
    )


def model_of(start: Start | None) -> ModelConfig | None:
    """Returns the model that a run starts from."""
    return start and ModelConfig.whole(start.loaded.family, start.config)


def _vocabulary_rows(
    config: RunConfig, corpus: Corpus, origin: ModelConfig | None
) -> int:
    """Returns the rows of the token table: at least the vocabulary of the corpus.

    Some tables have more rows than their tokenizer has tokens; those stay.
    """
    size = corpus.tokenizer.vocabulary.size
    if "vocab_size" not in config.model.changes:
        if origin is None or config.init_vocabulary == "replace":
            return size
        return max(size, origin.encoder.vocab_size)
    rows = config.model.changes["vocab_size"]
    if rows < size:
        raise UserError(
            f"model.vocab_size={rows} is smaller than the vocabulary of corpus "
            f"{corpus.folder}, {size}; set it to {size} or more, or None"
        )
    return rows


def _reading(
    encoder: EncoderConfig, corpus: Corpus, settled: ModelConfig
) -> EncoderConfig:
    """Returns the encoder as it reads the rows of a corpus.

    Where positions are counted over what is not padding, the tokenizer says what that
    is, unless the model's table was trained with another.
    """
    pad_id = int(corpus.tokenizer.vocabulary.pad_id)
    if encoder.position_pad_id not in (None, pad_id):
        if settled.family is None or "position_pad_id" in settled.changes:
            raise UserError(
                f"model.position_pad_id={encoder.position_pad_id} is not the padding "
                f"of corpus {corpus.folder}, {pad_id}: positions would be miscounted; "
                "prepare it with a tokenizer whose padding has that id"
            )
        encoder = dataclasses.replace(encoder, position_pad_id=pad_id)
    layout = corpus.tokenizer.layout
    most = max(layout.second, layout.final or 0, layout.pad) + 1
    has_table = encoder.num_segments > 1 and encoder.positions != "two_stream"
    if has_table and most > encoder.num_segments:
        raise UserError(
            f"model.num_segments={encoder.num_segments} is less than the {most} of the "
            f"tokenizer of corpus {corpus.folder}; set it to {most}, to 0 for a model "
            "that does not read segments, or prepare with another tokenizer"
        )
    return encoder


def _reads_pooler(objectives: Iterable[Objective], encoder: EncoderConfig) -> bool:
    """Says whether an objective trains the pooler; else a run has none."""
    heads = head_names(objectives)
    pairs = any(HEADS[name] is PairHead for name in heads)
    return pairs and encoder.pair_head == "pooled"


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
