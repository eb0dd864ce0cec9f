"""Every command: help with examples, and one line for what the user can mend."""

import os
import platform
import subprocess
import sys

import pytest

COMMANDS = ("train", "prepare", "preview", "evaluate", "fill_mask", "export")
COMMANDS += ("benchmark",)


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


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="the settings are glibc's"
)
def test_the_allocator_is_set_once_and_never_against_the_user():
    code = (
        "import os, encoderjax.command as command\n"
        "command.restart_with_huge_pages()\n"
        "print(os.environ['GLIBC_TUNABLES'])\n"
    )
    own = "glibc.malloc.arena_max=2"
    for given, expected in (
        ({}, "glibc.malloc.hugetlb=1"),
        ({"GLIBC_TUNABLES": own}, own),
    ):
        environment = {k: v for k, v in os.environ.items() if k != "GLIBC_TUNABLES"}
        result = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env=environment | given,
        )
        assert result.stdout.startswith(expected)


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
        ("benchmark", ["--config=configs/bert_tiny.py"], "--data"),
        ("benchmark", ["--config=configs/bert_tiny.py", "--against=tf"], "hf"),
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
