"""What a fine-tuned model says of new text: classes, numbers, entities, answers.

python -m encoderjax.predict --model=runs/classify "What a film." "What a bore."
"""

import contextlib
import dataclasses
import functools
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO, get_args

import jax

from encoderjax.command import Parser, run_command
from encoderjax.config_loading import overrides_of
from encoderjax.data.decompression import bare_suffix
from encoderjax.errors import UserError
from encoderjax.interop.sentence_loading import holds_sentence
from encoderjax.interop.task_description import Cut, TaskDescription
from encoderjax.interop.task_loading import LoadedTask, holds_task, load_task
from encoderjax.tasks import TASKS
from encoderjax.tasks.batches import Items
from encoderjax.tasks.choose import Choose
from encoderjax.tasks.classify import Text
from encoderjax.tasks.encoding import Encoding
from encoderjax.tasks.finetuner import Finetuner, make_score_step, scores_of
from encoderjax.tasks.questions import Question
from encoderjax.tasks.records import Form, encodable, read_records
from encoderjax.tasks.tag import Sentence
from encoderjax.tasks.task import Prediction, Task
from encoderjax.training.mesh import (
    MeshConfig,
    batch_shards,
    make_mesh,
    parameter_shardings,
)

_BLOCK = 4096  # examples that are held at once
_TEXT = "text"
_OF_ROWS, _SETTINGS = ("length", "cut", "stride"), ("no_answer", "threshold")
_EXAMPLES = (
    'python -m encoderjax.predict --model=runs/classify "What a film." "What a bore."',
    "python -m encoderjax.predict --model=runs/tag --input=letters.txt",
    "python -m encoderjax.predict --model=runs/classify --input=new.csv "
    "--columns.text=review --out=predicted.jsonl",
    "python -m encoderjax.predict --model=runs/answer --question='Who won?' "
    '"The match was won by the visitors."',
    "python -m encoderjax.predict --model=runs/classify --input=test.csv --evaluate",
)


@dataclasses.dataclass(frozen=True, eq=False)
class Predictor:
    """A fine-tuned model, ready for examples of its task.

    Attributes:
      batch_size: rows that are read at once.
    """

    loaded: LoadedTask
    batch_size: int = 64

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        step: int | None = None,
        batch_size: int = 64,
        **changes: Any,
    ) -> "Predictor":
        """Loads a workdir of `finetune`, its export, or a folder of Hugging Face.

        Args:
          folder: that has the model.
          step: which checkpoint of a workdir; None = the best.
          batch_size: rows that are read at once.
          changes: `length`, `cut` or `stride`, and settings of the task that change
            what scores mean, such as `threshold`.
        """
        if not holds_task(folder) and holds_sentence(folder):
            raise UserError(
                f"{folder} gives texts vectors, and predicts nothing; use python -m "
                f"encoderjax.embed --model={folder} --input=FILE --out=vectors.npy"
            )
        loaded = load_task(folder, step)
        description = _changed(loaded.description, changes)
        if description.length > loaded.config.max_length:
            raise UserError(
                f"length={description.length} is more than the "
                f"{loaded.config.max_length} tokens that {folder} has positions for"
            )
        return cls(dataclasses.replace(loaded, description=description), batch_size)

    @functools.cached_property
    def task(self) -> Task:
        """The task, as it was trained."""
        description = self.loaded.description
        return TASKS[description.kind].from_description(description)

    @functools.cached_property
    def encoding(self) -> Encoding:
        """How texts become rows."""
        told, tokenizer = self.loaded.description, self.loaded.need_tokenizer()
        return Encoding(tokenizer, told.length, told.cut, told.stride)

    def __call__(self, examples: Sequence[Any]) -> list[Prediction]:
        """Returns what is predicted of each example."""
        if not examples:
            return []
        task = self.task
        if isinstance(task, Choose):
            task = task.for_examples(examples)
        encoded = task.encode(examples, self.encoding, answered=False)
        items = Items(
            encoded, self.encoding.tokenizer, self.encoding.length, task.group
        )
        mesh, params, score_step = self._program
        shards = batch_shards(mesh)
        batch_size = -(-self.batch_size // shards) * shards
        with jax.set_mesh(mesh):
            scores, _ = scores_of(
                score_step, params, items, mesh=mesh, batch_size=batch_size
            )
        return task.predictions(examples, encoded, scores)

    @functools.cached_property
    def _program(self):
        mesh = make_mesh(MeshConfig())
        with jax.set_mesh(mesh):
            shardings = parameter_shardings(mesh, self.loaded.params)
            params = jax.device_put(self.loaded.params, shardings)
            finetuner = Finetuner(self.loaded.model(), self.task)
            score_step = make_score_step(
                finetuner, mesh=mesh, shardings=shardings, answered=False
            )
        return mesh, params, score_step

    def metrics(self, examples: Sequence[Any]) -> dict[str, float]:
        """Returns the metrics of examples whose answers are known."""
        return self.task.metrics(examples, self(examples))

    # ---- examples ----

    def of_texts(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] = (),
        question: str | None = None,
    ) -> list[Any]:
        """Returns examples of texts as they were typed.

        Args:
          texts: to judge.
          pairs: the second text of each, for a model that classifies pairs.
          question: about the texts, for a model that answers.
        """
        kind = self.task.kind
        texts, pairs = ([encodable(x) for x in given] for given in (texts, pairs))
        question = question and encodable(question)
        places = [f"text {number}" for number in range(1, len(texts) + 1)]
        if (question is not None) != (kind == "answer"):
            needs = "needs" if kind == "answer" else "has no use for"
            raise UserError(f"task.kind={kind!r} {needs} --question")
        if pairs and (kind != "classify" or len(pairs) != len(texts)):
            raise UserError(
                f"--pair is given {len(pairs)} times for {len(texts)} texts; it is the "
                "second text of each, for models that classify pairs"
            )
        if kind == "classify":
            seconds = pairs or [None] * len(texts)
            return [Text(*x) for x in zip(places, texts, seconds, strict=True)]
        if kind == "tag":
            return [Sentence.of_text(*x) for x in zip(places, texts, strict=True)]
        if kind == "answer":
            assert question is not None
            given = zip(places, texts, strict=True)
            return [Question(where, where, question, text) for where, text in given]
        needed = [x for x in self.task.columns if x not in self.task.answer_roles]
        raise UserError(
            f"task.kind={kind!r} needs --input=FILE with the columns "
            f"{', '.join(needed)}"
        )

    def read(
        self,
        path: str,
        columns: Mapping[str, str | None],
        form: Form | None,
        *,
        answered: bool,
        question: str | None = None,
    ) -> list[Any]:
        """Returns the examples of a file; a .txt has a text a line.

        A question is about each of those texts; other files have their own.
        """
        lines = bare_suffix(path) == ".txt" and form is None and not columns
        if (lines or form == "lines") and not answered:
            records = read_records(path, {_TEXT: _TEXT}, "lines")
            texts = [record.text(_TEXT) for record in records]
            examples = self.of_texts(texts, (), question)
            return [
                dataclasses.replace(example, where=record.where)
                for example, record in zip(examples, records, strict=True)
            ]
        if question is not None:
            raise UserError(
                f"--question goes with texts, or a .txt with a text a line: {path} has "
                "questions of its own; leave it out"
            )
        if self.task.kind == "tag" and _TEXT in columns:
            records = read_records(path, {_TEXT: columns[_TEXT]}, form)
            return [Sentence.of_text(r.where, r.text(_TEXT)) for r in records]
        return self.task.read(path, columns, form, answered=answered)


def _changed(
    description: TaskDescription, changes: Mapping[str, Any]
) -> TaskDescription:
    """Returns what a folder says of its task, but for what the user says."""
    rows = {name: x for name, x in changes.items() if name in _OF_ROWS}
    settings = {name: x for name, x in changes.items() if name not in rows}
    for name in settings:
        if name not in TASKS[description.kind].kept:
            raise UserError(f"task.kind={description.kind!r} has no use for --{name}")
    changed = dataclasses.replace(
        description, settings={**description.settings, **settings}, **rows
    )
    if "threshold" in settings:
        _check_threshold(changed)
    return changed


def _check_threshold(description: TaskDescription) -> None:
    """Refuses a threshold that nothing is compared with."""
    settings, problem = description.settings, description.problem
    if description.kind == "classify" and problem != "multi":
        raise UserError(
            f"--threshold={settings['threshold']} is of texts with any number of "
            f"labels, and this model's problem_type is {problem!r}; leave it out"
        )
    if description.kind == "answer" and not settings.get("no_answer"):
        raise UserError(
            f"--threshold={settings['threshold']} says when a question has no answer; "
            "give --no_answer, too, or leave it out"
        )


def run(predictor: Predictor, examples: Sequence[Any]) -> Iterator[Prediction]:
    """Yields what is predicted of each example, block by block."""
    for first in range(0, len(examples), _BLOCK):
        yield from predictor(examples[first : first + _BLOCK])


def _write_file(out: Path, examples: Sequence[Any], predictions) -> None:
    """Writes a file, which appears when it is whole."""
    partial = out.with_name(f".{out.name}.partial")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with open(partial, "w", encoding="utf-8") as file:
            _write(file, examples, predictions)
        os.replace(partial, out)
    except OSError as error:
        raise UserError(
            f"out={str(out)!r} cannot be written: {error.strerror or error}; mend "
            "that, or give another --out"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()


def _write(file: TextIO, examples: Sequence[Any], predictions) -> None:
    for example, prediction in zip(examples, predictions, strict=True):
        line = {"where": example.where, **_shown_text(example), **prediction}
        file.write(json.dumps(line, ensure_ascii=False) + "\n")


def _shown_text(example: Any) -> dict[str, str]:
    text = getattr(example, "text", None)
    return {} if text is None else {"text": text}


def _columns(parser: Parser, rest: Sequence[str]) -> dict[str, str | None]:
    """Returns the columns that flags such as --columns.text=review name."""
    named = [argument.replace("--columns.", "--config.", 1) for argument in rest]
    if unknown := [x for x in rest if not x.startswith("--columns.")]:
        overrides_of(parser, unknown)  # says what is wrong
    try:
        columns = overrides_of(parser, named)
    except UserError as error:
        message = str(error).replace("--config.", "--columns.")
        raise UserError(message) from None
    return {role: str(name) for role, name in columns.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Predicts and prints what the flags ask for."""
    parser = Parser(
        command="predict",
        description="Use a fine-tuned model on new text; one JSON object a line.",
        examples=_EXAMPLES,
    )
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="texts to judge")
    parser.add_argument(
        "--model", required=True, metavar="DIR", help="a workdir, or a folder"
    )
    parser.add_argument(
        "--input",
        metavar="FILE",
        help="txt (a text a line), csv, tsv, jsonl, CoNLL, SQuAD's json, tfds:NAME; "
        "--columns.ROLE=NAME says where the texts are",
    )
    parser.add_argument("--form", choices=get_args(Form), help="of the file")
    parser.add_argument("--pair", action="append", default=[], help="a second text")
    parser.add_argument("--question", help="about the texts")
    parser.add_argument("--out", type=Path, help="file to write; default: the screen")
    parser.add_argument("--step", type=int, help="which checkpoint; default: the best")
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--length", type=int, help="of rows, in tokens")
    parser.add_argument(
        "--cut", choices=get_args(Cut), help="what is kept of a longer text"
    )
    parser.add_argument("--stride", type=int, help="from one window to the next")
    parser.add_argument(
        "--no_answer",
        action="store_true",
        default=None,
        help="a question may have no answer, as in SQuAD 2.0",
    )
    parser.add_argument(
        "--threshold",
        type=float,
        help="of a label's probability; how much better than an answer none has to be",
    )
    parser.add_argument(
        "--evaluate",
        action="store_true",
        help="the input has labels or answers: print the metrics",
    )
    flags, rest = parser.parse_known_args(arguments)
    columns = _columns(parser, rest)
    if bool(flags.texts) == bool(flags.input):
        raise UserError("give texts, or --input=FILE, and not both")
    if flags.texts and (rest or flags.form):
        given = rest[0] if rest else f"--form={flags.form}"
        raise UserError(f"{given} is of a file, --input=FILE; for texts leave it out")
    if flags.texts and flags.evaluate:
        raise UserError(
            "--evaluate measures examples whose labels or answers are known, and texts "
            "have none; give a file that has them, --input=FILE"
        )
    asked = {name: getattr(flags, name) for name in (*_OF_ROWS, *_SETTINGS)}
    predictor = Predictor.load(
        flags.model,
        step=flags.step,
        batch_size=max(1, flags.batch_size),
        **{name: value for name, value in asked.items() if value is not None},
    )
    for line in predictor.loaded.report:
        print(f"note: {line}", file=sys.stderr)
    if flags.input:
        if flags.pair:
            raise UserError(
                "--pair goes with texts; for a file name a column, --columns.pair=NAME"
            )
        examples = predictor.read(
            flags.input,
            columns,
            flags.form,
            answered=flags.evaluate,
            question=flags.question,
        )
    else:
        examples = predictor.of_texts(flags.texts, flags.pair, flags.question)
    if flags.evaluate:
        predictions = list(run(predictor, examples))
        metrics = predictor.task.metrics(examples, predictions)
        print(json.dumps(metrics))
        if flags.out is None:
            return
    else:
        predictions = run(predictor, examples)
    if flags.out is None:
        _write(sys.stdout, examples, predictions)
        return
    _write_file(flags.out.expanduser(), examples, predictions)


if __name__ == "__main__":
    run_command(main)
