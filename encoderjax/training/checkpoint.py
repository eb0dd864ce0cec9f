"""Checkpoints: saved in the background, restored to any mesh, refused when alien."""

import contextlib
import dataclasses
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from orbax.checkpoint import checkpoint_managers as managers

from encoderjax.data import storage
from encoderjax.errors import UserError
from encoderjax.training.remote_workdir import checkpoint_folder, put
from encoderjax.training.step import TrainState

PyTree = Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When to save.

    Attributes:
      every: steps between checkpoints; the last step is always saved.
      keep: how many of the newest stay.
      keep_every: every so many steps one stays for good; 0 = none.
      carry: whether the carry is saved; without it, it warms up anew.
    """

    every: int = 1000
    keep: int = 2
    keep_every: int = 0
    carry: bool = True

    def __post_init__(self):
        for name, least in {"every": 1, "keep": 1, "keep_every": 0}.items():
            if getattr(self, name) < least:
                raise UserError(
                    f"checkpoint.{name}={getattr(self, name)} must be at least {least}"
                )


class Checkpoints:
    """The checkpoints of a workdir.

    Each holds `state` (step, params, opt_state and carry) and `identity`, the fields
    of the run that must not change for the curve to go on.
    """

    def __init__(
        self,
        workdir: Path,
        config: CheckpointConfig,
        kept: Callable[[], int | None] = lambda: None,
    ):
        """Opens the checkpoints of a workdir.

        Args:
          workdir: where they are.
          config: when to save.
          kept: gives a step that stays beside the newest, such as the best so far.
        """
        self.workdir = workdir
        self.folder = checkpoint_folder(workdir)
        self.config = config
        policies: list = [managers.LatestN(config.keep), _Kept(kept)]
        if config.keep_every:
            policies.append(managers.EveryNSteps(config.keep_every))
        options = ocp.CheckpointManagerOptions(
            preservation_policy=managers.AnyPreservationPolicy(policies),
            save_decision_policy=_WheneverAsked(),
            cleanup_tmp_directories=True,
            enable_async_checkpointing=True,
        )
        with self._explained("open"):
            self.manager = ocp.CheckpointManager(
                self.folder,
                options=options,
                item_names=("state", "identity"),
            )

    def latest_step(self) -> int | None:
        """Returns the newest whole checkpoint's step."""
        return self.manager.latest_step()

    def save(self, state: TrainState, step: int, identity: Mapping[str, Any]) -> None:
        """Starts saving; only copying off the device is waited for."""
        if step == self.latest_step():
            return
        self._check_space(state, step)
        self._put_workdir()
        with self._explained(f"save step {step} to"):
            self.manager.save(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.StandardSave(_on_disk(state, self.config.carry)),
                    identity=ocp.args.JsonSave(dict(identity)),
                ),
            )

    def _check_space(self, state: TrainState, step: int) -> None:
        """Refuses to begin what the disk cannot hold."""
        if storage.is_remote(self.folder):
            return
        needed = sum(
            shard.data.nbytes
            for leaf in jax.tree.leaves(_on_disk(state, self.config.carry))
            for shard in leaf.addressable_shards
            if shard.replica_id == 0
        )
        free = shutil.disk_usage(self.folder).free
        if free < needed:
            raise self._error(
                f"save step {step} to",
                f"it needs {needed:,} bytes and {free:,} are free",
            )

    def wait(self) -> None:
        """Waits until what was started is on disk."""
        with self._explained("save to"):
            self.manager.wait_until_finished()

    def close(self) -> None:
        """Ends the background threads."""
        self.manager.close()
        self._put_workdir()

    def _put_workdir(self) -> None:
        """Puts metrics etc. beside checkpoints that are not in the workdir."""
        if jax.process_index() == 0:
            put(self.workdir)

    def check_identity(
        self, step: int, identity: Mapping[str, Any], labels: Mapping[str, str]
    ) -> None:
        """Refuses a checkpoint of another run, by the first name that differs.

        Args:
          step: of the checkpoint.
          identity: of the run.
          labels: what to call some names instead.
        """
        saved = self._restore(step, identity=ocp.args.JsonRestore())["identity"]
        # The model comes last: some of its fields follow from the others.
        names = sorted(saved.keys() | identity.keys())
        for name in sorted(names, key=lambda name: name.startswith("model.")):
            if saved.get(name) != identity.get(name):
                raise UserError(
                    f"{labels.get(name, name)}={identity.get(name)!r} does not fit the "
                    f"checkpoint in {self.folder}, which was made with "
                    f"{saved.get(name)!r}; use its setting, or another --workdir"
                )

    def restore(
        self, step: int, shapes: TrainState, shardings: TrainState
    ) -> TrainState:
        """Returns the state of `step`, laid out as `shardings` say.

        Orbax wants to be asked for what is there: a carry that was saved comes with it,
        and one that was not is empty, whatever the config says by now.
        """
        with_carry = "carry" in _saved_tree(self.folder, step)
        wanted = jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(
                leaf.shape, leaf.dtype, sharding=sharding
            ),
            _on_disk(shapes, with_carry),
            _on_disk(shardings, with_carry),
        )
        saved = self._restore(step, state=ocp.args.StandardRestore(wanted))["state"]
        return TrainState(**{"carry": {}, "frozen": {}} | saved)

    def _restore(self, step: int, **items) -> Any:
        with self._explained(f"read step {step} of"):
            return self.manager.restore(step, args=ocp.args.Composite(**items))

    @contextlib.contextmanager
    def _explained(self, action: str) -> Iterator[None]:
        """Turns what goes wrong with files into one line that says what is safe."""
        try:
            yield
        except UserError:
            raise
        except (OSError, ValueError, RuntimeError) as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise self._error(action, reason) from error

    def _error(self, action: str, reason: str) -> UserError:
        manager = getattr(self, "manager", None)
        latest = manager.latest_step() if manager is not None else None
        safe = (
            "no checkpoint is there yet"
            if latest is None
            else f"the newest whole checkpoint is of step {latest}"
        )
        return UserError(
            f"cannot {action} {self.folder}: {reason}; {safe}. See to space and "
            "permissions, then run the same command again"
        )


def _on_disk(state: TrainState, with_carry: bool) -> dict[str, PyTree]:
    """Returns the part of a state that goes to disk."""
    saved = {
        "step": state.step,
        "params": state.params,
        "opt_state": state.opt_state,
    }
    # Orbax does not take an empty tree, and most models carry nothing.
    if with_carry and state.carry:
        saved["carry"] = state.carry
    return saved


class _WheneverAsked(managers.SaveDecisionPolicy):
    """Leaves the decision to the training loop."""

    def should_save(self, step, previous_steps, *, context) -> bool:
        return True


@dataclasses.dataclass
class _Kept(managers.PreservationPolicy):
    """Preserves the step that is asked for at the time."""

    step: Callable[[], int | None]

    def should_preserve(self, checkpoints, *, context) -> list[bool]:
        step = self.step()
        return [checkpoint.step == step for checkpoint in checkpoints]


def saved_steps(workdir: Path) -> list[int]:
    """Returns the steps of the whole checkpoints, sorted."""
    folder = checkpoint_folder(workdir)
    # A save that is not whole has a longer name.
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted(int(path.name) for path in found if path.name.isdigit())


def restore_params(workdir: Path, step: int | None = None) -> tuple[PyTree, int]:
    """Returns the parameters of a checkpoint as numpy arrays, and its step.

    Only reads, so a run that is saving there is not disturbed.
    """
    folder = checkpoint_folder(workdir)
    if not folder.is_dir():
        raise UserError(f"{workdir} has no {folder.name}/: train there first")
    steps = saved_steps(workdir)
    if not steps:
        raise UserError(f"{folder} holds no whole checkpoint yet")
    step = steps[-1] if step is None else step
    if step not in steps:
        raise UserError(f"step={step} is not in {folder} (steps: {steps})")
    tree = _saved_tree(folder, step)["params"]
    with _reading() as reader:
        restored = reader.restore(
            _state_path(folder, step),
            ocp.args.PyTreeRestore(
                item={"params": tree},
                restore_args={
                    "params": jax.tree.map(
                        lambda leaf: ocp.RestoreArgs(restore_type=np.ndarray), tree
                    )
                },
                partial_restore=True,
            ),
        )
    return restored["params"], step


def _saved_tree(folder: epath.Path, step: int) -> dict[str, PyTree]:
    """Returns what a checkpoint says of the state that it has."""
    with _reading() as reader:
        found = reader.metadata(_state_path(folder, step)).item_metadata
    assert found is not None  # the checkpoint is whole
    return found.tree


def _state_path(folder: epath.Path, step: int) -> epath.Path:
    return folder / str(step) / "state"


@contextlib.contextmanager
def _reading() -> Iterator[ocp.Checkpointer]:
    """Opens what reads a checkpoint in this process, and waits for no other one."""
    alone = ocp.options.MultiprocessingOptions(
        primary_host=jax.process_index(),
        active_processes={jax.process_index()},
        barrier_sync_key_prefix=f"read_by_{jax.process_index()}",
    )
    handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=alone)
    with ocp.Checkpointer(handler, multiprocessing_options=alone) as reader:
        yield reader
