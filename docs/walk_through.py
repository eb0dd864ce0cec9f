"""Runs the commands that docs/finetuning.md shows on real data, and puts in the output.

python docs/walk_through.py --encoder=runs/race/model --data=tasks

What they print is kept in docs/measured/walk_through.json; without --encoder only the
page is filled from there.
"""

import argparse
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from encoderjax.command import run_command
from encoderjax.errors import UserError
from encoderjax.interop.weights import read_json, write_json
from encoderjax.provenance import machine, made_with, said
from encoderjax.recipes import load_recipe

DOCS = Path(__file__).parent
PAGE, RESULTS = DOCS / "finetuning.md", DOCS / "measured" / "walk_through.json"
_POLARITY, _VECTORS = Path("runs/polarity"), Path("runs/vectors")
PICTURES = ("confusion_test.png", "curves.png")  # of the first
_LAST = 24  # lines of a longer output that are shown

Commands = dict[str, str]  # by what they show


def commands(encoder: str, data: str) -> dict[str, Commands]:
    """Returns what is run for each part of the page."""
    return {"walk": _walk(encoder, data), "vectors": _vectors(encoder, data)}


def _walk(encoder: str, data: str) -> Commands:
    return {
        "Training": (
            "python -m encoderjax.finetune --config=configs/finetune/classify.py "
            f"--config.init_from={encoder} --config.optimizer.learning_rate=1e-3 "
            "--config.model.dropout_rate=0.2 "
            f"--config.data.train={data}/sentence_polarity/sentence_polarity.zip "
            "--config.data.test_share=0.1 --config.data.length=48 "
            f"--workdir={_POLARITY}"
        ),
        "New text": (
            f"python -m encoderjax.predict --model={_POLARITY} "
            '"A warm, funny and moving story." "Two hours of tired jokes."'
        ),
        "Handing it on, in half of the bits": (
            f"python -m encoderjax.export --workdir={_POLARITY} --out=polarity_hf "
            "--dtype=bfloat16"
        ),
        "In PyTorch": (
            'python -c "from transformers import pipeline; print(pipeline('
            "'text-classification', 'polarity_hf')('A warm and funny story.'))\""
        ),
    }


def _vectors(encoder: str, data: str) -> Commands:
    embed, sts = "python -m encoderjax.embed", f"{data}/stsb/stsb-en"
    texts = f"--input={sts}-train.csv --column=0"
    columns = "".join(
        f" --config.data.columns.{role}={number}"
        for number, role in enumerate(("text", "pair", "score"))
    )
    return {
        "The encoder as it was pretrained, on STS-B's test pairs": (
            f"{embed} --model={encoder} --sts={sts}-test.csv --columns=0,1,2"
        ),
        "Trained for the cosine on STS-B's training pairs": (
            "python -m encoderjax.finetune --config=configs/finetune/embed.py:cosine "
            f"--config.init_from={encoder} --config.optimizer.learning_rate=5e-4 "
            f"--config.data.train={sts}-train.csv --config.data.validation={sts}-dev"
            f".csv --config.data.length=48{columns} --config.epochs=2 "
            f"--workdir={_VECTORS}"
        ),
        "The trained one, on the same test pairs": (
            f"{embed} --model={_VECTORS} --sts={sts}-test.csv --columns=0,1,2"
        ),
        "How the pretrained vectors lie, before and after whitening": (
            f"{embed} --model={encoder} {texts} --whiten=fit --anisotropy"
        ),
        "And those that were trained": (
            f"{embed} --model={_VECTORS} {texts} --whiten=fit --anisotropy"
        ),
        "The nearest texts": (
            f"{embed} --model={_VECTORS} {texts} "
            '--nearest="Someone is cooking a meal." --top=4'
        ),
    }


def printed(command: str) -> str:
    """Returns what a command prints; one that fails ends all."""
    words = [sys.executable, *shlex.split(command)[1:]]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"{command} ended with {done.returncode}: {done.stderr}")
    return done.stdout


def shown(commands: Mapping[str, Sequence[str]]) -> str:
    """Returns a part of the page."""
    parts = []
    for title, (command, output) in commands.items():
        lines = output.rstrip().splitlines()
        more = ["..."] * (len(lines) > _LAST)
        text = "\n".join((f"$ {command}", *more, *lines[-_LAST:]))
        parts.append(f"{title}:\n\n```\n{text}\n```")
    return "\n\n".join(parts)


def page_parts(results: Mapping[str, Any]) -> dict[str, str]:
    """Returns all parts of the page."""
    parts = {name: shown(found) for name, found in results["parts"].items()}
    pictures = (f"![{Path(x).stem}](pictures/polarity_{x})" for x in PICTURES)
    parts["walk"] += "\n\n" + "\n".join(pictures)
    parts["vectors"] += f"\n\n{results['machine']}; {said(results['versions'])}."
    return parts


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the commands, and fills the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--encoder", help="the pretrained folder")
    parser.add_argument("--data", default="tasks")
    flags = parser.parse_args(arguments)
    if flags.encoder:
        for workdir in (_POLARITY, _VECTORS):
            if workdir.exists():  # of another encoder perhaps, and it would go on
                raise UserError(f"{workdir} is there already; delete it")
        found = {
            part: {title: (line, printed(line)) for title, line in of_part.items()}
            for part, of_part in commands(flags.encoder, flags.data).items()
        }
        about = {"machine": machine(), "versions": made_with()}
        write_json(RESULTS, {**about, "parts": found})
        for name in PICTURES:
            shutil.copyfile(_POLARITY / name, DOCS / "pictures" / f"polarity_{name}")
    filled = load_recipe(DOCS / "reproducing.py").filled
    page, results = PAGE.read_text(encoding="utf-8"), read_json(RESULTS)
    PAGE.write_text(filled(page, page_parts(results)), encoding="utf-8")


if __name__ == "__main__":
    run_command(main)
