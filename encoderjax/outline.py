"""A run of which only the shapes are known: what can be compiled anywhere.

Nothing is read: no corpus, no tokenizer, no weights of a teacher. The size of the
vocabulary is that of the recipe's tokenizer, and one row of no text goes through the
pipeline and the objectives, so that batches have the keys, shapes and kinds of numbers
that training gives them.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from encoderjax.config import ModelConfig, RunConfig
from encoderjax.data.corpora import Corpora
from encoderjax.data.corpus import Corpus
from encoderjax.data.pipeline import DataConfig, Lexicon
from encoderjax.data.records import ROW, Rows
from encoderjax.data.rows import RowIndex
from encoderjax.data.tokenizers import (
    Layout,
    Vocabulary,
    check_spec,
    is_trained,
    load_tokenizer,
)
from encoderjax.errors import UserError
from encoderjax.experiment import Experiment
from encoderjax.fitting import sized_encoder
from encoderjax.interop.loading import load_model
from encoderjax.models.config import EncoderConfig
from encoderjax.models.families import preset
from encoderjax.models.heads import EncoderModel, init_params
from encoderjax.objectives.distillation import Distillation
from encoderjax.origin import model_of, open_start
from encoderjax.phases import Stage, phases_of

PyTree = Any
Shapes = dict[str, jax.ShapeDtypeStruct]

_SPECIAL = 5  # ids from 0 on: padding, unknown, [CLS], [SEP], [MASK]
_LAYOUT = Layout(before=(2,), between=(3,), after=(3,))


def outline_stages(
    config: RunConfig,
    *,
    teacher: str | None = None,
    report: Callable[[str], None] = print,
) -> tuple[Stage, ...]:
    """Returns the stages of a run as `open_stages` does, without their data.

    Args:
      config: of the run.
      teacher: FAMILY:SIZE, in place of the folder that objectives.distillation names.
      report: takes a line for what had to be assumed.
    """
    stages = []
    for phase in phases_of(config):
        outline = Outline.of(phase.config, teacher, report if not stages else _silent)
        stages.append(Stage(phase, outline, outline.train_source(), {}))
    return tuple(stages)


def _silent(line: str) -> None:
    """Says nothing: the phases of a run assume the same."""


@dataclasses.dataclass(frozen=True, eq=False)
class Outline(Experiment):
    """An experiment without anything that it would read.

    Attributes:
      teacher_model: the sizes of the model that is learned from, and its heads.
    """

    teacher_model: EncoderModel | None = None

    @classmethod
    def of(
        cls, config: RunConfig, teacher: str | None, report: Callable[[str], None]
    ) -> "Outline":
        """Settles what the config leaves open; refuses what training would."""
        origin = _origin(config, report)
        model = config.model if origin is None else config.model.following(origin)
        size = _vocabulary_size(config.data, model.encoder, report)
        encoder = sized_encoder(
            model.encoder,
            config,
            size,
            f"data.tokenizer={config.data.tokenizer}",
            origin,
        )
        config = dataclasses.replace(config, model=model)
        objectives = tuple(o.resolved(config.data, encoder) for o in config.objectives)
        return cls(
            config,
            Corpora(config.data.corpus, members=()),
            encoder,
            objectives,
            report,
            _teacher(objectives, encoder, teacher),
        )

    @functools.cached_property
    def train_index(self) -> RowIndex:
        """One full row."""
        settings = self.config.data.row_settings(self.config.seed)
        text = settings.length - _LAYOUT.num_special(2)
        piece = np.zeros(1, ROW)
        piece["length"] = (text - text // 2, text // 2)
        return RowIndex(
            passes=(Rows(piece, np.arange(2)),),
            stream=_NoText(),  # pyright: ignore[reportArgumentType]
            layout=_LAYOUT,
            settings=settings,
            num_tokens=settings.length,
        )

    @property
    def lexicon(self) -> Lexicon:
        """A vocabulary of which only the size is known."""
        size = self.encoder.vocab_size
        none_V = np.zeros(size, bool)
        vocabulary = Vocabulary(
            size,
            *(0, 1, _LAYOUT.before[0], _LAYOUT.after[0], 4),
            special_V=np.arange(size) < _SPECIAL,
            unused_V=none_V,
            continues_word_V=none_V,
        )
        return Lexicon(vocabulary, np.ones(size, np.int64))

    def _languages(self, corpora: Sequence[Corpus]) -> np.ndarray | None:
        """The first language, where any is told."""
        return np.zeros((1, 2), np.int32) if self.encoder.languages else None

    @functools.cached_property
    def teacher(self) -> tuple[EncoderModel, PyTree] | None:
        """The model that is learned from, and the shapes of its parameters."""
        model = self.teacher_model
        if model is None:
            return None
        make = lambda: init_params(model, jax.random.key(0))
        return model, jax.eval_shape(make)

    def batch_shapes(self, rows: int) -> Shapes:
        """Returns what a step of so many rows is fed."""
        first = np.zeros(1, np.int64)
        row = self.full_length_source().rows(first, first, step=0)
        shape = lambda value: jax.ShapeDtypeStruct(
            (rows, *value.shape[1:]),
            jax.dtypes.canonicalize_dtype(value.dtype),
        )
        return {name: shape(value) for name, value in row.items()}


class _NoText:
    """A stream of the first token that is text."""

    def read(self, starts_S: np.ndarray, lengths_S: np.ndarray) -> np.ndarray:
        """Returns as many ids as the spans are long."""
        return np.full(int(lengths_S.sum()), _SPECIAL, np.int32)


def _origin(config: RunConfig, report: Callable[[str], None]) -> ModelConfig | None:
    """Returns the model that the run starts from, where its folder is at hand."""
    if config.init_from is None:
        return None
    if config.model.family is None or Path(config.init_from).exists():
        return model_of(open_start(config))
    report(f"init_from={config.init_from} is not here: taken to be as the recipe says")
    return None


def _vocabulary_size(
    data: DataConfig, encoder: EncoderConfig, report: Callable[[str], None]
) -> int:
    """Returns how many tokens the recipe's tokenizer has."""
    if is_trained(data.tokenizer):
        check_spec(data.tokenizer)
        return int(data.tokenizer.partition(":")[2])
    if Path(data.tokenizer).exists():
        return load_tokenizer(data.tokenizer).vocabulary.size
    report(
        f"data.tokenizer={data.tokenizer} is not here: taken to have the "
        f"{encoder.vocab_size:,} tokens of the model"
    )
    return encoder.vocab_size


def _teacher(
    objectives: tuple, student: EncoderConfig, sizes: str | None
) -> EncoderModel | None:
    """Returns the model that an objective learns from, checked as training does."""
    objective = next((o for o in objectives if isinstance(o, Distillation)), None)
    if objective is None:
        if sizes is not None:
            raise UserError(
                f"--teacher={sizes}: the recipe has no objectives.distillation; leave "
                "it out"
            )
        return None
    if sizes is not None:
        family, colon, size = sizes.partition(":")
        if not colon:
            raise UserError(f"--teacher={sizes} must be FAMILY:SIZE, such as bert:base")
        teacher, heads = preset(family, size), objective.teacher_heads
    elif Path(objective.teacher).exists():
        loaded = load_model(objective.teacher)
        teacher, heads = loaded.config, loaded.head_names
    else:
        raise UserError(
            f"objectives.distillation.teacher={objective.teacher} is not here; "
            "--teacher=FAMILY:SIZE, such as bert:base, says how large it is"
        )
    objective.check_teacher(student, teacher, heads)
    return EncoderModel(teacher, objective.teacher_heads)
