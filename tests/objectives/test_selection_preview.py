"""What `preview` counts on text, for the masking of each published model."""

import functools
import itertools
import json
import math
import types
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pytest

from encoderjax.config import RunConfig
from encoderjax.config_loading import load_config
from encoderjax.objectives.spans import SpanLengths
from encoderjax.preview import run
from tests.objectives.masking_cases import chi_square_fits, within
from tests.small_corpus import prepare_small_corpus
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
    # Hugging Face's collator, and XLM: a share of the text, [CLS] and [SEP] left out.
    "collator": ({"count": "bernoulli"}, 0.142, BERT, False, False),
    "crammed bert": ({"rate": 0.25}, 0.25, BERT, False, False),
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


# ---- the recipes, as `configs` has them ----


class Fed(NamedTuple):
    """What a recipe feeds its model.

    Attributes:
      tokenizer: of the small corpus.
      counts: from the tokens of a row, special ones included, to the least and the most
        that are predicted.
      share: of the tokens, on average.
      kinds: shares masked, random, kept.
      specials: whether [CLS] and [SEP] may be selected.
      whole: whether words are selected whole.
      drawn: the probabilities of lengths of n-grams or spans, in words.
      changes: overrides beside the sizes.
    """

    tokenizer: str
    counts: Callable[[int], tuple[int, int]]
    share: float = 0.15
    kinds: tuple[float, float, float] = BERT
    specials: bool = False
    whole: bool = False
    drawn: Sequence[float] = ()
    changes: Mapping[str, None] = types.MappingProxyType({})


def berts(tokens):
    """Python's round: half goes to the even neighbour."""
    number = max(1, round(0.15 * tokens))
    return number, number


def at_most_berts(tokens):
    return 1, berts(tokens)[1]  # a word that is left over may not fit


def fairseqs(tokens):
    return math.floor(0.15 * tokens), math.ceil(0.15 * tokens)


def spanberts(tokens):
    number = math.ceil(0.15 * (tokens - 2))  # before [CLS] and [SEP] are added
    return number, number


def any_number(tokens):
    return 0, tokens


NGRAMS = (6 / 11, 3 / 11, 2 / 11)
SPANS = (0.2241, 0.1792, 0.1434, 0.1147, 0.0918, 0.0734, 0.0587, 0.0470, 0.0376, 0.0301)
# A teacher is not needed to look at what a student is fed.
ALONE = {"init_from": None, "init_layers": None, "objectives.distillation": None}
RECIPES = {
    "bert_base": Fed("wordpiece:180", berts),
    "roberta_base": Fed("bbpe:320", fairseqs, specials=True),
    "xlm_roberta_base": Fed("unigram/xlm_roberta:60", fairseqs, specials=True),
    "albert_base": Fed("unigram:70", at_most_berts, whole=True, drawn=NGRAMS),
    "spanbert_base": Fed(
        "wordpiece_cased:180",
        spanberts,
        drawn=SPANS,
    ),
    "deberta_base": Fed(
        "bbpe/deberta:320",
        lambda tokens: (1, berts(tokens)[1] + 12),  # the last word may exceed it
        whole=True,
        drawn=NGRAMS,
    ),
    "deberta_v3_small": Fed(
        "unigram/deberta_v2:60", at_most_berts, kinds=(1.0, 0.0, 0.0)
    ),
    "electra_small": Fed("wordpiece:180", berts, kinds=(0.85, 0.0, 0.15)),
    "distilbert_base": Fed("wordpiece:180", fairseqs, changes=ALONE),
    "modernbert_base": Fed("bbpe/modernbert:320", any_number, share=0.3, specials=True),
}


@pytest.fixture(scope="module")
def corpus_of(tmp_path_factory):
    """Returns the small corpus with a tokenizer, prepared on first use."""

    @functools.cache
    def prepared(tokenizer):
        folder = tmp_path_factory.mktemp("recipes")
        return prepare_small_corpus(folder, tokenizer=tokenizer)

    return prepared


def fed_by(name, corpus, changes: Mapping = types.MappingProxyType({}), batches=20):
    """Returns a published recipe's preview, with only its sizes changed."""
    sizes = {
        "phases": {},
        "data.corpus": str(corpus.folder),
        "data.alpha": None,  # of one language
        "data.length": 128,
        "data.batch_size": 16,
        "data.batch_tokens": None,
        "data.dupe_factor": 2,
    }
    config = load_config(f"configs/{name}.py", sizes | dict(changes))
    found = run(config, rows=10**6, batches=batches, report=lambda text: None)
    return found["rows"], found["stats"]


def original_tokens(row):
    tokens = list(row["tokens"])
    for prediction in row["predictions"]:
        tokens[prediction["position"]] = prediction["label"]
    return tokens


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_feed_what_was_published(name, corpus_of):
    fed = RECIPES[name]
    corpus = corpus_of(fed.tokenizer)
    vocabulary = corpus.tokenizer.vocabulary
    rows, stats = fed_by(name, corpus, fed.changes)
    number = sum(len(row["predictions"]) for row in rows)
    for row in rows:
        least, most = fed.counts(len(row["ids"]))
        assert least <= len(row["predictions"]) <= most
    assert number == pytest.approx(stats["selected_share"] * stats["tokens"])
    assert stats["selected_share"] == pytest.approx(fed.share, rel=0.05)
    choices = stats["span_lengths"] if name == "spanbert_base" else None
    for kind, share in zip(("masked", "random", "kept"), fed.kinds, strict=True):
        # SpanBERT chooses once for a span.
        found, drawn = stats[f"{kind}_share"], sum((choices or {"": number}).values())
        spread = 1.6 if choices else 1.0  # long spans weigh more
        error = 4 * spread * math.sqrt(share * (1 - share) / drawn)
        assert found == pytest.approx(share, abs=error), kind
    ids = list(itertools.chain(*(row["ids"] for row in rows)))
    assert vocabulary.continues_word_V[ids].mean() > 0.1  # there are words to split
    assert (stats["split_words"] == 0) == fed.whole
    assert (stats["special_selected"] > 0) == fed.specials
    if fed.specials:
        edges = corpus.tokenizer.tokens([vocabulary.cls_id, vocabulary.sep_id])
        tokens = itertools.chain(*map(original_tokens, rows))
        places = sum(token in edges for token in tokens)
        assert within(stats["special_selected"] / places, fed.share, places)
    if fed.drawn:
        drawn = [stats["drawn_lengths"][str(n + 1)] for n in range(len(fed.drawn))]
        assert sum(drawn) == sum(stats["drawn_lengths"].values())
        assert chi_square_fits(np.array(drawn), fed.drawn)
    assert stats["dropped_share"] == 0


def test_spanbert_chooses_once_for_a_span(corpus_of):
    corpus = corpus_of(RECIPES["spanbert_base"].tokenizer)
    rows, _ = fed_by("spanbert_base", corpus)
    neighbours = 0
    for row in rows:
        for before, after in itertools.pairwise(row["predictions"]):
            if after["position"] == before["position"] + 1:
                assert after["kind"] == before["kind"]
                neighbours += 1
    assert neighbours > 1000


def replaced_ids(rows):
    return [
        row["ids"][prediction["position"]]
        for row in rows
        for prediction in row["predictions"]
        if prediction["kind"] == "replaced"
    ]


@pytest.mark.parametrize(
    ("name", "first"), [("roberta_base", 4), ("xlm_roberta_base", 4), ("bert_base", 0)]
)
def test_first_ids_that_stand_for_random_tokens(name, first, corpus_of):
    """fairseq never puts <s>, <pad>, </s> and <unk>; BERT puts any token."""
    corpus = corpus_of(RECIPES[name].tokenizer)
    vocabulary = corpus.tokenizer.vocabulary
    if first:
        special = {vocabulary.cls_id, vocabulary.pad_id, vocabulary.sep_id}
        assert special | {vocabulary.unk_id} == set(range(first))
    # More of them than in the recipe: all that is selected.
    all_random = {
        "objectives.mlm.replace.mask": 0.0,
        "objectives.mlm.replace.random": 1.0,
    }
    rows, _ = fed_by(name, corpus, all_random)
    assert min(replaced_ids(rows)) == first
    assert max(replaced_ids(rows)) == vocabulary.size - 1


def test_electra_draws_some_tokens_twice(corpus_of):
    """So that of 15 % about 13.9 are left, as the paper's code has it."""
    fed = RECIPES["electra_small"]
    corpus = corpus_of(fed.tokenizer)
    rows, stats = fed_by("electra_small", corpus, batches=40)
    expected = 0.0
    for row in rows:
        among = len(row["ids"]) - 2 - (1 in row["segments"])
        draws = berts(len(row["ids"]))[0]
        expected += among * (1 - (1 - 1 / among) ** draws)
    assert stats["unique_share"] == pytest.approx(expected / stats["tokens"], rel=5e-3)
    assert stats["unique_share"] == pytest.approx(0.139, abs=0.002)
    twice = [len({p["position"] for p in row["predictions"]}) for row in rows]
    assert sum(twice) == pytest.approx(stats["unique_share"] * stats["tokens"])


def test_modernbert_decides_for_each_token_of_packed_rows(corpus_of):
    fed = RECIPES["modernbert_base"]
    corpus, sizes = corpus_of(fed.tokenizer), {"data.length": 512}
    rows, stats = fed_by("modernbert_base", corpus, sizes)
    assert stats["fill"] > 0.9
    assert sum("|" in row["text"] for row in rows) > len(rows) / 3  # several documents
    tokens = np.array([len(row["ids"]) for row in rows])
    counts = np.array([len(row["predictions"]) for row in rows])
    deviations = (counts - 0.3 * tokens) / np.sqrt(0.3 * 0.7 * tokens)
    assert abs(deviations.mean()) < 5 / math.sqrt(len(rows))
    assert deviations.var() == pytest.approx(1, rel=5 * math.sqrt(2 / len(rows)))


def test_xlnet_predicts_85_of_512_and_corrupts_none(corpus_of):
    corpus = corpus_of("unigram/xlnet:60")
    sizes = {"data.length": 512, "data.batch_size": 4}
    rows, stats = fed_by("xlnet_base", corpus, sizes, batches=8)
    assert (stats["masked_share"], stats["random_share"]) == (0, 0)
    assert stats["kept_share"] == 1
    assert stats["special_selected"] == 0
    for row in rows:
        assert len(row["ids"]) == 512
        places = [prediction["position"] for prediction in row["predictions"]]
        assert sum(place < 256 for place in places) == 43
        assert 39 <= sum(place >= 256 for place in places) <= 42
        assert original_tokens(row) == row["tokens"]
        assert row["tokens"][-2:] == ["<sep>", "<cls>"]
    assert stats["predictions_per_row"]["max"] == 85
    assert 82 / 512 < stats["selected_share"] <= 85 / 512
    assert {row["reversed"] for row in rows} == {False, True}
    drawn = list(stats["drawn_lengths"].values())
    assert sum(drawn) > 1000
    assert chi_square_fits(np.array(drawn), np.array([60, 30, 20, 15, 12]) / 137)
