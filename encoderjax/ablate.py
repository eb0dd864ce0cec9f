"""Runs an ablation: every arm with every seed, then the table and the picture.

python -m encoderjax.ablate --config=configs/ablations/masks.py
"""

if __name__ == "__main__":  # before anything heavy is imported
    from encoderjax.command import restart_with_huge_pages

    restart_with_huge_pages()

import contextlib
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from encoderjax import finetune, train
from encoderjax.ablation import OWN, PROBE, Ablation, Values
from encoderjax.ablation_results import RESULTS, draw, table
from encoderjax.command import Parser, run_command
from encoderjax.config import ModelConfig, RunConfig
from encoderjax.config_loading import add_config_flag, config_name, overrides_of
from encoderjax.data.opening import check_corpus
from encoderjax.errors import UserError
from encoderjax.evaluate import judged
from encoderjax.experiment import Experiment
from encoderjax.identity import content_identity, flat_fields
from encoderjax.interop.loading import load_model
from encoderjax.interop.weights import read_json, write_json
from encoderjax.provenance import kinds_of, made_here, seconds_of
from encoderjax.training.checkpoint import saved_steps

Report = Callable[[str], None]

TABLE, PICTURE = "table.md", "picture.png"
_SETTINGS, _FOUND, _LOG = "settings.json", "found.json", "log.txt"
# What a judge has instead of its run's: rows are measured in batches of its own.
_BATCH = ("batch_size", "batch_tokens", "fill_batch")
# Where texts and lists lie, or come from.
_MOVABLE = (
    ".corpus",
    ".source",
    ".tokenizer",
    ".phrases",
    ".similar_words",
    ".teacher",
)


def run(
    ablation: Ablation, out: Path, *, command: str = "", report: Report = print
) -> dict[str, Any] | None:
    """Runs what is missing in `out`; returns the results, None when it was stopped.

    Every run has a workdir of its own, `out/ARM/SEED`. What is finished is not run
    again, and what was interrupted goes on.
    """
    plans = ablation.planned(_silent)
    total = len(plans) * ablation.seeds
    report(
        f"{ablation.title}: {len(plans)} arms x {ablation.seeds} seeds = {total} runs "
        f"of {ablation.tokens:,} tokens"
    )
    _check(ablation, plans, out)
    found: dict[str, list[dict[str, Any]]] = {arm: [] for arm in plans}
    # Seed by seed: what there is after a while compares all arms.
    for seed in range(ablation.seeds):
        for arm, values in plans.items():
            result = _one(ablation, values | {"seed": seed}, out / arm / str(seed))
            if result is None:
                report("stopped; the same command goes on")
                return None
            found[arm].append(result)
            report(f"{arm}, seed {seed}: {_line(ablation, result)}")
        _check_found(ablation.metrics, found)
    results = _results(ablation, plans, found, command)
    write_json(out / RESULTS, results)
    text = table(results)
    (out / TABLE).write_text(f"{text}\n", encoding="utf-8")
    draw(results, out / PICTURE, report)
    report(f"\n{text}\n\nresults in {out}")
    return results


def _silent(text: str) -> None:
    """Says nothing."""


def _check(ablation: Ablation, plans: Mapping[str, Values], out: Path) -> None:
    """Refuses what would fail, or not compare, before anything is trained for it."""
    if out.exists() and not out.is_dir():
        raise UserError(f"--out={out} is a file; name a folder")
    for arm, values in plans.items():
        with _said_of(f"arms.{arm}"):
            _open(ablation, values)
    for judge in ablation.judges:
        with _said_of(f"judges.{judge}"):
            _open(ablation, ablation.judge_values(judge))
    missing = False
    for seed in range(ablation.seeds):
        for arm, values in plans.items():
            workdir = out / arm / str(seed)
            finished = (workdir / _FOUND).is_file()
            if finished or saved_steps(workdir):  # else nothing was made with them
                settings = _settings(ablation, values | {"seed": seed})
                _check_settings(workdir / _SETTINGS, settings)
            missing = missing or not finished
    if missing and ablation.probe is not None:
        _check_probe(ablation)


@contextlib.contextmanager
def _said_of(part: str) -> Iterator[None]:
    """Names the part of the experiment that something is wrong with."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{part}: {error}") from error


def _open(ablation: Ablation, values: Values) -> Experiment:
    """Opens a run; where its corpus is missing, says how this experiment's is made."""
    config = RunConfig.from_dict(values)
    try:
        check_corpus(config.data)
    except UserError as error:
        if not ablation.prepare:
            raise
        made = ablation.prepare.format(corpus=config.data.corpus)
        raise UserError(
            f"data.corpus={config.data.corpus} does not exist; make it with {made}"
        ) from error
    return Experiment.open(config, _silent)


def _check_probe(ablation: Ablation) -> None:
    """Refuses a probe without examples, or with some that cannot be read."""
    with _said_of("probe"):
        probing = ablation.probing("a model", seed=0)
        if probing.data.train is None:
            raise UserError(
                "data.train=None must be the examples that every arm is fine-tuned "
                "with: give --config.probe.data.train=FILE"
            )
        probing.data.read(probing.task)


def _one(ablation: Ablation, values: Values, workdir: Path) -> dict[str, Any] | None:
    """Returns what a run found; None when it was stopped."""
    if (workdir / _FOUND).is_file():
        return read_json(workdir / _FOUND)
    workdir.mkdir(parents=True, exist_ok=True)
    write_json(workdir / _SETTINGS, _settings(ablation, values))
    # What was spent before the run was stopped counts as well.
    spent = seconds_of(workdir) + seconds_of(workdir / PROBE)
    start = time.perf_counter()
    with _logged(workdir / _LOG):
        own = train.run(RunConfig.from_dict(values), workdir)
        if own is None:
            return None
        metrics = {f"{OWN}/{name}": value for name, value in own.items()}
        metrics |= _judged(ablation, workdir)
        if ablation.probe is not None:
            probing = ablation.probing(str(workdir), values["seed"])
            probed = finetune.run(probing, workdir / PROBE)
            if probed is None:
                return None
            metrics |= {f"{PROBE}/{name}": value for name, value in probed.items()}
        tokens = tokens_read(values)
    found = {
        "metrics": metrics,
        "tokens": tokens,
        "seconds": spent + time.perf_counter() - start,
        "training_seconds": seconds_of(workdir),
        **made_here(),
    }
    write_json(workdir / _FOUND, found)
    return found


def tokens_read(values: Values) -> float:
    """Returns how many real tokens a run reads, special ones included.

    They are a little more or less than was asked for: a step has whole rows.
    """
    experiment = Experiment.open(RunConfig.from_dict(values), _silent)
    rows = values["steps"] * experiment.batch_size
    return rows * experiment.train_index.mean_tokens


def _judged(ablation: Ablation, workdir: Path) -> dict[str, float]:
    """Returns what every judge says of a trained model."""
    metrics: dict[str, float] = {}
    if not ablation.judges:
        return metrics
    loaded = load_model(workdir)
    model = ModelConfig.whole(loaded.family, loaded.config)
    for judge in ablation.judges:
        config = dataclasses.replace(ablation.judging(judge), model=model)
        measured = judged(loaded, config, rows=ablation.rows)
        metrics |= {f"{judge}/{name}": value for name, value in measured.items()}
        metrics |= _means_of_members(judge, measured)
    return metrics


def _means_of_members(judge: str, measured: Mapping[str, float]) -> dict[str, float]:
    """Returns each metric's mean over members, all counting alike, as METRIC/*."""
    by_metric: dict[str, list[float]] = {}
    for name, value in measured.items():
        metric, slash, _ = name.partition("/")
        if slash:
            by_metric.setdefault(metric, []).append(value)
    return {f"{judge}/{m}/*": statistics.mean(v) for m, v in by_metric.items()}


def _settings(ablation: Ablation, values: Values) -> dict[str, Any]:
    """Returns what a run depends on, by name of the field.

    Texts and lists may move: what they hold counts, and not where they lie.
    """
    # In the order in which a difference is told of.
    shared = {
        "tokens": ablation.tokens,
        "rows": ablation.rows,
        "judges": {judge: _measured_with(ablation, judge) for judge in ablation.judges},
        "probe": ablation.probe,
    }
    fields = flat_fields({**shared, "run": values | {"read": _read(ablation, values)}})
    return {n: v for n, v in fields.items() if not n.endswith(_MOVABLE)}


def _measured_with(ablation: Ablation, judge: str) -> Values:
    """Returns what decides the rows and masks of a judge.

    Much of it is the first arm's, which may change while the judge's own fields stay.
    """
    values = ablation.judge_values(judge)
    groups = ("data", "objectives", *ablation.judges[judge])
    data = {name: v for name, v in values["data"].items() if name not in _BATCH}
    measured = {group: values[group] for group in groups} | {"data": data}
    return measured | {"read": _read(ablation, values)}


def _read(ablation: Ablation, values: Values) -> dict[str, Any]:
    """Returns hashes of the texts and lists of a run."""
    return content_identity(_open(ablation, values))


def _check_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Refuses a folder whose run was made with other settings."""
    # As JSON gives them back.
    now, before = json.loads(json.dumps(settings)), read_json(path)
    for name in {**now, **before}:
        if now.get(name) != before.get(name):
            raise UserError(
                f"{name}={now.get(name)!r} does not fit {path.parent}, which was made "
                f"with {before.get(name)!r}; use its setting, delete it, or choose "
                "another --out"
            )


@contextlib.contextmanager
def _logged(path: Path) -> Iterator[None]:
    """Sends what a run prints to a file."""
    with open(path, "a", encoding="utf-8") as file, contextlib.redirect_stdout(file):
        yield


def _results(
    ablation: Ablation,
    plans: Mapping[str, Values],
    found: Mapping[str, list[dict[str, Any]]],
    command: str,
) -> dict[str, Any]:
    arms = {}
    for arm, runs in found.items():
        values = {
            metric: [r["metrics"][metric] for r in runs if metric in r["metrics"]]
            for metric in ablation.metrics
        }
        steps = plans[arm]["steps"]
        asked = steps * ablation.step_tokens(arm)  # runs of before did not count
        arms[arm] = {
            "steps": steps,
            "tokens": round(statistics.mean(r.get("tokens", asked) for r in runs)),
            "training_seconds": [run["training_seconds"] for run in runs],
            "values": {metric: found for metric, found in values.items() if found},
        }
    return {
        "name": ablation.name,
        "title": ablation.title,
        "equal": ablation.equal,
        "seeds": ablation.seeds,
        "metrics": list(ablation.metrics),
        "arms": arms,
        "paper": dataclasses.asdict(ablation.paper),
        "seconds": sum(run["seconds"] for runs in found.values() for run in runs),
        "command": command,
        "made_with": kinds_of(run for runs in found.values() for run in runs),
    }


def _check_found(
    metrics: Sequence[str], found: Mapping[str, list[dict[str, Any]]]
) -> None:
    """Refuses a metric that no run has, as soon as every arm was run once."""
    there = {name for runs in found.values() for r in runs for name in r["metrics"]}
    for metric in metrics:
        if metric not in there:
            raise UserError(
                f"metrics: no run has {metric!r} (there are: "
                f"{', '.join(sorted(there))})"
            )


def _line(ablation: Ablation, result: Mapping[str, Any]) -> str:
    shown = (
        f"{metric} {result['metrics'][metric]:.3f}"
        for metric in ablation.metrics
        if metric in result["metrics"]
    )
    return ", ".join(shown) + f" ({result['seconds']:.0f} s)"


def main(arguments: Sequence[str] | None = None) -> None:
    """Parses flags and runs."""
    parser = Parser(
        command="ablate",
        description="Trains one recipe in several arms, each with several seeds and as "
        "many tokens, measures all of them alike, and sets the result beside a "
        "paper's. The same command goes on where it was stopped.",
        examples=(
            "python -m encoderjax.ablate --config=configs/ablations/masks.py",
            "python -m encoderjax.ablate --config=configs/ablations/masking_rate.py "
            "--seeds=5 --out=runs/rates",
            "python -m encoderjax.ablate --config=configs/ablations/alpha.py "
            "--config.run.data.corpus=corpora/k8s",
        ),
        notes=(
            "A file's fields: title, base (the recipe), run (what all arms change), "
            "arms, judges (the held-out rows and masks that all are measured with), "
            "metrics, tokens, batch_tokens, seeds, probe, paper.",
        ),
    )
    add_config_flag(parser)
    parser.add_argument("--seeds", type=int, help="runs of an arm; default: the file's")
    parser.add_argument(
        "--out", help="a folder; default: runs/ablations/<name of the config>"
    )
    flags, rest = parser.parse_known_args(arguments)
    ablation = Ablation.load(flags.config, overrides_of(parser, rest))
    if flags.seeds is not None:
        ablation = dataclasses.replace(ablation, seeds=flags.seeds)
    out = Path(flags.out or f"runs/ablations/{config_name(flags.config)}")
    given = sys.argv[1:] if arguments is None else arguments
    command = " ".join(("python -m encoderjax.ablate", *given))
    if run(ablation, out, command=command) is None:
        sys.exit(1)


if __name__ == "__main__":
    run_command(main)
