import json

import numpy as np
import pytest
import torch
from transformers import BertForPreTraining

from encoderjax.data.corpora import Corpora, Member
from encoderjax.errors import UserError
from encoderjax.evaluate import main, run, unigram_entropy
from encoderjax.experiment import Experiment
from encoderjax.export import run as export
from encoderjax.train import run as train
from tests.small_corpus import prepare_small_corpus
from tests.small_runs import metrics, small_config

SILENT = lambda text: None


@pytest.fixture(scope="module")
def workdir(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluated")
    train(small_config(corpus.folder, steps=3, optimizer__warmup_steps=1), folder)
    return folder


@pytest.fixture(scope="module")
def exported(workdir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported") / "model"
    export(workdir, folder)
    return folder


def test_a_workdir_gives_the_metrics_of_its_training(workdir):
    expected = metrics(workdir, "validation")[3]
    found = run(workdir, report=SILENT)
    assert found == pytest.approx({name: expected[name] for name in found}, abs=1e-5)


def test_metrics_do_not_depend_on_the_batch_size(workdir):
    small, large = (run(workdir, batch_size=n, report=SILENT) for n in (8, 56))
    assert small == pytest.approx(large, abs=1e-5)


def test_an_export_gives_the_same_metrics(workdir, exported, corpus):
    expected = run(workdir, report=SILENT)
    found = run(exported, corpus=str(corpus.folder), length=32, report=SILENT)
    assert found == pytest.approx(expected, abs=1e-5)


def test_pytorch_finds_the_same_held_out_loss(workdir, exported, corpus):
    """The same masked rows, through transformers."""
    model = BertForPreTraining.from_pretrained(exported).eval()
    experiment = Experiment.open(small_config(corpus.folder), SILENT)
    (source,) = experiment.validation_sources().values()
    count = len(source.index.passes[0])
    epochs, rows = source.order.at(np.arange(count))
    batch = source.rows(epochs, rows)
    as_long = lambda x: torch.tensor(x, dtype=torch.long)
    with torch.no_grad():
        out = model(
            input_ids=as_long(batch["ids"]),
            attention_mask=as_long(batch["mask"]),
            token_type_ids=as_long(batch["segments"]),
        )
    row, slot = np.nonzero(batch["mlm/weights"])
    logits = out.prediction_logits[row, batch["mlm/positions"][row, slot]]
    labels = as_long(batch["mlm/labels"][row, slot])
    loss = torch.nn.functional.cross_entropy(logits, labels)
    pairs = torch.nn.functional.cross_entropy(
        out.seq_relationship_logits, as_long(batch["second"])
    )
    found = run(workdir, report=SILENT)
    assert found["mlm_loss"] == pytest.approx(float(loss), abs=1e-5)
    assert found["nsp_loss"] == pytest.approx(float(pairs), abs=1e-5)


def test_json_is_one_object(workdir, capsys):
    main([f"--model={workdir}", "--json", "--rows=16"])
    assert json.loads(capsys.readouterr().out)["mlm_accuracy"] >= 0


def test_another_vocabulary_is_refused(workdir, tmp_path):
    other = prepare_small_corpus(tmp_path, count=5)
    with pytest.raises(UserError, match="another vocabulary"):
        run(workdir, corpus=str(other.folder), report=SILENT)


def test_a_plain_model_needs_a_corpus(exported):
    with pytest.raises(UserError, match="--corpus=DIR is needed"):
        run(exported, report=SILENT)


def test_unigram_entropy_is_the_cross_entropy_of_frequencies(corpus):
    split = corpus.split("validation")
    tokens = split.tokens.slice(0, split.num_tokens)
    counts = corpus.unigrams_V + 1
    expected = -np.mean([np.log(counts[t] / counts.sum()) for t in tokens])
    corpora = Corpora("", (Member("", corpus),))
    assert unigram_entropy(corpora) == pytest.approx(expected)
