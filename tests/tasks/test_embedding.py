"""Vectors of texts and tokens, of cut and windowed ones, beside hand-made rows."""

from typing import get_args

import jax
import numpy as np
import pytest
import torch
from scipy import stats
from sentence_transformers.sentence_transformer.evaluation import (
    EmbeddingSimilarityEvaluator,
)
from transformers import AutoModel, AutoTokenizer

from encoderjax.errors import UserError
from encoderjax.interop.task_description import Cut
from encoderjax.interop.writing import write_sentence_transformers, write_tokenizer
from encoderjax.tasks.embedding import Embedder
from encoderjax.tasks.retrieval import nearest
from encoderjax.tasks.sts import (
    Pairs,
    evaluate_sts,
    read_pairs,
    similarities,
    sts_metrics,
    sts_table,
    table_text,
)
from tests.sentence_folders import LENGTH, TEXTS, small_sentence

torch.set_num_threads(1)
RNG = np.random.default_rng(0)
LONG = "the cat of the king, not kind. " * 9


@pytest.fixture(scope="module")
def bert():
    return small_sentence("bert")


def by_hand(loaded, rows) -> np.ndarray:
    """Returns the vectors of rows of ids, padded on the side of the family."""
    layout = loaded.need_tokenizer().layout
    ids_BL = np.zeros((len(rows), LENGTH), int)
    mask_BL = np.zeros_like(ids_BL, bool)
    segments_BL = np.zeros_like(ids_BL)
    for b, ids in enumerate(rows):
        row = [*layout.before, *ids, *layout.after]
        own = slice(-len(row), None) if layout.pads_left else slice(len(row))
        ids_BL[b, own], mask_BL[b, own] = row, True
    if layout.final is not None:
        segments_BL[:, -1] = layout.final
    apply = jax.jit(loaded.model().apply)
    return np.asarray(apply({"params": loaded.params}, ids_BL, mask_BL, segments_BL))


def test_vectors_do_not_depend_on_their_neighbours(bert):
    whole = Embedder(bert, batch_size=4).vectors(TEXTS)
    order = RNG.permutation(len(TEXTS))
    shuffled = Embedder(bert, batch_size=2).vectors([TEXTS[i] for i in order])
    np.testing.assert_allclose(shuffled, whole[order], atol=1e-5)
    assert Embedder(bert).vectors([]).shape == (0, 24)


@pytest.mark.parametrize(
    ("family", "cut"),
    [*(("bert", cut) for cut in get_args(Cut)), ("xlnet", "windows")],
)
def test_long_texts_are_cut_or_read_in_windows(family, cut):
    loaded = small_sentence(family).changed(cut=cut, stride=10)
    (ids,) = loaded.need_tokenizer().encode([LONG])
    room = LENGTH - 2
    rows = {
        "head": [ids[:room]],
        "tail": [ids[-room:]],
        "both": [np.concatenate([ids[: room // 4], ids[-(room - room // 4) :]])],
        "windows": [ids[i : i + room] for i in range(0, len(ids) - room + 10, 10)],
    }[cut]
    wanted = by_hand(loaded, rows).mean(0)
    found = Embedder(loaded, batch_size=4).vectors(["Rain.", LONG])
    np.testing.assert_allclose(found[1], wanted, atol=1e-5)


def test_tokens_are_those_of_transformers(bert, tmp_path):
    write_sentence_transformers(tmp_path, bert, "float32")
    write_tokenizer(tmp_path, bert.need_tokenizer(), LENGTH)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    model = AutoModel.from_pretrained(tmp_path).eval()
    texts = ["The cat of the king.", "", "Naïve cats"]
    for text, found in zip(texts, Embedder(bert).tokens(texts), strict=True):
        inputs = tokenizer(text, return_tensors="pt", return_offsets_mapping=True)
        (offsets,) = inputs.pop("offset_mapping").tolist()
        with torch.no_grad():
            states = model(**inputs).last_hidden_state[0, 1:-1].numpy()
        assert found.ids.tolist() == inputs["input_ids"][0, 1:-1].tolist()
        starts_and_ends = zip(found.starts.tolist(), found.ends.tolist(), strict=True)
        assert [list(both) for both in starts_and_ends] == offsets[1:-1]
        np.testing.assert_allclose(found.vectors, states, atol=1e-5)


def test_each_token_of_a_long_text_is_given_once():
    loaded = small_sentence("xlnet").changed(cut="windows", stride=7)
    (found,) = Embedder(loaded, batch_size=4).tokens([LONG])
    (ids,) = loaded.need_tokenizer().encode([LONG])
    np.testing.assert_array_equal(found.ids, ids)
    assert (np.diff(found.starts) >= 0).all()
    assert found.vectors.shape == (len(ids), 24)


def test_nearest_is_a_sorted_product():
    vectors = RNG.normal(size=(9000, 6)).astype(np.float32)  # several blocks
    vectors[8000] = 4 * vectors[5]  # as near, and so behind
    vectors[17] = 0.0
    queries = vectors[[5, 8999]] + 0.01
    lengths = lambda x: np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-9)
    unit = lambda x: x.astype(np.float64) / lengths(x.astype(np.float64))
    cosines = unit(queries) @ unit(vectors).T
    numbers, found = nearest(queries, vectors, 4)
    np.testing.assert_array_equal(numbers, np.argsort(-cosines, kind="stable")[:, :4])
    assert numbers[0, :2].tolist() == [5, 8000]
    np.testing.assert_allclose(
        found, np.take_along_axis(cosines, numbers, 1), atol=1e-6
    )
    assert nearest(queries, vectors[:3], 4)[0].shape == (2, 3)


# ---- semantic textual similarity ----

SCORES = RNG.uniform(0, 5, 12).round(1)
U, V = RNG.normal(size=(2, 12, 6))


class Given:
    """A model of sentence-transformers whose vectors are known."""

    similarity_fn_name = "cosine"

    def encode(self, texts, **_):
        sides = {"a": U, "b": V}
        return np.array([sides[text[0]][int(text[1:])] for text in texts])


def test_correlations_are_those_of_sentence_transformers():
    found = sts_metrics(U, V, SCORES)
    judge = EmbeddingSimilarityEvaluator(
        [f"a{i}" for i in range(12)],
        [f"b{i}" for i in range(12)],
        SCORES.tolist(),
        main_similarity="cosine",
        similarity_fn_names=["cosine", "euclidean", "dot"],
        write_csv=False,
    )
    judge.store_metrics_in_model_card_data = lambda *_: None
    wanted = judge(Given())
    assert next(iter(found)) == "spearman_cosine"
    assert len(found) == 6
    for name, value in found.items():
        kind, how = name.split("_")
        np.testing.assert_allclose(value, wanted[f"{kind}_{how}"], atol=1e-6)


def test_the_table_has_every_pooling_and_mending(bert):
    words = [*"abcdefgh", "the", "of", "day"]
    texts = [" ".join(RNG.choice(words, RNG.integers(2, 9))) for _ in range(40)]
    pairs = Pairs(texts[:20], texts[20:], RNG.uniform(0, 5, 20))
    table = sts_table(Embedder(bert), pairs)
    assert list(table) == ["cls", "mean", "max", "last"]
    for pooling, row in table.items():
        assert list(row) == ["raw", "l2", "layer_norm", "whitened"]
        assert row["raw"] == row["l2"]
        u, v = np.split(Embedder(bert).poolings(texts, (pooling,))[pooling], 2)
        centred = [x - x.mean(1, keepdims=True) for x in (u, v)]
        wanted = stats.spearmanr(similarities(*centred, "cosine"), pairs.scores)
        np.testing.assert_allclose(row["layer_norm"], wanted.statistic, atol=1e-9)
    metrics = evaluate_sts(Embedder(bert), pairs)
    np.testing.assert_allclose(
        metrics["spearman_cosine"], table["mean"]["raw"], atol=1e-9
    )
    assert len({row["whitened"] for row in table.values()}) == 4
    lines = table_text(table).split("\n")
    assert lines[0].split() == ["pooling", "raw", "l2", "layer_norm", "whitened"]
    assert lines[1].split()[:2] == ["cls", f"{100 * table['cls']['raw']:.2f}"]


def test_pairs_are_read_by_number_or_name(tmp_path):
    plain = tmp_path / "sts.csv"
    plain.write_text('"A cat, old.",A dog.,2.5\nRain,Sun,0\n')
    pairs = read_pairs(str(plain))
    assert (pairs.first, pairs.second) == (["A cat, old.", "Rain"], ["A dog.", "Sun"])
    assert pairs.scores.tolist() == [2.5, 0.0]
    named = tmp_path / "sts.tsv"
    named.write_text("s\ta\tb\n1.0\tx\ty\nmuch\tx\ty\n")
    with pytest.raises(UserError, match=r"sts.tsv:3: score='much' is not a number"):
        read_pairs(str(named), {"text": "a", "pair": "b", "score": "s"})
