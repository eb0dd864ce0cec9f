"""Fine-tuned models come back from every kind of folder, or are refused in one line."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from transformers import AutoConfig, BertForSequenceClassification

from encoderjax import export
from encoderjax.errors import UserError
from encoderjax.interop.loading import load_model
from encoderjax.interop.own_files import EXTRA_INDEX
from encoderjax.interop.task_description import TaskDescription
from encoderjax.interop.task_loading import holds_task, load_task
from encoderjax.models.task_heads import TaskHead
from tests.task_folders import (
    LABELS,
    assert_same_trees,
    small_task,
    write_exported,
    write_workdir,
)
from tests.torch_models import random_bert, save_folder


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    task = small_task("spanbert", "classify", dropout_rate=0.3)
    return write_workdir(tmp_path_factory.mktemp("runs") / "run", task)


def said(config):
    """Returns a config where the activation of other heads is written out."""
    activation = config.head_activation or config.activation
    return dataclasses.replace(config, head_activation=activation)


def same_task(ours, others) -> None:
    assert ours.family == others.family
    assert said(ours.config) == said(others.config)
    assert ours.description == others.description
    assert_same_trees(ours.params, others.params)


# ---- what loads ----


def test_a_workdir_gives_its_best_step(workdir):
    task = small_task("spanbert", "classify", dropout_rate=0.3)
    last = load_task(workdir)
    assert last.step == 7
    try:
        (workdir / "best.json").write_text('{"step": 5, "accuracy": 0.5}')
        best = load_task(workdir)
        assert best.step == 5
        assert best.report == ()
        assert_same_trees(best.params, jax.tree.map(lambda leaf: 5 * leaf, task.params))
        assert best.description == task.description
        assert load_task(workdir, step=7).step == 7
        (workdir / "best.json").write_text('{"step": 6}')
        gone = load_task(workdir)
        assert gone.step == 7
        assert "the best step, 6, is not kept" in gone.report[0]
    finally:
        (workdir / "best.json").unlink()


def test_an_export_for_transformers_comes_back_whole(workdir, tmp_path):
    exported = export.run(workdir, tmp_path / "hf")
    assert exported.step == 7
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert config["id2label"] == {"0": "good", "1": "bad", "2": "so so"}
    assert config["label2id"] == {"good": 0, "bad": 1, "so so": 2}
    assert config["problem_type"] == "single_label_classification"
    assert config["classifier_dropout"] == 0.3
    read = AutoConfig.from_pretrained(tmp_path / "hf")
    assert read.num_labels == 3
    # The family, the rows' length, cut and settings are told beside.
    same_task(load_task(tmp_path / "hf"), load_task(workdir))
    (tmp_path / "hf" / EXTRA_INDEX).unlink()
    plain = load_task(tmp_path / "hf")
    assert plain.family == "bert"
    assert plain.description.labels == LABELS
    assert plain.description.head == load_task(workdir).description.head


def test_our_own_parameters_come_back_whole(workdir, tmp_path):
    export.run(workdir, tmp_path / "params", format="params", step=5)
    same_task(load_task(tmp_path / "params"), load_task(workdir, step=5))


@pytest.mark.parametrize(
    ("fields", "problem", "labels"),
    [
        ({}, "single", ("LABEL_0", "LABEL_1")),
        ({"num_labels": 1}, "regression", ("LABEL_0",)),
        (
            {"num_labels": 4, "problem_type": "multi_label_classification"},
            "multi",
            tuple(f"LABEL_{i}" for i in range(4)),
        ),
    ],
)
def test_problems_and_labels_of_transformers(fields, problem, labels, tmp_path):
    theirs = random_bert(BertForSequenceClassification, num_hidden_layers=1, **fields)
    theirs.save_pretrained(tmp_path / "theirs")
    task = load_task(tmp_path / "theirs").description
    assert (task.problem, task.labels, task.length) == (problem, labels, 40)
    export.run(tmp_path / "theirs", tmp_path / "ours")
    again = AutoConfig.from_pretrained(tmp_path / "ours")
    assert again.num_labels == theirs.config.num_labels
    assert again.id2label == theirs.config.id2label
    assert load_task(tmp_path / "ours").description == task


@pytest.mark.parametrize(
    ("family", "kind", "field"),
    [
        ("roberta", "classify", "classifier_dropout"),
        ("albert", "tag", "classifier_dropout_prob"),
        ("xlnet", "choose", "summary_last_dropout"),
        ("distilbert", "answer", "qa_dropout"),
        ("distilbert", "choose", "seq_classif_dropout"),
        ("electra", "choose", "summary_last_dropout"),
        ("modernbert", "tag", "classifier_dropout"),
        ("deberta", "classify", "cls_dropout"),
        ("deberta", "tag", None),  # drops there as the encoder does
        ("roberta", "choose", None),
    ],
)
def test_rates_are_told_where_there_is_a_word(family, kind, field, tmp_path):
    task = small_task(family, kind, dropout_rate=0.45)
    export.run(write_exported(tmp_path / "own", task), tmp_path / "hf")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config.get(field, 0.45) == 0.45
    told = [name for name, value in config.items() if value == 0.45]
    assert told == ([] if field is None else [field])
    same_task(load_task(tmp_path / "hf"), task)


def test_the_encoder_of_a_fine_tuned_folder_loads(workdir, tmp_path):
    export.run(workdir, tmp_path / "params", format="params")
    export.run(workdir, tmp_path / "hf")
    encoder = load_task(workdir).params["encoder"]
    for folder in (workdir, tmp_path / "params", tmp_path / "hf"):
        loaded = load_model(folder)
        assert loaded.head_names == ()
        assert_same_trees(loaded.params, {"encoder": encoder})
        (line,) = loaded.report
        assert "not used" in line
    assert load_model(workdir).config.pooler


# ---- what has no place in transformers ----


@pytest.mark.parametrize(
    ("family", "kind", "head", "words"),
    [
        ("deberta", "choose", {}, "transformers has no class of deberta"),
        ("bert", "classify", {"summary": "mean"}, "head.summary='mean'"),
        ("bert", "tag", {"layers": "weighted"}, "head.layers='weighted'"),
        ("xlnet", "classify", {"summary": "first"}, "head.summary='first'"),
        ("xlnet", "answer", {"answer_stream": "query"}, "head.answer_stream='query'"),
        ("electra", "choose", {"summary": "mean"}, "head.summary='mean'"),
        ("modernbert", "classify", {"summary": "last"}, "head.summary='last'"),
        ("modernbert", "tag", {"activation": None}, "head.activation=None"),
    ],
)
def test_what_transformers_would_compute_otherwise_is_refused(
    family, kind, head, words, tmp_path
):
    task = small_task(family, kind, **head)
    own = write_exported(tmp_path / "own", task)
    with pytest.raises(UserError, match="--format=params") as error:
        export.run(own, tmp_path / "hf")
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "hf").exists()
    export.run(own, tmp_path / "params", format="params")
    same_task(load_task(tmp_path / "params"), task)


# ---- what is refused ----


def test_a_pretrained_folder_is_no_task(tmp_path):
    save_folder(random_bert(num_hidden_layers=1), tmp_path)
    assert not holds_task(tmp_path)
    with pytest.raises(UserError, match="holds no task's model; fine-tune it first"):
        load_task(tmp_path)


def test_steps_belong_to_workdirs(workdir, tmp_path):
    export.run(workdir, tmp_path / "hf")
    with pytest.raises(UserError, match=r"step=3: .* is no workdir"):
        load_task(tmp_path / "hf", step=3)
    with pytest.raises(UserError, match="step=3 is not in"):
        load_task(workdir, step=3)
    with pytest.raises(UserError, match="part='generator'"):
        export.run(workdir, tmp_path / "g", part="generator")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"id2label": {"0": "a", "2": "b"}}, "id2label="),
        ({"problem_type": "ranking"}, "problem_type='ranking'"),
        ({"classifier_dropout": "much"}, "head.dropout_rate='much'"),
        ({"id2label": {"0": "a", "1": "b"}}, "tensor classifier.weight"),
        ({"id2label": {"0": "a", "1": "a", "2": "b"}}, "'a' twice"),
    ],
)
def test_fields_that_cannot_be_meant(workdir, fields, words, tmp_path):
    export.run(workdir, tmp_path / "hf")
    file = tmp_path / "hf" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))
    with pytest.raises(UserError) as error:
        load_task(tmp_path / "hf")
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"labels": ["a", "b"]}, "2 names"),
        ({"problem": "several"}, "task.problem"),
        ({"lenght": 3}, "did you mean 'length'"),
        ({"stride": 0}, "task.stride=0 must be 1 or more"),
        ({"length": 0}, "task.length=0 must be 1 or more"),
        ({"kind": "tag"}, "must be the same"),
        ({"head": {"kind": "classify"}}, "num_labels is missing"),
    ],
)
def test_descriptions_that_cannot_be_meant(fields, words):
    written = small_task("bert", "classify").description.to_json()
    assert TaskDescription.from_json(
        json.loads(json.dumps(written)), "f"
    ).to_json() == (written)
    with pytest.raises(UserError) as error:
        TaskDescription.from_json(written | fields, "config.json")
    assert words in str(error.value)


def test_heads_that_cannot_be_meant():
    with pytest.raises(UserError, match=r"num_labels=3 must be 2 for kind='answer'"):
        TaskHead(kind="answer", num_labels=3)
    with pytest.raises(UserError, match=r"head.summary='middle' must be one of"):
        TaskHead(kind="classify", num_labels=3, summary="middle")
    with pytest.raises(UserError, match=r"needs at least 4 layers"):
        small_task("bert", "classify", layers="last_four")
    with pytest.raises(UserError, match=r"needs an encoder with two streams"):
        small_task("bert", "answer", answer_stream="query")
    assert np.isclose(small_task("bert", "tag").config.dropout_rate, 0.1)
