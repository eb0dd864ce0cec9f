"""Pretraining objectives, each with its host and its device half."""

from encoderjax.objectives.mlm import MaskedLM
from encoderjax.objectives.objective import Objective
from encoderjax.objectives.pairs import NextSentence, SentenceOrder

OBJECTIVES: dict[str, type[Objective]] = {
    objective.name: objective for objective in (MaskedLM, NextSentence, SentenceOrder)
}
