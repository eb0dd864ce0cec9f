import pytest

from encoderjax.data.fertility import fertility_lines, measure_fertility
from encoderjax.data.tokenizers import make_tokenizer
from tests.small_corpus import documents

TEXTS = {
    "en": ["the ship of the sea ", "a  ship\nships"],
    "zh": ["船在海上 the ship。", "海"],
    "xx": ["the ship 海 ship"],
    "none": [],
}


@pytest.fixture(scope="module")
def tokenizer():
    texts = [*documents(10), "船 在 海 上"]
    return make_tokenizer("wordpiece:150", lambda: texts)


def test_tokens_are_counted_by_word_or_by_character(tokenizer):
    en, zh, xx, none = measure_fertility(tokenizer, TEXTS)
    assert (en.language, en.unit, en.units, en.characters) == ("en", "word", 8, 25)
    # Counted by hand: 船在海上。, theship, 海.
    assert (zh.unit, zh.units, zh.characters) == ("character", 13, 13)
    assert (xx.unit, xx.units) == ("word", 4)  # one character makes no Chinese
    assert (none.tokens, none.tokens_per_unit, none.unknown_share) == (0, 0, 0)


def test_tokens_and_unknown_ones_are_those_of_the_tokenizer(tokenizer):
    rows = measure_fertility(tokenizer, TEXTS)
    for row in rows:
        tokens = [t for i in tokenizer.encode(TEXTS[row.language]) for t in i.tolist()]
        assert row.tokens == len(tokens)
        unknown = [t for t in tokenizer.tokens(tokens) if t == "[UNK]"]
        assert row.unknown == len(unknown)
    assert rows[1].unknown == 1  # the full stop
    assert rows[1].unknown_share == 1 / rows[1].tokens
    assert rows[0].tokens_per_unit == rows[0].tokens / 8
    assert rows[0].characters_per_token == 25 / rows[0].tokens


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("ภาษาไทยเขียนโดยไม่เว้นวรรค", "character"),
        ("ພາສາລາວບໍ່ມີຊ່ອງຫວ່າງ", "character"),
        ("ភាសាខ្មែរមិនមានចន្លោះ", "character"),
        ("မြန်မာစာတွင်နေရာလွတ်မရှိ", "character"),
        ("བོད་ཡིག་ལ་བར་སྟོང་མེད།", "character"),
        ("日本語はスペースなしで書く", "character"),
        ("한국어는 띄어쓰기를 합니다", "word"),
        ("हिन्दी में शब्द अलग होते हैं", "word"),
        ("tiếng Việt cách từng âm tiết", "word"),
        ("русские слова разделены", "word"),
    ],
)
def test_the_script_decides(tokenizer, text, unit):
    (row,) = measure_fertility(tokenizer, {"": [text]})
    assert row.unit == unit


def test_the_table_is_aligned(tokenizer):
    rows = measure_fertility(tokenizer, TEXTS)
    lines = fertility_lines({"alpha 0.3": rows, "alpha 1": rows[:]})
    assert len(lines) == 5
    assert len({len(line) for line in lines}) == 1
    assert lines[0].split() == (
        "language tokens a alpha 0.3 unknown alpha 1 unknown".split()  # noqa: SIM905
    )
    figures = [f"{rows[1].tokens_per_unit:.2f}", f"{rows[1].unknown_share:.2%}"]
    assert lines[2].split() == ["zh", "character", *figures, *figures]
