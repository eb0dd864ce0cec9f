"""Continued pretraining: any folder, any vocabulary, measured before and after."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    AutoTokenizer,
    BertForPreTraining,
    BertModel,
    RobertaConfig,
    RobertaForMaskedLM,
)

from encoderjax.config_loading import load_config
from encoderjax.data.preparation import prepare_corpus
from encoderjax.data.tokenizers import load_tokenizer, make_tokenizer
from encoderjax.errors import UserError
from encoderjax.evaluate import run as evaluate
from encoderjax.experiment import Experiment
from encoderjax.export import run as export
from encoderjax.interop.loading import load_model
from encoderjax.interop.start import Start
from encoderjax.interop.weights import leaves_of
from encoderjax.measured_splits import held_out_sources
from encoderjax.train import run as train
from encoderjax.training.metrics import MetricsWriter
from tests.small_corpus import documents
from tests.small_runs import all_lines, metrics
from tests.torch_models import random_bert, save_folder, torch_outputs

SILENT = lambda text: None
RECIPE = "configs/continue_pretraining.py:tiny"


def continued(corpus, **changes):
    """Returns the recipe, small; `changes` has `__` for the dots."""
    settings = {
        "steps": 2,
        "log_every": 1,
        "data__corpus": str(corpus),
        "data__length": 32,
        "data__batch_size": 16,
        "data__dupe_factor": 1,
        "optimizer__warmup_steps": 1,
        "eval__batches": 0,
        **changes,
    }
    return load_config(RECIPE, {k.replace("__", "."): v for k, v in settings.items()})


def prepared(folder: Path, tokenizer, text=None, validation=0.2, **options):
    folder.mkdir()
    (folder / "text.txt").write_text(text or "\n\n".join(documents(15)))
    return prepare_corpus(
        source=str(folder / "text.txt"),
        out=folder / "prepared",
        tokenizer=str(tokenizer),
        validation=validation,
        report=SILENT,
        **options,
    )


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    """A model of transformers, with a table of 99 rows for its 97 tokens."""
    model = random_bert(num_hidden_layers=1)
    return save_folder(model, tmp_path_factory.mktemp("old"))


@pytest.fixture(scope="module")
def old_corpus(old, tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("old_corpus") / "corpus", old)


@pytest.fixture(scope="module")
def domain(old, tmp_path_factory):
    """Other text, and a vocabulary with four words of it behind the old one."""
    text = "\n\n".join(documents(15, seed=1)).replace("ship", "steamship")
    folder = tmp_path_factory.mktemp("domain") / "corpus"
    return prepared(folder, old, text, extend_vocabulary=4)


@pytest.fixture(scope="module")
def continuation(old, domain, old_corpus, tmp_path_factory):
    """Two steps on the new domain, whose folder to start from then vanishes."""
    folder = tmp_path_factory.mktemp("continuation")
    shutil.copytree(old, folder / "start")
    config = continued(
        domain.folder,
        init_from=str(folder / "start"),
        init_vocabulary="extend",
        model__dropout_rate=0.0,
        eval__corpora__old=str(old_corpus.folder),
    )
    train(config, folder / "run")
    shutil.rmtree(folder / "start")
    return folder / "run", config


def test_both_domains_are_measured_before_and_after(continuation):
    workdir, _ = continuation
    for split in ("validation", "validation/old"):
        measured = metrics(workdir, split)
        assert list(measured) == [0, 2]
        assert measured[0]["mlm_loss"] != measured[2]["mlm_loss"]


def test_the_workdir_stands_alone(continuation, domain, old_corpus, tmp_path):
    workdir, _ = continuation
    described = json.loads((workdir / "config.json").read_text())
    assert described["model"]["family"] == "bert"
    assert described["model"]["width"] == 48
    assert described["model"]["vocab_size"] == 101
    assert described["model"]["dropout_rate"] == 0.0
    assert described["model"]["attention_dropout_rate"] == 0.1  # the folder's
    found = evaluate(workdir, corpus=str(old_corpus.folder), report=SILENT)
    written = metrics(workdir, "validation/old")[2]
    assert found["loss"] == pytest.approx(written["loss"], abs=1e-5)
    export(workdir, tmp_path / "exported")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "exported")
    for i, word in enumerate(domain.tokenizer.tokens(range(97, 101)), start=97):
        assert theirs(word, add_special_tokens=False)["input_ids"] == [i]
    # And can be gone on from in its turn.
    start = Start.open(str(workdir), ("mlm",))
    assert start.name.endswith("(bert, step 2)")
    again = prepared(tmp_path / "again", workdir)
    start.check(start.config, again.tokenizer, again.folder)


def test_a_run_goes_on_when_the_folder_it_began_with_is_gone(
    continuation, tmp_path, capsys
):
    workdir, config = continuation
    shutil.copytree(workdir, tmp_path / "run")
    changes = {"steps": 3, "model__dropout_rate": 0.0, "init_vocabulary": "extend"}
    changes["eval__corpora__old"] = config.eval.corpora["old"]
    # Also without the name of the folder.
    train(continued(config.data.corpus, init_from=None, **changes), tmp_path / "run")
    output = capsys.readouterr().out
    assert "resuming after step 2" in output
    before, after = (len(all_lines(w)) for w in (workdir, tmp_path / "run"))
    assert after == before + 3  # a step, and two corpora
    (row,) = (x for x in output.splitlines() if x.startswith("old") and "mlm loss" in x)
    measured = metrics(tmp_path / "run", "validation/old")
    losses = measured[0]["mlm_loss"], measured[3]["mlm_loss"]
    assert row.split()[3:5] == [f"{loss:.3f}" for loss in losses]


def test_new_words_start_as_the_mean_of_their_pieces(old, domain):
    experiment = Experiment.open(
        continued(domain.folder, init_from=str(old), init_vocabulary="extend"), SILENT
    )
    tokenizer, model = experiment.corpus.tokenizer, experiment.pretrainer().model
    start = Start.open(str(old), ("mlm",), "extend")
    params, lines = start.params_for(model, tokenizer, seed=0)
    loaded, ours = leaves_of(load_model(old).params), leaves_of(params)
    rows = {"encoder/token_embed/embedding", "heads/mlm/bias"}
    for path, leaf in ours.items():
        kept = slice(97) if path in rows else slice(None)
        np.testing.assert_array_equal(leaf[kept], loaded[path][kept])
    for i, word in enumerate(tokenizer.tokens(range(97, 101)), start=97):
        (pieces,) = load_tokenizer(old).encode([word])
        assert len(pieces) > 1
        for path in rows:
            mean = loaded[path][pieces].mean(axis=0)
            np.testing.assert_allclose(ours[path][i], mean, rtol=1e-5, atol=1e-8)
    total = sum(leaf.size for leaf in ours.values())
    assert f"{total - 4 * 49:,} of {total:,} parameters loaded" in lines[0]
    assert "99 -> 101 rows: 97 kept, 4 the mean of the pieces" in lines[1]
    assert "heads/nsp is there and not used by this run" in lines


def test_a_vocabulary_can_be_replaced(old, tmp_path):
    other = prepared(tmp_path / "other", "wordpiece:90")
    config = continued(other.folder, init_from=str(old), init_vocabulary="replace")
    experiment = Experiment.open(config, SILENT)
    assert experiment.encoder.vocab_size == 90
    start = Start.open(str(old), ("mlm",), "replace")
    start.check(experiment.encoder, other.tokenizer, other.folder)
    model = experiment.pretrainer().model
    params, lines = start.params_for(model, other.tokenizer, seed=0)
    loaded = load_model(old)
    tables = [
        tree["encoder"]["token_embed"]["embedding"] for tree in (params, loaded.params)
    ]
    assert tables[0].shape == (90, 48)
    new, before = (
        {entry: i for i, entry in enumerate(t.tokens(range(t.vocabulary.size)))}
        for t in (other.tokenizer, loaded.need_tokenizer())
    )
    both = new.keys() & before.keys()
    assert len(both) > 30
    assert any(new[entry] != before[entry] for entry in both)
    for entry in both:
        np.testing.assert_array_equal(tables[0][new[entry]], tables[1][before[entry]])
    assert f"99 -> 90 rows: {len(both)} kept" in lines[1]


def test_pytorch_measures_the_same_losses_before_the_first_step(
    continuation, old, domain
):
    """On both domains, with the rows of the new words made by other means."""
    workdir, config = continuation
    theirs = BertForPreTraining.from_pretrained(old).eval()
    tokenizer = AutoTokenizer.from_pretrained(old)
    words = domain.tokenizer.tokens(range(97, 101))
    pieces = tokenizer(words, add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        old_rows = theirs.bert.embeddings.word_embeddings.weight.clone()
        old_bias = theirs.cls.predictions.bias.clone()
        theirs.resize_token_embeddings(101, mean_resizing=False)
        for i, ids in enumerate(pieces, start=97):
            theirs.bert.embeddings.word_embeddings.weight[i] = old_rows[ids].mean(0)
            theirs.cls.predictions.decoder.bias[i] = old_bias[ids].mean()

    there = dataclasses.replace(config, init_from=str(old))
    sources = held_out_sources(Experiment.open(there, SILENT))
    assert list(sources) == ["validation", "validation/old"]
    for split, parts in sources.items():
        (source,) = parts.values()
        batch = source.rows(*source.order.at(np.arange(len(source.index.passes[0]))))
        inputs = (batch[name] for name in ("ids", "mask", "segments"))
        logits = torch_outputs(theirs, *inputs).prediction_logits
        row, slot = np.nonzero(batch["mlm/weights"])
        labels = torch.tensor(batch["mlm/labels"][row, slot], dtype=torch.long)
        logits = logits[row, batch["mlm/positions"][row, slot]]
        loss = torch.nn.functional.cross_entropy(logits, labels)
        found = metrics(workdir, split)[0]["mlm_loss"]
        assert found == pytest.approx(float(loss), abs=1e-5)


def test_heads_that_the_folder_lacks_are_made_anew_and_named(old_corpus, tmp_path):
    folder = save_folder(random_bert(BertModel), tmp_path / "encoder")
    config = continued(old_corpus.folder, init_from=str(folder))
    model = Experiment.open(config, SILENT).pretrainer().model
    start = Start.open(str(folder), ("mlm",))
    params, lines = start.params_for(model, old_corpus.tokenizer, seed=0)
    assert model.config.vocab_size == 99  # with the rows that the folder has to spare
    assert "heads/mlm is not there: made anew, UNTRAINED" in lines
    ours, loaded = leaves_of(params), leaves_of(load_model(folder).params)
    for path, leaf in loaded.items():
        np.testing.assert_array_equal(ours[path], leaf)
    assert ours["heads/mlm/dense/kernel"].std() > 0


SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 48,
}


@pytest.mark.parametrize(
    ("spec", "make"),
    [
        ("bbpe:400", lambda size: RobertaForMaskedLM(_config(RobertaConfig, size))),
        (
            "unigram:100",
            lambda size: AlbertForMaskedLM(
                _config(AlbertConfig, size, embedding_size=16)
            ),
        ),
    ],
    ids=["roberta", "albert"],
)
def test_folders_of_other_families_need_no_other_recipe(spec, make, tmp_path):
    tokenizer = make_tokenizer(spec, documents)
    folder, size = tmp_path / "model", tokenizer.vocabulary.size
    make(size).save_pretrained(folder)
    tokenizer.save(folder)
    text = "\n\n".join(documents(15)).replace("ship", "steamship")
    corpus = prepared(tmp_path / "corpus", folder, text, extend_vocabulary=1)
    config = continued(corpus.folder, init_from=str(folder), init_vocabulary="extend")
    experiment = Experiment.open(config, SILENT)
    start = Start.open(str(folder), ("mlm",), "extend")
    assert experiment.described()["model"]["family"] == start.loaded.family
    start.check(experiment.encoder, corpus.tokenizer, corpus.folder)
    model = experiment.pretrainer().model
    params, _ = start.params_for(model, corpus.tokenizer, seed=0)
    table = params["encoder"]["token_embed"]["embedding"]
    before = start.loaded.params["encoder"]["token_embed"]["embedding"]
    np.testing.assert_array_equal(table[:size], before)
    # The last entry is the new word; a space before it belongs to it.
    word = corpus.tokenizer.decode([corpus.tokenizer.vocabulary.size - 1]).strip()
    head, pieces = tokenizer.encode(["the", f"the {word}"])
    assert len(pieces) > len(head) + 1
    mean = before[pieces[len(head) :]].mean(axis=0)
    np.testing.assert_allclose(table[-1], mean, rtol=1e-5, atol=1e-8)


def _config(config_class, size, **changes):
    return config_class(vocab_size=size, max_position_embeddings=66, **SMALL, **changes)


def test_what_does_not_fit_is_refused_before_anything_is_made(
    old, domain, old_corpus, tmp_path
):
    here, there = str(old_corpus.folder), str(domain.folder)
    other = str(prepared(tmp_path / "other", "wordpiece:90").folder)
    whole = str(prepared(tmp_path / "whole", old, validation=0.0).folder)
    cases = (
        (here, {"init_from": None}, r"to init_from: give --config.init_from=FOLDER"),
        (
            here,
            {"init_from": "no/runs/bert_tiny-tiny"},
            r"does not exist; make it with .*--config=configs/bert_tiny.py:tiny",
        ),
        (there, {}, r"--tokenizer=.*, or set init_vocabulary='extend'"),
        (other, {"init_vocabulary": "extend"}, r"does not begin with .*'replace'"),
        (here, {"model__width": 32}, r"model.width=32 does not fit init_from"),
        (here, {"model__width": 31}, r"model.width=31 is not divisible"),
        (here, {"data__length": 64}, r"data.length=64.*model.max_length=40"),
        (here, {"eval__corpora__b": other}, r"eval.corpora.b=.* another vocabulary"),
        (here, {"eval__corpora__b": whole}, r"eval.corpora.b=.* no held-out documents"),
        (here, {"eval__corpora__b": "no"}, r"eval.corpora.b=no does not exist"),
    )
    for folder, changes, expected in cases:
        config = continued(folder, **{"init_from": str(old)} | changes)
        with pytest.raises(UserError, match=expected) as error:
            train(config, tmp_path / "run")
        assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_run_that_begins_anew_takes_over_no_measurement(tmp_path):
    """Another folder may have been measured before a first checkpoint."""
    for first, expected in ((0, None), (7, {"loss": 1.0})):
        writer = MetricsWriter(tmp_path, 0)
        writer.write(0, "validation", {"loss": 1.0})
        writer.close()
        again = MetricsWriter(tmp_path, first)
        assert again.written(0).get("validation") == expected
        again.close()


def test_an_open_model_is_refused_where_it_is_half_named():
    for changes, expected in (
        ({"model__size": "tiny"}, r"model.size='tiny' needs model.family"),
        ({"model__family": "bert"}, r"model.size is missing"),
        ({"model__widht": 3}, r"model.widht is not a field.*did you mean 'width'"),
        ({"init_vocabulary": "extended"}, r"init_vocabulary='extended' must be one of"),
        ({"eval__corpora__old": ""}, r"eval.corpora.old='' must be the folder"),
    ):
        with pytest.raises(UserError, match=expected):
            continued("demo", **changes)
