"""The forms of rows: how each is cut, and what it takes of the settings.

A cut yields rows in parts, shard by shard or stream by stream; all draws are hashes, so
a cut of a pass is the same wherever it is made.
"""

import dataclasses
from collections.abc import Callable, Iterator

from encoderjax.data.packing import cut_packed
from encoderjax.data.parallel import cut_parallel
from encoderjax.data.records import Cutting, FormName, Rows, Second, Separators
from encoderjax.data.reuse_pairs import cut_reuse_pairs
from encoderjax.data.segment_halves import cut_halves
from encoderjax.data.segment_pairs import PairCut, cut_pairs
from encoderjax.data.sentence_blocks import cut_sentences, cut_slices


@dataclasses.dataclass(frozen=True, kw_only=True)
class Form:
    """A form of rows.

    Attributes:
      cut: (what is cut, number of the pass) -> rows, in parts.
      segments: of a row, where the second may be what it is or something else.
      second: what the second segment may be; the first of them is the default.
      from_elsewhere: whether random segments may come from other documents.
      short_rate: the default; None where rows are as long as they can be.
      separators: the default; None where rows are not cut from a stream.
      takes_sentences_whole: so that long ones are cut or skipped.
      draws: whether passes differ.
      in_streams: whether a row goes on where the row before has stopped.
      packed: whether rows hold several documents.
      parallel: whether rows hold a line and its translation, and positions begin anew.
    """

    cut: Callable[[Cutting, int], Iterator[Rows]]
    segments: int = 1
    second: tuple[Second, ...] = ("next",)
    from_elsewhere: bool = False
    short_rate: float | None = None
    separators: Separators | None = None
    takes_sentences_whole: bool = False
    draws: bool = True
    in_streams: bool = False
    packed: bool = False
    parallel: bool = False


def _pairs(unit) -> Callable[[Cutting, int], Iterator[Rows]]:
    def cut(cutting: Cutting, number: int) -> Iterator[Rows]:
        settings = cutting.settings
        pair_cut = PairCut(
            tokens=cutting.tokens(2),
            second=settings.second,
            negatives=settings.negatives,
            short_rate=settings.short_rate,
            seed=settings.seed,
            unit=unit,
        )
        for shard in cutting.shards():
            yield Rows(cut_pairs(cutting.split, shard, number, pair_cut))

    return cut


def _halves(cutting: Cutting, number: int) -> Iterator[Rows]:
    for shard in cutting.shards():
        yield Rows(cut_halves(cutting, shard, number))


def _sentences(within_documents: bool) -> Callable[[Cutting, int], Iterator[Rows]]:
    def cut(cutting: Cutting, number: int) -> Iterator[Rows]:
        for shard in cutting.shards():
            yield Rows(cut_sentences(cutting, shard, within_documents))

    return cut


def _slices(cutting: Cutting, number: int) -> Iterator[Rows]:
    for shard in cutting.shards():
        yield Rows(cut_slices(cutting, shard))


def _parallel(cutting: Cutting, number: int) -> Iterator[Rows]:
    for shard in cutting.shards():
        yield Rows(cut_parallel(cutting, shard, number))


def _packed(cutting: Cutting, number: int) -> Iterator[Rows]:
    for shard in cutting.shards():
        yield cut_packed(cutting, shard, number)


FORMS: dict[FormName, Form] = {
    "segment_pair": Form(
        cut=_pairs("segment"),
        segments=2,
        second=("random", "next", "swapped", "swapped_only"),
        from_elsewhere=True,
        short_rate=0.1,
    ),
    "sentence_pair": Form(
        cut=_pairs("sentence"),
        segments=2,
        second=("random", "next", "swapped", "swapped_only"),
        from_elsewhere=True,
        short_rate=0.0,
    ),
    "segment_halves": Form(cut=_halves, segments=2, short_rate=0.05),
    "full_sentences": Form(
        cut=_sentences(within_documents=False),
        separators="documents",
        takes_sentences_whole=True,
        draws=False,
    ),
    "doc_sentences": Form(
        cut=_sentences(within_documents=True),
        separators="none",
        takes_sentences_whole=True,
        draws=False,
    ),
    "contiguous": Form(cut=_slices, separators="none", draws=False),
    "reuse_pair": Form(
        cut=cut_reuse_pairs,
        segments=2,
        second=("random", "next"),
        separators="documents",
        in_streams=True,
    ),
    "packed": Form(cut=_packed, packed=True),
    "parallel": Form(
        cut=_parallel,
        separators="sentences",
        takes_sentences_whole=True,
        parallel=True,
    ),
}


def forms_that(able: Callable[[Form], bool]) -> str:
    """Returns the names of the forms for which that holds, for messages."""
    return " or ".join(name for name, form in FORMS.items() if able(form))
