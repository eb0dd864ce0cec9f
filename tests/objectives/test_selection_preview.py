"""What `preview` counts on text, for the masking of each published model."""

import json
import math

import numpy as np
import pytest

from encoderjax.config import RunConfig
from encoderjax.objectives.spans import SpanLengths
from encoderjax.preview import run
from tests.objectives.masking_cases import chi_square_fits
from tests.small_runs import small_config

BERT = (0.8, 0.1, 0.1)
# Fields, then share selected, shares masked / random / kept, specials, whole words.
MODELS = {
    "bert": ({}, 0.15, BERT, False, False),
    "bert words": ({"select": "words"}, 0.15, BERT, False, True),
    "roberta": (
        {"count": "probabilistic", "specials": True, "replace.skip_first": 4},
        0.15,
        BERT,
        True,
        False,
    ),
    "albert": ({"select": "ngrams"}, 0.15, BERT, False, True),
    "deberta": ({"select": "ngram_windows"}, 0.15, BERT, False, True),
    "deberta_v3": (
        {
            "select": "ngram_windows",
            "max_ngram": 1,
            "replace.mask": 1.0,
            "replace.random": 0.0,
        },
        0.15,
        (1.0, 0.0, 0.0),
        False,
        False,
    ),
    "electra": (
        {"select": "with_replacement", "replace.mask": 0.85, "replace.random": 0.0},
        0.15,
        (0.85, 0.0, 0.15),
        False,
        False,
    ),
    "distilbert": ({"select": "weighted"}, 0.15, BERT, False, False),
    "modernbert": (
        {"rate": 0.3, "count": "bernoulli", "specials": True},
        0.3,
        BERT,
        True,
        False,
    ),
    "a range": ({"rate": "(0.1, 0.3)"}, 0.2, BERT, False, False),
}


def preview(corpus, fields, batches=40):
    changes = {f"objectives.mlm.{name}": value for name, value in fields.items()}
    changes |= {"objectives.mlm.max_predictions": None, "data.length": 64}
    config = small_config(corpus.folder, **changes)
    # As a workdir's config.json keeps it.
    kept = RunConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert kept.objectives == config.objectives
    return run(config, rows=0, batches=batches, report=lambda text: None)["stats"]


@pytest.mark.parametrize("model", MODELS)
def test_shares_are_the_published_ones(model, corpus):
    fields, share, kinds, specials, whole = MODELS[model]
    stats = preview(corpus, fields)
    # Rounding moves the share of a row by up to half a token.
    assert stats["selected_share"] == pytest.approx(share, rel=0.05)
    number = stats["selected_share"] * stats["tokens"]
    for name, expected in zip(("masked", "random", "kept"), kinds, strict=True):
        error = 4 * math.sqrt(expected * (1 - expected) / number)
        assert stats[f"{name}_share"] == pytest.approx(expected, abs=error)
    assert (stats["special_selected"] > 0) == specials
    assert (stats["split_words"] == 0) == whole
    assert stats["dropped_share"] < 0.02
    repeated = stats["unique_share"] < 0.96 * stats["selected_share"]
    assert repeated == (model == "electra")


def test_spans_are_whole_words_but_for_the_last_of_a_row(corpus):
    fields = {"select": "spans", "replace.unit": "span"}
    stats = preview(corpus, fields | {"replace.distribution": "unigram"})
    assert stats["special_selected"] == 0
    assert 0 < stats["split_words"] <= 40 * 16
    lengths = {int(n): count for n, count in stats["span_lengths"].items()}
    mean = sum(n * count for n, count in lengths.items()) / sum(lengths.values())
    assert 2.5 < mean < 6  # words of 3.8, cut by the count, of more than a piece


@pytest.mark.parametrize(
    ("select", "shares"),
    [
        ("ngrams", [6 / 11, 3 / 11, 2 / 11]),
        ("ngram_windows", [6 / 11, 3 / 11, 2 / 11]),
        ("spans", SpanLengths().probabilities_S),
    ],
)
def test_drawn_lengths_have_the_published_probabilities(select, shares, corpus):
    drawn = preview(corpus, {"select": select}, batches=100)["drawn_lengths"]
    assert list(drawn) == [str(n) for n in range(1, len(shares) + 1)]
    assert chi_square_fits(np.array(list(drawn.values())), shares)


def test_density_keeps_the_share_of_the_corpus(corpus):
    stats = preview(corpus, {"rate": "density"})
    assert stats["selected_share"] == pytest.approx(0.15, abs=0.01)
    assert stats["predictions_per_row"]["max"] > 10
