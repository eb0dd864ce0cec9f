"""Replaced-token detection: ELECTRA's joint training, and DeBERTa v3's.

Shapes: B batch, L length, P prediction slots, V vocabulary.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax

from encoderjax.data.pipeline import DataConfig
from encoderjax.errors import UserError
from encoderjax.fields import converted
from encoderjax.models.config import EncoderConfig
from encoderjax.models.dropout import DropoutKey
from encoderjax.models.encoder import Outputs
from encoderjax.models.flops import detection_flops, encoder_flops, vocabulary_flops
from encoderjax.models.heads import EncoderModel, Generator, Sharing
from encoderjax.objectives.mlm import mlm_terms
from encoderjax.objectives.objective import DeviceBatch, Objective, Terms
from encoderjax.objectives.vocabulary_loss import Draw, predicted

_WHERE = "objectives.rtd.generator"
# What both networks must agree in, since they read the same rows; and what belongs to
# the tables, and to the norm above them, that one reads from the other.
_ROWS = ("vocab_size", "max_length", "position_pad_id")
_TABLES: dict[Sharing, tuple[str, ...]] = {
    "all": (
        "embed_width",
        "num_segments",
        "positions",
        "biased_input",
        "embed_norm",
        "norm_eps",
        "norm_bias",
    ),
    "disentangled": ("embed_width",),
    "none": (),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplacedTokens(Objective):
    """Tells the tokens that a generator put in from the ones that stood there.

    The mlm objective before it masks the text for the generator; its loss, terms and
    head are the generator's. One token is drawn for every selected place, also for the
    places that were left unmasked. A draw that is the original counts as original.

    In one step both networks are updated from the weights before it. No gradient
    passes through the draw.

    Batch keys: `mlm/...` of `MaskedLM`; on the device `rtd/labels` int32 [B, L] is
    added (1 = replaced), and `ids` become the text with the draws put in. Where a place
    was selected twice, its first slot says which token it gets.

    Terms, each by real token, [CLS] and [SEP] too: `rtd_loss`, `rtd_accuracy`, and the
    shares `rtd_replaced_share` (were replaced), `rtd_flagged_share` (are said to be)
    and `rtd_found_share` (both): found / replaced is the recall, found / flagged the
    precision.

    Attributes:
      weight: 50 is ELECTRA's.
      sharing: how the two share tables; see `Generator`.
      temperature: that the generator's scores are divided by for the draw.
      generator: fields of the encoder in which the generator differs from the
        discriminator, such as `dict(width=64, num_heads=1, mlp_width=256)`.
    """

    name: ClassVar[str] = "rtd"
    heads: ClassVar[tuple[str, ...]] = ("rtd",)
    needs: ClassVar[tuple[str, ...]] = ("mlm",)
    takes_over: ClassVar[tuple[str, ...]] = ("mlm",)
    excludes: ClassVar[Mapping[str, str]] = {
        "sbo": "the discriminator's text has tokens in place of the masked spans",
        "plm": "its text is neither masked nor replaced",
        "distillation": "the discriminator has no scores of the vocabulary to compare",
    }

    weight: float = 50.0
    sharing: Sharing = "all"
    temperature: float = 1.0
    generator: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        super().__post_init__()
        if not self.temperature > 0:
            raise UserError(
                f"objectives.rtd.temperature={self.temperature} must be above 0"
            )
        changes = converted(EncoderConfig, self.generator, f"{_WHERE}.")
        object.__setattr__(self, "generator", changes)

    @classmethod
    def with_generator(
        cls, model: EncoderConfig, generator: Generator
    ) -> "ReplacedTokens":
        """Returns the objective that trains a discriminator with just this one."""
        ours, theirs = dataclasses.asdict(model), dataclasses.asdict(generator.config)
        follows = {"pooler", *(_ROWS + _TABLES[generator.sharing])}
        changes = {
            name: value
            for name, value in theirs.items()
            if value != ours[name] and name not in follows
        }
        return cls(sharing=generator.sharing, generator=changes)

    def resolved(self, data: DataConfig, model: EncoderConfig) -> "ReplacedTokens":
        """Checks the generator against the discriminator."""
        self.generator_for(model)
        return self

    def generator_for(self, model: EncoderConfig) -> Generator:
        """Returns the generator of a discriminator.

        Tables that both read are as wide as the discriminator's.
        """
        self._check_changes(model)
        changes = dict(self.generator) | {"pooler": False}
        tables = changes.get("embed_width", model.embed_width)
        if self.sharing != "none":
            tables = model.table_width
        same = tables == changes.get("width", model.width)
        changes["embed_width"] = None if same else tables
        try:
            config = dataclasses.replace(model, **changes)
        except UserError as error:
            raise UserError(f"{_WHERE}: {error}") from error
        if self.sharing == "all" and config.mask_decoder_layers and _adds_places(model):
            raise UserError(
                f"{_WHERE}.mask_decoder_layers={config.mask_decoder_layers} needs a "
                "table of positions of its own; with objectives.rtd.sharing='all' the "
                "input has one already: share 'none' or 'disentangled'"
            )
        return Generator(config=config, sharing=self.sharing)

    def _check_changes(self, model: EncoderConfig) -> None:
        """Refuses a generator, or a discriminator, that cannot be trained so."""
        if model.mask_decoder_layers:
            number = model.mask_decoder_layers
            raise UserError(
                f"model.mask_decoder_layers={number}: the discriminator predicts no "
                f"tokens; set it to 0, and {_WHERE}.mask_decoder_layers={number}"
            )
        if self.generator.get("pooler"):
            raise UserError(f"{_WHERE}.pooler=True: nothing reads it; leave it out")
        for name in (*_ROWS, *_TABLES[self.sharing]):
            value, ours = self.generator.get(name, ...), getattr(model, name)
            if value not in (..., ours):
                shared = name not in _ROWS
                why = f"objectives.rtd.sharing={self.sharing!r}" if shared else "rtd"
                raise UserError(
                    f"{_WHERE}.{name}={value!r} must be the discriminator's, {ours!r}, "
                    f"with {why}; leave it out"
                )

    # ---- device ----

    def rewrite(
        self,
        model: EncoderModel,
        batch: DeviceBatch,
        key: DropoutKey,
        dropout: DropoutKey | None,
    ) -> tuple[DeviceBatch, Terms]:
        """Puts the generator's draws into the text; returns the generator's terms."""
        outputs = model.generate(
            batch["ids"],
            batch["mask"],
            batch["segments"],
            dropout=dropout,
            documents_BL=batch.get("documents"),
            positions_BL=batch.get("positions"),
        )
        scores = model.generator_scores(outputs, batch["mlm/positions"])
        found = predicted(scores, batch["mlm/labels"], Draw(key, self.temperature))
        assert found.drawn_BP is not None
        return put_in(batch, found.drawn_BP), mlm_terms(found, batch)

    def flops(self, model: EncoderConfig, length: int, slots: int) -> float:
        """Counts the generator with its scores, and the detection."""
        generator = self.generator_for(model).config
        replacing = encoder_flops(generator, length)
        replacing += vocabulary_flops(generator, length, slots)
        return replacing + detection_flops(model, length)

    def counts(self, batch: DeviceBatch) -> Terms:
        """Counts real tokens; what was replaced is not yet known."""
        tokens = jnp.sum(_weights(batch))
        names = ("loss", "accuracy", "replaced_share", "flagged_share", "found_share")
        return {f"rtd_{name}": tokens for name in names}

    def sums(self, model: EncoderModel, outputs: Outputs, batch: DeviceBatch) -> Terms:
        """Adds up binary cross-entropy and hits over all real tokens."""
        scores_BL = model.detection_logits(outputs)
        replaced_BL, flagged_BL = batch["rtd/labels"] == 1, scores_BL > 0
        values = {
            "loss": optax.sigmoid_binary_cross_entropy(scores_BL, replaced_BL),
            "accuracy": flagged_BL == replaced_BL,
            "replaced_share": replaced_BL,
            "flagged_share": flagged_BL,
            "found_share": flagged_BL & replaced_BL,
        }
        weights_BL = _weights(batch)
        return {
            f"rtd_{name}": jnp.sum(value_BL * weights_BL)
            for name, value_BL in values.items()
        }


def _adds_places(model: EncoderConfig) -> bool:
    return model.positions == "learned" or model.biased_input


def _weights(batch: DeviceBatch) -> jax.Array:
    return batch["mask"] * batch["row_weights"][:, None]


def put_in(batch: DeviceBatch, drawn_BP: jax.Array) -> DeviceBatch:
    """Returns the batch with the draws at the selected places, and their labels.

    A row without any weight is left as it is.
    """
    positions_BP, live_BP = batch["mlm/positions"], batch["mlm/weights"] > 0
    (length,), slots = batch["ids"].shape[1:], positions_BP.shape[1]
    # The first slot of each place, by a minimum: a scatter of slots that name one
    # place twice would leave the winner to the device.
    at_BPL = live_BP[:, :, None] & (positions_BP[:, :, None] == jnp.arange(length))
    slot_P1 = jnp.arange(slots)[:, None]
    first_BL = jnp.min(jnp.where(at_BPL, slot_P1, slots), axis=1)
    selected_BL, first_BL = first_BL < slots, jnp.minimum(first_BL, slots - 1)
    drawn_BL = jnp.take_along_axis(drawn_BP, first_BL, axis=1)
    original_BL = jnp.take_along_axis(batch["mlm/labels"], first_BL, axis=1)
    replaced_BL = selected_BL & (drawn_BL != original_BL)
    ids_BL = jnp.where(selected_BL, drawn_BL.astype(jnp.int32), batch["ids"])
    return batch | {"ids": ids_BL, "rtd/labels": replaced_BL.astype(jnp.int32)}
