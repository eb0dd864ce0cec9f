"""Entities and their scores next to seqeval's."""

import itertools
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval import metrics as theirs
from seqeval import scheme as their_schemes
from seqeval.metrics.sequence_labeling import get_entities

from encoderjax.errors import UserError
from encoderjax.tasks.entities import (
    Entity,
    converted,
    entities_of,
    entity_metrics,
    entity_table,
    is_chunked,
    repaired,
    scheme_of,
    tags_of,
)

LETTERS = {"IOB1": "BI", "IOB2": "BI", "BIOES": "BIES"}
THEIRS = {
    "IOB1": their_schemes.IOB1,
    "IOB2": their_schemes.IOB2,
    "BIOES": their_schemes.IOBES,
}
TYPES = ("PER", "LOC", "work-of-art")


def sentence(letters="BIES", types=TYPES):
    """Tags in any order: most sentences are against every scheme's rules."""
    tags = ["O", *(f"{letter}-{kind}" for letter in letters for kind in types)]
    return st.lists(st.sampled_from(tags), max_size=9)


@st.composite
def entities(draw, size=12):
    """Entities that do not overlap, of a sentence of `size` words."""
    cuts = sorted(draw(st.sets(st.integers(0, size))))
    kinds = st.sampled_from((None, "PER", "LOC"))
    drawn = [(draw(kinds), *span) for span in itertools.pairwise(cuts)]
    return [Entity(*span) for span in drawn if span[0]]


@st.composite
def two_readings(draw, letters="BIES"):
    """True and predicted sentences, alike in part."""
    true = draw(st.lists(sentence(letters), min_size=1, max_size=4).filter(any))
    found = []
    for tags in true:
        other = draw(st.lists(st.integers(0, 8), max_size=4))
        tags = list(tags)
        for place in other:
            if place < len(tags):
                tags[place] = draw(sentence(letters).filter(bool))[0]
        found.append(tags)
    return true, found


@settings(max_examples=1500, deadline=None)
@given(sentence())
def test_entities_are_those_of_seqeval(tags):
    wanted = [(kind, start, last + 1) for kind, start, last in get_entities(tags)]
    assert entities_of(tags) == wanted


@settings(max_examples=1500, deadline=None)
@given(sentence("BI", ("PER", "LOC")), st.sampled_from(["IOB1", "IOB2"]))
def test_strict_entities_are_those_of_seqeval(tags, scheme):
    found = their_schemes.Tokens(tags, THEIRS[scheme]).entities
    wanted = [(entity.tag, entity.start, entity.end) for entity in found]
    assert entities_of(tags, scheme) == wanted


@settings(max_examples=1500, deadline=None)
@given(sentence("BIES", ("PER", "LOC")))
def test_strict_entities_with_ends_are_those_of_seqeval(tags):
    for wanted_scheme, change in ((THEIRS["BIOES"], ""), (their_schemes.BILOU, "ESLU")):
        letters = str.maketrans(change[:2], change[2:])
        spelled = [tag[0].translate(letters) + tag[1:] for tag in tags]
        found = their_schemes.Tokens(spelled, wanted_scheme).entities
        wanted = [(entity.tag, entity.start, entity.end) for entity in found]
        assert entities_of(spelled, "BIOES") == wanted


@pytest.mark.parametrize("scheme", [None, *LETTERS])
def test_scores_are_those_of_seqeval(scheme):
    strict = {"mode": "strict", "scheme": THEIRS[scheme]} if scheme else {}

    @settings(max_examples=400, deadline=None)
    @given(two_readings(LETTERS.get(scheme, "BIES")))
    def check(readings):
        ours = entity_metrics(*readings, scheme)
        wanted = {
            name: getattr(theirs, f"{name}_score")(*readings, zero_division=0, **strict)
            for name in ("f1", "precision", "recall")
        }
        wanted["accuracy"] = theirs.accuracy_score(*readings)
        assert ours == pytest.approx(wanted, abs=1e-12)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check()


@settings(max_examples=500, deadline=None)
@given(entities())
def test_schemes_are_told_and_converted(spans):
    spelled = {scheme: tags_of(spans, 12, scheme) for scheme in LETTERS}
    for scheme, tags in spelled.items():
        assert entities_of(tags) == spans
        assert repaired(tags, scheme) == tags
        for other, wanted in spelled.items():
            assert converted(tags, scheme, other) == wanted
    for scheme in ("IOB2", "BIOES"):
        assert entities_of(spelled[scheme], scheme) == spans
        assert scheme_of([["O"], spelled[scheme]]) == (scheme if spans else "IOB2")
    assert scheme_of([["O"], spelled["IOB1"]]) == ("IOB1" if spans else "IOB2")


@settings(max_examples=500, deadline=None)
@given(sentence())
def test_predictions_are_repaired(tags):
    mended = repaired(tags, "BIOES")
    assert entities_of(mended) == entities_of(mended, "BIOES") == entities_of(tags)


def test_schemes_by_hand():
    spans = [Entity("PER", 0, 2), Entity("PER", 2, 3), Entity("LOC", 3, 4)]
    assert tags_of(spans, 5, "IOB1") == ["I-PER", "I-PER", "B-PER", "I-LOC", "O"]
    assert tags_of(spans, 5, "IOB2") == ["B-PER", "I-PER", "B-PER", "B-LOC", "O"]
    assert tags_of(spans, 5, "BIOES") == ["B-PER", "E-PER", "S-PER", "S-LOC", "O"]
    assert scheme_of([["O", "O"], []]) == "IOB2"
    assert scheme_of([["I-PER", "B-PER"], ["O", "B-LOC"]]) == "IOB2"
    assert scheme_of([["U-PER"]]) == scheme_of([["B-PER", "L-PER"]]) == "BIOES"
    assert converted(["U-X", "B-X", "L-X"], "BIOES", "IOB2") == ["B-X", "B-X", "I-X"]
    assert entities_of(["B", "I", "O", "I"]) == [("_", 0, 2), ("_", 3, 4)]
    assert repaired(["I", "O", "B"], "IOB2") == ["B", "O", "B"]


def test_parts_of_speech_are_no_entities():
    assert not is_chunked(["NOUN", "VERB", "B-PER"])
    assert not is_chunked(["O", "O"])
    assert not is_chunked(["O-PER", "B-PER"])
    assert is_chunked(["O", "B-PER", "L-PER"])
    true = [["NOUN", "VERB"], ["NOUN"]]
    assert entity_metrics(true, [["NOUN", "NOUN"], ["NOUN"]]) == {"accuracy": 2 / 3}
    nothing = entity_metrics([["O", "O"]], [["O", "O"]])
    assert nothing == {"f1": 0, "precision": 0, "recall": 0, "accuracy": 1}


def test_tags_that_cannot_be():
    with pytest.raises(UserError, match="'NOUN' is not of the scheme IOB1, IOB2 or"):
        entities_of(["B-PER", "NOUN"])
    with pytest.raises(UserError, match="'E-PER' is not of the scheme IOB2, which has"):
        converted(["B-PER", "E-PER"], "IOB2", "BIOES")


def test_tables_for_people():
    true = [["B-PER", "I-PER", "O", "B-LOC"], ["B-PER", "O"]]
    found = [["B-PER", "I-PER", "O", "B-PER"], ["B-PER", "O"]]
    assert entity_table(true, found) == (
        "     precision  recall      f1  support\n"
        "LOC     0.0000  0.0000  0.0000        1\n"
        "PER     0.6667  1.0000  0.8000        2\n"
        "all     0.6667  0.6667  0.6667        3"
    )
