"""What the recipes in `configs/` share: siblings, and how to shrink to a minute.

A recipe is a Python file with `get_config(variant)`, which returns a ConfigDict, and
VARIANTS, of which the first is the recipe as published. Where the notes that this
project began with read a paper differently, `notes(config)` sets what they say, and
NOTES are variants, too: of the recipe as published, and shrunk
(docs/notes_and_papers.md).
"""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_collections

NOTES = {"notes": "full", "notes_tiny": "tiny"}  # to the variant that they change


def load_recipe(file: str | Path) -> ModuleType:
    """Returns the module of a recipe."""
    spec = importlib.util.spec_from_file_location("encoderjax_recipe", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sibling(file: str, name: str, variant: str) -> ml_collections.ConfigDict:
    """Returns the recipe `name` that lies beside `file`, to be changed.

    For sizes of a model that were trained alike but for a few numbers.
    """
    config = load_recipe(Path(file).with_name(f"{name}.py")).get_config(variant)
    return config.unlock()


def as_noted(
    file: str, name: str, config: ml_collections.ConfigDict
) -> ml_collections.ConfigDict:
    """Returns a recipe with the notes' reading, which `name` beside `file` has."""
    noted = load_recipe(Path(file).with_name(f"{name}.py")).notes(config.unlock())
    return noted.lock()


def shrink(
    config: ml_collections.ConfigDict,
    *,
    tokenizer: str,
    model: dict[str, Any] | None = None,
    learning_rate: float,
    steps: int = 400,
) -> None:
    """Shrinks a recipe to a minute on two CPU cores, on the demo corpus; in place.

    Sizes, steps and rates of learning and dropping change. What is trained and how
    stays: the rows, the objectives, the optimiser and the shape of its schedule.

    Args:
      config: the recipe.
      tokenizer: to be trained on the demo corpus; a small one is learned sooner.
      model: fields of the encoder beside the usual two layers of 128 columns.
      learning_rate: the peak. Where an optimiser does not correct the bias of its
        moments, the steps of so short a run are several times as long as it says.
      steps: optimiser updates.
    """
    c: Any = config  # its groups are dicts, which its type does not say
    c.steps, c.log_every, c.phases = steps, 10, {}
    c.model.update(
        num_layers=2,
        width=128,
        num_heads=2,
        mlp_width=512,
        # Weights drawn at the usual 0.02 leave layers this narrow asleep for as long.
        init_std=0.06,
        dropout_rate=0.0,  # a run this short sees little text twice
        attention_dropout_rate=0.0,
    )
    c.model.update(model or {})
    c.data.update(
        corpus="demo",
        alpha=None,  # of languages, which the demo corpus has not
        tokenizer=tokenizer,
        length=64,
        buckets=None,
        batch_size=32,
        batch_tokens=None,
        fill_batch=False,
    )
    c.data.dupe_factor = min(c.data.get("dupe_factor", 10), 10)
    for objective in c.objectives.values():
        if "max_predictions" in objective:
            objective.max_predictions = None
    c.optimizer.update(
        learning_rate=learning_rate, warmup_steps=steps // 10, microbatches=1
    )
    c.mesh = dict(data=-1, fsdp=1, model=1)
    c.compute = dict(attention="auto", remat="none")
    c.checkpoint = dict(every=steps // 4, keep=2)
    c.eval = dict(every=steps // 4, batches=0)
