"""From texts to their vectors, in batches of like length.

Shapes: R texts, B rows of a batch, L length, X width of pooled vectors, K of finished
ones, T tokens of a text.
"""

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from encoderjax.data.offsets import Pieces
from encoderjax.errors import UserError
from encoderjax.interop.sentence_loading import LoadedSentence
from encoderjax.models.pooling import Pooling, normalise
from encoderjax.models.sentence import SentenceModel
from encoderjax.tasks.batches import padded_length
from encoderjax.tasks.encoding import Encoding, Row, most_context, pad_rows
from encoderjax.tasks.pooling_windows import pooled_scores
from encoderjax.tasks.whitening import Whitening
from encoderjax.training.mesh import BATCH_SPEC, MeshConfig, batch_shards, make_mesh


@dataclasses.dataclass(frozen=True, eq=False)
class TokenVectors:
    """The contextual vectors of a text's tokens, special ones left out.

    Attributes:
      starts, ends: the characters of each token in the text.
    """

    ids: np.ndarray  # int32 [T]
    starts: np.ndarray  # int32 [T]
    ends: np.ndarray  # int32 [T]
    vectors: np.ndarray  # float32 [T, X]


class Embedder:
    """Gives texts vectors, on all devices that there are.

    Attributes:
      loaded: the model; its description says how vectors are made.
    """

    def __init__(
        self, loaded: LoadedSentence, *, batch_size: int = 64, dtype: Any = jnp.float32
    ):
        if batch_size < 1:
            raise UserError(f"batch_size={batch_size} must be at least 1")
        self.loaded = loaded
        self._tokenizer = loaded.need_tokenizer()
        told = loaded.description
        self._encoding = Encoding(self._tokenizer, told.length, told.cut, told.stride)
        mesh = make_mesh(MeshConfig())
        self._shards = batch_shards(mesh)
        self._batch_size = -(-batch_size // self._shards) * self._shards
        self._by_row = NamedSharding(mesh, BATCH_SPEC)
        self._model = loaded.model(dtype)
        whole = NamedSharding(mesh, PartitionSpec())
        # Whitening and normalisation are the host's: they may follow all vectors.
        encoder = {"encoder": loaded.params["encoder"]}
        self._params = jax.device_put(encoder, whole)
        whiten = loaded.params.get("whiten")
        self._whitening = None if whiten is None else Whitening(**whiten)

    @property
    def width(self) -> int:
        """The columns of a finished vector."""
        return self.loaded.description.head.components or self.pooled_width

    @property
    def pooled_width(self) -> int:
        """The columns of a pooled vector."""
        return self.loaded.description.head.pooled_width(self.loaded.config)

    def whitened(self, whitening: Whitening) -> "Embedder":
        """Returns an embedder of the same model whose vectors are whitened."""
        other = copy.copy(self)
        other.loaded = self.loaded.whitened(whitening.mean, whitening.kernel)
        other._whitening = whitening
        return other

    # ---- vectors of texts ----

    def vectors(self, texts: Sequence[str]) -> np.ndarray:
        """Returns the finished vectors [R, K], float32."""
        return self.finish(self.pooled(texts))

    def pooled(self, texts: Sequence[str]) -> np.ndarray:
        """Returns the vectors [R, X] before they are whitened and normalised.

        Of a text in several windows it is the mean of theirs.
        """
        how = self.loaded.description.head.pooling
        return self.poolings(texts, (how,))[how]

    def poolings(
        self, texts: Sequence[str], hows: tuple[Pooling, ...]
    ) -> dict[Pooling, np.ndarray]:
        """Returns several poolings of the same states."""
        rows, text_of_row = [], []
        for number, ids in enumerate(self._tokenizer.encode(texts)):
            nowhere = np.zeros_like(ids)
            own = self._encoding.rows(Pieces(ids, nowhere, nowhere, nowhere))
            rows += own
            text_of_row += [number] * len(own)
        found: dict[Pooling, np.ndarray] = {
            how: np.zeros((len(rows), self.pooled_width), np.float32) for how in hows
        }
        step = functools.partial(_pooled_step, self._model, hows)
        for numbers, vectors in self._run(rows, step):
            for how in hows:
                found[how][numbers] = vectors[how][: len(numbers)]
        if len(rows) == len(texts):
            return found
        places = np.array(text_of_row)
        return {how: pooled_scores(x, places) for how, x in found.items()}

    def finish(self, pooled_RX: np.ndarray) -> np.ndarray:
        """Returns pooled vectors whitened and normalised, [R, K]."""
        if self._whitening is not None:
            pooled_RX = self._whitening.apply(pooled_RX)
        how = self.loaded.description.head.normalise
        return np.asarray(normalise(jnp.asarray(pooled_RX), how))

    # ---- vectors of tokens ----

    def tokens(self, texts: Sequence[str]) -> list[TokenVectors]:
        """Returns the states of each text's tokens, neither whitened nor normalised.

        Of a token in several windows it is where it has most context.
        """
        pieces = [self._tokenizer.encode_with_offsets(text) for text in texts]
        rows, chosen, text_of_row = [], [], []
        for number, of_text in enumerate(pieces):
            own = self._encoding.rows(of_text)
            rows += own
            chosen += most_context(own, 0)
            text_of_row += [number] * len(own)
        found: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in texts]
        step = functools.partial(_token_step, self._model)
        for numbers, states_BLX in self._run(rows, step):
            for states_LX, number in zip(states_BLX, numbers, strict=False):
                real_LX = self._without_padding(states_LX, len(rows[number]))
                best = chosen[number]
                part = (rows[number].pieces[best], real_LX[best])
                found[text_of_row[number]].append(part)
        return [
            _token_vectors(of_text, parts)
            for of_text, parts in zip(pieces, found, strict=True)
        ]

    def _without_padding(self, states_LX: np.ndarray, size: int) -> np.ndarray:
        left = self._tokenizer.layout.pads_left
        return states_LX[-size:] if left else states_LX[:size]

    # ---- batches ----

    def _run(
        self, rows: Sequence[Row], step: Callable
    ) -> Iterator[tuple[list[int], Any]]:
        """Yields the numbers of the rows of each batch, and what a step makes of it.

        What a batch lacks is filled up with rows that it has.
        """
        order = np.argsort([len(row) for row in rows], kind="stable").tolist()
        waiting = None
        for first in range(0, len(order), self._batch_size):
            numbers = order[first : first + self._batch_size]
            filled = np.resize(numbers, self._rounded(len(numbers))).tolist()
            longest = len(rows[numbers[-1]])
            length = padded_length(longest, self._encoding.length)
            batch = pad_rows([rows[i] for i in filled], length, self._tokenizer)
            made = step(self._params, jax.device_put(batch, self._by_row))
            # The device computes while the host fetches the batch before.
            if waiting is not None:
                yield waiting[0], jax.device_get(waiting[1])
            waiting = numbers, made
        if waiting is not None:
            yield waiting[0], jax.device_get(waiting[1])

    def _rounded(self, rows: int) -> int:
        """Returns how many rows a batch gets: few sizes, as each is compiled."""
        size = -(-(1 << (rows - 1).bit_length()) // self._shards) * self._shards
        return min(size, self._batch_size)


def _token_vectors(
    pieces: Pieces, parts: Sequence[tuple[np.ndarray, np.ndarray]]
) -> TokenVectors:
    """Returns the tokens that were read, in the order of the text."""
    kept = np.concatenate([numbers for numbers, _ in parts])
    vectors = np.concatenate([vectors for _, vectors in parts])
    order = np.argsort(kept)
    kept, vectors = kept[order], vectors[order]
    ids, starts, ends = pieces.ids, pieces.starts, pieces.ends
    return TokenVectors(ids[kept], starts[kept], ends[kept], vectors)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _pooled_step(model: SentenceModel, hows: tuple[Pooling, ...], params, batch) -> Any:
    """Returns the vectors [B, X] by pooling."""
    inputs = tuple(batch[name] for name in ("ids", "mask", "segments"))
    run = lambda model: model.poolings(hows, *inputs)
    return model.apply({"params": params}, method=run)


@functools.partial(jax.jit, static_argnums=(0,))
def _token_step(model: SentenceModel, params, batch) -> Any:
    """Returns the states [B, L, X], float32."""
    inputs = tuple(batch[name] for name in ("ids", "mask", "segments"))
    run = lambda model: model.tokens(*inputs).astype(jnp.float32)
    return model.apply({"params": params}, method=run)
