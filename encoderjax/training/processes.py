"""Several processes that train one model together: their beginning and their end.

Whoever fails, all end: at once where the process can still say so, after some seconds
without a sign of life where it cannot.
"""

import contextlib
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

# The store of keys that all processes share, and its barriers. What jax offers beside
# it to wait for each other keeps the devices busy, and gives up too early.
from jax._src.distributed import global_state

from encoderjax.command import explain
from encoderjax.errors import UserError
from encoderjax.training.cluster import place_in, tpu_is_here

_SIGN_OF_LIFE = 10  # seconds without one after which a process is taken for dead
_FAREWELL = 3  # seconds that a process which ends in an error waits for the others
# Seconds in which a new file is seen by all machines that share it: a client of NFS may
# remember for a minute that it was not there.
_VISIBLE = 90
_LONG = 7 * 24 * 3600  # seconds; a corpus may be prepared meanwhile
_END = "encoderjax/end"  # the key that says how it ended


@contextlib.contextmanager
def joined() -> Iterator[None]:
    """Runs the body as one of several processes, if the environment says so.

    An error in one process ends all of them, and is printed once. Those that are
    through wait for the others.
    """
    place = place_in(os.environ, has_tpu=tpu_is_here(os.environ))
    if place is None:
        yield
        return
    _connect(place)
    watch = _Watch()
    try:
        yield
    except BaseException as error:
        if isinstance(error, SystemExit) and not error.code:  # as --help does
            watch.finish()
            raise
        watch.fail(error)
    watch.finish()


def _connect(place: dict[str, Any]) -> None:
    try:
        jax.distributed.initialize(
            **place,
            heartbeat_timeout_seconds=_SIGN_OF_LIFE,
            shutdown_timeout_seconds=_SIGN_OF_LIFE,
        )
    except (OSError, RuntimeError, ValueError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        address = place.get("coordinator_address", "the other hosts of the TPU slice")
        raise UserError(
            f"cannot join the other processes at {address}: {reason}; see to the "
            "address, and that each process has its own number and all are started "
            "(launch/README.md), or set JAX_NUM_PROCESSES=1 for one alone"
        ) from error


def _wait_for_all(name: str, seconds: int = _LONG) -> None:
    _store().wait_at_barrier(f"encoderjax/{name}", seconds * 1000)


def _store() -> Any:
    assert global_state.client is not None
    return global_state.client


class _Watch:
    """Looks out for the end, in a thread: the others may wait for one that failed."""

    def __init__(self):
        self.store = _store()
        self.talking = threading.Lock()  # held until an error is printed
        self.code = 1
        self.thread = threading.Thread(target=self._look_out, daemon=True)
        self.thread.start()

    def _look_out(self) -> None:
        try:
            end = self.store.blocking_key_value_get(_END, _LONG * 1000)
        except jax.errors.JaxRuntimeError:
            return  # the coordinator is gone; jax ends this process
        if end == "failed":
            with self.talking:
                self._leave()

    def _leave(self) -> None:
        """Ends this process when all others end, without waiting for its threads."""
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # some may be dead
            _wait_for_all("failed", _FAREWELL)
        if global_state.process_id == 0:
            time.sleep(0.5)  # the others cannot do without the coordinator
        os._exit(self.code)

    def fail(self, error: BaseException) -> None:
        """Ends all processes; only the first that fails says why."""
        with self.talking:
            try:
                self.store.key_value_set(_END, "failed")
            except jax.errors.JaxRuntimeError as refused:
                if "ALREADY_EXISTS" not in str(refused):
                    os._exit(explain(error))  # the coordinator is gone
            else:
                self.code = explain(error)
        self.thread.join()

    def finish(self) -> None:
        """Waits until all are through, and parts from them."""
        _wait_for_all("finished")
        if global_state.process_id == 0:
            self.store.key_value_set(_END, "finished")
        self.thread.join()
        jax.distributed.shutdown()


@contextlib.contextmanager
def in_turns() -> Iterator[None]:
    """Lets process 0 go first, then one process of every other host, then the rest.

    What is made on first use and kept (a corpus, its rows) is so made once where all
    hosts share the folder, and once on each host where they do not.
    """
    turns = 3
    own = _turn() if jax.distributed.is_initialized() else 0
    for turn in range(turns):
        if turn == own:
            yield
        if jax.distributed.is_initialized():
            _wait_for_all(f"turn/{turn}")


def _turn() -> int:
    number, store = global_state.process_id, _store()
    store.key_value_set(f"encoderjax/host/{number}", socket.gethostname())
    _wait_for_all("hosts")
    hosts = {
        int(key.rpartition("/")[2]): host
        for key, host in store.key_value_dir_get("encoderjax/host/")
    }
    first = min(other for other, host in hosts.items() if host == hosts[number])
    if number == 0:
        return 0
    return 1 if number == first else 2


def check_shared(folder: Path, field: str) -> None:
    """Refuses a folder that not all processes see; it is made if need be.

    Each process saves its part of a checkpoint there.
    """
    if not jax.distributed.is_initialized():
        return
    key, store = "encoderjax/shared", _store()
    if global_state.process_id == 0:
        seen = folder / f".seen-by-all-{uuid.uuid4().hex}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            seen.touch()
        except OSError as error:
            raise UserError(
                f"{field}={folder} cannot be written: {error.strerror}"
            ) from error
        store.key_value_set(key, seen.name)
        _wait_for_all("seen")
        seen.unlink(missing_ok=True)
        return
    seen = folder / store.blocking_key_value_get(key, _LONG * 1000)
    deadline = time.monotonic() + _VISIBLE
    while not seen.exists():
        if time.monotonic() > deadline:
            raise UserError(
                f"{field}={folder} is not the same folder for all processes: "
                f"{socket.gethostname()} does not see what process 0 has written; use "
                "a folder that all machines share, or gs://..."
            )
        time.sleep(0.5)
        _look_anew(folder)
    _wait_for_all("seen")


def _look_anew(folder: Path) -> None:
    """Opens a folder and all above it, from the top.

    A client of NFS then asks whether they have changed; else it goes on believing that
    what was missing in them still is.
    """
    for place in (*reversed(folder.parents), folder):
        with contextlib.suppress(OSError):
            os.scandir(place).close()
