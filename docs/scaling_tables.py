"""Prints the tables of docs/scaling.md.

python docs/scaling_tables.py

Figures of compiled steps are those of docs/compiled/*.json, each the output of

    python -m encoderjax.compile_check --config=configs/NAME.py --topology=POD --json

All others are by the formulas of encoderjax/estimate.py and encoderjax/models/flops.py.
"""

import json
from pathlib import Path

from encoderjax.config import load_config
from encoderjax.estimate import abstract_builder, by_formula
from encoderjax.models.flops import encoder_flops
from encoderjax.outline import outline_stages
from encoderjax.phases import Stage
from encoderjax.suggestions import changed
from encoderjax.training.hardware import GPUS, published_peak

ROOT = Path(__file__).resolve().parent.parent
UTILIZATION = 0.4
LENGTH = 512
# chip -> (name of its kind, bytes of memory that programs may use, chips)
CHIPS = {
    "v5e x 256": ("TPU v5 lite", 15.75 * 2**30, 256),
    "v5p x 64": ("TPU v5", 95 * 2**30, 64),
    "v6e x 64": ("TPU v6 lite", 31.25 * 2**30, 64),
    "A100 x 64": (*GPUS["a100"], 64),
    "H100 x 64": (*GPUS["h100"], 64),
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
    return [n for n in names if n not in ("bert_tiny", "continue_pretraining")]


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
            mesh = " x ".join(f"{k} {v}" for k, v in found["mesh"].items() if v > 1)
            exchanged = sum(c["bytes"] for c in phase["collectives"])
            lines.append(
                [
                    f"{path.stem} {phase['name']}".strip(),
                    found["topology"],
                    mesh,
                    found["remat"],
                    f"{phase['rows']:,} x {phase['length']:,}",
                    str(phase["microbatches"]),
                    gib(phase["bytes"]),
                    gib(phase["formula_bytes"]),
                    gib(exchanged),
                    f"{1e3 * phase['exchange_seconds']:.0f}",
                    f"{1e3 * phase['seconds_per_step']:.0f}",
                    f"{found['hours']:,.0f}",
                ]
            )
    header = ["recipe and phase", "pod", "mesh", "remat", "rows", "parts", "GiB"]
    header += ["formula", "exchanged GiB", "in ms", "step ms at 40 %", "run hours"]
    return rows(header, lines)


def by_chip() -> str:
    """Returns memory and time of every recipe on chips of several kinds."""
    lines = []
    for name in recipes():
        stages = stages_of(name)
        flops = sum(s.flops_per_step * (s.phase.last - s.phase.first) for s in stages)
        line = [name, f"{flops:.2g}"]
        for kind, memory, chips in CHIPS.values():
            peak = published_peak(kind)
            assert peak is not None
            hours = flops / (UTILIZATION * peak * chips) / 3600
            line.append(f"{smallest(name, memory, chips)}; {hours:,.0f} h")
        lines.append(line)
    return rows(["recipe", "FLOPs", *CHIPS], lines)


def smallest(name: str, memory: float, chips: int) -> str:
    """Returns the remat and the microbatches that fit by formula, with their GiB."""
    for parts in (1, 2, 4, 8, 16, 32, 64, 128):
        for remat in ("none", "dots", "blocks"):
            changes = {"compute.remat": remat, "optimizer.microbatches": parts}
            changes |= {"mesh.data": -1, "mesh.fsdp": 1, "mesh.model": 1}
            changes |= {} if "xlnet" in name else {"data.fill_batch": True}
            stages = stages_of(name, **changes)
            builder = abstract_builder(stages, chips)
            totals = [by_formula(builder, s, int(memory)).total for s in stages]
            if max(totals) < 0.9 * memory:
                return f"{remat}, {parts}: {gib(max(totals))}"
    return "split the state"


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
    base = found["BERT"]
    lines = [
        [
            family,
            f"{count / 1e6:,.0f} M",
            f"{reading / 1e6:,.0f} M",
            f"{base[1] / reading:.2f}",
            f"{training / 1e6:,.0f} M",
            str(length),
            f"{base[2] / training:.2f}",
            "",
        ]
        for family, (count, reading, training, length) in found.items()
    ]
    header = ["base size", "trained parameters", f"FLOPs a token read (L = {LENGTH})"]
    header += ["reading speed", "FLOPs a token trained", "at length", "training speed"]
    return rows([*header, "measured (CPU)"], lines)


if __name__ == "__main__":
    for title, table in (
        ("compiled", compiled),
        ("by chip", by_chip),
        ("families", families),
    ):
        print(f"<!-- {title} -->\n{table()}\n", flush=True)
