"""TFDS data sets, prepared as array_record and read without TensorFlow."""

import sys
from unittest import mock

import numpy as np
import pytest
import tensorflow_datasets as tfds

from encoderjax.data.corpus import Corpus
from encoderjax.data.preparation import prepare_corpus
from encoderjax.data.sources import Reading, Trouble, read_part, source_parts
from encoderjax.data.tfds_reading import registered_builder
from encoderjax.errors import UserError

NUMBER = 200


class PairsOfSentences(tfds.core.GeneratorBasedBuilder):
    """Two texts, a language and a number."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        text = tfds.features.Text()
        features = {"text": text, "other": text, "language": text, "number": np.int32}
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict(features)
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(), "test": self._generate_examples(3)}

    def _generate_examples(self, number=NUMBER):
        for i in range(number):
            language = "de" if i % 2 else "fr"
            texts = {"text": f"Texte numéro {i}.", "other": f"Also {i}."}
            yield i, {**texts, "language": language, "number": i}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tfds")
    builder = PairsOfSentences(data_dir=folder, file_format="array_record")
    builder.download_and_prepare()
    return folder


def read(source, part_bytes=10**9, **options):
    reading, trouble, found = Reading(**options), Trouble(), []
    parts = source_parts(source, reading, part_bytes)
    for part in parts:
        found += read_part(part, reading, trouble)
    return found, trouble, parts


def test_examples_are_documents(data_dir):
    options = {"language_key": "language", "tfds_dir": str(data_dir)}
    found, trouble, _ = read("tfds:pairs_of_sentences", **options)
    assert len(found) == NUMBER
    assert {d.text for d in found} == {f"Texte numéro {i}." for i in range(NUMBER)}
    for document in found:
        number = int(document.text.split()[-1][:-1])
        assert document.language == ("de" if number % 2 else "fr")
    assert not trouble
    assert "tensorflow" not in sys.modules


@pytest.mark.parametrize("part_bytes", [1500, 40_000])
def test_ranges_of_examples(data_dir, part_bytes):
    options = {"language_key": "language", "tfds_dir": str(data_dir)}
    whole, _, (one,) = read("tfds:pairs_of_sentences", **options)
    found, _, parts = read("tfds:pairs_of_sentences", part_bytes, **options)
    assert len(parts) == min(one.size // part_bytes, NUMBER)
    assert found == whole


def test_splits_versions_folders_and_fields(data_dir):
    folder = data_dir / "pairs_of_sentences" / "1.0.0"
    options = {"tfds_dir": str(data_dir), "text_key": "text,other"}
    for source, number in (
        (f"tfds:{folder}@test", 3),
        ("tfds:pairs_of_sentences:1.0.0@train[:10%]", NUMBER // 10),
        ("tfds:pairs_of_sentences@test+train[:5],tfds:pairs_of_sentences@test", 11),
    ):
        found, _, _ = read(source, **options)
        assert len(found) == number
        first, second = found[0].sentences()
        assert first.split()[-1] == second.split()[-1]
    found, _, _ = read(f"tfds:{folder}@test", language_key="folder")
    assert {document.language for document in found} == {"pairs_of_sentences"}


def test_damaged_examples_are_passed_over(data_dir, tmp_path):
    folder = tmp_path / "1.0.0"
    folder.mkdir()
    source = data_dir / "pairs_of_sentences" / "1.0.0"
    whole, _, _ = read(f"tfds:{source}")
    for path in source.iterdir():
        content = bytearray(path.read_bytes())
        if "train" in path.name:
            content[400:900] = bytes(500)
        (folder / path.name).write_bytes(content)
    found, trouble, _ = read(f"tfds:{folder}")
    texts = {document.text for document in whole}
    assert NUMBER - 20 < len(found) < NUMBER
    assert {document.text for document in found} <= texts
    assert trouble.lines()[0] == "skipped: 1 damaged stretch of a file"


def test_a_data_set_is_prepared(data_dir, tmp_path):
    lines = []
    corpus = prepare_corpus(
        source="tfds:pairs_of_sentences",
        out=tmp_path / "out",
        tokenizer="wordpiece:90",
        tfds_dir=str(data_dir),
        report=lines.append,
    )
    assert isinstance(corpus, Corpus)
    counts = corpus.manifest["counts"]
    assert sum(counts[split]["documents"] for split in counts) == NUMBER


def test_glue_is_prepared_by_its_own_builder(tmp_path):
    """TFDS' code for GLUE makes SST-2 of the files it would have downloaded."""
    downloads = tmp_path / "downloads" / "SST-2"
    downloads.mkdir(parents=True)
    for name in ("train", "dev"):
        rows = [f"a film of {i} words \t{i % 2}" for i in range(50)]
        content = "\n".join(["sentence\tlabel", *rows, ""])
        (downloads / f"{name}.tsv").write_text(content)
    rows = [f"{i}\ta film of {i} words " for i in range(50)]
    (downloads / "test.tsv").write_text("\n".join(["index\tsentence", *rows, ""]))
    glue = registered_builder("glue")
    builder = glue(config="sst2", data_dir=tmp_path, file_format="array_record")
    manager = tfds.download.DownloadManager
    with mock.patch.object(
        manager, "download_and_extract", return_value=downloads.parent
    ):
        builder.download_and_prepare()
    found, _, _ = read("tfds:glue/sst2", text_key="sentence", tfds_dir=str(tmp_path))
    assert {d.text.strip() for d in found} == {
        f"a film of {i} words" for i in range(50)
    }
    prepare_corpus(
        source="tfds:glue/sst2@train+validation",
        text_key="sentence",
        out=tmp_path / "out",
        tokenizer="wordpiece:60",
        tfds_dir=str(tmp_path),
        report=lambda line: None,
    )
    assert Corpus.open(tmp_path / "out").manifest["counts"]["train"]["tokens"] > 400
    assert "tensorflow" not in sys.modules


@pytest.mark.parametrize(
    ("source", "options", "part"),
    [
        ("tfds:glue/sst2", {}, "tfds build glue/sst2 --file_format=array_record"),
        ("tfds:glue", {}, "one of its configs, as glue/CONFIG: cola, sst2"),
        ("tfds:glue/sst9", {}, "one of its configs"),
        ("tfds:wiki40b/fr", {}, "tfds build wiki40b/fr"),
        ("tfds:pg19", {}, "tfds build pg19"),
        ("tfds:nothing", {}, "TFDS knows no data set of that name"),
        ("tfds:", {}, r"is not tfds:NAME\[/CONFIG\]"),
        ("tfds:pairs_of_sentences:2.0.0", {}, "not in"),
        ("tfds:pairs_of_sentences@dev", {}, "'dev' is no split of it; it has train"),
        ("tfds:pairs_of_sentences", {"text_key": "body"}, "no feature 'body'"),
        ("tfds:pairs_of_sentences", {"text_key": "number"}, "not text"),
        ("tfds:pairs_of_sentences", {"language_key": "file"}, "use a feature"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(data_dir, source, options, part):
    with pytest.raises(UserError, match=part) as caught:
        read(source, tfds_dir=str(data_dir), **options)
    assert "\n" not in str(caught.value)


def test_data_for_tensorflow_alone_is_refused(data_dir, tmp_path):
    folder = tmp_path / "1.0.0"
    folder.mkdir()
    source = data_dir / "pairs_of_sentences" / "1.0.0"
    for path in source.iterdir():
        content = path.read_bytes()
        if path.name == "dataset_info.json":
            content = content.replace(b"array_record", b"tfrecord")
        (folder / path.name).write_bytes(content)
    with pytest.raises(UserError, match="was built as tfrecord, which only TensorFlow"):
        read(f"tfds:{folder}")
