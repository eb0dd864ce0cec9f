"""The corpora that a setting names, opened; those that can be made are made."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from encoderjax.caching import cache_folder
from encoderjax.data import storage
from encoderjax.data.corpora import Corpora, Member, weighted_folders
from encoderjax.data.corpus import MIXTURE, Corpus
from encoderjax.data.forms import FORMS
from encoderjax.data.local_copies import local_copy
from encoderjax.data.pipeline import DataConfig
from encoderjax.data.preparation import demo_corpus
from encoderjax.data.shares import ALPHA, alpha_shares
from encoderjax.errors import UserError

_FORMAT = 1  # of mixture.json


@dataclasses.dataclass(frozen=True)
class Opening:
    """What the opening of a setting depends on beside it.

    Attributes:
      field: the setting's name, for messages.
      source: the texts that a missing corpus is made from, and
      tokenizer: its vocabulary; the demo corpus is made with it.
      alpha: the power of a group's shares; None = the usual one.
      translated: whether a missing corpus is to be one of translations.
    """

    field: str
    source: str
    tokenizer: str
    alpha: float | None
    report: Callable[[str], None]
    translated: bool = False

    def folder(self, name: str) -> Path:
        """Returns the local folder of that name.

        The demo corpus is prepared on first use, one in an object store copied.
        """
        cache = cache_folder()
        if name == "demo":
            return demo_corpus(self.tokenizer, cache, self.report)
        if storage.is_remote(name):
            return local_copy(name, cache / "copies", self.report, field=self.field)
        self.check(name)
        return storage.local_path(name)

    def check(self, name: str) -> None:
        """Refuses a folder that is not there, with the command that makes it."""
        made = name == "demo" or storage.is_remote(name)
        if made or storage.local_path(name).exists():
            return
        by_file = "" if self.alpha is None else " --language_key=file"
        if self.translated and not by_file:
            by_file = " --text_key=en,fr --sentences=fields"
        raise UserError(
            f"{self.field}={name} does not exist; make it with python -m "
            f"encoderjax.prepare --source={self.source!r}{by_file} --tokenizer="
            f"{self.tokenizer} --out={name} (texts: docs/data.md)"
        )

    def members(self, name: str) -> tuple[Member, ...]:
        """Opens what lies there: a corpus, or the members of a group."""
        folder = self.folder(name)
        if not (folder / MIXTURE).is_file():
            return (Member("", Corpus.open(folder)),)
        names = _member_names(folder)
        corpora = [Corpus.open(folder / name) for name in names]
        counts = [c.manifest["counts"]["train"]["sentences"] for c in corpora]
        shares = alpha_shares(counts, ALPHA if self.alpha is None else self.alpha)
        return tuple(map(Member, names, corpora, shares.tolist()))


def open_corpus(
    data: DataConfig, report: Callable[[str], None], field: str = "data.corpus"
) -> Corpora:
    """Opens what `field` names; the demo corpus is prepared on first use."""
    return open_corpora(str(data.corpus), _opening(data, report, field))


def check_corpus(data: DataConfig) -> None:
    """Refuses a corpus that is not there, before anything is read."""
    opening = _opening(data, print, "data.corpus")
    for folder in weighted_folders(data.corpus) or [data.corpus]:
        opening.check(folder)


def _opening(data: DataConfig, report: Callable[[str], None], field: str) -> Opening:
    return Opening(
        field,
        data.source,
        data.tokenizer,
        data.alpha,
        report,
        translated=FORMS[data.form].parallel,
    )


def open_corpora(corpora: str, opening: Opening) -> Corpora:
    """Opens what the setting names, and checks that it can be read together."""
    weights = weighted_folders(corpora, opening.field)
    parts = {name: opening.members(name) for name in weights or (corpora,)}
    members = tuple(member for part in parts.values() for member in part)
    if weights:
        total = sum(weights.values())
        members = tuple(
            dataclasses.replace(
                member,
                name="/".join(filter(None, (Path(folder).name, member.name))),
                share=member.share * weights[folder] / total,
            )
            for folder, part in parts.items()
            for member in part
        )
    _check_together(members, opening.field)
    grouped = any(member.name for part in parts.values() for member in part)
    if not grouped and opening.alpha is not None:
        raise UserError(
            f"data.alpha={opening.alpha} has no meaning with {opening.field}={corpora},"
            f" which is no group (it has no {MIXTURE}); leave it out, or give weights"
        )
    alpha = ALPHA if opening.alpha is None else opening.alpha
    name = str(members[0].corpus.folder) if not members[0].name else corpora
    return Corpora(name, members, alpha if grouped else None)


def _member_names(folder: Path) -> list[str]:
    path = folder / MIXTURE
    try:
        described = json.loads(path.read_bytes())
        found, names = described["format"], list(described["members"])
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{path} is damaged; write it anew: "
            '{"format": 1, "members": [names of its subfolders]}'
        ) from error
    if found != _FORMAT:
        raise UserError(
            f"{path}: format {found}, this version reads {_FORMAT}; prepare it anew"
        )
    if not names or not all(isinstance(name, str) and name for name in names):
        raise UserError(f"{path}: members={names} must name subfolders")
    return names


def _check_together(members: Sequence[Member], field: str) -> None:
    """Refuses members that one model cannot read, or that have one name."""
    first, names = members[0].corpus, [member.name for member in members]
    for member in members:
        if names.count(member.name) > 1:
            raise UserError(
                f"{field}: two members have the name {member.name!r}, by which their "
                "metrics are told apart; rename one of the folders"
            )
        if member.corpus.manifest["tokenizer"] != first.manifest["tokenizer"]:
            raise UserError(
                f"{field}: {member.corpus.folder} has another tokenizer than "
                f"{first.folder}; prepare it with --tokenizer={first.folder}"
            )
