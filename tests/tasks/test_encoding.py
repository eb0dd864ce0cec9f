"""Rows of texts and pairs, next to the tokenizers of transformers."""

import numpy as np
import pytest

from encoderjax.errors import UserError
from encoderjax.tasks.encoding import Encoding, most_context, pad_places, pad_rows
from tests.data.test_tokenizer_kinds import transformers_tokenizer
from tests.data.trained_kinds import KINDS, tokenizer_of

# One of each layout: segments, a double separator, CLS at the end.
LAYOUTS = ("wordpiece_cased", "bbpe", "bbpe/modernbert", "unigram", "unigram/xlnet")
SHORT = "The old ship"
LONG = "The sailor sees the old harbour near the island. " * 4
TEXTS = [(SHORT, None), (LONG, None), (SHORT, LONG), (LONG, SHORT), (LONG, LONG)]
TEXTS += [(LONG + "the", LONG), ("", SHORT), (SHORT, "")]


@pytest.fixture(scope="module", params=LAYOUTS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def trained(kind):
    return tokenizer_of(kind)


@pytest.fixture(scope="module")
def theirs(kind, trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    trained.save(folder)
    return transformers_tokenizer(folder, KINDS[kind][0])


def encoded(tokenizer, *texts):
    return [None if t is None else tokenizer.encode_with_offsets(t) for t in texts]


def numbers(rows, text=0):
    return [row.pieces[row.places(text)].tolist() for row in rows]


def test_rows_are_those_of_transformers(trained, theirs):
    for length in (24, 25, 400):
        encoding = Encoding(trained, length)
        for first, second in TEXTS:
            (row,) = encoding.rows(*encoded(trained, first, second))
            wanted = theirs(
                [first],
                None if second is None else [second],
                truncation=True,
                max_length=length,
                return_token_type_ids=True,
            )
            assert [row.ids.tolist()] == wanted["input_ids"]
            assert [row.segments.tolist()] == wanted["token_type_ids"]
            sequences = [-1 if s is None else s for s in wanted.sequence_ids(0)]
            assert row.texts.tolist() == sequences


def test_rows_are_padded_as_transformers_pads(trained, theirs):
    encoding = Encoding(trained, 400)
    pairs = [(SHORT, LONG), (SHORT, SHORT)]
    rows = [encoding.rows(*encoded(trained, *pair))[0] for pair in pairs]
    batch = pad_rows(rows, 400, trained)
    wanted = theirs(
        *map(list, zip(*pairs, strict=True)),
        padding="max_length",
        max_length=400,
        return_token_type_ids=True,
    )
    assert batch["ids"].tolist() == wanted["input_ids"]
    segments = np.where(batch["mask"], wanted["token_type_ids"], trained.layout.pad)
    assert batch["segments"].tolist() == segments.tolist()
    assert batch["mask"].astype(int).tolist() == wanted["attention_mask"]
    assert batch["mask"].dtype == bool
    assert batch["ids"].dtype == batch["segments"].dtype == np.int32
    for b, row in enumerate(rows):
        assert batch["ids"][b][batch["mask"][b]].tolist() == row.ids.tolist()
    labels = pad_places([row.pieces for row in rows], 400, -7, trained)
    assert (labels[~batch["mask"]] == -7).all()
    assert labels[1][batch["mask"][1]].tolist() == rows[1].pieces.tolist()


def test_pieces_lead_back_to_the_text(trained):
    first, second = encoded(trained, SHORT, LONG)
    for row in Encoding(trained, 40, cut="windows", stride=9).rows(first, second):
        for text, pieces in enumerate((first, second)):
            places = row.places(text)
            assert row.ids[places].tolist() == pieces.ids[row.pieces[places]].tolist()
        assert (row.pieces[row.texts < 0] == -1).all()


def test_windows_are_those_of_transformers(trained, theirs):
    question, context = encoded(trained, SHORT, LONG)
    for length, stride in ((40, 7), (41, 1), (48, 500), (400, 7)):
        rows = Encoding(trained, length, "windows", stride).rows(question, context)
        room = length - trained.layout.num_special(2) - len(question)
        wanted = theirs(
            SHORT,
            LONG,
            truncation="only_second",
            max_length=length,
            stride=max(0, room - stride),
            return_overflowing_tokens=True,
            return_token_type_ids=True,
        )
        assert [row.ids.tolist() for row in rows] == wanted["input_ids"]
        assert [row.segments.tolist() for row in rows] == wanted["token_type_ids"]


def test_windows_of_one_text_cover_it(trained):
    (pieces,) = encoded(trained, LONG)
    rows = Encoding(trained, 20, "windows", stride=6).rows(pieces)
    found = numbers(rows)
    assert sorted({n for row in found for n in row}) == list(range(len(pieces)))
    starts = [row[0] for row in found]
    assert starts == list(range(0, 6 * len(rows), 6))
    assert max(map(len, rows)) <= 20
    assert found[-2][-1] < len(pieces) - 1 == found[-1][-1]


def test_a_question_that_is_too_long_leaves_half_of_the_room(trained):
    long, short = encoded(trained, LONG, SHORT)
    encoding = Encoding(trained, 24, "windows", stride=4)
    room = 24 - trained.layout.num_special(2)
    rows = encoding.rows(long, long)
    assert all(len(row) <= 24 for row in rows)
    assert numbers(rows)[0] == list(range(room - room // 2))
    assert {n for row in numbers(rows, 1) for n in row} == set(range(len(long)))
    # A context that is short needs no half, and the first text may have the windows.
    (row,) = encoding.rows(long, short)
    assert len(row) == 24 or len(row.places(1)) == len(short)
    other = Encoding(trained, 24, "windows", stride=4, windows_of=0)
    assert len(other.rows(long, short)) > 1
    (row,) = encoding.rows(*encoded(trained, SHORT, ""))
    assert not len(row.places(1))


def test_what_is_cut(trained):
    (pieces,) = encoded(trained, LONG)
    room = 23 - trained.layout.num_special(1)
    size = len(pieces)
    kept = {
        "head": [*range(room)],
        "tail": [*range(size - room, size)],
        "both": [*range(room // 4), *range(size - room + room // 4, size)],
    }
    for cut, wanted in kept.items():
        rows = Encoding(trained, 23, cut).rows(pieces)
        assert numbers(rows) == [wanted]
        assert len(rows[0]) == 23


def test_a_piece_is_best_seen_in_the_middle_of_a_window():
    trained = tokenizer_of("wordpiece_cased")
    (pieces,) = encoded(trained, "the " * 20)
    rows = Encoding(trained, 14, "windows", stride=6).rows(pieces)
    best = [
        row.pieces[is_best].tolist()
        for row, is_best in zip(rows, most_context(rows, 0), strict=True)
    ]
    # Windows 0-11, 6-17, 12-19: each piece has most on its poorer side in one.
    assert best == [[*range(9)], [*range(9, 15)], [*range(15, 20)]]


def test_ten_thousand_words(trained):
    (pieces,) = encoded(trained, "the old ship sees " * 2500)
    assert len(Encoding(trained, 32).rows(pieces)[0]) == 32
    rows = Encoding(trained, 512, "windows", stride=256).rows(pieces)
    assert {n for row in numbers(rows) for n in row} == set(range(len(pieces)))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"length": 4}, "length=4 leaves no room"),
        ({"length": 32, "cut": "middle"}, "cut='middle' must be one of head"),
        ({"length": 32, "stride": 0}, "stride=0 must be 1 or more"),
        ({"length": 32, "windows_of": 2}, "windows_of=2 must be 0 or 1"),
    ],
)
def test_settings_that_cannot_be(fields, message):
    with pytest.raises(UserError, match=message) as raised:
        Encoding(tokenizer_of("wordpiece_cased"), **fields)
    assert "\n" not in str(raised.value)
