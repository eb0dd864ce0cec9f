"""How a family is called in Hugging Face's folders: data, read by `interop`."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from encoderjax.errors import UserError
from encoderjax.models.config import EncoderConfig

Row = tuple[str, str, str]
PAD = {"pad_token_id": "pad_id"}
ENDS = {"bos_token_id": "cls_id", "eos_token_id": "sep_id"}


def told(config_json: Mapping, name: str, default: Any) -> Any:
    """Returns a field of a config.json, of the kind of its default; null means that."""
    value = config_json.get(name)
    if value is None:
        return default
    kinds = (int, float) if isinstance(default, float) else (type(default),)
    is_bool = isinstance(value, bool) and bool not in kinds
    if not isinstance(value, kinds) or is_bool:
        raise UserError(f"{name}={value!r} must be of the kind of {default!r}")
    return type(default)(value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Names:
    """The names of a family's config fields and tensors.

    Attributes:
      model_type: of config.json.
      prefix: what the model without heads leaves away from its tensors' names.
      architectures: the class that holds just these heads.
      structure: fields of ours that every model of this type has.
      fields: (theirs, ours, the value that theirs has where it is absent).
      fixed: fields of config.json that this encoder has with one value only.
      tied: second names of one tensor; older files hold both.
      aliases: beginnings of names in other files, and what they are called here.
      rows: (name there, path or paths here, layout); `interop.layouts` lists the
        layouts. `{i}` is the layer, `{group}` and `{inner}` those of shared ones.
      token_ids: fields with the id of a special token, and its name in `Vocabulary`;
        their defaults there are those of the published vocabulary.
      from_fields: the rest of our fields, from a config.json.
      to_fields: the rest of a config.json, from our fields.
    """

    model_type: str
    prefix: str
    architectures: dict[tuple[str, ...], str]
    structure: Mapping[str, object] = dataclasses.field(default_factory=dict)
    fields: tuple[tuple[str, str, object], ...]
    fixed: Mapping[str, object]
    tied: Mapping[str, str]
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    rows: tuple[Row, ...]
    token_ids: Mapping[str, str] = dataclasses.field(default_factory=lambda: PAD)
    from_fields: Callable[[Mapping], dict[str, object]] = lambda config_json: {}
    to_fields: Callable[[EncoderConfig], dict[str, object]] = lambda config: {}
