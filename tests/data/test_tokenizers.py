# ruff: noqa: SIM905 (word lists read best as text)
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from encoderjax.data.tokenizers import Layout, load_tokenizer, make_tokenizer
from encoderjax.errors import UserError

WORDS = "The quick brown fox jumps over lazy dogs while naïve café owners sleep 中 文 !"
SYLLABLES = "ba co du fe gi ho ju ki lo Mu ne pa".split()  # many equal counts
TEXTS = [WORDS] * 12 + [" ".join(a + b for a in SYLLABLES for b in SYLLABLES)]
HARD = [
    "",
    " ",
    "The quick brown Fox, jumps!",
    "naïve CAFÉ ÀÉÎ",
    "中文 quick中brown文",
    "unknown ☃ snow ⿰",
    "fox" * 40,
    "x" * 100,
    "x" * 101,
    "quick\u200bbrown\x07fox\x0cdog\x85owl\x1ejay\ufffd",
    "[MASK] of [sep] [CLS][SEP] ##ing",
    "İstanbul ŒUVRE ﬁ ½ K",
    "a\u00a0b\u3000c\u2028d\te",
]


def train_wordpiece(texts, size, lowercase=True):
    kind = "wordpiece" if lowercase else "wordpiece_cased"
    return make_tokenizer(f"{kind}:{size}", lambda: texts)


@pytest.fixture(scope="module", params=[True, False], ids=["uncased", "cased"])
def trained(request):
    return train_wordpiece(TEXTS, 150, lowercase=request.param)


def test_trained_vocabulary(trained):
    vocabulary = trained.vocabulary
    assert vocabulary.size == 150
    assert trained.tokens(range(5)) == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert np.flatnonzero(vocabulary.special_V).tolist() == [0, 1, 2, 3, 4]
    assert np.array_equal(vocabulary.ordinary_ids, np.arange(5, 150))
    tokens = trained.tokens(range(150))
    assert vocabulary.continues_word_V.tolist() == [t[:2] == "##" for t in tokens]
    assert ("T" in tokens) == (not trained.lowercase)
    assert ("é" in "".join(tokens)) == (not trained.lowercase)


def test_layout_is_that_of_the_template(trained):
    cls, sep = trained.vocabulary.cls_id, trained.vocabulary.sep_id
    assert trained.layout == Layout((cls,), (sep,), (sep,))
    first, second = (trained.encode([t])[0].tolist() for t in ("the fox", "dogs"))
    ids, segments = trained.encode_with_specials("the fox", "dogs")
    assert ids == [cls, *first, sep, *second, sep]
    assert segments == [0] * (len(first) + 2) + [1] * (len(second) + 1)
    assert len(ids) - len(first) - len(second) == trained.layout.num_special(2)
    alone, _ = trained.encode_with_specials("the fox")
    assert len(alone) - len(first) == trained.layout.num_special(1)


def test_spelled_out_specials_are_text_in_a_corpus_only(trained):
    text = "The [MASK] fox [SEP] [PAD]"
    (ids,) = trained.encode([text])
    ordinary = ~trained.vocabulary.special_V
    assert (ordinary[ids] | (ids == trained.vocabulary.unk_id)).all()
    with_specials, _ = trained.encode_with_specials(text)
    assert with_specials.count(trained.vocabulary.mask_id) == 1


def library_ids(tokenizer, folder, text):
    tokenizer.save(folder)
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    library.encode_special_tokens = True
    return library.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("text", HARD)
def test_encode_agrees_with_the_library(trained, tmp_path, text):
    assert trained.encode([text])[0].tolist() == library_ids(trained, tmp_path, text)


def test_encode_agrees_with_the_library_on_any_text(trained, tmp_path):
    trained.save(tmp_path)
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    library.encode_special_tokens = True
    often = st.sampled_from("abfoxAÉ中\x85\u3000 [MASK]#")
    alphabet = st.one_of(often, st.characters(exclude_categories=["Cs"]))

    @settings(max_examples=300, deadline=None, database=None)
    @given(st.lists(st.text(alphabet, max_size=60), max_size=4))
    def check(texts):
        ours = [ids.tolist() for ids in trained.encode(texts)]
        theirs = [library.encode(t, add_special_tokens=False).ids for t in texts]
        assert ours == theirs

    check()


def test_saved_folder_loads_in_transformers_with_the_same_ids(trained, tmp_path):
    import transformers

    trained.save(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.vocab_size == len(theirs) == 150
    for name in ("pad", "unk", "cls", "sep", "mask"):
        ours = getattr(trained.vocabulary, f"{name}_id")
        assert getattr(theirs, f"{name}_token_id") == ours
    for text in HARD:
        for pair in (None, "lazy Dogs", ""):
            # As lists: given alone, they take an empty pair for none.
            encoded = theirs([text], None if pair is None else [pair])
            ids, segments = trained.encode_with_specials(text, pair)
            assert encoded["input_ids"] == [ids], text
            assert encoded["token_type_ids"] == [segments], text
            assert theirs.decode(ids) == trained.decode(ids)


@pytest.mark.parametrize("kept", [["vocab.txt"], ["tokenizer.json"], None])
def test_loading_what_was_saved(trained, tmp_path, kept):
    trained.save(tmp_path)
    for path in list(tmp_path.iterdir()):
        if kept and path.name not in kept:
            path.unlink()
    loaded = load_tokenizer(tmp_path)
    assert loaded.sha256 == trained.sha256
    assert loaded.lowercase == trained.lowercase
    if kept:
        assert load_tokenizer(tmp_path / kept[0]).sha256 == trained.sha256


def test_config_decides_the_case_of_a_vocabulary(trained, tmp_path):
    trained.save(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"do_lower_case": not trained.lowercase})
    )
    assert load_tokenizer(tmp_path).lowercase is not trained.lowercase


def test_placeholders_are_not_ordinary(tmp_path):
    entries = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##a"]
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(entries) + "\n")
    loaded = load_tokenizer(path)
    assert loaded.lowercase
    assert loaded.vocabulary.ordinary_ids.tolist() == [6, 7]
    assert loaded.tokens(loaded.encode(["AAA b"])[0]) == ["a", "##a", "##a", "[UNK]"]


def test_added_special_tokens_stay_special(trained, tmp_path):
    trained.save(tmp_path)
    document = json.loads((tmp_path / "tokenizer.json").read_text())
    extra = {**document["added_tokens"][0], "id": 150, "content": "<doc>"}
    document["added_tokens"].append(extra)
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    loaded = load_tokenizer(tmp_path)
    assert loaded.vocabulary.size == 151
    assert loaded.vocabulary.special_V[150]
    assert 150 in loaded.encode_with_specials("a <doc> b")[0]
    assert 150 not in loaded.encode(["a <doc> b"])[0]


def test_training_gives_the_same_bytes_in_every_process(trained):
    program = (
        "import sys, json\n"
        "from encoderjax.data.tokenizers import make_tokenizer\n"
        "texts, lowercase = json.load(sys.stdin)\n"
        "kind = 'wordpiece' if lowercase else 'wordpiece_cased'\n"
        "print(make_tokenizer(f'{kind}:150', lambda: texts).sha256)"
    )
    for seed, threads in ((1, 1), (2, 2)):
        variables = {"PYTHONHASHSEED": str(seed), "RAYON_NUM_THREADS": str(threads)}
        result = subprocess.run(
            [sys.executable, "-c", program],
            input=json.dumps([TEXTS, trained.lowercase]),
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            check=True,
        )
        assert result.stdout.strip() == trained.sha256


def test_rare_characters_do_not_fill_a_small_vocabulary():
    rare = " ".join(chr(0x4E00 + i) for i in range(3000))
    tokenizer = train_wordpiece([*TEXTS * 50, rare], 150)
    assert tokenizer.vocabulary.size == 150
    assert tokenizer.vocabulary.unk_id not in tokenizer.encode(["quick fox"])[0]


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ("wordpiece:9000", ["only", "ask for at most"]),
        ("wordpiece:10", ["10", "12 different", "larger"]),
        ("wordpiece:many", ["'many'", "wordpiece:30522"]),
        ("wordpiece", ["wordpiece:30522"]),
        ("unigramm:5", ["unigramm:5", "wordpiece, ", ":SIZE", "vocab.txt"]),
    ],
)
def test_impossible_specs_are_refused(spec, parts):
    with pytest.raises(UserError) as caught:
        make_tokenizer(spec, lambda: ["quick brown fox"])
    assert all(part in str(caught.value) for part in parts), str(caught.value)


def test_the_size_that_the_message_names_is_possible():
    with pytest.raises(UserError) as caught:
        train_wordpiece(TEXTS, 9000)
    most = int(str(caught.value).rpartition(" ")[2])
    assert train_wordpiece(TEXTS, most).vocabulary.size == most


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("vocab.txt", "a\nb\n", r"has no \[PAD\]"),
        ("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\na\n", "line 7: 'a'"),
        ("tokenizer.json", "{", "not JSON"),
        (
            "tokenizer.json",
            '{"model": {"type": "WordLevel", "vocab": {}}}',
            "WordLevel",
        ),
        ("tokenizer.json", "{}", "has no model with a vocabulary"),
        ("readme.md", "", "has no tokenizer.json, vocab.txt, .* or spm.model"),
    ],
)
def test_other_files_are_refused(tmp_path, name, content, part):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=part):
        load_tokenizer(tmp_path)
