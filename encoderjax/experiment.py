"""A config joined with its corpus: what training, preview and evaluation share.

Here everything that a config leaves open is settled: the corpus is opened (the demo
one made), the model taken from `init_from` where the config names none, the vocabulary
size from the tokenizer, the batch counted in rows.
"""

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from encoderjax.config import ModelConfig, RunConfig
from encoderjax.data import storage
from encoderjax.data.buckets import BucketedSource
from encoderjax.data.corpora import Corpora, absolute, from_anywhere
from encoderjax.data.corpus import Corpus
from encoderjax.data.mixture import Pattern, mixed_index
from encoderjax.data.opening import open_corpus
from encoderjax.data.pipeline import BatchSource, Index, Lexicon, rows_for_tokens
from encoderjax.data.rows import EpochOrder, NoRowsError, Order, open_row_index
from encoderjax.errors import UserError
from encoderjax.fitting import fitted_encoder
from encoderjax.interop.loading import load_model
from encoderjax.interop.vocabulary import check_readable
from encoderjax.languages import check_translations, numbered_languages
from encoderjax.models.compute import PLAIN, compute_dtype
from encoderjax.models.config import EncoderConfig
from encoderjax.models.heads import EncoderModel, Generator
from encoderjax.objectives import Objective, generator_of, head_names
from encoderjax.objectives.distillation import Distillation
from encoderjax.objectives.objective import resolved_for
from encoderjax.objectives.pretrainer import Pretrainer
from encoderjax.opened_lists import OpenedLists
from encoderjax.origin import model_of, open_start

PyTree = Any

# Held-out rows and masks are the same for every run, whatever its seed.
EVAL_SEED = 20_181_011


@dataclasses.dataclass(frozen=True)
class Bucket:
    """The rows that are padded to one length.

    Attributes:
      more_than: the longest rows that go to a bucket before it.
      length: what they are padded to.
      share: of all rows, and so of all steps.
      objectives: with as many slots as such rows need.
    """

    more_than: int
    length: int
    share: float
    objectives: tuple[Objective, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Experiment:
    """A run with nothing left open.

    Attributes:
      config: with the whole model.
      corpus: what is read, of one or several members.
      encoder: with the vocabulary of the corpus.
      objectives: with their slots counted.
    """

    config: RunConfig
    corpus: Corpora
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
        encoder = fitted_encoder(encoder, config, corpus, origin)
        config = dataclasses.replace(config, model=model)
        objectives = tuple(o.resolved(config.data, encoder) for o in config.objectives)
        return cls(config, corpus, encoder, objectives, report)

    @functools.cached_property
    def train_index(self) -> Index:
        """The rows of the train split of all members, cut on first use."""
        data, members = self.config.data, self.corpus.members
        settings = data.row_settings(self.config.seed)
        if settings.streams and len(members) > 1:
            raise UserError(
                f"data.corpus={self.corpus.name} cannot be with data.form="
                f"{data.form!r}: each place of a batch reads on in one text, and would "
                "remember another language; train on one corpus, or choose another form"
            )
        check_translations([member.corpus for member in members], data)
        indexes = [
            open_row_index(
                member.corpus,
                "train",
                settings,
                cache_dir=data.cache_dir,
                by_length=data.buckets is not None,
                report=self.report,
            )
            for member in members
        ]
        return mixed_index(indexes, [member.share for member in members])

    @functools.cached_property
    def word_lists(self) -> OpenedLists:
        """The lists of words that the objectives read."""
        return OpenedLists.of(self.objectives, self.report)

    @property
    def lexicon(self) -> Lexicon:
        """What corruption needs to know of the tokens that are trained on."""
        return self.word_lists.lexicon(self.corpus.tokenizer, self.corpus.unigrams_V)

    @functools.cached_property
    def buckets(self) -> tuple[Bucket, ...]:
        """The lengths that batches have, each with some rows; often one."""
        data = self.config.data
        if not data.buckets:
            return (Bucket(0, data.length, 1.0, self.objectives),)
        buckets = []
        for bounds in itertools.pairwise((0, *data.bucket_lengths)):
            objectives, length = self.objectives, bounds[1]
            if length < data.length:
                objectives = tuple(
                    resolved_for(objective, length, data, self.encoder)
                    for objective in self.config.objectives
                )
            share = self.train_index.share(bounds)
            buckets.append(Bucket(*bounds, share, objectives))
        return tuple(bucket for bucket in buckets if bucket.share)

    @functools.cached_property
    def batch_size(self) -> int:
        """Rows of a step over all devices."""
        data = self.config.data
        if data.batch_size is not None:
            return data.batch_size
        assert data.batch_tokens is not None
        multiple = {"multiple": 1} if data.fill_batch else {}
        batch_size = rows_for_tokens(data.batch_tokens, self.train_index, **multiple)
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
            where=f"corpus {self.corpus.name}",
            remedy=f"prepare it with --tokenizer={loaded.source}",
        )
        objective.check_teacher(self.encoder, loaded.config, loaded.head_names)
        return loaded.with_heads(*objective.teacher_heads)

    def pretrainer(self, platform: str | None = None) -> Pretrainer:
        """Returns the model with its objectives, as devices of a platform compute it.

        The platform is that of this process unless given; without one the model is not
        meant to be trained, and no kernel is chosen for it.
        """
        dtype = compute_dtype(self.config.precision, platform)
        compute = self.config.compute
        compute = PLAIN if platform is None else compute.on(platform, dtype)
        teacher = self.teacher and self.teacher[0].clone(dtype=dtype, compute=compute)
        return Pretrainer.create(
            self.encoder, self.objectives, dtype, teacher, compute=compute
        )

    def frozen(self) -> dict[str, Any]:
        """Returns the parameters that are used but not trained."""
        return {} if self.teacher is None else {"teacher": self.teacher[1]}

    def full_length_source(self) -> BatchSource:
        """Returns the training batches as they are without buckets."""
        data, seed, index = self.config.data, self.config.seed, self.train_index
        static = data.dupe_factor if data.masking == "static" else None
        corpora = [member.corpus for member in self.corpus.members]
        source = self._source(index, index.order(seed), self.lexicon, seed, static)
        return dataclasses.replace(source, languages_M2=self._languages(corpora))

    def train_source(self) -> BatchSource | BucketedSource:
        """Returns the training batches."""
        source, seed = self.full_length_source(), self.config.seed
        if not self.config.data.buckets:
            return source
        sources = tuple(
            dataclasses.replace(
                source,
                order=source.index.order(seed, (bucket.more_than, bucket.length)),
                corruptions=bucket.objectives,
                length=bucket.length,
            )
            for bucket in self.buckets
        )
        shares = [bucket.share for bucket in self.buckets]
        return BucketedSource(Pattern.of(shares), sources)

    def validation_sources(self) -> dict[str, BatchSource]:
        """Returns the held-out rows of each member that has some, by its name.

        Those of a corpus that is not mixed have the name ''. Their order is fixed.
        """
        return self.held_out(self.corpus)

    def held_out(self, corpora: Corpora) -> dict[str, BatchSource]:
        """Returns held-out rows, which do not depend on what is trained on beside."""
        sources: dict[str, BatchSource] = {}
        empty: list[str] = []
        for member in corpora.members:
            if not member.corpus.split("validation").num_documents:
                continue
            try:
                sources[member.name] = self._held_out_of(member.corpus)
            except NoRowsError:
                if not corpora.mixed:
                    raise
                empty.append(member.name)
        if empty:
            self.report(
                f"{corpora.name}: the held-out text of {_listed(empty)} is too short "
                "for a row, and is not measured"
            )
        negatives = self.config.data.negatives
        single = [
            n for n, s in sources.items() if s.index.settings.negatives != negatives
        ]
        if single:
            of = f" of {_listed(single)}" if corpora.mixed else ""
            self.report(
                f"{corpora.name}: only one held-out document{of}, so its random second "
                "segments come from elsewhere in it"
            )
        return sources

    def _held_out_of(self, corpus: Corpus) -> BatchSource:
        data = self.config.data
        settings = data.row_settings(EVAL_SEED, held_out=True)
        index = open_row_index(
            corpus,
            "validation",
            settings,
            cache_dir=data.cache_dir,
            report=self.report,
        )
        order = EpochOrder((len(index.passes[0]),), EVAL_SEED)
        lexicon = self.word_lists.lexicon(corpus.tokenizer, corpus.unigrams_V)
        source = self._source(index, order, lexicon, EVAL_SEED, None)
        return dataclasses.replace(source, languages_M2=self._languages([corpus]))

    def _languages(self, corpora: Sequence[Corpus]) -> np.ndarray | None:
        """Returns the numbers of the languages of corpora, int32 [M, 2]."""
        return numbered_languages(corpora, self.encoder.languages, self.config.data)

    def _source(
        self,
        index: Index,
        order: Order,
        lexicon: Lexicon,
        seed: int,
        static: int | None,
    ) -> BatchSource:
        return BatchSource(
            index=index,
            order=order,
            lexicon=lexicon,
            corruptions=self.objectives,
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
        # So that the workdir can be used from another folder.
        described["data"]["corpus"] = from_anywhere(described["data"]["corpus"])
        described["data"]["alpha"] = self.corpus.alpha
        described["phases"] = {
            name: _from_anywhere(changes)
            for name, changes in self.config.phases.items()
        }
        if masked := described["objectives"].get("mlm"):
            replace = masked["replace"]
            for group, name in ((masked, "phrases"), (replace, "similar_words")):
                if group[name] and not storage.is_remote(group[name]):
                    group[name] = absolute(group[name])
        if distillation := described["objectives"].get("distillation"):
            distillation["teacher"] = absolute(distillation["teacher"])
        described["eval"]["corpora"] = {
            name: from_anywhere(folder)
            for name, folder in self.config.eval.corpora.items()
        }
        described = {"format": 1, **described, "heads": self.head_names}
        if self.generator is not None:
            described["generator"] = dataclasses.asdict(self.generator)
        return described

    @functools.cached_property
    def teacher_sha256(self) -> str:
        """A hash of the parameters that are learned from, in the order of names."""
        assert self.teacher is not None
        digest = hashlib.sha256()
        for leaf in jax.tree.leaves(self.teacher[1]):
            digest.update(np.asarray(leaf).tobytes())
        return digest.hexdigest()


def _listed(names: Sequence[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _from_anywhere(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what differs in a phase, its corpus for use in any folder."""
    data = dict(changes.get("data", {}))
    if "corpus" not in data:
        return dict(changes)
    return {**changes, "data": data | {"corpus": from_anywhere(data["corpus"])}}
