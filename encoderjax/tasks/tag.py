"""A tag for every word: entities, parts of speech.

Shapes: B items of a batch, L length, C tags, W words of a sentence.
"""

import dataclasses
import itertools
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from encoderjax.errors import UserError
from encoderjax.tasks.encoding import Encoding, most_context
from encoderjax.tasks.entities import (
    OUTSIDE,
    Scheme,
    converted,
    entities_of,
    entity_metrics,
    entity_table,
    is_chunked,
    is_tag,
    marks_some_entities,
    parsed,
    repaired,
    scheme_of,
    written,
)
from encoderjax.tasks.records import Form, Record, form_of, read_records
from encoderjax.tasks.tagging import (
    piece_labels,
    spread_labels,
    word_labels,
    word_scores,
)
from encoderjax.tasks.task import (
    DeviceBatch,
    Encoded,
    Params,
    Prediction,
    Task,
    Terms,
    number_of,
    sorted_labels,
)

_LETTERS: dict[Scheme, str] = {"IOB1": "BI", "IOB2": "BI", "BIOES": "BIES"}


@dataclasses.dataclass(frozen=True)
class Sentence:
    """Words and their tags.

    Attributes:
      where: file and line, for messages.
      tags: None where they are not known.
      text: that the words were found in, if it was one,
      offsets: and the characters of it that each word has.
    """

    where: str
    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None
    text: str | None = None
    offsets: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of_text(cls, where: str, text: str) -> "Sentence":
        """Returns the words of a text: letters and digits, or one other sign."""
        offsets = tuple(_word_offsets(text))
        words = tuple(text[start:end] for start, end in offsets)
        return cls(where, words, None, text, offsets)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tag(Task[Sentence]):
    """Tagging; batch keys: task/labels int32 [B, L], -1 where nothing is learned.

    Attributes:
      on: which pieces of a word learn its tag: the `first`, or `every` one.
      labels: all tags; where a file has numbers, they are names in this order.
      scheme: that entities are learned in, whatever the files have; None = IOB2. Tags
        without a B, I, ... before a type are learned as they are.
      source_scheme: that of the files; None = told by their tags.
    """

    kind: ClassVar = "tag"
    columns: ClassVar = {"words": "0", "tags": "-1"}
    answer_roles: ClassVar = ("tags",)
    kept: ClassVar = ("scheme",)

    on: Literal["first", "every"] = "first"
    scheme: Scheme | None = None
    source_scheme: Scheme | None = None

    # ---- examples ----

    def read(
        self,
        path: str,
        columns: Mapping[str, str | None],
        form: Form | None = None,
        *,
        answered: bool = True,
    ) -> list[Sentence]:
        """Returns the sentences of a file."""
        chosen = self.chosen_columns(columns, answered)
        named = {role: name for role, name in chosen.items() if name is not None}
        form = form or form_of(path, named)
        if form != "conll":  # columns have names there
            chosen |= {x: x for x in named if x not in columns}
        records = read_records(path, chosen, form)
        sentences = [
            Sentence(
                record.where,
                _listed(record, "words"),
                _listed(record, "tags") if "tags" in record else None,
            )
            for record in records
        ]
        for sentence in sentences:
            if sentence.tags is None:
                continue
            if len(sentence.tags) != len(sentence.words):
                raise UserError(
                    f"{sentence.where}: {len(sentence.words)} words and "
                    f"{len(sentence.tags)} tags; mend the example"
                )
            if "" in sentence.tags:
                word = sentence.words[sentence.tags.index("")]
                raise UserError(f"{sentence.where}: {word!r} has no tag; give it one")
        if form not in ("conll", "tfds"):
            _check_sentences(sentences)
        return self._converted([self._named(sentence) for sentence in sentences])

    def _named(self, sentence: Sentence) -> Sentence:
        """Returns a sentence whose tags were numbers with their names."""
        tags, labels = sentence.tags or (), self.labels
        if not tags or not all(tag.isdecimal() for tag in tags):
            return sentence
        if labels is None:
            raise UserError(
                f"{sentence.where}: the tags are numbers; name them in their order, "
                "such as --config.task.labels=\"['O', 'B-PER', 'I-PER']\""
            )
        if set(tags) <= set(labels):  # numbers are their names
            return sentence
        if max(map(int, tags)) >= len(labels):
            raise UserError(
                f"{sentence.where}: tag {max(map(int, tags))} is beyond the "
                f"{len(labels)} of task.labels, which count from 0; name all of them"
            )
        return dataclasses.replace(sentence, tags=tuple(labels[int(t)] for t in tags))

    def _converted(self, sentences: list[Sentence]) -> list[Sentence]:
        """Returns sentences with their tags in the scheme that is learned."""
        tags = [sentence.tags or () for sentence in sentences]
        found = {tag for of_sentence in tags for tag in of_sentence}
        # Of what the config calls entities, or looks like them, none may be misspelled.
        asked = bool(found) and bool(self.source_scheme or self.scheme)
        if not (is_chunked(found) or asked or marks_some_entities(found)):
            return sentences
        allowed = self.source_scheme
        for sentence in sentences:
            for tag in sentence.tags or ():
                if not is_tag(tag, allowed):
                    raise UserError(
                        f"{sentence.where}: tag {tag!r} marks no entity of "
                        f"{allowed or 'IOB1, IOB2 or BIOES'}, as others do; mend it"
                    )
        source = allowed or scheme_of(tags)
        target = self.scheme or "IOB2"
        return [
            dataclasses.replace(s, tags=tuple(converted(s.tags, source, target)))
            if s.tags
            else s
            for s in sentences
        ]

    def source(self, example: Sentence) -> str:
        """Returns the words, which may stand there twice."""
        return " ".join(example.words)

    def resolved(self, examples: Sequence[Sentence]) -> "Tag":
        """Returns the task with the tags of its training examples.

        Of a type of entities all letters are there, seen or not.
        """
        found = {tag for example in examples for tag in _tags(example)}
        if len(self.labels or found) < 2:
            raise UserError(
                f"the training examples have one tag, {', '.join(found)!r}: there is "
                "nothing to tell apart; give examples of others, too"
            )
        if not is_chunked(found):
            return dataclasses.replace(self, labels=self.labels or sorted_labels(found))
        scheme = self.scheme or "IOB2"
        types = sorted(
            {tag.type for tag in map(parsed, found) if tag and tag.letter != OUTSIDE}
        )
        named = [written(letter, kind) for kind in types for letter in _LETTERS[scheme]]
        labels = self.labels or (OUTSIDE, *named)
        return dataclasses.replace(self, labels=labels, scheme=scheme)

    # ---- host ----

    def encode(
        self, examples: Sequence[Sentence], encoding: Encoding, *, answered: bool = True
    ) -> Encoded:
        """Returns one row of each sentence, or one for each of its windows."""
        items, numbers, targets, extra = [], [], [], []
        assert self.labels is not None
        spread_3C = spread_labels(self.labels)
        for number, example in enumerate(examples):
            pieces = encoding.tokenizer.encode_words(example.words)
            rows = encoding.rows(pieces)
            items += [(row,) for row in rows]
            numbers += [number] * len(rows)
            extra.append(pieces)
            if answered:
                labels_W = self._numbers(example)
                targets += [
                    piece_labels(row, pieces, labels_W, on=self.on, inside=spread_3C)
                    for row in rows
                ]
        learned = {"labels": targets} if answered else {}
        return Encoded(items, np.array(numbers, int), at_places=learned, extra=extra)

    def _numbers(self, example: Sentence) -> np.ndarray:
        assert self.labels is not None
        tags = _tags(example)
        return np.array([number_of(t, self.labels, example.where) for t in tags], int)

    def predictions(
        self,
        examples: Sequence[Sentence],
        encoded: Encoded,
        scores: Sequence[np.ndarray],
    ) -> list[Prediction]:
        """Returns the tag of each word, and the entities, of a text with its places."""
        found = []
        for number, items in enumerate(encoded.of_examples(len(examples))):
            example, pieces = examples[number], encoded.extra[number]
            rows = [encoded.items[item][0] for item in items]
            best = most_context(rows, 0)
            scores_WC = word_scores(
                rows, pieces, best, [scores[i] for i in items], len(example.words)
            )
            found.append(self._prediction(example, scores_WC))
        return found

    def _prediction(self, example: Sentence, scores_WC: np.ndarray) -> Prediction:
        assert self.labels is not None
        tags = [self.labels[i] for i in word_labels(scores_WC, self.labels)]
        prediction: Prediction = {"words": list(example.words), "tags": tags}
        if example.text is not None:
            prediction["offsets"] = [list(offset) for offset in example.offsets]
        if not is_chunked(self.labels):
            return prediction
        if self.scheme is not None:  # a model from elsewhere does not tell it
            tags = repaired(tags, self.scheme)
        return {**prediction, "tags": tags, "entities": _entities(example, tags)}

    def metrics(
        self, examples: Sequence[Sentence], predictions: Sequence[Prediction]
    ) -> dict[str, float]:
        """Returns precision, recall and F1 of entities, or the accuracy of tags."""
        true, found = _sequences(examples, predictions)
        return entity_metrics(true, found)

    def report(
        self, examples: Sequence[Sentence], predictions: Sequence[Prediction]
    ) -> str:
        """Returns precision, recall and F1 by type of entity."""
        if self.scheme is None:
            return ""
        return entity_table(*_sequences(examples, predictions))

    # ---- device ----

    def counts(self, batch: DeviceBatch) -> Terms:
        """Returns the places that have a tag."""
        places = _weights(batch).sum()
        return {"tag_loss": places, "tag_accuracy": places}

    def sums(self, params: Params, scores: jax.Array, batch: DeviceBatch) -> Terms:
        """Returns the cross-entropy at the places that have a tag."""
        weights_BL, labels_BL = _weights(batch), jnp.maximum(batch["task/labels"], 0)
        chances_BLC = jax.nn.log_softmax(scores)
        loss_BL = -jnp.take_along_axis(chances_BLC, labels_BL[..., None], axis=-1)
        right_BL = scores.argmax(-1) == labels_BL
        return {
            "tag_loss": (weights_BL * loss_BL[..., 0]).sum(),
            "tag_accuracy": (weights_BL * right_BL).sum(),
        }


def _word_offsets(text: str) -> Iterator[tuple[int, int]]:
    """Yields the characters of each word: letters with their marks, digits, `_`."""
    start = 0
    for in_word, group in itertools.groupby(text, _belongs_in_word):
        size = sum(1 for _ in group)
        if in_word:
            yield start, start + size
        else:
            for place in range(start, start + size):
                if not text[place].isspace():
                    yield place, place + 1
        start += size


def _belongs_in_word(character: str) -> bool:
    # Vowel signs and accents are characters of their own, of the category of marks.
    return character == "_" or unicodedata.category(character)[0] in "LMN"


def _weights(batch: DeviceBatch) -> jax.Array:
    return batch["row_weights"][:, None] * (batch["task/labels"] >= 0)


def _tags(example: Sentence) -> tuple[str, ...]:
    if example.tags is None:
        raise UserError(
            f"{example.where} has no tags; name their column in data.columns"
        )
    return example.tags


def _sequences(
    examples: Sequence[Sentence], predictions: Sequence[Prediction]
) -> tuple[list[list[str]], list[list[str]]]:
    return [list(_tags(x)) for x in examples], [p["tags"] for p in predictions]


def _entities(example: Sentence, tags: list[str]) -> list[dict[str, Any]]:
    """Returns the entities of a sentence: words, and where there is a text, places."""
    found = []
    for kind, start, end in entities_of(tags):
        entity: dict[str, Any] = {"type": kind, "words": [start, end]}
        if example.text is None:
            entity["text"] = " ".join(example.words[start:end])
        else:
            first, last = example.offsets[start][0], example.offsets[end - 1][1]
            entity |= {"text": example.text[first:last], "start": first, "end": last}
        found.append(entity)
    return found


def _check_sentences(sentences: Sequence[Sentence]) -> None:
    """Refuses a table with a word a row, whose sentences cannot be told apart."""
    tagged = [sentence for sentence in sentences if sentence.tags]
    if len(tagged) > 1 and all(len(sentence.words) == 1 for sentence in tagged):
        raise UserError(
            f"{tagged[0].where}: this and all other rows have one word; a row of a "
            "table is a sentence, with lists of words and tags or spaces between; for "
            "a word a line, with blank lines between sentences, use the form conll"
        )


def _listed(record: Record, role: str) -> tuple[str, ...]:
    value = record.structure(role)
    if isinstance(value, str):
        value = value.split()
    if not isinstance(value, list) or not all(isinstance(x, str | int) for x in value):
        raise UserError(
            f"{record.where}: {role}={str(value)[:60]} must be a list of texts, or "
            "text with spaces between"
        )
    return tuple(str(part) for part in value)
