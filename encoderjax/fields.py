"""Plain values -> dataclasses, every name and type checked.

Recipes and the command line give nested dicts; what a field may hold is said by its
type, and a value that does not fit is refused in one line.
"""

import ast
import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from encoderjax.command import did_you_mean
from encoderjax.errors import UserError


class Override(str):
    """A value as it was typed on the command line; the field says what it means."""


def build(cls: type, values: Mapping[str, Any], where: str) -> Any:
    """Returns cls(**values), every name and type checked; `where` begins messages."""
    given = converted(cls, values, where)
    for field in dataclasses.fields(cls):
        if is_required(field) and field.name not in given:
            raise UserError(f"{where}{field.name} is missing")
    return cls(**given)


def converted(cls: type, values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Returns `values` in the types of the fields of `cls`, every name checked."""
    hints = typing.get_type_hints(cls)
    fields = [field.name for field in dataclasses.fields(cls)]
    for name in values:
        if name not in fields:
            raise UserError(
                f"{where}{name} is not a field of {cls.__name__}"
                f"{did_you_mean(name, fields)} (fields: {', '.join(fields)})"
            )
    return {
        name: _convert(hints[name], value, where + name)
        for name, value in values.items()
    }


def is_required(field: dataclasses.Field) -> bool:
    """Says whether a field has no default."""
    return field.default is field.default_factory is dataclasses.MISSING


def _convert(hint: Any, value: Any, where: str) -> Any:
    """Returns `value` as the type `hint`, or refuses it."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None or (isinstance(value, Override) and value == "None"):
            return None
        kinds = [kind for kind in arguments if kind is not type(None)]
        if str in kinds and isinstance(value, str):
            kinds = [str]  # beside another kind that is not written as text
        return _convert(kinds[-1], value, where)
    if origin is Literal:
        if value not in arguments:
            near = did_you_mean(str(value), arguments)
            raise UserError(f"{where}={str(value)!r} must be one of {arguments}{near}")
        return str(value)
    if dataclasses.is_dataclass(hint):
        if isinstance(value, typing.cast(type, hint)):
            return value
        if not isinstance(value, Mapping):
            raise UserError(f"{where}={value!r} must be a group of fields")
        return build(typing.cast(type, hint), value, f"{where}.")
    if hint is str:
        if not isinstance(value, str):
            raise UserError(f"{where}={value!r} must be text")
        return str(value)
    if isinstance(value, Override):
        value = as_typed(value)
    if origin is tuple:
        if not isinstance(value, Sequence) or isinstance(value, str):
            value = (value,)
        element = arguments[0]
        return tuple(
            item
            if isinstance(item, typing.get_origin(element) or element)
            else _convert(element, item, where)
            for item in value
        )
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    expected = origin or hint
    if not isinstance(value, expected) or (expected is int and isinstance(value, bool)):
        raise UserError(f"{where}={value!r} must be {_type_name(expected)}")
    return value


def as_typed(text: str) -> Any:
    """Returns the value that a text of the command line stands for."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return {"true": True, "false": False}.get(text, str(text))


def _type_name(kind: type) -> str:
    names = {int: "a whole number", float: "a number", bool: "True or False"}
    return names.get(kind, f"a {kind.__name__}")
