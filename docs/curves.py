"""Makes the curves that runs of recipes are held against.

python docs/curves.py configs/roberta_base.py:tiny configs/electra_small.py:tiny

Trains each recipe with several seeds, in runs/curves/NAME/SEED, and writes
encoderjax/curves/NAME.json. Stopped, the same command goes on.
"""

if __name__ == "__main__":  # before anything heavy is imported
    from encoderjax.command import restart_with_huge_pages

    restart_with_huge_pages()

import argparse
import sys
from pathlib import Path

from encoderjax import train
from encoderjax.command import run_command
from encoderjax.config_loading import config_name, load_config
from encoderjax.expected import FOLDER, curve_from
from encoderjax.interop.weights import write_json


def main() -> None:
    """Parses the arguments and makes the curves."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipes", nargs="+", metavar="FILE:VARIANT")
    parser.add_argument("--seeds", type=int, default=3, help="runs (default: 3)")
    parser.add_argument("--runs", type=Path, default=Path("runs/curves"))
    parser.add_argument("--out", type=Path, default=FOLDER)
    flags = parser.parse_args()
    if flags.seeds < 1:
        parser.error(f"--seeds={flags.seeds} must be at least 1")
    for recipe in flags.recipes:
        name = config_name(recipe)
        workdirs = [flags.runs / name / str(seed) for seed in range(flags.seeds)]
        for seed, workdir in enumerate(workdirs):
            if train.run(load_config(recipe, {"seed": seed}), workdir) is None:
                sys.exit(1)  # stopped
        curve = curve_from(recipe, load_config(recipe), workdirs)
        flags.out.mkdir(exist_ok=True)
        write_json(flags.out / f"{name}.json", curve.to_json())
        print(f"curve of {flags.seeds} runs in {flags.out / name}.json")


if __name__ == "__main__":
    run_command(main)
