"""Runs of seconds, on the small corpus."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from encoderjax.config import RunConfig
from encoderjax.config_loading import load_config
from encoderjax.fields import Override

RECIPE = "configs/bert_tiny.py"


def overrides(corpus_folder, **changes) -> dict[str, str]:
    """Returns the overrides of a small run; `changes` has `__` for the dots."""
    settings = {
        "steps": 40,
        "log_every": 1,
        "model.num_layers": 2,
        "model.width": 32,
        "model.num_heads": 2,
        "model.mlp_width": 64,
        "model.dropout_rate": 0.1,
        "model.attention_dropout_rate": 0.1,
        "data.corpus": corpus_folder,
        "data.length": 32,
        "data.batch_size": 16,
        "data.dupe_factor": 2,
        "objectives.mlm.max_predictions": 5,
        "optimizer.learning_rate": 3e-3,
        "optimizer.warmup_steps": 5,
        "checkpoint.every": 10,
        "eval.every": 20,
        "eval.batches": 0,
    }
    settings |= {name.replace("__", "."): value for name, value in changes.items()}
    return {name: str(value) for name, value in settings.items()}


def small_config(corpus_folder, **changes) -> RunConfig:
    """Returns the small run as a config."""
    settings = overrides(corpus_folder, **changes)
    return load_config(RECIPE, {k: Override(v) for k, v in settings.items()})


def training_flags(workdir: Path, corpus_folder, **changes) -> list[str]:
    """Returns the flags of the command for a small run."""
    flags = overrides(corpus_folder, **changes).items()
    settings = (f"--config.{name}={value}" for name, value in flags)
    return [f"--config={RECIPE}", f"--workdir={workdir}", *settings]


def start_training(workdir: Path, corpus_folder, *, devices=1, limit=None, **changes):
    """Starts the command in a process of its own."""
    flags = training_flags(workdir, corpus_folder, **changes)
    command = [*(limit or []), sys.executable, "-m", "encoderjax.train", *flags]
    return start(command, JAX_NUM_CPU_DEVICES=devices)


def start(command: list[str], **environment) -> subprocess.Popen:
    """Starts a command whose output is read."""
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {name: str(value) for name, value in environment.items()},
    )


def finish(process: subprocess.Popen, code: int = 0) -> tuple[str, str]:
    """Waits for the end and its exit code; returns what was printed."""
    output, errors = process.communicate(timeout=300)
    assert process.returncode == code, errors
    return output, errors


def wait_for_step(workdir: Path, step: int, process: subprocess.Popen) -> None:
    """Waits until the metrics of a step are written."""
    deadline = time.monotonic() + 120
    while max(metrics(workdir), default=0) < step:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def metrics(workdir: Path, split: str = "train") -> dict[int, dict]:
    """Returns the lines of a split by step."""
    return {line["step"]: line for line in all_lines(workdir) if line["split"] == split}


def all_lines(workdir: Path) -> list[dict]:
    """Returns metrics.jsonl, without a line that is just being written."""
    path = workdir / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


# What does not depend on the clock.
EXACT = ("loss", "mlm_loss", "nsp_loss", "mlm_accuracy", "grad_norm", "learning_rate")


def curve(workdir: Path) -> list[tuple]:
    """Returns every exact metric of every step."""
    return [
        (step, *(line[name] for name in EXACT))
        for step, line in sorted(metrics(workdir).items())
    ]
