"""What a run writes and shows: metrics.jsonl, TensorBoard events, progress."""

import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any, TextIO

import rich.console
import rich.progress

from encoderjax.training.hardware import peak_flops

FILE = "metrics.jsonl"


class MetricsWriter:
    """Appends metrics to the workdir; a resumed run cuts off what comes again."""

    def __init__(self, workdir: Path, step: int):
        import tensorboardX  # here, because it imports torch where that is installed

        self.path = workdir / FILE
        if self.path.exists():
            # A run that begins anew takes over nothing, not even step 0.
            cut_after(self.path, step or -1)
        self.file: TextIO = open(self.path, "a", encoding="utf-8")  # noqa: SIM115
        self.events = tensorboardX.SummaryWriter(str(workdir), purge_step=step + 1)

    def write(self, step: int, split: str, metrics: dict[str, Any]) -> None:
        """Writes one line and its events."""
        line = {"step": step, "split": split, **metrics}
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()
        for name, value in metrics.items():
            if value is not None:
                self.events.add_scalar(f"{split}/{name}", value, step)

    def written(self, step: int) -> dict[str, dict[str, Any]]:
        """Returns the metrics that were written for a step, by their split."""
        lines = read_metrics(self.path.parent)
        found = [line for line in lines if line.pop("step") == step]
        return {line.pop("split"): line for line in found}

    def close(self) -> None:
        """Writes out what is buffered."""
        self.file.close()
        self.events.close()


def read_metrics(workdir: Path, split: str | None = None) -> list[dict[str, Any]]:
    """Returns the lines of a workdir's metrics, all or those of a split.

    A last line that a kill left unfinished is no line.
    """
    path = workdir / FILE
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    whole, _, _ = text.rpartition("\n")
    lines = [json.loads(line) for line in whole.splitlines()]
    return [line for line in lines if split in (None, line["split"])]


def cut_after(path: Path, step: int) -> None:
    """Drops the lines of later steps, and a last line that a kill left unfinished."""
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
        except json.JSONDecodeError:
            continue
    partial = path.with_suffix(".partial")
    partial.write_text("".join(kept), encoding="utf-8")
    os.replace(partial, path)


class Clock:
    """Speed over the steps since the last line, compiling and evaluating left out."""

    def __init__(self, flops_per_step: float):
        self.flops_per_step = flops_per_step
        self.peak = peak_flops()
        self.seconds_per_step = 0.0
        self.tokens_per_second: float | None = None
        self.warm = False  # an interval with a compilation is not measured
        self.lengths: set[int] = set()
        self.start = time.perf_counter()
        self.begin()

    def begin(self) -> None:
        """Begins an interval."""
        self.mark = time.perf_counter()
        self.steps, self.tokens = 0, 0.0

    def add(self, tokens: float, length: int) -> None:
        """Counts a step, and the real tokens of its global batch.

        The first step with rows of a length is compiled.
        """
        if length not in self.lengths:
            self.lengths.add(length)
            self.warm = False
        self.steps += 1
        self.tokens += tokens

    def measure(self) -> None:
        """Ends the interval; the devices have finished what was asked of them."""
        if self.warm:
            seconds = time.perf_counter() - self.mark
            self.seconds_per_step = seconds / self.steps
            self.tokens_per_second = self.tokens / seconds
        self.warm = True

    def speeds(self) -> dict[str, float | None]:
        """Returns tokens/s, the share of the peak, and the seconds since the start."""
        mfu = None
        if self.seconds_per_step and self.peak is not None:
            mfu = self.flops_per_step / self.seconds_per_step / self.peak
        return {
            "tokens_per_second": self.tokens_per_second,
            "mfu": mfu,
            "seconds": time.perf_counter() - self.start,
        }


class Progress:
    """A bar on a terminal, plain lines in a pipe."""

    _seconds_between_lines = 10.0

    def __init__(self, steps: int, first_step: int, shown: bool):
        self.steps = steps
        self.shown = shown
        self.console = rich.console.Console(highlight=False, soft_wrap=True)
        self.bar: rich.progress.Progress | None = None
        self.last_line = -math.inf
        if shown and self.console.is_terminal:
            self.bar = rich.progress.Progress(
                rich.progress.BarColumn(bar_width=24),
                rich.progress.MofNCompleteColumn(),
                rich.progress.TextColumn("{task.description}"),
                console=self.console,
                refresh_per_second=4,
            )
            self.task = self.bar.add_task(
                "compiling", total=steps, completed=first_step
            )
            self.bar.start()

    def update(self, step: int, metrics: dict[str, Any], seconds_left: float) -> None:
        """Shows the state at `step`."""
        if not self.shown:
            return
        text = summary(metrics)
        if seconds_left > 0:
            text += f"  {duration(seconds_left)} left"
        if self.bar is not None:
            self.bar.update(self.task, completed=step, description=text)
        elif (
            time.monotonic() - self.last_line > self._seconds_between_lines
            or step == self.steps
        ):
            self.last_line = time.monotonic()
            self.say(f"step {step:,}/{self.steps:,}  {text}")

    def say(self, text: str) -> None:
        """Prints a line, above the bar where there is one."""
        if self.shown:
            self.console.print(text, markup=False)
            sys.stdout.flush()

    def close(self) -> None:
        """Ends the bar, and leaves it on the screen."""
        if self.bar is not None:
            self.bar.stop()


def summary(metrics: dict[str, Any]) -> str:
    """Returns the main metrics in a line."""
    parts = [f"loss {metrics['loss']:.3f}"]
    for name, value in metrics.items():
        objective, _, kind = name.partition("_")
        if kind == "accuracy":
            parts.append(f"{objective} accuracy {value:.3f}")
    if metrics.get("tokens_per_second"):
        parts.append(f"{metrics['tokens_per_second']:,.0f} tokens/s")
    if metrics.get("mfu"):
        parts.append(f"{metrics['mfu']:.0%} of peak")
    return "  ".join(parts)


def duration(seconds: float) -> str:
    """Returns 4:05, 1:04:05 or 3d 4h."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24}d {hours % 24}h"
    if hours:
        return f"{hours}:{minute:02d}:{second:02d}"
    return f"{minute}:{second:02d}"
