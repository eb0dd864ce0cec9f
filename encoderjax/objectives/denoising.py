"""What the denoising objectives share: a rate, the rows they read, labels of tokens.

They stand before masked LM, in this order: deletion, insertion, reordering. Each leaves
alone what those before it did to a row, and masked LM what they moved or put in, so
that there is one right answer at every place:

  - a gap is at the place before it, whatever stands there;
  - nothing is put into a gap, which would be a substitution;
  - tokens are not moved across a gap or past what was put in;
  - masked LM selects neither moved tokens nor what was put in.

Shapes: B batch, L length.
"""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
import optax

from encoderjax.data.forms import FORMS
from encoderjax.data.pipeline import DataConfig
from encoderjax.errors import UserError
from encoderjax.models.config import EncoderConfig
from encoderjax.objectives.objective import DeviceBatch, Objective, Terms


@dataclasses.dataclass(frozen=True, kw_only=True)
class Denoising(Objective):
    """Tells what was done to the order or the number of a row's tokens.

    Attributes:
      rate: share of the text's tokens that it is done to, [CLS] and [SEP] not counted.
        That of a row is rounded up or down at random, so that the mean is exact.
    """

    excludes: ClassVar[Mapping[str, str]] = {
        "plm": "it learns the order of a text that it reads as it is",
        "rtd": "its discriminator would read noise that its labels do not tell",
    }

    rate: float = 0.1

    def __post_init__(self):
        super().__post_init__()
        if not 0.0 < self.rate <= 1.0:
            raise UserError(
                f"objectives.{self.name}.rate={self.rate} must be in (0, 1]"
            )

    def resolved(self, data: DataConfig, model: EncoderConfig) -> Objective:
        """Refuses rows whose tokens must stay at their places."""
        form = FORMS[data.form]
        if form.in_streams or form.parallel:
            why = (
                "rows are the memory of those that follow"
                if form.in_streams
                else "positions and languages are those of the text as it is"
            )
            raise UserError(
                f"objectives.{self.name} does not go with data.form={data.form!r}, "
                f"whose {why}; choose another form"
            )
        return self


def real_tokens(batch: DeviceBatch) -> jax.Array:
    """Returns the weight [B, L] of each token, special ones too."""
    return batch["mask"] * batch["row_weights"][:, None]


def binary_counts(batch: DeviceBatch, labels_BL: jax.Array, names: Mapping) -> Terms:
    """Returns the counts of `binary_sums`."""
    weights_BL = real_tokens(batch)
    positive, tokens = jnp.sum(weights_BL * labels_BL), jnp.sum(weights_BL)
    counts = {"loss": tokens, "accuracy": tokens, "share": tokens}
    counts |= {"positive": positive, "negative": tokens - positive}
    return {name: counts[kind] for kind, name in names.items()}


def binary_sums(
    batch: DeviceBatch, labels_BL: jax.Array, scores_BL: jax.Array, names: Mapping
) -> Terms:
    """Adds up binary cross-entropy and hits over all real tokens.

    All of them count, few as the positive ones are: nothing is learned from tokens that
    are left out, and the scores are those of the shares that there are. What chance
    would reach is the entropy of the `share` that is positive; of `positive` and
    `negative` tokens the hits are told apart, since one answer to all gets one of them.

    Args:
      batch: of some rows.
      labels_BL: 1 = positive.
      scores_BL: above 0 = said to be positive.
      names: kind -> name of the term.
    """
    weights_BL = real_tokens(batch)
    hits_BL = weights_BL * ((scores_BL > 0) == (labels_BL == 1))
    losses_BL = optax.sigmoid_binary_cross_entropy(scores_BL, labels_BL)
    values = {
        "loss": losses_BL * weights_BL,
        "accuracy": hits_BL,
        "share": labels_BL * weights_BL,
        "positive": hits_BL * labels_BL,
        "negative": hits_BL * (1 - labels_BL),
    }
    return {name: jnp.sum(values[kind]) for kind, name in names.items()}
