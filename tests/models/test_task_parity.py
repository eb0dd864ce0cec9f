"""Every task head of every family computes what PyTorch computes, and comes back."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
import transformers

from encoderjax import export
from encoderjax.interop.task_description import LABELLED_KINDS
from encoderjax.interop.task_huggingface import task_params_to_hf
from encoderjax.interop.task_loading import load_task
from encoderjax.models.task_heads import KINDS, TaskModel, task_form
from tests.families import random_batch, random_model, torch_inputs

TOLERANCE = 1e-5
ROWS, LENGTH = 4, 28
LABELS = {i: f"name {i}" for i in range(5)}
SMALL = {"num_hidden_layers": 1}  # the layers are compared elsewhere
# The family, and what its model in the list is called where that differs.
FAMILIES = {
    "bert": "bert",
    "roberta": "roberta",
    "xlm_roberta": "xlm_roberta",
    "albert": "albert",
    "electra": "electra_discriminator",
    "distilbert": "distilbert",
    "modernbert": "modernbert",
    "xlnet": "xlnet",
    "deberta": "deberta",
    "deberta_v2": "deberta_v2",
    "deberta_v3": "deberta_v3",
}
# Families whose heads are another's by name are compared once.
ALIKE = ("xlm_roberta", "deberta_v3")
CASES = [
    (family, kind)
    for family in FAMILIES
    for kind in (KINDS if family not in ALIKE else ("classify",))
    if task_form(family, kind).architecture is not None
]


def random_task(family: str, kind: str, **changes):
    architecture = task_form(family, kind).architecture
    assert architecture is not None
    named = {"id2label": LABELS} if kind in LABELLED_KINDS else {}
    changes = SMALL | named | changes
    if family == "modernbert":
        changes |= {"layer_types": None}  # as many as there are layers
    head = getattr(transformers, architecture)
    return random_model(FAMILIES[family], head=head, **changes)


def logits_of(model, batch) -> np.ndarray:
    """Returns what transformers computes, as ours is shaped."""
    inputs = torch_inputs(model, batch)
    chooses = type(model).__name__.endswith("MultipleChoice")
    if chooses:  # two rows are the choices of one question
        inputs = {name: x.reshape(ROWS // 2, 2, LENGTH) for name, x in inputs.items()}
    with torch.no_grad():
        outputs = model(**inputs)
    if chooses:
        return outputs.logits.reshape(-1).numpy()
    if "logits" in outputs:
        return outputs.logits.numpy()
    return torch.stack([outputs.start_logits, outputs.end_logits], -1).numpy()


def ours(model: TaskModel, params, batch) -> np.ndarray:
    inputs = (batch[name] for name in ("ids", "mask", "segments"))
    return np.asarray(model.apply({"params": params}, *inputs))


def difference(scores, expected, mask_BL) -> float:
    """Returns the largest difference where there are tokens."""
    assert scores.shape == expected.shape
    apart = np.abs(scores - expected)
    return apart[mask_BL].max() if apart.shape[:2] == mask_BL.shape else apart.max()


@pytest.mark.parametrize(("family", "kind"), CASES)
def test_scores_equal_pytorch_and_the_way_back_is_exact(family, kind, tmp_path):
    theirs = random_task(family, kind)
    theirs.save_pretrained(tmp_path / "theirs")
    loaded = load_task(tmp_path / "theirs")
    assert loaded.report == ()
    assert loaded.description.kind == kind
    assert loaded.config.num_layers == 1
    batch = random_batch(theirs, padded=True, rows=ROWS, length=LENGTH)
    expected = logits_of(theirs, batch)
    scores = ours(loaded.model(), loaded.params, batch)
    assert scores.dtype == np.float32
    assert difference(scores, expected, batch["mask"]) < TOLERANCE
    # The way back leaves nothing out: equal to the bit.
    export.run(tmp_path / "theirs", tmp_path / "ours")
    again, info = type(theirs).from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    np.testing.assert_array_equal(logits_of(again.eval(), batch), expected)
    if kind in LABELLED_KINDS:
        assert again.config.id2label == theirs.config.id2label
        assert again.config.label2id == {x: i for i, x in LABELS.items()}
    ours_again = load_task(tmp_path / "ours")
    assert ours_again.description == loaded.description
    assert ours_again.config == loaded.config


@pytest.mark.parametrize(
    ("family", "changes", "fields"),
    [
        ("modernbert", {"classifier_pooling": "mean"}, {"summary": "mean"}),
        (
            "modernbert",
            {"classifier_bias": True, "classifier_activation": "silu"},
            {"dense_bias": True, "activation": "silu"},
        ),
        ("xlnet", {"summary_use_proj": False}, {"hidden": "none"}),
        ("xlnet", {"summary_activation": "relu"}, {"activation": "relu"}),
        (
            "deberta_v3",
            {"pooler_hidden_act": "tanh", "pooler_dropout": 0.3, "cls_dropout": 0.4},
            {"activation": "tanh", "first_dropout_rate": 0.3, "dropout_rate": 0.4},
        ),
    ],
)
def test_other_forms_of_heads_equal_pytorch(family, changes, fields, tmp_path):
    theirs = random_task(family, "classify", **changes)
    theirs.save_pretrained(tmp_path / "theirs")
    loaded = load_task(tmp_path / "theirs")
    head = loaded.description.head
    assert {name: getattr(head, name) for name in fields} == fields
    batch = random_batch(theirs, padded=True, rows=ROWS, length=LENGTH)
    expected = logits_of(theirs, batch)
    scores = ours(loaded.model(), loaded.params, batch)
    assert difference(scores, expected, batch["mask"]) < TOLERANCE
    export.run(tmp_path / "theirs", tmp_path / "ours")
    again = type(theirs).from_pretrained(tmp_path / "ours").eval()
    np.testing.assert_array_equal(logits_of(again, batch), expected)
    assert {name: getattr(again.config, name) for name in changes} == changes


@pytest.mark.parametrize("kind", ["classify", "tag"])
def test_gradient_of_every_parameter_equals_pytorch(kind, tmp_path):
    theirs = random_task("bert", kind)
    theirs.save_pretrained(tmp_path)
    loaded = load_task(tmp_path)
    batch = random_batch(theirs, padded=True, rows=ROWS, length=LENGTH)
    labels = np.random.default_rng(1).integers(0, len(LABELS), batch["ids"].shape)
    labels = labels[:, 0] if kind == "classify" else labels
    counted = np.ones_like(labels) if kind == "classify" else batch["mask"]
    wanted = np.where(counted, labels, -100)  # what PyTorch leaves out
    theirs(**torch_inputs(theirs, batch), labels=torch.tensor(wanted)).loss.backward()

    def loss(params):
        inputs = (batch[name] for name in ("ids", "mask", "segments"))
        logits = loaded.model().apply({"params": params}, *inputs)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return jnp.sum(losses * counted) / counted.sum()

    gradients = jax.jit(jax.grad(loss))(loaded.params)
    form = task_form("bert", kind)
    named = task_params_to_hf(gradients, "bert", loaded.config, form)
    for name, tensor in theirs.named_parameters():
        np.testing.assert_allclose(
            named[name], tensor.grad.numpy(), atol=2e-6, err_msg=name
        )
