"""Task models in Hugging Face's folders: the class, its labels and its head's tensors.

What the encoder is called there stands in `huggingface.py`; a head's names stand in its
family's file (`TASK_HEADS`).
"""

import dataclasses
import functools
from collections.abc import Mapping

import jax
import numpy as np

from encoderjax.errors import UserError
from encoderjax.fields import build
from encoderjax.interop.huggingface import (
    ACTIVATIONS,
    activation_from_hf,
    config_from_hf,
    config_to_hf,
    family_of,
    names_of,
    unshared,
)
from encoderjax.interop.task_description import LABELLED_KINDS, Problem, TaskDescription
from encoderjax.interop.tensor_rows import expand_rows, modern_names, read_rows
from encoderjax.interop.weights import leaves_of
from encoderjax.models.config import EncoderConfig
from encoderjax.models.families.task_forms import Kind, TaskField, TaskForm
from encoderjax.models.task_heads import (
    KINDS,
    TaskHead,
    TaskModel,
    encoder_for,
    init_task_params,
    task_form,
)

PROBLEMS: dict[Problem, str] = {
    "single": "single_label_classification",
    "multi": "multi_label_classification",
    "regression": "regression",
}
# Fields of a head that change training alone; `encoderjax.json` keeps them.
_UNREAD = {"dropout_rate", "first_dropout_rate", "init"}
_DEFAULT_LABELS = 2  # of a config.json that names none
_LONGEST = 512  # tokens of a row, where nobody says


# ---- config.json ----


def kind_of(config_json: Mapping, where: object) -> Kind | None:
    """Returns the task of the class that a config.json names, if it is one's."""
    named = config_json.get("architectures") or []
    if not isinstance(named, list) or not named:
        return None
    family = family_of(config_json, where)
    for kind in KINDS:
        if task_form(family, kind).architecture == named[0]:
            return kind
    return None


def encoder_fields(config_json: Mapping, family: str, kind: Kind) -> dict:
    """Returns a config.json without what only the task's head reads."""
    own = {field.theirs for field in task_form(family, kind).fields}
    fixed = own & set(names_of(family).fixed)
    return {name: x for name, x in config_json.items() if name not in fixed}


def description_from_hf(
    config_json: Mapping, family: str, kind: Kind, config: EncoderConfig, where: object
) -> TaskDescription:
    """Returns the task that a config.json describes."""
    labels = _labels(config_json, where) if kind in LABELLED_KINDS else ()
    form = task_form(family, kind)
    fields = dict(form.head)
    for field in form.fields:
        fields[field.ours] = _from_hf(field, config_json, where)
    count = {"answer": 2, "choose": 1}.get(kind, len(labels))
    head = build(
        TaskHead, {"kind": kind, "num_labels": count, **fields}, f"{where}: head."
    )
    return TaskDescription(
        kind=kind,
        labels=labels,
        problem=_problem(config_json, kind, labels, where),
        head=head,
        length=min(config.max_length, _LONGEST),
        # Answers are looked for in all of a context, as pipelines there do.
        cut="windows" if kind == "answer" else "head",
    )


def _from_hf(field: TaskField, config_json: Mapping, where: object) -> object:
    value = config_json.get(field.theirs, field.default)
    if field.ours == "activation":
        return activation_from_hf(field.theirs, value) if value else None
    if field.words is None:
        return value
    if value not in field.words:
        raise UserError(
            f"{where}: {field.theirs}={value!r} is not supported (supported: "
            f"{', '.join(map(str, field.words))})"
        )
    return field.words[value]


def _labels(config_json: Mapping, where: object) -> tuple[str, ...]:
    named = config_json.get("id2label")
    if not named:
        count = config_json.get("num_labels", _DEFAULT_LABELS)
        return tuple(f"LABEL_{i}" for i in range(count))
    if not isinstance(named, Mapping) or set(named) != {
        str(i) for i in range(len(named))
    }:
        raise UserError(
            f"{where}: id2label={named!r} must name the labels '0', '1', ... in "
            "config.json"
        )
    return tuple(str(named[str(i)]) for i in range(len(named)))


def _problem(
    config_json: Mapping, kind: Kind, labels: tuple[str, ...], where: object
) -> Problem:
    told = config_json.get("problem_type")
    if kind != "classify":
        return "single"
    if told is None:  # as transformers guesses
        return "regression" if len(labels) == 1 else "single"
    if told == PROBLEMS["regression"] and len(labels) != 1:
        raise UserError(
            f"{where}: problem_type={told!r} with {len(labels)} scores is not "
            "supported; one number is"
        )
    for ours, theirs in PROBLEMS.items():
        if theirs == told:
            return ours
    raise UserError(
        f"{where}: problem_type={told!r} is not known (known: "
        f"{', '.join(PROBLEMS.values())})"
    )


def task_config_to_hf(
    config: EncoderConfig, family: str, task: TaskDescription
) -> dict[str, object]:
    """Returns the config.json of a task model.

    A head that Hugging Face's class would compute otherwise is refused.
    """
    form = task_form(family, task.kind)
    model_type = names_of(family).model_type
    if form.architecture is None:
        raise UserError(
            f"task.kind={task.kind!r}: transformers has no class of {model_type} for "
            "it; use --format=params"
        )
    config = encoder_for(config, task.head)
    unread = {"head_activation", "detection_head", "mlm_head", "pair_head"}
    config_json = config_to_hf(config, family, (), unread=unread)
    config_json["architectures"] = [form.architecture]
    for field in form.fields:
        config_json[field.theirs] = _to_hf(field, task.head, model_type)
    if task.labels:
        config_json["id2label"] = {str(i): x for i, x in enumerate(task.labels)}
        config_json["label2id"] = {x: i for i, x in enumerate(task.labels)}
    if task.kind == "classify":
        config_json["problem_type"] = PROBLEMS[task.problem]
    different = head_beside(config, family, task, config_json)
    if wrong := [name for name in different if name not in _UNREAD]:
        raise _not_there(f"head.{wrong[0]}={different[wrong[0]]!r}", model_type)
    return config_json


def _to_hf(field: TaskField, head: TaskHead, model_type: str) -> object:
    value = getattr(head, field.ours)
    words = ACTIVATIONS if field.ours == "activation" else field.words
    if words is None:
        return value
    for theirs, ours in words.items():
        if ours == value:
            return theirs
    raise _not_there(f"head.{field.ours}={value!r}", model_type)


def _not_there(what: str, model_type: str) -> UserError:
    return UserError(
        f"{what}: Hugging Face's {model_type} has no such thing and would compute "
        "something else with these weights; use --format=params"
    )


def head_beside(
    config: EncoderConfig, family: str, task: TaskDescription, config_json: Mapping
) -> dict[str, object]:
    """Returns the fields of a head that a config.json does not tell."""
    read = description_from_hf(config_json, family, task.kind, config, "export").head
    ours, theirs = dataclasses.asdict(task.head), dataclasses.asdict(read)
    return {name: ours[name] for name in ours if theirs[name] != ours[name]}


# ---- tensors ----


@functools.lru_cache(maxsize=16)  # traced in a quarter of a second, and asked often
def task_shapes(config: EncoderConfig, head: TaskHead) -> Mapping[str, tuple[int, ...]]:
    """Returns the path and shape of every parameter of a task model."""
    model = TaskModel(config, head)
    tree = jax.eval_shape(lambda key: init_task_params(model, key), jax.random.key(0))
    return {path: leaf.shape for path, leaf in leaves_of(tree).items()}


def task_from_hf(
    config_json: Mapping, tensors: Mapping[str, np.ndarray], kind: Kind, where: object
) -> tuple[str, EncoderConfig, TaskDescription, dict, tuple[str, ...]]:
    """Reads a whole task model.

    Returns the family, the encoder's config, the task, the parameters, and a line for
    whatever the folder holds and nothing here can use.
    """
    family = family_of(config_json, where)
    names, form = names_of(family), task_form(family, kind)
    plain = encoder_fields(config_json, family, kind)
    config = config_from_hf(plain, family, where, pooler=False)
    task = description_from_hf(config_json, family, kind, config, where)
    config = encoder_for(config, task.head)
    shapes = task_shapes(config, task.head)
    rows = list(expand_rows((*names.rows, *form.rows), config, shapes))
    modern = modern_names(tensors, names, where)
    params, report = read_rows(rows, modern, shapes, where)
    return family, config, task, params, report


def task_params_to_hf(
    params: Mapping, family: str, config: EncoderConfig, form: TaskForm
) -> dict[str, np.ndarray]:
    """Returns a tree of parameters, or of their gradients, under the names there."""
    leaves = {path: np.asarray(leaf) for path, leaf in leaves_of(params).items()}
    leaves = unshared(leaves, family, config)
    shapes = {path: leaf.shape for path, leaf in leaves.items()}
    rows = list(expand_rows((*names_of(family).rows, *form.rows), config, shapes))
    named = {path for row in rows for path in row.paths}
    # Heads that have no place there are refused with their config. A single layer may
    # lack the norm that others have.
    homeless = [path for path, x in leaves.items() if x.size and path not in named]
    assert not homeless, homeless
    return {row.name: row.to_hf(leaves) for row in rows}
