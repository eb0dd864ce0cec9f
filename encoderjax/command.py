"""What every command shares: help with examples, and errors of one line."""

import argparse
import difflib
import logging
import os
import platform
import sys
import textwrap
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from encoderjax.caching import keep_compiled_programs
from encoderjax.errors import UserError


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are one line and suggest the right flag."""

    def __init__(
        self,
        *,
        command: str,
        description: str,
        examples: Sequence[str],
        notes: Sequence[str] = (),
    ):
        epilog = "examples:\n" + "\n".join(f"  {example}" for example in examples)
        epilog += "".join(f"\n\n{textwrap.fill(note)}" for note in notes)
        super().__init__(
            prog=f"python -m encoderjax.{command}",
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """Raises instead of printing the whole usage."""
        raise UserError(f"{message} (see {self.prog} --help)")

    def parse_strictly(self, arguments: Sequence[str] | None) -> argparse.Namespace:
        """Parses all arguments; an unknown one is refused with the nearest name."""
        known, unknown = self.parse_known_args(arguments)
        if unknown:
            raise UserError(
                f"unknown argument {unknown[0]!r}{self.suggestion(unknown[0])} "
                f"(see {self.prog} --help)"
            )
        return known

    def suggestion(self, argument: str) -> str:
        """Returns '; did you mean --x?' or nothing."""
        return did_you_mean(argument.split("=")[0], self._option_string_actions)


def did_you_mean(name: str, names: Sequence[str] | dict) -> str:
    """Returns '; did you mean ...?' for the nearest of `names`, or nothing."""
    near = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


_HUGE_PAGES = {
    "glibc.malloc.hugetlb": 1,  # ask for huge pages,
    "glibc.malloc.mmap_max": 0,  # and keep what was freed instead of giving it back
    "glibc.malloc.trim_threshold": 1 << 34,
    "glibc.malloc.top_pad": 1 << 26,
}


def restart_with_huge_pages() -> None:
    """Restarts this command with allocator settings that suit training on a CPU.

    XLA takes the buffers of every step anew from malloc. With the defaults of glibc
    their pages are faulted in and zeroed each time, which costs a third of the time
    of a small model's step. glibc reads these settings only when a process starts.
    Nothing is done where there is an accelerator, another C library, or a choice of
    the user's.
    """
    kinds = ("nvidia[0-9]*", "accel*", "vfio/[0-9]*")
    accelerators = [path for kind in kinds for path in Path("/dev").glob(kind)]
    if (
        "GLIBC_TUNABLES" in os.environ
        or platform.libc_ver()[0] != "glibc"
        or accelerators
    ):
        return
    settings = ":".join(f"{name}={value}" for name, value in _HUGE_PAGES.items())
    os.environ["GLIBC_TUNABLES"] = settings
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def run_command(main: Callable[[], object]) -> NoReturn:
    """Runs `main` and leaves the process with the right exit code."""
    # What Orbax logs it also raises, and then it is said in one line.
    for name in ("absl", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if "jax" in sys.modules:  # preparing text goes without
        keep_compiled_programs()
    try:
        main()
    except (Exception, KeyboardInterrupt) as error:
        sys.exit(explain(error))
    sys.exit(0)


def explain(error: BaseException) -> int:
    """Prints what is to be said of an error; returns the exit code for it."""
    if isinstance(error, UserError):
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 1
    if isinstance(error, SystemExit):  # nothing: it was said already
        return error.code if isinstance(error.code, int) else 1
    if isinstance(error, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        return 130
    if isinstance(error, BrokenPipeError):  # `... | head` closed the pipe
        sys.stderr.close()
        return 141
    traceback.print_exception(error)
    return 1
