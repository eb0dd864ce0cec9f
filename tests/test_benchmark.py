"""The benchmark measures what it says, on both sides; how fast is not tested."""

import json
import os
import sys
import time

import numpy as np
import pytest

from encoderjax import data_speed, hf_speed
from encoderjax.benchmark import main, run_data, table
from encoderjax.errors import UserError
from encoderjax.experiment import Experiment
from encoderjax.timing import best_rates, doing, one_core
from tests.small_runs import RECIPE, overrides, small_config

SILENT = lambda text: None
HOST = {
    "prepare_mb_per_second",
    "prepare_tokens_per_second",
    "tokenizers_mb_per_second",
    "prepare_to_tokenizers_ratio",
    "open_corpus_seconds",
    "open_rows_seconds",
    "first_batch_seconds",
    "first_batch_at_1000000_seconds",
    "late_first_batch_ratio",
    "loader_tokens_per_second",
    "loader_uncorrupted_tokens_per_second",
    "corrupt_mlm_tokens_per_second",  # next-sentence prediction corrupts nothing
}
SELECTED = {
    *(f"{s}_{c}" for s in ("tokens", "words") for c in ("exact", "bernoulli")),
    *("tokens_probabilistic", "words_probabilistic", "ngrams", "ngram_windows"),
    *("spans", "weighted", "with_replacement"),
}


def flags_of(corpus, *flags, **changes):
    fields = overrides(corpus.folder, **changes).items()
    given = [f"--config.{name}={value}" for name, value in fields]
    return ["--data", f"--config={RECIPE}", *given, *flags]


def test_figures_of_the_host(corpus, capsys):
    main(flags_of(corpus, "--json"))
    result = json.loads(capsys.readouterr().out)
    assert set(result["figures"]) == HOST
    assert all(value > 0 for value in result["figures"].values())
    assert (result["cores"], result["length"], result["batch_size"]) == (1, 32, 16)
    assert result["versions"]["numpy"] == np.__version__


def test_figures_of_every_selector_and_of_hugging_face(corpus):
    config = small_config(corpus.folder)
    options = {"all_selectors": True, "against_hf": True, "sample_mb": 0.001}
    figures = run_data(config, report=SILENT, **options)["figures"]
    selected = {f"select_{name}_tokens_per_second" for name in SELECTED}
    compared = {"datasets_mb_per_second", "prepare_to_datasets_ratio"}
    for select in ("tokens", "words"):
        compared.add(f"mask_{select}_tokens_per_second")
        compared.add(f"hf_mask_{select}_tokens_per_second")
        ours, theirs = (
            figures[f"{who}mask_{select}_tokens_per_second"] for who in ("", "hf_")
        )
        ratio = figures.get(f"mask_{select}_to_hf_ratio")
        assert ratio == pytest.approx(ours / theirs)
        compared.add(f"mask_{select}_to_hf_ratio")
    assert set(figures) == HOST | selected | compared
    assert all(value > 0 for value in figures.values())


def test_the_table_has_a_line_and_a_unit_for_each_figure():
    figures = {
        "prepare_mb_per_second": 2.0,
        "loader_tokens_per_second": 3e7,
        "open_rows_seconds": 0.004,
        "prepare_to_tokenizers_ratio": 5.0,
    }
    about = {"corpus": "x", "form": "packed", "length": 8, "batch_size": 2, "rows": 9}
    lines = table({**about, "versions": {}, "figures": figures}).splitlines()
    assert [" ".join(line.split()) for line in lines[-4:]] == [
        "prepare 2.00 MB/s",
        "loader 30,000,000 tokens/s",
        "open rows 4.00 ms",
        "prepare to tokenizers 5.00 x",
    ]


def test_work_takes_turns_and_the_best_call_counts():
    calls = []

    def work(name, amounts):
        def call(number):
            calls.append((name, number))
            return amounts[number]

        return call

    amounts = {"a": [0.0, 0.0, 1e9, 0.0], "b": [1e9, 0.0, 0.0, 0.0]}
    rates = best_rates({name: work(name, a) for name, a in amounts.items()}, 3)
    assert calls == [(name, number) for number in range(4) for name in "ab"]
    assert rates["a"] > 0
    assert rates["b"] == 0  # the first call does not count
    assert doing(7, lambda: None)(0) == 7


def test_short_work_is_repeated_within_a_turn():
    counts = {"short": 0, "long": 0}

    def work(name, seconds):
        def call(number):
            counts[name] += 1
            time.sleep(seconds)
            return 1

        return call

    best_rates({"short": work("short", 0.001), "long": work("long", 0.1)}, 2, 0.05)
    assert counts["long"] == 3
    assert counts["short"] > 4


@pytest.mark.parametrize("before", [None, "true"])
def test_one_core_leaves_the_environment_as_it_was(before, monkeypatch):
    name = "TOKENIZERS_PARALLELISM"
    monkeypatch.delenv(name, raising=False)
    if before is not None:
        monkeypatch.setenv(name, before)
    with one_core():
        assert os.environ[name] == "false"
    assert os.environ.get(name) == before


def test_the_text_of_a_corpus_gives_its_tokens_again(corpus):
    documents = list(data_speed.decoded(corpus))
    split, tokenizer = corpus.split("train"), corpus.tokenizer
    assert len(documents) == split.num_documents
    ids = [i for d in documents for s in d.sentences() for i in tokenizer.encode([s])]
    expected = split.tokens.slice(0, split.num_tokens)
    assert np.array_equal(np.concatenate(ids), expected)


def plain_rows(corpus):
    config = small_config(corpus.folder, data__batch_size=256)
    experiment = Experiment.open(config, report=SILENT)
    return data_speed._plain_batch(experiment.train_source())[0]


@pytest.mark.parametrize("words", [False, True])
def test_the_collator_does_the_same_work(corpus, words):
    """It masks 15 % of the text, and as words what are words to us."""
    batch, vocabulary = plain_rows(corpus), corpus.tokenizer.vocabulary
    out = hf_speed.collated(corpus.folder, batch, vocabulary, words=words)()
    ids_BL, labels_BL = batch["ids"], out["labels"].numpy()
    selected_BL = labels_BL != -100
    assert np.array_equal(labels_BL[selected_BL], ids_BL[selected_BL])
    assert not selected_BL[vocabulary.special_V[ids_BL]].any()
    assert selected_BL.sum() / batch["mask"].sum() == pytest.approx(0.15, abs=0.03)
    # Rows may be cut inside a word: then its rest begins behind a special token.
    row, column = np.nonzero(vocabulary.continues_word_V[ids_BL])
    inside = ~vocabulary.special_V[ids_BL[row, column - 1]]
    row, column = row[inside], column[inside]
    assert len(row) > 100
    apart = selected_BL[row, column] != selected_BL[row, column - 1]
    assert apart.any() != words


def test_datasets_gives_the_same_tokens(corpus):
    texts = [document.text for document in data_speed.decoded(corpus)]
    with hf_speed.one_thread():
        found = hf_speed.mapped_texts(corpus.folder, texts)()["input_ids"]
    expected = corpus.tokenizer.encode(texts)
    assert [list(ids) for ids in found] == [ids.tolist() for ids in expected]


def test_what_is_missing_is_named(corpus, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"datasets cannot.*encoderjax\[test\]"):
        main(flags_of(corpus, "--against=hf"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--sample_mb=0"], "--sample_mb=0"),
        (["--source=nowhere.txt"], "nowhere.txt"),
        (["--all_selector"], "--all_selectors"),
    ],
)
def test_bad_flags_are_refused(corpus, flags, message):
    with pytest.raises(UserError, match=message):
        main(flags_of(corpus, *flags))
