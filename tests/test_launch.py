"""What starts runs elsewhere, as far as it can be told without a cluster."""

import math
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

from encoderjax.config_loading import load_config
from encoderjax.fields import Override

LAUNCH = Path("launch").absolute()
SCRIPTS = ("tpu_pod.sh", "local_processes.sh", "slurm.sbatch")


def call(name, *arguments, **environment):
    return subprocess.run(
        ["bash", str(LAUNCH / name), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
    )


def test_scripts_are_sound():
    shellcheck = Path(sys.executable).with_name("shellcheck")
    scripts = [str(LAUNCH / name) for name in SCRIPTS]
    result = subprocess.run([shellcheck, *scripts], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


# ---- on this machine ----


def test_local_processes_have_one_coordinator_and_their_numbers():
    flags = ["--config=configs/bert_tiny.py", "--workdir=with space"]
    result = call("local_processes.sh", "--dry-run", "3", *flags, PORT="1234")
    for number, line in enumerate(result.stdout.splitlines()):
        assert shlex.split(line) == [
            "env",
            "JAX_COORDINATOR_ADDRESS=localhost:1234",
            "JAX_NUM_PROCESSES=3",
            f"JAX_PROCESS_ID={number}",
            *("python", "-m", "encoderjax.train"),
            *flags,
        ]
    assert number == 2


def test_the_first_failure_is_the_exit_code_of_local_processes(tmp_path):
    """The second process fails at once, the others are through soon after."""
    (tmp_path / "python").write_text(
        '#!/bin/sh\nsleep 1; test "$JAX_PROCESS_ID" != 1\n'
    )
    (tmp_path / "python").chmod(0o755)
    environment = {"PYTHON": str(tmp_path / "python"), "PORT": "1"}
    assert call("local_processes.sh", "3", **environment).returncode == 1
    assert call("local_processes.sh", "1", **environment).returncode == 0
    assert call("local_processes.sh", "none").returncode == 2


# ---- Slurm ----


@pytest.mark.parametrize(
    ("code", "expected", "requeued"), [(0, 0, False), (75, 0, True), (134, 134, False)]
)
def test_a_job_queues_again_when_it_was_stopped(tmp_path, code, expected, requeued):
    """Stand-ins for Slurm's commands note what they are asked for.

    From 22.05 on srun does not read SLURM_CPUS_PER_TASK.
    """
    log = tmp_path / "log"
    cores = "${SRUN_CPUS_PER_TASK:-1} cores"
    stand_in(tmp_path, "srun", f'echo srun "$@" {cores} >> {log}; exit {code}')
    stand_in(tmp_path, "scontrol", f'echo scontrol "$@" >> {log}')
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    environment["SLURM_CPUS_PER_TASK"] = "32"
    result = call("slurm.sbatch", "--config=c.py", **environment)
    assert result.returncode == expected
    lines = log.read_text().splitlines()
    assert "python -m encoderjax.train --config=c.py --stopped_code=75" in lines[0]
    assert lines[0].endswith(" 32 cores")
    assert ("scontrol requeue 7" in lines) == requeued


def stand_in(folder, name, body):
    (folder / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
    (folder / name).chmod(0o755)


# ---- TPU pods ----

POD = ("--name=bert", "--zone=z", "--type=v5litepod-16")
RUN = ("--", "--config=configs/bert_base.py", "--workdir=gs://bucket/run")


def verbs(lines):
    """Returns what was asked of gcloud; of ssh, whether it trains or installs."""
    found = []
    for line in lines:
        words = shlex.split(line)
        if words[0] == "gcloud":
            verb = next(w for w in words[3:] if w not in ("tpu-vm", "queued-resources"))
            if verb == "ssh":
                assert "--worker=all" in words
                verb = "train" if "encoderjax.train" in line else "install"
            found.append(verb)
    return found


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), ["create", "scp", "install", "train"]),
        (("--delete",), ["create", "scp", "install", "train", "delete"]),
        (("--queued",), ["delete", "create", "scp", "install", "train"]),
    ],
)
def test_a_dry_run_prints_what_is_done_on_a_pod(options, expected):
    result = call("tpu_pod.sh", *POD, "--spot", "--dry-run", *options, *RUN)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert verbs(lines) == expected
    assert all("--zone=z" in line for line in lines if line.startswith("gcloud"))
    (create,) = (line for line in lines if " create " in line)
    assert "--accelerator-type=v5litepod-16" in create
    assert "--spot" in create


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*POD, "--", "--workdir=runs/bert"), "must be in a bucket"),
        ((*POD[:2], *RUN), "--type is missing"),
        ((*POD, "--sport", *RUN), "unknown option --sport"),
    ],
)
def test_a_pod_is_not_made_for_what_cannot_run(arguments, message):
    result = call("tpu_pod.sh", *arguments)
    assert result.returncode == 2
    assert message in result.stderr


GCLOUD = """
printf '%q ' gcloud "$@" >> log; echo >> log
case "$*" in
    *describe*)
        if [ -e offline ]; then rm offline; echo 'ERROR: no connection' >&2; exit 1; fi
        [ -e state ] || { echo 'ERROR: NOT_FOUND: no such node' >&2; exit 1; }
        cat state ;;
    *" create "*)
        [ ! -e state ] || { echo 'ERROR: ALREADY_EXISTS' >&2; exit 1; }
        echo READY > state ;;
    *" delete "*) rm state ;;
    *encoderjax.train*)
        echo >> runs
        case $(wc -l < runs) in
            1) echo PREEMPTED > state; exit 255 ;;
            2) exit 1 ;;
        esac ;;
esac
"""


def test_a_run_on_a_pod_goes_on_after_a_preemption_and_a_failure(tmp_path):
    """With a stand-in for gcloud whose slice is preempted in the first run."""
    stand_in(tmp_path, "gcloud", f"cd {tmp_path}\n{GCLOUD}")
    stand_in(tmp_path, "sleep", "")
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    result = call("tpu_pod.sh", *POD, *RUN, **environment)
    assert result.returncode == 0, result.stderr
    done = verbs((tmp_path / "log").read_text().splitlines())
    first = ["create", "scp", "install", "train"]
    expected = [*first, "delete", *first, "train"]
    assert [verb for verb in done if verb != "describe"] == expected

    (tmp_path / "runs").unlink()
    result = call("tpu_pod.sh", "--retries=0", *POD, *RUN, **environment)
    assert result.returncode == 2  # the failure after the preemption is one too many
    assert "exit code 1" in result.stderr


def test_a_slice_is_asked_for_until_there_is_one_unless_it_cannot_be(tmp_path):
    stand_in(tmp_path, "sleep", f"cd {tmp_path}; echo >> slept")
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    first = "[ -e slept ] || { echo ERROR: CODE: no >&2; exit 1; }; echo READY > state"
    script = f"cd {tmp_path}\n" + GCLOUD.replace("echo READY > state", first)
    stand_in(tmp_path, "gcloud", script.replace("CODE", "INVALID_ARGUMENT"))
    result = call("tpu_pod.sh", *POD, *RUN, **environment)
    assert result.returncode == 2
    assert result.stderr.splitlines()[-2:] == [
        "ERROR: INVALID_ARGUMENT: no",
        "error: gcloud cannot make bert; see above",
    ]
    stand_in(tmp_path, "gcloud", script.replace("CODE", "RESOURCE_EXHAUSTED"))
    (tmp_path / "runs").write_text("1\n2\n")  # the next one goes well
    result = call("tpu_pod.sh", *POD, *RUN, **environment)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "slept").read_text() == "\n"


def test_a_slice_is_not_made_anew_because_gcloud_fails(tmp_path):
    """After a run that failed, once; at the beginning it is the user's to mend."""
    stand_in(tmp_path, "gcloud", f"cd {tmp_path}\n{GCLOUD}")
    stand_in(tmp_path, "sleep", "")
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    (tmp_path / "state").write_text("READY")
    (tmp_path / "offline").touch()
    result = call("tpu_pod.sh", *POD, *RUN, **environment)
    assert result.returncode == 2
    assert "no connection" in result.stderr
    assert "cannot tell whether bert is there" in result.stderr

    (tmp_path / "runs").write_text("the first\n")  # the next one fails
    failing = GCLOUD.replace("2) exit 1", "2) touch offline; exit 1")
    stand_in(tmp_path, "gcloud", f"cd {tmp_path}\n{failing}")
    result = call("tpu_pod.sh", *POD, *RUN, **environment)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "runs").read_text().count("\n") == 3
    done = set(verbs((tmp_path / "log").read_text().splitlines()))
    assert not {"create", "delete"} & done


@pytest.mark.parametrize("end", ["FAILED", "SUSPENDED"])
def test_a_queued_request_that_has_ended_is_not_waited_for(tmp_path, end):
    """It is asked about once more where gcloud did not say."""
    stand_in(tmp_path, "sleep", f"echo {end} > {tmp_path}/request")
    stand_in(
        tmp_path,
        "gcloud",
        f"""cd {tmp_path}
        case "$*" in
            *queued-resources*describe*)
                [ -e request ] || {{ echo 'ERROR: no connection' >&2; exit 1; }}
                cat request ;;
            *describe*) echo 'ERROR: NOT_FOUND: no such node' >&2; exit 1 ;;
        esac""",
    )
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    result = call("tpu_pod.sh", *POD, "--queued", *RUN, **environment)
    assert result.returncode == 2
    _, line = result.stderr.splitlines()
    assert line.startswith(f"error: the queued request bert is {end}; see ")


def test_a_queued_request_is_waited_for_until_it_is_there(tmp_path):
    stand_in(tmp_path, "sleep", f"echo READY > {tmp_path}/state")
    ready = "*queued-resources*describe*) echo PROVISIONING ;;"
    asked = '*" create "*) ;;'
    script = GCLOUD.replace('case "$*" in', f'case "$*" in {ready} {asked}')
    stand_in(tmp_path, "gcloud", f"cd {tmp_path}\n{script}")
    (tmp_path / "runs").write_text("1\n2\n")  # the next one goes well
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    result = call("tpu_pod.sh", *POD, "--queued", *RUN, **environment)
    assert result.returncode == 0, result.stderr
    done = verbs((tmp_path / "log").read_text().splitlines())
    done = [verb for verb in done if verb != "describe"]
    assert done == ["delete", "create", "scp", "install", "train"]


CODE = ("pyproject.toml", "encoderjax/models/encoder.py", "configs/mine alone.py")
BESIDE = ("corpora/wiki/ids.bin", "texts/wiki.jsonl.gz", "models/bert/model.bin")
BESIDE += ("exported/model.bin", "runs/bert/metrics.jsonl", ".venv/bin/python")


@pytest.mark.parametrize("checkout", [True, False])
def test_a_pod_gets_the_code_without_what_lies_beside_it(tmp_path, checkout):
    root, archive = tmp_path / "root", tmp_path / "packed.tar.gz"
    for name in (*CODE, *BESIDE, "encoderjax/gone.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "launch").mkdir()
    for name in ("launch/tpu_pod.sh", ".gitignore"):
        shutil.copy(LAUNCH.parent / name, root / name)
    if checkout:  # with a file that is not committed, and one that was deleted
        git = ["git", "-C", str(root)]
        subprocess.run([*git, "init", "--quiet"], check=True)
        subprocess.run([*git, "add", "encoderjax", "pyproject.toml"], check=True)
    (root / "encoderjax" / "gone.py").unlink()

    cases = f'*describe*) echo READY ;; *" scp "*) cp "$5" {archive} ;;'
    stand_in(tmp_path, "gcloud", f'case "$*" in {cases} esac')
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    result = call(str(root / "launch/tpu_pod.sh"), *POD, *RUN, **environment)
    assert result.returncode == 0, result.stderr
    with tarfile.open(archive) as packed:
        files = {os.path.normpath(m.name) for m in packed if m.isfile()}
    assert files == {*CODE, "launch/tpu_pod.sh", ".gitignore"}


# ---- GKE ----


def test_the_jobset_has_its_structure_and_fits_its_slice():
    described = yaml.safe_load((LAUNCH / "gke_jobset.yaml").read_text())
    assert described["apiVersion"] == "jobset.x-k8s.io/v1alpha2"
    assert described["kind"] == "JobSet"
    spec = described["spec"]
    assert spec["failurePolicy"]["maxRestarts"] > 0
    (replicated,) = spec["replicatedJobs"]
    assert replicated.keys() == {"name", "replicas", "template"}
    job = replicated["template"]["spec"]
    fields = {
        "parallelism",
        "completions",
        "completionMode",
        "backoffLimit",
        "template",
    }
    assert job.keys() == fields
    assert job["completionMode"] == "Indexed"
    assert job["backoffLimit"] == 0  # all pods go together
    pod = job["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    (container,) = pod["containers"]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}

    topology = pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"]
    chips = math.prod(map(int, topology.split("x")))
    of_a_host = {
        container["resources"][k]["google.com/tpu"] for k in ("requests", "limits")
    }
    assert of_a_host == {chips / job["parallelism"]}
    assert job["completions"] == job["parallelism"]


def test_the_jobset_runs_what_train_takes():
    described = yaml.safe_load((LAUNCH / "gke_jobset.yaml").read_text())
    (replicated,) = described["spec"]["replicatedJobs"]
    (container,) = replicated["template"]["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["python", "-m", "encoderjax.train"]
    flags = dict(argument.split("=", 1) for argument in container["args"])
    changes = {
        name.removeprefix("--config."): Override(value)
        for name, value in flags.items()
        if name.startswith("--config.")
    }
    load_config(flags["--config"], changes)
    assert flags["--workdir"].startswith("gs://")
    assert int(flags["--stopped_code"]) > 0


# ---- the notebook ----


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(tmp_path, monkeypatch):
    nbclient, nbformat = map(pytest.importorskip, ("nbclient", "nbformat"))
    notebook = nbformat.read(LAUNCH / "colab.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) >= (4, 5)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in cells)

    shutil.copytree("configs", tmp_path / "configs")  # a checkout, as far as it needs
    monkeypatch.delenv("XLA_FLAGS")  # it computes for longer than it compiles
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=300, resources=resources).execute()
    shown = {cell.id: str(cell.outputs) for cell in cells}
    assert "step 60/60" in shown["train"]
    assert "image/png" in shown["curve"]
    assert "[MASK]" in shown["fill"]
    assert "largest difference" in shown["torch"]
