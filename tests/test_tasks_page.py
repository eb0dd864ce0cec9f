"""The table of tasks in docs/finetuning.md is filled by its script."""

from pathlib import Path

import pytest

from encoderjax.config_loading import recipe_values
from encoderjax.errors import UserError
from encoderjax.finetuning import FinetuneConfig
from encoderjax.interop.weights import write_json
from encoderjax.recipes import load_recipe

script = load_recipe("docs/tasks.py")

RESULTS = {
    "seeds": 3,
    "made_with": ["a machine; jax 1"],
    "tasks": {
        "far": {
            "metrics": {
                "exact_match": {
                    "pretrained": [0.5, 0.6, 0.7],
                    "scratch": [0.1, 0.1, 0.1],
                },
                "f1": {"pretrained": [0.5, 0.6, 0.7], "scratch": [0.4, 0.5, 0.6]},
            },
        }
    },
}


def test_a_line_has_both_starts_and_says_when_they_are_alike():
    text = script.table(RESULTS)
    clear = "| `far` | exact match | 0.600 ± 0.100 | 0.100 ± 0.000 | +0.500 |"
    assert clear in text
    assert "| 0.500 ± 0.100 | +0.100 (within the spread) |" in text
    assert text.endswith("3 seeds, on a machine; jax 1.")


@pytest.mark.parametrize("start", script.STARTS)
@pytest.mark.parametrize("name", script.TASKS)
def test_every_task_is_a_run_of_its_recipe(name, start):
    task = script.TASKS[name]
    changes = task.overrides(Path("tasks"), "somewhere", start)
    values = recipe_values(f"configs/finetune/{task.recipe}", changes)
    config = FinetuneConfig.from_dict(values)
    assert config.data.train.startswith("tasks/")
    assert config.from_scratch == (start == "scratch")
    # Both starts are measured on examples that chose nothing.
    assert config.data.test or config.data.test_share
    command = task.command(Path("tasks"), "somewhere")
    assert f"--config.data.length={config.data.length}" in command
    assert "--config.init_from=somewhere" in command


def test_results_of_another_encoder_are_not_taken(tmp_path):
    encoder, data, workdir = tmp_path / "encoder", tmp_path / "data", tmp_path / "run"
    encoder.mkdir()
    (encoder / "weights").write_bytes(b"one")
    data.write_text("examples")
    now = script.depends_on({"epochs": 3.0}, [encoder, data])
    workdir.mkdir()
    write_json(workdir / "inputs.json", {"sha256": now})
    write_json(workdir / "found.json", {"metrics": {}})
    assert script.found_by({}, now, workdir) == {"metrics": {}}
    (encoder / "weights").write_bytes(b"two")
    another = script.depends_on({"epochs": 3.0}, [encoder, data])
    fields = script.depends_on({"epochs": 4.0}, [encoder, data])
    assert len({now, another, fields}) == 3
    with pytest.raises(UserError, match="run was made with another encoder"):
        script.found_by({}, another, workdir)
