"""What fewer bits change: a task's metrics before and after."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from encoderjax.errors import UserError
from encoderjax.finetuning import FinetuneConfig
from encoderjax.interop.own_files import config_json_of, existing_folder
from encoderjax.interop.precision import Dtype, quantised
from encoderjax.interop.task_loading import LoadedTask, load_task
from encoderjax.predict import Predictor
from encoderjax.tasks.data import VALIDATION


def metrics_in(
    loaded: LoadedTask, dtype: Dtype, examples: Sequence[Any]
) -> dict[str, float]:
    """Returns the metrics of a model whose parameters have so many bits."""
    params = quantised(loaded.params, dtype)
    return Predictor(dataclasses.replace(loaded, params=params)).metrics(examples)


def metrics_change(
    folder: str | Path, dtype: Dtype, *, step: int | None, examples: str | None
) -> str:
    """Returns a line with the metrics in float32 and in `dtype`.

    They are those of the validation examples of the run, or of a file.
    """
    loaded = load_task(folder, step)
    try:
        found = _examples(loaded, folder, examples)
    except UserError as error:
        return f"the change of the metrics was not measured: {error}"
    before, after = (metrics_in(loaded, d, found) for d in ("float32", dtype))
    changes = (f"{name} {before[name]:.4f} -> {after[name]:.4f}" for name in before)
    return f"float32 -> {dtype} on {len(found):,} examples: " + ", ".join(changes)


def _examples(
    loaded: LoadedTask, folder: str | Path, path: str | None
) -> Sequence[Any]:
    if path is not None:
        return Predictor(loaded).read(path, {}, None, answered=True)
    run = config_json_of(existing_folder(folder)).get("finetune")
    if run is None:
        raise UserError("the folder names no examples; give some with --examples=FILE")
    config = FinetuneConfig.from_dict(run)
    found = config.data.read(config.task)
    if VALIDATION not in found:
        raise UserError("the run had no validation examples; give --examples=FILE")
    return found[VALIDATION]
