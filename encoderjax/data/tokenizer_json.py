"""tokenizer.json: the parts that all kinds have in common, and those of each kind.

It is written here and not by the `tokenizers` library, so that the same vocabulary
and options give the same bytes whatever its version.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from encoderjax.data.tokenizer_families import Family
from encoderjax.data.word_cache import Words


class Scheme(Words, Protocol):
    """A kind of tokenizer: its vocabulary, and how text is split into it."""

    @property
    def family(self) -> Family: ...  # noqa: D102
    @property
    def ids(self) -> Mapping[str, int]: ...  # noqa: D102
    @property
    def added(self) -> Sequence[dict]: ...  # noqa: D102
    @property
    def lowercase(self) -> bool: ...  # noqa: D102

    def parts(self) -> dict:
        """Returns the parts of tokenizer.json that are this kind's."""
        ...

    def config(self) -> dict:
        """Returns the options of tokenizer_config.json."""
        ...

    def files(self) -> dict[str, bytes]:
        """Returns the files in which such vocabularies were published first."""
        ...

    def continues_word(self, piece: str) -> bool:
        """Says whether the piece continues the word before."""
        ...


def tokenizer_document(scheme: Scheme) -> dict:
    """Returns what tokenizer.json holds."""
    parts, family, ids = scheme.parts(), scheme.family, scheme.ids
    added = _added_tokens(family, ids, scheme.added)
    ids = {**ids, **{token["content"]: token["id"] for token in added}}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": parts["normalizer"],
        "pre_tokenizer": parts["pre_tokenizer"],
        "post_processor": {
            "type": "TemplateProcessing",
            "single": _template(family, family.places(1)),
            "pair": _template(family, family.places(2)),
            "special_tokens": {
                name: {"id": name, "ids": [ids[name]], "tokens": [name]}
                for name in (family.names["cls"], family.names["sep"])
            },
        },
        "decoder": parts["decoder"],
        "model": parts["model"],
    }


def _template(family: Family, places: Iterable[tuple[str, int]]) -> list[dict]:
    template = []
    for role, segment in places:
        kind = "Sequence" if role in ("A", "B") else "SpecialToken"
        name = family.names.get(role, role)
        template.append({kind: {"id": name, "type_id": segment}})
    return template


def _added_tokens(
    family: Family, ids: Mapping[str, int], loaded: Sequence[dict]
) -> list[dict]:
    """Returns the added tokens: those that were loaded, and special ones in want.

    Special tokens that are not in the vocabulary come after it.
    """
    added = {token["content"]: token for token in loaded}
    size = len({*ids, *added})
    flags = {"single_word": False, "lstrip": False, "rstrip": False}
    flags |= {"normalized": False, "special": True}
    known = (*family.names.values(), *(name for name in family.specials if name in ids))
    for name in dict.fromkeys(known):
        if name not in added:
            token = {"id": ids.get(name, size), "content": name, **flags}
            token["lstrip"] = name == family.names["mask"] and family.mask_takes_space
            added[name] = token
            size += name not in ids
    return sorted(added.values(), key=lambda token: token["id"])


def without_specials(document: dict) -> dict:
    """Returns a tokenizer.json by which no special token is found in a text.

    The library may be told to overlook added tokens that are special. But a unigram
    model would find the piece "<pad>" itself, so there it is spelled with a space,
    which no text has after its spaces were replaced.
    """
    model, added = document["model"], document["added_tokens"]
    if model["type"] != "Unigram":
        return document
    special = {token["content"] for token in added if token["special"]}

    def hidden(entry: str) -> str:
        return f" {entry}" if entry in special else entry

    vocabulary = [[hidden(piece), score] for piece, score in model["vocab"]]
    return {
        **document,
        "model": {**model, "vocab": vocabulary},
        "added_tokens": [{**t, "content": hidden(t["content"])} for t in added],
    }
