"""Records of every form, and what is said of broken ones."""

import gzip
import json

import numpy as np
import pytest
import tensorflow_datasets as tfds

from encoderjax.errors import UserError
from encoderjax.tasks.questions import Span, read_questions
from encoderjax.tasks.records import read_records


@pytest.fixture
def write(tmp_path):
    def written(name, content):
        path = tmp_path / name
        data = content if isinstance(content, bytes) else content.encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return str(path)

    return written


TEXT = {"text": "sentence", "label": "label"}
ROWS = [
    {"text": 'It\'s fine, "really" ', "label": "1"},
    {"text": "zwölf 中文", "label": "0"},
]


@pytest.mark.parametrize(
    ("name", "content", "columns"),
    [
        (
            "a.csv",
            'id,sentence,label\n7,"It\'s fine, ""really"" ",1\n\n8,zwölf 中文,0\n',
            TEXT,
        ),
        (
            "a.csv",
            '"It\'s fine, ""really"" ",1\r\nzwölf 中文,0\r\n',
            {"text": "0", "label": "1"},
        ),
        (
            "a.tsv.gz",
            '\ufefflabel\tsentence\n1\tIt\'s fine, "really" \n0\tzwölf 中文',
            TEXT,
        ),
        (
            "a.tsv",
            'x\t1\tIt\'s fine, "really" \nx\t0\tzwölf 中文\textra\n',
            {"text": "2", "label": "1"},
        ),
        (
            "a.jsonl",
            '{"sentence": "It\'s fine, \\"really\\" ", "label": 1}\n\n'
            '{"label": "0", "sentence": "zwölf 中文", "more": null}',
            TEXT,
        ),
        (
            "a.json",
            '[{"sentence": "It\'s fine, \\"really\\" ", "label": 1},\n'
            '{"label": 0, "sentence": "zwölf 中文"}]',
            TEXT,
        ),
    ],
)
def test_forms_give_the_same_records(write, name, content, columns):
    assert read_records(write(name, content), {**columns, "pair": None}) == ROWS


@pytest.mark.parametrize(
    ("content", "columns"),
    [
        ('text;label\n"a; b, c";x\nd, e;y\n', {"text": "text", "label": "label"}),
        (
            "text\tlabel\r\na; b, c\tx\r\nd, e\ty\r\n",
            {"text": "text", "label": "label"},
        ),
        ('text, label\n"a; b, c", x\n"d, e", y\n', {"text": "text", "label": "label"}),
        ('text,label\n"a; b, c",x\n  \n"d, e",y\n', {"text": "text", "label": "label"}),
    ],
)
def test_csv_of_other_separators(write, content, columns):
    """Commas come first: what they cut into the columns is read as ever."""
    found = read_records(write("a.csv", content), columns)
    assert found == [{"text": "a; b, c", "label": "x"}, {"text": "d, e", "label": "y"}]


def test_commas_come_first(write):
    """And what finds as many columns in all rows, where those are numbers."""
    path = write("b.csv", "x;a\ny;b, c\nz;d, e, f\n")
    found = read_records(path, {"text": "1", "label": "0"})
    assert [r["label"] for r in found] == ["x", "y", "z"]
    path = write("a.csv", "a;b,c;d\ne;f,g;h\n")
    assert read_records(path, {"text": "0", "label": "1"}) == [
        {"text": "a;b", "label": "c;d"},
        {"text": "e;f", "label": "g;h"},
    ]


def test_columns_in_mappings_of_json(write):
    row = {"text": {"en": "a", "de": "b"}, "dotted.name": "c", "answers": {"x": [1]}}
    path = write("a.jsonl", json.dumps(row))
    wanted = {"text": "text.de", "pair": "dotted.name", "label": "answers.x"}
    (found,) = read_records(path, wanted)
    assert found == {"text": "b", "pair": "c", "label": [1]}
    with pytest.raises(UserError, match=r"no column 'text\.fr' for text"):
        read_records(path, {"text": "text.fr"})


def test_where_is_file_and_line(write):
    path = write("a.csv", 'text\n"two\nlines"\nlast\n')
    assert [r.where for r in read_records(path, {"text": "text"})] == [
        f"{path}:2",
        f"{path}:4",
    ]


def test_values_of_json(write):
    row = {"words": ["a", "\ud800"], "label": True, "number": 0.5, "text": "\ud83dx"}
    path = write("a.jsonl", json.dumps(row))
    (record,) = read_records(path, {name: name for name in row})
    assert record == {
        "words": ["a", "\ufffd"],
        "label": "true",
        "number": "0.5",
        "text": "\ufffdx",
    }
    with pytest.raises(UserError, match=r"words=.* is not text"):
        record.text("words")


CONLL = """-DOCSTART- -X- -X- O

# a comment of more words than columns
EU NNP B-NP B-ORG
# NN I-NP O

Peter NNP B-NP B-PER
Blackburn NNP I-NP I-PER
"""


def test_conll(write):
    path = write("eng.testa", CONLL)
    records = read_records(path, {"words": "0", "tags": "-1", "id": None})
    assert records == [
        {"words": ["EU", "#"], "tags": ["B-ORG", "O"]},
        {"words": ["Peter", "Blackburn"], "tags": ["B-PER", "I-PER"]},
    ]
    assert records[1].where == f"{path}:7"
    (first, _) = read_records(path, {"pos": "1"})
    assert first == {"pos": ["NNP", "NN"]}


def test_conllu_and_tabs(write):
    text = "# text = Vámonos al mar\n1-2\tVámonos\t_\n1\tVamos\tVERB\n2\tnos\tPRON\n"
    text += "2.1\tx\t_\n\n\n#\n1\t# \tSYM\n"
    path = write("a.conllu", text)
    assert read_records(path, {"words": "1", "tags": "2"}) == [
        {"words": ["Vamos", "nos"], "tags": ["VERB", "PRON"]},
        {"words": ["#"], "tags": ["SYM"]},
    ]


def test_lines_between_words_may_be_cut_otherwise(write):
    """Marks of documents and comments say nothing of what cuts the columns."""
    tabs = "-DOCSTART- -X- O\n\n# id 1 of 2\nEU\tB-ORG\n#\tO\n"
    spaces = "-DOCSTART-\tO\n\n# id\tdomain=en\nEU B-ORG\n# O\n"
    for content in (tabs, spaces):
        assert read_records(write("a.conll", content), NUMBERS) == [
            {"words": ["EU", "#"], "tags": ["B-ORG", "O"]}
        ]


def squad(answers, context="The ship sank. The ship burnt.", **more):
    question = {"id": "q1", "question": "What?", "answers": answers, **more}
    paragraph = {"context": context, "qas": [question]}
    return json.dumps({"version": "v2.0", "data": [{"paragraphs": [paragraph]}]})


def test_questions(write):
    answers = [{"text": "ship", "answer_start": 4}]
    for id, path in (
        (None, write("a.json", squad(answers))),  # SQuAD's own
        (
            "id",
            write(
                "a.jsonl",
                json.dumps(
                    {
                        "id": "q1",
                        "question": "What?",
                        "context": "The ship sank. The ship burnt.",
                        "answers": {"text": ["ship"], "answer_start": [4]},
                    }
                ),
            ),
        ),
    ):
        (found,) = read_questions(path, id=id)
        assert found.answers == (Span("ship", 4),)
        assert (found.id, found.question) == ("q1", "What?")
    (found,) = read_questions(write("b.json", squad([], is_impossible=True)))
    assert found.answers == ()
    assert found.where.endswith("b.json:q1")
    (found,) = read_questions(path, answers=None)
    assert (found.answers, found.id) == (None, "1")  # its line


@pytest.mark.parametrize(
    "answers",
    [
        '{"text": "ship", "answer_start": 4}',
        '[{"text": "ship", "answer_start": 4}]',
        "{'text': ['ship'], 'answer_start': [4]}",
    ],
)
def test_answers_in_tables(write, answers):
    cell = answers.replace('"', '""')
    path = write("a.csv", f'question,context,answers\nWhat?,The ship,"{cell}"\n')
    (found,) = read_questions(path)
    assert found.answers == (Span("ship", 4),)


def test_a_question_that_is_impossible_needs_no_answers(write):
    question = {"id": "q", "question": "What?", "is_impossible": True}
    paragraph = {"context": "The ship.", "qas": [question]}
    path = write("a.json", json.dumps({"data": [{"paragraphs": [paragraph]}]}))
    assert read_questions(path)[0].answers == ()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"text": "ship", "answer_start": 5}, "'ship' is not at .*=5.* it is at 4"),
        ({"text": "ship", "answer_start": 99}, "it is at 19"),
        ({"text": "boat", "answer_start": 4}, "the context does not have it"),
        ({"text": "", "answer_start": 4}, "answer '' is empty"),
        ({"text": "ship", "answer_start": "4"}, "answer_start='4' must be a number"),
        ({"text": "ship", "answer_start": -26}, "answer_start=-26 must be"),
        ({"text": "ship"}, "must be a list of"),
        ("ship", "must be a list of"),
    ],
)
def test_answers_that_are_wrong(write, answer, message):
    with pytest.raises(UserError, match=message) as raised:
        read_questions(write("a.json", squad([answer])))
    assert "a.json:q1: " in str(raised.value)
    assert "\n" not in str(raised.value)


NAMES = {"text": "text", "label": "label"}
NUMBERS = {"words": "0", "tags": "-1"}


@pytest.mark.parametrize(
    ("name", "content", "columns", "message"),
    [
        ("a.csv", "", NAMES, "a.csv has no examples"),
        ("a.csv", "text,label\n", NAMES, "a.csv has no examples"),
        ("a.csv", "text,klass\na,b\n", NAMES, r"a.csv:1: no column 'label' .*klass"),
        ("a.csv", "text,text,label\na,b,c\n", NAMES, "'text' .* stands there 2 times"),
        ("a.csv", "text,label\na\n", NAMES, "a.csv:2: 1 columns, the header has 2"),
        ("a.csv", 'text,label\n"a,1\nb,0\n', NAMES, "a.csv:2: not CSV"),
        ("a.tsv", "a\t1\nb\n", {"label": "1"}, "a.tsv:2: no column '1' for label"),
        ("a.tsv", b"a\t1\nb\xff\t0\n", {"label": "1"}, "a.tsv:2: not UTF-8 .byte 0xff"),
        ("a.csv", "text,label\n".encode("utf-16"), NAMES, "UTF-16; convert the file"),
        ("a.csv", "text,label\ra,1\r", NAMES, r"a.csv:1: not CSV .* end lines with"),
        ("a.tsv", "text,label\na,1\n", NAMES, "'text' .* has the form csv"),
        ("a.jsonl", '{"text": 1, "label": 2}\n{"te', NAMES, "a.jsonl:2: not JSON"),
        ("a.jsonl", '{"text": "a"}', NAMES, "a.jsonl:1: no column 'label' for label"),
        ("a.jsonl", '{"text": "a", "label": null}', NAMES, "'label' .* is null"),
        ("a.jsonl", "[1]", NAMES, r"a.jsonl:1: \[1\] is not a JSON object"),
        ("a.json", '{"data": [{"par', NAMES, "a.json: not JSON"),
        ("a.json", '{"data": [{"paragraphs": [1]}]}', NAMES, "not SQuAD's form"),
        ("a.json", "[[1]]", NAMES, "not a JSON object"),
        ("a.json", "[" * 100_000, NAMES, "a.json: "),
        ("a.conll", "a O\nb\n", NUMBERS, "a.conll:2: 1 columns, the first word has 2"),
        ("a.conll", "a O\nb X O\n", NUMBERS, "a.conll:2: 3 columns"),
        ("a.conll", "a O\n", {"tags": "3"}, "a.conll:1: no column '3' for tags"),
        ("a.conll", "a O\n", {"tags": "ner"}, "column 'ner' for tags must be a number"),
        ("a.conll", "a;O\nb;O\n", NUMBERS, "a.conll:1: .* words and tags are the same"),
        ("a.conll", "\n\n", NUMBERS, "a.conll has no examples"),
        ("a.data", "a", NAMES, "its name does not tell its form"),
        ("a.csv.gz", b"", {"text": "0"}, "a.csv.gz has no examples"),
        ("a.csv", "a,O\nb,O\n", NUMBERS, "a.csv: column -1 .tags. counts from the"),
        ("a.tsv", "a\tO\n", NUMBERS, "count from 0, or name the columns"),
    ],
)
def test_broken_files_are_told_in_a_line(write, name, content, columns, message):
    with pytest.raises(UserError, match=message) as raised:
        read_records(write(name, content), columns)
    assert "\n" not in str(raised.value)


def test_files_that_are_not_there_or_damaged(tmp_path):
    with pytest.raises(UserError, match=r"a\.csv"):
        read_records(str(tmp_path / "a.csv"), {"text": "0"})
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"a,b\n" * 10_000)[:-30])
    with pytest.raises(UserError, match="damaged"):
        read_records(str(path), {"text": "0"})


def test_a_text_of_many_words(write):
    text = "word " * 100_000
    (record,) = read_records(write("a.csv", f'"{text}",1\n'), {"text": "0"})
    assert record["text"] == text


class TaggedQuestions(tfds.core.GeneratorBasedBuilder):
    """Every kind of column that tasks have."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        tags = tfds.features.ClassLabel(names=["O", "B-x"])
        answer = {"text": tfds.features.Text(), "answer_start": np.int32}
        features = {
            "id": tfds.features.Text(),
            "context": tfds.features.Text(),
            "question": tfds.features.Text(),
            "score": np.float32,
            "label": tfds.features.ClassLabel(names=["no", "yes"]),
            "words": tfds.features.Sequence(tfds.features.Text()),
            "tags": tfds.features.Sequence(tags),
            "answers": tfds.features.Sequence(answer),
        }
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict(features)
        )

    def _split_generators(self, dl_manager):
        return {"test": self._generate_examples()}

    def _generate_examples(self):
        for i in range(3):
            answers = [{"text": "ship", "answer_start": 4}] * (i % 2)
            texts = {"id": f"q{i}", "context": "the ship", "question": "what?"}
            words = {"words": ["ä", "b"][:i], "tags": ["O", "B-x"][:i]}
            score = {"score": i / 2, "label": i - 1 if i else -1}
            yield i, {**texts, **words, **score, "answers": answers}


def test_tfds(tmp_path):
    builder = TaggedQuestions(data_dir=tmp_path, file_format="array_record")
    builder.download_and_prepare()
    path = f"tfds:{builder.data_path}@test"
    columns = {name: name for name in ("id", "score", "label", "words", "tags")}
    found = {record["id"]: record for record in read_records(path, columns)}
    assert found["q2"] == {
        "id": "q2",
        "score": "1.0",
        "label": "yes",
        "words": ["ä", "b"],
        "tags": ["O", "B-x"],
    }
    assert found["q0"]["words"] == []
    assert found["q0"]["label"] == "-1"
    spans = {q.id: q.answers for q in read_questions(path, id="id")}
    assert spans == {"q0": (), "q1": (Span("ship", 4),), "q2": ()}
    with pytest.raises(
        UserError, match="no column 'text' for text; it has the columns"
    ):
        read_records(path, {"text": "text"})
    with pytest.raises(
        UserError, match=r"^tfds:nothing_of_that_name is not in .*\(TFDS"
    ):
        read_records("tfds:nothing_of_that_name", {"text": "text"})
