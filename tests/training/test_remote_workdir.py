"""Workdirs whose checkpoints are elsewhere; another folder stands for the store."""

import shutil
import uuid

from encoderjax.data import storage
from encoderjax.evaluate import run as evaluate
from encoderjax.train import run
from encoderjax.training.remote_workdir import link, open_workdir, put
from tests.small_runs import curve, metrics, small_config


def test_a_run_goes_on_on_another_machine(corpus, tmp_path):
    here, there, store = (tmp_path / name for name in ("here", "there", "store"))
    config = small_config(
        corpus.folder, steps=4, optimizer__warmup_steps=2, checkpoint__every=2
    )
    link(here, str(store))
    run(config, here)
    assert not (here / "checkpoints").exists()
    assert {path.name for path in (store / "checkpoints").iterdir()} == {"2", "4"}
    undisturbed = curve(here)
    assert len(undisturbed) == 4
    assert curve(store) == undisturbed

    # What a machine that is lost after step 2 leaves behind.
    shutil.rmtree(store / "checkpoints" / "4")
    shutil.rmtree(here)
    link(there, str(store))
    run(config, there)
    assert curve(there) == curve(store) == undisturbed
    assert max(metrics(store, "validation")) == 4
    assert list(store.glob("events.*"))
    assert evaluate(there, rows=8, report=lambda text: None)


def test_files_go_to_a_store_and_come_back(tmp_path):
    place = f"memory://{uuid.uuid4().hex}"
    here, there = tmp_path / "here", tmp_path / "there"
    link(here, place)
    files = {
        "config.json": b"{}",
        "metrics.jsonl": b"1\n2\n",
        "tokenizer/vocab.txt": b"a",
        "events.out.1": b"x",
    }
    for name, content in files.items():
        (here / name).write_bytes(content)
    (here / "note.txt").write_text("stays here")
    put(here)
    assert len(storage.files_under(place)) == len(files)
    there.mkdir()
    (there / "metrics.jsonl").write_bytes(b"of an earlier run")
    link(there, place)
    for name, content in files.items():
        assert (there / name).read_bytes() == content


def test_a_plain_folder_stays_as_it_is(tmp_path):
    assert open_workdir(str(tmp_path)) == tmp_path
    (tmp_path / "config.json").write_text("{}")
    put(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
