"""Pretraining objectives, each with its host and its device half."""

from collections.abc import Iterable

from encoderjax.models.config import EncoderConfig
from encoderjax.models.heads import Generator
from encoderjax.objectives.deletion import Deletion
from encoderjax.objectives.distillation import Distillation
from encoderjax.objectives.insertion import Insertion
from encoderjax.objectives.mlm import MaskedLM
from encoderjax.objectives.objective import Objective
from encoderjax.objectives.pairs import NextSentence, SentenceOrder
from encoderjax.objectives.permutation import PermutationLM
from encoderjax.objectives.reordering import Reordering
from encoderjax.objectives.replaced_token import ReplacedTokens
from encoderjax.objectives.span_boundary import SpanBoundary

# In the order in which they corrupt a batch: what moves tokens comes before masks.
OBJECTIVES: dict[str, type[Objective]] = {
    objective.name: objective
    for objective in (
        Deletion,
        Insertion,
        Reordering,
        MaskedLM,
        NextSentence,
        SentenceOrder,
        SpanBoundary,
        PermutationLM,
        Distillation,
        ReplacedTokens,
    )
}


def head_names(objectives: Iterable[Objective]) -> tuple[str, ...]:
    """Returns the heads that the objectives ask of a model, in their order."""
    objectives = tuple(objectives)
    taken_over = {name for objective in objectives for name in objective.takes_over}
    heads = [
        head
        for objective in objectives
        if objective.name not in taken_over
        for head in objective.heads
    ]
    return tuple(dict.fromkeys(heads))


def generator_of(
    objectives: Iterable[Objective], config: EncoderConfig
) -> Generator | None:
    """Returns the second network that an objective trains, if one does."""
    made = (objective.generator_for(config) for objective in objectives)
    return next((generator for generator in made if generator is not None), None)
