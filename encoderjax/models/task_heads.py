"""Heads that answer a task's questions, and the model that is fine-tuned.

One chain covers the published heads of all families: features, a summary of the row
(where the row is judged as a whole), dropout, a dense layer, an activation, a norm,
dropout, scores. A family's rows (`TASK_HEADS` in its file) say which links it has.

Shapes: B batch, L length, D width, X width of the features, C labels, N layers.
"""

import dataclasses
import typing
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from encoderjax.command import did_you_mean
from encoderjax.errors import UserError
from encoderjax.models.compute import PLAIN, Compute
from encoderjax.models.config import Activation, EncoderConfig
from encoderjax.models.dropout import DropoutKey, drop
from encoderjax.models.encoder import Encoder, Outputs
from encoderjax.models.families import FAMILIES
from encoderjax.models.families.task_forms import Kind, TaskForm
from encoderjax.models.layers import ACTIVATIONS, dense, norm
from encoderjax.models.pooling import pool
from encoderjax.models.two_stream import Streams

KINDS: tuple[Kind, ...] = typing.get_args(Kind)
ROW_KINDS = ("classify", "choose")  # judge a row as a whole, not each of its tokens
_FIXED_LABELS = {"answer": 2, "choose": 1}  # start and end; one score
_TASK = 1 << 23  # tells the head's dropout from that of the encoder
_FIRST_SITE, _LAST_SITE = 0, 1
_LAST_FOUR = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskHead:
    """What a task's head is made of.

    Attributes:
      kind: `classify` a row, `tag` each token, `answer` by the places where a span
        starts and ends, `choose` among rows by a score each.
      num_labels: scores of a row or token; 2 for `answer`, 1 for `choose`.
      layers: the features: the `last` layer's states; those of the `last_four` side by
        side (BERT's paper, without fine-tuning); or a sum of all layers and the
        embeddings, `weighted` by a learned softmax and scaled (ELMo).
      dropout_rate: before the scores; None = the encoder's `dropout_rate`.
      first_dropout_rate: before the dense layer; None = as before the scores.
      summary: of a row: its `first` token, its `last`, or the `mean`; never padding.
      hidden: what stands before the scores: nothing, the encoder's `pooler`, or a
        `dense` layer of the head's own.
      activation: after that layer, or of the summary itself; None = none (the pooler
        has its own).
      dense_bias: whether the dense layer has a bias.
      norm: whether its output is normalised.
      init: kernels start as the encoder's do, or `scaled` as ModernBERT's: the dense
        layer's as what is added to the states, the scores' by the width.
      answer_stream: of an encoder with two streams: `content`, or `query`, which sees
        every token but its own (notes on XLNet).
    """

    kind: Kind
    num_labels: int
    layers: Literal["last", "last_four", "weighted"] = "last"
    dropout_rate: float | None = None
    first_dropout_rate: float | None = 0.0
    summary: Literal["first", "last", "mean"] = "first"
    hidden: Literal["none", "pooler", "dense"] = "none"
    activation: Activation | None = None
    dense_bias: bool = True
    norm: bool = False
    init: Literal["encoder", "scaled"] = "encoder"
    answer_stream: Literal["content", "query"] = "content"

    def __post_init__(self):
        for name, hint in typing.get_type_hints(type(self)).items():
            allowed = _choices(hint)
            if allowed and getattr(self, name) not in allowed:
                raise UserError(
                    f"head.{name}={getattr(self, name)!r} must be one of {allowed}"
                )
        for name in ("dropout_rate", "first_dropout_rate"):
            rate = getattr(self, name)
            if rate is not None and not 0.0 <= rate < 1.0:
                raise UserError(f"head.{name}={rate} must be in [0, 1), or None")
        needed = _FIXED_LABELS.get(self.kind)
        if self.num_labels < 1 or needed not in (None, self.num_labels):
            raise UserError(
                f"head.num_labels={self.num_labels} must be {needed or 'at least 1'} "
                f"for kind={self.kind!r}"
            )
        if self.hidden == "pooler" and (
            self.layers != "last" or self.summary != "first" or not self.judges_rows
        ):
            raise UserError(
                "head.hidden='pooler' reads the last layer's first token, for a row; "
                "use hidden='dense'"
            )
        if self.answer_stream == "query" and self.layers != "last":
            raise UserError(
                f"head.answer_stream='query' has the last layer only: head.layers="
                f"{self.layers!r} must be 'last'"
            )

    @property
    def judges_rows(self) -> bool:
        """Whether there are scores of a row, rather than of each token."""
        return self.kind in ROW_KINDS

    def check(self, config: EncoderConfig) -> None:
        """Refuses an encoder that has not what the head reads."""
        if self.layers == "last_four" and config.num_blocks < _LAST_FOUR:
            raise UserError(
                f"head.layers='last_four' needs at least {_LAST_FOUR} layers, the "
                f"encoder has {config.num_blocks}; use 'last' or 'weighted'"
            )
        if self.answer_stream == "query" and config.positions != "two_stream":
            raise UserError(
                "head.answer_stream='query' needs an encoder with two streams "
                f"(model.positions='two_stream'), not {config.positions!r}"
            )


def _choices(hint: Any) -> tuple:
    """Returns the values that a field may have, where its type lists them."""
    parts = typing.get_args(hint) if typing.get_origin(hint) is not Literal else (hint,)
    values = [v for part in parts for v in typing.get_args(part)]
    return (*values, *([None] if type(None) in parts and values else []))


def task_form(family: str, kind: str) -> TaskForm:
    """Returns how a family's head of a kind is made."""
    if kind not in KINDS:
        raise UserError(
            f"task.kind={kind!r} is not known{did_you_mean(kind, KINDS)} (kinds: "
            f"{', '.join(KINDS)})"
        )
    return FAMILIES[family].TASK_HEADS[kind]


def task_head(
    family: str, config: EncoderConfig, kind: Kind, num_labels: int, **changes: Any
) -> TaskHead:
    """Returns a family's published head, with some fields changed.

    The pretrained pooler knows the last layer's first token only: where something else
    is read, a dense layer of the head's own stands in its place.
    """
    if changes.get("dropout_rate", 0.0) is None:
        del changes["dropout_rate"]  # the family's own
    fields = {**task_form(family, kind).head, **changes}
    elsewhere = fields.get("layers", "last") != "last"
    elsewhere |= fields.get("summary", "first") != "first"
    if fields.get("hidden") == "pooler" and elsewhere:
        fields |= {"hidden": "dense", "activation": "tanh"}
    head = TaskHead(kind=kind, num_labels=num_labels, **fields)
    head.check(config)
    return head


def encoder_for(config: EncoderConfig, head: TaskHead) -> EncoderConfig:
    """Returns the encoder beneath a head: without what it does not read."""
    return dataclasses.replace(
        config, pooler=head.hidden == "pooler", mask_decoder_layers=0
    )


class HeadLayers(nn.Module):
    """From the encoder's outputs to scores: the parameters under `task`."""

    config: EncoderConfig
    head: TaskHead
    dtype: Any

    @nn.compact
    def __call__(
        self,
        outputs: Outputs,
        mask_BL: jax.Array | None,
        dropout: DropoutKey | None,
    ) -> jax.Array:
        """Returns float32 [B, C] or [B, L, C]."""
        c, head = self.config, self.head
        rate = c.dropout_rate if head.dropout_rate is None else head.dropout_rate
        first_rate = head.first_dropout_rate
        dropout = None if dropout is None else dropout.fold(_TASK)
        if head.hidden == "pooler":
            assert outputs.pooled is not None
            x = outputs.pooled
        else:
            x = self._features(outputs)
            if head.judges_rows:
                x = pool(x, mask_BL, head.summary).astype(x.dtype)
        x = drop(x, rate if first_rate is None else first_rate, dropout, _FIRST_SITE)
        if head.hidden == "dense":
            x = dense(
                c,
                self.dtype,
                c.width,
                use_bias=head.dense_bias,
                kernel_init=self._start(c.out_initializer),
                name="dense",
            )(x)
        if head.activation is not None:
            x = ACTIVATIONS[head.activation](x)
        if head.norm:
            x = norm(c, self.dtype, name="norm")(x)
        x = drop(x, rate, dropout, _LAST_SITE)
        by_width = jax.nn.initializers.truncated_normal(x.shape[-1] ** -0.5)
        start = self._start(by_width)
        score = dense(c, self.dtype, head.num_labels, kernel_init=start, name="score")
        return score(x).astype(jnp.float32)

    def _start(self, scaled: jax.nn.initializers.Initializer):
        return scaled if self.head.init == "scaled" else self.config.initializer

    def _features(self, outputs: Outputs) -> jax.Array:
        """Returns the states [B, L, X] that the head reads."""
        if self.head.answer_stream == "query":
            assert outputs.query is not None
            return outputs.query
        if self.head.layers == "last":
            return outputs.hidden
        layers_NBLD = outputs.layers
        assert layers_NBLD is not None
        if self.head.layers == "last_four":
            return jnp.concatenate(list(layers_NBLD[-_LAST_FOUR:]), axis=-1)
        zeros, ones = nn.initializers.zeros, nn.initializers.ones
        scores_N = self.param("layer_weights", zeros, (len(layers_NBLD),))
        scale = self.param("layer_scale", ones, (1,))
        weights_N = (scale * jax.nn.softmax(scores_N)).astype(self.dtype)
        return jnp.einsum("n,nbld->bld", weights_N, layers_NBLD)


class TaskModel(nn.Module):
    """An encoder and a task's head; parameters `encoder/...` and `task/...`.

    It computes what `transformers` does with the class of the family and task.
    """

    config: EncoderConfig
    head: TaskHead
    dtype: Any = jnp.float32
    compute: Compute = PLAIN

    def setup(self):
        """Makes the encoder, without the parts that the head does not read."""
        self.head.check(self.config)
        config = encoder_for(self.config, self.head)
        self.encoder = Encoder(config, self.dtype, self.compute)
        self.task = HeadLayers(config, self.head, self.dtype)

    def __call__(
        self,
        ids_BL: jax.Array,
        mask_BL: jax.Array | None = None,
        segments_BL: jax.Array | None = None,
        *,
        dropout: DropoutKey | None = None,
    ) -> jax.Array:
        """Returns the scores, float32; arguments as in `Encoder`.

        They are [B, C] to classify, [B, L, C] to tag, [B, L, 2] (start, end) to answer
        and [B] to choose. Places of padding have scores too.
        """
        streams = None
        if self.head.answer_stream == "query":
            length = ids_BL.shape[1]
            places_BL = jnp.broadcast_to(jnp.arange(length), ids_BL.shape)
            others_BLL = ~jnp.eye(length, dtype=bool)[None]
            streams = Streams(visible_BLL=others_BLL, targets_BP=places_BL)
        outputs = self.encoder(
            ids_BL,
            mask_BL,
            segments_BL,
            layers=self.head.layers != "last",
            dropout=dropout,
            streams=streams,
        )
        mask_BL = None if mask_BL is None else mask_BL.astype(bool)
        scores = self.task(outputs, mask_BL, dropout)
        return scores[:, 0] if self.head.kind == "choose" else scores


def init_task_params(model: TaskModel, key: jax.Array) -> dict:
    """Returns new parameters of `model`, encoder and head."""
    return dict(model.init(key, jnp.zeros((1, 2), jnp.int32))["params"])
