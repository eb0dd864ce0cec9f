"""The recipes: their published numbers, and each way of training for a few steps."""

import dataclasses
import shutil
from pathlib import Path

import pytest

from encoderjax.config import load_config
from encoderjax.errors import UserError
from encoderjax.evaluate import run as evaluate
from encoderjax.experiment import Experiment, open_corpus
from encoderjax.export import run as export
from encoderjax.phases import phases_of
from encoderjax.recipes import load_recipe
from encoderjax.train import run
from tests.small_corpus import prepare_small_corpus
from tests.small_runs import all_lines, metrics
from tests.torch_losses import held_out_batch, torch_losses

SILENT = lambda text: None

RECIPES = sorted(Path("configs").glob("*.py"))

# steps, rows of a step, length, peak, warmup, as published.
PUBLISHED = {
    "bert_base": (1_000_000, 256, 128, 1e-4, 10_000),
    "bert_large": (1_000_000, 256, 128, 1e-4, 10_000),
    "bert_large_lamb": (8_601, 65_536, 128, 6e-3, 2_000),
    "roberta_base": (500_000, 8_192, 512, 6e-4, 24_000),
    "roberta_base:256": (1_000_000, 256, 512, 1e-4, 60_000),
    "roberta_base:2k": (125_000, 2_048, 512, 7e-4, 7_500),
    "roberta_base:8k": (31_000, 8_192, 512, 1e-3, 1_860),
    "roberta_large": (500_000, 8_192, 512, 4e-4, 30_000),
    "albert_base": (125_000, 4_096, 512, 0.00176, 3_125),
    "albert_large": (125_000, 4_096, 512, 0.00176, 3_125),
    "albert_xlarge": (125_000, 4_096, 512, 0.00176, 3_125),
    "albert_xxlarge": (125_000, 4_096, 512, 0.00176, 3_125),
    "spanbert_base": (2_400_000, None, 512, 1e-4, 10_000),
    "spanbert_large": (2_400_000, None, 512, 1e-4, 10_000),
    "xlnet_base": (1_000_000, 256, 512, 1e-4, 10_000),
    "xlnet_large": (500_000, 8_192, 512, 4e-4, 40_000),
    "deberta_base": (1_000_000, 2_048, 512, 2e-4, 10_000),
    "deberta_large": (1_000_000, 2_048, 512, 2e-4, 10_000),
    "deberta_v3_small": (500_000, 8_192, 512, 6e-4, 10_000),
    "deberta_v3_base": (500_000, 8_192, 512, 6e-4, 10_000),
    "deberta_v3_large": (500_000, 8_192, 512, 3e-4, 10_000),
    "electra_small": (1_000_000, 128, 128, 5e-4, 10_000),
    "electra_base": (766_000, 256, 512, 2e-4, 10_000),
    "electra_large": (400_000, 2_048, 512, 2e-4, 10_000),
    "distilbert_base": (6_600, 4_096, 512, 5e-4, 330),
    "xlm_roberta_base": (1_500_000, 8_192, 512, 6e-4, 24_000),
    "xlm_roberta_large": (1_500_000, 8_192, 512, 4e-4, 30_000),
    "modernbert_base": (883_514, 4_608, 1_024, 8e-4, 3_815),
    "modernbert_large": (813_447, 4_928, 1_024, 5e-4, 4_360),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_numbers_are_as_published(name):
    stem, _, variant = name.partition(":")
    config = load_config(f"configs/{stem}.py:{variant}")
    data, optimizer = config.data, config.optimizer
    assert (
        config.steps,
        data.batch_size,
        data.length,
        optimizer.learning_rate,
        optimizer.warmup_steps,
    ) == PUBLISHED[name]


def test_two_phases_of_bert_and_of_lamb():
    short, long = phases_of(load_config("configs/bert_base.py"))
    assert (short.last, long.last) == (900_000, 1_000_000)
    assert (short.config.data.length, long.config.data.length) == (128, 512)
    # One line over all of it.
    assert {phase.schedule_first for phase in (short, long)} == {0}
    assert {phase.config.steps for phase in (short, long)} == {1_000_000}
    short, long = phases_of(load_config("configs/bert_large_lamb.py"))
    assert (short.last, long.last - long.first) == (7_038, 1_563)
    rows = [phase.config.data.batch_size for phase in (short, long)]
    rates = [phase.config.optimizer.learning_rate for phase in (short, long)]
    assert (rows, rates) == ([65_536, 32_768], [6e-3, 4e-3])
    # Each has a schedule of its own.
    assert [phase.config.steps for phase in (short, long)] == [7_038, 1_563]
    assert [phase.schedule_first for phase in (short, long)] == [0, 7_038]


def test_modernbert_reads_the_tokens_it_should():
    phases = phases_of(load_config("configs/modernbert_base.py"))
    tokens = {
        phase.name: (phase.last - phase.first)
        * phase.config.data.batch_size
        * phase.config.data.length
        for phase in phases
    }
    growing = sum(count for name, count in tokens.items() if name.startswith("rows"))
    assert growing == pytest.approx(50e9, rel=1e-3)
    assert growing + tokens["stable"] == pytest.approx(1.719e12, rel=1e-3)
    assert tokens["extension"] == pytest.approx(250e9, rel=1e-3)
    assert tokens["decay"] == pytest.approx(50e9, rel=1e-3)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_headers_and_variants(path):
    recipe = load_recipe(path)
    assert f"--config={path}" in recipe.__doc__
    for variant in recipe.VARIANTS:
        assert recipe.get_config(variant).is_locked
        for phase in phases_of(load_config(f"{path}:{variant}")):
            assert phase.last > phase.first
    full, tiny = load_config(str(path)), load_config(f"{path}:tiny")
    assert tiny.data.corpus == "demo"
    assert tiny.steps < full.steps
    # The same way of training.
    assert tiny.data.form == full.data.form
    assert tiny.optimizer.name == full.optimizer.name
    assert [type(o) for o in tiny.objectives] == [type(o) for o in full.objectives]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_missing_corpus_is_named_with_the_command_that_makes_it(path):
    data = load_config(str(path)).data
    if data.corpus == "demo":
        data = dataclasses.replace(data, corpus="corpora/none")
    with pytest.raises(UserError) as error:
        open_corpus(data, print)
    message = str(error.value)
    assert "\n" not in message
    assert f"data.corpus={data.corpus} does not exist" in message
    assert f"encoderjax.prepare --source='{data.source}'" in message
    assert f"--tokenizer={data.tokenizer} --out={data.corpus}" in message
    # Shares of languages need a corpus of each.
    assert ("--language_key=file" in message) == (data.alpha is not None)


# ---- a few steps of each way of training ----

# recipe -> the tokenizer of the small corpus
TRAINED = {
    "bert_large_lamb": "wordpiece:180",
    "roberta_base": "bbpe:320",
    "albert_base": "unigram:100",
    "spanbert_base": "wordpiece_cased:180",
    "xlnet_base": "unigram/xlnet:100",
    "deberta_base": "bbpe/deberta:320",
    "deberta_v3_small": "unigram/deberta_v2:100",
    "electra_small": "wordpiece:180",
    "modernbert_base": "bbpe/modernbert:320",
}
SMALL = {"width": 32, "mlp_width": 64}
SMALLER = {  # what else must fit
    "xlnet_base": {
        "data.reuse_length": 16,
        "model.reuse_length": 16,
        "model.memory_length": 24,
        "objectives.plm.permute_within": 16,
    },
    "electra_small": {"objectives.rtd.generator.width": 16},
    "bert_large_lamb": {
        "phases.long.after": 3,
        "phases.long.data.length": 40,
        "phases.long.optimizer.warmup_steps": 1,
    },
    "modernbert_base": {
        "phases.rows_16.after": 0,
        "phases.rows_16.data.batch_size": 16,
        "phases.stable.after": 1,
        "phases.extension.after": 3,
        "phases.extension.data.length": 64,
        "phases.extension.data.batch_size": 8,
        "phases.decay.after": 5,
        "phases.decay.data.length": 64,
        "phases.decay.data.batch_size": 8,
        "phases.decay.optimizer.decay_steps": 1,
    },
}


def small(name: str, corpus_folder, **changes):
    """Returns a tiny recipe, shrunk once more."""
    settings = {f"model.{field}": value for field, value in SMALL.items()}
    settings |= {
        "steps": 6,
        "log_every": 1,
        "data.corpus": str(corpus_folder),
        "data.length": 32,
        "data.batch_size": 16,
        "data.dupe_factor": 2,
        "optimizer.warmup_steps": 2,
        "checkpoint.every": 2,
        "checkpoint.keep": 9,
        "eval.every": 0,
        "eval.batches": 1,
    }
    settings |= SMALLER.get(name, {}) | changes
    if "xlnet" in name or "phases" in str(SMALLER.get(name)):
        settings["optimizer.warmup_steps"] = 1
    return load_config(f"configs/{name}.py:tiny", settings)


def exact(workdir: Path) -> list[dict]:
    """Returns the metrics without those of the clock."""
    clock = ("tokens_per_second", "mfu", "seconds")
    return [
        {name: value for name, value in line.items() if name not in clock}
        for line in all_lines(workdir)
    ]


def resumed(config, workdir: Path, tmp_path: Path, kept: int) -> list[dict]:
    """Returns the metrics of the same run, killed after checkpoint `kept`."""
    copy = tmp_path / "killed"
    shutil.copytree(workdir, copy)
    for folder in (copy / "checkpoints").iterdir():
        if folder.name.isdigit() and int(folder.name) > kept:
            shutil.rmtree(folder)
    run(config, copy)
    return exact(copy)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Runs a recipe once; returns its config and workdir."""
    runs = {}

    def run_once(name):
        if name not in runs:
            folder = tmp_path_factory.mktemp(name)
            corpus = prepare_small_corpus(folder, tokenizer=TRAINED[name])
            config = small(name, corpus.folder)
            run(config, folder / "run")
            runs[name] = config, folder / "run"
        return runs[name]

    return run_once


# These take half a minute each, and have little that the others have not.
LONG = ("bert_large_lamb", "deberta_base", "deberta_v3_small", "electra_small")
LONG += ("modernbert_base",)


def each(names):
    return [pytest.param(n, marks=[pytest.mark.slow] * (n in LONG)) for n in names]


@pytest.mark.parametrize("name", each(TRAINED))
def test_every_way_of_training_resumes_bit_for_bit(name, trained, tmp_path):
    config, workdir = trained(name)
    losses = {
        term for objective in config.objectives for term in objective.loss_weights
    }
    assert losses <= metrics(workdir, "validation")[config.steps].keys()
    assert resumed(config, workdir, tmp_path, kept=4) == exact(workdir)


# recipe -> the part that is exported, and the losses whose heads transformers has.
# Of DeBERTa's mask decoder and detection head and of span boundaries it has none.
EXPORTED = {
    "bert_large_lamb": ("discriminator", {"mlm_loss", "nsp_loss"}),
    "roberta_base": ("discriminator", {"mlm_loss"}),
    "albert_base": ("discriminator", {"mlm_loss", "sop_loss"}),
    "spanbert_base": ("discriminator", {"mlm_loss"}),
    "xlnet_base": ("discriminator", {"plm_loss"}),
    "electra_small": ("generator", {"mlm_loss"}),
    "modernbert_base": ("discriminator", {"mlm_loss"}),
}


@pytest.mark.parametrize("name", each(EXPORTED))
def test_transformers_finds_the_same_held_out_losses(name, trained, tmp_path):
    config, workdir = trained(name)
    part, losses = EXPORTED[name]
    export(workdir, tmp_path / "exported", part=part)
    last = phases_of(config)[-1].config
    batch = held_out_batch(Experiment.open(last, SILENT))
    found = torch_losses(tmp_path / "exported", batch)
    expected = evaluate(workdir, report=SILENT)
    assert found.keys() == losses
    for loss in losses:
        assert found[loss] == pytest.approx(expected[loss], abs=1e-5), loss


@pytest.mark.slow
def test_a_student_learns_from_its_teacher_and_resumes(corpus, tmp_path):
    teacher = tmp_path / "teacher"
    run(small("bert_base", corpus.folder, steps=2), teacher)
    changes = {
        "init_from": str(teacher),
        "objectives.distillation.teacher": str(teacher),
    }
    config = small("distilbert_base", corpus.folder, **changes)
    held_out = run(config, tmp_path / "student")
    assert {"distillation_soft_loss", "distillation_cosine_loss", "mlm_loss"} <= (
        held_out.keys()
    )
    expected = exact(tmp_path / "student")
    assert resumed(config, tmp_path / "student", tmp_path, kept=2) == expected
