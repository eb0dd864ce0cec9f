"""Folders of sentence-transformers, both ways: the same vectors there and here."""

import json

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules as theirs

from encoderjax import export
from encoderjax.errors import UserError
from encoderjax.interop.sentence_loading import holds_sentence, load_sentence
from encoderjax.interop.sentence_transformers import write_modules
from encoderjax.interop.writing import write_sentence_transformers, write_tokenizer
from encoderjax.models.sentence import SentenceHead
from encoderjax.tasks.embedding import Embedder
from encoderjax.tasks.whitening import Whitening
from tests.sentence_folders import (
    LENGTH,
    TEXTS,
    TOKENIZERS,
    small_sentence,
    write_exported,
)
from tests.torch_models import random_bert, save_folder

torch.set_num_threads(1)  # the machine is shared with jax's threads
RNG = np.random.default_rng(0)
# What each family is tried with: all of each are, none costs a compilation of its own.
HEADS = {
    "bert": ("mean", "l2"),
    "roberta": ("cls", "none"),
    "albert": ("max", "layer_norm"),
    "xlnet": ("cls", "l2"),
    "deberta_v3": ("last", "none"),
    "electra": ("mean", "layer_norm"),
    "distilbert": ("cls", "l2"),
    "modernbert": ("mean", "none"),
}


def written(folder, loaded):
    folder.mkdir()
    write_sentence_transformers(folder, loaded, "float32")
    write_tokenizer(folder, loaded.need_tokenizer(), loaded.description.length)
    return folder


def vectors_there(folder) -> np.ndarray:
    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    return np.asarray(model.encode(TEXTS, batch_size=4, show_progress_bar=False))


@pytest.mark.parametrize("family", TOKENIZERS)
def test_vectors_are_the_same_there(family, tmp_path):
    pooling, normalise = HEADS[family]
    loaded = small_sentence(family, pooling=pooling, normalise=normalise)
    wanted = Embedder(loaded, batch_size=8).vectors(TEXTS)
    folder = written(tmp_path / "st", loaded)
    np.testing.assert_allclose(vectors_there(folder), wanted, atol=1e-4)
    again = load_sentence(folder)
    # XLNet's CLS is its last token, and what is last there is its CLS.
    assert again.description == loaded.description
    assert again.family in (family, "deberta_v2")
    found = Embedder(again, batch_size=8).vectors(TEXTS)
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_a_whitening_is_a_dense_layer_there(tmp_path):
    loaded = small_sentence("bert", normalise="l2")
    mean = RNG.normal(size=24).astype(np.float32)
    kernel = RNG.normal(size=(24, 7)).astype(np.float32)
    loaded = loaded.whitened(mean, kernel)
    wanted = Embedder(loaded, batch_size=8).vectors(TEXTS)
    assert wanted.shape == (len(TEXTS), 7)
    folder = written(tmp_path / "st", loaded)
    np.testing.assert_allclose(vectors_there(folder), wanted, atol=1e-4)
    again = load_sentence(folder)
    assert again.description.head == loaded.description.head
    found = Embedder(again, batch_size=8).vectors(TEXTS)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    # Our own parameters keep it, too.
    own = load_sentence(write_exported(tmp_path / "own", loaded))
    assert own.description == loaded.description
    np.testing.assert_array_equal(own.params["whiten"]["mean"], mean)


def test_what_they_save_is_read(tmp_path):
    encoder = written(tmp_path / "encoder", small_sentence("bert"))
    dense = theirs.Dense(24, 5, activation_function=None)
    for layers, head in (
        (
            [theirs.Pooling(24, "max"), dense, theirs.Normalize()],
            SentenceHead(pooling="max", normalise="l2", components=5),
        ),
        (
            [theirs.Pooling(24, "lasttoken"), theirs.LayerNorm(24)],
            SentenceHead(pooling="last", normalise="layer_norm"),
        ),
    ):
        transformer = theirs.Transformer(str(encoder))
        model = SentenceTransformer(modules=[transformer, *layers], device="cpu")
        folder = tmp_path / head.pooling
        model.save(str(folder), create_model_card=False)
        loaded = load_sentence(folder)
        assert loaded.description.head == head
        assert loaded.description.length == LENGTH
        wanted = model.encode(TEXTS, show_progress_bar=False)
        found = Embedder(loaded, batch_size=8).vectors(TEXTS)
        np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_older_folders_and_prompts(tmp_path):
    folder = written(tmp_path / "st", small_sentence("bert"))
    assert holds_sentence(folder)
    modules = json.loads((folder / "modules.json").read_text())
    for module in modules:
        name = module["type"].rpartition(".")[2]
        module["type"] = f"sentence_transformers.models.{name}"
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling/config.json").write_text(
        json.dumps(
            {
                "word_embedding_dimension": 24,
                "pooling_mode_cls_token": True,
                "pooling_mode_mean_tokens": False,
            }
        )
    )
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 9}')
    about = {"prompts": {"query": "Find: ", "document": ""}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(about))
    loaded = load_sentence(folder)
    assert loaded.description.head.pooling == "cls"
    assert loaded.description.length == 9
    assert "its prompts (query) are not put before texts" in loaded.report[0]


def test_what_is_not_known_there_is_refused(tmp_path):
    head = SentenceHead(layers="last_two")
    config = small_sentence("bert").config
    with pytest.raises(UserError, match="use --layers=last, or --format=params"):
        write_modules(tmp_path, head, config, None, "float32")
    with pytest.raises(UserError, match="dtype='int8'"):
        write_modules(tmp_path, SentenceHead(), config, None, "int8")


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("modules.json", "{}", "modules are ; known are"),
        ("modules.json", "[1]", "is no list of modules"),
        (
            "modules.json",
            '[{"type": "a.Transformer", "path": "../.."}]',
            "leads out of the folder",
        ),
        (
            "modules.json",
            '[{"type": "a.Transformer", "path": ""}, {"type": "CNN", "path": "1"}]',
            "modules are Transformer, CNN",
        ),
        ("1_Pooling/config.json", '{"pooling_mode": ["cls", "max"]}', "several"),
        (
            "1_Pooling/config.json",
            '{"pooling_mode": "weightedmean"}',
            "pooling_mode='weightedmean' is not known",
        ),
        (
            "2_Dense/config.json",
            '{"activation_function": "torch.nn.modules.activation.Tanh"}',
            "activation_function=torch.nn.modules.activation.Tanh",
        ),
    ],
)
def test_folders_that_cannot_be_meant(whitened, file, content, words, tmp_path):
    for path in whitened.rglob("*"):
        if path.is_file():
            to = tmp_path / path.relative_to(whitened)
            to.parent.mkdir(exist_ok=True)
            to.write_bytes(path.read_bytes())
    (tmp_path / file).write_text(content)
    with pytest.raises(UserError, match=words) as error:
        load_sentence(tmp_path)
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def whitened(tmp_path_factory):
    mean, kernel = np.zeros(24, np.float32), np.eye(24, dtype=np.float32)
    loaded = small_sentence("bert").whitened(mean, kernel)
    return written(tmp_path_factory.mktemp("st") / "st", loaded)


# ---- export ----


def test_any_folder_is_exported_for_sentence_transformers(tmp_path):
    own = write_exported(tmp_path / "own", small_sentence("bert", normalise="l2"))
    # What says itself how vectors are made is exported so unasked.
    exported = export.run(own, tmp_path / "st")
    assert "1_Pooling/config.json" in exported.files
    assert "SentenceTransformer" in exported.usage[1]
    wanted = Embedder(load_sentence(own), batch_size=8).vectors(TEXTS)
    np.testing.assert_allclose(vectors_there(tmp_path / "st"), wanted, atol=1e-4)
    # A whitening, another pooling and length, over the first.
    mean, kernel = np.ones(24, np.float32), np.eye(24, 5, dtype=np.float32)
    Whitening(mean, kernel).save(tmp_path / "w.npz")
    exported = export.run(
        tmp_path / "st",
        tmp_path / "again",
        pooling="cls",
        normalise="none",
        length=9,
        whitening=tmp_path / "w.npz",
    )
    loaded = load_sentence(tmp_path / "again")
    assert loaded.description.length == 9
    head = SentenceHead(pooling="cls", components=5)
    assert loaded.description.head == head
    wanted = Embedder(loaded, batch_size=8).vectors(TEXTS)
    np.testing.assert_allclose(vectors_there(tmp_path / "again"), wanted, atol=1e-4)
    # An export over another one leaves nothing of it.
    plain = export.run(own, tmp_path / "again", format="hf")
    assert sorted(plain.files) == sorted(
        path.relative_to(tmp_path / "again").as_posix()
        for path in (tmp_path / "again").rglob("*")
    )
    assert "modules.json" not in plain.files
    with pytest.raises(UserError, match="pooling='cls' belongs to vectors of texts"):
        export.run(own, tmp_path / "again", format="hf", pooling="cls")
    with pytest.raises(UserError, match="part='generator'"):
        export.run(own, tmp_path / "again", part="generator")


def test_a_pretrained_folder_of_transformers_gives_vectors(tmp_path):
    folder = save_folder(random_bert(), tmp_path)
    assert not holds_sentence(folder)
    exported = export.run(
        folder, tmp_path / "st", format="sentence_transformers", dtype="bfloat16"
    )
    assert exported.report == ()
    loaded = load_sentence(tmp_path / "st")
    assert loaded.description.head == SentenceHead()
    assert loaded.description.length == 40
    wanted = Embedder(loaded, batch_size=8).vectors(TEXTS)
    model = SentenceTransformer(str(tmp_path / "st"), device="cpu")
    found = model.float().encode(TEXTS, show_progress_bar=False)
    np.testing.assert_allclose(found, wanted, atol=1e-4)
