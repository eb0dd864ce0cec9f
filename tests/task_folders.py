"""Small task models of ours in folders of every kind, with random parameters."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from encoderjax.interop.task_description import LABELLED_KINDS, TaskDescription
from encoderjax.interop.task_loading import LoadedTask
from encoderjax.interop.writing import write_params
from encoderjax.models.families import preset
from encoderjax.models.task_heads import encoder_for, task_head
from encoderjax.training.checkpoint import CheckpointConfig, Checkpoints
from encoderjax.training.step import TrainState
from tests.families import random_task_params

SIZES = {
    "vocab_size": 99,
    "num_layers": 1,
    "width": 24,
    "num_heads": 3,
    "mlp_width": 32,
    "max_length": 40,
}
LABELS = ("good", "bad", "so so")


def small_task(family: str, kind: str, num_layers: int = 1, **head) -> LoadedTask:
    """Returns a task model as if it had been loaded."""
    sizes = SIZES | {"num_layers": num_layers}
    config = dataclasses.replace(preset(family, "base"), **sizes)
    labels = LABELS if kind in LABELLED_KINDS else ()
    count = {"answer": 2, "choose": 1}.get(kind, len(labels))
    made = task_head(family, config, kind, count, **head)
    config = encoder_for(config, made)
    description = TaskDescription(
        kind=kind, labels=labels, head=made, length=30, cut="tail", settings={"a": 1}
    )
    return LoadedTask(
        family=family,
        config=config,
        description=description,
        params=random_task_params(config, made),
        tokenizer=None,
        source=Path("nowhere"),
    )


def write_exported(folder: Path, task: LoadedTask) -> Path:
    """Writes a folder of our own parameters."""
    folder.mkdir()
    write_params(folder, task, "float32")
    return folder


def write_workdir(folder: Path, task: LoadedTask, steps=(5, 7)) -> Path:
    """Writes a run's folder; at step n the parameters are n times those given."""
    folder.mkdir()
    model = {"family": task.family, **dataclasses.asdict(task.config)}
    config = {"format": 1, "task": task.description.to_json(), "model": model}
    (folder / "config.json").write_text(json.dumps(config))
    checkpoints = Checkpoints(folder, CheckpointConfig(every=1, keep=len(steps)))
    for step in steps:
        params = jax.tree.map(lambda leaf, n=step: n * jnp.asarray(leaf), task.params)
        state = TrainState(
            step=jnp.asarray(step),
            params=params,
            opt_state={"count": jnp.asarray(step)},
            carry={},
            frozen={},
        )
        checkpoints.save(state, step, {})
    checkpoints.wait()
    checkpoints.close()
    return folder


def assert_same_trees(ours: dict, others: dict) -> None:
    assert jax.tree.structure(ours) == jax.tree.structure(others)
    jax.tree.map(np.testing.assert_array_equal, ours, others)
