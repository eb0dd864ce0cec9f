"""The direction of imports, and what stays out of the package."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path("encoderjax")
# Left never imports right. `data` and `models` stand side by side.
LAYERS = (
    "errors",
    "caching",
    "command",
    "version",
    "fields",
    "recipes",
    "data",
    "models",
)
LAYERS += ("objectives", "training", "interop", "tasks", "config", "config_loading")
LAYERS += ("fitting", "origin", "opened_lists", "languages", "experiment", "identity")
LAYERS += ("measured_splits", "phases")


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def rank(module):
    part = module.split(".")[1] if "." in module else ""
    return LAYERS.index(part) if part in LAYERS else len(LAYERS)  # the verbs


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=str)
def test_imports_point_downwards(path):
    module = ".".join(path.with_suffix("").parts)
    for imported in imports(path):
        if imported.startswith("encoderjax.") and module != "encoderjax.__init__":
            assert rank(imported) <= rank(module), (
                f"{module} must not import {imported}"
            )


def test_data_and_models_do_not_meet_and_data_runs_without_jax():
    for path in (PACKAGE / "data").rglob("*.py"):
        for imported in imports(path):
            assert imported.split(".")[0] not in ("jax", "flax", "optax", "orbax")
            assert not imported.startswith("encoderjax.models")
    for path in (PACKAGE / "models").rglob("*.py"):
        assert not any(name.startswith("encoderjax.data") for name in imports(path))
    for name in ("masking.py", "replacement.py"):
        found = imports(PACKAGE / "objectives" / name)
        assert not any(imported.split(".")[0] == "jax" for imported in found)


def test_linen_stays_behind_its_fence():
    for path in FILES:
        if "models" not in path.parts:
            assert "flax.linen" not in set(imports(path)), path


def test_no_decision_is_made_by_the_name_of_a_family():
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare):
                assert "family ==" not in ast.unparse(node), path


def test_the_commands_need_neither_torch_nor_tensorflow():
    code = (
        "import sys\n"
        "import encoderjax.train, encoderjax.export, encoderjax.prepare\n"
        "import encoderjax.preview, encoderjax.evaluate, encoderjax.fill_mask\n"
        "import encoderjax.benchmark, encoderjax.compile_check, encoderjax.embed\n"
        "import encoderjax.finetune, encoderjax.predict\n"
        "import encoderjax.ablate, encoderjax.race\n"
        "heavy = {'torch', 'transformers', 'datasets', 'tensorflow'}\n"
        "found = heavy & set(sys.modules)\n"
        "assert not found, found\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
