"""Every form on a prepared corpus: batches, the kept index, masks and previews."""

import dataclasses

import numpy as np
import pytest

from encoderjax.data.forms import FORMS
from encoderjax.data.pipeline import BatchSource, DataConfig, Lexicon
from encoderjax.data.rows import open_row_index
from encoderjax.data.stream import separator_of
from encoderjax.data.tokenizers import make_tokenizer
from encoderjax.errors import UserError
from encoderjax.models.families import preset
from encoderjax.objectives.mlm import MaskedLM
from encoderjax.objectives.pairs import NextSentence, SentenceOrder
from encoderjax.objectives.selectors import SELECTORS
from encoderjax.preview import main, run
from tests.small_corpus import documents
from tests.small_runs import small_config

SILENT = lambda text: None
TYPES = {"ids": "int32", "mask": "bool", "segments": "int32", "second": "int32"}
TYPES |= {"row": "uint32", "row_weights": "float32", "paired": "float32"}
ADDED = {
    "packed": {"documents": "int32", "positions": "int32"},
    "reuse_pair": {"reversed": "bool"},
    "parallel": {"positions": "int32"},
}
OPTIONS = {"reuse_pair": {"reuse_length": 8, "bidirectional": True}}
STREAMS = [name for name, form in FORMS.items() if form.separators is not None]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("rows")


def data_of(form, **changes):
    settings = {"corpus": "x", "form": form, "length": 32, "dupe_factor": 2}
    return DataConfig(**settings | {"batch_size": 16} | OPTIONS.get(form, {}) | changes)


def index_of(corpus, cache, form, **changes):
    settings = data_of(form, **changes).row_settings(0)
    return open_row_index(
        corpus, "train", settings, cache_dir=str(cache), report=SILENT
    )


def source_of(corpus, cache, form, *, corruptions=(), **changes):
    index = index_of(corpus, cache, form, **changes)
    return BatchSource(
        index=index,
        order=index.order(0),
        lexicon=Lexicon(corpus.tokenizer.vocabulary, corpus.unigrams_V),
        corruptions=corruptions,
        batch_size=16,
        seed=0,
    )


@pytest.mark.parametrize("form", FORMS)
def test_batches_have_their_keys_and_are_the_same_in_any_parts(corpus, cache, form):
    source = source_of(corpus, cache, form)
    expected = TYPES | ADDED.get(form, {})
    assert {k: v.dtype.name for k, v in source.batch(0).items()} == expected
    masked = dataclasses.replace(source, corruptions=(MaskedLM(max_predictions=5),))
    for step in (0, 100_000):
        whole = masked.batch(step)
        for part in (slice(0, 4), slice(4, 16), np.array([7, 0, 15])):
            batch = masked.batch(step, part)
            assert all(np.array_equal(batch[name], whole[name][part]) for name in whole)


@pytest.mark.parametrize("form", FORMS)
def test_rows_are_those_of_the_text_and_of_their_length(corpus, cache, form):
    source = source_of(corpus, cache, form)
    split, vocabulary = corpus.split("train"), corpus.tokenizer.vocabulary
    stream = split.tokens.slice(0, split.num_tokens).astype(np.uint16)
    forward, backward = stream.tobytes(), stream[::-1].tobytes()
    batch = source.batch(2)
    assert (batch["mask"].sum(axis=1) <= 32).all()
    for row, ids in enumerate(batch["ids"]):
        ids = ids[batch["mask"][row]]
        special = np.flatnonzero(vocabulary.special_V[ids])
        backwards = form == "reuse_pair" and batch["reversed"][row]
        for text in np.split(ids, special):
            text = text[~vocabulary.special_V[text]].astype(np.uint16).tobytes()
            assert text in (backward if backwards else forward)


@pytest.mark.parametrize("form", FORMS)
def test_the_index_is_cut_once_and_mapped(corpus, tmp_path, form):
    index = index_of(corpus, tmp_path, form)
    (folder,) = tmp_path.iterdir()
    stamps = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    again = index_of(corpus, tmp_path, form)
    assert {p.name: p.stat().st_mtime_ns for p in folder.iterdir()} == stamps
    assert len(index.passes) == (2 if FORMS[form].draws else 1)
    for old, new in zip(index.passes, again.passes, strict=True):
        assert isinstance(new.pieces_S, np.memmap)
        assert np.array_equal(old.pieces_S, new.pieces_S)
        assert (new.starts_R is not None) == (form == "packed")
        if form == "packed":
            assert isinstance(new.starts_R, np.memmap)
            assert np.array_equal(old.starts_R, new.starts_R)
    separated = index.settings.separators != "none"
    assert isinstance(again.stream.separators_N, np.memmap) == separated


def test_any_row_setting_makes_another_index(corpus, tmp_path):
    for changes in (
        {"form": "full_sentences"},
        {"form": "full_sentences", "separators": "sentences"},
        {"form": "full_sentences", "long_sentences": "skip"},
        {"form": "doc_sentences"},
        {"form": "reuse_pair"},
        {"form": "reuse_pair", "batch_size": 8},
        {"form": "reuse_pair", "reuse_length": 9},
        {"form": "reuse_pair", "bidirectional": False},
    ):
        index_of(corpus, tmp_path, **changes)
    assert len(list(tmp_path.iterdir())) == 8


@pytest.mark.parametrize("form", STREAMS)
@pytest.mark.parametrize("select", SELECTORS)
def test_separators_are_never_predicted(corpus, cache, form, select):
    objective = MaskedLM(max_predictions=10, select=select, rate=0.3)
    source = source_of(
        corpus, cache, form, separators="sentences", corruptions=(objective,)
    )
    vocabulary = corpus.tokenizer.vocabulary
    inside = predicted = 0
    for step in range(4):
        plain = dataclasses.replace(source, corruptions=()).batch(step)
        inside += (plain["ids"] == vocabulary.sep_id).sum()
        batch = source.batch(step)
        used = batch["mlm/weights"] > 0
        predicted += used.sum()
        labels = batch["mlm/labels"][used]
        assert not np.isin(labels, [vocabulary.sep_id, vocabulary.cls_id]).any()
    assert inside > 4 * 16  # not only those that end rows
    assert predicted > 200


def test_the_separator_of_xlnet_is_its_own(corpus):
    texts = lambda: documents(10)
    xlnet = make_tokenizer("unigram/xlnet:80", texts)
    assert xlnet.tokens([separator_of(xlnet)]) == ["<eod>"]
    assert separator_of(corpus.tokenizer) == corpus.tokenizer.vocabulary.sep_id


def test_a_corpus_too_small_for_its_streams_is_refused(corpus, tmp_path):
    with pytest.raises(UserError, match=r"batch_size=4096") as error:
        index_of(corpus, tmp_path, "reuse_pair", batch_size=4096)
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match=r"reuse_length=28.*at most 27"):
        index_of(corpus, tmp_path, "reuse_pair", reuse_length=28)
    assert not list(tmp_path.iterdir())


# ---- what objectives make of them ----


def test_pair_objectives_say_which_forms_they_can_learn_from():
    encoder = preset("bert", "tiny")
    for objective, second in ((NextSentence(), "random"), (SentenceOrder(), "swapped")):
        for form in ("segment_pair", "sentence_pair"):
            data = data_of(form, second=second)
            assert objective.resolved(data, encoder) == objective
        with pytest.raises(UserError, match=r"several documents.*segment_pair"):
            objective.resolved(data_of("packed"), encoder)
        for form in ("full_sentences", "doc_sentences", "contiguous"):
            with pytest.raises(UserError, match=f"'{form}' have one segment"):
                objective.resolved(data_of(form), encoder)
        with pytest.raises(UserError, match=f"data.second='{second}', not 'next'"):
            objective.resolved(data_of("segment_halves"), encoder)
    assert NextSentence().resolved(data_of("segment_pair"), encoder)
    assert NextSentence().resolved(data_of("reuse_pair"), encoder)
    swaps = data_of("segment_pair", second="swapped_only")
    assert SentenceOrder().resolved(swaps, encoder)
    with pytest.raises(UserError, match=r"second='random', not 'swapped_only'"):
        NextSentence().resolved(swaps, encoder)


def test_rows_of_one_segment_do_not_count_in_pair_losses(corpus, cache):
    source = source_of(
        corpus, cache, "segment_pair", second="swapped_only", length=16, short_rate=0.0
    )
    rows = np.arange(32)
    batch = source.rows(np.zeros(32, int), np.where(rows < 30, rows, -1))
    single = batch["segments"].max(axis=1) == 0
    assert 0 < single[:30].sum() < 30
    counts = SentenceOrder().counts({"paired": batch["paired"]})
    assert counts["sop_loss"] == (~single[:30]).sum()


# ---- previews ----


def preview(corpus, form, **changes):
    settings = {"data__second": None, "objectives__nsp": None, "data__form": form}
    settings |= {f"data__{k}": v for k, v in OPTIONS.get(form, {}).items()}
    settings |= {"data__bidirectional": False}  # masked LM reads no backward rows
    config = small_config(corpus.folder, **settings | changes)
    return run(config, rows=20, batches=4, report=SILENT)


# Of the small corpus nothing is translated.
@pytest.mark.parametrize("form", [n for n, f in FORMS.items() if not f.parallel])
def test_previews_show_labels_of_pairs_alone(corpus, form):
    found = preview(corpus, form)
    rows, stats = found["rows"], found["stats"]
    assert stats["fill"] == pytest.approx(1 - stats["padding_share"])
    assert stats["selected_share"] > 0.1
    if FORMS[form].segments == 1:
        assert stats["labels"] == {}
        assert all(row["label"] is None for row in rows)
    else:
        assert sum(stats["labels"].values()) == pytest.approx(1)
        for row in rows:
            assert (row["label"] is None) == (1 not in row["segments"])
    assert all(("reversed" in row) == (form == "reuse_pair") for row in rows)


def test_previews_set_documents_of_a_row_apart(corpus):
    config = {"data__length": 512, "objectives__mlm__max_predictions": 77}
    found = preview(corpus, "packed", **config)
    assert found["stats"]["fill"] > 0.8  # a corpus of few documents
    several = 0
    for row in found["rows"]:
        number = row["text"].split().count("[CLS]")  # not those put there at random
        assert row["text"].split().count("|") == number - 1
        assert row["text"].count("[SEP] | [CLS]") == number - 1
        several += number > 1
    assert several


def test_the_command_says_which_rows_are_read_backward(corpus, capsys):
    flags = {"data.corpus": corpus.folder, "data.length": 32, "data.batch_size": 4}
    flags |= {"data.reuse_length": 8, "model.reuse_length": 8}
    main(
        [
            *("--config=configs/xlnet_base.py:tiny", "--rows=4", "--batches=1"),
            *(f"--config.{name}={value}" for name, value in flags.items()),
        ]
    )
    lines = [x for x in capsys.readouterr().out.splitlines() if x.startswith("row ")]
    assert ["right to left" in line for line in lines] == [False, False, True, True]
    assert all("second segment: " in line for line in lines)
