"""A Python process of its own, and the pipe to it."""

import multiprocessing
import subprocess
import sys
from typing import Any, NoReturn

from encoderjax.errors import UserError


class Beside:
    """A process that begins with nothing imported and runs `serve(pipe)` of a module.

    One of multiprocessing's would begin with the main module of this one, jax with it,
    which whoever looks at its memory or its time would count.
    """

    def __init__(self, module: str, ended: str):
        """Starts it.

        Args:
          ended: what is said when it ends early, with a place for the exit code.
        """
        self._pipe, its = multiprocessing.Pipe()
        self._ended = ended
        number = its.fileno()
        code = (
            "from multiprocessing.connection import Connection; "
            f"from {module} import serve; serve(Connection({number}))"
        )
        self._process = subprocess.Popen(
            (sys.executable, "-c", code), pass_fds=(number,), stdin=subprocess.DEVNULL
        )
        its.close()

    def send(self, value: Any) -> None:
        """Sends a value."""
        try:
            self._pipe.send(value)
        except BrokenPipeError:
            self._fail()

    def receive(self) -> Any:
        """Returns the next value that it sends."""
        try:
            return self._pipe.recv()
        except (EOFError, ConnectionResetError):
            self._fail()

    def _fail(self) -> NoReturn:
        raise UserError(self._ended.format(self._process.wait())) from None

    def close(self) -> None:
        """Closes the pipe, at which it ends, and waits for that."""
        self._pipe.close()
        self._process.wait()
