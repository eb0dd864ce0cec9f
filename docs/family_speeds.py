"""Measures the speed of every family beside BERT's, on one core of a CPU.

python docs/family_speeds.py            # all families of the table
python docs/family_speeds.py XLNet      # one of them anew
python docs/scaling_tables.py           # puts them into docs/scaling.md

For each family the recipe of its base size, with rows of 512 random tokens and of few
layers: how long the encoder takes to read them, and a whole step of training. It is
measured at two depths, and the time of all layers lies on the line through both; what
is there once, as the vocabulary's scores, so has its share of the base size. BERT and
the family take turns; BERT's own entry is of BERT beside itself, and tells how far the
others may be wrong.
"""

import os

if __name__ == "__main__":  # before anything heavy is imported
    from encoderjax.command import restart_with_huge_pages

    os.environ["JAX_PLATFORMS"] = "cpu"
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    restart_with_huge_pages()

import argparse
import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from encoderjax import provenance
from encoderjax.command import run_command
from encoderjax.config import RunConfig
from encoderjax.config_loading import load_config
from encoderjax.interop.weights import read_json, write_json
from encoderjax.models.heads import EncoderModel, init_params
from encoderjax.outline import Outline
from encoderjax.phases import Stage, merged, phases_of
from encoderjax.recipes import load_recipe
from encoderjax.train import first_program
from encoderjax.training.mesh import BatchPlacement, make_mesh

DOCS = Path(__file__).parent
RESULTS = DOCS / "measured/family_speeds.json"
BASES = load_recipe(DOCS / "scaling_tables.py").BASES
LENGTH, ROWS = 512, 2
TURNS = {"read": 7, "train": 3}  # a step takes longer, and differs less
# Layers that are measured. A student has half of its teacher's, a generator half of the
# discriminator's and, with a mask decoder, two at least; ModernBERT's are one and a
# pattern of three.
DEPTH = (1, 3)
DEPTHS = {
    "DistilBERT": (1, 2),
    "DeBERTa": (2, 4),
    "DeBERTa v3": (4, 6),
    "ModernBERT": (1, 4),
}
_TEXT = 5  # the token that outlined rows have for text
# What costs time on a pod to save memory, and what a run begins with.
_PLAIN = {
    "init_from": None,
    "init_layers": None,
    "phases": {},
    "precision": "float32",
    "data": {"length": LENGTH, "batch_size": ROWS, "batch_tokens": None},
    "mesh": {"data": 1, "fsdp": 1, "model": 1},
    "compute": {"attention": "auto", "remat": "none"},
    "optimizer": {"microbatches": 1},
}


class Drawn(Outline):
    """An outline whose teacher has weights."""

    @functools.cached_property
    def teacher(self) -> tuple[EncoderModel, Any] | None:
        """The model that is learned from, with new parameters."""
        model = self.teacher_model
        return model and (model, init_params(model, jax.random.key(0)))


class Family:
    """A family at some depth, ready to run on one batch.

    Attributes:
      whole: the layers of the base size.
    """

    def __init__(self, name: str, layers: int):
        config = config_of(name)
        self.whole = config.model.encoder.num_layers
        experiment = shallow(config, layers)
        (phase,) = phases_of(experiment.config)
        stage = Stage(phase, experiment, experiment.train_source(), {})
        self._mesh, batch = make_mesh(experiment.config.mesh), random_batch(experiment)
        with jax.set_mesh(self._mesh):
            program, self._state = first_program(stage, self._mesh)
            self._batch = BatchPlacement(self._mesh, ROWS).put(batch)
        self._step = program.train_step
        model = experiment.pretrainer("cpu").model
        alone = EncoderModel(model.config, (), model.dtype, compute=model.compute)

        def read(encoder: Any, batch: Any) -> jax.Array:
            inputs = (batch[key] for key in ("ids", "mask", "segments"))
            told = {f"{k}_BL": batch.get(k) for k in ("documents", "positions")}
            outputs: Any = alone.apply(
                {"params": {"encoder": encoder}}, *inputs, **told
            )
            return outputs.hidden

        self._read = jax.jit(read)

    def read(self) -> None:
        """Reads the batch."""
        encoder = self._state.params["encoder"]
        jax.block_until_ready(self._read(encoder, self._batch))

    def train(self) -> None:
        """Makes a step."""
        with jax.set_mesh(self._mesh):
            self._state, metrics = self._step(self._state, self._batch)
        jax.block_until_ready((self._state, metrics))


def config_of(name: str) -> RunConfig:
    """Returns the base recipe of a family as it is measured, at its full depth."""
    phases = phases_of(load_config(str(DOCS.parent / f"configs/{BASES[name]}.py")))
    near = min(phases, key=lambda phase: abs(phase.config.data.length - LENGTH))
    return RunConfig.from_dict(merged(near.config.to_dict(), _PLAIN))


def shallow(config: RunConfig, layers: int) -> Outline:
    """Returns a run with fewer layers, also of its generator and its teacher."""
    less = lambda number: number * layers // config.model.encoder.num_layers
    objectives = config.to_dict()["objectives"]
    changes: dict[str, Any] = {"model": {"num_layers": layers}}
    generator = objectives.get("rtd", {}).get("generator", {})
    if "num_layers" in generator:
        own = {"num_layers": less(generator["num_layers"])}
        changes["objectives"] = {"rtd": {"generator": own}}
    teacher = "bert:base" if "distillation" in objectives else None
    changed = RunConfig.from_dict(merged(config.to_dict(), changes))
    experiment = Drawn.of(changed, teacher, lambda line: None)
    if experiment.teacher_model is None:
        return experiment
    whole = experiment.teacher_model.config
    fewer = dataclasses.replace(whole, num_layers=less(whole.num_layers))
    model = experiment.teacher_model.clone(config=fewer)
    return dataclasses.replace(experiment, teacher_model=model)


def random_batch(experiment: Outline) -> dict[str, np.ndarray]:
    """Returns rows of random tokens, corrupted as the objectives do."""
    same = np.zeros(ROWS, np.int64)
    batch = experiment.full_length_source().rows(same, same, step=0)
    ids_BL, size = batch["ids"], experiment.encoder.vocab_size
    drawn_BL = np.random.default_rng(0).integers(_TEXT, size, ids_BL.shape, np.int32)
    return batch | {"ids": np.where(ids_BL == _TEXT, drawn_BL, ids_BL)}


class Depths:
    """A family at the depths that are measured, ready to run."""

    def __init__(self, name: str):
        self.at = {n: Family(name, n) for n in DEPTHS.get(name, DEPTH)}
        self.seconds("train")  # compiles
        self.seconds("read")

    def seconds(self, what: str) -> dict[int, float]:
        """Returns the processor's seconds at each depth."""
        return {n: cpu_seconds(getattr(f, what)) for n, f in self.at.items()}

    def whole(self, seconds: dict[int, float]) -> float:
        """Returns those of the base size."""
        return on_line(seconds, next(iter(self.at.values())).whole)


def compared(own: Depths, bert: Depths) -> dict[str, Any]:
    """Returns how fast a family is, beside BERT."""
    found: dict[str, Any] = {}
    for what, turns in TURNS.items():
        taken = [(bert.seconds(what), own.seconds(what)) for _ in range(turns)]
        theirs, ours = map(medians, zip(*taken, strict=True))
        found[f"{what}_speed"] = bert.whole(theirs) / own.whole(ours)
        found[f"{what}_seconds"] = {str(n): ours[n] for n in ours}
    return found


def on_line(seconds: dict[int, float], layers: int) -> float:
    """Returns the seconds of so many layers, from those of two other depths."""
    (few, least), (many, most) = sorted(seconds.items())
    return least + (most - least) * (layers - few) / (many - few)


def medians(turns: Sequence[dict[int, float]]) -> dict[int, float]:
    """Returns the median of each entry."""
    return {key: statistics.median(turn[key] for turn in turns) for key in turns[0]}


def cpu_seconds(call: Callable[[], object]) -> float:
    """Returns the processor's seconds of a call: other work does not count."""
    start = time.process_time()
    call()
    return time.process_time() - start


def main() -> None:
    """Measures the families that are asked for, and keeps what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("families", nargs="*", choices=[*BASES, []], metavar="FAMILY")
    names = parser.parse_args().families or BASES
    about = {
        "length": LENGTH,
        "rows": ROWS,
        "turns": TURNS,
        "machine": provenance.machine(),
        "versions": provenance.made_with(),
    }
    found = read_json(RESULTS)["families"] if RESULTS.is_file() else {}
    bert = Depths("BERT")
    for name in names:
        found[name] = compared(bert if name == "BERT" else Depths(name), bert)
        speeds = {k: v for k, v in found[name].items() if k.endswith("_speed")}
        print(name, *(f"{what} {speed:.2f}" for what, speed in speeds.items()))
        RESULTS.parent.mkdir(exist_ok=True)
        write_json(RESULTS, about | {"families": found})


if __name__ == "__main__":
    run_command(main)
