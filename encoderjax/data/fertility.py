"""How finely a tokenizer splits each language: tokens a word, or a character.

Where words are not set apart by spaces (Chinese, Japanese, Thai, Lao, Khmer, Burmese,
Tibetan) tokens are counted by character. The text itself decides, not the language's
name: it is such a text when it has more characters of those scripts than words
between spaces.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Literal

from encoderjax.data.tokenizers import Tokenizer

# Thai and Lao, Tibetan, Burmese, Khmer; then kana and Chinese characters.
_UNSPACED = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u9fff"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)


@dataclasses.dataclass(frozen=True)
class Fertility:
    """What a tokenizer makes of the texts of one language.

    Attributes:
      unit: what `units` counts.
      characters: those that are not white space.
      unknown: how many of the tokens are the unknown one.
    """

    language: str
    unit: Literal["word", "character"]
    units: int
    characters: int
    tokens: int
    unknown: int

    @property
    def tokens_per_unit(self) -> float:
        """Tokens a word, or a character."""
        return self.tokens / max(self.units, 1)

    @property
    def characters_per_token(self) -> float:
        """Characters a token, for any language."""
        return self.characters / max(self.tokens, 1)

    @property
    def unknown_share(self) -> float:
        """The share of unknown tokens."""
        return self.unknown / max(self.tokens, 1)


def measure_fertility(
    tokenizer: Tokenizer, texts_by_language: Mapping[str, Sequence[str]]
) -> list[Fertility]:
    """Returns a row for each language, in their order."""
    return [
        _measured(tokenizer, language, texts)
        for language, texts in texts_by_language.items()
    ]


def _measured(tokenizer: Tokenizer, language: str, texts: Sequence[str]) -> Fertility:
    words = [word for text in texts for word in text.split()]
    characters = sum(map(len, words))
    unspaced = sum(len(_UNSPACED.findall(text)) for text in texts) > len(words)
    encoded = tokenizer.encode(texts)
    unknown_id = tokenizer.vocabulary.unk_id
    return Fertility(
        language=language,
        unit="character" if unspaced else "word",
        units=characters if unspaced else len(words),
        characters=characters,
        tokens=sum(map(len, encoded)),
        unknown=sum(int((ids == unknown_id).sum()) for ids in encoded),
    )


def fertility_lines(columns: Mapping[str, Sequence[Fertility]]) -> list[str]:
    """Returns a table: a line for each language, the tokenizers side by side.

    Args:
      columns: by a tokenizer's heading its rows, of the same languages and texts.
    """
    header = ["language", "tokens a"]
    for heading in columns:
        header += [heading, "unknown"]
    table = [header]
    for rows in zip(*columns.values(), strict=True):
        line = [rows[0].language, rows[0].unit]
        for row in rows:
            line += [f"{row.tokens_per_unit:.2f}", f"{row.unknown_share:.2%}"]
        table.append(line)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(_aligned(line, widths)).rstrip() for line in table]


def _aligned(line: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Pads names on the right and figures on the left."""
    return [
        cell.ljust(width) if number < 2 else cell.rjust(width)
        for number, (cell, width) in enumerate(zip(line, widths, strict=True))
    ]
