"""Rows of a line and its translation: text, positions, languages (XLM)."""

import json

import numpy as np
import pytest

from encoderjax.config_loading import load_config
from encoderjax.data.corpus import Corpus
from encoderjax.data.preparation import prepare_corpus
from encoderjax.errors import UserError
from encoderjax.experiment import Experiment
from encoderjax.preview import run as preview
from tests.small_corpus import documents, prepare_group

SILENT = lambda text: None


def pairs(count=300):
    """Lines, and the same with every word spelled backwards."""
    lines = [line for text in documents(60) for line in text.splitlines()]
    return [
        {"en": line, "xx": " ".join(w[::-1] for w in line.lower().split())}
        for line in lines[:count]
    ]


def write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def prepared(folder, records, tokenizer="wordpiece:200", name="pairs", **options):
    source = write(folder / f"{name}.jsonl", records)
    settings = {"text_key": "en,xx", "sentences": "fields", "validation": 0.1}
    return prepare_corpus(
        source=source,
        out=folder / name,
        tokenizer=tokenizer,
        report=SILENT,
        **settings | options,
    )


@pytest.fixture(scope="module", params=["wordpiece:200", "unigram/xlm_roberta:90"])
def translated(request, tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("pairs"), pairs(), request.param)


def opened(corpus, **changes):
    settings = {
        "data.corpus": str(corpus),
        "data.alpha": None,
        "data.length": 40,
        "data.batch_size": 16,
        "data.dupe_factor": 2,
        "model.languages": ("en", "xx"),
    }
    config = load_config("configs/xlm_tlm_base.py:tiny", settings | changes)
    return Experiment.open(config, SILENT)


def sentences(corpus, split="train"):
    """Returns the two texts of each document."""
    found = corpus.split(split)
    starts = found.sentence_starts.slice(0, found.num_sentences + 1)
    documents = found.document_starts.slice(0, found.num_documents + 1)
    ids = found.tokens.slice(0, found.num_tokens)
    return [
        tuple(ids[starts[s] : starts[s + 1]].tolist() for s in (first, first + 1))
        for first in documents[:-1].tolist()
    ]


def test_fields_are_the_two_lines_of_a_document(translated):
    assert translated.languages == ("en", "xx")
    counts = translated.manifest["counts"]["train"]
    assert counts["sentences"] == 2 * counts["documents"]
    decode = lambda ids: translated.tokenizer.decode(ids).lower()
    for english, other in sentences(translated)[:50]:
        words = decode(english).replace(".", "").split()
        assert [w[::-1] for w in words] == decode(other).replace(".", "").split()


def test_a_field_is_one_line_and_neither_is_blank(tmp_path):
    records = [{"en": "a line\nof two\n\nparts", "xx": "one"}, *pairs(60)]
    records += [{"en": "alone", "xx": "  "}, {"en": None, "xx": "alone"}]
    corpus = prepared(tmp_path, records, validation=0.0)
    found = sentences(corpus)
    assert len(found) == 61
    decoded = corpus.tokenizer.decode(found[0][0])
    assert decoded.replace(" ", "") == "alineoftwoparts"


def concatenated(first, second, layout, languages):
    """XLM's `concat_batches` with positions reset, and BERT's layout beside it."""
    if len(layout.between) == 2:  # each text between two separators of its own
        first = [*layout.before, *first, layout.between[0]]
        second = [layout.between[1], *second, *layout.after]
    else:
        first = [*layout.before, *first, *layout.between]
        second = [*second, *layout.after]
    ids = first + second
    positions, langs = np.arange(len(ids)), np.full(len(ids), languages[0])
    positions[len(first) :] -= len(first)
    langs[len(first) :] = languages[1]
    return ids, positions.tolist(), langs.tolist()


def test_rows_are_those_of_the_reference(translated):
    experiment = opened(translated.folder, **{"objectives.mlm.rate": 0.01})
    source = experiment.full_length_source()
    plain = type(source)(**{**vars(source), "corruptions": ()})
    layout = translated.tokenizer.layout
    texts = sentences(translated)
    expected = [
        [
            concatenated(a, b, layout, (0, 1)),
            concatenated(b, a, layout, (1, 0)),
        ]
        for a, b in texts
    ]
    rows = len(source.index.passes[0])
    assert rows == len(texts)
    orders = np.zeros((2, rows), int)
    long = 0
    for epoch in range(2):
        numbers = np.arange(rows)
        batch = plain.rows(np.full(rows, epoch), numbers)
        for row in range(rows):
            mask = batch["mask"][row]
            ids = batch["ids"][row, mask].tolist()
            found = [turned for turned in (0, 1) if expected[row][turned][0] == ids]
            if not found:  # cut to the length
                assert mask.all()
                long += 1
                continue
            orders[epoch, row] = found[0]
            _, positions, languages = expected[row][found[0]]
            assert batch["positions"][row, mask].tolist() == positions
            assert batch["languages"][row, mask].tolist() == languages
            assert not batch["positions"][row, ~mask].any()
        assert (batch["paired"] == 1).all()
    assert long < rows  # of both passes
    assert 0.35 < orders.mean() < 0.65  # either comes first, drawn for each pass
    assert 0.35 < (orders[0] != orders[1]).mean() < 0.65


def test_what_is_too_long_loses_its_ends(tmp_path):
    record = {"en": " ".join(["sea"] * 30), "xx": "aes aes"}
    corpus = prepared(tmp_path, [record, *pairs(60)], validation=0.0)
    source = opened(corpus.folder, **{"data.length": 16}).full_length_source()
    batch = source.rows(np.zeros(1, int), np.zeros(1, int))
    english = batch["languages"][0] == 0
    assert batch["mask"].all()
    short = len(sentences(corpus)[0][1])
    assert (~english).sum() >= min(short, 6)
    assert english.sum() >= 7


def test_held_out_rows_do_not_change(translated):
    experiment = opened(translated.folder)
    (source,) = experiment.validation_sources().values()
    first, again = (source.batch(0) for _ in range(2))
    for name, value in first.items():
        assert np.array_equal(value, again[name])
    other = opened(translated.folder, seed=3).validation_sources()[""].batch(0)
    assert np.array_equal(other["ids"], first["ids"])
    assert {"positions", "languages"} <= first.keys()


def test_a_mixture_tells_the_language_of_every_row(tmp_path):
    group = prepare_group(tmp_path, {"en": 20, "de": 12})
    prepared(tmp_path, pairs(), str(group / "en"), name="en-xx")
    # As `prepare --language_key` writes it.
    for name in ("en", "de"):
        path = group / name / "manifest.json"
        manifest = json.loads(path.read_text())
        path.write_text(json.dumps(manifest | {"language": name}))
    corpora = f"{group}:0.5,{tmp_path / 'en-xx'}:0.5"
    languages = {"model.languages": ("de", "en", "xx")}
    experiment = opened(corpora, **languages, **{"data.alpha": 0.7})
    source = experiment.full_length_source()
    names = list(experiment.corpus.shares)
    batch = source.batch(0)
    _, rows = source.places(0, slice(None))
    seen = set()
    for row, member in enumerate(source.index.members_of(rows)):
        found = set(batch["languages"][row, batch["mask"][row]].tolist())
        expected = {"group/de": {0}, "group/en": {1}, "en-xx": {1, 2}}[names[member]]
        assert found == expected
        mono = len(expected) == 1
        assert (batch["paired"][row] == 0) == mono
        if mono:
            positions = batch["positions"][row, batch["mask"][row]]
            assert np.array_equal(positions, np.arange(len(positions)))
        seen.add(names[member])
    assert len(seen) == 3
    # The same rows, one by one: what a row says does not depend on the others.
    for row in range(4):
        alone = source.batch(0, np.array([row]))
        for name in ("ids", "positions", "languages"):
            assert np.array_equal(alone[name][0], batch[name][row])


def test_preview_parts_the_lines(translated):
    config = opened(translated.folder).config
    found = preview(config, rows=3, batches=2, report=SILENT)
    assert all(" | " in row["text"] for row in found["rows"])
    assert found["stats"]["selected_share"] == pytest.approx(0.13, abs=0.03)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text_key": "en"}, "--text_key=en: give two fields, called by their lang"),
        ({"text_key": "en,en"}, "--text_key=en,en: give two fields"),
        ({"language_key": "xx"}, "--language_key=xx: the fields name the languages"),
    ],
)
def test_other_fields_are_refused(options, message, tmp_path):
    with pytest.raises(UserError, match=message):
        prepared(tmp_path, pairs(20), **options)


def test_text_has_no_fields(tmp_path):
    (tmp_path / "a.txt").write_text("a\tb\n")
    with pytest.raises(UserError, match=r"--sentences=fields does not fit .*a\.txt"):
        prepare_corpus(
            source=str(tmp_path / "a.txt"),
            out=tmp_path / "out",
            tokenizer="wordpiece:50",
            text_key="en,xx",
            sentences="fields",
            report=SILENT,
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.languages": ("en", "fr")}, "lacks 'xx', the language of corpus"),
        ({"model.languages": ("en", "en")}, "names one twice"),
        ({"data.form": "full_sentences"}, "would mix the languages.*to parallel"),
        ({"model.positions": "relative_key"}, "positions anew.*learned or rope"),
        ({"objectives.rtd": {}}, "model.languages does not go with objectives.rtd"),
    ],
)
def test_what_cannot_be_told_is_refused(changes, message, translated):
    with pytest.raises(UserError, match=message):
        opened(translated.folder, **changes).full_length_source()


def test_a_corpus_without_translations_or_language_is_refused(corpus: Corpus):
    with pytest.raises(UserError, match="has no translations; prepare some with"):
        opened(corpus.folder).full_length_source()
    changes = {"data.form": "full_sentences"}
    with pytest.raises(UserError, match="does not say its language; prepare it with"):
        opened(corpus.folder, **changes).full_length_source()
