"""What a task's head reads, and what it leaves alone, beside PyTorch's own forms."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from encoderjax.interop.loading import made_anew
from encoderjax.interop.task_huggingface import task_shapes
from encoderjax.models.dropout import DropoutKey
from encoderjax.models.families import preset
from encoderjax.models.heads import EncoderModel
from encoderjax.models.task_heads import (
    KINDS,
    TaskModel,
    init_task_params,
    task_head,
)
from encoderjax.training.mesh import partition_spec
from tests.task_folders import SIZES, small_task

IDS = np.random.default_rng(0).integers(5, 99, (2, 9))
MASK = np.arange(9) < np.array([[9], [6]])


def scores(task, ids=IDS, mask=MASK, params=None, **told) -> np.ndarray:
    params = task.params if params is None else params
    return np.asarray(task.model().apply({"params": params}, ids, mask, **told))


def states(task, ids=IDS, mask=MASK) -> tuple[np.ndarray, np.ndarray]:
    """Returns the last layer's states, and those of all layers."""
    params = {"params": {"encoder": task.params["encoder"]}}
    outputs = EncoderModel(task.config).apply(params, ids, mask, layers=True)
    return np.asarray(outputs.hidden), np.asarray(outputs.layers)


def new_task(model: TaskModel) -> dict[str, np.ndarray]:
    """Returns the parameters that a head starts with."""
    shapes = task_shapes(model.config, model.head)
    paths = [path for path in shapes if path.startswith("task/")]
    return made_anew(lambda key: init_task_params(model, key), paths, seed=0)


def linear(task, x: np.ndarray, name: str = "score") -> np.ndarray:
    layer = task.params["task"][name]
    return x @ layer["kernel"] + layer["bias"]


def test_weighted_layers_are_a_scaled_softmax_of_all_states():
    task = small_task("bert", "tag", layers="weighted")
    _, layers_NBLD = states(task)
    raw_N = task.params["task"]["layer_weights"]
    weights_N = np.exp(raw_N) / np.exp(raw_N).sum()
    mixed = np.einsum("n,nbld->bld", weights_N, layers_NBLD)
    mixed *= task.params["task"]["layer_scale"]
    np.testing.assert_allclose(scores(task), linear(task, mixed), atol=1e-5)
    new = new_task(task.model())
    assert not new["task/layer_weights"].any()  # all layers alike
    assert new["task/layer_scale"] == 1.0


def test_the_last_four_layers_stand_side_by_side():
    task = small_task("bert", "classify", num_layers=5, layers="last_four")
    assert task.description.head.hidden == "dense"  # the pooler reads one layer
    assert task.params["task"]["dense"]["kernel"].shape == (4 * 24, 24)
    _, layers_NBLD = states(task)
    first = np.concatenate(list(layers_NBLD[-4:, :, 0]), axis=-1)
    expected = linear(task, np.tanh(linear(task, first, "dense")))
    np.testing.assert_allclose(scores(task), expected, atol=1e-5)


@pytest.mark.parametrize("summary", ["first", "last", "mean"])
def test_a_summary_is_never_of_padding(summary):
    task = small_task("xlnet", "classify", summary=summary)
    mask = np.stack([np.arange(9) < 6, np.arange(9) > 3])  # after the text, before it
    hidden, _ = states(task, mask=mask)
    pick = {"first": lambda x: x[0], "last": lambda x: x[-1]}
    pick["mean"] = lambda x: x.mean(0)
    rows = [pick[summary](x[real]) for x, real in zip(hidden, mask, strict=True)]
    expected = linear(task, np.tanh(linear(task, np.stack(rows), "dense")))
    np.testing.assert_allclose(scores(task, mask=mask), expected, atol=1e-5)


def test_the_query_stream_answers_without_its_own_token():
    """In one layer: in the next, what the others have seen comes back."""
    task = small_task("xlnet", "answer", answer_stream="query")
    content = small_task("xlnet", "answer")
    changed = IDS.copy()
    changed[:, 3] = 7
    for each, sees_itself in ((task, False), (content, True)):
        apart = np.abs(scores(each) - scores(each, changed)).max(axis=(0, 2))
        assert (apart[3] > 1e-4) == sees_itself
        assert (np.delete(apart, 3)[:5] > 1e-5).all()


def test_dropout_is_the_heads_own_at_its_own_rate():
    task = small_task("bert", "tag", dropout_rate=0.4)
    off = {"dropout_rate": 0.0, "attention_dropout_rate": 0.0}
    task = dataclasses.replace(task, config=dataclasses.replace(task.config, **off))
    params = jax.tree.map(np.array, task.params)
    # One label reads one column: it is there, scaled up, or gone.
    params["task"]["score"] = {"kernel": np.eye(24, 3), "bias": np.zeros(3)}
    rows = jnp.arange(64, dtype=jnp.uint32)
    key = DropoutKey.create(0, jnp.asarray(1), rows)
    ids, mask = np.tile(IDS, (32, 1)), np.ones((64, 9), bool)
    dropped = scores(task, ids, mask, params, dropout=key)
    kept = scores(task, ids, mask, params)
    gone = dropped == 0
    np.testing.assert_allclose(dropped[~gone], kept[~gone] / 0.6, rtol=1e-5)
    assert abs(gone.mean() - 0.4) < 0.03
    other = DropoutKey.create(0, jnp.asarray(2), rows)
    assert not np.array_equal(scores(task, ids, mask, params, dropout=other), dropped)


def test_families_drop_where_their_classes_do():
    def rate(family, kind, **changes):
        config = preset(family, "base")
        count = {"answer": 2, "choose": 1}.get(kind, 3)
        return task_head(family, config, kind, count, **changes).dropout_rate

    assert [rate("bert", kind) for kind in KINDS] == [None, None, 0.0, None]
    assert [rate("distilbert", kind) for kind in KINDS] == [0.2, None, 0.1, 0.2]
    assert [rate("albert", kind) for kind in KINDS] == [0.1, 0.1, 0.0, 0.1]
    assert rate("modernbert", "classify") == 0.0
    assert rate("xlnet", "classify", dropout_rate=None) == 0.1  # the family's own
    roberta = task_head("roberta", preset("roberta", "base"), "classify", 3)
    assert roberta.first_dropout_rate is None  # before the dense layer as after it


def test_modernberts_heads_start_by_the_width():
    config = dataclasses.replace(
        preset("modernbert", "base"), **SIZES | {"width": 240, "num_heads": 4}
    )
    head = task_head("modernbert", config, "classify", 50)
    params = new_task(TaskModel(config, head))
    expected = {"score": 240**-0.5, "dense": 0.02 / 2**0.5}
    for name, std in expected.items():
        found = params[f"task/{name}/kernel"].std()
        # A normal distribution cut off at two deviations has 0.88 of its own.
        assert 0.97 * 0.88 * std < found < 1.03 * 0.88 * std, name


@pytest.mark.parametrize(
    ("family", "layers"),
    [("bert", "weighted"), ("roberta", "last"), ("modernbert", "last")],
)
def test_every_parameter_of_a_head_has_one_sharding(family, layers):
    task = small_task(family, "classify", layers=layers)
    for path, shape in task_shapes(task.config, task.description.head).items():
        partition_spec(path, shape)
