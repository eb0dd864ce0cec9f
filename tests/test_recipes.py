"""The recipes: their published numbers, and each way of training for a few steps."""

import dataclasses
import math
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from encoderjax.config_loading import load_config
from encoderjax.data.opening import open_corpus
from encoderjax.errors import UserError
from encoderjax.evaluate import run as evaluate
from encoderjax.experiment import Experiment
from encoderjax.export import run as export
from encoderjax.fill_mask import fill_masks
from encoderjax.identity import flat_fields
from encoderjax.interop.loading import load, load_model
from encoderjax.models.dropout import DropoutKey
from encoderjax.phases import phases_of
from encoderjax.recipes import load_recipe
from encoderjax.train import run
from tests.small_corpus import prepare_small_corpus
from tests.small_runs import all_lines, metrics
from tests.small_tasks import finetune_config
from tests.torch_losses import held_out_batch, torch_detection_loss, torch_losses

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
    "macbert_base": (1_000_000, 256, 512, 1e-4, 10_000),
    "ernie_base": (1_000_000, 128, 512, 1e-4, 5_000),
    "xlm_tlm_base": (300_000, 2_048, 256, 1e-4, 4_000),
    "modernbert_base": (883_514, 4_608, 1_024, 8e-4, 3_815),
    "modernbert_large": (813_447, 4_928, 1_024, 5e-4, 1_664),
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


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_headers_and_variants(path):
    recipe = load_recipe(path)
    assert f"--config={path}" in recipe.__doc__
    for variant in recipe.VARIANTS:
        assert recipe.get_config(variant).is_locked
        for phase in phases_of(load_config(f"{path}:{variant}")):
            assert phase.last > phase.first
    full, tiny = load_config(str(path)), load_config(f"{path}:tiny")
    translated = full.data.form == "parallel"  # which the demo corpus is not
    assert tiny.data.corpus == ("corpora/en_fr" if translated else "demo")
    assert tiny.steps < full.steps
    # The same way of training.
    assert tiny.data.form == full.data.form
    assert tiny.optimizer.name == full.optimizer.name
    assert [type(o) for o in tiny.objectives] == [type(o) for o in full.objectives]


def test_the_tiny_student_reads_what_its_tiny_teacher_reads():
    """It begins with the teacher's tables and layer, and is compared state by state."""
    student, teacher = (
        load_config(f"configs/{name}.py:tiny")
        for name in ("distilbert_base", "bert_base")
    )
    assert student.data.tokenizer == teacher.data.tokenizer
    assert student.data.length <= max(
        phase.config.data.length for phase in phases_of(teacher)
    )
    for field in ("width", "num_heads", "mlp_width", "activation"):
        assert student.model.changes[field] == teacher.model.changes[field]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_missing_corpus_is_named_with_the_command_that_makes_it(
    path, tmp_path, monkeypatch
):
    """Before all else that a run reads, such as the folder of a teacher."""
    config = load_config(str(path))
    monkeypatch.chdir(tmp_path)  # where nothing is, whatever lies in corpora/
    data = config.data
    if data.corpus == "demo":
        data = dataclasses.replace(data, corpus="corpora/none")
    with pytest.raises(UserError) as error:
        run(dataclasses.replace(config, data=data), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    message = str(error.value)
    assert "\n" not in message
    assert f"data.corpus={data.corpus} does not exist" in message
    assert f"encoderjax.prepare --source='{data.source}'" in message
    assert f"--tokenizer={data.tokenizer} --out={data.corpus}" in message
    # Shares of languages need a corpus of each.
    assert ("--language_key=file" in message) == (data.alpha is not None)


def test_a_missing_corpus_of_translations_is_named_with_its_fields():
    data = load_config("configs/xlm_tlm_base.py:tiny").data
    with pytest.raises(UserError, match="--text_key=en,fr --sentences=fields --token"):
        open_corpus(data, print)


# ---- the notes' reading ----

# recipe -> what differs from the paper's, and how: docs/notes_and_papers.md
BERT_NOTES = {
    "model.positions": "relative_key",
    "model.mlm_head": "bare",
    "model.pair_head": "raw_cls",
    "model.pooler": False,
    "objectives.mlm.replace.distribution": "unigram",
    "data.dupe_factor": 4,
}
ALBERT_NOTES = {
    "model.sharing": "ffn",
    "objectives.mlm.select": "tokens",
}
SPANBERT_NOTES = {
    "model.mask_slots": 15,
    "objectives.mlm.span_masks": "single",
    "data.masking": "static",
    "data.dupe_factor": 40,
}
DEBERTA_NOTES = {
    "model.score_combination": "product",
    "model.mask_decoder_shared": False,
    "model.max_length": 1_024,
    "objectives.mlm.rate": "density",
    "objectives.mlm.max_predictions": None,
    "data.length": 1_024,
}
XLNET_NOTES = {
    "model.summary": "first",
    "model.max_length": 1_024,
    "model.reuse_length": 512,
    "objectives.plm.predict_share": 1.0,
    "objectives.plm.permute_within": 512,
    "data.length": 1_024,
    "data.reuse_length": 512,
}
ROBERTA_NOTES = {"data.batch_size": None, "data.batch_tokens": 32_768}
NOTED = {
    "bert_base": BERT_NOTES,
    "bert_large": BERT_NOTES,
    "bert_large_lamb": BERT_NOTES,
    "bert_tiny": BERT_NOTES | {"data.masking": "static"},
    "roberta_base": ROBERTA_NOTES,
    "roberta_large": ROBERTA_NOTES,
    "albert_base": ALBERT_NOTES,
    "albert_large": ALBERT_NOTES,
    "albert_xlarge": ALBERT_NOTES,
    "albert_xxlarge": ALBERT_NOTES,
    "spanbert_base": SPANBERT_NOTES,
    "spanbert_large": SPANBERT_NOTES,
    "deberta_base": DEBERTA_NOTES,
    "deberta_large": DEBERTA_NOTES,
    "xlnet_base": XLNET_NOTES,
    "xlnet_large": XLNET_NOTES,
}


def test_recipes_that_the_notes_concern_have_their_reading():
    noted = {path.stem for path in RECIPES if "notes" in load_recipe(path).VARIANTS}
    assert noted == set(NOTED)
    for name in noted:
        assert "notes_tiny" in load_recipe(f"configs/{name}.py").VARIANTS


@pytest.mark.parametrize("name", NOTED)
def test_the_notes_change_what_they_say_and_nothing_else(name):
    paper, notes = (
        load_config(f"configs/{name}.py:{variant}") for variant in ("full", "notes")
    )
    # The model whole: what is left out stands at the published size.
    described = []
    for config in (paper, notes):
        whole = dataclasses.asdict(config.model.encoder)
        described.append(flat_fields(config.to_dict() | {"model": whole}))
    paper_fields, fields = described
    differing = {
        key: value for key, value in fields.items() if paper_fields[key] != value
    }
    assert differing == NOTED[name]
    for phase in phases_of(notes):
        for objective in phase.config.objectives:
            objective.resolved(phase.config.data, phase.config.model.encoder)


@pytest.mark.parametrize(
    ("recipe", "plain", "head"),
    [
        ("answer", "files", {"answer_stream": "query"}),
        ("classify", "single", {"summary": "first"}),
    ],
)
def test_tasks_of_an_xlnet_are_read_as_in_the_notes(recipe, plain, head):
    paths = {"data__train": "train.json", "init_from": "xlnet"}
    task, notes = (
        finetune_config(f"{recipe}.py:{variant}", **paths).task
        for variant in (plain, "notes")
    )
    assert notes == dataclasses.replace(task, head=head)


# ---- a few steps of each way of training ----

# recipe -> the tokenizer of the small corpus
TRAINED = {
    "bert_large_lamb": "wordpiece:180",
    "roberta_base": "bbpe:320",
    "xlm_roberta_base": "unigram/xlm_roberta:100",
    "albert_base": "unigram:100",
    "spanbert_base": "wordpiece_cased:180",
    "denoising_base": "wordpiece:180",
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


def small(name: str, corpus_folder, variant="tiny", **changes):
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
    return load_config(f"configs/{name}.py:{variant}", settings)


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
LONG += ("modernbert_base", "xlm_roberta_base", "denoising_base")


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


def test_memory_is_had_again_where_it_was_saved_and_made_anew_where_not(
    trained, tmp_path
):
    config, workdir = trained("xlnet_base")
    unsaved = dataclasses.replace(
        config, checkpoint=dataclasses.replace(config.checkpoint, carry=False)
    )
    assert resumed(unsaved, workdir, tmp_path, kept=4) == exact(workdir)
    half = dataclasses.replace(unsaved, steps=4)
    run(half, tmp_path / "unsaved")
    run(config, tmp_path / "unsaved")  # now with it
    assert exact(tmp_path / "unsaved")[-1]["step"] == config.steps
    lines = [line["loss"] for line in exact(tmp_path / "unsaved")]
    assert lines != [line["loss"] for line in exact(workdir)]


# recipe -> the part that is exported, and the losses whose heads transformers has.
# Of DeBERTa's mask decoder and detection head, of span boundaries and of gaps and what
# was put in it has none.
EXPORTED = {
    "bert_large_lamb": ("discriminator", {"mlm_loss", "nsp_loss"}),
    "roberta_base": ("discriminator", {"mlm_loss"}),
    "xlm_roberta_base": ("discriminator", {"mlm_loss"}),
    "albert_base": ("discriminator", {"mlm_loss", "sop_loss"}),
    "spanbert_base": ("discriminator", {"mlm_loss"}),
    "denoising_base": ("discriminator", {"mlm_loss"}),
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
def test_transformers_finds_the_same_detection_loss(trained, tmp_path):
    """Of the exported discriminator, in the text as our generator filled it."""
    config, workdir = trained("electra_small")
    export(workdir, tmp_path / "exported")
    experiment = Experiment.open(config, SILENT)
    batch, pretrainer = held_out_batch(experiment), experiment.pretrainer()
    replaced_tokens = pretrainer.objectives[-1]
    key = DropoutKey.create(0, jnp.asarray(0), jnp.asarray(batch["row"]))
    params = load_model(workdir).shared_as(pretrainer.model)
    filled, _ = pretrainer.model.apply(
        {"params": params},
        {name: jnp.asarray(value) for name, value in batch.items()},
        method=lambda model, batch: replaced_tokens.rewrite(model, batch, key, None),
    )
    found = torch_detection_loss(tmp_path / "exported", jax.device_get(filled))
    expected = evaluate(workdir, report=SILENT)
    assert found == pytest.approx(expected["rtd_loss"], abs=1e-5)


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
    # Of another teacher in the same place, the curve would not go on.
    run(small("bert_base", corpus.folder, steps=2, seed=1), tmp_path / "other")
    other = {"objectives.distillation.teacher": str(tmp_path / "other")}
    with pytest.raises(UserError, match=r"distillation.teacher.sha256=.* does not fit"):
        run(
            small("distilbert_base", corpus.folder, **changes | other),
            tmp_path / "student",
        )
    export(tmp_path / "student", tmp_path / "exported")
    batch = held_out_batch(Experiment.open(config, SILENT))
    found = torch_losses(tmp_path / "exported", batch)
    of_all = evaluate(tmp_path / "student", report=SILENT)
    assert found == {"mlm_loss": pytest.approx(of_all["mlm_loss"], abs=1e-5)}


# recipe -> what else must fit in the notes' variant
NOTED_TRAINED = {
    "bert_base": {"phases": {}},
    "roberta_base": {"data.batch_size": None, "data.batch_tokens": 300},
    "albert_base": {},
    "deberta_base": {},
    "xlnet_base": {},
}


def noted(name, folder, **changes):
    """Runs the notes' variant of a recipe; returns its config and workdir."""
    corpus = prepare_small_corpus(folder, tokenizer=TRAINED.get(name, "wordpiece:180"))
    settings = NOTED_TRAINED.get(name, {}) | changes
    config = small(name, corpus.folder, "notes_tiny", **settings)
    held_out = run(config, folder / "run")
    assert all(math.isfinite(value) for value in held_out.values())
    losses = {term for o in config.objectives for term in o.loss_weights}
    assert losses <= held_out.keys()
    return config, folder / "run"


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTED_TRAINED)
def test_the_notes_reading_trains(name, tmp_path):
    _, workdir = noted(name, tmp_path, steps=3)
    model = load_model(workdir).config
    for field, value in NOTED[name].items():
        group, _, choice = field.partition(".")
        if group == "model" and "length" not in choice:
            assert getattr(model, choice) == value


@pytest.mark.slow
def test_spans_under_one_mask_train_resume_and_are_used_again(tmp_path):
    config, workdir = noted("spanbert_base", tmp_path, **{"eval.batches": 0})
    assert resumed(config, workdir, tmp_path, kept=4) == exact(workdir)
    expected = evaluate(workdir, report=SILENT)
    assert expected["mlm_loss"] == pytest.approx(
        metrics(workdir, "validation")[config.steps]["mlm_loss"], abs=1e-5
    )
    # transformers has the head but for the offsets, which are kept beside it.
    export(workdir, tmp_path / "exported")
    ours, theirs = load_model(workdir), load_model(tmp_path / "exported")
    assert theirs.config.mask_slots == 15
    again = theirs.params["heads"]["mlm"]["offset_embed"]["embedding"]
    vectors = ours.params["heads"]["mlm"]["offset_embed"]["embedding"]
    assert again.shape == (14, 32)
    assert np.array_equal(again, vectors)
    ids = np.random.default_rng(0).integers(5, 180, (2, 9))
    model, params = load(tmp_path / "exported", head="mlm")
    mine = model.apply({"params": params}, ids).logits
    loaded = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "exported")
    with torch.no_grad():
        other = loaded.eval()(torch.tensor(ids)).logits.numpy()
    assert np.abs(mine - other).max() < 2e-5
    (filled,) = fill_masks(ours, ["The [MASK] sees the old ship."], top=2)
    assert len(filled.masks) == 1
