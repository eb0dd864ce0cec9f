# ruff: noqa: RUF001 (marks of many scripts)
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from encoderjax.data.sentences import split_sentences


@pytest.mark.parametrize(
    "sentences",
    [
        ["Mr. Smith met Dr. Jones at St. Paul's.", "They spoke."],
        ["The U.S. Congress met.", "It sat in the U.S.", "The rest is known."],
        ["Use tools, e.g. Python, i.e. The One.", "Done."],
        ["J. F. Kennedy spoke.", "So did I.", "He left."],
        ["It is 3.14 m long.", "See p. 5 and No. 7 of Vol. II.", "No.", "Never."],
        ["He came on Dec. 25, 1999.", "It was 1945.", "12 men left."],
        ["Apples, pears, etc.", "The end."],
        ["Lions vs. Tigers was on.", "Acme Inc. Sells was not.", "OK!"],
        ["He asked, “Why?” and left.", "“Because!”", "(So it was.)", "Yes."],
        ['"Stop!" he cried.', '"I will."', "Then silence..."],
        ["Wait... what?", "Yes…", "No.", "It was so.[12]", "Next."],
        ["1. Scope of the law.", "IV. The Court agreed."],
        ["Visit example.com or a.b.c now.", "Version 1.2.3 is out."],
        ["Er kam z. B. Montag.", "Ärger gab es nicht."],
        ["Он пришёл.", "Все ушли, т. е. никто не остался."],
    ],
)
def test_sentences_joined_by_spaces_come_apart_again(sentences):
    assert split_sentences(" ".join(sentences)) == sentences


@pytest.mark.parametrize(
    "sentences",
    [
        ["你好吗？", "我很好！", "他说：“走吧。”", "（完了。）", "结束"],
        ["今日は晴れ。", "「行こう。」と彼は言った。", "『本当？』", "はい。"],
        ["版本 v1.2 已发布。", "请看 example.com。"],
        ["真的吗?", "是的!", "好"],
        ["यह एक वाक्य है।", " यह दूसरा है॥"],
    ],
)
def test_scripts_without_spaces_between_sentences(sentences):
    assert split_sentences("".join(sentences)) == [s.strip() for s in sentences]


def test_arabic_and_urdu_marks():
    assert split_sentences("كيف حالك؟ أنا بخير. شكرا") == [
        "كيف حالك؟",
        "أنا بخير.",
        "شكرا",
    ]
    assert split_sentences("یہ ایک ہے۔ یہ دو ہے۔") == ["یہ ایک ہے۔", "یہ دو ہے۔"]


def test_short_lines_are_soft_wraps():
    text = "The cat sat\non the mat. The dog\r\nslept.\n\nA new\tparagraph"
    expected = ["The cat sat on the mat.", "The dog slept.", "A new paragraph"]
    assert split_sentences(text) == expected


def test_wraps_between_chinese_characters_leave_no_space():
    assert split_sentences("这是一个\n很长的句子。\n使用 Hugo\n运行。") == [
        "这是一个很长的句子。",
        "使用 Hugo 运行。",
    ]


def test_long_lines_are_paragraphs():
    line = "a title without a stop " + "and words " * 15
    assert split_sentences(f"{line}\n{line}") == [line.strip()] * 2


def test_list_items_and_headings_stand_alone():
    text = "## Tools\nYou need:\n- npm\n- Go\n1. First\n2. Second"
    expected = ["## Tools", "You need:", "- npm", "- Go", "1. First", "2. Second"]
    assert split_sentences(text) == expected


@pytest.mark.parametrize("text", ["", " \n\t\n ", "\u2028"])
def test_blank_text_has_no_sentences(text):
    assert split_sentences(text) == []


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from("aB1 .!?\n。？」\"'(…U.S\u3000中や")))
def test_nothing_but_white_space_is_lost(text):
    sentences = split_sentences(text)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert all(s == " ".join(s.split()) and s for s in sentences)
