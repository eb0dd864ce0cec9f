import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from encoderjax.errors import UserError
from encoderjax.interop.loading import load_model
from encoderjax.models.families import preset
from encoderjax.objectives import MaskedLM, NextSentence
from encoderjax.objectives.pretrainer import Pretrainer
from encoderjax.training.hlo import Program, global_arrays
from encoderjax.training.mesh import BatchPlacement, MeshConfig, make_mesh
from encoderjax.training.optimizer import OptimizerConfig, make_optimizer
from encoderjax.training.step import (
    abstract_state,
    init_state,
    make_eval_step,
    make_train_step,
)
from tests.torch_models import random_bert, save_folder
from tests.training_batches import random_pretraining_batch

ENCODER = dataclasses.replace(preset("bert", "tiny"), vocab_size=120, num_heads=8)
OBJECTIVES = (MaskedLM(max_predictions=6), NextSentence())
ONE = MeshConfig(data=1)


def run(
    batches,
    mesh_config=ONE,
    *,
    microbatches=1,
    encoder=ENCODER,
    objectives=OBJECTIVES,
    params=None,
    dtype=jnp.float32,
    **optimizer_changes,
):
    """Trains on the batches; returns the last state and the metrics of each step."""
    sizes = dataclasses.astuple(mesh_config)
    devices = jax.devices()[: max(1, int(np.prod(sizes)))]
    mesh = make_mesh(mesh_config, devices)
    pretrainer = Pretrainer.create(encoder, objectives, dtype)
    settings = OptimizerConfig(**{"learning_rate": 1e-3} | optimizer_changes)
    optimizer, schedule = make_optimizer(settings, steps=20)
    with jax.set_mesh(mesh):
        _, shardings = abstract_state(pretrainer, optimizer, mesh)
        state = init_state(pretrainer, optimizer, shardings, 0, params)
        step = make_train_step(
            pretrainer,
            optimizer,
            schedule,
            mesh=mesh,
            shardings=shardings,
            microbatches=microbatches,
            seed=3,
        )
        history = []
        for batch in batches:
            state, metrics = step(state, placed(mesh, batch))
            history.append(jax.device_get(metrics))
    return jax.device_get(state), history


def placed(mesh, batch):
    rows = len(next(iter(batch.values())))
    return BatchPlacement(mesh, rows).put(batch)


def gradients(state):
    """Returns the gradient of the first step, from Adam's first moment."""
    (moments,) = (part for part in state.opt_state if hasattr(part, "mu"))
    return jax.tree.map(lambda m: m / (1 - 0.9), moments.mu)


BATCH = random_pretraining_batch(rows=16, length=24, slots=6, vocab_size=120)
BATCH["mlm/weights"][8:, 2:] = 0.0  # the halves count differently


@pytest.fixture(scope="module")
def reference():
    return run([BATCH], clip_norm=0.0)


@pytest.mark.parametrize(
    ("mesh", "microbatches"),
    [
        (MeshConfig(data=8), 1),
        (MeshConfig(data=1, fsdp=8), 1),
        (MeshConfig(data=1, model=8), 1),
        (MeshConfig(data=2, fsdp=2, model=2), 1),
        (MeshConfig(data=1, fsdp=4), 4),
        (ONE, 4),
    ],
    ids=["data8", "fsdp8", "model8", "2x2x2", "fsdp4_accumulated", "accumulated"],
)
def test_loss_and_gradient_do_not_depend_on_devices_and_microbatches(
    reference, mesh, microbatches
):
    """With dropout on, and different numbers of masked tokens on the devices."""
    assert len(set(BATCH["mlm/weights"].reshape(8, -1).sum(axis=1))) > 3
    state, metrics = run([BATCH], mesh, microbatches=microbatches, clip_norm=0.0)
    expected_state, expected = reference
    for name, value in expected[0].items():
        assert metrics[0][name] == pytest.approx(float(value), rel=2e-6, abs=1e-7), name
    for ours, theirs in zip(
        jax.tree.leaves(gradients(state)),
        jax.tree.leaves(gradients(expected_state)),
        strict=True,
    ):
        assert np.abs(ours - theirs).max() < 1e-6 + 1e-5 * np.abs(theirs).max()


# What each family's layers do beside BERT's: share, alternate, look at distances.
OTHERS = {
    "albert": {"num_layers": 2, "embed_width": 16, "dropout_rate": 0.1},
    "modernbert": {"num_layers": 2, "window": 8, "global_every": 2},
    "deberta_v2": {"position_buckets": 8, "max_distance": 20, "conv_width": 3},
}


@pytest.mark.parametrize("family", OTHERS)
def test_other_families_do_not_depend_on_devices_either(family):
    size = "xlarge" if family == "deberta_v2" else "base"
    small = {"vocab_size": 120, "num_layers": 1, "width": 32, "num_heads": 4}
    small |= {"mlp_width": 48, "max_length": 24}
    encoder = dataclasses.replace(preset(family, size), **small | OTHERS[family])
    alone, split = (
        run([BATCH], mesh, encoder=encoder, objectives=OBJECTIVES[:1], clip_norm=0.0)
        for mesh in (ONE, MeshConfig(data=1, fsdp=2, model=2))
    )
    for name, value in alone[1][0].items():
        assert split[1][0][name] == pytest.approx(float(value), rel=5e-6), name
    for ours, theirs in zip(
        jax.tree.leaves(gradients(split[0])),
        jax.tree.leaves(gradients(alone[0])),
        strict=True,
    ):
        assert np.abs(ours - theirs).max() < 1e-6 + 1e-5 * np.abs(theirs).max()


def test_bfloat16_computes_near_float32_and_keeps_parameters_in_it(reference):
    state, metrics = run([BATCH], clip_norm=0.0, dtype=jnp.bfloat16)
    expected = reference[1][0]
    assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == {
        np.dtype("float32")
    }
    # Eight bits of mantissa: about three digits.
    assert metrics[0]["loss"] == pytest.approx(float(expected["loss"]), rel=5e-3)
    assert metrics[0]["loss"] != expected["loss"]
    assert metrics[0]["grad_norm"] == pytest.approx(
        float(expected["grad_norm"]), rel=3e-2
    )


def test_mean_of_means_would_differ(reference):
    """The test above would not notice a mean by device if counts were equal."""
    _, expected = reference
    halves = [
        {name: value[rows] for name, value in BATCH.items()}
        for rows in (slice(0, 8), slice(8, 16))
    ]
    means = [float(run([half], clip_norm=0.0)[1][0]["mlm_loss"]) for half in halves]
    # Ten times the tolerance above.
    assert np.mean(means) != pytest.approx(float(expected[0]["mlm_loss"]), rel=1e-5)


def test_dropout_changes_with_the_step_and_is_off_in_evaluation():
    encoder = dataclasses.replace(ENCODER, dropout_rate=0.3)
    _, history = run([BATCH] * 2, encoder=encoder, learning_rate=0.0)
    assert history[0]["loss"] != history[1]["loss"]
    mesh = make_mesh(ONE, jax.devices()[:1])
    pretrainer = Pretrainer.create(encoder, OBJECTIVES, jnp.float32)
    with jax.set_mesh(mesh):
        params = pretrainer.init(jax.random.key(0))
        step = make_eval_step(pretrainer, mesh=mesh, shardings=None)
        first, second = (step(params, {}, placed(mesh, BATCH)) for _ in range(2))
    assert first[0]["mlm_loss"] == second[0]["mlm_loss"]
    assert first[0]["mlm_loss"] / first[1]["mlm_loss"] != history[0]["mlm_loss"]


def test_nothing_of_the_global_batch_is_held_in_memory():
    """No states, no scores and no dropout mask; nor a device's mask for the gradients.

    Of what devices exchange all are sums: nothing is gathered.
    """
    rows, length = 32, 40
    batch = random_pretraining_batch(rows=rows, length=length, slots=6, vocab_size=120)
    mesh = make_mesh(MeshConfig(data=8))
    pretrainer = Pretrainer.create(ENCODER, OBJECTIVES, jnp.float32)
    optimizer, schedule = make_optimizer(OptimizerConfig(learning_rate=1e-3), 10)
    with jax.set_mesh(mesh):
        _, shardings = abstract_state(pretrainer, optimizer, mesh)
        state = init_state(pretrainer, optimizer, shardings, 0)
        step = make_train_step(
            pretrainer,
            optimizer,
            schedule,
            mesh=mesh,
            shardings=shardings,
            microbatches=1,
            seed=0,
        )
        program = step.lower(state, placed(mesh, batch)).compile().as_text()
    width, heads, layers = ENCODER.width, ENCODER.num_heads, ENCODER.num_layers
    for shape in ((length, width), (heads, length, length)):
        tail = ",".join(map(str, shape))
        kept = re.findall(
            rf"(?:pred|u32|u8|s8)\[{layers},{rows // 8},{tail}\]", program
        )
        assert not kept
    read, sizes = Program(program), {length, 6}
    assert not global_arrays(read, {rows}, sizes)
    # The search finds arrays: those of a device have an eighth of the rows.
    of_device = global_arrays(read, {rows // 8}, sizes)
    assert f"f32[{rows // 8},{length},{width}]" in of_device
    assert {c.kind for c in read.collectives(mesh.shape)} == {"all-reduce"}


def torch_step(model, optimizer, batch):
    """One step of PyTorch's loss, gradient clipping and AdamW."""
    labels = np.full(batch["ids"].shape, -100)
    row, slot = np.nonzero(batch["mlm/weights"])
    labels[row, batch["mlm/positions"][row, slot]] = batch["mlm/labels"][row, slot]
    as_long = lambda x: torch.tensor(x, dtype=torch.long)
    loss = model(
        input_ids=as_long(batch["ids"]),
        attention_mask=as_long(batch["mask"]),
        token_type_ids=as_long(batch["segments"]),
        labels=as_long(labels),
        next_sentence_label=as_long(batch["second"]),
    ).loss
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return float(loss.detach())


def test_ten_steps_follow_pytorch(tmp_path):
    theirs = random_bert(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    loaded = load_model(save_folder(theirs, tmp_path))
    batches = [
        random_pretraining_batch(rows=8, length=24, slots=6, vocab_size=99, seed=seed)
        for seed in range(10)
    ]
    encoder = dataclasses.replace(
        loaded.config, dropout_rate=0.0, attention_dropout_rate=0.0
    )
    _, history = run(
        batches,
        encoder=encoder,
        params=loaded.params,
        learning_rate=3e-3,
        schedule="constant",
        eps=1e-6,
        weight_decay=0.05,
    )
    groups = [{"params": [], "weight_decay": w} for w in (0.05, 0.0)]
    for name, tensor in theirs.named_parameters():
        plain = name.endswith("bias") or "LayerNorm" in name
        groups[plain]["params"].append(tensor)
    optimizer = torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.999), eps=1e-6)
    expected = [torch_step(theirs, optimizer, batch) for batch in batches]
    ours = [float(metrics["loss"]) for metrics in history]
    assert expected[-1] < expected[0] - 0.1  # it does learn
    assert ours == pytest.approx(expected, abs=1e-4)


def test_carry_passes_through_microbatches_in_order():
    """A state that goes from step to step is split and joined like the batch."""

    class Counting(Pretrainer):
        def sums(self, params, frozen, carry, batch, dropout):
            terms, _ = super().sums(params, frozen, {}, batch, dropout)
            return terms, {"seen": carry["seen"] * 10 + batch["second"]}

    mesh = make_mesh(MeshConfig(data=2), jax.devices()[:2])
    base = Pretrainer.create(ENCODER, OBJECTIVES, jnp.float32)
    pretrainer = Counting(base.model, base.objectives)
    optimizer, schedule = make_optimizer(OptimizerConfig(learning_rate=0.0), 10)
    with jax.set_mesh(mesh):
        _, shardings = abstract_state(pretrainer, optimizer, mesh)
        state = init_state(pretrainer, optimizer, shardings, 0)
        rows = placed(mesh, {"seen": np.arange(16, dtype=np.int32)})
        state = state.replace(carry=rows)
        shardings = shardings.replace(carry={"seen": rows["seen"].sharding})
        step = make_train_step(
            pretrainer,
            optimizer,
            schedule,
            mesh=mesh,
            shardings=shardings,
            microbatches=4,
            seed=0,
        )
        state, _ = step(state, placed(mesh, BATCH))
    assert (
        state.carry["seen"].tolist() == (np.arange(16) * 10 + BATCH["second"]).tolist()
    )


def test_parameters_and_moments_are_split_over_fsdp():
    mesh = make_mesh(MeshConfig(data=1, fsdp=8))
    pretrainer = Pretrainer.create(ENCODER, OBJECTIVES, jnp.float32)
    optimizer, _ = make_optimizer(OptimizerConfig(learning_rate=0.0), 10)
    _, shardings = abstract_state(pretrainer, optimizer, mesh)
    state = init_state(pretrainer, optimizer, shardings, 0)
    for tree in (state.params, state.opt_state):
        whole = sum(leaf.nbytes for leaf in jax.tree.leaves(tree))
        on_one = sum(
            leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(tree)
        )
        assert on_one < 0.16 * whole  # an eighth, and the small ones whole


def test_rows_go_to_the_devices_of_the_mesh_in_any_order():
    """Meshes of pods follow the wiring: a permuted order of devices."""
    devices = [jax.devices()[i] for i in (3, 0, 6, 1, 7, 2, 5, 4)]
    mesh = make_mesh(MeshConfig(data=4, fsdp=2), devices)
    batch = placed(mesh, {"row": np.arange(64)})["row"]
    assert np.array_equal(batch, np.arange(64))
    for shard in batch.addressable_shards:
        assert np.array_equal(shard.data, np.arange(64)[shard.index])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"data": 3}, "mesh.data=3.*there are 8"),
        ({"data": -1, "fsdp": -1}, "only one axis"),
        ({"data": 0}, "mesh.data=0"),
    ],
)
def test_impossible_meshes_are_refused(config, message):
    with pytest.raises(UserError, match=message):
        make_mesh(MeshConfig(**config))


def test_a_vocabulary_that_cannot_be_split_is_refused_with_the_padding():
    encoder = dataclasses.replace(ENCODER, vocab_size=121)
    with pytest.raises(UserError, match=r"mesh.model=2.*model.vocab_size=122"):
        run([BATCH], MeshConfig(data=1, model=2), encoder=encoder)
