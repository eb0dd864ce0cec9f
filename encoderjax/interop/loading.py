"""Loads a model from a workdir, a folder of Hugging Face, or exported parameters."""

import dataclasses
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from encoderjax.command import did_you_mean
from encoderjax.data.tokenizers import FILE_NAMES, Tokenizer, load_tokenizer
from encoderjax.errors import UserError
from encoderjax.interop import weights
from encoderjax.interop.huggingface import leaf_shapes, names_of, params_from_hf
from encoderjax.interop.joint import discriminator_alone, generator_alone, shared_as
from encoderjax.models.config import EncoderConfig
from encoderjax.models.families import FAMILIES
from encoderjax.models.heads import (
    HEADS,
    EncoderModel,
    Generator,
    PairHead,
    init_params,
)
from encoderjax.models.stack import weights_of
from encoderjax.training.remote_workdir import open_workdir

PARAMS, PARAMS_INDEX = "params.safetensors", "params.json"
# Beside Hugging Face's files: what its classes have no place for.
EXTRA, EXTRA_INDEX = "encoderjax.safetensors", "encoderjax.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model and everything that came with it.

    Attributes:
      family: the family, such as `bert`.
      config: sizes and slots of the encoder.
      params: `encoder` and `heads`, float32 arrays on the host; `generator` as well,
        where there is one, as the two were trained (`part` has one of them whole).
      head_names: the heads that `params` holds, in the order of `HEADS`.
      tokenizer: None where the folder has none.
      source: the folder.
      step: the step of a workdir's checkpoint.
      report: a line for whatever was missing and made anew, or left unused.
      run: the config.json of a workdir.
      generator: of a model that was trained with one.
    """

    family: str
    config: EncoderConfig
    params: dict
    head_names: tuple[str, ...]
    tokenizer: Tokenizer | None
    source: Path
    step: int | None = None
    report: tuple[str, ...] = ()
    run: dict | None = None
    generator: Generator | None = None

    def part(self, name: str) -> "LoadedModel":
        """Returns the `discriminator`, or the `generator` that it was trained with."""
        if name == "discriminator" or self.generator is None:
            if name == "generator":
                raise UserError(
                    f"part='generator': {self.source} was not trained with one"
                )
            params = discriminator_alone(self.params, self.generator)
            return dataclasses.replace(self, params=params, generator=None)
        return dataclasses.replace(
            self,
            config=self.generator.config,
            params=generator_alone(self.params, self.generator),
            head_names=("mlm",),
            generator=None,
        )

    def part_with(self, head: str) -> "LoadedModel":
        """Returns the part that has a head: the generator for `mlm`, if it has it."""
        if head != "mlm" or head in self.head_names or self.generator is None:
            return self.part("discriminator")
        line = (
            f"{self.source}: tokens are predicted by the generator; the discriminator "
            "has no mlm head"
        )
        return dataclasses.replace(self.part("generator"), report=(*self.report, line))

    def shared_as(self, model: EncoderModel) -> dict:
        """Returns the parameters, with the tables held as `model` holds them."""
        wanted = model.with_generator
        if self.generator is None and wanted is None:
            return self.params
        paths = leaf_shapes(model.config, model.head_names, wanted)
        return shared_as(self.params, self.generator, wanted, paths)

    def need_tokenizer(self) -> Tokenizer:
        """Returns the tokenizer, for whom nothing works without."""
        if self.tokenizer is None:
            raise UserError(
                f"{self.source} has no tokenizer; put its files there: "
                f"{', '.join(FILE_NAMES)}"
            )
        return self.tokenizer

    def with_heads(self, *names: str) -> tuple[EncoderModel, dict]:
        """Returns a model with just these heads, and its parameters."""
        for name in names:
            if name not in HEADS:
                raise UserError(
                    f"head={name!r} does not exist{did_you_mean(name, HEADS)} (heads: "
                    f"{', '.join(HEADS)})"
                )
            if name not in self.head_names:
                raise UserError(
                    f"{self.source} has no head {name!r} (it has: "
                    f"{', '.join(self.head_names) or 'none'})"
                )
        alone = discriminator_alone(self.params, self.generator)
        # A bare head has no parameters of its own.
        heads = alone.get("heads", {})
        chosen = {name: heads[name] for name in names if name in heads}
        params = {"encoder": alone["encoder"]}
        if chosen:
            params["heads"] = chosen
        return EncoderModel(self.config, names), params


def load(path: str | Path, head: str | None = None) -> tuple[EncoderModel, dict]:
    """Returns a model and its parameters, from a workdir or a folder.

    Args:
      path: a workdir, a folder of Hugging Face, or one that `export` wrote.
      head: `mlm`, `nsp`, ...: the head whose `.logits` the outputs then have. Where
        the folder has none it is made anew, and a line on stderr says so. Of two
        networks that were trained together, `mlm` is the generator's.

    Use it as `model.apply({"params": params}, ids_BL, mask_BL, segments_BL)`.
    """
    heads = () if head is None else (head,)
    loaded = load_model(path)
    if head is not None:
        loaded = loaded.part_with(head)
    loaded = _complete(loaded, heads, seed=0)
    for line in loaded.report:
        print(line, file=sys.stderr)
    model, params = loaded.with_heads(*heads)
    return model, jax.tree.map(jnp.asarray, params)


def load_model(
    path: str | Path,
    *,
    need_heads: tuple[str, ...] = (),
    step: int | None = None,
    seed: int = 0,
) -> LoadedModel:
    """Loads everything that is in a workdir or folder.

    Args:
      path: a workdir, a folder of Hugging Face, or one that `export` wrote.
      need_heads: heads to make anew, with a line in the report, where they are missing.
      step: which checkpoint of a workdir; the last one when left out.
      seed: of what is made anew.
    """
    path = open_workdir(str(path))
    if not path.is_dir():
        raise UserError(
            f"{str(path)!r} is not a folder; give a workdir or a downloaded model (for "
            "a name on the hub: hf download NAME --local-dir DIR)"
        )
    if (path / PARAMS_INDEX).is_file():
        read = _read_exported
    elif "model" in (description := _description(path)):
        return _complete(_read_workdir(path, description, step), need_heads, seed)
    else:
        read = _read_huggingface
    if step is not None:
        raise UserError(f"step={step}: {path} is no workdir, so it has no steps")
    return _complete(read(path), need_heads, seed)


def _description(path: Path) -> dict:
    file = path / "config.json"
    if not file.is_file():
        raise UserError(
            f"{path} holds no model: config.json is not there; give a workdir or a "
            "folder that save_pretrained or export wrote"
        )
    return weights.read_json(file)


def _read_huggingface(path: Path) -> LoadedModel:
    family, config, head_names, params, report = params_from_hf(
        _description(path), weights.read_tensors(path), path
    )
    if (path / EXTRA_INDEX).is_file():
        family, config, head_names, params = _with_extra(
            path, family, config, head_names, params
        )
    return LoadedModel(
        family=family,
        config=config,
        params=params,
        head_names=head_names,
        tokenizer=_tokenizer(path, config),
        source=path,
        report=report,
    )


def _with_extra(
    path: Path,
    family: str,
    config: EncoderConfig,
    head_names: tuple[str, ...],
    params: dict,
) -> tuple[str, EncoderConfig, tuple[str, ...], dict]:
    """Adds what `export` kept beside Hugging Face's files."""
    where = path / EXTRA_INDEX
    index = weights.read_json(where)
    told = dataclasses.asdict(config) | {"family": index.get("family", family)}
    family_told, config = _described(told | dict(index.get("model", {})), where)
    if names_of(family_told).model_type != names_of(family).model_type:
        raise UserError(
            f"{where}: family={family_told!r} is no {names_of(family).model_type}, "
            "which config.json names; the files belong to different models"
        )
    extra_heads = _known_heads(index.get("heads", ()), where)
    head_names = tuple(n for n in HEADS if n in head_names or n in extra_heads)
    leaves = _shared(weights.leaves_of(params), config, where)
    if (path / EXTRA).is_file():
        leaves |= weights.read_safetensors(path / EXTRA)
    fitting = _fitting(weights.tree_of(leaves), config, head_names, None, path)
    return family_told, config, head_names, fitting


def _shared(leaves: dict, config: EncoderConfig, where: Path) -> dict:
    """Returns one copy of what the layers share, from one for each layer."""
    shared = dict(leaves)
    for path, leaf in leaves.items():
        if not path.startswith("encoder/layers/"):
            continue
        entries = weights_of(config, path.split("/")[2])
        if len(leaf) != len(entries) or entries[0] < 0:
            continue
        _, first = np.unique(entries, return_index=True)
        shared[path] = leaf[first]
        if not np.array_equal(shared[path][entries], leaf):
            raise UserError(
                f"{where}: the layers differ in {path}, which model.sharing="
                f"{config.sharing!r} says they share; the files do not belong together"
            )
    return shared


def _read_workdir(path: Path, run: dict, step: int | None) -> LoadedModel:
    # Orbax takes a second to import, and no other folder needs it.
    from encoderjax.training.checkpoint import restore_params

    params, step = restore_params(path, step)
    family, config = _described(_model_at(run, step), path / "config.json")
    head_names = _known_heads(run.get("heads", ()), path / "config.json")
    generator = _described_generator(run.get("generator"), path / "config.json")
    return LoadedModel(
        family=family,
        config=config,
        params=_fitting(params, config, head_names, generator, path),
        generator=generator,
        head_names=head_names,
        tokenizer=_tokenizer(path / "tokenizer", config),
        source=path,
        step=step,
        run=run,
    )


def _model_at(run: Mapping, step: int) -> dict:
    """Returns the model group of the phase that a checkpoint was made in."""
    begun = [p for p in run.get("phases", {}).values() if p["after"] < max(1, step)]
    phase = max(begun, key=lambda phase: phase["after"], default={})
    return {**run["model"], **phase.get("model", {})}


def _read_exported(path: Path) -> LoadedModel:
    index = weights.read_json(path / PARAMS_INDEX)
    family, config = _described(index.get("model", {}), path / PARAMS_INDEX)
    head_names = _known_heads(index.get("heads", ()), path / PARAMS_INDEX)
    generator = _described_generator(index.get("generator"), path / PARAMS_INDEX)
    params = weights.tree_of(weights.read_safetensors(path / PARAMS))
    return LoadedModel(
        family=family,
        config=config,
        params=_fitting(params, config, head_names, generator, path),
        generator=generator,
        head_names=head_names,
        tokenizer=_tokenizer(path, config),
        source=path,
    )


def _described(model: Mapping, where: Path) -> tuple[str, EncoderConfig]:
    """Returns the family and the encoder of a `model` group of our own files."""
    family = model.get("family")
    if family not in FAMILIES:
        raise UserError(
            f"{where}: model.family={family!r} is not known (families: "
            f"{', '.join(FAMILIES)})"
        )
    known = {field.name for field in dataclasses.fields(EncoderConfig)}
    fields = {name: model[name] for name in model if name not in ("family", "size")}
    if unknown := sorted(set(fields) - known):
        raise UserError(
            f"{where}: model.{unknown[0]} is not a field of this version's encoder; "
            "load it with the version that wrote it"
        )
    try:
        return family, EncoderConfig(**fields)
    except TypeError as error:
        raise UserError(f"{where}: the model group is not whole: {error}") from error


def _described_generator(fields: Mapping | None, where: Path) -> Generator | None:
    if fields is None:
        return None
    try:
        return Generator(**fields)
    except TypeError as error:
        raise UserError(f"{where}: the generator is not whole: {error}") from error


def _known_heads(names: object, where: Path) -> tuple[str, ...]:
    names = tuple(names) if isinstance(names, list | tuple) else (names,)
    for name in names:
        if name not in HEADS:
            near = did_you_mean(str(name), HEADS)
            raise UserError(
                f"{where}: head={name!r} does not exist{near} (heads: "
                f"{', '.join(HEADS)})"
            )
    return tuple(name for name in HEADS if name in names)


def _fitting(
    params: Mapping,
    config: EncoderConfig,
    head_names: tuple[str, ...],
    generator: Generator | None,
    where: Path,
) -> dict:
    """Returns `params` as float32, after a look at every name and shape."""
    leaves = weights.leaves_of(params)
    shapes = leaf_shapes(config, head_names, generator)
    for path in sorted(set(leaves) | set(shapes)):
        found = list(leaves[path].shape) if path in leaves else "missing"
        wanted = list(shapes[path]) if path in shapes else "none"
        if found != wanted:
            raise UserError(
                f"{where}: parameter {path} is {found}, its config asks for {wanted}: "
                "config and parameters belong to different models"
            )
    return weights.tree_of(
        {path: np.asarray(leaf, np.float32) for path, leaf in leaves.items()}
    )


def _tokenizer(folder: Path, config: EncoderConfig) -> Tokenizer | None:
    if not any((folder / name).is_file() for name in FILE_NAMES):
        return None
    tokenizer = load_tokenizer(folder)
    if tokenizer.vocabulary.size > config.vocab_size:
        raise UserError(
            f"{folder}: the tokenizer has {tokenizer.vocabulary.size} tokens, the "
            f"model a table of {config.vocab_size}: they do not belong together"
        )
    return tokenizer


def _complete(
    loaded: LoadedModel, need_heads: tuple[str, ...], seed: int
) -> LoadedModel:
    """Returns the model with the heads it lacks, and their pooler, made anew."""
    new = set(_known_heads(need_heads, loaded.source)) - set(loaded.head_names)
    if not new:
        return loaded
    head_names = tuple(n for n in HEADS if n in new or n in loaded.head_names)
    pooled = loaded.config.pair_head == "pooled"
    needs_pooler = pooled and any(HEADS[name] is PairHead for name in new)
    config = dataclasses.replace(
        loaded.config, pooler=loaded.config.pooler or needs_pooler
    )
    model = EncoderModel(config, head_names, with_generator=loaded.generator)
    leaves = weights.leaves_of(loaded.params)
    missing = sorted(
        set(leaf_shapes(config, head_names, loaded.generator)) - set(leaves)
    )
    params = weights.tree_of(leaves | made_anew(model, missing, seed))
    lines = tuple(
        f"{loaded.source}: {part} is MISSING and was made anew: untrained"
        for part in parts_of(missing)
    )
    return dataclasses.replace(
        loaded,
        config=config,
        params=params,
        head_names=head_names,
        report=loaded.report + lines,
    )


def parts_of(paths: Iterable[str]) -> list[str]:
    """Returns the parts of the model that parameters belong to, such as heads/nsp."""
    return sorted({"/".join(path.split("/")[:2]) for path in paths})


def made_anew(
    model: EncoderModel, paths: Sequence[str], seed: int
) -> dict[str, np.ndarray]:
    """Draws the parameters at `paths` as a new model would."""

    def draw(key: jax.Array) -> dict[str, jax.Array]:
        leaves = weights.leaves_of(init_params(model, key))
        return {path: leaves[path] for path in paths}

    # Compiled, because the compiler then leaves out what is not returned.
    made = jax.jit(draw)(jax.random.key(seed)) if paths else {}
    return {path: np.asarray(leaf) for path, leaf in made.items()}
