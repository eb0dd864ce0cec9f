"""Every command: help with examples, and one line for what the user can mend."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

COMMANDS = ("train", "prepare", "preview", "evaluate", "fill_mask", "export")
COMMANDS += ("benchmark", "ablate", "race")


def call(command, *arguments):
    return subprocess.run(
        [sys.executable, "-m", f"encoderjax.{command}", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_examples(command):
    result = call(command, "--help")
    assert result.returncode == 0
    assert "examples:" in result.stdout
    assert f"python -m encoderjax.{command} --" in result.stdout


def _run_without_settings(code: str, **given: str) -> str:
    """Returns what Python prints where the allocator is set by `given` alone."""
    environment = {k: v for k, v in os.environ.items() if k != "GLIBC_TUNABLES"}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, env=environment | given
    ).stdout


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="the settings are glibc's"
)
def test_the_allocator_is_set_once_and_never_against_the_user():
    code = (
        "import os, encoderjax.command as command\n"
        "command.restart_with_huge_pages()\n"
        "print(os.environ['GLIBC_TUNABLES'])\n"
        "with command.as_the_user_set_it():\n"
        "    print(os.environ.get('GLIBC_TUNABLES'))\n"
        "print(os.environ['GLIBC_TUNABLES'])\n"
    )
    own = "glibc.malloc.arena_max=2"
    for given, expected, of_others in (
        ({}, "glibc.malloc.hugetlb=1", "None"),
        ({"GLIBC_TUNABLES": own}, own, own),
    ):
        result = _run_without_settings(code, **given)
        before, others, after = result.splitlines()
        assert before.startswith(expected)
        assert others == of_others
        assert after == before


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="the settings are glibc's"
)
def test_threads_keep_the_memory_of_large_buffers():
    """XLA takes those of a step in a thread of its own, anew in every step."""
    code = (
        "import encoderjax.command as command\n"
        "command.restart_with_huge_pages()\n"
        "import resource, threading\n"
        "import numpy as np\n"
        "def faults():\n"
        "    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt\n"
        "    np.empty(1 << 28, np.uint8).fill(1)\n"
        "    after = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt\n"
        "    print(after - before)\n"
        "thread = threading.Thread(target=lambda: [faults() for _ in range(3)])\n"
        "thread.start(), thread.join()\n"
    )
    result = _run_without_settings(code)
    first, *later = map(int, result.split())
    assert first > 50  # 128 huge pages, or 65,536 small ones
    assert max(later) < 10


@pytest.mark.skipif(
    any(any(Path("/dev").glob(kind)) for kind in ("accel*", "vfio/[0-9]*")),
    reason="there are TPUs here",
)
@pytest.mark.parametrize("chosen", [None, "tpu"])
def test_tpus_are_not_looked_for_where_only_their_compiler_is(chosen):
    """Unless they are asked for, by whoever sets JAX_PLATFORMS."""
    code = (
        "import importlib.util, jax\n"
        "assert importlib.util.find_spec('libtpu')\n"
        "from encoderjax.command import run_command\n"
        "run_command(lambda: print(jax.config.jax_platforms, len(jax.devices())))\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "JAX_PLATFORMS"}
    if chosen:
        code = code.replace("len(jax.devices())", "'untouched'")
        environment["JAX_PLATFORMS"] = chosen
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert result.stdout.split()[0] == (chosen or "cpu")
    assert result.stderr == ""


_STACK = "--fibers_default_thread_stack_size"


@pytest.mark.parametrize(
    ("tpu", "given", "expected"),
    [
        ("null", "", f"{_STACK}=4194304"),
        ("null", "--other=1", f"--other=1 {_STACK}=4194304"),
        ("null", f"{_STACK}=1", f"{_STACK}=1"),
        ("no-such-device", "", ""),
    ],
)
def test_the_compiler_for_tpus_gets_the_stack_that_it_needs(tpu, given, expected):
    """In training, too, not only where it compiles for a pod that is not here."""
    pytest.importorskip("libtpu")
    code = (
        "import os, encoderjax.command as command\n"
        f"command._TPUS = ({tpu!r},)  # another file of /dev\n"
        "command.run_command(lambda: print(os.environ['LIBTPU_INIT_ARGS']))\n"
    )
    assert _run_without_settings(code, LIBTPU_INIT_ARGS=given).strip() == expected


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        ("train", ["--confg=x"], "--config"),
        ("train", ["--config=configs/none.py"], "configs/none.py does not exist"),
        (
            "train",
            ["--config=configs/bert_tiny.py", "--config.data.corpus=nowhere"],
            "encoderjax.prepare",
        ),
        ("preview", ["--config=configs/bert_tiny.py:big"], "variants: full, tiny"),
        ("evaluate", ["--model=nowhere"], "nowhere"),
        ("fill_mask", ["--model=nowhere", "a [MASK]"], "nowhere"),
        ("export", ["--workdir=nowhere", "--out=x"], "nowhere"),
        ("prepare", ["--source=nowhere.txt", "--out=x"], "nowhere.txt"),
        ("benchmark", ["--config=configs/bert_tiny.py", "--turns=0"], "--turns=0"),
        ("benchmark", ["--config=configs/bert_tiny.py", "--against=tf"], "give hf"),
        ("ablate", ["--config=configs/ablations/mask.py"], "ablations/masks.py'"),
        ("ablate", ["--config=configs/ablations/masks.py", "--seeds=0"], "seeds=0"),
        ("race", ["--config=configs/bert_tiny.py", "--minutes=0"], "--minutes=0"),
    ],
)
def test_bad_input_gets_one_line_and_a_failing_exit(
    command, arguments, message, tmp_path
):
    if command == "train":
        arguments = [*arguments, f"--workdir={tmp_path / 'run'}"]
    result = call(command, *arguments)
    assert result.returncode == 1
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("environment", "kept", "warned"),
    [
        ({"ENCODERJAX_CACHE": "cache"}, "cache/compiled", False),
        (
            {"ENCODERJAX_CACHE": "cache", "JAX_COMPILATION_CACHE_DIR": "own"},
            "own",
            False,
        ),
        ({"ENCODERJAX_CACHE": "cache", "JAX_COMPILATION_CACHE_DIR": ""}, None, False),
        ({"ENCODERJAX_CACHE": "file/cache"}, None, True),  # cannot be written
    ],
)
def test_compiled_programs_are_kept(environment, kept, warned, tmp_path):
    code = (
        "import jax\n"
        "from encoderjax.command import run_command\n"
        "run_command(lambda: jax.jit(lambda x: x + 1)(1))\n"
    )
    (tmp_path / "file").touch()
    inherited = {k: v for k, v in os.environ.items() if "COMPILATION_CACHE" not in k}
    always = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env=inherited | always | {"PYTHONPATH": os.getcwd()} | environment,
    )
    assert result.stderr.startswith("warning: compiled programs are not kept") == warned
    assert len(result.stderr.splitlines()) == warned
    folders = {path.parent for path in tmp_path.rglob("jit_*")}
    assert folders == ({tmp_path / kept} if kept else set())
