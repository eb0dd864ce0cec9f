"""Where a run begins that does not begin with new parameters.

A folder is loaded, some of its layers or all are taken, what the run lacks is made
anew, the vocabulary becomes that of the corpus, and a report says which is which.
"""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from encoderjax.data.tokenizers import Tokenizer
from encoderjax.errors import UserError
from encoderjax.interop.huggingface import leaf_shapes
from encoderjax.interop.loading import LoadedModel, load_model, made_anew, parts_of
from encoderjax.interop.vocabulary import (
    Change,
    check_change,
    plan_rows,
    vocabulary_axes,
)
from encoderjax.interop.weights import leaves_of, tree_of
from encoderjax.models.config import EncoderConfig
from encoderjax.models.heads import HEADS, EncoderModel, PairHead, init_params
from encoderjax.models.stack import weights_of

# What is chosen for a run and not held by the weights, beside rates and drawing; a
# pooler is made anew or left.
_FREE = ("memory_length", "reuse_length", "bidirectional_data", "pooler")


@dataclasses.dataclass(frozen=True)
class Start:
    """A model to go on from.

    Attributes:
      loaded: all that the folder holds.
      config: of its encoder, as deep as the run is, and with a pooler where a head of
        the run needs one.
      change: how its vocabulary becomes that of the corpus.
      layers: which of its layers become those of the run, in this order; None = all,
        and no other part of the encoder may be left behind.
    """

    loaded: LoadedModel
    config: EncoderConfig
    change: Change
    layers: tuple[int, ...] | None = None

    @classmethod
    def open(
        cls,
        folder: str,
        head_names: tuple[str, ...],
        change: Change = "same",
        layers: tuple[int, ...] | None = None,
    ) -> "Start":
        """Loads the folder, for a run with these heads and some of its layers."""
        loaded = load_model(_existing(folder))
        config = loaded.config
        if layers is not None:
            _check_layers(layers, loaded)
            config = dataclasses.replace(config, num_layers=len(layers))
        pairs = any(HEADS[name] is PairHead for name in head_names)
        if pairs and config.pair_head == "pooled":
            config = dataclasses.replace(config, pooler=True)
        return cls(loaded, config, change, layers)

    def check(self, encoder: EncoderConfig, tokenizer: Tokenizer, corpus: str) -> None:
        """Refuses a vocabulary or an encoder that the weights do not fit."""
        check_change(
            self.change,
            self.loaded.need_tokenizer(),
            tokenizer,
            model=self.loaded.source,
            corpus=corpus,
        )
        free = {*_FREE, *(["vocab_size"] if self.change != "same" else [])}
        longer = dataclasses.replace(self.config, max_length=encoder.max_length)
        if leaf_shapes(longer, ()) == leaf_shapes(self.config, ()):
            free.add("max_length")  # there is no table of positions
        if self.layers is not None:
            if encoder.num_layers != len(self.layers):
                raise UserError(
                    f"model.num_layers={encoder.num_layers} does not fit init_layers="
                    f"{self.layers}, which names {len(self.layers)}; name as many"
                )
            if encoder.num_segments == 0:
                free.add("num_segments")  # the table is left behind
        ours = dataclasses.asdict(encoder)
        for name, value in dataclasses.asdict(self.config).items():
            if name in free or name.endswith("rate") or name.startswith("init"):
                continue
            if ours[name] != value:
                raise UserError(
                    f"model.{name}={ours[name]!r} does not fit init_from="
                    f"{self.loaded.source}, which has {value!r}; set it to that"
                )

    def params_for(
        self, model: EncoderModel, tokenizer: Tokenizer, seed: int
    ) -> tuple[dict, list[str]]:
        """Returns the run's parameters, and lines that say where they come from.

        Args:
          model: that is trained, with the vocabulary of the corpus.
          tokenizer: of the corpus.
          seed: of what is made anew.
        """
        shapes = leaf_shapes(model.config, model.head_names, model.with_generator)
        sizes = {path: math.prod(shape) for path, shape in shapes.items()}
        leaves = leaves_of(self.loaded.shared_as(model))
        if self.layers is not None:
            leaves |= _layers_of(leaves, self.loaded.config, self.layers)
        missing = sorted(set(shapes) - set(leaves))
        left = sorted(set(leaves) - set(shapes))
        num_loaded = sum(sizes[path] for path in shapes if path in leaves)
        lines = [
            f"{part} is not there: made anew, UNTRAINED" for part in parts_of(missing)
        ]
        lines += [
            f"{part} is there and not used by this run" for part in parts_of(left)
        ]
        if self.layers is not None:
            chosen = ", ".join(map(str, self.layers))
            all_layers = self.loaded.config.num_layers
            lines = [f"encoder/layers are {chosen} of its {all_layers}", *lines]
        if self.change != "same":
            plan = plan_rows(
                self.change,
                self.loaded.need_tokenizer(),
                tokenizer,
                old_rows=self.config.vocab_size,
                new_rows=model.config.vocab_size,
            )
            lines = [plan.report(self.config.vocab_size), *lines]
            for path, axis in vocabulary_axes(model).items():
                if path in leaves:
                    leaves[path] = plan.applied(leaves[path], axis)
                    num_loaded -= sizes[path] * plan.num_new // plan.num_rows
        leaves |= made_anew(lambda key: init_params(model, key), missing, seed)
        for path, shape in shapes.items():
            if leaves[path].shape != shape:
                raise UserError(
                    f"{path} of init_from={self.loaded.source} is "
                    f"{list(leaves[path].shape)}, this run asks for {list(shape)}; "
                    "use the settings that the folder was made with"
                )
        opening = f"{self.name}: {num_loaded:,} of {sum(sizes.values()):,} parameters"
        params = tree_of({path: leaves[path] for path in shapes})
        return params, [f"{opening} loaded", *lines, *self.loaded.report]

    @property
    def name(self) -> str:
        """The folder, as people should read it."""
        step = self.loaded.step
        at = "" if step is None else f", step {step:,}"
        return f"{self.loaded.source} ({self.loaded.family}{at})"


def _existing(folder: str) -> str:
    """Returns `folder`; names the command that makes it where it is a recipe's."""
    path = Path(folder).expanduser()
    recipe, _, variant = path.name.partition("-")
    recipe = Path("configs") / f"{recipe}.py"
    if not path.exists() and path.parent.name == "runs" and recipe.is_file():
        raise UserError(
            f"init_from={folder} does not exist; make it with python -m "
            f"encoderjax.train --config={recipe}{variant and f':{variant}'}, or name "
            "another folder: a workdir, an export or one of Hugging Face's"
        )
    return folder


def _check_layers(layers: tuple[int, ...], loaded: LoadedModel) -> None:
    """Refuses layers that are not there, or that mean nothing in another place."""
    c, named = loaded.config, f"init_layers={layers}"
    source = f"init_from={loaded.source}"
    if not layers:
        raise UserError(
            f"{named} names no layer; name some of 0 to {c.num_layers - 1}, or None "
            "for all"
        )
    if min(layers) < 0 or max(layers) >= c.num_layers:
        raise UserError(
            f"{named}: the layers of {source} are 0 to {c.num_layers - 1}; name those"
        )
    if c.sharing != "none" or c.inner_layers > 1:
        raise UserError(
            f"{named}: the layers of {source} share their weights (model.sharing="
            f"{c.sharing!r}, model.inner_layers={c.inner_layers}), so none stands by "
            "itself; leave it out"
        )
    if not all(c.sees_all(block) for block in range(c.num_blocks)):
        raise UserError(
            f"{named}: which layers of {source} look through a window goes by their "
            f"number (model.global_every={c.global_every}), so in another place they "
            "would see what they were not trained to; leave it out"
        )
    unlike = c.conv_width or not c.first_norm
    if unlike and (layers[0] != 0 or 0 in layers[1:]):
        what = "a convolution" if c.conv_width else "no norm of its input"
        raise UserError(
            f"{named}: layer 0 of {source} alone has {what}, so it must be the first "
            "and no other; begin with 0"
        )


def _layers_of(
    leaves: Mapping[str, np.ndarray], config: EncoderConfig, layers: tuple[int, ...]
) -> dict[str, np.ndarray]:
    """Returns the stacks of the encoder's layers, with just these in them."""
    stacks = {}
    for path, leaf in leaves.items():
        if path.startswith("encoder/layers/"):
            entries = weights_of(config, path.split("/")[2])[list(layers)]
            stacks[path] = leaf[entries[entries >= 0]]  # layer 0 may have no norm
    return stacks
