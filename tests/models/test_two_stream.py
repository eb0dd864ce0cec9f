"""XLNet's order, two streams and memory equal PyTorch's."""

import dataclasses

import jax
import numpy as np
import pytest
import torch

from encoderjax.interop.loading import load_model
from encoderjax.models.families import preset
from encoderjax.models.heads import EncoderModel
from encoderjax.models.two_stream import Streams
from tests.families import (
    LENGTH,
    random_batch,
    random_model,
    random_params,
    torch_inputs,
)

TOLERANCE = 2e-5
TARGETS = np.array([[3, 17, 30], [29, 12, 13], [30, 29, 28], [9, 8, 25]])


@pytest.fixture(scope="module")
def theirs():
    return random_model("xlnet")


@pytest.fixture(scope="module")
def run(theirs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("xlnet")
    theirs.save_pretrained(folder)
    model, params = load_model(folder).with_heads("mlm")
    apply = jax.jit(
        lambda batch, streams: model.apply(
            {"params": params},
            batch["ids"],
            batch["mask"],
            batch["segments"],
            streams=streams,
        )
    )
    return apply


def random_order(rng) -> np.ndarray:
    """Returns who may look at whom in a random factorisation order."""
    rank_BL = np.argsort(rng.random((4, LENGTH)))
    return rank_BL[:, :, None] > rank_BL[:, None, :]


def torch_streams(visible_BLL=None, targets_BP=None, memory=None) -> dict:
    inputs = {}
    if visible_BLL is not None:
        inputs["perm_mask"] = torch.tensor(~visible_BLL).float()
    if targets_BP is not None:
        mapping = np.eye(LENGTH, dtype=np.float32)[targets_BP]
        inputs["target_mapping"] = torch.tensor(mapping)
    if memory is not None:
        inputs["mems"] = memory
    return inputs


def largest(ours, theirs) -> float:
    return float(np.abs(np.asarray(ours) - theirs.detach().numpy()).max())


@pytest.mark.parametrize("padded", [True, False])
def test_both_streams_follow_the_order_and_see_the_memory(theirs, run, padded):
    rng = np.random.default_rng(3)
    memory = None
    batch = random_batch(theirs, padded=padded)
    for segment in range(3):  # the memory grows to its length of 7, and moves on
        visible_BLL = random_order(rng)
        batch["ids"] = np.where(batch["mask"], rng.integers(5, 99, (4, LENGTH)), 5)
        with torch.no_grad():
            expected = theirs(
                **torch_inputs(theirs, batch),
                **torch_streams(visible_BLL, TARGETS, memory),
                output_hidden_states=True,
            )
        carried = None
        if memory is not None:
            carried = np.stack([layer.numpy().swapaxes(0, 1) for layer in memory])
        out = run(batch, Streams(visible_BLL, TARGETS, carried))
        content, query = expected.hidden_states[-2:]
        assert largest(out.query, query) < TOLERANCE
        assert largest(out.hidden, content) < TOLERANCE
        assert largest(out.logits, expected.logits) < TOLERANCE
        memory = expected.mems
        for ours, reference in zip(out.memory, memory, strict=True):
            assert reference.shape[0] == 7
            assert largest(ours, reference.transpose(0, 1)) < TOLERANCE
        assert segment or carried is None


def test_the_first_of_an_order_sees_what_the_reference_lets_it(theirs, run):
    """All places are predicted: the first of them has nothing to look at."""
    batch = random_batch(theirs, padded=False)
    visible_BLL = random_order(np.random.default_rng(1))
    targets_BP = np.broadcast_to(np.arange(LENGTH), (4, LENGTH))
    assert not visible_BLL.any(axis=2).all()
    with torch.no_grad():
        inputs = torch_inputs(theirs, batch)
        expected = theirs(**inputs, **torch_streams(visible_BLL, targets_BP))
    out = run(batch, Streams(visible_BLL, targets_BP))
    assert largest(out.logits, expected.logits) < TOLERANCE


def test_the_query_stream_does_not_see_its_own_token(theirs, run):
    rng = np.random.default_rng(0)
    batch = random_batch(theirs, padded=False)
    visible_BLL = random_order(rng)
    streams = Streams(visible_BLL, TARGETS)
    changed = batch | {"ids": batch["ids"].copy()}
    for row in range(4):
        changed["ids"][row, TARGETS[row, 0]] = 7
    first, second = run(batch, streams), run(changed, streams)
    assert np.array_equal(first.query[:, 0], second.query[:, 0])
    rows = np.arange(4)
    content = (first.hidden[rows, TARGETS[:, 0]], second.hidden[rows, TARGETS[:, 0]])
    assert np.abs(content[0] - content[1]).max() > 100 * TOLERANCE


def test_states_that_are_reused_are_the_first_ones(tmp_path):
    theirs = random_model("xlnet", reuse_len=5)
    theirs.save_pretrained(tmp_path)
    batch = random_batch(theirs, padded=False)
    with torch.no_grad():
        expected = theirs(**torch_inputs(theirs, batch))
    model, params = load_model(tmp_path).with_heads()
    out = model.apply({"params": params}, batch["ids"], None, batch["segments"])
    assert out.memory.shape[2] == 5
    for ours, reference in zip(out.memory, expected.mems, strict=True):
        assert largest(ours, reference.transpose(0, 1)) < TOLERANCE


def test_rows_that_are_reversed_have_negative_distances(tmp_path):
    theirs = random_model("xlnet_clamped")  # the second half of a batch is reversed
    theirs.save_pretrained(tmp_path)
    batch = random_batch(theirs, padded=False)
    with torch.no_grad():
        expected = theirs(**torch_inputs(theirs, batch), output_hidden_states=True)
    model, params = load_model(tmp_path).with_heads()
    streams = Streams(reversed_B=np.array([False, False, True, True]))
    run = jax.jit(
        lambda streams: model.apply(
            {"params": params}, batch["ids"], None, batch["segments"], streams=streams
        )
    )
    assert largest(run(streams).hidden, expected.hidden_states[-1]) < TOLERANCE
    forward = run(Streams(reversed_B=np.zeros(4, bool)))
    assert largest(forward.hidden[:2], expected.hidden_states[-1][:2]) < TOLERANCE
    assert largest(forward.hidden[2:], expected.hidden_states[-1][2:]) > 1e-2


def test_filling_takes_every_text_as_it_stands():
    """Whatever its training data was: no row of a batch is taken for reversed."""
    config = dataclasses.replace(
        preset("xlnet", "base"),
        vocab_size=50,
        num_layers=1,
        width=24,
        num_heads=3,
        mlp_width=32,
        bidirectional_data=True,
    )
    model, params = EncoderModel(config, ("mlm",)), random_params(config, "mlm")
    ids_BL = np.tile(np.arange(9), (2, 1))
    inputs = (ids_BL, np.ones((2, 9), bool), np.zeros((2, 9), int))
    logits = model.apply(
        {"params": params}, *inputs, np.array([[4], [4]]), method=EncoderModel.fill
    )
    assert np.array_equal(logits[0], logits[1])
