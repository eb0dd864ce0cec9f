"""Distillation against PyTorch's losses, on the tensors that the two networks make."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import NamedSharding

from encoderjax.errors import UserError
from encoderjax.models.families import preset
from encoderjax.models.heads import EncoderModel
from encoderjax.objectives import Distillation, MaskedLM
from encoderjax.objectives.distillation import cosine_distances, soft_sums
from encoderjax.objectives.objective import check_together
from encoderjax.objectives.pretrainer import Pretrainer, divide
from encoderjax.training.mesh import BATCH_SPEC, MeshConfig, make_mesh
from tests.families import random_params
from tests.training_batches import random_pretraining_batch

torch.set_num_threads(1)  # the machine is shared with jax's threads

ENCODER = dataclasses.replace(preset("bert", "tiny"), vocab_size=60, pooler=False)
STUDENT = dataclasses.replace(ENCODER, num_layers=1, num_segments=0)
OBJECTIVES = (MaskedLM(weight=2.0, max_predictions=5), Distillation(teacher="there"))


def spread(params):
    """Returns parameters whose predictions are far from uniform."""
    return jax.tree.map(lambda leaf: leaf * 2, params)


def pretrainer_of(*objectives, student=STUDENT, teacher=ENCODER, heads=("mlm",)):
    teacher_model = EncoderModel(teacher, heads)
    return Pretrainer.create(student, objectives, jnp.float32, teacher_model)


def means_of(pretrainer, params, frozen, batch):
    terms, _ = pretrainer.sums(params, {"teacher": frozen}, {}, batch, None)
    counts = pretrainer.counts(batch)
    assert set(terms) == set(counts)
    return divide(terms, counts), pretrainer.loss(terms, counts)


@pytest.fixture(scope="module")
def batch():
    """Six rows of different lengths, one of which only fills up the batch."""
    batch = random_pretraining_batch(rows=6, length=16, slots=5, vocab_size=60)
    batch["row_weights"][2] = 0.0
    batch["mlm/weights"] *= batch["row_weights"][:, None]
    assert not batch["mask"].all()
    return batch


@pytest.fixture(scope="module")
def params():
    return spread(random_params(STUDENT, "mlm"))


@pytest.fixture(scope="module")
def frozen():
    return spread(random_params(ENCODER, "mlm"))


def forward(config, params, batch):
    model = EncoderModel(config, ("mlm",))
    inputs = batch["ids"], batch["mask"], batch["segments"]
    return model.apply({"params": params}, *inputs)


@pytest.fixture(scope="module")
def tensors(batch, params, frozen):
    """Returns scores and states of student and teacher, as PyTorch has them."""

    def run(config, params):
        outputs = jax.jit(lambda params: forward(config, params, batch))(params)
        return [
            torch.tensor(np.asarray(x), dtype=torch.float64)
            for x in (outputs.logits, outputs.hidden)
        ]

    return run(STUDENT, params), run(ENCODER, frozen)


@pytest.fixture(scope="module")
def measured(batch, params, frozen):
    """Returns (total, means) of the three losses, and both networks' gradients."""
    pretrainer = pretrainer_of(*OBJECTIVES)
    loss = lambda *given: means_of(pretrainer, *given, batch)[::-1]
    run = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    return run(params, frozen)


def kl_of(student, teacher, temperature):
    """DistilBERT's loss of scores [tokens, V]."""
    divergence = torch.nn.KLDivLoss(reduction="batchmean")
    log_q = torch.log_softmax(student / temperature, dim=-1)
    p = torch.softmax(teacher / temperature, dim=-1)
    return divergence(log_q, p) * temperature**2


def cosine_of(student, teacher):
    """DistilBERT's loss of states [tokens, D]."""
    loss = torch.nn.CosineEmbeddingLoss(reduction="mean")
    return loss(student, teacher, torch.ones(len(student)))


def real_tokens(batch):
    """Returns the rows and places of what is neither padding nor a filling row."""
    return np.nonzero(batch["mask"] & (batch["row_weights"] > 0)[:, None])


def test_scores_are_compared_as_in_pytorch_over_all_real_tokens(
    batch, tensors, measured
):
    (_, means), _ = measured
    student, teacher = (scores[real_tokens(batch)] for scores, _ in tensors)
    expected = float(kl_of(student, teacher, 2.0))
    assert expected > 0.1
    assert means["distillation_soft_loss"] == pytest.approx(expected, rel=1e-5)
    agreement = float((student.argmax(-1) == teacher.argmax(-1)).double().mean())
    assert means["distillation_agreement"] == pytest.approx(agreement, abs=1e-6)


def test_states_are_compared_as_in_pytorch_over_all_real_tokens(
    batch, tensors, measured
):
    (_, means), _ = measured
    student, teacher = (states[real_tokens(batch)] for _, states in tensors)
    expected = float(cosine_of(student, teacher))
    assert means["distillation_cosine_loss"] == pytest.approx(expected, abs=1e-5)


def test_the_three_losses_add_up_with_distilberts_weights(batch, tensors, measured):
    (total, _), _ = measured
    (student, hidden), (teacher, their_hidden) = tensors
    real = real_tokens(batch)
    rows, slots = np.nonzero(batch["mlm/weights"])
    scores = student[rows, batch["mlm/positions"][rows, slots]]
    labels = torch.tensor(batch["mlm/labels"][rows, slots], dtype=torch.long)
    soft = kl_of(student[real], teacher[real], 2.0)
    mlm = torch.nn.functional.cross_entropy(scores, labels)
    cosine = cosine_of(hidden[real], their_hidden[real])
    expected = float(5 * soft + 2 * mlm + 1 * cosine)
    assert total == pytest.approx(expected, rel=1e-5)


def test_scores_can_be_compared_just_where_mlm_predicts(batch, params, frozen, tensors):
    objective = Distillation(
        teacher="there", temperature=3.5, restrict_to_selected=True
    )
    pretrainer = pretrainer_of(MaskedLM(max_predictions=5), objective)
    run = jax.jit(lambda *given: means_of(pretrainer, *given, batch)[0])
    means = run(params, frozen)
    (student, hidden), (teacher, their_hidden) = tensors
    rows, slots = np.nonzero(batch["mlm/weights"])
    selected, real = (rows, batch["mlm/positions"][rows, slots]), real_tokens(batch)
    expected = float(kl_of(student[selected], teacher[selected], 3.5))
    assert means["distillation_soft_loss"] == pytest.approx(expected, rel=1e-5)
    expected = float(cosine_of(hidden[real], their_hidden[real]))  # everywhere still
    assert means["distillation_cosine_loss"] == pytest.approx(expected, abs=1e-5)


def test_the_weight_of_the_objective_is_that_of_both_losses():
    objective = Distillation(teacher="there", weight=0.5, soft_weight=4.0)
    assert objective.loss_weights == {
        "distillation_soft_loss": 2.0,
        "distillation_cosine_loss": 0.5,
    }


# ---- gradients and memory ----


def test_no_gradient_reaches_the_teacher(measured):
    _, (ours, theirs) = measured
    assert all(leaf.any() for leaf in jax.tree.leaves(ours))
    assert not any(leaf.any() for leaf in jax.tree.leaves(theirs))


def test_the_gradient_is_that_of_scores_made_at_once(batch, params, frozen, measured):
    real_BL = batch["mask"] & (batch["row_weights"] > 0)[:, None]

    def plain(params):
        ours = forward(STUDENT, params, batch)
        theirs = forward(ENCODER, frozen, batch)
        log_p_BLV = jax.nn.log_softmax(theirs.logits / 2)
        log_q_BLV = jax.nn.log_softmax(ours.logits / 2)
        kl_BL = 4 * jnp.sum(jnp.exp(log_p_BLV) * (log_p_BLV - log_q_BLV), axis=-1)
        sizes = [jnp.linalg.norm(x.hidden, axis=-1) for x in (ours, theirs)]
        cosine_BL = jnp.sum(ours.hidden * theirs.hidden, -1) / (sizes[0] * sizes[1])
        log_p_BLV = jax.nn.log_softmax(ours.logits)
        rows, slots = np.nonzero(batch["mlm/weights"])
        places, labels = (
            batch[f"mlm/{x}"][rows, slots] for x in ("positions", "labels")
        )
        mlm = -jnp.mean(log_p_BLV[rows, places, labels])
        return jnp.mean(5 * kl_BL + 1 - cosine_BL, where=real_BL) + 2 * mlm

    _, (ours, _) = measured
    expected = jax.jit(jax.grad(plain))(params)
    for leaf, other in zip(*map(jax.tree.leaves, (ours, expected)), strict=True):
        np.testing.assert_allclose(leaf, other, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def scores():
    """Scores [B, P, V] of two networks, places in any order, and weights."""
    rng = np.random.default_rng(0)
    student, teacher = rng.normal(0, 3, (2, 3, 11, 20)).astype(np.float32)
    places = rng.permuted(np.tile(np.arange(11), (3, 1)), axis=1)[:, :7]
    return student, teacher, places, (rng.random((3, 7)) < 0.7).astype(np.float32)


def chunked(student, scores, chunk):
    _, teacher, places, weights = scores
    at = lambda x: lambda places: jnp.take_along_axis(x, places[:, :, None], axis=1)
    return soft_sums(
        at(student), at(teacher), places, weights, temperature=2.0, chunk=chunk
    )


@pytest.mark.parametrize("chunk", [1, 3, 64])
def test_chunks_change_neither_sums_nor_gradients(scores, chunk):
    run = jax.value_and_grad(lambda x: chunked(x, scores, chunk), has_aux=True)
    (soft, agreed), gradient = run(scores[0])

    student, teacher = (torch.tensor(x).double() for x in scores[:2])
    student.requires_grad_()
    rows, slots = np.nonzero(scores[3])
    places = scores[2][rows, slots]
    loss = kl_of(student[rows, places], teacher[rows, places], 2.0) * len(rows)
    loss.backward()
    assert soft == pytest.approx(float(loss.detach()), rel=1e-5)
    same = student.argmax(-1) == teacher.argmax(-1)
    assert agreed == int(same[rows, places].sum())
    assert student.grad is not None
    np.testing.assert_allclose(gradient, student.grad.numpy(), atol=1e-5)


def test_the_scores_of_all_places_never_exist_at_once():
    rows, length, width, vocab_size = 2, 512, 8, 4000
    whole = rows * length * vocab_size * 4

    def loss(x_BLD, table_VD, other_VD, chunk):
        at = lambda table_VD: (
            lambda places_BC: jnp.einsum(
                "bcd,vd->bcv",
                jnp.take_along_axis(x_BLD, places_BC[:, :, None], axis=1),
                table_VD,
            )
        )
        places = jnp.broadcast_to(jnp.arange(length), (rows, length))
        weights = jnp.ones((rows, length))
        return soft_sums(
            at(table_VD), at(other_VD), places, weights, temperature=2.0, **chunk
        )[0]

    def temporary_bytes(**chunk):
        shapes = [(rows, length, width), (vocab_size, width), (vocab_size, width)]
        arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
        gradient = jax.jit(jax.grad(lambda *x: loss(*x, chunk), argnums=(0, 1)))
        analysis = gradient.lower(*arrays).compile().memory_analysis()
        return analysis.temp_size_in_bytes

    assert temporary_bytes(chunk=length) > whole
    assert temporary_bytes() < whole


def test_cosines_of_zeros_have_a_gradient():
    x_BLD = jnp.zeros((1, 2, 4))
    gradient = jax.grad(lambda x: jnp.sum(cosine_distances(x, x_BLD)))(x_BLD)
    assert jnp.isfinite(gradient).all()


def test_the_sums_are_the_same_on_a_mesh(batch, params, frozen):
    pretrainer = pretrainer_of(*OBJECTIVES)
    batch = {name: np.concatenate([x, x[:2]]) for name, x in batch.items()}  # 8 rows
    sums = lambda batch, *given: pretrainer.sums(*given, {}, batch, None)[0]
    frozen = {"teacher": frozen}
    expected = jax.jit(sums)(batch, params, frozen)
    mesh = make_mesh(MeshConfig())
    with jax.set_mesh(mesh):
        split = jax.device_put(batch, NamedSharding(mesh, BATCH_SPEC))
        found = jax.jit(sums)(split, params, frozen)
    for name, value in expected.items():
        assert found[name] == pytest.approx(float(value), rel=1e-5), name


# ---- what is asked for, and what is refused ----


def test_without_a_soft_loss_no_head_of_the_teacher_is_read(batch, params, frozen):
    objective = Distillation(teacher="there", soft_weight=0.0)
    assert objective.teacher_heads == ()
    assert objective.loss_weights == {"distillation_cosine_loss": 1.0}
    pretrainer = pretrainer_of(objective, heads=())
    headless = {"encoder": frozen["encoder"]}
    means, _ = means_of(pretrainer, params, headless, batch)
    assert set(means) == {"distillation_cosine_loss"}
    objective.check_teacher(STUDENT, ENCODER, heads=())


def test_without_a_cosine_loss_the_widths_may_differ(batch, frozen):
    narrow = dataclasses.replace(STUDENT, width=32, num_heads=2)
    objective = Distillation(teacher="there", cosine_weight=0.0)
    objective.check_teacher(narrow, ENCODER)
    pretrainer = pretrainer_of(objective, student=narrow)
    params = random_params(narrow, "mlm")
    means, loss = means_of(pretrainer, params, frozen, batch)
    assert set(means) == {"distillation_soft_loss", "distillation_agreement"}
    assert loss == pytest.approx(5 * float(means["distillation_soft_loss"]), rel=1e-6)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"teacher": ""}, r"objectives.distillation.teacher='' names no folder; give"),
        ({"temperature": 0.0}, r"temperature=0.0 must be above 0"),
        ({"soft_weight": -1.0}, r"soft_weight=-1.0 must be at least 0"),
        ({"cosine_weight": -1.0}, r"cosine_weight=-1.0 must be at least 0"),
        ({"weight": -1.0}, r"distillation.weight=-1.0 must be at least 0"),
        ({"soft_weight": 0.0, "cosine_weight": 0.0}, r"leave nothing to learn"),
        (
            {"soft_weight": 0.0, "restrict_to_selected": True},
            r"restrict_to_selected=True has no meaning with soft_weight=0",
        ),
    ],
)
def test_fields_without_a_meaning_are_refused(fields, words):
    with pytest.raises(UserError, match=words):
        Distillation(**{"teacher": "there"} | fields)


@pytest.mark.parametrize(
    ("changes", "heads", "words"),
    [
        ({"width": 32}, ("mlm",), r"cosine_weight=1.0 .*width=128 .*32; set cosine_w"),
        (
            {"vocab_size": 61},
            ("mlm",),
            r"model.vocab_size=60 is not .*teacher=there.*6",
        ),
        ({}, ("nsp",), r"soft_weight=5.0 reads the head 'mlm', which .*=there lacks"),
        ({"positions": "two_stream"}, ("mlm",), r"soft_weight=5.0 .* query stream"),
    ],
)
def test_a_teacher_that_cannot_be_compared_with_is_refused(changes, heads, words):
    teacher = dataclasses.replace(ENCODER, **changes)
    with pytest.raises(UserError, match=words) as error:
        Distillation(teacher="there").check_teacher(STUDENT, teacher, heads)
    assert "\n" not in str(error.value)
    Distillation(teacher="there").check_teacher(STUDENT, ENCODER)


def test_only_selected_places_need_masked_lm():
    check_together([Distillation(teacher="there")])
    restricted = Distillation(teacher="there", restrict_to_selected=True)
    check_together([MaskedLM(), restricted])
    with pytest.raises(UserError, match=r"distillation.* objectives.mlm"):
        check_together([restricted])
