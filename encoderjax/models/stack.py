"""Layers, stacked and scanned, whatever they share and however they alternate.

One parameter tree holds the layers of every family: each part of a block has a leading
axis, as long as there are different weights of it. Blocks of one kind are scanned, and
so is a repeating pattern of kinds (ModernBERT: local, local, global); what stands
outside the pattern runs by itself.

Shapes: B batch, L length, D width, N blocks.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from encoderjax.models.attention import Attention, Context
from encoderjax.models.compute import PLAIN, Compute, Remat
from encoderjax.models.config import EncoderConfig
from encoderjax.models.disentangled import DisentangledAttention
from encoderjax.models.dropout import DropoutKey, drop
from encoderjax.models.kernels import KEPT_NAME
from encoderjax.models.layers import (
    ATTENTION_OUT_SITE,
    MLP_OUT_SITE,
    PRODUCT_NAME,
    Mlp,
    norm,
    shard_rows,
)
from encoderjax.models.two_stream import RelativeAttention

Params = dict[str, Any]

_ATTENTIONS: dict[str, Callable[..., nn.Module]] = {
    "disentangled": DisentangledAttention,
    "two_stream": RelativeAttention,
}
_PARTS = {  # which weights are shared together
    "attention": "attention",
    "attention_norm": "attention",
    "mlp": "ffn",
    "mlp_norm": "ffn",
}


class Block(nn.Module):
    """One layer: attention and feed-forward, each added to what came in.

    `local` and `first` are its kind: whether it looks through the window, and whether
    what comes in was normalised just before.
    """

    config: EncoderConfig
    dtype: Any
    local: bool = False
    first: bool = False
    compute: Compute = PLAIN

    @nn.compact
    def __call__(
        self,
        x_BLD: jax.Array,
        source_BMD: jax.Array | None,
        context: Context,
        dropout: DropoutKey | None,
    ) -> jax.Array:
        """Returns the new state of `x_BLD`, which looks at `source_BMD` or itself."""
        c = self.config
        before = c.norm_at == "before"
        if c.positions in _ATTENTIONS:
            attention = _ATTENTIONS[c.positions](c, self.dtype, name="attention")
        else:
            attention = Attention(
                c, self.dtype, self.local, self.compute, name="attention"
            )
        attention_norm = norm(c, self.dtype, name="attention_norm")
        mlp_norm = norm(c, self.dtype, name="mlp_norm")

        y_BLD = attention_norm(x_BLD) if before and not self.first else x_BLD
        source_BMD = y_BLD if source_BMD is None else source_BMD
        y_BLD = attention(y_BLD, source_BMD, context, dropout)
        x_BLD = x_BLD + drop(y_BLD, c.attention_out_rate, dropout, ATTENTION_OUT_SITE)
        x_BLD = x_BLD if before else attention_norm(x_BLD)

        y_BLD = mlp_norm(x_BLD) if before else x_BLD
        y_BLD = Mlp(c, self.dtype, name="mlp")(y_BLD, dropout)
        x_BLD = x_BLD + drop(y_BLD, c.dropout_rate, dropout, MLP_OUT_SITE)
        return shard_rows(x_BLD if before else mlp_norm(x_BLD))


def weights_of(config: EncoderConfig, part: str) -> np.ndarray:
    """Returns which entry of its stack each block takes of a part; -1 = it has none."""
    block = np.arange(config.num_blocks)
    if config.sharing in ("all", _PARTS[part]):
        layer, inner = np.divmod(block, config.inner_layers)
        # In floating point, as the reference rounds.
        group = (layer / (config.num_layers / config.layer_groups)).astype(int)
        return group * config.inner_layers + inner
    return block if part != "attention_norm" or config.first_norm else block - 1


def init_stack(
    config: EncoderConfig, dtype: Any, key: jax.Array, *inputs: Any, blocks: int = 0
) -> Params:
    """Returns new weights of the encoder's blocks, or of `blocks` unshared ones."""
    block = Block(config, dtype, parent=None)
    one = lambda key: dict(block.init(key, *inputs)["params"])
    parts = jax.eval_shape(one, key)

    def stacked(part: str) -> Any:
        count = blocks or int(weights_of(config, part).max()) + 1
        # The compiler leaves out what is not returned.
        return jax.vmap(lambda key: one(key)[part])(jax.random.split(key, count))

    return {part: stacked(part) for part in parts}


def apply_block(
    config: EncoderConfig,
    dtype: Any,
    params: Params,
    number: int | jax.Array,
    *inputs: Any,
    dropout: DropoutKey | None,
    kind: int,
    compute: Compute = PLAIN,
) -> jax.Array:
    """Runs one block; `number` tells its dropout apart, `kind` is a block alike."""
    block = Block(
        config,
        dtype,
        local=not config.sees_all(kind),
        first=kind == 0 and not config.first_norm,
        compute=compute,
        parent=None,
    )
    key = None if dropout is None else dropout.fold(number)
    return block.apply({"params": params}, *inputs, key)  # pyright: ignore


def rematerialised(
    function: Callable, remat: Remat, number: int | jax.Array
) -> Callable:
    """Returns a function of the same, of which less is kept for the gradients.

    Args:
      function: of arrays, but for its argument 4, the `kind` of block `number`.
      remat: what is kept beside what goes in.
      number: an array in a scan.
    """
    if remat == "none":
        return function
    policy = None
    if remat == "dots":
        # What a product of states with weights gives, and so no scores; and what a
        # kernel that never held them needs for its gradients.
        policy = jax.checkpoint_policies.save_only_these_names(PRODUCT_NAME, KEPT_NAME)
    # A scan already keeps the compiler from merging the two makings.
    alone = isinstance(number, int)
    return jax.checkpoint(
        function, policy=policy, prevent_cse=alone, static_argnums=(4,)
    )


@dataclasses.dataclass(frozen=True)
class Stack:
    """The weights of all blocks, and the order in which they are used.

    Attributes:
      unrolled: up to how many blocks the loop over them is written out.
    """

    config: EncoderConfig
    params: Params
    unrolled: int = 1

    def at(self, block: int) -> Params:
        """Returns the weights of one block."""
        index = {part: weights_of(self.config, part)[block] for part in self.params}
        return {
            part: jax.tree.map(lambda leaf, i=i: leaf[i], self.params[part])
            for part, i in index.items()
            if i >= 0
        }

    @property
    def _pattern(self) -> tuple[int, int, int]:
        """Returns how many blocks stand before the pattern, its length, its repeats."""
        c = self.config
        before = 0 if c.first_norm and not c.conv_width else 1
        length = 1 if c.window is None else c.global_every
        return before, length, (c.num_blocks - before) // length

    def run(self, step: Callable, state: Any, inputs_N: Any) -> tuple[Any, Any]:
        """Runs `state, output = step(state, params, number, kind, input)` N times.

        Args:
          step: `number` is the block's, an array in a scan; `kind` is the number of a
            block of the same kind, always known.
          state: what passes from block to block.
          inputs_N: what each block is given, with a leading axis; None for nothing.

        Returns the last state, and the outputs with a leading axis.
        """
        before, length, repeats = self._pattern
        after = before + repeats * length
        outputs = []

        def alone(state, number):
            given = jax.tree.map(lambda x: x[number], inputs_N)
            state, output = step(state, self.at(number), number, number, given)
            outputs.append(jax.tree.map(lambda x: x[None], output))
            return state

        for number in range(before):
            state = alone(state, number)
        if repeats:
            state, output = self._scan(step, state, inputs_N)
            outputs.append(output)
        for number in range(after, self.config.num_blocks):
            state = alone(state, number)
        return state, jax.tree.map(lambda *x: jnp.concatenate(x), *outputs)

    def _scan(self, step: Callable, state: Any, inputs_N: Any) -> tuple[Any, Any]:
        before, length, repeats = self._pattern
        blocks = slice(before, before + repeats * length)
        index = {part: weights_of(self.config, part)[blocks] for part in self.params}
        # A part whose entries follow one another is scanned; others are looked up.
        own = {part: i for part, i in index.items() if np.all(np.diff(i) == 1)}
        looked_up = {part: i for part, i in index.items() if part not in own}

        def repeat(state, given):
            outputs = []
            for k, (number, params, indices, inputs) in enumerate(given):
                shared = {p: _entry(self.params[p], i) for p, i in indices.items()}
                state, output = step(state, params | shared, number, before + k, inputs)
                outputs.append(output)
            return state, tuple(outputs)

        given = (
            np.arange(before, blocks.stop),
            {part: _entries(self.params[part], i[0], i[-1]) for part, i in own.items()},
            looked_up,
            _entries(inputs_N, before, blocks.stop - 1),
        )
        # What is scanned as it is need not be kept a second time for the gradients.
        every = lambda k: jax.tree.map(
            lambda x: x if length == 1 else x[k::length], given
        )
        unroll = repeats if repeats * length <= self.unrolled else 1
        state, outputs = jax.lax.scan(
            repeat, state, tuple(map(every, range(length))), unroll=unroll
        )
        in_order = lambda *x: jnp.stack(x, axis=1).reshape(-1, *x[0].shape[1:])
        return state, jax.tree.map(in_order, *outputs)


def _entry(tree: Any, index: Any) -> Any:
    """Returns one entry of stacked arrays; of a single one without a lookup."""
    return jax.tree.map(lambda leaf: leaf[0 if len(leaf) == 1 else index], tree)


def _entries(tree: Any, first: int, last: int) -> Any:
    """Returns a run of entries; all of them without a copy."""
    whole = lambda leaf: first == 0 and last == len(leaf) - 1
    cut = lambda leaf: leaf if whole(leaf) else leaf[first : last + 1]
    return jax.tree.map(cut, tree)
