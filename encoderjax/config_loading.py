"""A recipe and its overrides -> the values of a run, and the run.

Recipes in `configs/` return a locked ConfigDict; the overrides of the command line
replace some of its values. Nothing else in the package sees a ConfigDict.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from encoderjax.command import Parser, did_you_mean
from encoderjax.config import RunConfig
from encoderjax.errors import UserError
from encoderjax.fields import Override
from encoderjax.recipes import load_recipe


def add_config_flag(parser: Parser) -> None:
    """Adds --config, which takes overrides beside it."""
    parser.add_argument(
        "--config",
        required=True,
        metavar="FILE[:VARIANT]",
        help="a recipe; :tiny is the same in a minute, :notes the notes' reading of it",
    )
    parser.epilog = (
        f"{parser.epilog}\n\nany field of the recipe can be overridden: "
        "--config.data.batch_size=16"
    )


def parse_with_config(
    parser: Parser, arguments: Sequence[str] | None
) -> tuple[Any, RunConfig]:
    """Parses flags, --config and its overrides."""
    flags, values = parse_with_recipe(parser, arguments)
    return flags, RunConfig.from_dict(values)


def parse_with_recipe(
    parser: Parser, arguments: Sequence[str] | None
) -> tuple[Any, dict[str, Any]]:
    """Parses flags; returns those, and the values of --config with its overrides."""
    flags, rest = parser.parse_known_args(arguments)
    return flags, recipe_values(flags.config, overrides_of(parser, rest))


def overrides_of(parser: Parser, arguments: Sequence[str]) -> dict[str, Override]:
    """Returns the overrides of what the parser did not know; refuses anything else."""
    overrides: dict[str, Override] = {}
    rest = list(arguments)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if not name.startswith("--config."):
            near = parser.suggestion(name)
            raise UserError(
                f"unknown argument {name!r}{near} (see {parser.prog} --help)"
            )
        if not equals:
            if not rest or rest[0].startswith("--"):
                raise UserError(f"{name} needs a value: {name}=VALUE")
            value = rest.pop(0)
        overrides[name.removeprefix("--config.")] = Override(value)
    return overrides


def load_config(path: str, overrides: Mapping[str, Any] | None = None) -> RunConfig:
    """Builds the run of a recipe `FILE` or `FILE:VARIANT`, with overrides `a.b`: c."""
    return RunConfig.from_dict(recipe_values(path, overrides))


def recipe_values(
    path: str, overrides: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Returns the nested values of a recipe, with overrides."""
    values = _recipe(path)
    for name, value in (overrides or {}).items():
        *groups, field = name.split(".")
        node = values
        for group in groups:
            if not isinstance(node.get(group), dict):
                node[group] = {}
            node = node[group]
        node[field] = value
    return values


def config_name(path: str) -> str:
    """Returns the short name of a recipe: `bert_base` or `bert_base-tiny`."""
    file, _, variant = path.partition(":")
    return Path(file).stem + (f"-{variant}" if variant else "")


def _recipe(path: str) -> dict[str, Any]:
    """Runs a config file's `get_config`; returns its values as nested dicts."""
    file, _, variant = path.partition(":")
    if not Path(file).is_file():
        names = sorted(str(other) for other in Path(file).parent.glob("*.py"))
        raise UserError(f"--config={file} does not exist{did_you_mean(file, names)}")
    module = load_recipe(file)
    if not hasattr(module, "get_config"):
        raise UserError(f"--config={file} has no get_config(variant)")
    variants = getattr(module, "VARIANTS", ("full",))
    variant = variant or variants[0]
    if variant not in variants:
        raise UserError(
            f"--config={path}: {variant!r} is not a variant of this recipe"
            f"{did_you_mean(variant, variants)} (variants: {', '.join(variants)})"
        )
    return module.get_config(variant).to_dict()
