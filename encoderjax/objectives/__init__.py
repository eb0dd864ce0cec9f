"""Pretraining objectives, each with its host and its device half."""

from collections.abc import Iterable

from encoderjax.objectives.mlm import MaskedLM
from encoderjax.objectives.objective import Objective
from encoderjax.objectives.pairs import NextSentence, SentenceOrder

OBJECTIVES: dict[str, type[Objective]] = {
    objective.name: objective for objective in (MaskedLM, NextSentence, SentenceOrder)
}


def head_names(objectives: Iterable[Objective]) -> tuple[str, ...]:
    """Returns the heads that the objectives ask of a model, in their order."""
    return tuple(head for objective in objectives for head in objective.heads)
