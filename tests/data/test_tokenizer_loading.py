"""The forms in which tokenizers are published, and files that are none."""

import io
import json

import pytest
import sentencepiece

from encoderjax.data.tokenizers import load_tokenizer, make_tokenizer
from encoderjax.errors import UserError
from tests.small_corpus import documents

TEXTS = [line for text in documents(12) for line in text.splitlines()]
HARD = [
    *TEXTS[:5],
    "",
    "naïve CAFÉ (yes) don't 中文 ☃",
    " two  spaces\tand\nmore \u3000x\u00a0y ",
    "``quoted'' 1,234.56 \u200b e\u0301 \u0301",
]
MODELS = {
    "unigram": ("albert", "spiece.model"),
    "unigram/xlnet": ("xlnet", "spiece.model"),
    "unigram/xlm_roberta": ("xlm-roberta", "sentencepiece.bpe.model"),
    "unigram/deberta_v2": ("deberta-v2", "spm.model"),
}


def transformers_tokenizer(folder):
    import transformers

    return transformers.AutoTokenizer.from_pretrained(folder)


def write_json(path, **content):
    path.write_text(json.dumps(content))


def compare(ours, theirs, texts=HARD):
    assert len(theirs) == ours.vocabulary.size
    expected = theirs(texts, add_special_tokens=False)["input_ids"]
    assert [ids.tolist() for ids in ours.encode(texts)] == expected


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Returns a function from a spec to a folder with its tokenizer."""
    made = {}

    def folder(spec):
        if spec not in made:
            made[spec] = tmp_path_factory.mktemp("saved")
            make_tokenizer(spec, lambda: TEXTS).save(made[spec])
        return made[spec]

    return folder


# ---- published forms ----


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_file_reads_as_in_transformers(kind, saved, tmp_path):
    model_type, name = MODELS[kind]
    (tmp_path / name).write_bytes((saved(f"{kind}:70") / name).read_bytes())
    write_json(tmp_path / "config.json", model_type=model_type)
    loaded = load_tokenizer(tmp_path)
    compare(loaded, transformers_tokenizer(tmp_path))
    assert loaded.vocabulary.size == 70


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_file_splits_as_sentencepiece_does(kind, saved):
    path = saved(f"{kind}:70") / MODELS[kind][1]
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(path))
    loaded = load_tokenizer(path)
    texts = [text.lower() if loaded.lowercase else text for text in TEXTS[:40]]
    for text, ids in zip(texts, loaded.encode(texts), strict=True):
        assert loaded.tokens(ids) == theirs.encode(text, out_type=str)


def test_symbols_of_the_user_stay_pieces_as_in_sentencepiece(tmp_path):
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([f"({text})" for text in TEXTS]),
        model_writer=written,
        vocab_size=70,
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        user_defined_symbols=["(", ")", "."],
        minloglevel=2,
    )
    path = tmp_path / "spiece.model"
    path.write_bytes(written.getvalue())
    loaded = load_tokenizer(path)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(path))
    text = "the (old) ship(war). captain"
    assert loaded.tokens(loaded.encode([text])[0]) == theirs.encode(text, out_type=str)
    assert not loaded.vocabulary.special_V[5:].any()
    # And a folder that we wrote means the same to transformers.
    loaded.save(tmp_path / "saved")
    compare(loaded, transformers_tokenizer(tmp_path / "saved"), [text, *HARD])


@pytest.mark.parametrize("prefix_space", [False, True, None])
@pytest.mark.parametrize(
    ("kind", "model_type"), [("bbpe", "roberta"), ("bbpe/deberta", "deberta")]
)
def test_vocabulary_and_merges(kind, model_type, prefix_space, saved, tmp_path):
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).write_bytes((saved(f"{kind}:300") / name).read_bytes())
    options = {} if prefix_space is None else {"add_prefix_space": prefix_space}
    write_json(tmp_path / "tokenizer_config.json", **options)
    write_json(tmp_path / "config.json", model_type=model_type)
    loaded = load_tokenizer(tmp_path)
    theirs = transformers_tokenizer(tmp_path)
    compare(loaded, theirs)
    first = loaded.tokens(loaded.encode(["war"])[0])[0]
    assert first.startswith("Ġ") is bool(prefix_space)
    for text in HARD:
        ids, segments = loaded.encode_with_specials(text, "b")
        encoded = theirs([text], ["b"], return_token_type_ids=True)
        assert (encoded["input_ids"], encoded["token_type_ids"]) == ([ids], [segments])
    loaded.save(tmp_path / "saved")
    compare(loaded, transformers_tokenizer(tmp_path / "saved"))


def test_a_class_with_its_wiring_overrules_the_file(saved, tmp_path):
    """transformers takes the vocabulary from tokenizer.json, and no more."""
    document = json.loads(
        (saved("unigram/deberta_v2:70") / "tokenizer.json").read_text()
    )
    document["normalizer"] = {"type": "Lowercase"}
    write_json(tmp_path / "tokenizer.json", **document)
    write_json(tmp_path / "tokenizer_config.json", tokenizer_class="DebertaV2Tokenizer")
    compare(load_tokenizer(tmp_path), transformers_tokenizer(tmp_path))
    # Where the file is taken as it is, so do we, and say so when we save it.
    write_json(
        tmp_path / "tokenizer_config.json",
        tokenizer_class="PreTrainedTokenizerFast",
        **{
            f"{r}_token": f"[{r.upper()}]" for r in ("pad", "unk", "cls", "sep", "mask")
        },
    )
    loaded = load_tokenizer(tmp_path)
    compare(loaded, transformers_tokenizer(tmp_path))
    assert loaded.encode(["WAR"])[0].tolist() == loaded.encode(["war"])[0].tolist()
    loaded.save(tmp_path / "saved")
    compare(loaded, transformers_tokenizer(tmp_path / "saved"))


def test_added_tokens_that_are_text_are_found(saved, tmp_path):
    folder = saved("bbpe/modernbert:300")
    document = json.loads((folder / "tokenizer.json").read_text())
    flags = {"single_word": False, "lstrip": False, "rstrip": False}
    flags |= {"normalized": True, "special": False}
    for i, content in enumerate(("|IP|", "   ", "  ", "[unused0]")):
        document["added_tokens"].append({"id": 300 + i, "content": content, **flags})
    config = (folder / "tokenizer_config.json").read_text()
    (tmp_path / "tokenizer_config.json").write_text(config)
    texts = [*HARD, "the |IP| war|IP|x |IP|", "|IP| a", "a   b  c", "   a  "]
    write_json(tmp_path / "tokenizer.json", **document)
    loaded = load_tokenizer(tmp_path)
    compare(loaded, transformers_tokenizer(tmp_path), texts)
    assert 300 in loaded.encode(texts)[len(HARD)]
    assert loaded.vocabulary.unused_V.tolist() == [False] * 303 + [True]
    assert not loaded.vocabulary.special_V[300:].any()
    # One that may stand over two words, and one that swallows the space behind it.
    for content, rstrip in (("war the", False), ("|IP|", True)):
        changed = {**document["added_tokens"][-4], "content": content, "rstrip": rstrip}
        document["added_tokens"][-4] = changed
        write_json(tmp_path / "tokenizer.json", **document)
        loaded = load_tokenizer(tmp_path)
        compare(loaded, transformers_tokenizer(tmp_path), [*texts, "the war the end"])


def test_placeholders_of_fairseq_are_not_ordinary(saved, tmp_path):
    folder = saved("bbpe:300")
    ids = json.loads((folder / "vocab.json").read_text())
    entries = [*ids][:-1]
    entries += ["madeupword0000", "madeupword0001", "<mask>"]
    write_json(tmp_path / "vocab.json", **{e: i for i, e in enumerate(entries)})
    (tmp_path / "merges.txt").write_bytes((folder / "merges.txt").read_bytes())
    vocabulary = load_tokenizer(tmp_path).vocabulary
    assert vocabulary.mask_id == 301
    assert vocabulary.ordinary_ids.tolist() == list(range(4, 299))


# ---- files that are none ----


def test_a_model_that_was_cut_off(saved, tmp_path):
    whole = (saved("unigram:70") / "spiece.model").read_bytes()
    path = tmp_path / "spiece.model"
    first_pieces = whole.index(b"<unk>") - 4  # ends where a piece does
    for part in (b"", whole[:100], whole[:-20], whole[:first_pieces], b"hello"):
        path.write_bytes(part)
        with pytest.raises(UserError, match="not a whole SentencePiece model"):
            load_tokenizer(path)


def test_a_model_of_another_family(saved, tmp_path):
    xlnet = saved("unigram/xlnet:70") / "spiece.model"
    (tmp_path / "spiece.model").write_bytes(xlnet.read_bytes())
    write_json(tmp_path / "config.json", model_type="albert")
    with pytest.raises(UserError, match=r"has no \[CLS\].*AlbertTokenizer"):
        load_tokenizer(tmp_path)


def test_a_model_that_is_not_that_of_tokenizer_json(saved, tmp_path):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((saved("unigram:70") / name).read_bytes())
    other = saved("unigram:60") / "spiece.model"
    (tmp_path / "spiece.model").write_bytes(other.read_bytes())
    with pytest.raises(UserError, match=r"spiece.model has other pieces"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("name", "change", "part"),
    [
        ("merges.txt", lambda text: text + "zq zq\n", "needs 'zq'"),
        ("merges.txt", lambda text: text + "a b c\n", "'a b c', is no pair"),
        ("vocab.json", lambda text: text.replace("<pad>", "<bad>"), "has no <pad>"),
        (
            "vocab.json",
            lambda text: text.replace(": 299", ": 298"),
            "'<mask>' has id 298",
        ),
        ("vocab.json", lambda text: text.replace(": 299", ": 400"), "0..299"),
        ("vocab.json", lambda text: "[]", "not a JSON object"),
        ("merges.txt", None, "needs a merges.txt"),
    ],
)
def test_vocabulary_and_merges_that_do_not_fit(name, change, part, saved, tmp_path):
    for file in ("vocab.json", "merges.txt"):
        text = (saved("bbpe:300") / file).read_text()
        if file == name and change is None:
            continue
        (tmp_path / file).write_text(change(text) if file == name else text)
    write_json(tmp_path / "config.json", model_type="roberta")
    with pytest.raises(UserError, match=part) as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)


def changed(document, path, value):
    if value == "<bad>":  # in both places, or the other one would do
        document["model"]["vocab"][0][0] = value
    *parents, last = path
    for part in parents:
        document = document[part]
    document[last] = value


@pytest.mark.parametrize(
    ("spec", "path", "value", "part"),
    [
        ("bbpe:300", ("pre_tokenizer",), {"type": "Whitespace"}, "is Whitespace"),
        ("bbpe:300", ("normalizer",), {"type": "Lowercase"}, "is Lowercase"),
        ("bbpe:300", ("model", "merges", 0), ["q", "zzz"], "needs 'zzz'"),
        ("unigram:70", ("model", "unk_id"), 7, "unk_id is 7"),
        ("unigram:70", ("model", "vocab", 9), ["[CLS]", 0.0], "line 10: .* twice"),
        ("unigram:70", ("added_tokens", 0, "content"), "<bad>", "no known family"),
        ("bbpe:300", ("added_tokens", 4, "id"), 310, "id 310, where 299"),
    ],
)
def test_tokenizer_json_that_does_not_fit(spec, path, value, part, saved, tmp_path):
    document = json.loads((saved(spec) / "tokenizer.json").read_text())
    changed(document, path, value)
    write_json(tmp_path / "tokenizer.json", **document)
    with pytest.raises(UserError, match=part) as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)
