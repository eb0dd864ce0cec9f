"""What every command shares: help with examples, and errors of one line."""

import argparse
import contextlib
import difflib
import importlib.metadata
import importlib.util
import logging
import os
import platform
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator, Sequence
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


_TPUS = ("accel*", "vfio/[0-9]*")
_HUGE_PAGES = {
    "glibc.malloc.hugetlb": 1,  # ask for huge pages,
    "glibc.malloc.mmap_max": 0,  # and keep what was freed instead of giving it back
    "glibc.malloc.trim_threshold": 1 << 34,
    "glibc.malloc.top_pad": 1 << 26,
    # The arenas of threads hold no large buffer: each would be taken from the system
    # and given back in every step, whatever stands above.
    "glibc.malloc.arena_max": 1,
}


_SETTINGS = ":".join(f"{name}={value}" for name, value in _HUGE_PAGES.items())


def restart_with_huge_pages() -> None:
    """Restarts this command with allocator settings that suit training on a CPU.

    XLA takes the buffers of every step anew from malloc. With the defaults of glibc
    their pages are faulted in and zeroed each time, which costs a third of the time
    of a small model's step. glibc reads these settings only when a process starts.
    Nothing is done where there is an accelerator, another C library, or a choice of
    the user's.
    """
    if (
        "GLIBC_TUNABLES" in os.environ
        or platform.libc_ver()[0] != "glibc"
        or _devices("nvidia[0-9]*")
        or _devices(*_TPUS)
    ):
        return
    os.environ["GLIBC_TUNABLES"] = _SETTINGS
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


@contextlib.contextmanager
def as_the_user_set_it() -> Iterator[None]:
    """Starts processes without the allocator settings that this command made."""
    ours = os.environ.get("GLIBC_TUNABLES") == _SETTINGS
    if ours:
        del os.environ["GLIBC_TUNABLES"]
    try:
        yield
    finally:
        if ours:
            os.environ["GLIBC_TUNABLES"] = _SETTINGS


def _devices(*kinds: str) -> list[Path]:
    return [path for kind in kinds for path in Path("/dev").glob(kind)]


def leave_tpus_alone() -> None:
    """Keeps jax from looking for TPUs where their compiler is, but none of them.

    It would write to stderr whatever libtpu misses. Where jax has a plugin for other
    devices, or the user has chosen, nothing is done.
    """
    if (
        os.environ.get("JAX_PLATFORMS")
        or importlib.util.find_spec("libtpu") is None
        or importlib.util.find_spec("jax_plugins") is not None
        or importlib.metadata.entry_points(group="jax_plugins")
        or _devices(*_TPUS)
    ):
        return
    os.environ["JAX_PLATFORMS"] = "cpu"  # of the processes that this one starts
    if "jax" in sys.modules:
        sys.modules["jax"].config.update("jax_platforms", "cpu")


# The cost of products that are fused into one another is found by recursion, for which
# the threads of this libtpu have too small a stack: it ends with a signal.
_SMALL_STACKS = "0.0.42"
_STACK = "--fibers_default_thread_stack_size"
_STACK_BYTES = 4 << 20


def enlarge_stacks_of_libtpu() -> None:
    """Lets the compiler for TPUs compile all steps; it looks when it is loaded."""
    try:
        version = importlib.metadata.version("libtpu")
    except importlib.metadata.PackageNotFoundError:
        return
    given = os.environ.get("LIBTPU_INIT_ARGS", "")
    if version.startswith(_SMALL_STACKS) and _STACK not in given:
        os.environ["LIBTPU_INIT_ARGS"] = f"{given} {_STACK}={_STACK_BYTES}".strip()


def run_command(main: Callable[[], object]) -> NoReturn:
    """Runs `main` and leaves the process with the right exit code."""
    # What Orbax logs it also raises, and then it is said in one line.
    for name in ("absl", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    leave_tpus_alone()
    if _devices(*_TPUS):
        enlarge_stacks_of_libtpu()
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
