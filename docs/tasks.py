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
import hashlib
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from encoderjax import finetune
from encoderjax.ablation_results import rows
from encoderjax.command import run_command
from encoderjax.config_loading import recipe_values
from encoderjax.errors import UserError
from encoderjax.finetuning import FinetuneConfig
from encoderjax.interop.weights import read_json, write_json
from encoderjax.provenance import kinds_of, made_here
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
      by_start: fields of the run for each start. They differ for polarity, where they
        were the best of a few by validation examples, seed 0.
      fields: other fields of the run.
      metrics: of the test examples, the first of which decides.
    """

    recipe: str
    files: Mapping[str, str]
    by_start: Mapping[str, Mapping[str, Any]]
    fields: Mapping[str, Any]
    metrics: tuple[str, ...]

    def overrides(self, data: Path, encoder: str, start: str) -> dict[str, Any]:
        """Returns what is changed of the recipe."""
        return {
            "init_from": encoder,
            "from_scratch": STARTS[start],
            **self.by_start[start],
            **{name: str(data / file) for name, file in self.files.items()},
            **self.fields,
        }

    def command(self, data: Path, encoder: str) -> str:
        """Returns the command of a run from the encoder."""
        given = self.overrides(data, encoder, "pretrained")
        flags = " ".join(f"--config.{name}={value}" for name, value in given.items())
        return (
            f"python -m encoderjax.finetune --config=configs/finetune/{self.recipe} "
            f"{flags}"
        )


_ALIKE = {start: {"optimizer.learning_rate": 5e-4} for start in STARTS}
TASKS = {
    "sentence_polarity": Learned(
        "classify.py",
        {"data.train": "sentence_polarity/sentence_polarity.zip"},
        {
            "pretrained": {"optimizer.learning_rate": 1e-3, "model.dropout_rate": 0.2},
            "scratch": {"optimizer.learning_rate": 5e-4},
        },
        {"data.test_share": 0.1, "data.length": 48},
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
        _ALIKE,
        {
            "epochs": 4.0,
            "data.length": 64,
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
        _ALIKE,
        {"epochs": 6.0, "data.length": 64, "data.form": "conll"},
        ("f1", "accuracy"),
    ),
    "xquad": Learned(
        "answer.py",
        {"data.train": "xquad/xquad.en.json.gz"},
        _ALIKE,
        {
            "epochs": 5.0,
            "data.test_share": 0.2,
            "data.length": 256,
            "data.batch_size": 16,
        },
        ("f1", "exact_match"),
    ),
}


def found_by(values: Mapping[str, Any], inputs: str, workdir: Path) -> Any:
    """Returns what a run found, which is made if it is not there; None if stopped.

    Args:
      values: of the run.
      inputs: a hash of all that it depends on.
    """
    result = workdir / "found.json"
    path, made = workdir / "inputs.json", {"sha256": inputs}
    if workdir.is_dir() and read_json(path) != made:
        raise UserError(
            f"{workdir} was made with another encoder, other examples or fields; "
            "choose another --out, or delete it"
        )
    if result.is_file():
        return read_json(result)
    workdir.mkdir(parents=True, exist_ok=True)
    write_json(path, made)
    begun = time.perf_counter()
    metrics = finetune.run(FinetuneConfig.from_dict(values), workdir)
    if metrics is None:
        return None
    seconds = round(time.perf_counter() - begun, 1)
    found = {"metrics": metrics, "seconds": seconds, **made_here()}
    write_json(result, found)
    return found


def depends_on(overrides: Mapping[str, Any], files: Sequence[Path]) -> str:
    """Returns a hash of fields and of what files and folders hold."""
    digest = hashlib.sha256(repr(sorted(overrides.items())).encode())
    for path in files:
        inside = sorted(p for p in path.rglob("*") if p.is_file())
        for file in inside or [path]:
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


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
            lines.append([*line, f"{gain:+.3f}{remark}"])
    header = ["task", "test", *STARTS, "difference"]
    made = f"{results['seeds']} seeds, on {', and on '.join(results['made_with'])}."
    return f"{rows(header, lines)}\n\n{made}"


def measured(flags: argparse.Namespace) -> dict[str, Any] | None:
    """Returns the results of all runs; None when one was stopped."""
    tasks: dict[str, Any] = {}
    kinds: list[dict[str, Any]] = []
    for name in flags.tasks:
        task = TASKS[name]
        files = [Path(flags.encoder), *(flags.data / f for f in task.files.values())]
        found: dict[str, list] = {start: [] for start in STARTS}
        for start in STARTS:
            overrides = task.overrides(flags.data, flags.encoder, start)
            inputs = depends_on(overrides, files)
            values = recipe_values(f"configs/finetune/{task.recipe}", overrides)
            for seed in range(flags.seeds):
                workdir = flags.out / name / start / str(seed)
                one = found_by(values | {"seed": seed}, inputs, workdir)
                if one is None:
                    return None
                found[start].append(one)
                kinds.append(one)
        tasks[name] = {
            "metrics": {
                metric: {
                    start: [run["metrics"][f"test/{metric}"] for run in runs]
                    for start, runs in found.items()
                }
                for metric in task.metrics
            },
            "command": task.command(flags.data, flags.encoder),
        }
    about = {"seeds": flags.seeds, "encoder": flags.encoder}
    return about | {"made_with": kinds_of(kinds), "tasks": tasks}


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
