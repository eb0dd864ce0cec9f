"""Batches of rows that are about as long: each step has a bucket of its own.

Steps are assigned to buckets by a pattern, as rows are to the members of a mixture, so
a step is found at once, and each bucket comes as often as its rows are many. Rows of a
bucket have their own order and epochs.
"""

import dataclasses

import numpy as np

from encoderjax.data.assembly import Batch
from encoderjax.data.mixture import Pattern
from encoderjax.data.pipeline import BatchSource, Index, Used


@dataclasses.dataclass(frozen=True, eq=False)
class BucketedSource:
    """The batches of a run whose rows are sorted by length: a bucket for each step.

    Attributes:
      pattern: which bucket each step takes.
      sources: of the buckets, by the number of the bucket's own step.
      first_step: the step of the first batch.
    """

    pattern: Pattern
    sources: tuple[BatchSource, ...]
    first_step: int = 0

    @property
    def batch_size(self) -> int:
        """Rows of a step, the same for every bucket."""
        return self.sources[0].batch_size

    @property
    def index(self) -> Index:
        """All rows."""
        return self.sources[0].index

    def used(self, step: int) -> Used:
        """Returns the rows of each bucket that were used before `step`."""
        steps = self.pattern.before(step - self.first_step).tolist()
        pairs = zip(self.sources, steps, strict=True)
        return dict(item for source, own in pairs for item in source.used(own).items())

    def starting(self, step: int, used: Used) -> "BucketedSource":
        """Returns the batches from `step` on, after the rows that are used."""
        sources = tuple(source.starting(0, used) for source in self.sources)
        return dataclasses.replace(self, sources=sources, first_step=step)

    def places(
        self, step: int, rows: slice | np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns epoch, its bucket's own, and row number of rows of step `step`."""
        source, own = self._bucket(step)
        return source.places(own, rows)

    def batch(self, step: int, rows: slice | np.ndarray = slice(None)) -> Batch:
        """Returns the given rows of the global batch of `step`."""
        source, own = self._bucket(step)
        return source.rows(*source.places(own, rows), step=step)

    def _bucket(self, step: int) -> tuple[BatchSource, int]:
        """Returns the bucket of a step, and which of its own steps that is."""
        bucket, own = self.pattern.at(np.asarray([step - self.first_step]))
        return self.sources[int(bucket[0])], int(own[0])
