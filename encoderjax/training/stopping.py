"""Being asked to stop, so that a run can save before it ends."""

import os
import signal
from types import FrameType

import jax
from jax.experimental import multihost_utils


class StopSignal:
    """Notes SIGTERM and Ctrl-C while it is entered.

    With several processes jax has its own notifier for SIGTERM, which lets all of
    them stop after the same step whoever was asked; it must not be covered by a
    handler here.
    """

    def __enter__(self) -> "StopSignal":
        self.received = False
        self.together = jax.distributed.is_initialized()
        noted = (signal.SIGINT,) if self.together else (signal.SIGTERM, signal.SIGINT)
        self.previous = {number: signal.signal(number, self._note) for number in noted}
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received and number == signal.SIGINT:  # Ctrl-C again: at once
            raise KeyboardInterrupt
        self.received = True
        if self.together:
            os.kill(os.getpid(), signal.SIGTERM)

    def requested(self, step: int) -> bool:
        """Returns whether to stop after `step`; all processes agree on it."""
        if self.together:
            return multihost_utils.reached_preemption_sync_point(step)
        return self.received

    def __exit__(self, *error) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)
