"""Kernels and blocks of queries compute what the plain formula computes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

from encoderjax.models import kernels
from encoderjax.models.dot_product import attend, attend_locally
from encoderjax.models.dropout import DropoutKey
from encoderjax.models.relative import key_scores, query_scores, rows_for
from encoderjax.models.sight import Sight
from encoderjax.training.mesh import MeshConfig, make_mesh
from encoderjax.training.topology import topology_devices

LENGTH = 150  # no multiple of what a kernel takes


def inputs(length: int = LENGTH, heads: int = 2, width: int = 16):
    rng = np.random.default_rng(0)
    shape = (2, length, heads, width)
    return [rng.normal(size=shape).astype(np.float32) for _ in range(3)]


def packed(length: int = LENGTH) -> tuple[np.ndarray, Sight]:
    """Returns which places are real, and rows of three documents; one has padding."""
    documents_BL = np.repeat([[1, 2, 3]], 2, axis=0).repeat(length // 3, axis=1)
    documents_BL[0, -length // 4 :] = 0
    real_BL = documents_BL > 0
    documents = jnp.asarray(documents_BL)
    return real_BL, Sight(
        keys_BM=jnp.asarray(real_BL), own_BL=documents, theirs_BM=documents
    )


def assert_equal(ours, plain, *, atol=1e-5):
    """Compares values and gradients of two functions of queries, keys and values."""

    def with_gradients(run):
        def loss(*given):
            mixed = run(*given)
            return jnp.mean(jnp.sin(mixed)) * 1000, mixed

        return jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))

    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=atol),
        with_gradients(ours)(*inputs()),
        with_gradients(plain)(*inputs()),
    )


@pytest.mark.parametrize("window", [None, 32])
def test_splash_equals_the_plain_formula(window):
    real_BL, sight = packed()

    def plain(q, k, v):
        if window is None:
            mixed = attend(q, k, v, visible=sight)
        else:
            mixed = attend_locally(
                q, k, v, mask_BL=sight.keys_BM, documents_BL=sight.own_BL, window=window
            )
        return jnp.where(real_BL[:, :, None, None], mixed, 0.0)

    assert_equal(
        lambda q, k, v: kernels.splash(q, k, v, sight, window, interpret=True), plain
    )


def test_what_cudnn_is_asked_for_equals_the_plain_formula():
    """The kernel needs a GPU; another implementation of the same call does not."""
    _, sight = packed()
    assert_equal(
        lambda q, k, v: kernels.cudnn(q, k, v, sight, "xla"),
        lambda q, k, v: attend(q, k, v, visible=sight),
    )


def test_splash_compiles_for_a_tpu_with_split_rows_and_heads():
    devices = topology_devices("v5e:2x2")
    mesh = make_mesh(MeshConfig(data=1, fsdp=2, model=2), devices)
    heads = NamedSharding(mesh, kernels._HEADS)
    rows = NamedSharding(mesh, kernels._ROWS)
    shape = jax.ShapeDtypeStruct((4, 640, 4, 64), jnp.bfloat16, sharding=heads)
    documents = jax.ShapeDtypeStruct((4, 640), jnp.int32, sharding=rows)

    def loss(q, k, v, documents):
        sight = Sight(keys_BM=documents > 0, own_BL=documents, theirs_BM=documents)
        everything = kernels.splash(q, k, v, sight)
        return jnp.sum(kernels.splash(everything, k, v, sight, 128).astype(jnp.float32))

    with jax.set_mesh(mesh):
        gradient = jax.jit(jax.grad(loss, (0, 1, 2)))
        program = gradient.lower(shape, shape, shape, documents).compile().as_text()
    assert program.count("tpu_custom_call") >= 6  # forward, queries', keys', twice
    assert "all-gather" not in program
    assert "[4,4,640,640]" not in program


@pytest.mark.parametrize(
    ("asked", "given", "taken"),
    [
        ("splash", {}, "splash"),
        ("splash", dict(local=True), "splash"),
        ("splash", dict(dropped=True), "xla"),
        ("splash", dict(chosen=True), "xla"),
        ("cudnn", {}, "cudnn"),
        ("cudnn", dict(local=True), "xla"),
        ("xla", {}, "xla"),
    ],
)
def test_a_kernel_is_taken_where_it_can_be_had(asked, given, taken):
    given = dict(local=False, dropped=False, chosen=False) | given
    long, short, odd = (
        jax.ShapeDtypeStruct((2, length, 4, 64), jnp.bfloat16)
        for length in (512, 128, 511)
    )
    assert kernels.kernel_for(asked, long, **given) == taken
    assert kernels.kernel_for(asked, short, **given) == "xla"
    if asked == "cudnn":
        assert kernels.kernel_for(asked, odd, **given) == "xla"


# ---- blocks of queries ----


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_blocks_of_queries_equal_the_whole(rate):
    """Scores by distance are made of a part of the tables; masks are the same."""
    _, sight = packed()
    rng = np.random.default_rng(1)
    tables = rng.normal(size=(2, 2 * LENGTH - 1, 2, 16)).astype(np.float32)
    key = DropoutKey.create(3, jnp.asarray(5), jnp.arange(2))

    def run(block):
        def attention(q, k, v):
            def bias(q_BCHK, first):
                by_query, by_key = (
                    rows_for(jnp.asarray(table), first, q_BCHK.shape[1], LENGTH)
                    for table in tables
                )
                scores = query_scores(q_BCHK, by_query, LENGTH)
                return 0.1 * (scores + key_scores(k, by_key))

            return attend(
                q, k, v, visible=sight, bias=bias, dropout_rate=rate, dropout=key,
                block=block,
            )  # fmt: skip

        return attention

    assert_equal(run(50), run(LENGTH), atol=1e-4)


def temporaries(length: int) -> int:
    """Returns the compiler's temporaries of attention with everything that grows."""
    table = np.zeros((2 * length - 1, 2, 8), np.float32)
    key = DropoutKey.create(3, jnp.asarray(5), jnp.arange(2))

    def loss(q, k, v, table, documents_BL):
        def bias(q_BCHK, first):
            rows = rows_for(table, first, q_BCHK.shape[1], length)
            return query_scores(q_BCHK, rows, length) + key_scores(k, rows)

        sight = Sight(
            keys_BM=documents_BL > 0, own_BL=documents_BL, theirs_BM=documents_BL
        )
        mixed = attend(q, k, v, visible=sight, bias=bias, dropout_rate=0.1, dropout=key)
        return jnp.sum(jnp.sin(mixed))

    given = (*inputs(length, 2, 8), table, np.ones((2, length), np.int32))
    program = jax.jit(jax.grad(loss, (0, 1, 2, 3))).lower(*given).compile()
    return program.memory_analysis().temp_size_in_bytes


def test_memory_of_long_rows_grows_with_the_length():
    assert temporaries(2048) < 2.2 * temporaries(1024)
