"""What data.corpus may name, and what is refused."""

import json
import shutil

import numpy as np
import pytest

from encoderjax.config import EvalConfig
from encoderjax.data.corpora import from_anywhere, spelled, weighted_folders
from encoderjax.data.corpus import Corpus
from encoderjax.data.opening import Opening, open_corpora
from encoderjax.data.pipeline import DataConfig
from encoderjax.data.shares import alpha_shares
from encoderjax.errors import UserError
from tests.small_corpus import prepare_small_corpus


def opened(setting, alpha=None):
    data = DataConfig(corpus=setting, batch_size=8)
    opening = Opening("data.corpus", data.source, data.tokenizer, alpha, print)
    return open_corpora(data.corpus, opening)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.7, 1.0])
def test_shares_of_a_group_are_its_sentences_to_a_power(group, alpha):
    counts = {
        name: Corpus.open(group / name).split("train").num_sentences
        for name in ("de", "en", "sw")
    }
    powers = {name: count**alpha for name, count in counts.items()}
    expected = {name: power / sum(powers.values()) for name, power in powers.items()}
    corpora = opened(str(group), alpha)
    assert corpora.shares == pytest.approx(expected)
    assert corpora.alpha == alpha
    assert opened(str(group)).shares == opened(str(group), 0.3).shares


def test_probabilities_and_counts_give_the_same_shares():
    counts = np.asarray([10, 400, 77])
    np.testing.assert_allclose(
        alpha_shares(counts.tolist(), 0.3),
        (counts / counts.sum()) ** 0.3 / ((counts / counts.sum()) ** 0.3).sum(),
    )


def test_folders_are_mixed_by_their_weights(group):
    corpora = opened(f"{group / 'de'}:3,{group / 'en'}:1")
    assert corpora.shares == {"de": 0.75, "en": 0.25}
    assert corpora.alpha is None
    assert corpora.label == "de:3,en:1"
    assert opened(str(group)).label == "group"
    assert opened(str(group / "de")).label == "de"
    assert spelled("a:3, b:1") == "a:3.0,b:1.0"


def test_a_group_among_folders_gives_its_members_their_shares_of_its_weight(
    group, tmp_path
):
    (tmp_path / "web").symlink_to(group / "en")
    corpora = opened(f"{group}:0.6,{tmp_path / 'web'}:0.4")
    alone = opened(str(group)).shares
    expected = {f"group/{name}": 0.6 * share for name, share in alone.items()}
    assert corpora.shares == pytest.approx(expected | {"web": 0.4})
    assert corpora.alpha == 0.3


def test_a_single_corpus_has_no_members_names(group):
    corpora = opened(str(group / "en"))
    assert not corpora.mixed
    assert corpora.shares == {}
    assert corpora.name == str(group / "en")
    plain = Corpus.open(group / "en")
    assert corpora.fingerprints == [plain.fingerprint]
    assert np.array_equal(corpora.unigrams_V, plain.unigrams_V)
    assert corpora.count("tokens") == plain.split("train").num_tokens


def test_unigrams_are_those_that_training_meets(group):
    corpora = opened(f"{group / 'de'}:1,{group / 'sw'}:1")
    found = corpora.unigrams_V / corpora.unigrams_V.sum()
    members = [Corpus.open(group / name).unigrams_V for name in ("de", "sw")]
    expected = sum(counts / counts.sum() for counts in members) / 2
    np.testing.assert_allclose(found, expected, atol=1e-3)
    # As often as there are texts: the counts themselves add up.
    sizes = [int(counts.sum()) for counts in members]
    corpora = opened(f"{group / 'de'}:{sizes[0]},{group / 'sw'}:{sizes[1]}")
    assert np.array_equal(corpora.unigrams_V, sum(members))


def test_a_setting_is_read_from_any_folder(group, monkeypatch):
    monkeypatch.chdir(group)
    assert weighted_folders(from_anywhere("de:2.5,en:1")) == {
        str(group / "de"): 2.5,
        str(group / "en"): 1.0,
    }
    assert from_anywhere("demo:1,en:2") == f"demo:1.0,{group / 'en'}:2.0"
    assert from_anywhere("en") == str(group / "en")


@pytest.mark.parametrize("setting", ["corpora/wiki", "gs://bucket/wiki", "c:x"])
def test_a_folder_is_not_taken_for_a_mixture(setting):
    assert weighted_folders(setting) == {}
    assert spelled(setting) == setting


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("", "data.corpus='' names no folder"),
        ("a,b", "data.corpus=a,b: 'a' is not FOLDER:WEIGHT; give every folder a"),
        ("a:1,b", "'b' is not FOLDER:WEIGHT"),
        ("a:1,a:2", "names a twice"),
        ("a:0,b:1", "weight 0.0 of a must be a number above 0"),
        ("a:nan,b:1", "weight nan of a"),
        ("a:-1", "weight -1.0 of a"),
    ],
)
def test_settings_that_say_nothing_are_refused(setting, message):
    with pytest.raises(UserError, match=message):
        DataConfig(corpus=setting, batch_size=8)
    if setting:
        message = message.removeprefix("data.corpus")
        with pytest.raises(UserError, match=f"^eval.corpora.x.*{message}"):
            EvalConfig(corpora={"x": setting})


def test_corpora_with_one_tokenizer_share_it(group):
    """Also across settings: an object of a hundred languages, and of all phases."""
    corpora = opened(str(group)), opened(str(group / "en"))
    members = [member for part in corpora for member in part.members]
    assert len({id(member.corpus.tokenizer) for member in members}) == 1


@pytest.mark.parametrize("alpha", [-0.1, 1.5])
def test_alpha_is_a_power_between_0_and_1(alpha):
    with pytest.raises(UserError, match=f"data.alpha={alpha}"):
        DataConfig(corpus="x", batch_size=8, alpha=alpha)


def test_alpha_without_a_group_is_refused(group):
    for setting in (str(group / "de"), f"{group / 'de'}:1,{group / 'en'}:1"):
        with pytest.raises(UserError, match=r"data.alpha=0.5 has no meaning"):
            opened(setting, 0.5)


def test_members_need_one_tokenizer_and_different_names(group, tmp_path):
    other = prepare_small_corpus(tmp_path, count=5)
    with pytest.raises(UserError, match=r"another tokenizer .*--tokenizer=.*de"):
        opened(f"{group / 'de'}:1,{other.folder}:1")
    shutil.copytree(group / "en", tmp_path / "en")
    with pytest.raises(UserError, match=r"two members have the name 'en'"):
        opened(f"{group / 'en'}:1,{tmp_path / 'en'}:1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is damaged"),
        ('{"members": ["de"]}', "is damaged"),
        ('{"format": 2, "members": ["de"]}', "format 2"),
        ('{"format": 1, "members": []}', "must name subfolders"),
        ('{"format": 1, "members": ["xx"]}', "does not exist"),
    ],
)
def test_a_bad_list_of_members_is_named(tmp_path, text, message):
    (tmp_path / "mixture.json").write_text(text)
    with pytest.raises(UserError, match=message):
        opened(str(tmp_path))


def test_members_that_are_missing_say_how_to_make_them(tmp_path):
    with pytest.raises(UserError, match=r"does not exist; make it with python -m"):
        opened(f"{tmp_path / 'a'}:1,{tmp_path / 'b'}:1")


def test_the_list_of_members_is_as_it_was_agreed(group):
    described = json.loads((group / "mixture.json").read_text())
    assert described == {"format": 1, "members": ["de", "en", "sw"]}
