"""Entities that the tags of words mark, by seqeval's rules, and their scores.

A tag is `O`, or a letter and a type: `B-PER`. L and U of BILOU are read as E and S.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from encoderjax.errors import UserError

Scheme = Literal["IOB1", "IOB2", "BIOES"]

OUTSIDE = "O"
_NO_TYPE = "_"  # of a letter alone, as seqeval calls it
_BILOU = {"L": "E", "U": "S"}
_LETTERS: dict[Scheme, str] = {"IOB1": "BIO", "IOB2": "BIO", "BIOES": "BIOES"}


class Entity(NamedTuple):
    """A type and the numbers of an entity's words; `end` is behind the last."""

    type: str
    start: int
    end: int


class Tag(NamedTuple):
    """A tag in its parts; the letter is one of O, B, I, E, S."""

    letter: str
    type: str


def parsed(tag: str) -> Tag | None:
    """Returns the parts of a tag, None if it is no tag of chunks."""
    letter, dash, kind = tag.partition("-")
    letter = _BILOU.get(letter, letter)
    if letter not in ("O", "B", "I", "E", "S") or (letter == OUTSIDE and dash):
        return None
    return Tag(letter, kind or _NO_TYPE)


def written(letter: str, kind: str) -> str:
    """Returns the tag of a letter and a type."""
    return letter if kind == _NO_TYPE else f"{letter}-{kind}"


def is_chunked(tags: Iterable[str]) -> bool:
    """Returns whether tags mark entities; others, such as parts of speech, do not."""
    found = set(tags)
    return all(parsed(tag) for tag in found) and bool(found - {OUTSIDE})


def marks_some_entities(tags: Iterable[str]) -> bool:
    """Returns whether there are O and tags such as B-PER, among whatever others."""
    found = set(tags)
    return OUTSIDE in found and any("-" in tag and parsed(tag) for tag in found)


def scheme_of(sequences_of_tags: Iterable[Sequence[str]]) -> Scheme:
    """Returns the scheme that the tags of a data set are of.

    An entity of IOB1 begins with B only right behind another of its type. What tells
    nothing, or is of both, is IOB2.
    """
    begins = set()
    for tags in sequences_of_tags:
        before = Tag(OUTSIDE, "")
        for tag in map(_tag, tags):
            if tag.letter in "ES":
                return "BIOES"
            if before.letter == OUTSIDE or before.type != tag.type:
                begins.add(tag.letter)
            before = tag
    return "IOB1" if "I" in begins and "B" not in begins else "IOB2"


# ---- reading ----


def entities_of(tags: Sequence[str], scheme: Scheme | None = None) -> list[Entity]:
    """Returns the entities of a sentence, in their order.

    Without a scheme they are those of conlleval and seqeval's default: every tag
    belongs to an entity, whether or not its letter may stand there. With one they are
    those of seqeval's strict mode: entities that are spelled as the scheme wants.
    """
    parts = [*(_tag(tag, scheme) for tag in tags), Tag(OUTSIDE, "")]
    return _strict(parts, scheme) if scheme else _lenient(parts)


def is_tag(tag: str, scheme: Scheme | None = None) -> bool:
    """Returns whether a scheme has such a tag; None = any scheme."""
    found = parsed(tag)
    return found is not None and found.letter in _letters(scheme)


def _letters(scheme: Scheme | None) -> str:
    return _LETTERS[scheme] if scheme else "BIOES"


def _tag(tag: str, scheme: Scheme | None = None) -> Tag:
    found = parsed(tag)
    if found is None or not is_tag(tag, scheme):
        letters = _letters(scheme).replace(OUTSIDE, "")
        raise UserError(
            f"tag {tag!r} is not of the scheme {scheme or 'IOB1, IOB2 or BIOES'}, which"
            f" has O and {', '.join(f'{x}-TYPE' for x in letters)}"
        )
    return found


def _lenient(tags: Sequence[Tag]) -> list[Entity]:
    entities = []
    start, before = 0, Tag(OUTSIDE, "")
    for place, tag in enumerate(tags):
        if before.letter in "OES" or tag.letter in "OBS" or before.type != tag.type:
            if before.letter != OUTSIDE:
                entities.append(Entity(before.type, start, place))
            start = place
        before = tag
    return entities


def _strict(tags: Sequence[Tag], scheme: Scheme) -> list[Entity]:
    entities = []
    place, before = 0, Tag(OUTSIDE, "")
    while place < len(tags):
        start = place
        place += 1
        if _begins(before, tags[start], scheme):
            while _continues(tags[place - 1], tags[place]):
                place += 1
            if _ends(tags[place - 1], tags[place], scheme):
                entities.append(Entity(tags[start].type, start, place))
        before = tags[place - 1]
    return entities


def _begins(before: Tag, tag: Tag, scheme: Scheme) -> bool:
    if scheme != "IOB1":
        return tag.letter in "BS"
    same = before.type == tag.type
    if tag.letter == "B":
        return before.letter in "BI" and same
    return tag.letter == "I" and not (before.letter == "I" and same)


def _continues(before: Tag, tag: Tag) -> bool:
    return before.letter in "BI" and tag.letter in "IE" and before.type == tag.type


def _ends(last: Tag, behind: Tag, scheme: Scheme) -> bool:
    """Returns whether an entity may end there, with what is behind it."""
    if scheme == "BIOES":
        return last.letter in "ES"
    # seqeval's IOB1 knows no B behind a B of another type.
    both = last.letter == behind.letter == "B"
    return scheme == "IOB2" or not both or last.type == behind.type


# ---- writing ----


def converted(tags: Sequence[str], source: Scheme, target: Scheme) -> list[str]:
    """Returns the same entities in the spelling of another scheme.

    What `source` does not allow is read as seqeval's default reads it; letters that
    it has not are refused.
    """
    parts = [*(_tag(tag, source) for tag in tags), Tag(OUTSIDE, "")]
    return tags_of(_lenient(parts), len(tags), target)


def repaired(tags: Sequence[str], scheme: Scheme) -> list[str]:
    """Returns the same entities, as the scheme spells them; predictions may not be."""
    return converted(tags, scheme, scheme)


def tags_of(entities: Iterable[Entity], count: int, scheme: Scheme) -> list[str]:
    """Returns the tags of `count` words with these entities, which do not overlap."""
    tags = [OUTSIDE] * count
    before = Entity("", -1, -1)
    for entity in sorted(entities, key=lambda entity: entity.start):
        letters = ["I"] * (entity.end - entity.start)
        touching = before.end == entity.start and before.type == entity.type
        if scheme != "IOB1" or touching:
            letters[0] = "B"
        if scheme == "BIOES":
            letters[-1] = "S" if len(letters) == 1 else "E"
        tags[entity.start : entity.end] = [written(x, entity.type) for x in letters]
        before = entity
    return tags


# ---- scores ----


class _Counts(NamedTuple):
    """How many entities of each type are hit, predicted and true."""

    hit: Counter[str]
    found: Counter[str]
    true: Counter[str]


def entity_metrics(
    true_sequences: Sequence[Sequence[str]],
    predicted_sequences: Sequence[Sequence[str]],
    scheme: Scheme | None = None,
) -> dict[str, float]:
    """Returns f1, precision and recall of entities, and the accuracy of tags.

    Tags that mark no entities, such as parts of speech, have an accuracy alone.
    """
    accuracy = _accuracy(true_sequences, predicted_sequences)
    tags = {tag for tags in (*true_sequences, *predicted_sequences) for tag in tags}
    if not all(map(parsed, tags)):
        return {"accuracy": accuracy}
    counts = _counts(true_sequences, predicted_sequences, scheme)
    precision, recall, f1 = _scores(*(count.total() for count in counts))
    return {"f1": f1, "precision": precision, "recall": recall, "accuracy": accuracy}


def entity_table(
    true_sequences: Sequence[Sequence[str]],
    predicted_sequences: Sequence[Sequence[str]],
    scheme: Scheme | None = None,
) -> str:
    """Returns the scores of each type and of all, for people."""
    counts = _counts(true_sequences, predicted_sequences, scheme)
    types = sorted(counts.true.keys() | counts.found.keys())
    rows = [(kind, *(count[kind] for count in counts)) for kind in types]
    rows.append(("all", *(count.total() for count in counts)))
    width = max(len(kind) for kind, *_ in rows)
    lines = [f"{'':{width}}  precision  recall      f1  support"]
    for kind, hit, found, true in rows:
        precision, recall, f1 = _scores(hit, found, true)
        lines.append(
            f"{kind:{width}}  {precision:9.4f}  {recall:6.4f}  {f1:6.4f}  {true:7}"
        )
    return "\n".join(lines)


def _accuracy(
    true_sequences: Sequence[Sequence[str]],
    predicted_sequences: Sequence[Sequence[str]],
) -> float:
    pairs = [
        pair
        for sentences in zip(true_sequences, predicted_sequences, strict=True)
        for pair in zip(*sentences, strict=True)
    ]
    return sum(true == found for true, found in pairs) / max(1, len(pairs))


def _counts(
    true_sequences: Sequence[Sequence[str]],
    predicted_sequences: Sequence[Sequence[str]],
    scheme: Scheme | None,
) -> _Counts:
    counts = _Counts(Counter(), Counter(), Counter())
    for sentences in zip(true_sequences, predicted_sequences, strict=True):
        true, found = (set(entities_of(tags, scheme)) for tags in sentences)
        for count, entities in zip(counts, (true & found, found, true), strict=True):
            count.update(entity.type for entity in entities)
    return counts


def _scores(hit: int, found: int, true: int) -> tuple[float, float, float]:
    """Returns precision, recall and f1; 0 where there is nothing to divide by."""
    return hit / max(1, found), hit / max(1, true), 2 * hit / max(1, found + true)
