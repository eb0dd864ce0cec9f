"""Reading a tokenizer's files: what stands beside a vocabulary, in plain errors."""

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence

from encoderjax.data.tokenizer_families import (
    ROLES,
    VERBATIM,
    Family,
    Kind,
    find_family,
)
from encoderjax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Beside:
    """What a folder says of its tokenizer besides the vocabulary.

    Attributes:
      config: tokenizer_config.json.
      model_type: that of config.json.
    """

    config: dict
    model_type: str

    @classmethod
    def of(cls, folder: pathlib.Path) -> "Beside":
        """Reads both files, as far as they are there."""
        both = (folder / "tokenizer_config.json", folder / "config.json")
        config, model = (read_json(p) if p.is_file() else {} for p in both)
        # Older models name the class there.
        named = config.get("tokenizer_class") or model.get("tokenizer_class") or ""
        return cls({**config, "tokenizer_class": named}, model.get("model_type", ""))

    def family(self, kind: Kind, ids: Mapping[str, int], path: pathlib.Path) -> Family:
        """Returns the family of a vocabulary, with the spellings that config gives."""
        names = {}
        for role in ROLES:
            token = self.config.get(f"{role}_token")
            token = token.get("content") if isinstance(token, dict) else token
            if token in ids:
                names[role] = token
        family = find_family(kind, ids, self.config["tokenizer_class"], self.model_type)
        if family is None:
            raise UserError(
                f"{path}: its special tokens are those of no known family; name its "
                "class as tokenizer_class in a tokenizer_config.json beside it"
            )
        return family.renamed(names)

    def is_wired(self, family: Family) -> bool:
        """Says whether transformers builds a class that minds the vocabulary only."""
        if family.hf_class == VERBATIM:
            return False
        if named := self.config["tokenizer_class"].removesuffix("Fast"):
            return named == family.hf_class
        return self.model_type in family.model_types


def read_json(path: pathlib.Path) -> dict:
    """Returns a JSON object."""
    try:
        document = json.loads(path.read_bytes())
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise UserError(f"{path} is not a JSON object")
    return document


def read_lines(path: pathlib.Path) -> list[str]:
    """Returns the lines of a text file; only a line feed ends a line."""
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not a vocabulary: byte {error.start} is not UTF-8"
        ) from error
    lines = text.replace("\r\n", "\n").split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def added_entries(
    path: pathlib.Path, document: Mapping, ids: Mapping[str, int]
) -> list[dict]:
    """Returns the added tokens of a tokenizer.json, which must agree with `ids`.

    Tokens that are not in the model's vocabulary come after it, without gaps.
    """
    added = list(document.get("added_tokens") or [])
    expected = len(ids)
    for token in sorted(added, key=lambda token: token["id"]):
        own = ids.get(token["content"], expected)
        if token["id"] != own:
            raise UserError(
                f"{path}: the added token {token['content']!r} has id {token['id']}, "
                f"where {own} is expected; the ids of the vocabulary have no gaps"
            )
        expected += token["content"] not in ids
    return added


def checked_ids(path: pathlib.Path, vocabulary: Mapping[str, int]) -> dict[str, int]:
    """Returns a vocabulary in the order of its ids, which must be 0 and up."""
    ids = dict(sorted(vocabulary.items(), key=lambda entry: entry[1]))
    expected = range(len(ids))
    for (entry, i), place in zip(ids.items(), expected, strict=True):
        if i != place:
            raise UserError(
                f"{path}: {entry!r} has id {i} where {place} should follow; the ids "
                f"of the vocabulary are not 0..{len(ids) - 1}"
            )
    return ids


def check_entries(path: pathlib.Path, entries: Sequence[str]) -> None:
    """Refuses a vocabulary with an entry that is there twice."""
    if len(set(entries)) == len(entries):
        return
    seen: set[str] = set()
    for i, entry in enumerate(entries):
        if entry in seen:
            raise UserError(f"{path}, line {i + 1}: {entry!r} is there twice")
        seen.add(entry)


def check_specials(
    path: pathlib.Path, family: Family, known: Mapping[str, int] | set[str]
) -> None:
    """Refuses a vocabulary without one of its family's five special tokens."""
    for role in ROLES:
        if (name := family.names[role]) not in known:
            raise UserError(
                f"{path} has no {name}, the {role} token of {family.hf_class}; the "
                f"five {', '.join(family.names.values())} must be there"
            )
