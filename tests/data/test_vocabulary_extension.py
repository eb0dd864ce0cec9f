"""Words of a new domain behind an old vocabulary, in every kind of tokenizer."""

import pytest
from transformers import AutoTokenizer

from encoderjax.data.preparation import prepare_corpus
from encoderjax.data.tokenizers import make_tokenizer
from encoderjax.data.vocabulary_extension import extend_tokenizer
from encoderjax.errors import UserError
from tests.small_corpus import documents

DOMAIN = (
    "The kubelet watches a namespace. Namespaces outlive the kubelet, and namespaces"
)
DOMAIN += " scale: namespaces, namespace; a daemonset in the namespace of the kubelet."
KINDS = {"wordpiece": "wordpiece:200", "bbpe": "bbpe:420", "unigram": "unigram:110"}


@pytest.fixture(scope="module")
def tokenizers():
    letters = "abcdefghijklmnopqrstuvwxyz"
    texts = [*documents(), " ".join([*letters, letters, letters[::-1]])]
    return {kind: make_tokenizer(spec, lambda: texts) for kind, spec in KINDS.items()}


def ids_inside(tokenizer, word):
    (head,), (ids,) = tokenizer.encode(["a"]), tokenizer.encode([f"a {word}"])
    return ids[len(head) :].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_the_most_frequent_split_words_become_tokens_behind_the_old_ones(
    tokenizers, kind, tmp_path
):
    old = tokenizers[kind]
    size = old.vocabulary.size
    new, words = extend_tokenizer(old, [DOMAIN], 2, kind)
    counts = {"namespace": 3, "namespaces": 3, "kubelet": 3}
    assert set(words) < counts.keys()
    assert new.tokens(range(size)) == old.tokens(range(size))
    for word in words:
        assert len(ids_inside(old, word)) > 1
        (i,) = ids_inside(new, word)
        assert i >= size
        assert not new.vocabulary.continues_word_V[i]
        assert new.decode([i]).strip() == word
    # Text without them is spelled as before, and transformers sees the same ids.
    for text in documents(3):
        assert new.encode([text])[0].tolist() == old.encode([text])[0].tolist()
    new.save(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    for text in (DOMAIN, "the kubelet's namespaces.", *documents(2)):
        found = theirs(text, add_special_tokens=False)["input_ids"]
        assert found == new.encode([text])[0].tolist()


def test_a_word_with_unknown_letters_becomes_one_token(tokenizers):
    new, words = extend_tokenizer(tokenizers["unigram"], ["ζζζ ζζζ the ship"], 1, "")
    assert words == ["ζζζ"]
    assert len(ids_inside(new, "ζζζ")) == 1


def test_a_vocabulary_with_tokens_behind_it_is_refused(tokenizers, tmp_path):
    tokenizers["wordpiece"].save(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    theirs.add_tokens(["kubectl"])
    theirs.save_pretrained(tmp_path / "longer")
    with pytest.raises(UserError, match=r"added tokens behind its 200 pieces"):
        prepare(tmp_path, tmp_path / "longer")


def prepare(folder, tokenizer, **options):
    lines = []
    (folder / "text.txt").write_text("\n\n".join([DOMAIN] * 4))
    corpus = prepare_corpus(
        source=str(folder / "text.txt"),
        out=folder / "out",
        tokenizer=str(tokenizer),
        validation=0.25,
        report=lines.append,
        **{"extend_vocabulary": 2} | options,
    )
    return corpus, lines


def test_prepare_extends_once_and_says_what_it_added(tokenizers, tmp_path):
    tokenizers["wordpiece"].save(tmp_path / "old")
    corpus, lines = prepare(tmp_path, tmp_path / "old")
    assert any("2 words added, 200 -> 202 entries" in line for line in lines)
    assert corpus.unigrams_V[200:].min() > 0  # they are in the text
    again, lines = prepare(tmp_path, tmp_path / "old")
    assert "already prepared" in lines[0]
    assert again.fingerprint == corpus.fingerprint
    with pytest.raises(UserError, match=r"--extend_vocabulary=0 differs from 2"):
        prepare(tmp_path, tmp_path / "old", extend_vocabulary=0)


def test_a_trained_vocabulary_is_made_larger_instead(tmp_path):
    for count in (5, -1):
        with pytest.raises(UserError, match=rf"--extend_vocabulary={count}"):
            prepare(tmp_path, "wordpiece:100", extend_vocabulary=count)
