"""Runs on several corpora: one curve, one resume, losses by member."""

import contextlib
import json
import shutil

import numpy as np
import pytest

from encoderjax.config import RunConfig
from encoderjax.demonstration import masked_texts
from encoderjax.errors import UserError
from encoderjax.evaluate import _in_small_batches, members_line
from encoderjax.evaluate import main as evaluate_main
from encoderjax.evaluate import run as evaluate
from encoderjax.experiment import Experiment
from encoderjax.identity import run_identity
from encoderjax.measured_splits import held_out_sources
from encoderjax.phases import identity_at, open_stages, whole_run
from encoderjax.preview import main as preview_main
from encoderjax.preview import run as preview
from encoderjax.train import run
from tests.small_corpus import prepare_group
from tests.small_runs import RECIPE, curve, metrics, overrides, small_config

SILENT = lambda text: None
NAMES = ("de", "en", "sw")
SMALL = {
    "model.num_layers": 1,
    "model.dropout_rate": 0.0,
    "model.attention_dropout_rate": 0.0,
}
# Rows of three members in buckets of two lengths.
CHANGES = SMALL | {
    "steps": 12,
    "checkpoint.every": 4,
    "checkpoint.keep": 3,
    "eval.every": 6,
    "data.form": "sentence_pair",
    "data.buckets": "(24,)",
    "data.alpha": 0.7,
}

WEIGHTED = SMALL | {"steps": 2, "optimizer.warmup_steps": 1}


@pytest.fixture(scope="module")
def whole(group, tmp_path_factory):
    """Twelve steps in one go."""
    workdir = tmp_path_factory.mktemp("mixed")
    run(small_config(group, **CHANGES), workdir)
    return workdir


def test_a_mixed_and_bucketed_run_resumes_bit_for_bit(whole, group, tmp_path):
    workdir = tmp_path / "killed"
    shutil.copytree(whole, workdir)
    for step in (8, 12):
        shutil.rmtree(workdir / "checkpoints" / str(step))
    run(small_config(group, **CHANGES), workdir)
    assert curve(workdir) == curve(whole)
    for split in ("validation", *(f"validation/{name}" for name in NAMES)):
        assert list(metrics(workdir, split)) == [6, 12]
        assert metrics(workdir, split) == metrics(whole, split)


def test_losses_of_members_add_up_to_the_whole(whole, group):
    """Weighted by the predictions of each, which are counted on the host."""
    sources = Experiment.open(
        small_config(group, **CHANGES), SILENT
    ).validation_sources()
    found = metrics(whole, "validation")[12]
    for term, key in (("mlm", "mlm/weights"), ("nsp", "paired")):
        losses, counts = [], []
        for name in NAMES:
            rows = np.arange(len(sources[name].index.passes[0]))
            counts.append(sources[name].rows(np.zeros_like(rows), rows)[key].sum())
            losses.append(metrics(whole, f"validation/{name}")[12][f"{term}_loss"])
        expected = np.dot(losses, counts) / np.sum(counts)
        assert found[f"{term}_loss"] == pytest.approx(expected, rel=1e-6)
    assert found["loss"] == pytest.approx(found["mlm_loss"] + found["nsp_loss"])


def test_a_member_is_measured_as_if_it_were_alone(whole, group):
    found = evaluate(whole, batch_size=16, report=SILENT)
    written = {"": metrics(whole, "validation")[12]}
    written |= {f"/{name}": metrics(whole, f"validation/{name}")[12] for name in NAMES}
    for suffix, expected in written.items():
        for metric in ("loss", "mlm_loss", "mlm_accuracy", "nsp_loss"):
            value = found[f"{metric}{suffix}"]
            assert value == pytest.approx(expected[metric], abs=1e-5)
    alone = evaluate(whole, corpus=str(group / "en"), batch_size=16, report=SILENT)
    assert alone["loss"] == pytest.approx(found["loss/en"], abs=1e-6)
    assert not any("/" in name for name in alone)


def test_some_rows_are_taken_of_every_member_in_proportion(whole, group):
    every = evaluate(whole, batch_size=8, report=SILENT)
    many = evaluate(whole, batch_size=8, rows=10**6, report=SILENT)
    assert many == every
    some = evaluate(whole, batch_size=8, rows=24, report=SILENT)
    assert some.keys() == every.keys()
    assert some["loss"] != every["loss"]


def test_evaluation_says_the_losses_of_members(whole, capsys):
    evaluate_main([f"--model={whole}", "--rows=24", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert {"mlm_loss", *(f"mlm_loss/{name}" for name in NAMES)} <= found.keys()
    evaluate_main([f"--model={whole}", "--rows=24"])
    table = capsys.readouterr().out.split("\n\n")[1].splitlines()
    assert table[0].split()[:2] == ["member", "loss"]
    assert [line.split()[0] for line in table[1:]] == list(NAMES)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"data.alpha": 0.3}, r"data.alpha=0.3 does not fit .* 0.7"),
        ({"data.alpha": None}, r"data.alpha=0.3"),
        ({"data.buckets": "(20,)"}, r"data.buckets=\[20\]"),
    ],
)
def test_another_mixture_is_refused_by_its_field(whole, group, changes, field):
    with pytest.raises(UserError, match=field):
        run(small_config(group, **CHANGES | changes), whole)


@pytest.fixture(scope="module")
def weighted(group, tmp_path_factory):
    """Two steps on two folders, named from the folder that they lie in."""
    workdir = tmp_path_factory.mktemp("weighted")
    config = small_config("de:0.7,en:0.3", **WEIGHTED, **{"eval.corpora.all": group})
    with contextlib.chdir(group):
        run(config, workdir)
    return workdir


def test_other_weights_or_members_are_refused(weighted, group):
    de, en, sw = (group / name for name in NAMES)
    for setting, field in (
        (f"{de}:0.6,{en}:0.4", r"data.corpus, member de .*, 157286\] does .* 183501\]"),
        (f"{de}:0.7,{sw}:0.3", r"data.corpus, member sw"),
        (f"{en}:0.3,{de}:0.7", r"data.corpus, member en"),
        (de, r"corpus.fingerprint="),
    ):
        with pytest.raises(UserError, match=field):
            run(small_config(setting, **WEIGHTED | {"steps": 4}), weighted)


def test_a_mixed_workdir_can_be_used_from_another_folder(weighted, group):
    found = evaluate(weighted, rows=8, report=SILENT)
    assert "loss/de" in found
    described = json.loads((weighted / "config.json").read_text())
    assert described["data"]["corpus"] == f"{group / 'de'}:0.7,{group / 'en'}:0.3"
    # The same shares, spelled otherwise, from elsewhere.
    same = Experiment.open(
        small_config(f"{group / 'de'}:7,{group / 'en'}:3", **WEIGHTED), SILENT
    )
    identity = RunConfig.from_description(described)
    assert run_identity(same) == run_identity(Experiment.open(identity, SILENT))


def identity(setting, step=2, **changes):
    config = small_config(setting, **WEIGHTED, **changes)
    stages = open_stages(config, SILENT, None)
    return identity_at(step, whole_run(config, stages), stages)


def test_folders_of_a_mixture_may_be_renamed_and_not_change_places(group, tmp_path):
    (tmp_path / "german").symlink_to(group / "de")
    de, en, german = group / "de", group / "en", tmp_path / "german"
    found = identity(f"{de}:7,{en}:3")
    assert identity(f"{german}:7,{en}:3") == found
    assert identity(f"{en}:3,{german}:7") != found
    # What two processors may differ in does not matter.
    assert identity(f"{de}:7.0000000000001,{en}:3") == found


def test_corpora_of_phases_that_were_begun_are_part_of_a_run(group, tmp_path):
    (tmp_path / "moved").symlink_to(group / "en")
    de, en, sw = (group / name for name in NAMES)

    def of(corpus, step=2):
        return identity(
            de, step, **{"phases.b.after": 1, "phases.b.data.corpus": corpus}
        )

    assert of(tmp_path / "moved") == of(en)
    assert of(sw) != of(en)
    assert of(f"{en}:1,{sw}:1") != of(f"{en}:1,{sw}:2")
    assert of(sw, step=1) == of(en, step=1)


def test_corpora_of_phases_are_found_from_another_folder(group):
    changes = WEIGHTED | {"phases.b.after": 1, "phases.b.data.corpus": "en:1,sw:2"}
    config = small_config(group / "de", **changes)
    with contextlib.chdir(group):
        described = Experiment.open(config, SILENT).described()
    found = described["phases"]["b"]["data"]["corpus"]
    assert found == f"{group / 'en'}:1.0,{group / 'sw'}:2.0"


def test_other_corpora_are_measured_beside_members(weighted, group):
    found = metrics(weighted, "validation/all/de")[2]["loss"]
    assert found == metrics(weighted, "validation/de")[2]["loss"]
    assert "loss" in metrics(weighted, "validation/all")[2]
    changes = WEIGHTED | {"eval.corpora.de": group / "de"}
    config = small_config(f"{group / 'de'}:1,{group / 'en'}:1", **changes)
    with pytest.raises(UserError, match=r"eval.corpora.de has the name of a member"):
        held_out_sources(Experiment.open(config, SILENT))
    # `validation/group/de` would be a member of the one group and of the other.
    changes = WEIGHTED | {"eval.corpora.group": group}
    config = small_config(f"{group}:1", **changes)
    with pytest.raises(UserError, match=r"eval.corpora.group .* validation/group/de"):
        held_out_sources(Experiment.open(config, SILENT))


def test_small_members_are_measured_in_small_batches(whole, group):
    """A whole batch for each would be mostly filler; the numbers stay."""
    config = small_config(group, **CHANGES | {"data.batch_size": 1024})
    for source in Experiment.open(config, SILENT).validation_sources().values():
        rows = source.index.num_rows
        size = _in_small_batches(source, rows, shards=8).batch_size
        assert rows <= size < max(33, 4 * rows)
        assert _in_small_batches(source, 300, shards=8).batch_size == 1024
    large = evaluate(whole, batch_size=256, report=SILENT)
    small = evaluate(whole, batch_size=16, report=SILENT)
    assert large == pytest.approx(small, rel=1e-5)


def test_a_tiny_member_is_named_with_its_remedy(group, tmp_path):
    folder = tmp_path / "group"
    shutil.copytree(group, folder)
    manifest = json.loads((folder / "sw" / "manifest.json").read_text())
    empty = {"documents": 0, "sentences": 0, "tokens": 0}
    for shard in manifest["shards"]:
        shard["train"] = empty
    (folder / "sw" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=r"drop 'sw' from .*mixture.json, or .*--langu"):
        Experiment.open(small_config(folder), SILENT).train_source()


def test_held_out_text_without_rows_is_left_out_and_said_once(group):
    """No sentence is as short as these rows."""
    said = []
    changes = {"data.form": "full_sentences", "data.length": 8}
    changes |= {"data.long_sentences": "skip", "data.second": None}
    changes |= {"data.short_rate": None, "objectives.nsp": None}
    run = Experiment.open(small_config(group, **changes), said.append)
    assert held_out_sources(run) == {}
    assert said == [
        f"{group}: the held-out text of de, en, sw is too short for a row, and is not "
        "measured"
    ]


def test_a_single_held_out_document_is_said_once_for_a_group(tmp_path):
    said = []
    folder = prepare_group(tmp_path, {"a": 9, "b": 9, "c": 60})
    run = Experiment.open(small_config(folder), said.append)
    assert list(held_out_sources(run)["validation"]) == ["a", "b", "c"]
    (line,) = (line for line in said if "only one held-out document" in line)
    assert "of a, b, so" in line


def test_preview_shows_the_shares_and_the_member_of_a_row(group):
    config = small_config(group, **CHANGES)
    found = preview(config, rows=48, batches=50, report=SILENT)
    run = Experiment.open(config, SILENT)
    assert found["stats"]["languages"] == pytest.approx(run.corpus.shares, abs=0.02)
    shares = {str(bucket.length): bucket.share for bucket in run.buckets}
    assert found["stats"]["lengths"] == pytest.approx(shares, abs=0.03)
    index = run.train_index
    for row in found["rows"]:
        member = index.members_of(np.asarray([row["row"]]))[0]
        assert row["language"] == NAMES[member]


def test_preview_prints_languages(group, capsys):
    flags = [f"--config.{k}={v}" for k, v in overrides(group, **CHANGES).items()]
    preview_main([f"--config={RECIPE}", "--rows=2", "--batches=4", *flags])
    output = capsys.readouterr().out
    assert "languages            de 0." in output
    assert any(f", {name}, second segment" in output for name in NAMES)


def test_a_plain_corpus_has_no_languages(corpus):
    found = preview(small_config(corpus.folder), rows=1, batches=1, report=SILENT)
    assert found["stats"]["languages"] == {}
    assert "language" not in found["rows"][0]


def test_losses_of_a_hundred_members_stay_a_line():
    few = {"de": {"loss": 2.0}, "en": {"loss": 1.0}}
    assert members_line(few) == "  loss by member: en 1.000  de 2.000"
    many = {f"l{number}": {"loss": number / 10} for number in range(100)}
    line = members_line(many)
    assert len(line) < 200
    assert "l0 0.000" in line
    assert "l99 9.900" in line
    assert "92 more in metrics.jsonl" in line


def test_only_held_out_text_is_shown_at_the_end(group, tmp_path):
    shutil.copytree(group / "de", tmp_path / "de")
    path = tmp_path / "de" / "manifest.json"
    manifest = json.loads(path.read_text())
    for shard in manifest["shards"]:
        shard["validation"] = {"documents": 0, "sentences": 0, "tokens": 0}
    path.write_text(json.dumps(manifest))
    without = Experiment.open(small_config(tmp_path / "de"), SILENT)
    assert masked_texts(without) == []
    beside = f"{tmp_path / 'de'}:9,{group / 'en'}:1"
    alone = masked_texts(Experiment.open(small_config(group / "en"), SILENT))
    assert masked_texts(Experiment.open(small_config(beside), SILENT)) == alone
    assert len(alone) == 3
