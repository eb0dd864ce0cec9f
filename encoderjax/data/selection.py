"""Which documents of a source are taken: by length, by language, at random, once.

A document is known by its part of the source and its number in it, so the choice does
not depend on who reads which part.

Shapes: D documents.
"""

import array
import dataclasses
import hashlib
from collections.abc import Sequence

import numpy as np

from encoderjax.data.documents import Document
from encoderjax.data.random import hash_words, site_number
from encoderjax.errors import UserError

# A document that may be the same as another: the hash of its text, and its number.
DIGEST = np.dtype([("high", "<u8"), ("low", "<u8"), ("number", "<i8")])

_BUCKET = 2**28  # bytes of digests that are compared at a time


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selection:
    """What is taken of a source.

    Attributes:
      min_chars: documents with less text are left out.
      max_chars: and those with more, or cut for their length; 0 = none is too long.
      languages: those that are taken; () = all.
      share: of the documents, drawn at random.
      seed: of that draw.
    """

    min_chars: int = 1
    max_chars: int = 0
    languages: tuple[str, ...] = ()
    share: float = 1.0
    seed: int = 0

    def __post_init__(self):
        if not 0.0 < self.share <= 1.0:
            raise UserError(f"--sample={self.share} is not a share above 0, up to 1")
        if self.min_chars < 0 or self.max_chars < 0:
            raise UserError(
                f"--min_chars={self.min_chars} and --max_chars={self.max_chars} must "
                "not be negative; 0 sets no limit"
            )
        if 0 < self.max_chars < self.min_chars:
            raise UserError(
                f"--max_chars={self.max_chars} is below --min_chars={self.min_chars}: "
                "no document would be taken"
            )

    def takes(self, document: Document, part: int, number: int) -> bool:
        """Says whether a document is taken, duplicates aside."""
        length = len(document.text)
        too_long = document.is_cut or length > self.max_chars
        if length < self.min_chars or (self.max_chars and too_long):
            return False
        if self.languages and document.language not in self.languages:
            return False
        if self.share == 1.0:
            return True
        draw = hash_words(self.seed, site_number("prepare/take"), part, number)[0]
        return draw < self.share * 2**32


def digest_of(text: str) -> tuple[int, int]:
    """Returns 128 bits by which the same text is known; space around it is nothing."""
    content = hashlib.blake2b(text.strip().encode(), digest_size=16).digest()
    return int.from_bytes(content[:8], "little"), int.from_bytes(content[8:], "little")


def sorted_digests(digests: array.array) -> np.ndarray:
    """Returns high, low, number of documents, one after the other, as [D] of DIGEST.

    Args:
      digests: of type "Q"; there may be many millions.
    """
    return np.sort(np.frombuffer(digests, DIGEST), order=DIGEST.names)


def repeated(digests_by_part: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns of each part the numbers of documents that came before, ascending.

    The first of all that have the same text stays. Hashes are compared range by range,
    so that memory does not grow with the corpus.

    Args:
      digests_by_part: each [D] of DIGEST, sorted; they may be mapped.
    """
    size = sum(digests.nbytes for digests in digests_by_part)
    ranges = -(-size // _BUCKET) or 1
    bounds = np.array([2**64 * i // ranges for i in range(ranges)], np.uint64)
    cuts = [
        np.append(np.searchsorted(digests["high"], bounds), len(digests))
        for digests in digests_by_part
    ]
    found: list[list[np.ndarray]] = [[np.zeros(0, np.int64)] for _ in digests_by_part]
    for i in range(ranges):
        pieces = [
            digests[cut[i] : cut[i + 1]]
            for digests, cut in zip(digests_by_part, cuts, strict=True)
        ]
        part_D = np.repeat(np.arange(len(pieces)), [len(piece) for piece in pieces])
        here_D = np.concatenate([np.zeros(0, DIGEST), *pieces])
        # Stable: of equal texts the one of the earliest part and number comes first.
        keys = (here_D["number"], part_D, here_D["low"], here_D["high"])
        order = np.lexsort(keys)
        here_D, part_D = here_D[order], part_D[order]
        again_D = np.zeros(len(here_D), bool)
        digest_D = here_D[["high", "low"]]
        again_D[1:] = digest_D[1:] == digest_D[:-1]
        for part in np.unique(part_D[again_D]):
            found[part].append(here_D["number"][again_D & (part_D == part)])
    return [np.sort(np.concatenate(numbers)) for numbers in found]
