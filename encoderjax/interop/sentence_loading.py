"""Loads what gives texts vectors: from a workdir, an export, or any folder's encoder.

A folder of sentence-transformers says itself how vectors are made of the states; so do
runs that trained them, and their exports (the group `sentence`). Of any other model
the mean of the last layer's states is taken, unless the caller says otherwise.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import jax.numpy as jnp
import numpy as np

from encoderjax.data.tokenizers import Tokenizer
from encoderjax.errors import UserError
from encoderjax.fields import build
from encoderjax.interop import weights
from encoderjax.interop.huggingface import leaf_shapes
from encoderjax.interop.loading import LoadedModel, load_model
from encoderjax.interop.own_files import (
    PARAMS,
    PARAMS_INDEX,
    existing_folder,
    needed_tokenizer,
)
from encoderjax.interop.sentence_transformers import MODULES, read_modules
from encoderjax.interop.task_description import Cut
from encoderjax.interop.task_loading import best_step
from encoderjax.models.compute import PLAIN, Compute
from encoderjax.models.config import EncoderConfig
from encoderjax.models.sentence import SentenceHead, SentenceModel

SENTENCE = "sentence"  # the group of a config.json or params.json that describes one
_LONGEST = 512  # tokens of a row, where nobody says


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceDescription:
    """How texts become vectors: all that is needed to do it again.

    Attributes:
      head: what makes one vector of the states.
      length: of rows, in tokens.
      cut: which part of a longer text is kept, or whether it is read in `windows`,
        whose vectors are averaged.
      stride: from the start of a window to that of the next.
      settings: how it was trained, plain values by name.
    """

    head: SentenceHead = dataclasses.field(default_factory=SentenceHead)
    length: int = _LONGEST
    cut: Cut = "head"
    stride: int = _LONGEST
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        object.__setattr__(self, "settings", dict(self.settings))
        if self.cut not in get_args(Cut):
            raise UserError(f"cut={self.cut!r} must be one of {get_args(Cut)}")
        for name in ("length", "stride"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)} must be at least 1")

    def to_json(self) -> dict[str, Any]:
        """Returns plain values, of which `from_json` makes the same description."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: object, where: object) -> "SentenceDescription":
        """Returns the description that `to_json` wrote; `where` begins messages."""
        if not isinstance(values, Mapping):
            raise UserError(f"{where}: sentence={values!r} must be a group of fields")
        return build(cls, values, f"{where}: sentence.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadedSentence:
    """An encoder, how vectors are made of its states, and what came with it.

    Attributes:
      family: the family, such as `bert`.
      config: of the encoder.
      description: of the vectors.
      params: `encoder`, and `whiten` where vectors are whitened; float32, on the host.
      tokenizer: None where the folder has none.
      source: the folder.
      step: the step of a workdir's checkpoint.
      report: a line for whatever the reader should know.
    """

    family: str
    config: EncoderConfig
    description: SentenceDescription
    params: dict
    tokenizer: Tokenizer | None
    source: Path
    step: int | None = None
    report: tuple[str, ...] = ()

    def model(
        self, dtype: Any = jnp.float32, compute: Compute = PLAIN
    ) -> SentenceModel:
        """Returns the model, to be applied to `params`."""
        return SentenceModel(self.config, self.description.head, dtype, compute)

    def need_tokenizer(self) -> Tokenizer:
        """Returns the tokenizer, for whom nothing works without."""
        return needed_tokenizer(self.tokenizer, self.source)

    def changed(self, **fields: Any) -> "LoadedSentence":
        """Returns it with other fields of the description, or of its head.

        What is None stays as it is. A whitening goes where the vectors that it was
        made for do.
        """
        given = {name: value for name, value in fields.items() if value is not None}
        of_head = {f.name for f in dataclasses.fields(SentenceHead)} & set(given)
        old = self.description.head
        head = dataclasses.replace(old, **{name: given.pop(name) for name in of_head})
        params, report = self.params, self.report
        before = (old.pooling, old.layers)
        if old.components is not None and before != (head.pooling, head.layers):
            head = dataclasses.replace(head, components=None)
            params = {"encoder": params["encoder"]}
            report += (f"{self.source}: its whitening is for other vectors: not used",)
        head.check(self.config)
        description = dataclasses.replace(self.description, head=head, **given)
        longest = self.config.max_length
        if description.length > longest:
            raise UserError(
                f"length={description.length} is more than the {longest} positions "
                "that the model knows (model.max_length); give at most that"
            )
        return dataclasses.replace(
            self, description=description, params=params, report=report
        )

    def whitened(self, mean_X: np.ndarray, kernel_XK: np.ndarray) -> "LoadedSentence":
        """Returns it with a whitening of its vectors."""
        head = self.description.head
        width = head.pooled_width(self.config)
        if kernel_XK.shape[0] != width:
            raise UserError(
                f"the whitening is for vectors of {kernel_XK.shape[0]} columns, these "
                f"have {width}; fit one on vectors of the same model and layers"
            )
        head = dataclasses.replace(head, components=kernel_XK.shape[1])
        whiten = {"mean": mean_X, "kernel": kernel_XK}
        return dataclasses.replace(
            self,
            description=dataclasses.replace(self.description, head=head),
            params={"encoder": self.params["encoder"], "whiten": whiten},
        )


def holds_sentence(path: str | Path) -> bool:
    """Says whether a folder says itself how texts get vectors."""
    folder = existing_folder(path)
    return (folder / MODULES).is_file() or SENTENCE in _groups(folder)


def load_sentence(path: str | Path, step: int | None = None) -> LoadedSentence:
    """Loads an encoder for texts' vectors.

    Args:
      path: any folder with a model: a workdir, pretrained or fine-tuned, an export, one
        of Hugging Face or of sentence-transformers.
      step: which checkpoint of a workdir; the best one when left out, or the last.
    """
    folder = existing_folder(path)
    if (folder / MODULES).is_file():
        if step is not None:
            raise UserError(f"step={step}: {folder} is no workdir, so it has no steps")
        return _read_sentence_transformers(folder)
    report: tuple[str, ...] = ()
    if step is None:
        step, report = best_step(folder)
    loaded = load_model(folder, step=step).part("discriminator")
    told = _groups(folder).get(SENTENCE)
    longest = min(loaded.config.max_length, _LONGEST)
    description = SentenceDescription(length=longest)
    if told is not None:
        description = SentenceDescription.from_json(told, folder)
    params = _encoder_params(loaded)
    if description.head.components is not None:
        params["whiten"] = _own_whitening(folder)
    return _loaded(loaded, description, params, report)


def _loaded(
    loaded: LoadedModel,
    description: SentenceDescription,
    params: dict,
    report: tuple[str, ...] = (),
) -> LoadedSentence:
    description.head.check(loaded.config)
    return LoadedSentence(
        family=loaded.family,
        config=dataclasses.replace(loaded.config, mask_decoder_layers=0),
        description=description,
        params=params,
        tokenizer=loaded.tokenizer,
        source=loaded.source,
        step=loaded.step,
        report=report + loaded.report,
    )


def _groups(folder: Path) -> Mapping:
    """Returns the groups of our own description of a folder, if it has one."""
    for name in (PARAMS_INDEX, "config.json"):
        if (folder / name).is_file():
            return weights.read_json(folder / name)
    return {}


def _encoder_params(loaded: LoadedModel) -> dict:
    """Returns the encoder's parameters, without the mask decoder's."""
    plain = dataclasses.replace(loaded.config, mask_decoder_layers=0)
    wanted = leaf_shapes(plain, ())
    leaves = weights.leaves_of(loaded.params)
    return weights.tree_of({path: leaves[path] for path in wanted})


def _own_whitening(folder: Path) -> dict[str, np.ndarray]:
    tensors = weights.read_safetensors(folder / PARAMS)
    try:
        return {name: tensors[f"whiten/{name}"] for name in ("mean", "kernel")}
    except KeyError as error:
        raise UserError(
            f"{folder / PARAMS} has no {error.args[0]}, which {PARAMS_INDEX} asks for; "
            "export the model again"
        ) from error


def _read_sentence_transformers(folder: Path) -> LoadedSentence:
    modules = read_modules(folder)
    loaded = load_model(folder / modules.encoder).part("discriminator")
    loaded = dataclasses.replace(loaded, source=folder)
    head = modules.head(loaded.config)
    params = _encoder_params(loaded)
    if modules.whiten is not None:
        params["whiten"] = modules.whiten
    told = modules.length or _LONGEST
    description = SentenceDescription(
        head=head, length=min(told, loaded.config.max_length)
    )
    return _loaded(loaded, description, params, modules.report)
