"""Vectors of many texts in files, in the order of the texts, in bounded memory.

Shapes: R texts, T tokens of all texts, X width of pooled vectors, K of finished ones, V
vocabulary.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from encoderjax.errors import UserError
from encoderjax.tasks.array_files import GrowingArray, write_npz
from encoderjax.tasks.embedding import Embedder
from encoderjax.tasks.records import Form, stream_records
from encoderjax.tasks.whitening import blocks_of

# Texts that are sorted by length and read together, and the characters of them.
_TEXTS, _CHARACTERS = 4096, 2**22
_TOKEN_TEXTS = 256  # of which the vectors of all tokens are held


@dataclasses.dataclass(frozen=True)
class TextSource:
    """Texts of a file, which may be read again."""

    path: str
    column: str = "text"
    form: Form | None = None

    def texts(self) -> Iterator[str]:
        """Yields the texts; refuses a file that has none."""
        record = None
        for record in stream_records(self.path, {"text": self.column}, self.form):
            yield record.text("text")
        if record is None:
            raise UserError(f"{self.path} has no texts; give a file that has some")

    def chosen(self, numbers: Sequence[int]) -> dict[int, str]:
        """Returns the texts of some rows."""
        wanted = set(numbers)
        texts = enumerate(self.texts()) if wanted else ()
        return {number: text for number, text in texts if number in wanted}


def text_blocks(texts: Iterable[str], most: int = _TEXTS) -> Iterator[list[str]]:
    """Yields the texts in blocks that are not too large to be held."""
    block: list[str] = []
    size = 0
    for text in texts:
        block.append(text)
        size += len(text)
        if len(block) >= most or size >= _CHARACTERS:
            yield block
            block, size = [], 0
    if block:
        yield block


def gather(
    vectors_of: Callable[[list[str]], np.ndarray],
    texts: Iterable[str],
    array: GrowingArray,
    told: Callable[[int], None] = lambda rows: None,
) -> GrowingArray:
    """Writes the vectors of texts; `told` hears how many there are after each block."""
    for block in text_blocks(texts):
        array.add(as_dtype(vectors_of(block), array.dtype))
        told(array.rows)
    return array


def finish(embedder: Embedder, pooled_RX: np.ndarray, array: GrowingArray) -> None:
    """Writes pooled vectors, of a mapped file, whitened and normalised."""
    for block_RX in blocks_of(pooled_RX):
        finished = embedder.finish(block_RX.astype(np.float32))
        array.add(as_dtype(finished, array.dtype))


def as_dtype(vectors: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Returns vectors of fewer bits; refuses values that those cannot hold."""
    with np.errstate(over="ignore"):  # seen to below
        made = vectors.astype(dtype)
    if not np.isfinite(made).all() and np.isfinite(vectors).all():
        raise UserError(
            f"dtype={dtype.name} cannot hold {np.abs(vectors).max():.4g}; use float32, "
            "or --normalise=l2"
        )
    return made


def write_tokens(
    embedder: Embedder, texts: Iterable[str], folder: Path, dtype: np.dtype
) -> tuple[Path, int, int]:
    """Writes an .npz of the tokens of all texts, one text after the other.

    vectors     [T, K]  the contextual vectors, special tokens left out
    rows        [R + 1] text i has the tokens rows[i] to rows[i + 1]
    ids         [T]     of each token
    starts      [T]     its first character in its text
    ends        [T]     the one behind its last
    vocabulary  [V]     tokens by id, as text: vocabulary[ids]

    Returns the file, and the numbers of texts and tokens.
    """
    arrays = {
        "vectors": GrowingArray(folder / "vectors.npy", dtype, (embedder.width,)),
        "rows": GrowingArray(folder / "rows.npy", np.dtype(np.int64)),
    }
    for name in ("ids", "starts", "ends"):
        arrays[name] = GrowingArray(folder / f"{name}.npy", np.dtype(np.int32))
    arrays["rows"].add(np.zeros(1, np.int64))
    for block in text_blocks(texts, _TOKEN_TEXTS):
        found = embedder.tokens(block)
        ends_R = arrays["vectors"].rows + np.cumsum([len(text.ids) for text in found])
        vectors = np.concatenate([text.vectors for text in found])
        arrays["vectors"].add(as_dtype(embedder.finish(vectors), dtype))
        arrays["rows"].add(ends_R)
        for name in ("ids", "starts", "ends"):
            arrays[name].add(np.concatenate([getattr(text, name) for text in found]))
    for array in arrays.values():
        array.finish()
    tokenizer = embedder.loaded.need_tokenizer()
    entries = np.array(tokenizer.tokens(range(tokenizer.vocabulary.size)))
    np.save(folder / "vocabulary.npy", entries)
    members = {name: array.path for name, array in arrays.items()}
    members["vocabulary"] = folder / "vocabulary.npy"
    write_npz(folder / "tokens.npz", members)
    return folder / "tokens.npz", arrays["rows"].rows - 1, arrays["vectors"].rows
