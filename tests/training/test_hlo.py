"""What is read from the text of programs, against programs that are known."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from encoderjax.training.hlo import Program, global_arrays
from encoderjax.training.mesh import MeshConfig, make_mesh

ROWS, WIDTH, LAYERS = 16, 24, 3


@pytest.fixture(scope="module")
def mesh():
    return make_mesh(MeshConfig(data=2, fsdp=2, model=2))


def compiled(mesh, function, *shapes_and_specs):
    shapes = [
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))
        for shape, spec in shapes_and_specs
    ]
    with jax.set_mesh(mesh):
        return Program(jax.jit(function).lower(*shapes).compile().as_text())


def test_a_collective_in_a_loop_counts_once_for_each_turn(mesh):
    def layer(x, w):
        w = jax.lax.with_sharding_constraint(w, PartitionSpec())
        return jnp.tanh(x @ w), None

    program = compiled(
        mesh,
        lambda x, weights: jax.lax.scan(layer, x, weights)[0],
        ((ROWS, WIDTH), PartitionSpec(("data", "fsdp"))),
        ((LAYERS, WIDTH, WIDTH), PartitionSpec(None, "fsdp")),
    )
    found = program.collectives(mesh.shape)
    assert {c.kind for c in found} == {"all-gather"}
    assert {c.axes for c in found} == {("fsdp",)}
    # Each layer's weights, whether gathered in the loop or before it.
    assert sum(c.bytes for c in found) == LAYERS * WIDTH * WIDTH * 4


def test_axes_and_sizes_of_sums(mesh):
    program = compiled(
        mesh,
        lambda x, w: jnp.sum(x @ w, axis=0),
        ((ROWS, WIDTH), PartitionSpec("data", "model")),
        ((WIDTH, WIDTH), PartitionSpec("model")),
    )
    found = program.collectives(mesh.shape)
    assert {c.kind for c in found} == {"all-reduce"}
    # The compiler is free to add over one axis after the other, or over both at once.
    axes = {axis for c in found for axis in c.axes}
    assert axes == {"data", "model"}
    assert all(c.times == 1 for c in found)


def test_arrays_of_the_whole_batch_are_found(mesh):
    def states(x, whole):
        spec = PartitionSpec() if whole else PartitionSpec(("data", "fsdp"))
        x = jax.lax.with_sharding_constraint(jnp.tanh(x), spec)
        return x[::-1] * 2.0

    by_row = ((ROWS, 5, WIDTH), PartitionSpec(("data", "fsdp")))
    split, gathered = (
        compiled(mesh, lambda x, whole=whole: states(x, whole), by_row)
        for whole in (False, True)
    )
    assert not global_arrays(split, {ROWS}, {5})
    assert f"f32[{ROWS},5,{WIDTH}]" in global_arrays(gathered, {ROWS}, {5})


def test_a_collective_in_pieces_and_a_counter_without_a_note_are_understood():
    """As the compiler for TPUs writes them."""
    program = Program(_PIECES)
    (found,) = program.collectives({"data": 2, "fsdp": 4, "model": 2})
    assert (found.kind, found.axes, found.times) == ("all-gather", ("fsdp",), 24)
    assert found.bytes == 24 * 1024 * 8 * 64 * 2


def test_devices_that_are_alone_exchange_nothing():
    program = Program(_PIECES.replace("[4,4]<=[8,2]T(1,0)", "{{0},{1},{2},{3}}"))
    assert not program.collectives({"data": 4, "fsdp": 1, "model": 1})


_PIECES = """
%first (param_0: bf16[1,256,8,64]) -> bf16[1,1024,8,64] {
  %param_0 = bf16[1,256,8,64]{1,3,2,0:T(8,128)(2,1)} parameter(0)
  ROOT %all-gather.1 = bf16[1,1024,8,64]{1,3,2,0:T(8,128)(2,1)S(1)} all-gather(%param_0), channel_id=7, replica_groups=[4,4]<=[8,2]T(1,0), dimensions={1}
}

%second (param_1: bf16[1,256,8,64]) -> bf16[1,1024,8,64] {
  %param_1 = bf16[1,256,8,64]{1,3,2,0:T(8,128)(2,1)} parameter(0)
  ROOT %all-gather.2 = bf16[1,1024,8,64]{1,3,2,0:T(8,128)(2,1)S(1)} all-gather(%param_1), channel_id=7, replica_groups=[4,4]<=[8,2]T(1,0), dimensions={1}
}

%body (state: (s32[], bf16[1,256,8,64])) -> (s32[], bf16[1,256,8,64]) {
  %state = (s32[]{:T(128)}, bf16[1,256,8,64]{1,3,2,0:T(8,128)(2,1)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%state), index=0
  %w = bf16[1,256,8,64]{1,3,2,0:T(8,128)(2,1)} get-tuple-element(%state), index=1
  %fusion.1 = bf16[1,1024,8,64]{1,3,2,0:T(8,128)(2,1)} fusion(%w), kind=kCustom, calls=%first
  %fusion.2 = bf16[1,1024,8,64]{1,3,2,0:T(8,128)(2,1)} fusion(%w), kind=kCustom, calls=%second
  ROOT %tuple = (s32[]{:T(128)}, bf16[1,256,8,64]{1,3,2,0:T(8,128)(2,1)}) tuple(%i, %w)
}

%condition (state: (s32[], bf16[1,256,8,64])) -> pred[] {
  %state.1 = (s32[]{:T(128)}, bf16[1,256,8,64]{1,3,2,0:T(8,128)(2,1)}) parameter(0)
  %bound = s32[]{:T(128)} constant(24)
  %i.1 = s32[]{:T(128)} get-tuple-element(%state.1), index=0
  ROOT %lt = pred[]{:T(512)} compare(%i.1, %bound), direction=LT
}

ENTRY %main (w: bf16[1,256,8,64]) -> bf16[1,256,8,64] {
  %w.1 = bf16[1,256,8,64]{1,3,2,0:T(8,128)(2,1)} parameter(0)
  %zero = s32[]{:T(128)} constant(0)
  %start = (s32[]{:T(128)}, bf16[1,256,8,64]{1,3,2,0:T(8,128)(2,1)}) tuple(%zero, %w.1)
  %while.1 = (s32[]{:T(128)}, bf16[1,256,8,64]{1,3,2,0:T(8,128)(2,1)}) while(%start), condition=%condition, body=%body
  ROOT %out = bf16[1,256,8,64]{1,3,2,0:T(8,128)(2,1)} get-tuple-element(%while.1), index=1
}
"""  # noqa: E501
