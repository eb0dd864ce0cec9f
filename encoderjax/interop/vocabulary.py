"""From one vocabulary to another: which old rows a new row is made of.

A token that both have keeps its row. A new one gets the mean of the rows of the pieces
that the old tokenizer spells it with, which is what the model saw in its place so far;
where it cannot be spelled, the mean of all rows that stand for text.

Nothing here knows a kind of tokenizer: what a token means is found by decoding it, and
how it is spelled by encoding it, both behind an ordinary word, as it stands in text.

Shapes: V vocabulary.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from encoderjax.data.tokenizers import Tokenizer
from encoderjax.errors import UserError
from encoderjax.interop.huggingface import leaf_shapes
from encoderjax.models.config import EncoderConfig
from encoderjax.models.heads import EncoderModel

Change = Literal["same", "extend", "replace"]

_ROLES = ("pad_id", "unk_id", "cls_id", "sep_id", "mask_id")
# What a piece that continues a word is spelled behind, one after the other until the
# split falls right behind it: digits and rare letters first, few pieces begin so.
_CARRIERS = "7390124568xqzjvkwybphgfmduclnrioaste"


# ---- comparing ----


def is_same(old: Tokenizer, new: Tokenizer) -> bool:
    """Says whether two tokenizers have the same entries under the same ids."""
    if old.sha256 == new.sha256:
        return True
    size = old.vocabulary.size
    return new.vocabulary.size == size and _entries(old) == _entries(new)


def extends(new: Tokenizer, old: Tokenizer) -> bool:
    """Says whether every id of `old` that stands in text means the same in `new`.

    Placeholders such as [unused7] stand in no text, and may have been put to use.
    """
    if is_same(old, new):
        return True
    size = old.vocabulary.size
    if new.vocabulary.size < size or _roles(old) != _roles(new):
        return False
    if old.layout != new.layout:
        return False
    pairs = zip(_entries(old), new.tokens(range(size)), strict=True)
    unused_V = old.vocabulary.unused_V
    return all(a == b or unused_V[i] for i, (a, b) in enumerate(pairs))


def check_change(
    change: Change, old: Tokenizer, new: Tokenizer, *, model: Path, corpus: str
) -> None:
    """Refuses a corpus whose vocabulary is not what `init_vocabulary` allows."""
    if change == "replace" or is_same(old, new):
        return
    sizes = f"{new.vocabulary.size:,} tokens", f"{old.vocabulary.size:,}"
    remedy = f"prepare the corpus with --tokenizer={model}"
    if change == "same":
        fitting = "extend" if extends(new, old) else "replace"
        raise UserError(
            f"corpus {corpus} was written with another vocabulary ({sizes[0]}) than "
            f"the model of init_from={model} knows ({sizes[1]}); {remedy}, or set "
            f"init_vocabulary='{fitting}'"
        )
    if not extends(new, old):
        raise UserError(
            f"init_vocabulary='extend': the vocabulary of corpus {corpus} ({sizes[0]}) "
            f"does not begin with that of init_from={model} ({sizes[1]}); {remedy} "
            "(--extend_vocabulary=N adds words to it), or set init_vocabulary='replace'"
        )


def check_readable(
    model: Tokenizer, corpus: Tokenizer, *, where: str, remedy: str
) -> None:
    """Refuses a corpus whose ids mean something else to the model.

    Args:
      where: names the corpus, and with it the setting that chose it.
      remedy: how to prepare it.
    """
    if not extends(model, corpus):
        raise UserError(
            f"{where} was written with another vocabulary "
            f"({corpus.vocabulary.size:,} tokens) than the model knows "
            f"({model.vocabulary.size:,}); {remedy}"
        )


def _entries(tokenizer: Tokenizer) -> list[str]:
    return tokenizer.tokens(range(tokenizer.vocabulary.size))


def _roles(tokenizer: Tokenizer) -> tuple[int, ...]:
    return tuple(int(getattr(tokenizer.vocabulary, role)) for role in _ROLES)


# ---- the rows of a new table ----


@dataclasses.dataclass(frozen=True)
class RowPlan:
    """What the rows of a new table are made of.

    Attributes:
      num_rows: of the new table.
      kept: new row -> the old row that it is.
      spelled: new row -> the old rows that it is the mean of.
      ordinary: the old rows whose mean all other new rows are.
    """

    num_rows: int
    kept: Mapping[int, int]
    spelled: Mapping[int, Sequence[int]]
    ordinary: np.ndarray

    @property
    def num_new(self) -> int:
        """How many rows were not there before."""
        return self.num_rows - len(self.kept)

    def applied(self, old: np.ndarray, axis: int) -> np.ndarray:
        """Returns a new array whose `axis` is the new vocabulary."""
        old_V = np.moveaxis(old, axis, 0)
        new_V = np.empty((self.num_rows, *old_V.shape[1:]), old.dtype)
        new_V[:] = old_V[self.ordinary].mean(axis=0)
        new_V[list(self.kept)] = old_V[list(self.kept.values())]
        for row, pieces in self.spelled.items():
            new_V[row] = old_V[list(pieces)].mean(axis=0)
        return np.ascontiguousarray(np.moveaxis(new_V, 0, axis))

    def report(self, old_rows: int) -> str:
        """Returns a line about it."""
        return (
            f"vocabulary {old_rows:,} -> {self.num_rows:,} rows: {len(self.kept):,} "
            f"kept, {len(self.spelled):,} the mean of the pieces that spelled them, "
            f"{self.num_new - len(self.spelled):,} the mean of all"
        )


def plan_rows(
    change: Change, old: Tokenizer, new: Tokenizer, *, old_rows: int, new_rows: int
) -> RowPlan:
    """Returns where each row of a table for `new` comes from.

    Args:
      old_rows, new_rows: of the tables, which may have more than the tokenizers know.
    """
    texts = _Texts.of(new)
    kept = (
        _same_tokens(old, new, texts)
        if change == "replace"
        else _same_ids(old, new, min(old_rows, new_rows))
    )
    open_ids = [i for i in range(new.vocabulary.size) if i not in kept]
    spelled = dict(_spellings(old, new, texts, open_ids))
    # One piece is the same token under another entry: `the` and `▁the`.
    kept |= {i: pieces[0] for i, pieces in spelled.items() if len(pieces) == 1}
    return RowPlan(
        num_rows=new_rows,
        kept=kept,
        spelled={i: pieces for i, pieces in spelled.items() if len(pieces) > 1},
        ordinary=old.vocabulary.ordinary_ids,
    )


def _same_ids(old: Tokenizer, new: Tokenizer, rows: int) -> dict[int, int]:
    """Returns the ids that mean the same, and the spare rows behind `new`."""
    pairs = zip(_entries(old), _entries(new), strict=False)
    same = [i for i, (a, b) in enumerate(pairs) if a == b]
    return {i: i for i in (*same, *range(new.vocabulary.size, rows))}


def _same_tokens(old: Tokenizer, new: Tokenizer, texts: "_Texts") -> dict[int, int]:
    """Returns the new ids whose token `old` has, special tokens by what they do.

    An equal entry is not enough: `the` begins a word in one kind of vocabulary and is
    the middle of one in another.
    """
    ids = {entry: i for i, entry in enumerate(_entries(old))}
    before = _Texts.of(old)
    kept = {}
    for i, entry in enumerate(_entries(new)):
        known = ids.get(entry)
        if known is not None and before.meaning(known) == texts.meaning(i):
            kept[i] = known
    return kept | dict(zip(_roles(new), _roles(old), strict=True))


@dataclasses.dataclass(frozen=True)
class _Texts:
    """What tokens stand for, read behind a word: alone, some decode otherwise."""

    tokenizer: Tokenizer
    anchor: int
    anchor_text: str

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "_Texts":
        """Chooses the word: an ordinary token that begins one."""
        vocabulary = tokenizer.vocabulary
        begins = (
            int(i)
            for i in vocabulary.ordinary_ids
            if not vocabulary.continues_word_V[i]
            and tokenizer.decode([i]).strip().isalnum()
        )
        anchor = next(begins, int(vocabulary.ordinary_ids[0]))
        return cls(tokenizer, anchor, tokenizer.decode([anchor]))

    def of_token(self, i: int) -> str:
        """Returns the text of a token, without the space before it."""
        text = self.tokenizer.decode([self.anchor, i])
        return text.removeprefix(self.anchor_text).strip()

    def meaning(self, i: int) -> tuple[str, bool, bool]:
        """Returns what makes two tokens of equal entries the same."""
        vocabulary = self.tokenizer.vocabulary
        kind = bool(vocabulary.special_V[i]), bool(vocabulary.continues_word_V[i])
        return self.of_token(i), *kind


def _spellings(
    old: Tokenizer, new: Tokenizer, texts: _Texts, ids: Sequence[int]
) -> Iterator[tuple[int, list[int]]]:
    """Yields (id of `new`, its pieces in `old`) where the old tokenizer knows them."""
    special_V = new.vocabulary.special_V | new.vocabulary.unused_V
    named = {i: texts.of_token(i) for i in ids if not special_V[i]}
    # A part of a character decodes to U+FFFD: nothing can be said of it.
    words = {i: text for i, text in named.items() if text and "\ufffd" not in text}
    inner = [i for i in words if new.vocabulary.continues_word_V[i]]
    # Behind a word and a space for those that begin a word; behind a carrier, or else
    # like a word, for those that continue one.
    first = [i for i in words if not new.vocabulary.continues_word_V[i]]
    tries = [("a ", first), *((carrier, inner) for carrier in _CARRIERS), ("a ", inner)]
    found: dict[int, list[int]] = {}
    for before, candidates in tries:
        waiting = [i for i in candidates if i not in found]
        (head,) = old.encode([before.strip()])
        spelled = old.encode([before + words[i] for i in waiting])
        for i, pieces in zip(waiting, spelled, strict=True):
            own = pieces[len(head) :]
            whole = np.array_equal(pieces[: len(head)], head) and len(own)
            if whole and not np.isin(own, old.vocabulary.unk_id).any():
                found[i] = own.tolist()
    yield from sorted(found.items())


# ---- the parameters ----


def vocabulary_axes(model: EncoderModel) -> dict[str, int]:
    """Returns the path and axis of every parameter that has one row a token.

    They are found by what changes with `vocab_size`, so that a new head needs no
    entry anywhere.
    """
    shapes, others = _shapes(model), _shapes(_with_one_more_row(model))
    return {
        path: next(i for i, n in enumerate(shape) if n != others[path][i])
        for path, shape in shapes.items()
        if shape != others[path]
    }


def _with_one_more_row(model: EncoderModel) -> EncoderModel:
    def grown(config: EncoderConfig) -> EncoderConfig:
        return dataclasses.replace(config, vocab_size=config.vocab_size + 1)

    generator = model.with_generator
    if generator is not None:
        generator = dataclasses.replace(generator, config=grown(generator.config))
    return EncoderModel(grown(model.config), model.head_names, with_generator=generator)


def _shapes(model: EncoderModel) -> dict[str, tuple[int, ...]]:
    return leaf_shapes(model.config, model.head_names, model.with_generator)
