"""What tasks make of the examples of a file, and what they say of broken ones."""

import dataclasses
import json
import zipfile
from pathlib import Path

import pytest
import sklearn.metrics

from encoderjax.config_loading import recipe_values
from encoderjax.errors import UserError
from encoderjax.finetuning import FinetuneConfig
from encoderjax.interop.task_description import TaskDescription
from encoderjax.models.task_heads import TaskHead
from encoderjax.recipes import load_recipe
from encoderjax.tasks import TASKS
from encoderjax.tasks.answer import Answer
from encoderjax.tasks.classify import Classify, Text
from encoderjax.tasks.data import TEST, TRAIN, VALIDATION, TaskData
from encoderjax.tasks.embed import Embed
from encoderjax.tasks.encoding import Encoding
from encoderjax.tasks.questions import Question, Span
from encoderjax.tasks.records import read_records
from encoderjax.tasks.tag import Sentence, Tag
from encoderjax.tasks.task import sorted_labels
from tests.data.trained_kinds import tokenizer_of


@pytest.fixture
def write(tmp_path):
    def written(name, content):
        (tmp_path / name).write_text(content)
        return str(tmp_path / name)

    return written


def lines(*rows):
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def test_a_label_that_is_held_out_alone_is_known(write):
    """Each text has a label of its own, so every held-out one is the only of its."""
    path = write("a.csv", "text,label\n" + "".join(f"t,c{i}\n" for i in range(40)))
    task, splits = TaskData(train=path).read(Classify())
    assert len(task.labels or ()) == 40
    assert {name: len(found) for name, found in splits.items()} == {
        TRAIN: 33,
        VALIDATION: 7,
    }


def test_a_limit_is_drawn_from_the_whole_file(write):
    """One label after the other, as in a folder a class."""
    rows = "".join(f"t,{label}\n" for label in "ab" for _ in range(200))
    data = TaskData(train=write("a.csv", f"text,label\n{rows}"), limit=50)
    _, splits = data.read(Classify())
    labels = [example.labels for example in splits[TRAIN]]
    assert len(labels) == 50
    assert 15 < labels.count(("a",)) < 35
    places = [int(x.where.rpartition(":")[2]) for x in splits[TRAIN]]
    assert places == sorted(places)
    assert splits[TRAIN] == data.read(Classify())[1][TRAIN]


def test_a_context_is_on_one_side_of_a_split(write):
    """Else what is learned from it is measured on it again."""
    rows = [
        {"question": f"q{i}", "context": f"c{i % 40}", "answers": []}
        for i in range(200)
    ]
    data = TaskData(train=write("a.jsonl", lines(*rows)), test_share=0.2)
    _, splits = data.read(Answer(no_answer=True))
    contexts = {name: {x.context for x in found} for name, found in splits.items()}
    assert sum(map(len, contexts.values())) == len(set().union(*contexts.values()))
    assert 20 <= len(splits[TEST]) <= 60
    assert sum(map(len, splits.values())) == 200
    # Of few contexts, one is held out as a whole.
    few = [{**row, "context": f"c{i % 3}"} for i, row in enumerate(rows)]
    _, splits = TaskData(train=write("few.jsonl", lines(*few))).read(Answer())
    contexts = {name: {x.context for x in found} for name, found in splits.items()}
    assert {name: len(found) for name, found in contexts.items()} == {
        TRAIN: 2,
        VALIDATION: 1,
    }
    assert len(set().union(*contexts.values())) == 3
    # Of one context alone, every question is drawn for itself.
    for row in rows:
        row["context"] = "c"
    data = TaskData(train=write("b.jsonl", lines(*rows)), test_share=0.2)
    assert min(map(len, data.read(Answer(no_answer=True))[1].values())) > 5


@pytest.mark.parametrize(
    ("task", "name", "content", "text_of"),
    [
        (
            Embed(),
            "a.csv",
            "text,pair,score\n" + "".join(f"t{i % 40},p{i},1\n" for i in range(200)),
            lambda example: example.texts[0],
        ),
        (
            Tag(),
            "a.conll",
            "".join(f"w{i % 40} B-X\nis O\n\n" for i in range(200)),
            lambda example: example.words,
        ),
    ],
    ids=["embed", "tag"],
)
def test_equal_texts_are_on_one_side_of_a_split(task, name, content, text_of, write):
    _, splits = TaskData(train=write(name, content)).read(task)
    texts = {split: set(map(text_of, found)) for split, found in splits.items()}
    assert sum(map(len, texts.values())) == len(set().union(*texts.values())) == 40


def test_a_share_of_few_examples_is_one_at_least(write):
    rows = "".join(f"t{i},{'ab'[i % 2]}\n" for i in range(6))
    data = TaskData(train=write("a.csv", f"text,label\n{rows}"), test_share=0.1)
    _, splits = data.read(Classify())
    assert {name: len(found) for name, found in splits.items()} == {
        TRAIN: 4,
        VALIDATION: 1,
        TEST: 1,
    }
    alone = TaskData(train=write("b.csv", "text,label\nx,1\n"))
    with pytest.raises(UserError, match=r"b.csv: all 1 examples were held out"):
        alone.read(Classify(problem_type="regression"))


def test_glues_positive_label_is_the_second():
    """F1 is of the second; by letters, `equivalent` would be the first."""
    for variant, positive in (("mrpc", "equivalent"), ("qqp", "duplicate")):
        values = recipe_values(f"configs/finetune/glue.py:{variant}")
        config = FinetuneConfig.from_dict(values | {"init_from": "somewhere"})
        names = [f"not_{positive}", positive, positive, f"not_{positive}"]
        examples = [Text(f"a:{i}", "x", "y", (name,)) for i, name in enumerate(names)]
        task = config.task.resolved(examples)
        said = [{"label": name} for name in (positive, positive, positive, names[0])]
        assert config.eval.metric == "f1"
        theirs = sklearn.metrics.f1_score(
            names, [p["label"] for p in said], pos_label=positive
        )
        assert task.metrics(examples, said)["f1"] == pytest.approx(theirs)


FINETUNING = [
    f"{path}:{variant}"
    for path in sorted(Path("configs/finetune").glob("*.py"))
    for variant in load_recipe(path).VARIANTS
]


@pytest.mark.parametrize("recipe", FINETUNING)
def test_every_recipe_is_a_run(recipe):
    given = {"init_from": "somewhere", "data.train": "train.csv"}
    config = FinetuneConfig.from_dict(recipe_values(recipe, given))
    assert (
        f"--config={recipe.partition(':')[0]}"
        in load_recipe(recipe.partition(":")[0]).__doc__
    )
    if recipe.endswith("glue.py:mnli"):
        assert config.data.test == "tfds:glue/mnli@validation_mismatched"


def test_squads_numbers_are_berts():
    """Devlin et al. 2019, sections 4.2 and 4.3."""
    found = {}
    for variant in ("squad", "squad2"):
        values = recipe_values(f"configs/finetune/answer.py:{variant}")
        config = FinetuneConfig.from_dict(values | {"init_from": "somewhere"})
        rate = config.optimizer.learning_rate
        found[variant] = (config.epochs, rate, config.data.batch_size)
    assert found == {"squad": (3.0, 5e-5, 32), "squad2": (2.0, 5e-5, 48)}


def test_numbers_that_are_equal_have_one_order():
    assert sorted_labels({"1.0", "01", "1", "-2"}) == ("-2", "01", "1", "1.0")
    assert sorted_labels({"10", "9", "nan"}) == ("10", "9", "nan")


def test_tags_that_are_numbers_are_names_in_their_order(write):
    path = write("a.jsonl", lines({"words": ["a", "b"], "tags": [0, 1]}))
    labels = ("O", "B-X", "I-X")
    assert Tag(labels=labels).read(path, {})[0].tags == ("O", "B-X")
    assert Tag(labels=("0", "1")).read(path, {})[0].tags == ("0", "1")
    with pytest.raises(UserError, match=r"a.jsonl:1: tag 1 is beyond the 1 of"):
        Tag(labels=("O",)).read(path, {})


def test_words_of_a_text_keep_their_marks():
    text = "Die हिन्दी cafe\u0301, U_1!"
    found = Sentence.of_text("here", text)
    assert found.words == ("Die", "हिन्दी", "cafe\u0301", ",", "U_1", "!")
    assert [text[a:b] for a, b in found.offsets] == list(found.words)


def test_labels_without_the_space_around_them(write):
    path = write("a.csv", "text,label\na,pos \nb, pos\nc,neg\n")
    read = Classify().read(path, {})
    assert [x.labels for x in read] == [("pos",), ("pos",), ("neg",)]
    path = write("b.csv", "text,pair,label\na,b,x\nc,d,x \ne,f, y\n")
    vectors = TASKS["embed"].from_fields({"loss": "softmax"})
    read = vectors.read(path, {})
    assert [x.label for x in read] == ["x", "x", "y"]
    assert vectors.resolved(read).labels == ("x", "y")


def test_tags_of_tables_have_names(write):
    row = {"words": ["a", "b"], "tags": ["O", "B-X"], "tokens": ["c", "d"]}
    path = write("a.jsonl", lines(row))
    assert Tag().read(path, {})[0].words == ("a", "b")
    assert Tag().read(path, {"words": "tokens"})[0].words == ("c", "d")
    assert Tag().read(write("a.txt", "a O\n"), {})[0].tags == ("O",)


def test_lists_in_tables(write):
    """As pandas writes them."""
    path = write("a.csv", "words,tags\n\"['a b', 'c']\",\"['O', 'B-X']\"\n")
    (found,) = Tag().read(path, {})
    assert (found.words, found.tags) == (("a b", "c"), ("O", "B-X"))
    path = write("b.csv", "text,label\nx,\"['a', 'b']\"\n[y],a|b\n")
    found = Classify(problem_type="multi").read(path, {})
    assert [(x.text, x.labels) for x in found] == [
        ("x", ("a", "b")),
        ("[y]", ("a", "b")),
    ]
    path = write("c.csv", 'text,choices,label\nx,"[""a"", ""b""]",B\n')
    assert TASKS["choose"]().read(path, {})[0].choices == ("a", "b")


TAGGED = "The O\nship B-X\n\n"


@pytest.mark.parametrize(
    ("task", "name", "content", "message"),
    [
        ({}, "a.csv", "text,label\na,\n", "a.csv:2: the label is empty"),
        ({}, "a.jsonl", '{"text": "a", "label": NaN}\n', r"'label' \(label\) is null"),
        (
            {"problem_type": "multi"},
            "a.jsonl",
            lines({"text": "a", "label": ["x", None]}),
            r"a.jsonl:1: label=\['x', None\] must be a list of labels",
        ),
        ({"problem_type": "multi"}, "a.csv", "text,label\na,\n", "no .* has a label"),
        (
            {"problem_type": "multi"},
            "a.jsonl",
            lines({"text": "a", "label": [0, 1, 0]}),
            r"label=\[0, 1, 0\] has a label twice; if these are zeros and ones",
        ),
        (
            {"kind": "tag"},
            "a.jsonl",
            lines({"words": ["a", "b"], "tags": [0, 1]}),
            "a.jsonl:1: the tags are numbers; name them in their order",
        ),
        (
            {"kind": "answer"},
            "a.csv",
            "question,context,answers\nq,c,\n",
            "a.csv:2: answers='' must be a list",
        ),
        ({"labels": "a,b"}, "a.csv", "text,label\nx,a\n", "names one label; name all"),
        (
            {"head": {"layer": "last"}},
            "a.csv",
            "",
            "task.head.layer is not a field of TaskHead; did you mean 'layers'",
        ),
        (
            {"kind": "tag"},
            "a.jsonl",
            lines({"words": ["a"], "tags": []}),
            "1 words and 0 tags",
        ),
        (
            {"kind": "tag"},
            "a.jsonl",
            lines({"words": ["a", None], "tags": ["O", "O"]}),
            r"words=\['a', None\] must be a list of texts",
        ),
        (
            {"kind": "tag"},
            "a.csv",
            "words,tags\nEU,B-X\nis,O\n",
            "a.csv:2: this and all other rows have one word.* use the form conll",
        ),
        ({"kind": "tag"}, "a.conll", "a\tO\nb\t\n", "a.conll:1: 'b' has no tag"),
        ({"kind": "tag"}, "a.conll", "a O\n", "one tag, 'O': there is nothing to"),
        ({"kind": "tag"}, "a.conll", f"{TAGGED}x b-X\n", "4: tag 'b-X' marks no ent"),
        (
            {"kind": "tag", "source_scheme": "IOB2"},
            "a.conll",
            f"{TAGGED}x E-X\n",
            "a.conll:4: tag 'E-X' marks no entity of IOB2",
        ),
        (
            {"kind": "choose"},
            "a.jsonl",
            lines({"text": "a", "choices": ["x", "y"], "label": "C"}),
            "label 'C' is neither a choice, nor .* 0 to 1, nor a letter from A to B",
        ),
        (
            {"kind": "choose"},
            "a.jsonl",
            lines({"text": "a", "choices": ["1", "2"], "label": 1}),
            "label '1' is the number of '2' and the text of '1'; .* letters from A",
        ),
        (
            {"kind": "choose"},
            "a.jsonl",
            lines({"text": "a", "choices": ["x", "y", "x "], "label": "y"}),
            "a.jsonl:1: the choice 'x' is there twice; choices must differ",
        ),
        (
            {"kind": "embed", "loss": "softmax"},
            "a.csv",
            "text,pair,label\na,b,x\n",
            "the training examples have one label, 'x'",
        ),
        (
            {"kind": "embed", "loss": "softmax"},
            "a.csv",
            "text,pair,label\na,b,x\nc,d, \n",
            "a.csv:3: the label is empty",
        ),
    ],
)
def test_what_is_broken_is_named(write, task, name, content, message):
    path, fields = write(name, content), {"kind": "classify", **task}
    with pytest.raises(UserError, match=message):
        TaskData(train=path).read(TASKS[fields.pop("kind")].from_fields(fields))


def test_a_header_is_no_example(write):
    path = write("a.csv", "sentence,label\nx,a\ny,b\n")
    data = TaskData(train=path, columns={"text": 0, "label": 1})
    message = r"a.csv:1: the first row has 'sentence' in column 0 \(text\), so it is"
    with pytest.raises(UserError, match=message):
        data.read(Classify())


def test_classes_in_several_places_are_refused(tmp_path):
    for split in ("train", "test"):
        for label in ("pos", "neg"):
            (tmp_path / split / label).mkdir(parents=True)
            (tmp_path / split / label / "a.txt").write_text("x")
    message = "the class 'neg' in test/neg and in train/neg; name one of the folders"
    with pytest.raises(UserError, match=message):
        Classify().read(str(tmp_path), {})
    assert len(Classify().read(str(tmp_path / "train"), {})) == 2


def test_pairs_and_texts_are_not_taken_for_each_other(write):
    pairs = write("a.csv", "text,pair,label\na,b,x\nc,d,y\n")
    task, _ = TaskData(train=pairs, columns={"pair": "pair"}).read(Classify())
    head = TaskHead(kind="classify", num_labels=2)
    kept = TaskDescription(**task.described(), head=head)
    again = Classify.from_description(kept)
    assert again.pairs
    encoding = Encoding(tokenizer_of("wordpiece_cased"), 16)
    single = [Text("here", "a", None, ("x",))]
    with pytest.raises(UserError, match=r"here: one text, and task.pairs=True"):
        again.encode(single, encoding)
    alone = dataclasses.replace(task, pairs=False)
    with pytest.raises(UserError, match=r"2: two texts, and task.pairs=False"):
        alone.encode(Classify().read(pairs, {"pair": "pair"}), encoding)


@pytest.mark.parametrize("longer", [0, 1])
def test_windows_are_of_the_longer_text_of_a_pair(longer):
    texts = ["the old ship sees the harbour " * 20, "the island"]
    example = Text("here", texts[longer], texts[1 - longer], ("x",))
    encoding = Encoding(tokenizer_of("wordpiece_cased"), 32, "windows", stride=16)
    task = Classify(labels=("x", "y"))
    rows = [row for (row,) in task.encode([example], encoding).items]
    for text in (example.text, example.pair):
        place = int(text == example.pair)
        seen = {int(n) for row in rows for n in row.pieces[row.places(place)]}
        pieces = encoding.tokenizer.encode_with_offsets(text)
        assert seen == set(range(len(pieces)))


def test_fields_of_a_head_and_labels_are_typed():
    task = Classify.from_fields({"labels": [0, 1], "head": {"dropout_rate": 0}})
    assert task.labels == ("0", "1")
    assert task.head == {"dropout_rate": 0.0}


def test_choices_by_letter(write):
    row = {"text": "a", "choices": ["x", "y"]}
    path = write("a.jsonl", lines({**row, "label": "B"}, {**row, "label": "x"}))
    assert [x.label for x in TASKS["choose"]().read(path, {})] == [1, 0]


@pytest.mark.parametrize(
    ("labels", "wanted"), [("10", [1, 0]), ("13", [0, 0]), ("BA", [1, 0])]
)
def test_choices_that_are_numbers(write, labels, wanted):
    """A label is read as all of the file can be: as a number, or as a text."""
    choices = (["1", "2"], ["3", "1"])
    rows = [
        {"text": "a", "choices": x, "label": y}
        for x, y in zip(choices, labels, strict=True)
    ]
    found = TASKS["choose"]().read(write("a.jsonl", lines(*rows)), {})
    assert [x.label for x in found] == wanted


def test_questions_with_one_id_are_measured_each():
    examples = [
        Question("", "q", "?", "a ship", (Span("ship", 2),)),
        Question("", "q", "?", "a whale", (Span("whale", 2),)),
    ]
    found = [{"id": "q", "answer": "ship"}, {"id": "q", "answer": "tide"}]
    metrics = Answer(no_answer=False).metrics(examples, found)
    assert metrics == {"f1": 50.0, "exact_match": 50.0}


@pytest.mark.parametrize(
    ("task", "role", "prediction"),
    [
        (Answer(no_answer=True), "answers", {"answer": "b", "no_answer_score": 1.0}),
        (Classify(problem_type="regression", pairs=False), "label", {"score": 1.0}),
        (Classify(labels=("x", "y"), pairs=False), "label", {"label": "x"}),
    ],
)
def test_nothing_is_learned_or_measured_without_answers(write, task, role, prediction):
    """Not even that there is no answer, which is one."""
    path = write("a.csv", "question,context,text\na,b,c\n")
    examples = task.read(path, {role: None})
    message = f"a.csv:2 has no {role}; name"
    with pytest.raises(UserError, match=message):
        task.encode(examples, Encoding(tokenizer_of("wordpiece_cased"), 16))
    with pytest.raises(UserError, match=message):
        task.metrics(examples, [prediction])


def test_words_of_conll_may_have_other_spaces(write):
    """Lines of spaces and tabs end a sentence, and say nothing of what cuts columns."""
    path = write("a.conll", "10\u00a0000 O\n \t\nb O\n")
    found = read_records(path, {"words": "0"})
    assert [record["words"] for record in found] == [["10\u00a0000"], ["b"]]


def test_archives_that_cannot_be_read(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("pos/a.txt", "good")
        archive.writestr("neg/b.txt", "bad")
        archive.writestr(".git/c.txt", "neither")
    assert {r["label"] for r in read_records(str(path), {"label": "label"})} == {
        "pos",
        "neg",
    }
    with zipfile.ZipFile(tmp_path / "tables.zip", "w") as archive:
        archive.writestr("train.csv", "text,label\n")
        archive.writestr("test.csv", "text,label\n")
    with pytest.raises(
        UserError, match=r"test\.csv, which is no file of texts.*unpack"
    ):
        read_records(str(tmp_path / "tables.zip"), {"text": "text", "label": "label"})
    content = bytearray(path.read_bytes())
    content[content.find(b"PK\x01\x02") + 8] |= 1  # says that the first is encrypted
    content[6] |= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"encrypted.*unpack it, and give the folder"):
        read_records(str(path), {"text": "text", "label": "label"})
