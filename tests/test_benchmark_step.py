"""The step that is timed is the one that is trained, here and in PyTorch."""

import json

import jax
import numpy as np
import pytest
import torch

from encoderjax import step_speed, torch_step, torch_work
from encoderjax.benchmark import main, table
from encoderjax.errors import UserError
from encoderjax.experiment import Experiment
from encoderjax.interop.huggingface import params_to_hf
from encoderjax.phases import open_stages
from tests.small_runs import RECIPE, overrides, small_config

OURS = {
    "compile_seconds",
    "host_batch_seconds",
    "step_seconds",
    "tokens_per_second",
    "matmul_peak_flops_per_second",
    "of_matmul_peak_share",
    "planned_memory_mb",
}
NO_DROPOUT = {"model__dropout_rate": 0.0, "model__attention_dropout_rate": 0.0}


def measured(corpus, capsys, *flags, **changes):
    fields = overrides(corpus.folder, **changes).items()
    given = [f"--config.{name}={value}" for name, value in fields]
    main([f"--config={RECIPE}", "--turns=2", "--json", *given, *flags])
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_figures_beside_pytorch(corpus, capsys):
    result = measured(corpus, capsys, "--against=hf")
    figures = result["figures"]
    theirs = {"hf_step_seconds", "hf_tokens_per_second", "hf_memory_mb", "to_hf_ratio"}
    assert set(figures) == OURS | theirs | {"memory_mb"}
    assert all(value > 0 for value in figures.values())
    of = lambda who: figures[f"{who}tokens_per_second"]
    assert figures["to_hf_ratio"] == pytest.approx(of("") / of("hf_"))
    share = result["flops_per_step"] / figures["step_seconds"]
    assert figures["of_matmul_peak_share"] == pytest.approx(
        share / figures["matmul_peak_flops_per_second"]
    )
    assert result["batch_size"] == 16
    # As its users have it, whatever this process was started with.
    assert result["hf"].startswith("BertForPreTraining in PyTorch, ")
    assert result["hf"].endswith("malloc with the C library's defaults")
    about, shown = table(result).split("\n\n")
    assert f"hf: {result['hf']}" in about.splitlines()
    labels = [line[:32].strip() for line in shown.splitlines()]
    assert len(set(labels)) == len(labels) == len(figures)
    assert result["versions"]["torch"] == torch.__version__


def test_figures_beside_other_settings(corpus, capsys):
    other = "data.batch_size=32,model.num_layers=1"
    figures = measured(corpus, capsys, f"--against={other}")["figures"]
    others = {"other_step_seconds", "other_tokens_per_second", "to_other_ratio"}
    assert set(figures) == OURS | others
    # Each has its own batches: the ratio is of tokens.
    assert figures["to_other_ratio"] == pytest.approx(
        figures["tokens_per_second"] / figures["other_tokens_per_second"]
    )


def test_pytorch_is_given_the_same_work(corpus):
    config = small_config(corpus.folder, **NO_DROPOUT)
    experiment = Experiment.open(config, report=lambda text: None)
    batch = experiment.train_source().batch(3)
    work = torch_work.work_of(experiment, [batch])
    pretrainer = experiment.pretrainer()
    params = pretrainer.init(jax.random.key(1))
    terms, _ = pretrainer.sums(params, {}, {}, batch, None)
    expected = pretrainer.loss(terms, pretrainer.counts(batch))

    model = torch_step.new_model(work)
    tensors, _ = params_to_hf(jax.device_get(params), "bert", experiment.encoder)
    tensors = {name: torch.from_numpy(np.array(x)) for name, x in tensors.items()}
    assert not model.load_state_dict(tensors, strict=False).unexpected_keys
    model.tie_weights()
    with torch.no_grad():
        found = torch_step.loss_of(model, work.batches[0])
    assert float(found) == pytest.approx(float(expected), abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer__name": "lamb"}, "AdamW alone, not optimizer.name='lamb'"),
        (
            {
                "data__second": "swapped",
                "objectives__nsp": None,
                "objectives__sop__weight": 1,
            },
            "no class of transformers for bert has the heads mlm, sop",
        ),
        (
            {"data__form": "packed", "data__second": None, "objectives__nsp": None},
            "rows of several documents; choose another data.form",
        ),
        (
            {
                "data__form": "contiguous",
                "data__second": None,
                "objectives__nsp": None,
                "objectives__mlm__select": "spans",
                "objectives__sbo__weight": 1,
            },
            "no class that trains mlm, sbo",
        ),
    ],
)
def test_work_that_pytorch_has_no_class_for_is_refused(corpus, changes, message):
    config = small_config(corpus.folder, **changes)
    experiment = Experiment.open(config, report=lambda text: None)
    with pytest.raises(UserError, match=message):
        torch_work.work_of(experiment, [experiment.train_source().batch(0)])


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--turns=0", "--turns=0 must be at least 1"),
        ("--against=torch", "'torch' is not FIELD=VALUE; give hf, or settings"),
        ("--against=model.widht=8", "did you mean 'width'"),
    ],
)
def test_bad_flags_are_refused(corpus, capsys, flag, message):
    with pytest.raises(UserError, match=message):
        measured(corpus, capsys, flag)


def test_steps_change_the_state(corpus):
    """What is timed is training: every call goes on from the one before."""
    config = small_config(corpus.folder)
    stage = open_stages(config, lambda text: None, None)[0]
    batches, _ = step_speed._batches(stage)
    assert len({batch["row"].tobytes() for batch in batches}) == len(batches)
    step = step_speed.OurStep(stage, batches)
    for count in range(1, 3):
        assert step.run() > 0
        assert int(step.state.step) == count
