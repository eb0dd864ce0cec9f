"""Learning rates over the steps, in the shapes that published runs used.

`t` counts finished updates: the first update is made with the rate at t = 0.
"""

from typing import Literal

import jax.numpy as jnp
import optax

Shape = Literal["bert", "electra", "linear", "polynomial", "wsd", "constant"]


def learning_rate_schedule(
    shape: Shape,
    *,
    peak: float,
    steps: int,
    warmup_steps: int,
    end_share: float = 0.0,
    power: float = 1.0,
    decay_steps: int = 0,
) -> optax.Schedule:
    """Returns the rate as a function of t.

    All shapes rise linearly from 0 over `warmup_steps`. Then, with T = `steps`:

      bert        peak (1 - t/T): decays from step 0, so it drops a little when the
                  warmup ends (google-research/bert)
      electra     the same line times the warmup: never reaches the peak
      linear      from the peak at the end of the warmup down to end_share x peak
                  (fairseq, XLNet with end_share 0.001)
      polynomial  peak (1 - t/T)^power, counted from step 0 (LAMB with power 0.5)
      wsd         constant, and over the last `decay_steps` peak (1 - sqrt(progress))
      constant    the peak
    """

    def rate(t):
        t = jnp.asarray(t, jnp.float32)
        warmup = jnp.minimum(1.0, t / warmup_steps) if warmup_steps else 1.0
        left = jnp.clip(1.0 - t / steps, 0.0, 1.0)
        if shape == "electra":
            return peak * left * warmup
        if shape == "bert":
            after = left
        elif shape == "polynomial":
            after = left**power
        elif shape == "linear":
            span = max(1, steps - warmup_steps)
            share = jnp.clip((t - warmup_steps) / span, 0.0, 1.0)
            after = 1.0 - (1.0 - end_share) * share
        elif shape == "wsd":
            progress = (t - (steps - decay_steps)) / max(1, decay_steps)
            after = 1.0 - jnp.sqrt(jnp.clip(progress, 0.0, 1.0))
        else:
            after = 1.0
        return peak * jnp.where(t < warmup_steps, warmup, after)

    return rate
