"""The loss in chunks of the vocabulary is the loss of all of it."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from encoderjax.models.dropout import DropoutKey
from encoderjax.models.heads import states_at
from encoderjax.models.vocabulary import VocabularyScores
from encoderjax.objectives.vocabulary_loss import Draw, predicted
from encoderjax.training.mesh import BATCH_SPEC, MeshConfig, make_mesh

ROWS, SLOTS, WIDTH, VOCABULARY = 8, 5, 12, 46
WEIGHTS = np.random.default_rng(7).random((ROWS, SLOTS)).astype(np.float32)


def factors():
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)
    return draw(ROWS, SLOTS, WIDTH), draw(VOCABULARY, WIDTH), draw(VOCABULARY)


def labels() -> np.ndarray:
    x_BPE, table_VE, bias_V = factors()
    best_BP = np.argmax(x_BPE @ table_VE.T + bias_V, axis=-1)
    labels_BP = np.random.default_rng(1).integers(0, VOCABULARY, (ROWS, SLOTS))
    labels_BP[::2] = best_BP[::2]  # some are hit
    return labels_BP


def make_loss(columns: int | None, with_bias: bool = True):
    def loss(x_BPE, table_VE, bias_V):
        scores = VocabularyScores(x_BPE, table_VE, bias_V if with_bias else None)
        key = DropoutKey.create(0, jnp.asarray(1), jnp.arange(ROWS) + 100)
        found = predicted(scores, labels(), Draw(key, 1.7), columns=columns)
        return jnp.sum(found.loss_BP * WEIGHTS), found

    return jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))


def assert_close(ours, others):
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5),
        ours,
        others,
    )


@pytest.mark.parametrize("with_bias", [True, False])
def test_chunks_give_the_loss_the_gradients_and_the_draws_of_the_whole(with_bias):
    """The last chunk of 16 out of 46 begins earlier than where the third ends."""
    whole = make_loss(None, with_bias)(*factors())
    found = whole[0][1]
    logits_BPV = VocabularyScores(*factors()[: 2 + with_bias]).whole()
    expected = optax.softmax_cross_entropy_with_integer_labels(logits_BPV, labels())
    np.testing.assert_allclose(found.loss_BP, expected, rtol=1e-6)
    assert len(np.unique(found.drawn_BP)) > 10
    if with_bias:
        assert 0 < found.hit_BP.mean() < 1
    assert_close(make_loss(16, with_bias)(*factors()), whole)


def test_a_split_vocabulary_is_scored_where_it_lies():
    """Rows, columns and tokens of the table are split; no scores pass, or are whole."""
    alone = make_loss(16)(*factors())
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, model=2), jax.devices()[:8])
    specs = (BATCH_SPEC, PartitionSpec("model", "fsdp"), PartitionSpec("model"))
    given = [
        jax.device_put(x, NamedSharding(mesh, spec))
        for x, spec in zip(factors(), specs, strict=True)
    ]
    with jax.set_mesh(mesh):
        program = make_loss(16).lower(*given).compile()
        assert_close(program(*given), alone)
    text = program.as_text()
    # What passes: columns of the half of the table that a device scores.
    gathered = re.findall(r"= \w+\[([\d,]*)\]\S* all-gather", text)
    assert set(gathered) <= {f"{VOCABULARY // 2},{WIDTH}", f"{WIDTH},{VOCABULARY // 2}"}
    assert not re.search(rf"\[[\d,]*\b{VOCABULARY}\b", text)


def temporaries(length: int, vocabulary: int) -> int:
    """Returns the compiler's temporaries of head and loss at chosen places."""
    places_BP = np.zeros((4, 64), np.int32)

    def loss(hidden_BLD, table_VE):
        scores = VocabularyScores(states_at(hidden_BLD, places_BP), table_VE)
        return jnp.sum(predicted(scores, places_BP).loss_BP)

    shapes = [(4, length, 16), (vocabulary, 16)]
    given = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    program = jax.jit(jax.grad(loss, (0, 1))).lower(*given).compile()
    return program.memory_analysis().temp_size_in_bytes


def test_memory_grows_neither_with_the_vocabulary_nor_with_the_length():
    least = temporaries(128, 1 << 16)
    assert least < 4 * 64 * (1 << 16) * 4 / 10  # a tenth of the scores
    assert temporaries(128, 1 << 17) < 1.1 * least
    assert temporaries(512, 1 << 16) < 1.1 * least
