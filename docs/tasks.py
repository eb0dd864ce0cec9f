"""Fine-tunes an encoder for four tasks, and fills the table of docs/finetuning.md.

python docs/tasks.py --encoder=runs/race/model --data=tasks

Each task is learned with several seeds, from the encoder and from new parameters of the
same sizes, in runs/tasks/NAME/START/SEED. Stopped, the same command goes on. Results
are kept in docs/measured/tasks.json; without --encoder only the table is made.
"""

if __name__ == "__main__":  # before anything heavy is imported
    from encoderjax.command import restart_with_huge_pages

    restart_with_huge_pages()

import argparse
import dataclasses
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from encoderjax import finetune
from encoderjax.ablation_results import rows
from encoderjax.command import run_command
from encoderjax.config_loading import recipe_values
from encoderjax.finetuning import FinetuneConfig
from encoderjax.interop.weights import read_json, write_json
from encoderjax.provenance import machine, made_with, said
from encoderjax.recipes import load_recipe
from encoderjax.spread import Measured

DOCS = Path(__file__).parent
PAGE, RESULTS = DOCS / "finetuning.md", DOCS / "measured" / "tasks.json"
STARTS = {"pretrained": False, "scratch": True}  # whether parameters are new ones


@dataclasses.dataclass(frozen=True)
class Learned:
    """A task of the table.

    Attributes:
      recipe: in configs/finetune.
      files: field -> file, from the folder of the data.
      fields: other fields of the run.
      metrics: of the test examples, the first of which decides.
    """

    recipe: str
    files: Mapping[str, str]
    fields: Mapping[str, Any]
    metrics: tuple[str, ...]

    def overrides(self, data: Path) -> dict[str, Any]:
        """Returns what is changed of the recipe."""
        files = {name: str(data / file) for name, file in self.files.items()}
        return {**files, **self.fields}

    def command(self, data: Path, encoder: str) -> str:
        """Returns the command of one run."""
        given = {"init_from": encoder, **self.overrides(data)}
        flags = " ".join(f"--config.{name}={value}" for name, value in given.items())
        return (
            f"python -m encoderjax.finetune --config=configs/finetune/{self.recipe} "
            f"{flags}"
        )


SMALL = {"optimizer.learning_rate": 5e-4}  # for an encoder of a few million weights
TASKS = {
    "sentence_polarity": Learned(
        "classify.py",
        {"data.train": "sentence_polarity/sentence_polarity.zip"},
        {**SMALL, "data.test_share": 0.1, "data.length": 64},
        ("accuracy",),
    ),
    "stsb": Learned(
        "classify.py:regression",
        {
            f"data.{split}": f"stsb/stsb-en-{name}.csv"
            for split, name in (
                ("train", "train"),
                ("validation", "dev"),
                ("test", "test"),
            )
        },
        {
            **SMALL,
            "epochs": 5.0,
            "data.length": 96,
            "data.columns.text": 0,
            "data.columns.pair": 1,
            "data.columns.label": 2,
        },
        ("spearman", "pearson"),
    ),
    "wnut17": Learned(
        "tag.py",
        {
            "data.train": "wnut17/wnut17train.conll",
            "data.validation": "wnut17/emerging.dev.conll",
            "data.test": "wnut17/emerging.test.annotated",
        },
        {**SMALL, "epochs": 6.0, "data.length": 96, "data.form": "conll"},
        ("f1", "accuracy"),
    ),
    "xquad": Learned(
        "answer.py",
        {"data.train": "xquad/xquad.en.json.gz"},
        {
            **SMALL,
            "epochs": 8.0,
            "data.test_share": 0.2,
            "data.length": 256,
            "data.batch_size": 16,
        },
        ("f1", "exact_match"),
    ),
}


def found_by(
    task: Learned, data: Path, encoder: str, start: str, seed: int, workdir: Path
) -> dict[str, Any] | None:
    """Returns what a run found, which is made if it is not there; None if stopped."""
    path = workdir / "found.json"
    if path.is_file():
        return read_json(path)
    changes = {
        "init_from": encoder,
        "seed": seed,
        "from_scratch": STARTS[start],
        **task.overrides(data),
    }
    values = recipe_values(f"configs/finetune/{task.recipe}", changes)
    begun = time.perf_counter()
    metrics = finetune.run(FinetuneConfig.from_dict(values), workdir)
    if metrics is None:
        return None
    found = {"metrics": metrics, "seconds": round(time.perf_counter() - begun, 1)}
    write_json(path, found)
    return found


def table(results: Mapping[str, Any]) -> str:
    """Returns what was found, in Markdown."""
    lines = []
    for name, task in results["tasks"].items():
        for metric, values in task["metrics"].items():
            cells = {start: Measured.of(values[start]) for start in STARTS}
            gain = cells["pretrained"].mean - cells["scratch"].mean
            within = cells["pretrained"].within_spread_of(cells["scratch"])
            remark = " (within the spread)" if within else ""
            line = [f"`{name}`", metric.replace("_", " ")]
            line += [str(cells[start]) for start in STARTS]
            seconds = Measured.of(task["seconds"]).mean
            lines.append([*line, f"{gain:+.3f}{remark}", f"{seconds:.0f}"])
    header = ["task", "test", *STARTS, "difference", "seconds a run"]
    made = f"{results['machine']}; {said(results['versions'])}."
    return f"{rows(header, lines)}\n\n{results['seeds']} seeds. {made}"


def measured(flags: argparse.Namespace) -> dict[str, Any] | None:
    """Returns the results of all runs; None when one was stopped."""
    tasks: dict[str, Any] = {}
    for name in flags.tasks:
        task = TASKS[name]
        found: dict[str, list] = {start: [] for start in STARTS}
        for seed in range(flags.seeds):
            for start in STARTS:
                workdir = flags.out / name / start / str(seed)
                one = found_by(task, flags.data, flags.encoder, start, seed, workdir)
                if one is None:
                    return None
                found[start].append(one)
        tasks[name] = {
            "metrics": {
                metric: {
                    start: [run["metrics"][f"test/{metric}"] for run in runs]
                    for start, runs in found.items()
                }
                for metric in task.metrics
            },
            "seconds": [run["seconds"] for runs in found.values() for run in runs],
            "command": task.command(flags.data, flags.encoder),
        }
    about = {"seeds": flags.seeds, "machine": machine(), "versions": made_with()}
    return {**about, "encoder": flags.encoder, "tasks": tasks}


def main(arguments: Sequence[str] | None = None) -> None:
    """Makes what is missing, and fills the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--encoder", help="the pretrained folder")
    parser.add_argument("--data", type=Path, default=Path("tasks"))
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/tasks"))
    flags = parser.parse_args(arguments)
    if flags.encoder:
        results = measured(flags)
        if results is None:
            sys.exit(1)
        if flags.tasks != list(TASKS):
            return  # the others are still to come
        write_json(RESULTS, results)
    filled = load_recipe(DOCS / "reproducing.py").filled
    page = PAGE.read_text(encoding="utf-8")
    parts = {"tasks": table(read_json(RESULTS))}
    PAGE.write_text(filled(page, parts), encoding="utf-8")


if __name__ == "__main__":
    run_command(main)
