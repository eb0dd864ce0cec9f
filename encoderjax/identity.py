"""What the runs of one workdir must agree in, and what may change between them."""

import dataclasses
import fnmatch
from collections.abc import Mapping
from typing import Any

from encoderjax.experiment import Experiment

# What the identity calls the parameters of the model that is learned from: its folder
# may move, or be trained further.
TEACHER = "objectives.distillation.teacher.sha256"

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
    "compute",
    "checkpoint",
    "eval",
    "optimizer.microbatches",
    "objectives.distillation.teacher",
    "objectives.mlm.phrases",  # compared as what they hold: OpenedLists.identity
    "objectives.mlm.replace.similar_words",
    "phases.*.objectives.mlm.phrases",
    "phases.*.objectives.mlm.replace.similar_words",
    "data.corpus",  # compared as what it holds: Corpora.identity
    "phases.*.data.corpus",
    "data.source",
    "data.tokenizer",
    "data.cache_dir",
    "data.batch_size",  # compared as resolved: data.rows_per_step
    "data.batch_tokens",
    "data.fill_batch",
)


def run_identity(experiment: Experiment) -> dict[str, Any]:
    """Returns what a checkpoint must agree with, by name of the field."""
    described = experiment.described()
    fields = flat_fields({key: described[key] for key in experiment.config.to_dict()})
    identity = {
        **{key: value for key, value in fields.items() if not is_changeable(key)},
        "tokenizer.sha256": experiment.corpus.tokenizer.sha256,
        "data.rows_per_step": experiment.batch_size,
    }
    return identity | content_identity(experiment)


def content_identity(experiment: Experiment) -> dict[str, Any]:
    """Returns what a checkpoint must agree with of the texts and lists it read."""
    identity = experiment.corpus.identity() | experiment.word_lists.identity()
    if experiment.teacher is not None:
        identity[TEACHER] = experiment.teacher_sha256
    if experiment.encoder.languages:
        languages = [list(m.corpus.languages) for m in experiment.corpus.members]
        identity["corpus.languages"] = languages
    return identity


def row_identity(experiment: Experiment) -> dict[str, Any]:
    """Returns what the rows of a corpus and their order depend on beside it."""
    data = experiment.config.data
    return {
        "buckets": data.bucket_lengths,
        **dataclasses.asdict(data.row_settings(experiment.config.seed)),
    }


def flat_fields(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns {a.b: value} of nested dicts."""
    flat = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flat_fields(value, f"{prefix}{key}.")
        else:
            # As JSON would give it back.
            flat[prefix + key] = list(value) if isinstance(value, tuple) else value
    return flat


def is_changeable(key: str) -> bool:
    """Says whether a field may change between the runs of one workdir."""
    patterns = (pattern for name in CHANGEABLE for pattern in (name, f"{name}.*"))
    return any(fnmatch.fnmatchcase(key, pattern) for pattern in patterns)
