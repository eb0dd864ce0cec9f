"""The product of states and weights has jax's own gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from encoderjax.models.layers import product


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(
    ("x_shape", "weights_shape", "axes"),
    [((3, 5), (5, 4), 1), ((2, 3, 5), (5, 2, 4), 1), ((2, 3, 2, 4), (2, 4, 5), 2)],
)
def test_gradients_are_those_that_jax_derives(x_shape, weights_shape, axes, dtype):
    rng = np.random.default_rng(0)
    draw = lambda shape: jnp.asarray(rng.normal(size=shape), dtype)
    x, weights, gradients = draw(x_shape), draw(weights_shape), draw((64,))
    contracted = tuple(range(len(x_shape) - axes, len(x_shape))), tuple(range(axes))
    numbers = (contracted, ((), ()))

    def both(dot_general):
        out, pull = jax.vjp(lambda *given: dot_general(*given, numbers), x, weights)
        return out, *pull(gradients[: out.size].reshape(out.shape))

    for ours, others in zip(both(product), both(jax.lax.dot_general), strict=True):
        assert (ours.dtype, ours.shape) == (others.dtype, others.shape)
        tolerance = 1e-6 if dtype == jnp.float32 else 2e-2
        ours, others = ours.astype(jnp.float32), others.astype(jnp.float32)
        np.testing.assert_allclose(ours, others, rtol=tolerance, atol=tolerance)
