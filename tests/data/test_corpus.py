import itertools
import json
import resource
import shutil

import numpy as np
import pytest

from encoderjax.data.corpus import (
    Corpus,
    ShardedArray,
    ShardSplit,
    shard_record,
    token_dtype,
    write_shard,
)
from encoderjax.data.preparation import prepare_corpus
from encoderjax.errors import UserError

WORDS = ["apple", "pear", "plum", "grape", "melon", "[MASK]", "fig"]


def text_of(number):
    picks = [WORDS[(number * k + k * k) % len(WORDS)] for k in range(1, 5 + number % 4)]
    return "\n".join(f"The {word} is {number}." for word in picks)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared")
    source = folder / "text.txt"
    blocks = [text_of(number) for number in range(40)]
    source.write_text("\n\n".join(blocks))
    corpus = prepare_corpus(
        source=str(source),
        out=folder / "corpus",
        tokenizer="wordpiece:90",
        validation=0.1,
        report=lambda line: None,
    )
    return corpus, blocks


@pytest.fixture
def copied(prepared, tmp_path):
    return shutil.copytree(prepared[0].folder, tmp_path / "copy")


def test_decoded_splits_are_the_text(prepared):
    corpus, blocks = prepared
    found = {}
    for name in ("train", "validation"):
        split = corpus.split(name)
        sentence_starts = split.sentence_starts.slice(0, split.num_sentences + 1)
        document_starts = split.document_starts.slice(0, split.num_documents + 1)
        assert sentence_starts[-1] == split.num_tokens == len(split.tokens)
        assert document_starts[-1] == split.num_sentences
        for first, last in itertools.pairwise(document_starts):
            starts = sentence_starts[first : last + 1]
            texts = [
                corpus.tokenizer.decode(split.tokens.slice(int(a), int(b)))
                for a, b in itertools.pairwise(starts)
            ]
            found.setdefault("\n".join(texts), []).append(name)
    spaced = [b.lower().replace("[mask]", "[ mask ]") for b in blocks]
    assert sorted(found) == sorted(spaced)
    assert sum(names == ["validation"] for names in found.values()) == 4


def test_unigrams_are_counts_of_the_train_split(prepared):
    corpus, _ = prepared
    train = corpus.split("train")
    ids = train.tokens.slice(0, len(train.tokens))
    assert np.array_equal(corpus.unigrams_V, np.bincount(ids, minlength=90))
    assert corpus.unigrams_V[[0, 2, 3, 4]].sum() == 0  # no special tokens inside


def test_fingerprint_does_not_depend_on_the_place(prepared, copied):
    assert Corpus.open(copied).fingerprint == prepared[0].fingerprint
    manifest = json.loads((copied / "manifest.json").read_text())
    manifest["files"]["unigrams.npy"]["sha256"] = "0" * 64
    (copied / "manifest.json").write_text(json.dumps(manifest))
    assert Corpus.open(copied).fingerprint != prepared[0].fingerprint


def test_token_dtype_is_the_smallest():
    assert token_dtype(65_536) == np.uint16
    assert token_dtype(65_537) == np.uint32


def random_parts(rng, sizes):
    return [rng.integers(0, 60_000, size, np.uint16) for size in sizes]


@pytest.mark.parametrize("sizes", [[5], [3, 0, 4, 1], [0, 2], [2, 0]])
def test_sharded_array_is_the_concatenation(sizes):
    rng = np.random.default_rng(0)
    parts = random_parts(rng, sizes)
    whole = np.concatenate(parts)
    array = ShardedArray(parts)
    assert len(array) == len(whole)
    for start in range(len(whole) + 1):
        for stop in range(start, len(whole) + 1):
            assert np.array_equal(array.slice(start, stop), whole[start:stop])
    indices = rng.integers(0, len(whole), (7, 3))
    assert np.array_equal(array.take(indices), whole[indices])
    assert array.take(indices).dtype == np.uint16
    assert array.take(np.zeros((2, 0), int)).shape == (2, 0)
    for wrong in (-1, len(whole)):
        with pytest.raises(IndexError):
            array.take(np.array([wrong]))
    with pytest.raises(IndexError):
        array.slice(0, len(whole) + 1)


@pytest.mark.parametrize("sizes", [[50], [30, 0, 40, 10], [0, 20], [20, 0]])
@pytest.mark.parametrize("added", [0, 7])
def test_spans_of_a_sharded_array_are_those_of_the_concatenation(sizes, added):
    rng = np.random.default_rng(0)
    parts = random_parts(rng, sizes)
    whole = np.concatenate(parts) + np.uint16(added)
    array = ShardedArray(parts, [added] * len(parts))
    ends = np.sort(rng.integers(0, len(whole) + 1, (60, 2)), axis=1)
    ends[:4] = [(0, len(whole)), (len(whole), len(whole)), (0, 0), (3, 3)]
    expected = np.concatenate([whole[start:stop] for start, stop in ends])
    starts, lengths = ends[:, 0], ends[:, 1] - ends[:, 0]
    found = array.read(starts, lengths)
    assert np.array_equal(found, expected)
    assert found.dtype == np.uint16
    nothing = np.zeros(0, int)
    assert array.read(nothing, nothing).shape == (0,)
    for wrong in ((-1, 2), (0, len(whole) + 1)):
        with pytest.raises(IndexError):
            array.read(*(np.array([number]) for number in wrong))


def test_joined_offsets_are_those_of_the_joined_parts():
    lengths = [[3, 1, 2], [], [4], [5, 5]]
    parts = [np.cumsum([0, *part]) for part in lengths]
    bases = np.cumsum([0, *map(sum, lengths)])
    array = ShardedArray.joined_offsets(parts, bases)
    expected = np.cumsum([0, *itertools.chain(*lengths)])
    assert np.array_equal(array.slice(0, len(array)), expected)
    assert np.array_equal(array.take(np.arange(len(array))), expected)


def small_split(count=3):
    ids = np.arange(count, dtype=np.uint16)
    return ShardSplit.from_documents([[ids, ids[:1]], [ids]], np.dtype(np.uint16))


def test_written_arrays_are_what_numpy_reads(tmp_path):
    empty = ShardSplit.from_documents([], np.dtype(np.uint16))
    splits = {"train": small_split(), "validation": empty}
    record = write_shard(tmp_path, "00002-0007", splits, np.arange(9))
    assert shard_record(tmp_path, "00002-0007") == record
    for name, array in small_split().arrays().items():
        read = np.load(tmp_path / f"train-00002-0007.{name}.npy", mmap_mode="r")
        assert np.array_equal(read, array)
        assert read.dtype == array.dtype
    tokens = np.load(tmp_path / "validation-00002-0007.tokens.npy", mmap_mode="r")
    assert tokens.shape == (0,)
    assert record["counts"]["validation"] == dict.fromkeys(
        ("documents", "sentences", "tokens"), 0
    )


def test_a_full_disk_leaves_no_shard(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    splits, unigrams_V = {"train": small_split(60_000)}, np.zeros(9, np.int64)
    try:
        with pytest.raises(UserError, match=r"cannot write .* run the same command"):
            write_shard(tmp_path, "00000-0000", splits, unigrams_V)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.glob("*tokens*"))
    assert shard_record(tmp_path, "00000-0000") is None


def test_damage_is_found(copied):
    path = copied / "train-00000-0000.tokens.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"train-00000-0000.tokens.npy is damaged"):
        Corpus.open(copied).verify()
    path.write_bytes(content[:-1])
    size = len(content)
    with pytest.raises(UserError, match=f"has {size - 1} bytes.* says {size}"):
        Corpus.open(copied)
    path.unlink()
    with pytest.raises(UserError, match=r"train-00000-0000.tokens.npy is missing"):
        Corpus.open(copied)


def test_another_tokenizer_is_refused(copied):
    path = copied / "tokenizer.json"
    path.write_text(path.read_text().replace('"plum"', '"plun"'))
    with pytest.raises(UserError, match="not the tokenizer of this corpus"):
        _ = Corpus.open(copied).tokenizer


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("other", "", "not a prepared corpus"),
        ("preparing.json", "{}", "interrupted"),
        ("manifest.json", "{", "damaged"),
        ("manifest.json", '{"format": 99}', "format 99, this version reads 2"),
    ],
)
def test_other_folders_are_refused(tmp_path, name, content, part):
    with pytest.raises(UserError, match="does not exist"):
        Corpus.open(tmp_path / "none")
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=part):
        Corpus.open(tmp_path)
