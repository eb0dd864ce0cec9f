"""Learning rates over the steps, in the shapes that published runs used.

`t` counts finished updates: the first update is made with the rate at t = 0. (NVIDIA's
scheduler counts the update under way, and so is one step ahead.)
"""

from typing import Literal

import jax.numpy as jnp
import optax

from encoderjax.errors import UserError

Shape = Literal[
    "bert", "electra", "linear", "polynomial", "inverse_sqrt", "wsd", "constant"
]


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

    All shapes rise linearly from 0 over W = `warmup_steps`. Then, with T = `steps`:

      bert        peak (1 - t/T): decays from step 0, so it drops a little when the
                  warmup ends (google-research/bert)
      electra     the same line times the warmup: never reaches the peak
      linear      peak (T - t)/(T - W): from the peak at the end of the warmup (fairseq,
                  XLNet with end_share 0.001, NVIDIA's Adam)
      polynomial  peak (1 - t/T)^power, counted from step 0 (LAMB with power 0.5, whose
                  rate drops when the warmup ends)
      inverse_sqrt
                  peak sqrt(W/t): falls for ever, whatever T (XLM)
      wsd         constant, and over the last `decay_steps` peak (1 - sqrt(progress))
      constant    the peak

    The first four may be raised to a power (`linear` is then fairseq's
    polynomial_decay), and all that fall may end at `end_share` x peak instead of 0.
    """
    if shape == "wsd" and warmup_steps + decay_steps > steps:
        raise UserError(
            f"optimizer.warmup_steps={warmup_steps} and optimizer.decay_steps="
            f"{decay_steps} together exceed steps={steps}; shorten one of them"
        )
    if shape == "inverse_sqrt" and not warmup_steps:
        raise UserError(
            "optimizer.schedule='inverse_sqrt' needs optimizer.warmup_steps above 0: "
            "the rate falls with the square root of steps over these"
        )

    def rate(t):
        t = jnp.asarray(t, jnp.float32)
        warmup = jnp.minimum(1.0, t / warmup_steps) if warmup_steps else 1.0
        if shape == "wsd":
            progress = (t - (steps - decay_steps)) / max(1, decay_steps)
            left = 1.0 - jnp.sqrt(jnp.clip(progress, 0.0, 1.0))
        elif shape == "inverse_sqrt":
            left = jnp.sqrt(warmup_steps / jnp.maximum(t, warmup_steps))
        elif shape == "linear":
            span = max(1, steps - warmup_steps)
            left = 1.0 - jnp.clip((t - warmup_steps) / span, 0.0, 1.0)
        else:
            left = jnp.clip(1.0 - t / steps, 0.0, 1.0)
        if power != 1.0 and shape not in ("wsd", "inverse_sqrt"):
            left = left**power
        after = 1.0 if shape == "constant" else end_share + (1.0 - end_share) * left
        if shape == "electra":
            return peak * after * warmup
        return peak * jnp.where(t < warmup_steps, warmup, after)

    return rate
