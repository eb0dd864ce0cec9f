"""What a run reads: one prepared corpus, a group of them, or several with weights.

A group is a folder with a prepared corpus in each of its subfolders, such as one for
every language, and a file that names them:

  mixture.json                  {"format": 1, "members": ["de", "en"]}
  de/manifest.json, ...         the corpora, all with one tokenizer
  en/manifest.json, ...

Its members are drawn by their sentences to a power, n_i^alpha (Conneau et al. 2020,
section 3.1); in general, folders are mixed by weights.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from encoderjax.data import storage
from encoderjax.data.corpus import Corpus
from encoderjax.data.mixture import Pattern
from encoderjax.data.tokenizers import Tokenizer
from encoderjax.errors import UserError


@dataclasses.dataclass(frozen=True, eq=False)
class Member:
    """A corpus among others.

    Attributes:
      name: of its folder, or '' where it stands alone.
      share: of the rows that are trained on.
    """

    name: str
    corpus: Corpus
    share: float = 1.0


@dataclasses.dataclass(frozen=True, eq=False)
class Corpora:
    """The corpora that a run reads; most have one.

    Attributes:
      name: a folder, or folders with weights.
      alpha: the power of a group's shares; None without a group.
    """

    name: str
    members: tuple[Member, ...]
    alpha: float | None = None

    @property
    def mixed(self) -> bool:
        """Whether the members have names, which a single corpus has not."""
        return bool(self.members[0].name)

    @property
    def shares(self) -> dict[str, float]:
        """The share of each member, by its name; {} of a single corpus."""
        return {member.name: member.share for member in self.members if member.name}

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of all of them."""
        return self.members[0].corpus.tokenizer

    @property
    def tokenizer_folder(self) -> Path:
        """Where its files lie, for messages."""
        return self.members[0].corpus.folder

    @property
    def label(self) -> str:
        """Returns its name for tables: without the folders that it lies in."""
        weights = weighted_folders(self.name) if self.mixed else {}
        if not weights:
            return Path(self.name).name
        return ",".join(f"{Path(folder).name}:{n:g}" for folder, n in weights.items())

    @property
    def fingerprints(self) -> list[str]:
        """The sha256 of each member."""
        return [member.corpus.fingerprint for member in self.members]

    def identity(self) -> dict[str, str | list]:
        """Returns what determines which rows come in which order, by name.

        Of a mixture it is the sha256 of each member, in their order, and how many
        places it has in the pattern; names and folders do not matter.
        """
        if len(self.members) == 1:
            return {"corpus.fingerprint": self.fingerprints[0]}
        counts = Pattern.of([member.share for member in self.members]).counts_M.tolist()
        pairs = zip(self.fingerprints, counts, strict=True)
        return {_member_key(n): list(pair) for n, pair in enumerate(pairs)}

    def labels(self) -> dict[str, str]:
        """Returns how messages call what `identity` has of each member."""
        return {
            _member_key(number): f"data.corpus, member {member.name} (sha256 and share)"
            for number, member in enumerate(self.members)
        }

    @functools.cached_property
    def unigrams_V(self) -> np.ndarray:  # noqa: N802 (an array, named by shape)
        """How often each id comes in training, int64 [V]: counts, times the shares.

        Those of a member are multiplied up to its share; the one that is read least
        often for its size keeps its own.
        """
        counts = [member.corpus.unigrams_V for member in self.members]
        totals = [max(1, int(counts_V.sum())) for counts_V in counts]
        read = [m.share / total for m, total in zip(self.members, totals, strict=True)]
        scaled = [
            np.rint(counts_V * (times / min(read)))
            for counts_V, times in zip(counts, read, strict=True)
        ]
        return np.sum(scaled, axis=0).astype(np.int64)

    def count(self, kind: str) -> int:
        """Returns how many `documents`, `sentences` or `tokens` are trained on."""
        manifests = (member.corpus.manifest for member in self.members)
        return sum(manifest["counts"]["train"][kind] for manifest in manifests)


def _member_key(number: int) -> str:
    return f"data.corpus.members.{number:05d}"


# ---- the setting ----


def spelled(corpora: str, field: str = "data.corpus") -> str:
    """Returns the setting as it is kept: a folder, or `a:0.7,b:0.3`; else refuses it.

    Args:
      corpora: the setting.
      field: its name, for messages.
    """
    if not corpora:
        raise UserError(f"{field}='' names no folder; give one, or 'demo'")
    weights = weighted_folders(corpora, field)
    for folder, weight in weights.items():
        if not 0 < weight < math.inf:
            raise UserError(
                f"{field}: the weight {weight!r} of {folder} must be a number above 0"
            )
    return _joined(weights) if weights else str(corpora)


def _joined(weights: Mapping[str, float]) -> str:
    return ",".join(f"{folder}:{weight!r}" for folder, weight in weights.items())


def weighted_folders(corpora: str, field: str = "data.corpus") -> dict[str, float]:
    """Returns the weight of each folder of `a:0.7,b:0.3`; {} of a single folder."""
    parts = [part.strip() for part in corpora.split(",")]
    split = [(part.rpartition(":")[0], _number(part)) for part in parts]
    if len(parts) == 1 and split[0][1] is None:
        return {}
    weights: dict[str, float] = {}
    for part, (folder, weight) in zip(parts, split, strict=True):
        if weight is None or not folder:
            raise UserError(
                f"{field}={corpora}: {part!r} is not FOLDER:WEIGHT; give every folder "
                "a weight, such as a:0.7,b:0.3"
            )
        if folder in weights:
            raise UserError(f"{field}={corpora} names {folder} twice; once will do")
        weights[folder] = weight
    return weights


def _number(part: str) -> float | None:
    try:
        return float(part.rpartition(":")[2]) if ":" in part else None
    except ValueError:
        return None  # a folder with a colon


def from_anywhere(corpora: str) -> str:
    """Returns the setting for use in any folder; the demo corpus is made wherever."""
    weights = weighted_folders(corpora)
    if weights:
        return _joined({from_anywhere(name): n for name, n in weights.items()})
    if corpora == "demo" or storage.is_remote(corpora):
        return corpora
    return absolute(corpora)


def absolute(folder: str) -> str:
    """Returns the name of a folder for use in any other."""
    return str(storage.local_path(folder).absolute())
