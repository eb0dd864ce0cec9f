"""What is measured while a run trains: its own held-out rows, and other corpora's."""

import dataclasses

from encoderjax.data.opening import open_corpus
from encoderjax.data.pipeline import BatchSource
from encoderjax.errors import UserError
from encoderjax.experiment import Experiment
from encoderjax.interop.vocabulary import check_readable

# The name of held-out metrics; with a slash and a name, those of one member of a
# mixture, or of another corpus.
VALIDATION = "validation"


def held_out_sources(experiment: Experiment) -> dict[str, dict[str, BatchSource]]:
    """Returns all held-out rows that are measured, by the split's name in metrics.

    `validation` is the run's own, where it has any; `validation/<name>` are those
    of `eval.corpora`; both in parts, by the names of members. They are read as they
    were written: with a vocabulary that was extended since, an old corpus gives the
    rows and masks that the old model is measured with.
    """
    own = experiment.validation_sources()
    sources = {VALIDATION: own} if own else {}
    taken = {split_name(VALIDATION, member) for member in ("", *own)}
    for name, folder in experiment.config.eval.corpora.items():
        field, split = f"eval.corpora.{name}", f"{VALIDATION}/{name}"
        parts = _other_sources(experiment, field, folder)
        names = {split_name(split, member) for member in ("", *parts)}
        if not taken.isdisjoint(names):
            raise UserError(
                f"{field} has the name of a member of data.corpus or of another "
                f"of eval.corpora: {min(taken & names)} would be both; choose "
                "another name"
            )
        taken |= names
        sources[split] = parts
    return sources


def _other_sources(
    experiment: Experiment, field: str, folder: str
) -> dict[str, BatchSource]:
    data = dataclasses.replace(experiment.config.data, corpus=folder, alpha=None)
    corpus = open_corpus(data, experiment.report, field)
    check_readable(
        experiment.corpus.tokenizer,
        corpus.tokenizer,
        where=f"{field}={folder}",
        remedy=f"prepare it with --tokenizer={experiment.corpus.tokenizer_folder}",
    )
    sources = experiment.held_out(corpus)
    if not sources:
        raise UserError(
            f"{field}={folder} has no held-out documents; prepare it with "
            "--validation above 0"
        )
    return sources


def split_name(split: str, member: str) -> str:
    """Returns the name in metrics of a member's part of a split; '' is the whole."""
    return f"{split}/{member}" if member else split
