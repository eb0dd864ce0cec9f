"""Loads a model from a workdir, a folder of Hugging Face, or exported parameters."""

import dataclasses
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from encoderjax.command import did_you_mean
from encoderjax.data.tokenizers import Tokenizer
from encoderjax.errors import UserError
from encoderjax.interop import weights
from encoderjax.interop.huggingface import leaf_shapes, params_from_hf
from encoderjax.interop.joint import discriminator_alone, generator_alone, shared_as
from encoderjax.interop.own_files import (
    EXTRA,
    EXTRA_INDEX,
    PARAMS,
    PARAMS_INDEX,
    check_family,
    config_json_of,
    described_generator,
    described_model,
    existing_folder,
    fitting,
    known_heads,
    needed_tokenizer,
    shared_layers,
    tokenizer_of,
)
from encoderjax.models.config import EncoderConfig
from encoderjax.models.heads import (
    HEADS,
    EncoderModel,
    Generator,
    PairHead,
    init_params,
)


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
        return needed_tokenizer(self.tokenizer, self.source)

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
    path = existing_folder(path)
    if (path / PARAMS_INDEX).is_file():
        read = _read_exported
    elif "model" in (description := config_json_of(path)):
        return _complete(_read_workdir(path, description, step), need_heads, seed)
    else:
        read = _read_huggingface
    if step is not None:
        raise UserError(f"step={step}: {path} is no workdir, so it has no steps")
    return _complete(read(path), need_heads, seed)


def _read_huggingface(path: Path) -> LoadedModel:
    family, config, head_names, params, report = params_from_hf(
        config_json_of(path), weights.read_tensors(path), path
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
        tokenizer=tokenizer_of(path, config),
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
    family_told, config = described_model(told | dict(index.get("model", {})), where)
    check_family(family_told, family, where)
    extra_heads = known_heads(index.get("heads", ()), where)
    head_names = tuple(n for n in HEADS if n in head_names or n in extra_heads)
    leaves = shared_layers(weights.leaves_of(params), config, where)
    if (path / EXTRA).is_file():
        leaves |= weights.read_safetensors(path / EXTRA)
    shapes = leaf_shapes(config, head_names)
    params = fitting(weights.tree_of(leaves), shapes, path)
    return family_told, config, head_names, params


def _read_workdir(path: Path, run: dict, step: int | None) -> LoadedModel:
    # Orbax takes a second to import, and no other folder needs it.
    from encoderjax.training.checkpoint import restore_params

    params, step = restore_params(path, step)
    family, config = described_model(_model_at(run, step), path / "config.json")
    params, config, report = _encoder_alone(params, config, path)
    head_names = known_heads(run.get("heads", ()), path / "config.json")
    generator = described_generator(run.get("generator"), path / "config.json")
    return LoadedModel(
        family=family,
        config=config,
        params=fitting(params, leaf_shapes(config, head_names, generator), path),
        generator=generator,
        head_names=head_names,
        tokenizer=tokenizer_of(path / "tokenizer", config),
        source=path,
        step=step,
        run=run,
        report=report,
    )


def _model_at(run: Mapping, step: int) -> dict:
    """Returns the model group of the phase that a checkpoint was made in."""
    begun = [p for p in run.get("phases", {}).values() if p["after"] < max(1, step)]
    phase = max(begun, key=lambda phase: phase["after"], default={})
    return {**run["model"], **phase.get("model", {})}


def _read_exported(path: Path) -> LoadedModel:
    index = weights.read_json(path / PARAMS_INDEX)
    family, config = described_model(index.get("model", {}), path / PARAMS_INDEX)
    head_names = known_heads(index.get("heads", ()), path / PARAMS_INDEX)
    generator = described_generator(index.get("generator"), path / PARAMS_INDEX)
    params = weights.tree_of(weights.read_safetensors(path / PARAMS))
    params, config, report = _encoder_alone(params, config, path)
    return LoadedModel(
        family=family,
        config=config,
        params=fitting(params, leaf_shapes(config, head_names, generator), path),
        generator=generator,
        head_names=head_names,
        tokenizer=tokenizer_of(path, config),
        source=path,
        report=report,
    )


def _encoder_alone(
    params: dict, config: EncoderConfig, path: Path
) -> tuple[dict, EncoderConfig, tuple[str, ...]]:
    """Leaves out a task's head, and a whitening, of a model that was fine-tuned."""
    if not {"task", "whiten"} & set(params):
        return params, config, ()
    encoder = params["encoder"]
    config = dataclasses.replace(
        config, pooler="pooler" in encoder, mask_decoder_layers=0
    )
    lines = (f"{path}: the task's head is not used",) if "task" in params else ()
    return {"encoder": encoder}, config, lines


def _complete(
    loaded: LoadedModel, need_heads: tuple[str, ...], seed: int
) -> LoadedModel:
    """Returns the model with the heads it lacks, and their pooler, made anew."""
    new = set(known_heads(need_heads, loaded.source)) - set(loaded.head_names)
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
    params = weights.tree_of(
        leaves | made_anew(lambda key: init_params(model, key), missing, seed)
    )
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
    init: Callable[[jax.Array], dict], paths: Sequence[str], seed: int
) -> dict[str, np.ndarray]:
    """Draws the parameters at `paths` as `init` draws those of a new model."""

    def draw(key: jax.Array) -> dict[str, jax.Array]:
        leaves = weights.leaves_of(init(key))
        return {path: leaves[path] for path in paths}

    # Compiled, because the compiler then leaves out what is not returned.
    made = jax.jit(draw)(jax.random.key(seed)) if paths else {}
    return {path: np.asarray(leaf) for path, leaf in made.items()}
