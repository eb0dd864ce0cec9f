"""The table of tasks in docs/finetuning.md is filled by its script."""

from pathlib import Path

import pytest

from encoderjax.config_loading import recipe_values
from encoderjax.finetuning import FinetuneConfig
from encoderjax.recipes import load_recipe

script = load_recipe("docs/tasks.py")

RESULTS = {
    "seeds": 3,
    "machine": "a machine",
    "versions": {"jax": "1"},
    "tasks": {
        "far": {
            "metrics": {
                "exact_match": {
                    "pretrained": [0.5, 0.6, 0.7],
                    "scratch": [0.1, 0.1, 0.1],
                },
                "f1": {"pretrained": [0.5, 0.6, 0.7], "scratch": [0.4, 0.5, 0.6]},
            },
            "seconds": [60.0, 80.0],
        }
    },
}


def test_a_line_has_both_starts_and_says_when_they_are_alike():
    text = script.table(RESULTS)
    clear = "| `far` | exact match | 0.600 ± 0.100 | 0.100 ± 0.000 | +0.500 | 70 |"
    assert clear in text
    assert "| 0.500 ± 0.100 | +0.100 (within the spread) | 70 |" in text
    assert text.endswith("3 seeds. a machine; jax 1.")


@pytest.mark.parametrize("name", script.TASKS)
def test_every_task_is_a_run_of_its_recipe(name):
    task = script.TASKS[name]
    changes = task.overrides(Path("tasks")) | {"init_from": "somewhere"}
    values = recipe_values(f"configs/finetune/{task.recipe}", changes)
    config = FinetuneConfig.from_dict(values)
    assert config.data.train.startswith("tasks/")
    # Both starts are measured on examples that chose nothing.
    assert config.data.test or config.data.test_share
    command = task.command(Path("tasks"), "somewhere")
    assert f"--config.data.length={config.data.length}" in command
    assert "--config.init_from=somewhere" in command
