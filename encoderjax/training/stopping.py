"""Being asked to stop, so that a run can save before it ends."""

import signal
from types import FrameType

import jax
from jax.experimental import multihost_utils


class StopSignal:
    """Notes SIGTERM and Ctrl-C while it is entered.

    With several processes JAX has its own notifier for SIGTERM, which lets all of
    them stop after the same step; it must not be covered by a handler here.
    """

    def __enter__(self) -> "StopSignal":
        self.received = False
        self.previous = {}
        if jax.process_count() == 1:
            for number in (signal.SIGTERM, signal.SIGINT):
                self.previous[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received and number == signal.SIGINT:  # Ctrl-C again: at once
            raise KeyboardInterrupt
        self.received = True

    def requested(self, step: int) -> bool:
        """Returns whether to stop after `step`; all processes agree on it."""
        if jax.process_count() > 1:
            return multihost_utils.reached_preemption_sync_point(step)
        return self.received

    def __exit__(self, *error) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)
