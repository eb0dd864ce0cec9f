"""The lists of words that objectives name, opened for the tokenizers of a run."""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from encoderjax.data import storage
from encoderjax.data.pipeline import Lexicon
from encoderjax.data.tokenizers import Tokenizer
from encoderjax.data.word_lists import (
    neighbours,
    read_list,
    read_phrases,
    read_similar_words,
)
from encoderjax.interop.loading import LoadedModel, load_model
from encoderjax.interop.vocabulary import check_readable
from encoderjax.objectives import Objective

_READERS: dict[str, Callable] = {
    "phrases": read_phrases,
    "similar": read_similar_words,
}


@dataclasses.dataclass(frozen=True)
class _File:
    """A list as text.

    Attributes:
      where: the field and the file, for messages.
    """

    name: str
    where: str
    content: bytes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    def read(self, tokenizer: Tokenizer) -> tuple[Any, str]:
        """Returns the list, and what there is to say of it."""
        found, left_out = _READERS[self.name](self.content, self.where, tokenizer)
        number = len(found.words if self.name == "similar" else found)
        return found, f"{number:,} entries, {left_out:,} lines left out"


@dataclasses.dataclass(frozen=True, eq=False)
class _Table:
    """The token table of a model, in which similar words lie near each other."""

    where: str
    model: LoadedModel

    @property
    def table_VD(self) -> np.ndarray:  # noqa: N802 (an array, named by shape)
        params = self.model.part("discriminator").params
        return np.asarray(params["encoder"]["token_embed"]["embedding"], np.float32)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.table_VD.tobytes()).hexdigest()

    def read(self, tokenizer: Tokenizer) -> tuple[Any, str]:
        """Returns the nearest tokens of each, and what there is to say of them."""
        check_readable(
            self.model.need_tokenizer(),
            tokenizer,
            where=self.where,
            remedy=f"prepare the corpus with --tokenizer={self.model.source}",
        )
        found = neighbours(self.table_VD, tokenizer.vocabulary)
        return found, f"neighbours of {len(found.words):,} tokens"


@dataclasses.dataclass(frozen=True, eq=False)
class OpenedLists:
    """What the objectives of a run read beside its texts.

    Attributes:
      sources: the field of the config -> the name in the lexicon, and the list.
      report: takes a line for each list that was read.
    """

    sources: Mapping[str, tuple[str, _File | _Table]]
    report: Callable[[str], None]
    _read: dict[str, dict[str, Any]] = dataclasses.field(
        default_factory=dict, init=False
    )  # by the tokenizer

    @classmethod
    def of(
        cls, objectives: Iterable[Objective], report: Callable[[str], None]
    ) -> "OpenedLists":
        """Opens what the objectives name."""
        sources: dict[str, tuple[str, _File | _Table]] = {}
        for objective in objectives:
            for name, (field, path) in objective.word_lists.items():
                where = f"{field}={path}"
                local = not storage.is_remote(path)
                if name == "similar" and local and Path(path).expanduser().is_dir():
                    source = _Table(where, load_model(Path(path).expanduser()))
                else:
                    source = _File(name, where, read_list(path, field))
                sources[field] = name, source
        return cls(sources, report)

    def identity(self) -> dict[str, str]:
        """Returns the hash of each list, by the field that names it."""
        return {f"{f}.sha256": source.sha256 for f, (_, source) in self.sources.items()}

    def lexicon(self, tokenizer: Tokenizer, unigrams_V: np.ndarray) -> Lexicon:
        """Returns what corruption needs to know of a corpus' tokens."""
        if tokenizer.sha256 not in self._read:
            lists = {}
            for name, source in self.sources.values():
                lists[name], said = source.read(tokenizer)
                self.report(f"{source.where}: {said}")
            self._read[tokenizer.sha256] = lists
        return Lexicon.of(tokenizer, unigrams_V, **self._read[tokenizer.sha256])
