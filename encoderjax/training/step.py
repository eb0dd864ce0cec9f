"""The train state and the jitted, sharded step: what pjit is called today.

The loss is a sum of weight x sum / count, where the counts are those of the global
batch. They are taken before the microbatches are looped over, so gradients simply
add up, whatever part of the masked tokens a device or a microbatch holds.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from encoderjax.models.dropout import DropoutKey
from encoderjax.objectives.objective import DeviceBatch, Terms
from encoderjax.objectives.pretrainer import divide
from encoderjax.training.mesh import BATCH_SPEC, parameter_shardings

PyTree = Any


class Trainee(Protocol):
    """What is trained: pure functions of parameters and a batch."""

    def init(self, key: jax.Array) -> PyTree:
        """Returns new parameters."""
        ...

    def init_carry(self, rows: int) -> PyTree:
        """Returns what the first step is handed beside the parameters."""
        ...

    def counts(self, batch: DeviceBatch) -> Terms:
        """Returns what each term is divided by, over the whole batch given."""
        ...

    def sums(
        self,
        params: PyTree,
        frozen: PyTree,
        carry: PyTree,
        batch: DeviceBatch,
        dropout: DropoutKey | None,
    ) -> tuple[Terms, PyTree]:
        """Runs the model once; returns the summed terms and the next carry."""
        ...

    def loss(self, terms: Terms, counts: Terms) -> jax.Array:
        """Returns the loss of terms and what they are divided by."""
        ...


@struct.dataclass
class TrainState:
    """All that a step changes or needs.

    Attributes:
      step: finished updates.
      carry: what passes from step to step beside the parameters, one entry a row of
        the batch on its first axis (a memory of earlier text); empty for BERT.
      frozen: parameters that are used but not trained (a teacher); not saved.
    """

    step: jax.Array
    params: PyTree
    opt_state: PyTree
    carry: PyTree
    frozen: PyTree


def abstract_state(
    trainee: Trainee,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    *,
    rows: int = 0,
    frozen: PyTree = None,
) -> tuple[TrainState, TrainState]:
    """Returns the shapes and the shardings of a state; nothing is allocated.

    Args:
      rows: of a batch, for what is carried from step to step.
      frozen: parameters that are used but not trained, or their shapes.
    """
    shapes = jax.eval_shape(
        lambda frozen: _new_state(
            # A key within: the mesh may be of devices that are not there.
            trainee.init(jax.random.key(0)),
            optimizer,
            trainee.init_carry(rows),
            frozen,
        ),
        frozen or {},
    )
    by_row = NamedSharding(mesh, BATCH_SPEC)
    whole: Any = NamedSharding(mesh, PartitionSpec())
    shardings = TrainState(
        step=whole,
        params=parameter_shardings(mesh, shapes.params),
        opt_state=parameter_shardings(mesh, shapes.opt_state),
        carry=jax.tree.map(lambda leaf: by_row, shapes.carry),
        frozen=parameter_shardings(mesh, shapes.frozen),
    )
    return shapes, shardings


def init_state(
    trainee: Trainee,
    optimizer: optax.GradientTransformation,
    shardings: TrainState,
    seed: int,
    params: PyTree | None = None,
    *,
    rows: int = 0,
    frozen: PyTree = None,
) -> TrainState:
    """Returns the first state, with new parameters or those given.

    It is made by a jitted function and never lies whole on one device.
    """
    frozen = jax.device_put(frozen or {}, shardings.frozen)
    new = lambda params, frozen: _new_state(
        params, optimizer, trainee.init_carry(rows), frozen
    )
    if params is None:
        create = jax.jit(
            lambda key, frozen: new(trainee.init(key), frozen),
            out_shardings=shardings,
        )
        return create(jax.random.key(seed), frozen)
    create = jax.jit(new, out_shardings=shardings)
    return create(jax.device_put(params, shardings.params), frozen)


def _new_state(
    params: PyTree, optimizer: optax.GradientTransformation, carry, frozen
) -> TrainState:
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        opt_state=optimizer.init(params),
        carry=carry,
        frozen=frozen,
    )


def make_train_step(
    trainee: Trainee,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    *,
    mesh: Mesh,
    shardings: TrainState,
    microbatches: int,
    seed: int,
) -> Callable[[TrainState, DeviceBatch], tuple[TrainState, Terms]]:
    """Returns the jitted (state, batch) -> (state, metrics); it donates the state."""

    def gradients_of(
        state: TrainState, part: DeviceBatch, carry: PyTree, counts: Terms
    ):
        dropout = DropoutKey.create(seed, state.step, part["row"])

        def loss_of(params: PyTree):
            terms, carried = trainee.sums(params, state.frozen, carry, part, dropout)
            return trainee.loss(terms, counts), (terms, carried)

        (_, (terms, carried)), gradients = jax.value_and_grad(loss_of, has_aux=True)(
            state.params
        )
        return gradients, terms, carried

    def train_step(state: TrainState, batch: DeviceBatch) -> tuple[TrainState, Terms]:
        counts = trainee.counts(batch)
        if microbatches == 1:
            gradients, terms, carry = gradients_of(state, batch, state.carry, counts)
        else:
            gradients, terms, carry = _accumulate(
                lambda part, carry: gradients_of(state, part, carry, counts),
                _split(batch, microbatches),
                _split(state.carry, microbatches),
            )
            carry = _join(carry)
        updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        metrics = {
            "loss": trainee.loss(terms, counts),
            **divide(terms, counts),
            "learning_rate": jnp.asarray(schedule(state.step), jnp.float32),
            "grad_norm": optax.tree.norm(gradients),
            # Of the parameters after the update: what a checkpoint would hold.
            "param_norm": optax.tree.norm(params),
        }
        state = dataclasses.replace(
            state,
            step=state.step + 1,
            params=params,
            opt_state=opt_state,
            carry=carry,
        )
        return state, metrics

    return jax.jit(
        train_step,
        donate_argnums=0,
        in_shardings=(shardings, NamedSharding(mesh, BATCH_SPEC)),
        out_shardings=(shardings, NamedSharding(mesh, PartitionSpec())),
    )


def _accumulate(gradients_of: Callable, parts: DeviceBatch, carries: PyTree):
    """Adds gradients and terms over the leading axis of `parts`."""

    def body(total, part_and_carry):
        gradients, terms, carried = gradients_of(*part_and_carry)
        return jax.tree.map(jnp.add, total, (gradients, terms)), carried

    first = jax.tree.map(lambda x: x[0], (parts, carries))
    shapes = jax.eval_shape(lambda part, carry: gradients_of(part, carry)[:2], *first)
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    (gradients, terms), carried = jax.lax.scan(body, zeros, (parts, carries))
    return gradients, terms, carried


def _split(tree: PyTree, parts: int) -> PyTree:
    """Splits the batch axis into [parts, rows]; row r goes to part r mod parts.

    That way each device keeps its own rows: nothing moves between them.
    """
    return jax.tree.map(
        lambda x: x.reshape(x.shape[0] // parts, parts, *x.shape[1:]).swapaxes(0, 1),
        tree,
    )


def _join(tree: PyTree) -> PyTree:
    """Undoes `_split`."""
    return jax.tree.map(
        lambda x: x.swapaxes(0, 1).reshape(x.shape[0] * x.shape[1], *x.shape[2:]), tree
    )


def make_eval_step(
    trainee: Trainee, *, mesh: Mesh, shardings: PyTree, frozen: PyTree = None
) -> Callable[[PyTree, PyTree, DeviceBatch], tuple[Terms, Terms]]:
    """Returns the jitted (params, frozen, batch) -> (sums, counts).

    Nothing is dropped, and no memory is carried: every row stands alone.

    Args:
      shardings: of the parameters.
      frozen: the shardings of those that are not trained.
    """

    def eval_step(
        params: PyTree, frozen: PyTree, batch: DeviceBatch
    ) -> tuple[Terms, Terms]:
        terms, _ = trainee.sums(params, frozen, {}, batch, None)
        return terms, trainee.counts(batch)

    return jax.jit(
        eval_step,
        in_shardings=(shardings, frozen or {}, NamedSharding(mesh, BATCH_SPEC)),
        out_shardings=NamedSharding(mesh, PartitionSpec()),
    )
