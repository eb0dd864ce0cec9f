"""How far a long pass over text is, how fast, and when it will end."""

import collections
import time
from collections.abc import Callable

Report = Callable[[str], object]

_EVERY = 10.0  # seconds between lines
_WINDOW = 60.0  # seconds over which the speed is measured


class Meter:
    """Counts bytes of text, and now and then reports a line."""

    def __init__(self, name: str, expected: int, report: Report):
        """Takes what is being done, and about how many bytes there are to do."""
        self._name, self._expected, self._report = name, expected, report
        self._start = self._told = time.perf_counter()
        self._done = 0
        self._recent = collections.deque([(self._start, 0)])
        self._speed = 0.0

    def add(self, done: int) -> None:
        """Counts more bytes that were dealt with."""
        self._done += done
        now = time.perf_counter()
        if now - self._told < _EVERY:
            return
        self._told = now
        self._recent.append((now, self._done))
        # The speed of the last minute: what lay there already took no time. After a
        # longer silence that since the last line, and without news the last speed.
        while len(self._recent) > 2 and now - self._recent[0][0] > _WINDOW:
            self._recent.popleft()
        then, before = self._recent[0]
        if self._done > before:
            self._speed = (self._done - before) / (now - then)
        self._report(self._line(self._speed))

    def summary(self) -> str:
        """Returns what was done since the beginning."""
        seconds = time.perf_counter() - self._start
        megabytes = self._done / 1e6
        return f"{megabytes:.1f} MB in {seconds:.1f} s ({megabytes / seconds:.1f} MB/s)"

    def _line(self, speed: float) -> str:
        done = f"{self._name}: {self._done / 1e6:,.0f} MB, {speed / 1e6:.1f} MB/s"
        left = self._expected - self._done
        if left <= 0 or speed == 0:  # more than was expected
            return done
        minutes = left / speed / 60
        shown = f"{minutes * 60:.0f} s" if minutes < 2 else f"{minutes:,.0f} min"
        return f"{done}, about {shown} left"
