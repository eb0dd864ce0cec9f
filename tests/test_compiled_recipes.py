"""What docs/compiled says of the recipes, against the recipes."""

import json
import re
from pathlib import Path

import pytest

from encoderjax.config_loading import load_config
from encoderjax.outline import outline_stages
from encoderjax.phases import phases_of

ROOT = Path(__file__).parent.parent
COMPILED = sorted((ROOT / "docs/compiled").glob("*.json"))
RECIPES = sorted((ROOT / "configs").glob("*.py"))
# Ours: for a CPU, of the size of another, and one whose model is what it goes on with.
NOT_COMPILED = {"bert_tiny", "cpu_half_hour", "denoising_base", "continue_pretraining"}


def test_every_recipe_of_a_published_run_was_compiled():
    compiled = {path.stem for path in COMPILED}
    assert compiled == {path.stem for path in RECIPES} - NOT_COMPILED


@pytest.mark.parametrize("path", COMPILED, ids=lambda path: path.stem)
def test_a_recipe_was_compiled_as_it_is_and_fits(path):
    """Compiling takes minutes; that it was for these settings is seen at once."""
    config = load_config(str(ROOT / f"configs/{path.stem}.py"))
    found = json.loads(path.read_text())
    assert not found["by_formula"]
    assert found["remat"] == config.compute.remat
    assert found["attention"] == config.compute.attention
    phases = [
        (
            phase.name,
            phase.last - phase.first,
            phase.config.data.batch_size,
            phase.config.data.length,
            phase.config.optimizer.microbatches,
        )
        for phase in phases_of(config)
    ]
    teacher = "bert:base" if path.stem == "distilbert_base" else None
    stages = outline_stages(config, teacher=teacher, report=lambda line: None)
    for stage, compiled in zip(stages, found["phases"], strict=True):
        # Sizes, objectives and slots are in it.
        assert stage.flops_per_step == pytest.approx(compiled["flops_per_step"])
    names = ("name", "steps", "rows", "length", "microbatches")
    for given, compiled in zip(phases, found["phases"], strict=True):
        said = tuple(compiled[field] for field in names)
        # A batch by tokens has its rows from the length.
        assert said == tuple(
            compiled["rows"] if value is None else value for value in given
        )
        assert compiled["fits"]
        assert compiled["bytes"] < found["available_bytes"]
        assert not compiled["global_buffers"]
        assert not compiled["activation_gathers"]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_what_a_recipe_says_of_its_memory_was_compiled(path):
    """Beside `compute`, as "fits v5e:16x16, 6.5 GiB a chip"."""
    said = re.findall(r"[Ff]its (v5e:[\dx]+), ([\d.]+) GiB a chip", path.read_text())
    for pod, memory in said:
        found = json.loads((ROOT / f"docs/compiled/{path.stem}.json").read_text())
        most = max(phase["bytes"] for phase in found["phases"]) / 2**30
        assert (pod, memory) == (found["topology"], f"{most:.1f}")
