"""Loads a fine-tuned model from a workdir, a folder of Hugging Face, or an export."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from encoderjax.data.tokenizers import Tokenizer
from encoderjax.errors import UserError
from encoderjax.interop import weights
from encoderjax.interop.own_files import (
    EXTRA_INDEX,
    PARAMS,
    PARAMS_INDEX,
    check_family,
    config_json_of,
    described_model,
    existing_folder,
    fitting,
    needed_tokenizer,
    shared_layers,
    tokenizer_of,
)
from encoderjax.interop.task_description import TaskDescription
from encoderjax.interop.task_huggingface import kind_of, task_from_hf, task_shapes
from encoderjax.models.compute import PLAIN, Compute
from encoderjax.models.config import EncoderConfig
from encoderjax.models.task_heads import TaskModel, encoder_for

TASK = "task"  # the group of a config.json or params.json that describes one
BEST = "best.json"  # of a workdir: which step was the best


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadedTask:
    """A fine-tuned model and everything that came with it.

    Attributes:
      family: the family, such as `bert`.
      config: of the encoder, without what the head does not read.
      description: the task.
      params: `encoder` and `task`, float32 arrays on the host.
      tokenizer: None where the folder has none.
      source: the folder.
      step: the step of a workdir's checkpoint.
      report: a line for whatever the reader should know.
    """

    family: str
    config: EncoderConfig
    description: TaskDescription
    params: dict
    tokenizer: Tokenizer | None
    source: Path
    step: int | None = None
    report: tuple[str, ...] = ()

    def model(self, dtype: Any = jnp.float32, compute: Compute = PLAIN) -> TaskModel:
        """Returns the model, to be applied to `params`."""
        return TaskModel(self.config, self.description.head, dtype, compute)

    def need_tokenizer(self) -> Tokenizer:
        """Returns the tokenizer, for whom nothing works without."""
        return needed_tokenizer(self.tokenizer, self.source)


def holds_task(path: str | Path) -> bool:
    """Says whether a folder holds a model that was fine-tuned for a task."""
    folder = existing_folder(path)
    if (folder / PARAMS_INDEX).is_file():
        return TASK in weights.read_json(folder / PARAMS_INDEX)
    config_json = config_json_of(folder)
    if "model" in config_json:
        return TASK in config_json
    return kind_of(config_json, folder) is not None


def load_task(folder: str | Path, step: int | None = None) -> LoadedTask:
    """Loads a fine-tuned model.

    Args:
      folder: a workdir of `finetune`, a folder of Hugging Face with a class for a task,
        or one that `export` wrote.
      step: which checkpoint of a workdir; the best one when left out.
    """
    path = existing_folder(folder)
    if not holds_task(path):
        raise UserError(
            f"{path} holds no task's model; fine-tune it first, with python -m "
            "encoderjax.finetune --config.init_from=" + str(folder)
        )
    exported = (path / PARAMS_INDEX).is_file()
    if not exported and "model" in (run := config_json_of(path)):
        return _read_workdir(path, run, step)
    if step is not None:
        raise UserError(f"step={step}: {path} is no workdir, so it has no steps")
    return _read_exported(path) if exported else _read_huggingface(path)


def best_step(path: Path) -> tuple[int | None, tuple[str, ...]]:
    """Returns the best step of a fine-tuned workdir, if it has one that is kept.

    A line says so where the best one is gone.
    """
    if not (path / BEST).is_file():
        return None, ()
    from encoderjax.training.checkpoint import saved_steps

    step = weights.read_json(path / BEST).get("step")
    if step in saved_steps(path):
        return step, ()
    return None, (f"{path}: the best step, {step}, is not kept; the last is taken",)


def _read_workdir(path: Path, run: Mapping, step: int | None) -> LoadedTask:
    # Orbax takes a second to import, and no other folder needs it.
    from encoderjax.training.checkpoint import restore_params

    report: tuple[str, ...] = ()
    if step is None:
        step, report = best_step(path)
    params, step = restore_params(path, step)
    loaded = _own(path, run, params, path / "config.json", path / "tokenizer")
    return dataclasses.replace(loaded, step=step, report=report)


def _read_exported(path: Path) -> LoadedTask:
    index = weights.read_json(path / PARAMS_INDEX)
    params = weights.tree_of(weights.read_safetensors(path / PARAMS))
    return _own(path, index, params, path / PARAMS_INDEX, path)


def _own(
    path: Path, groups: Mapping, params: Mapping, where: Path, tokenizer: Path
) -> LoadedTask:
    """Returns what the groups `model` and `task` of our own files describe."""
    family, config = described_model(groups["model"], where)
    task = TaskDescription.from_json(groups[TASK], where)
    config = encoder_for(config, task.head)
    return LoadedTask(
        family=family,
        config=config,
        description=task,
        params=fitting(params, task_shapes(config, task.head), path),
        tokenizer=tokenizer_of(tokenizer, config),
        source=path,
    )


def _read_huggingface(path: Path) -> LoadedTask:
    config_json = config_json_of(path)
    kind = kind_of(config_json, path)
    assert kind is not None
    family, config, task, params, report = task_from_hf(
        config_json, weights.read_tensors(path), kind, path
    )
    where = path / EXTRA_INDEX
    if where.is_file():  # what `export` kept beside Hugging Face's files
        index = weights.read_json(where)
        told = {"family": family, **dataclasses.asdict(config)}
        told |= {"family": index.get("family", family), **index.get("model", {})}
        family_told, config = described_model(told, where)
        check_family(family_told, family, where)
        family = family_told
        task = _told_beside(task, index.get(TASK, {}), where)
        leaves = shared_layers(weights.leaves_of(params), config, where)
        shapes = task_shapes(config, task.head)
        params = fitting(weights.tree_of(leaves), shapes, path)
    return LoadedTask(
        family=family,
        config=config,
        description=task,
        params=params,
        tokenizer=tokenizer_of(path, config),
        source=path,
        report=report,
    )


def _told_beside(task: TaskDescription, told: object, where: Path) -> TaskDescription:
    """Returns the task with the fields that only our own file tells."""
    if not isinstance(told, Mapping):
        raise UserError(f"{where}: task={told!r} must be a group of fields")
    plain = task.to_json()
    head = {**plain["head"], **told.get("head", {})}
    return TaskDescription.from_json({**plain, **told, "head": head}, where)
