"""Writes the tables of docs/scaling.md, each behind its mark in the page.

python docs/scaling_tables.py

Figures of compiled steps are those of docs/compiled/*.json, each the output of

    python -m encoderjax.compile_check --config=configs/NAME.py --topology=POD --json

Speeds of families are those of docs/measured/family_speeds.json, which
docs/family_speeds.py writes. All others are by the formulas of encoderjax/estimate.py
and encoderjax/models/flops.py.
"""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

from encoderjax.compiling import Builder, Compiled
from encoderjax.config_loading import load_config
from encoderjax.estimate import abstract_builder, by_formula
from encoderjax.interop.weights import read_json
from encoderjax.models.flops import encoder_flops
from encoderjax.outline import outline_stages
from encoderjax.phases import Stage
from encoderjax.provenance import said
from encoderjax.suggestions import changed
from encoderjax.training.hardware import GPUS, published_link, published_peak

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/scaling.md"
SPEEDS = ROOT / "docs/measured/family_speeds.json"
UTILIZATION = 0.4
LENGTH = 512
# chip -> (name of its kind, bytes of memory that programs may use, chips)
CHIPS = {
    "256 v5e": ("TPU v5 lite", 15.75 * 2**30, 256),
    "64 v5p": ("TPU v5", 95.74 * 2**30, 64),
    "64 v6e": ("TPU v6 lite", 31.25 * 2**30, 64),
    "64 A100": (*GPUS["a100"], 64),
    "64 H100": (*GPUS["h100"], 64),
}
BASES = {
    "BERT": "bert_base",
    "RoBERTa": "roberta_base",
    "XLM-R": "xlm_roberta_base",
    "SpanBERT": "spanbert_base",
    "ALBERT": "albert_base",
    "DistilBERT": "distilbert_base",
    "ELECTRA": "electra_base",
    "XLNet": "xlnet_base",
    "DeBERTa": "deberta_base",
    "DeBERTa v3": "deberta_v3_base",
    "ModernBERT": "modernbert_base",
}


def recipes() -> list[str]:
    """Returns the recipes of published runs."""
    names = sorted(path.stem for path in (ROOT / "configs").glob("*.py"))
    ours = ("bert_tiny", "continue_pretraining", "cpu_half_hour", "denoising_base")
    return [name for name in names if name not in ours]


def stages_of(name: str, **changes) -> tuple[Stage, ...]:
    """Returns the phases of a recipe."""
    config = changed(load_config(str(ROOT / f"configs/{name}.py")), changes)
    teacher = "bert:base" if name == "distilbert_base" else None
    return outline_stages(config, teacher=teacher, report=lambda line: None)


def rows(header: list[str], lines: list[list[str]]) -> str:
    """Returns a table."""
    ruled = [header, ["---", *["---:"] * (len(header) - 1)], *lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in ruled)


def gib(size: float) -> str:
    """Returns bytes in GiB."""
    return f"{size / 2**30:.1f}"


def compiled() -> str:
    """Returns what was compiled, beside the formula."""
    lines = []
    for path in sorted((ROOT / "docs/compiled").glob("*.json")):
        found = json.loads(path.read_text())
        shown: set[tuple] = set()
        for phase in sorted(found["phases"], key=lambda phase: -phase["rows"]):
            key = (phase["length"], phase["microbatches"])
            if key in shown:  # fewer rows of the same
                continue
            shown.add(key)
            mesh = [f"{k} {v}" for k, v in found["mesh"].items() if v > 1]
            exchanged = sum(c["bytes"] for c in phase["collectives"])
            lines.append(
                [
                    f"{path.stem} {phase['name']}".strip(),
                    found["topology"],
                    " x ".join(mesh),
                    found["remat"],
                    f"{phase['rows']:,} x {phase['length']:,}",
                    str(phase["microbatches"]),
                    gib(phase["bytes"]),
                    gib(formula(path.stem, found, phase)),
                    gib(exchanged),
                    f"{1e3 * phase['exchange_seconds']:.0f}",
                    f"{1e3 * phase['seconds_per_step']:.0f}",
                    f"{found['hours']:,.0f}",
                    f"{phase['compile_seconds']:.0f}"
                    + " quick" * found.get("quick", False),
                ]
            )
    header = ["recipe and phase", "pod", "mesh", "remat", "rows", "parts", "GiB"]
    header += ["formula", "exchanged GiB", "in ms", "step ms at 40 %", "run hours"]
    return rows([*header, "compiled in s"], lines)


def formula(name: str, found: dict, phase: dict) -> float:
    """Returns what the formulas of today say of a phase that was compiled."""
    mesh = {f"mesh.{axis}": size for axis, size in found["mesh"].items()}
    stages = stages_of(name, **mesh)
    (stage,) = (s for s in stages if s.phase.name == phase["name"])
    builder = abstract_builder(stages, found["chips"])
    return by_formula(builder, stage, found["available_bytes"]).total


def by_chip() -> str:
    """Returns memory, time and exchange of every recipe on chips of several kinds."""
    lines = []
    for name in recipes():
        filled = {} if "xlnet" in name else {"data.fill_batch": True}
        whole = {"mesh.data": -1, "mesh.fsdp": 1, "mesh.model": 1}
        stages = stages_of(name, **whole, **filled)
        flops = sum(s.flops_per_step * (s.phase.last - s.phase.first) for s in stages)
        on_chips = [on_chip(stages, *chip) for chip in CHIPS.values()]
        lines.append([name, f"{flops:.2g}", *on_chips])
    return rows(["recipe", "FLOPs", *CHIPS], lines)


def on_chip(stages: tuple[Stage, ...], kind: str, memory: float, chips: int) -> str:
    """Returns the cheapest settings that fit, and what they take."""
    peak, link = published_peak(kind), published_link(kind)
    assert peak is not None
    assert link is not None
    builder = abstract_builder(stages, chips)
    for parts in (1, 2, 4, 8, 16, 32, 64, 128):
        for remat in ("none", "dots", "blocks"):
            tried = [with_settings(stage, remat, parts) for stage in stages]
            found = [by_formula(builder, stage, int(memory)) for stage in tried]
            most = max(step.total for step in found)
            if most < 0.9 * memory:
                arithmetic, exchange = times(tried, found, builder, peak * chips, link)
                return (
                    f"{remat}/{parts}, {gib(most)} GiB, {arithmetic / 3600:,.0f} h, "
                    f"{exchange / arithmetic:.0%}"
                )
    return "split the state"


def times(
    stages: list[Stage],
    found: list[Compiled],
    builder: Builder,
    peak: float,
    link: float,
) -> tuple[float, float]:
    """Returns seconds of arithmetic and of exchange of a whole run."""
    arithmetic = exchange = 0.0
    for stage, step in zip(stages, found, strict=True):
        steps = stage.phase.last - stage.phase.first
        filled = builder.rows(stage) / stage.experiment.batch_size
        arithmetic += steps * filled * stage.flops_per_step / (UTILIZATION * peak)
        exchange += steps * 2 * sum(c.bytes for c in step.collectives) / link
    return arithmetic, exchange


def with_settings(stage: Stage, remat: str, parts: int) -> Stage:
    """Returns a phase that is computed in another way."""
    changes = {"compute.remat": remat, "optimizer.microbatches": parts}
    config = changed(stage.experiment.config, changes)
    experiment = dataclasses.replace(stage.experiment, config=config)
    return dataclasses.replace(stage, experiment=experiment)


def families() -> str:
    """Returns the families in their base sizes, beside BERT."""
    found = {}
    for family, name in BASES.items():
        stages = stages_of(name)
        stage = min(stages, key=lambda s: abs(s.phase.config.data.length - LENGTH))
        builder = abstract_builder(stages, 1)
        encoder = stage.experiment.encoder
        count = builder.state_bytes()["parameters"] // 4
        reading = encoder_flops(encoder, LENGTH) / LENGTH
        data = stage.experiment.config.data
        training = stage.flops_per_step / stage.experiment.batch_size / data.length
        found[family] = count, reading, training, data.length
    base, speeds = found["BERT"], measured().get("families", {})
    speed = lambda family, what: (
        f"{speeds[family][what]:.2f}" if family in speeds else ""
    )
    lines = [
        [
            family,
            f"{count / 1e6:,.0f} M",
            f"{reading / 1e6:,.0f} M",
            f"{base[1] / reading:.2f}",
            speed(family, "read_speed"),
            f"{training / 1e6:,.0f} M",
            str(length),
            f"{base[2] / training:.2f}",
            speed(family, "train_speed"),
        ]
        for family, (count, reading, training, length) in found.items()
    ]
    header = ["base size", "trained parameters", f"FLOPs a token read (L = {LENGTH})"]
    header += ["reading speed by FLOPs", "measured", "FLOPs a token trained"]
    return rows([*header, "at length", "training speed by FLOPs", "measured"], lines)


def measured() -> dict[str, Any]:
    """Returns what was measured of the families; nothing where it was not."""
    return read_json(SPEEDS) if SPEEDS.is_file() else {}


def measured_with() -> str:
    """Returns how the families were measured, and on what."""
    about = measured()
    if not about:
        return ""
    batch = f"{about['rows']} rows of {about['length']}"
    turns = "{read} of reading, {train} of training".format(**about["turns"])
    line = [about["machine"], batch, turns, said(about["versions"])]
    return rows(["measured on", "a step", "turns", "with"], [line])


def put(page: str, mark: str, table: str) -> str:
    """Returns the page with the table behind its mark, in place of the one there."""
    pattern = rf"(<!-- {mark} -->\n)(?:\|.*\n)*"
    text = f"{table}\n" if table else ""
    page, count = re.subn(pattern, lambda found: f"{found[1]}{text}", page)
    assert count == 1, mark
    return page


if __name__ == "__main__":
    for mark, table in (
        ("compiled", compiled),
        ("by chip", by_chip),
        ("families", families),
        ("measured with", measured_with),
    ):
        PAGE.write_text(put(PAGE.read_text(), mark, table()))
