"""The named relatives, a few steps each: exact resume, losses, lists that differ."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from encoderjax.config_loading import load_config
from encoderjax.data.preparation import prepare_corpus
from encoderjax.errors import UserError
from encoderjax.evaluate import run as evaluate
from encoderjax.experiment import Experiment
from encoderjax.export import run as export
from encoderjax.identity import run_identity
from encoderjax.interop.loading import load_model
from encoderjax.preview import run as preview
from encoderjax.train import run
from tests.chance import chances_of
from tests.small_corpus import _TOPICS, documents
from tests.small_runs import all_lines, metrics
from tests.torch_losses import held_out_batch, torch_losses

SILENT = lambda text: None
LISTS = {
    "macbert_base": "objectives.mlm.replace.similar_words",
    "ernie_base": "objectives.mlm.phrases",
}


def lists(folder):
    """Writes words of one topic side by side, and phrases of the small corpus."""
    lines = []
    for words in map(str.split, _TOPICS.values()):
        lines += ["\t".join([w, *(o for o in words if o != w)]) for w in words]
    phrases = [f"the old {w}" for words in _TOPICS.values() for w in words.split()]
    (folder / "words.tsv").write_text("\n".join(lines))
    (folder / "phrases.txt").write_text("\n".join(phrases))
    return {
        "macbert_base": {LISTS["macbert_base"]: str(folder / "words.tsv")},
        "ernie_base": {LISTS["ernie_base"]: str(folder / "phrases.txt")},
    }


def translated(folder):
    records = [
        {"en": line, "fr": line.lower()[::-1]}
        for text in documents(30)
        for line in text.splitlines()
    ]
    text = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "pairs.jsonl").write_text(text)
    return prepare_corpus(
        source=str(folder / "pairs.jsonl"),
        out=folder / "pairs",
        tokenizer="unigram/xlm_roberta:80",
        text_key="en,fr",
        sentences="fields",
        validation=0.05,
        report=SILENT,
    )


def small(name, folder, **changes):
    settings = {
        "model.width": 32,
        "model.mlp_width": 64,
        "steps": 6,
        "log_every": 1,
        "data.corpus": str(folder),
        "data.length": 32,
        "data.batch_size": 16,
        "data.dupe_factor": 2,
        "optimizer.warmup_steps": 2,
        "checkpoint.every": 2,
        "checkpoint.keep": 9,
        "eval.every": 0,
        "eval.batches": 1,
    }
    return load_config(f"configs/{name}.py:tiny", settings | changes)


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    """Runs a recipe once; returns its config and workdir."""
    runs = {}

    def run_once(name):
        if name not in runs:
            folder = tmp_path_factory.mktemp(name)
            if name == "xlm_tlm_base":
                config = small(name, translated(folder).folder)
            else:
                config = small(name, corpus.folder, **lists(folder)[name])
            run(config, folder / "run")
            runs[name] = config, folder
        return runs[name]

    return run_once


def exact(workdir):
    clock = ("tokens_per_second", "mfu", "seconds")
    return [
        {name: value for name, value in line.items() if name not in clock}
        for line in all_lines(workdir)
    ]


def killed(workdir, tmp_path, kept=4):
    copy = tmp_path / "killed"
    shutil.copytree(workdir, copy)
    for folder in (copy / "checkpoints").iterdir():
        if folder.name.isdigit() and int(folder.name) > kept:
            shutil.rmtree(folder)
    return copy


@pytest.mark.parametrize("name", [*LISTS, "xlm_tlm_base"])
def test_each_resumes_bit_for_bit(name, trained, tmp_path):
    config, folder = trained(name)
    copy = killed(folder / "run", tmp_path)
    run(config, copy)
    assert exact(copy) == exact(folder / "run")


# What is left of chance. Of words that became similar ones the row tells less.
LEFT = {
    "macbert_base": {"mlm_loss": 0.8, "sop_loss": 0.8},
    "ernie_base": {"mlm_loss": 0.8, "nsp_loss": 0.8},
    "xlm_tlm_base": {"mlm_loss": 0.8},
}


def in_order(folder):
    """Prepares documents of two lines that tell which of them comes first."""
    texts = []
    for text in documents(60, seed=3):
        lines = text.lower().splitlines()
        pairs = zip(lines[::2], lines[1::2], strict=False)
        texts += [f"first {one}\nthen {other}" for one, other in pairs]
    (folder / "ordered.txt").write_text("\n\n".join(texts))
    return prepare_corpus(
        source=str(folder / "ordered.txt"),
        out=folder / "ordered",
        tokenizer="wordpiece:200",
        validation=0.2,
        report=SILENT,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", LEFT)
def test_held_out_losses_fall_below_chance(name, tmp_path):
    changes = {
        "model.width": 64,
        "model.mlp_width": 128,
        "steps": 300,
        "log_every": 100,
        "data.length": 48,
        "data.batch_size": 32,
        "optimizer.learning_rate": 5e-3,
        "optimizer.warmup_steps": 30,
        "checkpoint.every": 300,
        "eval.at_start": True,
        "eval.batches": 0,
    }
    if name == "xlm_tlm_base":
        corpus = translated(tmp_path)
    else:
        corpus, changes = in_order(tmp_path), changes | lists(tmp_path)[name]
    config = small(name, corpus.folder, **changes)
    run(config, tmp_path / "run")
    measured = metrics(tmp_path / "run", "validation")
    first, last = measured[0], measured[config.steps]
    left = LEFT[name]
    assert left.keys() == {t for o in config.objectives for t in o.loss_weights}
    for loss, chance in chances_of(Experiment.open(config, SILENT), left).items():
        assert last[loss] < left[loss] * chance < first[loss], (loss, chance)


@pytest.mark.parametrize("name", LISTS)
def test_another_list_is_refused_and_a_moved_one_is_not(name, trained, tmp_path):
    config, folder = trained(name)
    field = LISTS[name]
    path = Path(lists(folder)[name][field])
    moved = tmp_path / path.name
    shutil.copy(path, moved)
    copy = killed(folder / "run", tmp_path)
    run(small(name, config.data.corpus, **{field: str(moved)}), copy)
    assert exact(copy) == exact(folder / "run")
    moved.write_text(moved.read_text().replace("ship", "wave"))
    longer = small(name, config.data.corpus, steps=8, **{field: str(moved)})
    with pytest.raises(UserError, match=rf"{field}\.sha256='.*' does not fit the"):
        run(longer, copy)


@pytest.mark.parametrize(
    ("name", "losses"),
    [("macbert_base", {"mlm_loss"}), ("ernie_base", {"mlm_loss", "nsp_loss"})],
)
def test_transformers_finds_the_same_held_out_losses(name, losses, trained, tmp_path):
    config, folder = trained(name)
    export(folder / "run", tmp_path / "exported")
    batch = held_out_batch(Experiment.open(config, SILENT))
    found = torch_losses(tmp_path / "exported", batch)
    expected = evaluate(folder / "run", report=SILENT)
    assert found.keys() == losses
    for loss in losses:
        assert found[loss] == pytest.approx(expected[loss], abs=1e-5), loss
    if name == "macbert_base":  # a metric of each kind that there is
        kinds = {m for m in expected if m.startswith("mlm_loss_")}
        assert kinds == {f"mlm_loss_{k}" for k in ("replaced", "similar", "kept")}


def test_preview_shows_similar_words_and_phrases(trained):
    config, _ = trained("macbert_base")
    found = preview(config, rows=3, batches=10, report=SILENT)
    stats = found["stats"]
    assert 0.2 < stats["similar_share"] < 0.8  # words of no list become random ones
    random = stats["random_share"] + stats["similar_share"]
    assert random == pytest.approx(0.9, abs=0.05)
    assert stats["masked_share"] == stats["split_words"] == 0
    assert any("(like " in row["text"] for row in found["rows"])
    config, _ = trained("ernie_base")
    stats = preview(config, rows=0, batches=10, report=SILENT)["stats"]
    assert 0.05 < stats["phrase_share"] < 0.6
    assert stats["split_words"] == 0


def test_a_models_table_tells_neighbours(corpus, trained, tmp_path):
    _, folder = trained("ernie_base")
    field = LISTS["macbert_base"]
    config = small("macbert_base", corpus.folder, **{field: str(folder / "run")})
    experiment = Experiment.open(config, SILENT)
    similar = experiment.lexicon.similar
    table = load_model(folder / "run").params["encoder"]["token_embed"]["embedding"]
    rows = table / np.linalg.norm(table, axis=1, keepdims=True)
    word = similar.words.ids_T[20]
    first, count = similar.starts_N[20], similar.counts_N[20]
    nearest = similar.ids_T[first : first + count]
    cosines = rows[similar.words.ids_T] @ rows[word]
    best = np.sort(cosines)[::-1][1 : count + 1]  # without the word itself
    assert np.allclose(rows[nearest] @ rows[word], best, atol=1e-6)
    (sha256,) = [v for k, v in run_identity(experiment).items() if "similar_words" in k]
    assert len(sha256) == 64
    stats = preview(config, rows=0, batches=4, report=SILENT)["stats"]
    assert 0.3 < stats["similar_share"] < 0.85


def test_a_missing_list_is_named(corpus):
    for name, field in LISTS.items():
        config = small(name, corpus.folder, **{field: "nowhere.txt"})
        with pytest.raises(UserError, match=f"{field}=nowhere.txt does not exist"):
            Experiment.open(config, SILENT).lexicon  # noqa: B018


def test_languages_are_exported_beside_no_class(trained, tmp_path):
    config, folder = trained("xlm_tlm_base")
    with pytest.raises(UserError, match="use --format=params"):
        export(folder / "run", tmp_path / "hf")
    export(folder / "run", tmp_path / "params", format="params")
    loaded = load_model(tmp_path / "params")
    assert loaded.config.languages == ("en", "fr")
    first = load_model(folder / "run").params["encoder"]["language_embed"]["embedding"]
    again = loaded.params["encoder"]["language_embed"]["embedding"]
    assert np.array_equal(first, again)
    assert config.model.encoder.languages == ("en", "fr")
