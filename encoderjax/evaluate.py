"""Held-out losses and accuracies of every objective.

python -m encoderjax.evaluate --model=runs/bert_tiny
"""

import dataclasses
import functools
import json
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh

from encoderjax.command import Parser, run_command
from encoderjax.config import RunConfig
from encoderjax.data.corpora import Corpora
from encoderjax.data.pipeline import BatchSource
from encoderjax.errors import UserError
from encoderjax.experiment import Experiment
from encoderjax.interop.loading import LoadedModel, load_model
from encoderjax.interop.vocabulary import check_readable
from encoderjax.models.heads import EncoderModel
from encoderjax.objectives import OBJECTIVES
from encoderjax.objectives.replaced_token import ReplacedTokens
from encoderjax.phases import phases_of
from encoderjax.training.evaluation import Totals, evaluate
from encoderjax.training.mesh import (
    MeshConfig,
    batch_shards,
    make_mesh,
    parameter_shardings,
)
from encoderjax.training.step import make_eval_step

_EXTREMES = 4  # of many members, how many of the best and of the worst are shown


def run(
    model: str | Path,
    *,
    corpus: str | None = None,
    length: int | None = None,
    batch_size: int = 64,
    rows: int = 0,
    report: Callable[[str], None] = print,
) -> dict[str, float]:
    """Returns the held-out metrics of a workdir or a Hugging Face folder.

    A workdir brings its own corpus, form and objectives. Any other model is measured
    with what its heads allow: BERT's masking and pairs. Those of the members of a
    mixture follow as `<metric>/<member>`.
    """
    loaded = load_model(model)
    config = _config_for(loaded, corpus, length)
    return judged(loaded, config, batch_size=batch_size, rows=rows, report=report)


def judged(
    loaded: LoadedModel,
    config: RunConfig,
    *,
    batch_size: int = 64,
    rows: int = 0,
    report: Callable[[str], None] = print,
) -> dict[str, float]:
    """Returns the held-out metrics of a model with the rows and losses of a run.

    The run need not be the one that the model comes from, but has that model.
    """
    mesh = make_mesh(MeshConfig())
    batch_size = -(-batch_size // batch_shards(mesh)) * batch_shards(mesh)
    data = dataclasses.replace(config.data, batch_size=batch_size, batch_tokens=None)
    experiment = Experiment.open(dataclasses.replace(config, data=data), report)
    check_readable(
        loaded.need_tokenizer(),
        experiment.corpus.tokenizer,
        where=f"corpus {experiment.corpus.name}",
        remedy=f"prepare it with --tokenizer={loaded.source}",
    )
    missing = set(experiment.head_names) - set(loaded.head_names)
    if missing:
        raise UserError(
            f"{loaded.source} has no head {min(missing)!r} to be measured with (it "
            f"has: {', '.join(loaded.head_names) or 'none'})"
        )
    parts = experiment.validation_sources()
    if not parts:
        raise UserError(
            f"corpus {experiment.corpus.name} has no held-out documents; prepare it "
            "with --validation above 0"
        )
    with jax.set_mesh(mesh):
        pretrainer = experiment.pretrainer()
        params = _trained(loaded, pretrainer.model)
        shardings = parameter_shardings(mesh, params)
        params = jax.device_put(params, shardings)
        frozen = experiment.frozen()
        lying = parameter_shardings(mesh, frozen)
        eval_step = make_eval_step(
            pretrainer, mesh=mesh, shardings=shardings, frozen=lying
        )
        measured = held_out_metrics(
            experiment,
            parts,
            eval_step,
            params,
            mesh,
            rows,
            frozen=jax.device_put(frozen, lying),
        )
    return {
        f"{metric}/{member}" if member else metric: value
        for member, metrics in measured.items()
        for metric, value in metrics.items()
    }


def _trained(loaded: LoadedModel, model: EncoderModel) -> dict:
    """Returns the parameters of the parts that have a loss."""
    params = loaded.shared_as(model)
    heads = params.get("heads", {})
    # A bare head has no parameters of its own.
    chosen = {name: heads[name] for name in model.head_names if name in heads}
    parts = {"encoder": params["encoder"], "heads": chosen}
    if model.with_generator is not None:
        parts["generator"] = params["generator"]
    return {name: part for name, part in parts.items() if part}


def held_out_metrics(
    experiment: Experiment,
    parts: Mapping[str, BatchSource],
    eval_step: Callable,
    params,
    mesh: Mesh,
    rows: int,
    frozen=None,
) -> dict[str, dict[str, float]]:
    """Returns metrics with their loss: of all rows under '', then of each part by name.

    Args:
      experiment: that is measured.
      parts: held-out rows of the members of a mixture; '' names a corpus that is none.
      eval_step: of the experiment.
      params: that are trained.
      mesh: the devices.
      rows: how many, the first of each part in proportion to its size; 0 = all.
      frozen: parameters that are used but not trained.
    """
    available = {name: source.index.num_rows for name, source in parts.items()}
    share = min(1.0, rows / sum(available.values())) if rows else 1.0
    measured = {n: min(most, math.ceil(share * most)) for n, most in available.items()}
    if len(parts) > 1:  # else a hundred small members would be a hundred whole batches
        parts = {
            name: _in_small_batches(source, measured[name], batch_shards(mesh))
            for name, source in parts.items()
        }
    totals = {
        name: evaluate(
            eval_step,
            params,
            source,
            mesh=mesh,
            num_rows=measured[name],
            frozen=frozen,
        )
        for name, source in parts.items()
    }
    weights = experiment.pretrainer().weights

    def metrics(total: Totals) -> dict[str, float]:
        means = total.means()
        loss = sum(weight * means.get(name, 0.0) for name, weight in weights.items())
        return {"loss": loss, **means}

    whole = functools.reduce(operator.add, totals.values())
    return {"": metrics(whole)} | {name: metrics(t) for name, t in totals.items()}


def _in_small_batches(source: BatchSource, rows: int, shards: int) -> BatchSource:
    """Returns a source with smaller batches where few rows are read of it.

    Each is a quarter of the next, so that a step is compiled for a few sizes only.
    """
    size = source.batch_size
    while size % (4 * shards) == 0 and rows <= size // 4:
        size //= 4
    return dataclasses.replace(source, batch_size=size)


def held_out_line(step: int, metrics: dict[str, float], corpus: str = "") -> str:
    """Returns the main held-out metrics in a line; `corpus` names another's."""
    shown = [f"{label} {value:.3f}" for label, value in _main(metrics).items()]
    of = corpus and f" ({corpus})"
    return f"held out{of} at step {step:,}: " + "  ".join(shown)


def members_line(measured: Mapping[str, dict[str, float]]) -> str:
    """Returns the losses of members in a line: all of a few, of many the extremes."""
    losses = sorted((metrics["loss"], name) for name, metrics in measured.items())
    shown = [f"{name} {loss:.3f}" for loss, name in losses]
    if len(shown) > 2 * _EXTREMES + 2:
        left = len(shown) - 2 * _EXTREMES
        shown[_EXTREMES:-_EXTREMES] = [f"... ({left} more in metrics.jsonl) ..."]
    return "  loss by member: " + "  ".join(shown)


def before_and_after(
    measured: Mapping[str, tuple[dict[str, float], dict[str, float]]],
) -> str:
    """Returns a small table of held-out metrics, before and after training.

    Args:
      measured: name of a corpus -> its metrics before, and after.
    """
    names = ["held out", *measured]
    width = max(map(len, names)) + 2
    lines = ["", f"{names[0]:{width}}{'':16}{'before':>9}{'after':>9}{'change':>9}"]
    for corpus, (before, after) in measured.items():
        old, new = _main(before), _main(after)
        terms = [label for label in new if label.endswith(" loss")]
        for label in (label for label in new if label in old):
            if label == "loss" and len(terms) == 1:
                continue  # the same number again
            values = (old[label], new[label], new[label] - old[label])
            shown = "{:>9.3f}{:>9.3f}{:>+9.3f}".format(*values)
            lines.append(f"{corpus:{width}}{label:16}{shown}")
    return "\n".join(lines)


def _main(metrics: dict[str, float]) -> dict[str, float]:
    """Returns the metrics to show, without those by kind, as people read them."""
    return {k.replace("_", " "): v for k, v in metrics.items() if k.count("_") < 2}


def unigram_entropy(corpus: Corpora) -> float:
    """Returns the mean surprisal of held-out tokens under the training unigrams.

    In nats: what a model reaches that knows frequencies and no context. One is added
    to every count, so that unseen tokens have a probability.
    """
    splits = [member.corpus.split("validation") for member in corpus.members]
    counts_V = np.zeros_like(corpus.unigrams_V)
    for split in splits:
        ids_T = split.tokens.slice(0, split.num_tokens)
        counts_V += np.bincount(ids_T, minlength=len(counts_V))
    smoothed_V = corpus.unigrams_V + 1.0
    surprisal_V = np.log(smoothed_V.sum()) - np.log(smoothed_V)
    return float((counts_V * surprisal_V).sum() / counts_V.sum())


def _config_for(
    loaded: LoadedModel, corpus: str | None, length: int | None
) -> RunConfig:
    """Returns the run that the model came from, or one that fits its heads."""
    if loaded.run is not None:
        config = RunConfig.from_description(loaded.run)
        # Of the phase that the checkpoint was made in.
        phases = [p for p in phases_of(config) if p.first < max(1, loaded.step or 0)]
        config = phases[-1].config
        # Held-out rows are whole, and all of them are measured.
        data = dataclasses.replace(
            config.data,
            corpus=corpus or config.data.corpus,
            alpha=None,
            length=length or config.data.length,
            buckets=None,
        )
        return dataclasses.replace(config, data=data)
    if corpus is None:
        raise UserError(
            f"--model={loaded.source} is not a workdir, so --corpus=DIR is needed"
        )
    objectives: dict[str, dict] = {
        name: {} for name in OBJECTIVES if name in loaded.head_names
    }
    objectives.pop("rtd", None)  # needs the generator that replaced the tokens
    if loaded.generator is not None:
        rtd = ReplacedTokens.with_generator(loaded.config, loaded.generator)
        objectives = {"mlm": {}, "rtd": dataclasses.asdict(rtd), **objectives}
    if not objectives and "rtd" in loaded.head_names:
        raise UserError(
            f"--model={loaded.source} is a discriminator without its generator, which "
            "replaces the tokens; evaluate its workdir, or an export of --format=params"
        )
    if not objectives:
        raise UserError(
            f"--model={loaded.source} has no head to evaluate (heads with a loss: "
            f"{', '.join(OBJECTIVES)})"
        )
    length = length or min(128, loaded.config.max_length)
    second = OBJECTIVES[list(objectives)[-1]]
    return RunConfig.from_dict(
        {
            "steps": 1,
            "model": {"family": loaded.family, **dataclasses.asdict(loaded.config)},
            "data": {
                "corpus": corpus,
                "length": length,
                "batch_size": 1,
                "second": getattr(second, "second", "next"),
            },
            "objectives": objectives,
            "optimizer": {"learning_rate": 0.0},
        }
    )


def _members_table(metrics: Mapping[str, float]) -> str:
    """Returns the main metrics of members in a table, '' where there are none."""
    columns = [name for name in metrics if "/" not in name and name.count("_") < 2]
    members = [name.partition("/")[2] for name in metrics if name.startswith("loss/")]
    if not members:
        return ""
    width = max(map(len, ("member", *members))) + 2
    rows = [f"{'member':{width}}" + "".join(f"{name:>16}" for name in columns)]
    for member in members:
        values = (metrics.get(f"{name}/{member}") for name in columns)
        cells = ("-" if value is None else f"{value:.4f}" for value in values)
        rows.append(f"{member:{width}}" + "".join(f"{cell:>16}" for cell in cells))
    return "\n" + "\n".join(rows) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Parses flags, evaluates and prints."""
    parser = Parser(
        command="evaluate",
        description="Measures a model on the held-out documents of a corpus.",
        examples=(
            "python -m encoderjax.evaluate --model=runs/bert_tiny",
            "python -m encoderjax.evaluate --model=exported --corpus=my_corpus --json",
        ),
    )
    parser.add_argument(
        "--model", required=True, help="a workdir or a Hugging Face folder"
    )
    parser.add_argument(
        "--corpus",
        help="a prepared corpus, or a group of them, which is also measured by member; "
        "default: the workdir's",
    )
    parser.add_argument("--length", type=int, help="tokens of a row")
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--rows", type=int, default=0, help="0 = all held-out rows")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    flags = parser.parse_strictly(arguments)
    for name in ("length", "batch_size"):
        value = getattr(flags, name)
        if value is not None and value < 1:
            raise UserError(f"--{name}={value} must be at least 1")
    metrics = run(
        flags.model,
        corpus=flags.corpus,
        length=flags.length,
        batch_size=flags.batch_size,
        rows=max(0, flags.rows),
        report=(lambda text: None) if flags.json else print,
    )
    if flags.json:
        print(json.dumps(metrics, indent=2))
        return
    for name, value in metrics.items():
        if "/" not in name:
            print(f"{name:24} {value:.4f}")
    print(_members_table(metrics), end="")


if __name__ == "__main__":
    run_command(main)
