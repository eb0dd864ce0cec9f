"""Held-out losses and accuracies of every objective.

python -m encoderjax.evaluate --model=runs/bert_tiny
"""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh

from encoderjax.command import Parser, run_command
from encoderjax.config import RunConfig
from encoderjax.data.corpus import Corpus
from encoderjax.data.pipeline import BatchSource
from encoderjax.errors import UserError
from encoderjax.experiment import Experiment
from encoderjax.interop.loading import LoadedModel, load_model
from encoderjax.interop.vocabulary import check_readable
from encoderjax.models.heads import EncoderModel
from encoderjax.objectives import OBJECTIVES
from encoderjax.objectives.replaced_token import ReplacedTokens
from encoderjax.phases import phases_of
from encoderjax.training.evaluation import evaluate
from encoderjax.training.mesh import (
    MeshConfig,
    batch_shards,
    make_mesh,
    parameter_shardings,
)
from encoderjax.training.step import make_eval_step


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
    with what its heads allow: BERT's masking and pairs.
    """
    loaded = load_model(model)
    config = _config_for(loaded, corpus, length)
    mesh = make_mesh(MeshConfig())
    batch_size = -(-batch_size // batch_shards(mesh)) * batch_shards(mesh)
    data = dataclasses.replace(config.data, batch_size=batch_size, batch_tokens=None)
    experiment = Experiment.open(dataclasses.replace(config, data=data), report)
    check_readable(
        loaded.need_tokenizer(),
        experiment.corpus.tokenizer,
        where=f"corpus {experiment.corpus.folder}",
        remedy=f"prepare it with --tokenizer={loaded.source}",
    )
    source = experiment.validation_source()
    if source is None:
        raise UserError(
            f"corpus {experiment.corpus.folder} has no held-out documents; prepare it "
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
        return held_out_metrics(
            experiment,
            source,
            eval_step,
            params,
            mesh,
            rows,
            frozen=jax.device_put(frozen, lying),
        )


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
    source: BatchSource,
    eval_step: Callable,
    params,
    mesh: Mesh,
    rows: int,
    frozen=None,
) -> dict[str, float]:
    """Returns metrics of the first `rows` held-out rows (0 = all), with their loss."""
    available = len(source.index.passes[0])
    rows = min(rows, available) if rows else available
    means = evaluate(eval_step, params, source, mesh=mesh, num_rows=rows, frozen=frozen)
    weights = experiment.pretrainer().weights
    loss = sum(weight * means.get(name, 0.0) for name, weight in weights.items())
    return {"loss": loss, **means}


def held_out_line(step: int, metrics: dict[str, float], corpus: str = "") -> str:
    """Returns the main held-out metrics in a line; `corpus` names another's."""
    shown = [f"{label} {value:.3f}" for label, value in _main(metrics).items()]
    of = corpus and f" ({corpus})"
    return f"held out{of} at step {step:,}: " + "  ".join(shown)


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


def unigram_entropy(corpus: Corpus) -> float:
    """Returns the mean surprisal of held-out tokens under the training unigrams.

    In nats: what a model reaches that knows frequencies and no context. One is added
    to every count, so that unseen tokens have a probability.
    """
    split = corpus.split("validation")
    counts_V = np.bincount(
        split.tokens.slice(0, split.num_tokens), minlength=len(corpus.unigrams_V)
    )
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
        data = dataclasses.replace(
            config.data,
            corpus=corpus or config.data.corpus,
            length=length or config.data.length,
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
    parser.add_argument("--corpus", help="a prepared corpus; default: the workdir's")
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
        print(f"{name:24} {value:.4f}")


if __name__ == "__main__":
    run_command(main)
