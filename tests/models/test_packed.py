"""Several documents in a row: none sees another, in every kind of attention."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from encoderjax.errors import UserError
from encoderjax.interop.huggingface import config_from_hf, family_of
from encoderjax.models.attention import attend_locally
from encoderjax.models.config import EncoderConfig
from encoderjax.models.encoder import Encoder
from encoderjax.models.two_stream import Streams
from tests.families import MODELS, random_params

TOLERANCE = 1e-5
# Every program runs once or twice: half the time goes to making it fast.
compiled = functools.partial(
    jax.jit, compiler_options={"xla_backend_optimization_level": 0}
)
# The lengths of three documents in each row; the rest of 31 places is padding.
LENGTHS = np.array([[12, 9, 7], [5, 17, 9]])
ROW = 31

CASES = {name: (name, {}) for name in MODELS} | {
    "relative_key": ("bert", {"positions": "relative_key"}),
    # The window of MODELS is 6: shorter than documents, and rows are cut in blocks.
    "modernbert_in_one_block": ("modernbert", {"window": 16}),
    "deberta_product": ("deberta_v3", {"score_combination": "product"}),
    "deberta_decoder": ("deberta_v2", {"mask_decoder_layers": 2}),
}
# One of each kind of attention, and the convolution.
KINDS = ["bert", "modernbert", "modernbert_in_one_block", "relative_key", "xlnet"]
KINDS += ["deberta", "deberta_v2", "deberta_product"]


def config_of(case: str) -> EncoderConfig:
    name, changes = CASES[case]
    config_json = MODELS[name][1].to_dict()
    family = family_of(config_json, name)
    config = config_from_hf(config_json, family, name, pooler=False)
    # A second layer shows what the first let through; the third adds nothing.
    return dataclasses.replace(config, num_layers=2, **changes)


@functools.cache
def encoder_of(case: str) -> tuple[Encoder, dict]:
    config = config_of(case)
    params = jax.tree.map(jnp.asarray, random_params(config)["encoder"])
    return Encoder(config), {"params": params}


def packed(config: EncoderConfig, seed: int = 0) -> dict[str, np.ndarray]:
    """Returns rows of three documents each; the second's tokens are the upper ones."""
    rng = np.random.default_rng(seed)
    place = np.arange(ROW)
    ends_BX = np.cumsum(LENGTHS, axis=1)
    number_BL = 1 + np.sum(place[None, :, None] >= ends_BX[:, None, :], axis=2)
    documents_BL = np.where(number_BL > 3, 0, number_BL)
    starts_BX = np.concatenate([0 * ends_BX[:, :1], ends_BX], axis=1)
    positions_BL = place - np.take_along_axis(starts_BX, number_BL - 1, axis=1)
    middle = config.vocab_size // 2
    ids_BL = rng.integers(5, middle, documents_BL.shape)
    ids_BL += (documents_BL == 2) * (middle - 5)
    segments = max(1, min(2, config.num_segments))
    real_BL = documents_BL > 0
    return {
        "ids": np.where(real_BL, ids_BL, config.position_pad_id or 0),
        "segments": rng.integers(0, segments, ids_BL.shape) * real_BL,
        "documents": documents_BL,
        "positions": positions_BL * real_BL,
    }


def apart(config: EncoderConfig, batch: dict) -> dict[str, np.ndarray]:
    """Returns a row for each document, in order, with padding behind."""
    shape = (LENGTHS.size, ROW)
    rows = {
        "ids": np.full(shape, config.position_pad_id or 0),
        "segments": np.zeros(shape, int),
        "mask": np.zeros(shape, bool),
    }
    for i, place in enumerate(places(batch)):
        size = len(place[1])
        rows["ids"][i, :size] = batch["ids"][place]
        rows["segments"][i, :size] = batch["segments"][place]
        rows["mask"][i, :size] = True
    return rows


def places(batch: dict) -> list[tuple[int, np.ndarray]]:
    """Returns the row and the places of each document."""
    return [
        (row, np.flatnonzero(batch["documents"][row] == number))
        for row in range(len(LENGTHS))
        for number in (1, 2, 3)
    ]


def arguments(batch: dict) -> dict:
    return {
        "segments_BL": batch["segments"],
        "documents_BL": batch["documents"],
        "positions_BL": batch["positions"],
    }


@pytest.mark.parametrize("case", CASES)
def test_a_document_among_others_is_as_if_alone(case):
    encoder, params = encoder_of(case)
    batch = packed(encoder.config)

    @compiled
    def run(params, ids_BL, mask_BL, told):
        return encoder.apply(params, ids_BL, mask_BL, layers=True, **told).layers

    rows = apart(encoder.config, batch)
    alone = {"segments_BL": rows["segments"]}
    expected = np.asarray(run(params, rows["ids"], rows["mask"], alone))
    layers = np.asarray(run(params, batch["ids"], None, arguments(batch)))
    assert np.isfinite(layers).all()
    for i, (row, place) in enumerate(places(batch)):
        difference = np.abs(layers[:, row, place] - expected[:, i, : len(place)])
        assert difference.max() < TOLERANCE

    # Another second document changes nothing of the others, to the bit.
    second_BL = batch["documents"] == 2
    other_BL = np.where(second_BL, batch["ids"][:, ::-1], batch["ids"])
    changed = np.asarray(run(params, other_BL, None, arguments(batch)))
    assert np.array_equal(changed[:, ~second_BL], layers[:, ~second_BL])
    assert np.abs(changed[-1][second_BL] - layers[-1][second_BL]).max() > 0.1


@pytest.mark.parametrize("case", KINDS)
def test_no_gradient_reaches_another_document(case):
    encoder, params = encoder_of(case)
    batch = packed(encoder.config)
    second_BL = batch["documents"] == 2

    @compiled
    def table_gradient(params, table_VE):
        def of_second(table_VE):
            own = params["params"] | {"token_embed": {"embedding": table_VE}}
            told = arguments(batch)
            out = encoder.apply({"params": own}, batch["ids"], **told)
            return jnp.sum(out.hidden**3 * second_BL[:, :, None])

        return jax.grad(of_second)(table_VE)

    table_VE = params["params"]["token_embed"]["embedding"]
    gradient = np.asarray(table_gradient(params, table_VE))
    # The second document's tokens stand in no other one.
    reached_V = np.abs(gradient).max(axis=1) > 0
    assert np.array_equal(np.flatnonzero(reached_V), np.unique(batch["ids"][second_BL]))


@pytest.mark.parametrize("case", ["xlnet", "xlnet_clamped"])
def test_orders_of_documents_are_apart_in_both_streams(case):
    """Also the first of an order, which takes the mean of what it may not see."""
    encoder, params = encoder_of(case)
    rng = np.random.default_rng(2)
    size, targets_BP = 9, np.array([[0, 8, 3, 5], [1, 2, 4, 7], [6, 5, 0, 8]])
    ids_BL, segments_BL = rng.integers(5, 99, (3, size)), rng.integers(0, 2, (3, size))
    rank_BL = np.argsort(rng.random((3, size)), axis=1)
    rank_BL[0] = (rank_BL[0] - rank_BL[0, 3]) % size  # place 3 comes first
    visible_BLL = rank_BL[:, :, None] > rank_BL[:, None, :]
    assert not visible_BLL[0, 3].any()

    @compiled
    def run(params, ids, segments, visible, targets, documents):
        streams = Streams(visible, targets, reversed_B=jnp.zeros(len(ids), bool))
        out = encoder.apply(
            params, ids, None, segments, streams=streams, documents_BL=documents
        )
        return out.hidden, out.query

    hidden, query = run(params, ids_BL, segments_BL, visible_BLL, targets_BP, None)
    visible = np.ones((1, 3 * size, 3 * size), bool)  # the documents forbid the rest
    for i in range(3):
        of_it = slice(i * size, (i + 1) * size)
        visible[0, of_it, of_it] = visible_BLL[i]
    together = run(
        params,
        ids_BL.reshape(1, -1),
        segments_BL.reshape(1, -1),
        visible,
        (targets_BP + size * np.arange(3)[:, None]).reshape(1, -1),
        np.repeat([1, 2, 3], size)[None],
    )
    for ours, expected in zip(together, (hidden, query), strict=True):
        flat = np.asarray(expected).reshape(1, -1, expected.shape[-1])
        assert np.abs(np.asarray(ours) - flat).max() < TOLERANCE


@pytest.mark.parametrize("shared", [True, False])
def test_the_mask_decoder_sees_one_document_and_its_positions(shared):
    config = dataclasses.replace(
        config_of("deberta_v3"), mask_decoder_layers=2, mask_decoder_shared=shared
    )
    encoder, params = Encoder(config), {"params": random_params(config)["encoder"]}
    batch = packed(config)
    rows = apart(config, batch)
    inside_BP = np.array([[0, 2, 4]] * LENGTHS.size)  # places in the documents
    starts_B = np.array([place[0] for _, place in places(batch)])
    places_BP = (inside_BP + starts_B[:, None]).reshape(len(LENGTHS), -1)

    @compiled
    def run(params, ids_BL, mask_BL, places_BP, told):
        decoding = encoder.apply(params, ids_BL, mask_BL, **told).decoding
        return encoder.apply(params, decoding, places_BP, method=Encoder.decode)

    told = arguments(batch)
    ours = np.asarray(run(params, batch["ids"], None, places_BP, told))
    expected = np.asarray(
        run(
            params,
            rows["ids"],
            rows["mask"],
            inside_BP,
            {"segments_BL": rows["segments"]},
        )
    )
    assert np.abs(ours.reshape(expected.shape) - expected).max() < TOLERANCE
    other = told | {"positions_BL": batch["positions"] + 1}
    wrong = np.asarray(run(params, batch["ids"], None, places_BP, other))
    assert np.abs(wrong - ours).max() > 0.1


@pytest.mark.parametrize(
    "case", ["bert", "roberta", "roberta_other_padding", "modernbert", "deberta_v2"]
)
def test_positions_as_they_are_anyway_change_nothing(case):
    encoder, params = encoder_of(case)
    rows = apart(encoder.config, packed(encoder.config))
    positions_BL = np.arange(ROW) * rows["mask"]
    run = compiled(
        lambda params, positions_BL: (
            encoder.apply(
                params, rows["ids"], rows["mask"], positions_BL=positions_BL
            ).hidden
        )
    )
    difference = np.abs(run(params, positions_BL) - run(params, None))
    assert np.asarray(difference)[rows["mask"]].max() < TOLERANCE


def test_padding_takes_the_row_of_padding():
    encoder, params = encoder_of("roberta_other_padding")
    batch = packed(encoder.config)
    embed = lambda positions_BL: encoder.apply(
        params, batch["ids"], 0 * batch["ids"], None, positions_BL, method=Encoder.embed
    )
    padding_BL = batch["documents"] == 0
    assert padding_BL.any()
    told, untold = np.asarray(embed(batch["positions"])), np.asarray(embed(None))
    assert np.array_equal(told[padding_BL], untold[padding_BL])


@pytest.mark.parametrize(("length", "window"), [(31, 6), (40, 5), (20, 10), (9, 1)])
def test_local_attention_stays_in_the_document(length, window):
    rng = np.random.default_rng(length)
    q, k, v = rng.normal(size=(3, 2, length, 2, 4)).astype(np.float32)
    documents_BL = np.sort(rng.integers(1, 4, (2, length)), axis=1)
    documents_BL[1, -3:] = 0
    mask_BL = documents_BL > 0
    ours = attend_locally(
        q, k, v, mask_BL=mask_BL, documents_BL=jnp.asarray(documents_BL), window=window
    )
    expected = np.zeros_like(q)
    for b, i, h in np.ndindex(2, length, 2):
        keys = [
            j
            for j in range(length)
            if abs(i - j) <= window // 2
            and documents_BL[b, i] == documents_BL[b, j] != 0
        ]
        if keys:
            scores = np.exp(k[b, keys, h] @ q[b, i, h] / 2)
            expected[b, i, h] = scores / scores.sum() @ v[b, keys, h]
    assert np.abs(np.asarray(ours) - expected).max() < TOLERANCE


def test_a_memory_is_refused():
    encoder, params = encoder_of("xlnet")
    batch = packed(encoder.config)
    streams = Streams(memory_NBMD=jnp.zeros((2, 2, 7, 48)))
    with pytest.raises(UserError, match="do not go with a memory"):
        encoder.apply(params, batch["ids"], streams=streams, **arguments(batch))
