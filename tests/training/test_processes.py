"""Several processes that train together, as real ones: gloo between CPUs."""

import shutil
import signal
import socket
import sys
import time

import pytest

from encoderjax.errors import UserError
from encoderjax.train import run
from encoderjax.training.cluster import place_in
from tests.small_runs import (
    finish,
    metrics,
    small_config,
    start,
    training_flags,
    wait_for_step,
)

EXACT = ("loss", "mlm_loss", "nsp_loss", "mlm_accuracy", "nsp_accuracy")
TRAIN = ("-m", "encoderjax.train")


def start_two(*flags, workdirs=(None, None), command=TRAIN):
    """Starts two processes of two devices each."""
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    return [
        start(
            [sys.executable, *command, *flags, *own],
            JAX_NUM_CPU_DEVICES=2,
            JAX_COORDINATOR_ADDRESS=f"localhost:{port}",
            JAX_NUM_PROCESSES=2,
            JAX_PROCESS_ID=number,
        )
        for number, own in enumerate(([], []) if workdirs[0] is None else workdirs)
    ]


@pytest.mark.slow
def test_two_processes_stop_die_and_go_on_like_one(corpus, tmp_path):
    """One curve, in four runs: stopped twice, killed, and finished by one process."""
    workdir, alone = tmp_path / "together", tmp_path / "alone"
    changes = {"steps": 20, "checkpoint__every": 8, "eval__every": 10}
    changes |= {"model__num_layers": 1, "eval__batches": 1}
    flags = training_flags(workdir, corpus.folder, **changes)

    # Asked to stop as a whole, through the launcher.
    launcher = ["bash", "launch/local_processes.sh", "2", *flags]
    process = start(launcher, JAX_NUM_CPU_DEVICES=2)
    wait_for_step(workdir, 2, process)
    process.send_signal(signal.SIGTERM)
    output, _ = finish(process)
    stopped = max(metrics(workdir))
    assert "devices  4 cpu (data 4), 2 processes" in output
    assert output.count(f"stopped at step {stopped} and saved") == 1

    # One of them asked, which is enough for both.
    both = start_two(*flags, "--stopped_code=75")
    wait_for_step(workdir, stopped + 1, both[0])
    both[1].send_signal(signal.SIGTERM)
    outputs = [finish(process, 75)[0] for process in both]
    assert f"resuming after step {stopped} " in outputs[0]
    stopped = max(metrics(workdir))
    assert f"stopped at step {stopped} and saved" in outputs[0]
    assert (workdir / "checkpoints" / str(stopped)).is_dir()
    assert "step" not in outputs[1]  # only process 0 talks

    # One killed, the coordinator or not: the other ends by itself.
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(workdir, elsewhere)
    for killed, folder in ((0, elsewhere), (1, workdir)):
        both = start_two(*flags, f"--workdir={folder}")
        wait_for_step(folder, stopped + 1, both[0])
        both[killed].kill()
        killed_at = time.monotonic()
        both[1 - killed].communicate(timeout=60)
        assert both[1 - killed].returncode != 0, killed
        assert time.monotonic() - killed_at < 30, killed
        both[killed].communicate()
        assert max(metrics(folder)) < 20

    # Finished by one process with eight devices, as if nothing had happened.
    run(small_config(corpus.folder, **changes), workdir)
    run(small_config(corpus.folder, **changes), alone)
    for split in ("train", "validation"):
        ours, expected = metrics(workdir, split), metrics(alone, split)
        assert list(ours) == list(expected)
        for name in EXACT:
            values = [[line[name] for line in m.values()] for m in (ours, expected)]
            assert values[0] == pytest.approx(values[1], abs=2e-4), (split, name)


# As `python -m encoderjax.train`, which waits longer for a file of another machine.
IMPATIENT = """
from encoderjax import train
from encoderjax.training import processes
processes._VISIBLE = 1
train.run_command(train.main)
"""


def test_an_error_ends_all_and_is_said_once(corpus, tmp_path):
    """Two folders stand for a workdir that each machine has for itself."""
    flags = training_flags(tmp_path, corpus.folder)
    workdirs = [[f"--workdir={tmp_path / name}"] for name in ("here", "there")]
    both = start_two(*flags, workdirs=workdirs, command=("-c", IMPATIENT))
    errors = "".join(finish(process, 1)[1] for process in both)
    (line,) = (line for line in errors.splitlines() if line.startswith("error: "))
    assert "there is not the same folder for all processes" in line
    assert "Traceback" not in errors


SHARES = """
from encoderjax.training.mesh import BatchPlacement, MeshConfig, make_mesh
from encoderjax.training.processes import joined
with joined():
    for model in (1, 2, 4):
        placement = BatchPlacement(make_mesh(MeshConfig(model=model)), 8)
        print(len(placement.rows), placement.share)
"""


def test_processes_that_feed_the_same_rows_share_them():
    """Tokens are counted by these shares: those of both are the batch, or each is."""
    for process in start_two(command=("-c", SHARES)):
        assert finish(process)[0].split() == ["4", "0.5", "4", "0.5", "8", "1.0"]


SLURM = {
    "SLURM_JOB_ID": "5001",
    "SLURM_NTASKS": "16",
    "SLURM_PROCID": "9",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NUM_NODES": "2",
    "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7",
}


@pytest.mark.parametrize(
    "nodes", ["gpu[007-008]", "gpu7,gpu8", "gpu[007,012-015],other", "alone"]
)
def test_tasks_of_slurm_meet_where_jax_would_let_them(nodes, monkeypatch):
    from jax._src.clusters import SlurmCluster

    environment = SLURM | {"SLURM_STEP_NODELIST": nodes}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    place = place_in(environment, has_tpu=False)
    assert place is not None
    assert place["coordinator_address"] == SlurmCluster.get_coordinator_address(1, None)
    assert place["num_processes"] == SlurmCluster.get_process_count()
    assert place["process_id"] == SlurmCluster.get_process_id()
    assert place["local_device_ids"] == (SlurmCluster.get_local_process_id(),)


@pytest.mark.parametrize(
    "changes",
    [
        {"SLURM_NTASKS": "2", "SLURM_PROCID": "1"},  # a process has a node,
        {"CUDA_VISIBLE_DEVICES": "3"},  # or Slurm has given it its GPU
    ],
)
def test_a_process_of_slurm_has_all_gpus_that_are_its_own(changes):
    environment = SLURM | {"SLURM_STEP_NODELIST": "gpu[1-2]"} | changes
    place = place_in(environment, has_tpu=False)
    assert place is not None
    assert place["local_device_ids"] is None


@pytest.mark.parametrize(
    ("environment", "has_tpu", "together"),
    [
        ({}, False, False),
        ({}, True, True),  # a TPU VM: jax asks how many there are
        ({"TPU_SKIP_MDS_QUERY": "1"}, True, False),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, True, False),
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, True, True),
        ({"TPU_WORKER_HOSTNAMES": "a", "MEGASCALE_NUM_SLICES": "2"}, True, True),
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, False, False),  # no TPU to use
        ({"SLURM_NTASKS": "1", "SLURM_JOB_ID": "3"}, False, False),
        ({"TPU_WORKER_HOSTNAMES": "a,b", "JAX_NUM_PROCESSES": "1"}, True, False),
        (SLURM | {"JAX_NUM_PROCESSES": "1"}, False, False),
    ],
)
def test_a_process_is_alone_unless_told_otherwise(environment, has_tpu, together):
    assert (place_in(environment, has_tpu=has_tpu) is not None) == together


EXPLICIT = {
    "JAX_COORDINATOR_ADDRESS": "node0:1234",
    "JAX_NUM_PROCESSES": "4",
    "JAX_PROCESS_ID": "3",
}


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"JAX_PROCESS_ID": "0"}, "JAX_COORDINATOR_ADDRESS and JAX_NUM_PROCESSES"),
        (EXPLICIT | {"JAX_PROCESS_ID": "4"}, "JAX_PROCESS_ID=4 must be from 0 to 3"),
        (EXPLICIT | {"JAX_NUM_PROCESSES": "four"}, "JAX_NUM_PROCESSES=four"),
        (EXPLICIT | {"JAX_COORDINATOR_ADDRESS": "node0"}, "must be HOST:PORT"),
        (SLURM, "SLURM_NTASKS=16, but this process is no task of a step"),
    ],
)
def test_what_cannot_be_is_refused(environment, message):
    with pytest.raises(UserError, match=message):
        place_in(environment, has_tpu=False)
