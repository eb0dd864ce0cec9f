"""What is drawn and refused, and models from elsewhere, which tell less of a task."""

from pathlib import Path

import numpy as np
import pytest
import transformers

from encoderjax import pictures, predict
from encoderjax.errors import UserError
from tests.data.trained_kinds import tokenizer_of
from tests.small_tasks import write_bert


def test_labels_of_any_letters_have_a_picture(tmp_path):
    """Of a $ no formula is made; of very many names some are left out."""
    labels = ["$a\\bad$", "$5", *(f"x{i}" for i in range(130))]
    pictures.draw_confusion(tmp_path / "a.png", np.eye(132, dtype=int), labels, print)
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_a_folder_of_vectors_says_what_uses_it(tmp_path):
    (tmp_path / "config.json").write_text('{"model": {}, "sentence": {}}')
    with pytest.raises(UserError, match=r"encoderjax\.embed --model=.*\.npy$"):
        predict.Predictor.load(tmp_path)


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--evaluate", "texts have none; give a file that has them, --input=FILE"),
        ("--columns.text=a", "--columns.text=a is of a file, --input=FILE; for texts"),
        ("--form=csv", "--form=csv is of a file, --input=FILE; for texts leave it out"),
        ("--columns.text", "--columns.text needs a value: --columns.text=VALUE"),
    ],
)
def test_what_means_nothing_of_texts_is_refused(flag, message):
    with pytest.raises(UserError, match=message):
        predict.main(["--model=nowhere", "A ship.", flag])


def test_what_is_wrong_with_the_place_of_a_file_is_said_alone():
    """A folder that cannot be made needs no space."""
    with pytest.raises(UserError, match=r"No such file.*; mend that, or give another"):
        predict._write_file(Path("/proc/nope/x"), [], [])


def from_elsewhere(folder, model, **fields):
    """Writes a model with weights that are large enough for answers to differ."""
    tokenizer = tokenizer_of("wordpiece_cased")
    return write_bert(folder, tokenizer, model, initializer_range=0.5, **fields)


def test_a_tagger_from_elsewhere_tells_entities_and_places(tmp_path):
    labels = {0: "O", 1: "B-X", 2: "I-X", 3: "B-Y"}
    folder = from_elsewhere(
        tmp_path, transformers.BertForTokenClassification, id2label=labels
    )
    predictor = predict.Predictor.load(folder)
    text = "The old ship, sees: the sailor near an island."
    (found,) = predictor(predictor.of_texts([text]))
    words = [text[start:end] for start, end in found["offsets"]]
    assert words == found["words"]
    assert found["entities"]
    for entity in found["entities"]:
        assert text[entity["start"] : entity["end"]] == entity["text"]
        first, end = entity["words"]
        assert {tag[2:] for tag in found["tags"][first:end]} == {entity["type"]}
    with pytest.raises(UserError, match=r"task.kind='tag' has no use for --thresh"):
        predict.Predictor.load(folder, threshold=0.5)


def test_a_threshold_is_of_several_labels(tmp_path):
    single = from_elsewhere(tmp_path / "s", transformers.BertForSequenceClassification)
    with pytest.raises(UserError, match=r"threshold=0\.9 .* is 'single'; leave it out"):
        predict.Predictor.load(single, threshold=0.9)
    problem = {"problem_type": "multi_label_classification"}
    multi = from_elsewhere(
        tmp_path / "m", transformers.BertForSequenceClassification, **problem
    )
    labels = []
    for threshold in (0.0, 0.999):
        predictor = predict.Predictor.load(multi, threshold=threshold)
        labels += [x["labels"] for x in predictor(predictor.of_texts(["the ship"]))]
    assert labels == [["LABEL_0", "LABEL_1"], []]
    with pytest.raises(UserError, match=r"threshold=nan must be in \[0, 1\)"):
        _ = predict.Predictor.load(multi, threshold=np.nan).task


def test_a_choice_needs_no_label(tmp_path):
    predictor = predict.Predictor.load(
        from_elsewhere(tmp_path, transformers.BertForMultipleChoice)
    )
    with pytest.raises(UserError, match=r"the columns text, choices$"):
        predictor.of_texts(["the ship"])


def test_lines_have_one_column(tmp_path):
    folder = from_elsewhere(tmp_path / "s", transformers.BertForSequenceClassification)
    predictor, path = predict.Predictor.load(folder), tmp_path / "a.txt"
    path.write_text("the old ship\n")
    (found,) = predictor.read(str(path), {"text": "text"}, None, answered=False)
    assert found.text == "the old ship"
    with pytest.raises(UserError, match="no column 'review' for text"):
        predictor.read(str(path), {"text": "review"}, None, answered=False)


def test_bytes_that_are_no_text_are_replaced_as_in_files(tmp_path):
    """The shell's arguments have them as halves of surrogate pairs."""
    folder = from_elsewhere(tmp_path / "c", transformers.BertForSequenceClassification)
    predictor = predict.Predictor.load(folder)
    examples = predictor.of_texts(["ship \udcff"], ["caf\udcff"])
    assert [(x.text, x.pair) for x in examples] == [("ship \ufffd", "caf\ufffd")]
    assert len(predictor(examples)) == 1
    folder = from_elsewhere(tmp_path / "a", transformers.BertForQuestionAnswering)
    predictor = predict.Predictor.load(folder)
    examples = predictor.of_texts(["ship \udcff"], question="\udcff?")
    assert [(x.context, x.question) for x in examples] == [("ship \ufffd", "\ufffd?")]


def test_answers_from_elsewhere_are_looked_for_in_the_whole_context(tmp_path):
    folder = from_elsewhere(tmp_path, transformers.BertForQuestionAnswering)
    whole = predict.Predictor.load(folder, length=32, stride=8)
    context = "the old ship sees the sailor near the island " * 12
    (question,) = whole.of_texts([context], question="Who?")
    rows = whole.task.encode([question], whole.encoding, answered=False).items
    assert len(rows) > 5
    head = predict.Predictor.load(folder, length=32, cut="head")
    assert len(head.task.encode([question], head.encoding, answered=False).items) == 1
    unsure = predict.Predictor.load(folder, no_answer=True, threshold=-1e9)
    assert whole([question])[0]["answer"]
    assert unsure([question])[0]["answer"] == ""
    with pytest.raises(UserError, match=r"threshold=1\.0 says.*; give --no_answer"):
        predict.Predictor.load(folder, threshold=1.0)
    with pytest.raises(UserError, match=r"threshold=inf must be a finite"):
        _ = predict.Predictor.load(folder, no_answer=True, threshold=np.inf).task
    with pytest.raises(UserError, match="length=65 is more than the 64 tokens"):
        predict.Predictor.load(folder, length=65)
