"""What fewer bits change: the metrics of a task, or of texts' vectors."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from encoderjax.errors import UserError
from encoderjax.finetuning import FinetuneConfig
from encoderjax.interop.own_files import config_json_of
from encoderjax.interop.precision import Dtype, quantised
from encoderjax.interop.sentence_loading import LoadedSentence
from encoderjax.interop.task_loading import LoadedTask
from encoderjax.predict import Predictor
from encoderjax.tasks.data import VALIDATION
from encoderjax.tasks.embed import Embed, Texts
from encoderjax.tasks.embedding import Embedder
from encoderjax.tasks.sts import Pairs, evaluate_sts, read_pairs

_SCORES = ("spearman_cosine", "pearson_cosine")  # the other similarities follow them

Loaded = LoadedTask | LoadedSentence
Examples = Sequence[Any] | Pairs


def metrics_in(loaded: Loaded, dtype: Dtype, examples: Examples) -> dict[str, float]:
    """Returns the metrics of a model whose parameters have so many bits."""
    changed = dataclasses.replace(loaded, params=quantised(loaded.params, dtype))
    if isinstance(changed, LoadedTask):
        assert not isinstance(examples, Pairs)
        return Predictor(changed).metrics(examples)
    assert isinstance(examples, Pairs)
    found = evaluate_sts(Embedder(changed), examples)
    return {name: found[name] for name in _SCORES}


def metrics_change(loaded: Loaded, dtype: Dtype, examples: Examples | None) -> str:
    """Returns a line with the metrics in float32 and in `dtype`.

    Args:
      loaded: the model, in float32.
      dtype: of fewer bits.
      examples: of `read_examples`; None = the validation examples of the run.
    """
    try:
        examples = read_examples(loaded) if examples is None else examples
    except UserError as error:
        return f"the change of the metrics was not measured: {error}"
    before, after = (metrics_in(loaded, d, examples) for d in ("float32", dtype))
    changes = (f"{name} {before[name]:.4f} -> {after[name]:.4f}" for name in before)
    return f"float32 -> {dtype} on {len(examples):,} examples: " + ", ".join(changes)


def read_examples(loaded: Loaded, path: str | None = None) -> Examples:
    """Returns the validation examples of a run, or those of a file in their form."""
    run = _run(loaded)
    if isinstance(loaded, LoadedTask):
        return _examples(loaded, run, path)
    return _pairs(run, path)


def _run(loaded: Loaded) -> FinetuneConfig | None:
    """Returns the run that a workdir is of; a folder of any other kind has none."""
    if loaded.step is None:
        return None
    run: Mapping | None = config_json_of(loaded.source).get("finetune")
    return None if run is None else FinetuneConfig.from_dict(run)


def _examples(
    loaded: LoadedTask, run: FinetuneConfig | None, path: str | None
) -> Sequence[Any]:
    if path is not None:
        return Predictor(loaded).read(path, _columns(run), None, answered=True)
    return _validation(run)


def _pairs(run: FinetuneConfig | None, path: str | None) -> Pairs:
    """Returns pairs with scores; those of a file alone are in its first columns."""
    if run is not None and not isinstance(run.task, Embed):
        run = None
    found: Sequence[Texts]
    if path is None:
        found = _validation(run)
    elif run is None:
        return read_pairs(path)
    else:
        found = run.task.read(path, _columns(run))
    if found[0].score is None:
        raise UserError(
            "the run's validation examples have no scores; give pairs that have some, "
            "with --examples=FILE"
        )
    first, second = ([x.texts[i] for x in found] for i in (0, 1))
    return Pairs(first, second, np.array([x.score for x in found]))


def _columns(run: FinetuneConfig | None) -> Mapping[str, str | None]:
    """Returns where files of the run have their texts and labels."""
    return {} if run is None else run.data.validation_columns or run.data.columns


def _validation(run: FinetuneConfig | None) -> Sequence[Any]:
    if run is None:
        raise UserError("the folder names no examples; give some with --examples=FILE")
    _, found = run.data.read(run.task)
    if VALIDATION not in found:
        raise UserError("the run had no validation examples; give --examples=FILE")
    return found[VALIDATION]
