"""What a document is, in which forms text holds documents, and how they are told.

lines   a sentence a line, a blank line between documents: the form that BERT's
        own code reads
split   prose, whose sentences `sentences.split_sentences` finds
fields  of a record, each of which is one sentence: a line and its translation
"""

# ruff: noqa: RUF001 (marks of several scripts)
import dataclasses
import itertools
import re
import statistics
from collections.abc import Iterator
from typing import Literal, get_args

from encoderjax.data import storage
from encoderjax.data.sentences import split_sentences
from encoderjax.errors import UserError

SentenceForm = Literal["auto", "lines", "split", "fields"]
DocumentForm = Literal["auto", "blank_line", "file", "line"]

# No document has more characters: what has no end in sight is cut.
MAX_DOCUMENT = 8 * 2**20
_HEAD = 2**16  # characters that show the form of a file


@dataclasses.dataclass(frozen=True)
class Reading:
    """How documents are read.

    Attributes:
      text_key: the field of a record that holds its text; of several, separated by
        commas, each is a paragraph of the document.
      sentences: the form of the sentences; "auto" looks at the head of each file.
      documents: what a document of a text file is; "auto" is "blank_line" for the
        form "lines" and "file" for prose. A record always is one.
      language_key: a field of the record that names its language; "file" takes the
        file's name up to its first dot, "folder" that of the folder that it lies
        in; without one, documents have no language.
      strict: whether broken input is fatal, rather than skipped and counted.
      tfds_dir: where prepared TFDS data sets lie, if not in TFDS_DATA_DIR.
    """

    text_key: str = "text"
    sentences: SentenceForm = "auto"
    documents: DocumentForm = "auto"
    language_key: str = ""
    strict: bool = False
    tfds_dir: str = ""

    def __post_init__(self):
        for flag, form in (("sentences", SentenceForm), ("documents", DocumentForm)):
            if getattr(self, flag) not in get_args(form):
                raise UserError(
                    f"--{flag}={getattr(self, flag)} is not a form; choose from "
                    f"{', '.join(get_args(form))}"
                )
        if not all(self.text_keys):
            raise UserError(
                f"--text_key={self.text_key!r} names no field; give one, or several "
                "separated by commas"
            )
        if self.sentences == "fields":
            self._check_fields()

    def _check_fields(self) -> None:
        keys = self.text_keys
        if len(keys) != 2 or keys[0] == keys[1]:
            raise UserError(
                f"--sentences=fields with --text_key={self.text_key}: give two fields, "
                "called by their languages, such as --text_key=en,fr"
            )
        if self.language_key:
            raise UserError(
                f"--sentences=fields with --language_key={self.language_key}: the "
                "fields name the languages; leave it out, and prepare each pair of "
                "languages by itself"
            )

    @property
    def text_keys(self) -> tuple[str, ...]:
        """The fields that hold text."""
        return tuple(self.text_key.split(","))


@dataclasses.dataclass(frozen=True)
class Origin:
    """The file that a document is from, and the forms in which it was read."""

    path: str
    sentences: str  # "lines", "split" or "fields"
    documents: str  # "blank_line", "file" or "line"


@dataclasses.dataclass(frozen=True)
class Document:
    """A document's text; its sentences are found when they are asked for.

    Attributes:
      is_cut: whether it is a piece of a text that was too long.
    """

    text: str
    origin: Origin
    language: str = ""
    is_cut: bool = False

    @property
    def size(self) -> int:
        """The bytes of its text in UTF-8."""
        return len(self.text) if self.text.isascii() else len(self.text.encode())

    def sentences(self) -> list[str]:
        """Returns the sentences, none of them blank."""
        if self.origin.sentences == "split":
            return split_sentences(self.text)
        stripped = (line.strip() for line in self.text.split("\n"))
        return [line for line in stripped if line]


# ---- languages ----

_MAX_LANGUAGE = 200  # bytes, which every file system takes as a name
# Of files that lie beside the folders of the languages.
_TAKEN = (".json", ".txt", ".model", ".npy", storage.PARTIAL)


def is_language(name: str) -> bool:
    """Says whether a language may be called so: its corpus has a folder of that name.

    A name with a dot before it, or a slash in it, is for other folders.
    """
    return (
        name.isprintable()  # so neither NUL nor half of a surrogate pair
        and 0 < len(name.encode()) <= _MAX_LANGUAGE
        and not name.startswith(".")
        and not name.lower().endswith(_TAKEN)
        and not {"/", "\\"} & set(name)
    )


# ---- the form of a text ----

_TERMINATED = re.compile(r"[.!?…。！？؟۔।:;][\"'”’»)\]」』）]*\s*$")


def take_head(texts: Iterator[str]) -> list[str]:
    """Takes the texts that show a file's form, on to the first that is not blank."""
    head, size, blank = [], 0, True
    for text in texts:
        head.append(text)
        size += len(text)
        blank = blank and not text.strip()
        if size >= _HEAD and not blank:
            break
    return head


def detect_form(head: str) -> Literal["lines", "split"]:
    """Returns "lines" when `head` has a sentence a line and several to a block.

    Prose fails one of three tests: a wrapped line seldom ends with a sentence, a
    paragraph on a line often holds several, and where each stands between blank
    lines a block has one line.
    """
    blocks = [block.splitlines() for block in re.split(r"\n\s*\n", head)]
    blocks = [[line for line in block if line.strip()] for block in blocks]
    lines = list(itertools.chain.from_iterable(blocks))[:1000]
    if len(lines) < 3 or len(lines) < 2 * sum(map(bool, blocks)):
        return "split"
    ended = statistics.fmean(bool(_TERMINATED.search(line)) for line in lines)
    single = statistics.fmean(len(split_sentences(line)) == 1 for line in lines)
    return "lines" if ended >= 0.8 and single >= 0.8 else "split"
