"""Distillation: a student learns from what its teacher makes of the same text.

Shapes: B batch, L length, P places, C places of a chunk, D width, V vocabulary.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from encoderjax.errors import UserError
from encoderjax.models.config import EncoderConfig
from encoderjax.models.encoder import Outputs
from encoderjax.models.flops import vocabulary_flops
from encoderjax.models.heads import EncoderModel
from encoderjax.objectives.objective import DeviceBatch, Objective, Terms
from encoderjax.objectives.teacher import Teacher

Scores = Callable[[jax.Array], jax.Array]  # places [B, C] -> [B, C, V]

_CHUNK = 64  # places of a row whose scores exist at once
_SOFT, _COSINE = "distillation_soft_loss", "distillation_cosine_loss"
_AGREEMENT = "distillation_agreement"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distillation(Objective):
    """DistilBERT's two losses beside masked LM: the teacher's scores and its states.

    Both networks read the masked text, and are compared at every real token. The third
    loss is objectives.mlm. Metrics: both losses, and the share of places at which the
    two would predict the same token.

    Attributes:
      weight: of both losses, times their own.
      teacher: its folder: a workdir, an export or one of Hugging Face's.
      temperature: what scores are divided by before they become probabilities.
      soft_weight: of the divergence of the teacher's probabilities from the student's,
        times the squared temperature; 0 = not computed, and no vocabulary head read.
      cosine_weight: of one minus the cosine between the last states of both; 0 = not
        computed, and the widths may differ.
      restrict_to_selected: whether scores are compared only where mlm predicts.
    """

    name: ClassVar[str] = "distillation"
    heads: ClassVar[tuple[str, ...]] = ("mlm",)
    excludes: ClassVar[Mapping[str, str]] = {
        "plm": "its query stream predicts from less of the text than a teacher reads",
        "rtd": "its discriminator has no scores of the vocabulary",
    }

    teacher: str = ""
    temperature: float = 2.0
    soft_weight: float = 5.0
    cosine_weight: float = 1.0
    restrict_to_selected: bool = False

    def __post_init__(self):
        super().__post_init__()
        where = f"objectives.{self.name}"
        if not self.teacher:
            raise UserError(
                f"{where}.teacher={self.teacher!r} names no folder; give a workdir, an "
                "export or a folder of Hugging Face"
            )
        if self.temperature <= 0:
            raise UserError(f"{where}.temperature={self.temperature} must be above 0")
        for name in ("soft_weight", "cosine_weight"):
            if getattr(self, name) < 0:
                raise UserError(
                    f"{where}.{name}={getattr(self, name)} must be at least 0"
                )
        if not (self.soft_weight or self.cosine_weight):
            raise UserError(
                f"{where}.soft_weight=0 and {where}.cosine_weight=0 leave nothing to "
                "learn from the teacher; set one above 0, or leave the objective out"
            )
        if self.restrict_to_selected and not self.soft_weight:
            raise UserError(
                f"{where}.restrict_to_selected=True has no meaning with soft_weight=0; "
                "leave it out"
            )

    # A property in place of the class's tuple: only one setting needs anything.
    @property
    def needs(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The objectives that must stand before this one."""
        return ("mlm",) if self.restrict_to_selected else ()

    @property
    def loss_weights(self) -> dict[str, float]:
        """Returns the weight of each term that enters the loss."""
        weights = {_SOFT: self.soft_weight, _COSINE: self.cosine_weight}
        return {name: self.weight * value for name, value in weights.items() if value}

    @property
    def teacher_heads(self) -> tuple[str, ...]:
        """The heads of the teacher that are read."""
        return ("mlm",) if self.soft_weight else ()

    def check_teacher(
        self,
        student: EncoderConfig,
        teacher: EncoderConfig,
        heads: tuple[str, ...] = ("mlm",),
    ) -> None:
        """Refuses a teacher that the student cannot be compared with.

        Args:
          student, teacher: their encoders.
          heads: that the teacher has.
        """
        where = f"objectives.{self.name}"
        named = f"{where}.teacher={self.teacher}"
        if student.vocab_size != teacher.vocab_size:
            raise UserError(
                f"model.vocab_size={student.vocab_size} is not that of {named}, "
                f"{teacher.vocab_size}: both read the same tokens; set it to that, on "
                "a corpus prepared with the teacher's tokenizer"
            )
        if self.cosine_weight and student.width != teacher.width:
            raise UserError(
                f"{where}.cosine_weight={self.cosine_weight} compares states of one "
                f"width, but model.width={student.width} and {named} has "
                f"{teacher.width}; set cosine_weight=0"
            )
        for head in self.teacher_heads:
            if head not in heads:
                raise UserError(
                    f"{where}.soft_weight={self.soft_weight} reads the head {head!r}, "
                    f"which {named} lacks; name a teacher that has it, or set "
                    "soft_weight=0"
                )
        if self.soft_weight and teacher.positions == "two_stream":
            raise UserError(
                f"{where}.soft_weight={self.soft_weight} needs scores of all places at "
                f"once, but {named} predicts through a query stream, which must not "
                "see what it predicts; name another teacher, or set soft_weight=0"
            )

    def counts(self, batch: DeviceBatch) -> Terms:
        """Counts the places at which each is compared."""
        terms: Terms = {}
        if self.soft_weight:
            _, weights_BP = self._places(batch)
            terms[_SOFT] = terms[_AGREEMENT] = jnp.sum(weights_BP)
        if self.cosine_weight:
            terms[_COSINE] = jnp.sum(_token_weights(batch))
        return terms

    def flops(self, model: EncoderConfig, length: int, slots: int) -> float:
        """Counts the scores that are compared, of one of the two networks."""
        if not self.soft_weight:
            return 0.0
        places = slots if self.restrict_to_selected else length
        return vocabulary_flops(model, length, places)

    def compared(
        self,
        model: EncoderModel,
        outputs: Outputs,
        batch: DeviceBatch,
        teacher: Teacher,
    ) -> Terms:
        """Adds up divergences, agreements and distances."""
        theirs = teacher.outputs(batch)
        terms: Terms = {}
        if self.soft_weight:
            terms[_SOFT], terms[_AGREEMENT] = soft_sums(
                _scores_of(model, outputs),
                lambda places_BC: teacher.mlm_logits(theirs, places_BC),
                *self._places(batch),
                temperature=self.temperature,
            )
        if self.cosine_weight:
            distances_BL = cosine_distances(outputs.hidden, theirs.hidden)
            terms[_COSINE] = jnp.sum(distances_BL * _token_weights(batch))
        return terms

    def _places(self, batch: DeviceBatch) -> tuple[jax.Array, jax.Array]:
        """Returns where scores are compared, and with which weights, both [B, P]."""
        if self.restrict_to_selected:
            return batch["mlm/positions"], batch["mlm/weights"]
        weights_BL = _token_weights(batch)
        places_L = jnp.arange(weights_BL.shape[1])
        return jnp.broadcast_to(places_L, weights_BL.shape), weights_BL


def _scores_of(model: EncoderModel, outputs: Outputs) -> Scores:
    """Returns a function of the places, which may stand in a scan.

    The model is bound to its parameters, and so it may not.
    """
    unbound, variables = model.unbind()

    def scores(places_BC: jax.Array) -> jax.Array:
        method = EncoderModel.mlm_logits
        logits: Any = unbound.apply(variables, outputs, places_BC, method=method)
        return logits

    return scores


def _token_weights(batch: DeviceBatch) -> jax.Array:
    """Returns the weight [B, L] of each place: 0 on padding and in filling rows."""
    return batch["mask"] * batch["row_weights"][:, None]


def soft_sums(
    student: Scores,
    teacher: Scores,
    places_BP: jax.Array,
    weights_BP: jax.Array,
    *,
    temperature: float,
    chunk: int = _CHUNK,
) -> tuple[jax.Array, jax.Array]:
    """Compares the scores of two networks.

    Returns the weighted sum of T^2 x KL(teacher || student), whose gradients are thus
    about as large at any temperature T, and that of the places where both have the same
    best token. No more than the scores [B, chunk, V] exist at once; they are made again
    for the gradients.
    """

    # A scan already keeps the compiler from merging the two makings.
    @functools.partial(jax.checkpoint, prevent_cse=False)
    def sums_of(places_BC: jax.Array, weights_BC: jax.Array):
        student_BCV, teacher_BCV = student(places_BC), teacher(places_BC)
        log_q_BCV = jax.nn.log_softmax(student_BCV / temperature)
        log_p_BCV = jax.nn.log_softmax(teacher_BCV / temperature)
        kl_BC = jnp.sum(jnp.exp(log_p_BCV) * (log_p_BCV - log_q_BCV), axis=-1)
        same_BC = jnp.argmax(student_BCV, axis=-1) == jnp.argmax(teacher_BCV, axis=-1)
        soft = temperature**2 * jnp.sum(kl_BC * weights_BC)
        return soft, jnp.sum(same_BC * weights_BC)

    def add(totals, given):
        return jax.tree.map(jnp.add, totals, sums_of(*given)), None

    chunks = _chunks(places_BP, chunk), _chunks(weights_BP, chunk)
    totals, _ = jax.lax.scan(add, (jnp.zeros(()), jnp.zeros(())), chunks)
    return totals


def _chunks(x_BP: jax.Array, most: int) -> jax.Array:
    """Returns [chunks, B, C] with C <= `most`, filled up with 0."""
    rows, places = x_BP.shape
    count = -(-places // most)
    size = -(-places // count)
    x_BP = jnp.pad(x_BP, ((0, 0), (0, count * size - places)))
    return jnp.swapaxes(x_BP.reshape(rows, count, size), 0, 1)


def cosine_distances(x_BLD: jax.Array, y_BLD: jax.Array) -> jax.Array:
    """Returns one minus the cosine of each pair of vectors, float32 [B, L]."""
    x_BLD, y_BLD = x_BLD.astype(jnp.float32), y_BLD.astype(jnp.float32)
    dot_BL = jnp.sum(x_BLD * y_BLD, axis=-1)
    # Above 0, so that a vector of zeros (DeBERTa's padding) has a gradient.
    x_squared_BL = jnp.sum(x_BLD * x_BLD, axis=-1) + 1e-12
    y_squared_BL = jnp.sum(y_BLD * y_BLD, axis=-1) + 1e-12
    return 1.0 - dot_BL / jnp.sqrt(x_squared_BL * y_squared_BL)
