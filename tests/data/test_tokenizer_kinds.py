"""Every kind of tokenizer that can be trained, next to the class in transformers."""

import json

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from encoderjax.data.tokenizers import Layout, load_tokenizer
from encoderjax.demonstration import _spaced_masks
from tests.data.trained_kinds import KINDS, TEXTS, size_of, tokenizer_of

ROLES = ("pad", "unk", "cls", "sep", "mask")
HARD = [
    "",
    " ",
    "The quick brown Fox, jumps!",
    "naïve CAFÉ ÀÉÎ e\u0301 a \u0301b",
    "中文 ship中brown文 日本語テキスト",
    "snow ☃ ⿰ 😀👨‍👩‍👧 👍🏽",
    "ship" * 60,
    "old\u200bship\x07near\x0cthe\x85sea\x1ejay\ufffd\u00adz\u200d q \u200dr",
    "two  spaces   between words ",
    " leading  double   spaces\t\ttabs\n\nnew\r\nlines trailing  ",
    "İstanbul ŒUVRE ﬁ ½ K ẞ ΣΑΣ \uff26\uff35\u3000\uff44",
    "a\u00a0b\u3000c\u2028d\te\u2003f \u00a0\u0301z\t\u0301w",
    "``quoted'' text `` '' don't we'll I'm 1,234.56 x_y ▁under▁score",
    "مرحبا بالعالم \u0600 12 שלום हिन्दी ไทย x ำ",
    "\u00a8 \u00b4 a\u00b4b \ufeffc",
]
SPELLED = "The [MASK] of <mask> [SEP][CLS] </s> <pad>a<unk> <sep> <eop> [PAD]"


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def trained(kind):
    return tokenizer_of(kind)


@pytest.fixture(scope="module")
def folder(trained, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved")
    trained.save(path)
    return path


def transformers_tokenizer(folder, model_type):
    import transformers

    config = folder / "config.json"
    config.unlink(missing_ok=True)
    if model_type is not None:
        config.write_text(json.dumps({"model_type": model_type}))
    try:
        return transformers.AutoTokenizer.from_pretrained(folder)
    finally:
        config.unlink(missing_ok=True)


def test_special_tokens_have_their_ids(kind, trained):
    _, first, last = KINDS[kind]
    first, last = first.split(), last.split()
    vocabulary = trained.vocabulary
    assert vocabulary.size == size_of(kind)
    assert trained.tokens(range(len(first))) == first
    assert trained.tokens(range(size_of(kind))[-len(last) :] if last else ()) == last
    assert trained.tokens(np.flatnonzero(vocabulary.special_V)) == first + last
    assert not (vocabulary.continues_word_V & vocabulary.special_V).any()
    assert trained.mask_token == trained.tokens([vocabulary.mask_id])[0]


# The size of the published vocabulary, up to its last special token, and the ids of
# pad, unk, cls, sep and mask in it. Those of BERT have 99 placeholders behind [PAD],
# which a trained vocabulary does not need.
PUBLISHED = {
    "bbpe": (50_265, (1, 3, 0, 2, 50_264)),
    "bbpe/deberta": (50_265, (0, 3, 1, 2, 50_264)),
    "bbpe/modernbert": (50_285, (50_283, 50_280, 50_281, 50_282, 50_284)),
    "unigram": (30_000, (0, 1, 2, 3, 4)),
    "unigram_cased": (30_000, (0, 1, 2, 3, 4)),
    "unigram/xlnet": (32_000, (5, 0, 3, 4, 6)),
    "unigram/xlm_roberta": (250_002, (1, 3, 0, 2, 250_001)),
    "unigram/deberta_v2": (128_001, (0, 3, 1, 2, 128_000)),
}


@pytest.mark.parametrize("kind", PUBLISHED)
def test_special_ids_are_the_published_ones(kind):
    published, ids = PUBLISHED[kind]
    vocabulary = tokenizer_of(kind).vocabulary
    missing = published - vocabulary.size  # between the first ids and the last
    for role, wanted in zip(ROLES, ids, strict=True):
        first = wanted < len(ROLES) + 4
        found = getattr(vocabulary, f"{role}_id")
        assert found == (wanted if first else wanted - missing), role


def test_special_ids_are_those_of_the_configs_of_transformers():
    import transformers

    for kind, (model_type, _, _) in KINDS.items():
        config = transformers.AutoConfig.for_model(model_type)
        wanted = config.pad_token_id
        if kind == "bbpe/modernbert":  # whose last ids are 83 placeholders
            wanted -= config.vocab_size - 83 - size_of(kind)
        assert tokenizer_of(kind).vocabulary.pad_id == wanted, kind


# With the model's type, without, and beside a model of another family.
@pytest.mark.parametrize("model_type", ["own", None, "bert", "modernbert"])
def test_saved_folder_gives_the_same_ids_in_transformers(
    kind, trained, folder, model_type
):
    own, _, _ = KINDS[kind]
    theirs = transformers_tokenizer(folder, own if model_type == "own" else model_type)
    assert len(theirs) == size_of(kind)
    for role in ROLES:
        ours = getattr(trained.vocabulary, f"{role}_id")
        assert getattr(theirs, f"{role}_token_id") == ours
    assert (theirs.padding_side == "left") == trained.layout.pads_left
    texts = HARD + TEXTS[::20]
    expected = theirs(texts, add_special_tokens=False)["input_ids"]
    for text, ids, wanted in zip(texts, trained.encode(texts), expected, strict=True):
        assert ids.tolist() == wanted, text
    for text in [*HARD, SPELLED]:
        for pair in (None, "old Ships", ""):
            pairs = None if pair is None else [pair]
            encoded = theirs([text], pairs, return_token_type_ids=True)
            ids, segments = trained.encode_with_specials(text, pair)
            assert encoded["input_ids"] == [ids], text
            assert encoded["token_type_ids"] == [segments], text
            assert theirs.decode(ids) == trained.decode(ids)


def test_segments_are_given_unasked_to_models_that_have_them(kind, trained, folder):
    own, _, _ = KINDS[kind]
    theirs = transformers_tokenizer(folder, own)
    if own in ("bert", "albert", "xlnet", "deberta-v2"):
        _, segments = trained.encode_with_specials("the old", "ships")
        assert theirs("the old", "ships")["token_type_ids"] == segments
    if own == "modernbert":  # whose models take none
        assert "token_type_ids" not in theirs("the old", "ships")


def test_class_of_the_family_is_named(kind, folder):
    own, _, _ = KINDS[kind]
    theirs = transformers_tokenizer(folder, own)
    name = json.loads((folder / "tokenizer_config.json").read_text())["tokenizer_class"]
    same = {"PreTrainedTokenizerFast": "TokenizersBackend"}
    assert type(theirs).__name__ == same.get(name, name)
    assert type(transformers_tokenizer(folder, None)) is type(theirs)


def test_layout_is_that_of_the_row(trained):
    first, second = (trained.encode([t])[0].tolist() for t in ("the ship", "war"))
    layout = trained.layout
    ids, segments = trained.encode_with_specials("the ship", "war")
    between, after = [*first, *layout.between], [*second, *layout.after]
    assert ids == [*layout.before, *between, *after]
    expected = [0] * (len(layout.before) + len(between)) + [layout.second] * len(after)
    if layout.final is not None:
        expected[-1] = layout.final
    assert segments == expected
    ids, segments = trained.encode_with_specials("the ship")
    assert ids == [*layout.before, *first, *layout.after]
    expected = [0] * len(ids)
    if layout.final is not None:
        expected[-1] = layout.final
    assert segments == expected


def test_layouts_of_roberta_and_xlnet():
    roberta, xlnet = tokenizer_of("bbpe"), tokenizer_of("unigram/xlnet")
    assert roberta.layout == Layout((0,), (2, 2), (2,), second=0)
    expected = Layout((), (4,), (4, 3), second=1, final=2, pads_left=True, pad=3)
    assert xlnet.layout == expected
    assert xlnet.layout.num_special(2) == 3


def test_spelled_out_specials_are_text_in_a_corpus_only(trained):
    (ids,) = trained.encode([SPELLED])
    special_V = trained.vocabulary.special_V.copy()
    special_V[trained.vocabulary.unk_id] = False
    assert not special_V[ids].any()
    found, _ = trained.encode_with_specials(SPELLED)
    assert found.count(trained.vocabulary.mask_id) == 1


def test_a_mask_stands_for_a_word_with_its_space(trained):
    ids, _ = trained.encode_with_specials(f"old {trained.mask_token} war")
    old, war = (ids.tolist() for ids in trained.encode(["old", "war"]))
    before, after = trained.layout.before, trained.layout.after
    assert ids == [*before, *old, trained.vocabulary.mask_id, *war, *after]


def test_encode_agrees_with_the_library_on_any_text(trained, folder):
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    often = st.sampled_from(
        "the ship AÉ中\x85\x1c\u3000\u00a0\t\n '`▁,\u0301\u200d\u0600"
    )
    alphabet = st.one_of(often, st.characters(exclude_categories=["Cs"]))

    @settings(max_examples=150, deadline=None, database=None)
    @given(st.lists(st.text(alphabet, max_size=60), max_size=4))
    def check(texts):
        # Spelled out they would be special to the library.
        texts = [text.translate({ord(c): None for c in "<>[]"}) for text in texts]
        ours = [ids.tolist() for ids in trained.encode(texts)]
        theirs = [library.encode(t, add_special_tokens=False).ids for t in texts]
        assert ours == theirs

    check()


def test_every_saved_file_loads_alone(kind, trained, folder, tmp_path):
    assert load_tokenizer(folder).sha256 == trained.sha256
    config = json.loads((folder / "tokenizer_config.json").read_text())
    for name in set(trained.files) - {"tokenizer_config.json", "merges.txt"}:
        alone = tmp_path / name.replace(".", "_")
        alone.mkdir()
        (alone / name).write_bytes((folder / name).read_bytes())
        if name == "vocab.json":
            (alone / "merges.txt").write_bytes((folder / "merges.txt").read_bytes())
        if name != "tokenizer.json":  # which alone holds the options, too
            (alone / "tokenizer_config.json").write_text(json.dumps(config))
        loaded = load_tokenizer(alone / name)
        assert loaded.sha256 == trained.sha256, name
        assert loaded.layout == trained.layout
        assert loaded.lowercase is trained.lowercase


def test_what_transformers_saves_loads_with_the_same_ids(kind, trained, folder):
    theirs = transformers_tokenizer(folder, KINDS[kind][0])
    resaved = folder.parent / f"{folder.name}_resaved"
    theirs.save_pretrained(resaved)
    loaded = load_tokenizer(resaved)
    assert loaded.layout == trained.layout
    entries = range(size_of(kind))
    assert loaded.tokens(entries) == trained.tokens(entries)
    texts = HARD + TEXTS[::20]
    for ids, wanted in zip(loaded.encode(texts), trained.encode(texts), strict=True):
        assert ids.tolist() == wanted.tolist()
    for text in HARD:
        ours = trained.encode_with_specials(text, "b")
        assert loaded.encode_with_specials(text, "b") == ours


def test_every_word_has_its_space_in_a_trained_byte_level():
    tokenizer = tokenizer_of("bbpe")
    first, inside = tokenizer.encode(["ship", "the ship"])
    assert inside.tolist()[-len(first) :] == first.tolist()
    assert tokenizer.tokens(first)[0].startswith("Ġ")


def words_of(tokenizer, text):
    (ids,) = tokenizer.encode([text])
    words = []
    for i in ids:
        if tokenizer.vocabulary.continues_word_V[i] and words:
            words[-1].append(i)
        else:
            words.append([i])
    return [tokenizer.decode(word).strip() for word in words]


def test_words_are_known_by_their_first_piece():
    spaced = "The old sailor describes the harbour near a fortress"
    for kind in KINDS:
        tokenizer = tokenizer_of(kind)
        text = spaced.lower() if tokenizer.lowercase else spaced
        assert words_of(tokenizer, spaced) == text.split(), kind
    # The bytes of a Chinese character are a word, however they are merged.
    found = words_of(tokenizer_of("bbpe"), "the 漢語 war")
    assert [word for word in found if word] == ["the", "漢", "語", "war"]
    # ALBERT's rule: punctuation and foreign letters stand alone, English pieces not.
    found = words_of(tokenizer_of("unigram"), "war, 文中 sailor.")
    assert [word for word in found if word] == ["war", ",", "文", "中", "sailor", "."]


def test_masks_of_a_shown_text_are_read_back(trained):
    for text in TEXTS[:20]:
        ids = trained.encode([text])[0].copy()
        starts = np.flatnonzero(~trained.vocabulary.continues_word_V[ids])
        chosen = [i for i in starts if len(trained.decode([ids[i]]).strip()) > 1][1:3]
        ids[chosen] = trained.vocabulary.mask_id
        shown = _spaced_masks(trained, ids)
        read, _ = trained.encode_with_specials(shown)
        assert read.count(trained.vocabulary.mask_id) == len(chosen), shown
