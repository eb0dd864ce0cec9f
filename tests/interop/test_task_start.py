"""Fine-tuning starts from any folder, and says what is loaded and what is new."""

import dataclasses
import shutil

import numpy as np
import pytest
from transformers import BertForMaskedLM, BertForSequenceClassification

from encoderjax import export
from encoderjax.errors import UserError
from encoderjax.interop import weights
from encoderjax.interop.task_start import TaskStart
from encoderjax.models.families import preset
from encoderjax.models.task_heads import TaskModel, task_head
from encoderjax.tasks.classify import Classify
from tests.families import random_params
from tests.task_folders import (
    LABELS,
    SIZES,
    assert_same_trees,
    small_task,
    write_exported,
)
from tests.torch_models import random_bert, save_folder


def model_for(start: TaskStart, kind="classify", count=3, **head) -> TaskModel:
    return TaskModel(
        start.config, task_head(start.family, start.config, kind, count, **head)
    )


def write_pretrained(folder, family, *heads, **changes) -> dict:
    """Writes parameters of a pretraining of ours."""
    config = dataclasses.replace(preset(family, "base"), **SIZES | changes)
    params = random_params(config, *heads)
    index = {
        "model": {"family": family, **dataclasses.asdict(config)},
        "heads": list(heads),
    }
    folder.mkdir(exist_ok=True)
    weights.write_json(folder / "params.json", index)
    weights.write_safetensors(folder / "params.safetensors", weights.leaves_of(params))
    return params


def test_a_pretrained_encoder_keeps_its_pooler(tmp_path):
    save_folder(random_bert(num_hidden_layers=1), tmp_path)
    start = TaskStart.open(tmp_path)
    assert start.need_tokenizer().vocabulary.size == 97
    params, lines = start.params_for(model_for(start), seed=0)
    assert_same_trees(params["encoder"], start.params["encoder"])
    assert "pooler" in params["encoder"]
    assert 0.01 < params["task"]["score"]["kernel"].std() < 0.03
    assert not params["task"]["score"]["bias"].any()
    assert lines[0].startswith(f"{tmp_path} (bert): ")
    assert lines[1:] == ["the head to classify is new, UNTRAINED"]
    again, _ = start.params_for(model_for(start), seed=0)
    other, _ = start.params_for(model_for(start), seed=1)
    assert_same_trees(again, params)
    new, others = (p["task"]["score"]["kernel"] for p in (params, other))
    assert not np.array_equal(new, others)


def test_a_hash_tells_encoders_apart(tmp_path):
    """By their parameters, or by their form alone; wherever they are."""
    for name, seed, layers in (("a", 0, 1), ("b", 1, 1), ("c", 0, 2)):
        save_folder(random_bert(seed=seed, num_hidden_layers=layers), tmp_path / name)
    shutil.copytree(tmp_path / "a", tmp_path / "d")
    starts = [TaskStart.open(tmp_path / name) for name in "abcd"]
    a, b, c, d = (start.sha256(with_params=True) for start in starts)
    assert a == d
    assert len({a, b, c}) == 3
    a, b, c, d = (start.sha256(with_params=False) for start in starts)
    assert a == b == d != c


def test_a_missing_pooler_is_new_and_an_unread_one_is_left(tmp_path):
    folder = tmp_path / "mlm"
    save_folder(random_bert(BertForMaskedLM, num_hidden_layers=1), folder)
    start = TaskStart.open(folder)
    params, lines = start.params_for(model_for(start), seed=0)
    assert params["encoder"]["pooler"]["kernel"].shape == (48, 48)
    assert "encoder/pooler is not there: made anew, UNTRAINED" in lines
    save_folder(random_bert(num_hidden_layers=1), tmp_path / "both")
    start = TaskStart.open(tmp_path / "both")
    params, lines = start.params_for(model_for(start, "tag"), seed=0)
    assert "pooler" not in params["encoder"]
    assert "encoder/pooler is there and not used by this task" in lines


def test_what_is_pretrainings_alone_is_left(tmp_path):
    decoder = {"mask_decoder_layers": 2, "num_layers": 2}
    write_pretrained(tmp_path / "d", "deberta", "mlm", **decoder)
    start = TaskStart.open(tmp_path / "d")
    assert start.config.mask_decoder_layers == 0
    params, lines = start.params_for(model_for(start), seed=0)
    assert "position_embed" not in params["encoder"]
    assert "encoder/position_embed is there and not used by this task" in lines
    xlnet = {"memory_length": 4, "reuse_length": 2, "bidirectional_data": True}
    write_pretrained(tmp_path / "x", "xlnet", "mlm", **xlnet)
    config = TaskStart.open(tmp_path / "x").config
    assert (config.memory_length, config.reuse_length) == (0, 0)
    assert not config.bidirectional_data


@pytest.mark.parametrize("format", ["hf", "params"])
def test_a_head_of_the_same_task_goes_on(format, tmp_path):
    task = small_task("roberta", "tag")
    export.run(write_exported(tmp_path / "own", task), tmp_path / "out", format=format)
    start = TaskStart.open(tmp_path / "out")
    assert start.description == task.description
    # Another rate changes nothing that is loaded.
    model = model_for(start, "tag", dropout_rate=0.5)
    params, lines = start.params_for(model, 0, LABELS)
    assert_same_trees(params, task.params)
    assert "the head to tag is the folder's" in lines
    with pytest.raises(
        UserError, match=r"labels .*'worse'.* differ from those"
    ) as error:
        start.params_for(model, 0, ("good", "worse", "so so"))
    assert "new_head=True" in str(error.value)
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="in the same order"):
        start.params_for(model, 0, LABELS[::-1])


def test_a_new_head_is_asked_for_or_said(tmp_path):
    write_exported(tmp_path / "own", small_task("bert", "classify"))
    asked = TaskStart.open(tmp_path / "own", new_head=True)
    model = model_for(asked, count=2)
    params, lines = asked.params_for(model, 0, ("yes", "no"))
    assert params["task"]["score"]["kernel"].shape == (24, 2)
    assert "the head to classify is new, UNTRAINED, as asked for" in lines
    start = TaskStart.open(tmp_path / "own")
    _, lines = start.params_for(model_for(start, "answer", 2), 0, ())
    assert any("the folder's is to classify" in line for line in lines)
    weighted = model_for(start, layers="weighted")
    params, lines = start.params_for(weighted, 0, LABELS)
    assert any("has another form" in line for line in lines)
    assert params["task"]["layer_weights"].shape == (2,)


def test_an_encoder_of_another_shape_is_refused(tmp_path):
    write_exported(tmp_path / "own", small_task("bert", "classify"))
    start = TaskStart.open(tmp_path / "own")
    wider = dataclasses.replace(start.config, mlp_width=48)
    head = task_head("bert", wider, "classify", 3)
    with pytest.raises(UserError, match=r"encoder/layers/mlp/\S+ of init_from="):
        start.params_for(TaskModel(wider, head), 0)


@pytest.mark.parametrize(
    ("theirs", "ours", "goes_on"),
    [
        ("regression", "regression", True),
        ("regression", "single", False),
        ("multi_label_classification", "multi", True),
        ("multi_label_classification", "single", False),
    ],
)
def test_a_downloaded_head_goes_on_with_the_same_kind_of_label(
    theirs, ours, goes_on, tmp_path
):
    """A number has no name; there it is LABEL_0."""
    count = 1 if theirs == "regression" else 3
    changes = {"num_labels": count, "problem_type": theirs, "num_hidden_layers": 1}
    save_folder(random_bert(BertForSequenceClassification, **changes), tmp_path)
    start = TaskStart.open(tmp_path)
    task = Classify(labels=tuple(f"LABEL_{i}" for i in range(3)), problem_type=ours)
    if "regression" in (theirs, ours):
        task = dataclasses.replace(task, labels=("score",))
    params, lines = task.init_from(start, model_for(start, count=count), seed=0)
    kernels = [tree["task"]["score"]["kernel"] for tree in (params, start.params)]
    assert np.array_equal(*kernels) == goes_on
    said = "the folder's" if goes_on else "new, UNTRAINED: the folder's problem_type is"
    assert any(line.startswith(f"the head to classify is {said}") for line in lines)
