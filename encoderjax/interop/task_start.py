"""Where fine-tuning begins: a pretrained encoder, or one that was fine-tuned already.

The encoder is taken whole, a pooler where there is one, a head where it is of the same
task; what the run lacks is made anew, and a report says which is which.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import jax

from encoderjax.data.tokenizers import Tokenizer
from encoderjax.errors import UserError
from encoderjax.interop.loading import load_model, made_anew, parts_of
from encoderjax.interop.own_files import needed_tokenizer
from encoderjax.interop.sentence_loading import holds_sentence, load_sentence
from encoderjax.interop.task_description import Problem, TaskDescription
from encoderjax.interop.task_loading import holds_task, load_task
from encoderjax.interop.weights import leaves_of, tree_of
from encoderjax.models.config import EncoderConfig
from encoderjax.models.task_heads import TaskHead, TaskModel, init_task_params

# Of pretraining alone: a fine-tuned model reads one row, forwards, without a decoder.
_PLAIN = {
    "mask_decoder_layers": 0,
    "memory_length": 0,
    "reuse_length": 0,
    "bidirectional_data": False,
}
_TRAINING_FIELDS = ("dropout_rate", "first_dropout_rate", "init")  # of a head
_SHOWN = 6  # names of a list in a message


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskStart:
    """An encoder to fine-tune.

    Attributes:
      family: the family, such as `bert`.
      config: of the encoder, without what is pretraining's alone.
      params: all that the folder holds, float32 arrays on the host.
      tokenizer: None where the folder has none.
      source: the folder.
      step: the step of a workdir's checkpoint.
      description: of the task that it was fine-tuned for, if it was.
      new_head: whether the head is to be new, even where one is there.
      report: a line for whatever the reader should know.
    """

    family: str
    config: EncoderConfig
    params: dict
    tokenizer: Tokenizer | None
    source: Path
    step: int | None = None
    description: TaskDescription | None = None
    new_head: bool = False
    report: tuple[str, ...] = ()

    @classmethod
    def open(
        cls, folder: str | Path, step: int | None = None, *, new_head: bool = False
    ) -> "TaskStart":
        """Loads a workdir, a folder of Hugging Face, or an export.

        Of a model that was trained with a generator, the discriminator is taken; of a
        fine-tuned workdir, the best step unless told.
        """
        description = None
        if holds_task(folder):
            loaded = load_task(folder, step)
            description = loaded.description
        elif holds_sentence(folder):
            loaded = load_sentence(folder, step)
        else:
            loaded = load_model(folder, step=step).part("discriminator")
        return cls(
            family=loaded.family,
            config=dataclasses.replace(loaded.config, **_PLAIN),
            params=loaded.params,
            tokenizer=loaded.tokenizer,
            source=loaded.source,
            step=loaded.step,
            description=description,
            new_head=new_head,
            report=loaded.report,
        )

    def need_tokenizer(self) -> Tokenizer:
        """Returns the tokenizer, for whom nothing works without."""
        return needed_tokenizer(self.tokenizer, self.source)

    def sha256(self, *, with_params: bool) -> str:
        """Returns a hash of what a run takes from the folder.

        Args:
          with_params: of its parameters, or of their form for a run with new ones.
        """
        digest = hashlib.sha256(self.need_tokenizer().sha256.encode())
        if not with_params:
            form = {"family": self.family, **dataclasses.asdict(self.config)}
            digest.update(json.dumps(form, sort_keys=True).encode())
            return digest.hexdigest()
        for part in ("encoder", "task"):
            for path, leaf in sorted(leaves_of(self.params.get(part, {})).items()):
                digest.update(path.encode())
                digest.update(leaf.tobytes())
        return digest.hexdigest()

    def params_for(
        self,
        model: TaskModel,
        seed: int,
        labels: Sequence[str] | None = None,
        problem: Problem = "single",
    ) -> tuple[dict, list[str]]:
        """Returns the run's parameters, and lines that say where they come from.

        Args:
          model: that is fine-tuned.
          seed: of what is made anew.
          labels: of the run's task; a head of the same task with others is refused.
          problem: what such a label is; a head to another kind is new.
        """
        kept, lines = self._head_of(model.head, labels, problem)
        params = {"encoder": self.params["encoder"]}
        if kept:
            params["task"] = self.params["task"]
        return self._completed(
            params, lambda key: init_task_params(model, key), seed, lines
        )

    def encoder_for(
        self, init: Callable[[jax.Array], dict], seed: int
    ) -> tuple[dict, list[str]]:
        """Returns parameters as `init` makes them, with the folder's encoder.

        Lines say where they come from.
        """
        lines = []
        if "whiten" in self.params:
            lines.append("its whitening is for other vectors: not used")
        params = {"encoder": self.params["encoder"]}
        return self._completed(params, init, seed, lines)

    def _completed(
        self,
        params: dict,
        init: Callable[[jax.Array], dict],
        seed: int,
        lines: list[str],
    ) -> tuple[dict, list[str]]:
        made = leaves_of(jax.eval_shape(init, jax.random.key(0)))
        shapes = {path: leaf.shape for path, leaf in made.items()}
        sizes = {path: math.prod(shape) for path, shape in shapes.items()}
        leaves = leaves_of(params)
        missing = sorted(set(shapes) - set(leaves))
        left = sorted(set(leaves) - set(shapes))
        for path in sorted(set(shapes) & set(leaves)):
            if leaves[path].shape != shapes[path]:
                raise UserError(
                    f"{path} of init_from={self.source} is {list(leaves[path].shape)}, "
                    f"this run asks for {list(shapes[path])}; use the settings that "
                    "the folder was made with"
                )
        num_loaded = sum(sizes[path] for path in shapes if path in leaves)
        lines += [
            f"{part} is not there: made anew, UNTRAINED"
            for part in parts_of(missing)
            if not part.startswith("task/")
        ]
        lines += [
            f"{part} is there and not used by this task" for part in parts_of(left)
        ]
        leaves |= made_anew(init, missing, seed)
        opening = f"{self.name}: {num_loaded:,} of {sum(sizes.values()):,} parameters"
        whole = tree_of({path: leaves[path] for path in shapes})
        return whole, [f"{opening} loaded", *lines, *self.report]

    def _head_of(
        self, head: TaskHead, labels: Sequence[str] | None, problem: Problem
    ) -> tuple[bool, list[str]]:
        """Says whether the folder's head goes on, and why not."""
        new = f"the head to {head.kind} is new, UNTRAINED"
        if self.description is None:
            return False, [new]
        theirs = self.description
        if theirs.kind != head.kind:
            return False, [f"{new}: the folder's is to {theirs.kind}"]
        if self.new_head:
            return False, [f"{new}, as asked for"]
        if theirs.problem != problem:
            return False, [f"{new}: the folder's problem_type is {theirs.problem!r}"]
        if problem == "regression":
            labels = None  # a number's is whatever a folder calls it
        if labels is not None and tuple(labels) != theirs.labels:
            raise UserError(
                f"labels {_listed(labels)} differ from those of init_from="
                f"{self.source}, {_listed(theirs.labels)}; use the same in the same "
                "order, or new_head=True for a new head"
            )
        if _form(theirs.head) != _form(head):
            return False, [f"{new}: the folder's has another form"]
        return True, [f"the head to {head.kind} is the folder's"]

    @property
    def name(self) -> str:
        """The folder, as people should read it."""
        at = "" if self.step is None else f", step {self.step:,}"
        return f"{self.source} ({self.family}{at})"


def _form(head: TaskHead) -> dict:
    """Returns what a head's parameters depend on, and what they mean."""
    fields = dataclasses.asdict(head)
    return {name: fields[name] for name in fields if name not in _TRAINING_FIELDS}


def _listed(labels: Sequence[str]) -> str:
    more = ", ..." if len(labels) > _SHOWN else ""
    return f"[{', '.join(map(repr, labels[:_SHOWN]))}{more}] ({len(labels)})"
