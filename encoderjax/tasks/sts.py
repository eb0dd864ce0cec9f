"""How well vectors tell how alike two texts are: semantic textual similarity.

Shapes: R pairs, X width.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import jax.numpy as jnp
import numpy as np

from encoderjax.errors import UserError
from encoderjax.models.pooling import POOLINGS, Pooling, normalise
from encoderjax.tasks.embedding import Embedder
from encoderjax.tasks.metrics import regression_metrics
from encoderjax.tasks.records import Form, Record, read_records
from encoderjax.tasks.whitening import Whitening

Similarity = Literal["cosine", "euclidean", "dot"]
SIMILARITIES: tuple[Similarity, ...] = get_args(Similarity)
Mended = Literal["raw", "l2", "layer_norm", "whitened"]
COLUMNS: Mapping[str, str] = {"text": "0", "pair": "1", "score": "2"}


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Pairs of texts, and how alike people found them."""

    first: list[str]
    second: list[str]
    scores: np.ndarray  # float64 [R]

    def __len__(self) -> int:
        return len(self.first)


def read_pairs(
    path: str, columns: Mapping[str, str] = COLUMNS, form: Form | None = None
) -> Pairs:
    """Returns the pairs of a file, whose columns are `text`, `pair` and `score`."""
    records = read_records(path, dict(columns), form)
    scores = [score_of(record) for record in records]
    first, second = ([r.text(role) for r in records] for role in ("text", "pair"))
    return Pairs(first, second, np.array(scores))


def score_of(record: Record) -> float:
    """Returns the number in the column `score`."""
    try:
        score = float(record.text("score"))
    except ValueError:
        score = np.nan
    if not np.isfinite(score):
        raise UserError(
            f"{record.where}: score={record.text('score')!r} is not a number; name "
            "another column, or mend it"
        )
    return score


def similarities(u_RX: np.ndarray, v_RX: np.ndarray, how: Similarity) -> np.ndarray:
    """Returns how alike the vectors of each pair are, [R]; more is more."""
    u_RX, v_RX = np.asarray(u_RX, np.float64), np.asarray(v_RX, np.float64)
    if how == "euclidean":
        return -np.linalg.norm(u_RX - v_RX, axis=1)
    products_R = (u_RX * v_RX).sum(1)
    if how == "dot":
        return products_R
    norms_R = np.linalg.norm(u_RX, axis=1) * np.linalg.norm(v_RX, axis=1)
    return products_R / np.where(norms_R > 0, norms_R, 1.0)


def sts_metrics(
    u_RX: np.ndarray, v_RX: np.ndarray, scores_R: np.ndarray
) -> dict[str, float]:
    """Returns correlations with people's scores; Spearman's of the cosine comes first.

    Names are `spearman_cosine`, `pearson_cosine`, and so on for each similarity.
    """
    found = {how: similarities(u_RX, v_RX, how) for how in SIMILARITIES}
    return correlations(found, scores_R)


def correlations(
    found: Mapping[str, np.ndarray], scores_R: np.ndarray
) -> dict[str, float]:
    """Returns the correlations of similarities [R] with people's scores."""
    metrics = {}
    for how, found_R in found.items():
        measured = regression_metrics(scores_R, found_R)
        for name in ("spearman", "pearson"):
            metrics[f"{name}_{how}"] = measured[name]
    return metrics


def evaluate_sts(embedder: Embedder, pairs: Pairs) -> dict[str, float]:
    """Returns the metrics of an embedder's vectors."""
    u_RX, v_RX = np.split(embedder.vectors(pairs.first + pairs.second), 2)
    return sts_metrics(u_RX, v_RX, pairs.scores)


# ---- the table ----


def sts_table(
    embedder: Embedder, pairs: Pairs, similarity: Similarity = "cosine"
) -> dict[Pooling, dict[Mended, float]]:
    """Returns Spearman's correlation for every pooling and what is done to vectors.

    The whitening is fitted on the different texts of the pairs, without their scores.
    Under the cosine, vectors of length 1 (`l2`) do as well as raw ones.
    """
    texts = list(dict.fromkeys(pairs.first + pairs.second))
    number = {text: i for i, text in enumerate(texts)}
    first, second = ([number[t] for t in side] for side in (pairs.first, pairs.second))
    table = {}
    for pooling, vectors_RX in embedder.poolings(texts, POOLINGS).items():
        table[pooling] = {}
        for mended, changed_RX in _mended(vectors_RX).items():
            found_R = similarities(changed_RX[first], changed_RX[second], similarity)
            spearman = regression_metrics(pairs.scores, found_R)["spearman"]
            table[pooling][mended] = spearman
    return table


def _mended(vectors_RX: np.ndarray) -> dict[Mended, np.ndarray]:
    scaled = lambda how: np.asarray(normalise(jnp.asarray(vectors_RX), how))
    return {
        "raw": vectors_RX,
        "l2": scaled("l2"),
        "layer_norm": scaled("layer_norm"),
        "whitened": Whitening.fit(vectors_RX).apply(vectors_RX),
    }


def table_text(table: Mapping[Pooling, Mapping[Mended, float]]) -> str:
    """Returns the table for people, in hundredths."""
    columns: Sequence[str] = get_args(Mended)
    lines = ["pooling  " + "".join(name.rjust(12) for name in columns)]
    for pooling, row in table.items():
        cells = "".join(f"{100 * row[name]:12.2f}" for name in get_args(Mended))
        lines.append(f"{pooling:<9}{cells}")
    return "\n".join(lines)
