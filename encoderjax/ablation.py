"""An ablation: one recipe in several arms, and what they are compared by.

A file in `configs/ablations/` is a recipe of recipes: `get_config` returns a ConfigDict
with the fields of `Ablation`. Arms read the same number of real tokens in as many
steps; what they are trained on may differ, so a common judge measures all of them on
the same held-out rows with the same masks.
"""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from encoderjax.command import did_you_mean
from encoderjax.config import RunConfig, typed
from encoderjax.config_loading import config_name, recipe_values
from encoderjax.data.forms import FORMS
from encoderjax.errors import UserError
from encoderjax.fields import build
from encoderjax.finetuning import FinetuneConfig
from encoderjax.phases import merged, open_stages

Values = dict[str, Any]

# What a metric's name begins with: the run's own held-out metrics, those of the probe,
# or else a judge.
OWN, PROBE = "own", "probe"

_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_CLAIM = re.compile(r"(\S+) ([>~]) (\S+)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """That one arm is better than another, or about as good."""

    one: str
    other: str
    alike: bool

    @classmethod
    def of(cls, text: str) -> "Claim":
        """Reads `one > other` or `one ~ other`."""
        found = _CLAIM.fullmatch(text)
        if found is None:
            raise UserError(
                f"paper.claims: {text!r} is not 'ARM > ARM' (better) or 'ARM ~ ARM' "
                "(about as good)"
            )
        one, sign, other = found.groups()
        return cls(one=one, other=other, alike=sign == "~")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Paper:
    """What was published.

    Attributes:
      source: paper and table.
      finding: what it says, in a sentence.
      columns: what its figures are.
      figures: arm -> its figures there.
      claims: what follows for our arms, to be compared by the first metric.
    """

    source: str
    finding: str
    columns: str = ""
    figures: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    claims: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ablation:
    """An experiment with nothing left open.

    Attributes:
      name: of the file, and of the variant if one was named.
      folder: that the file lies in; recipes are named from there.
      title: what is compared.
      base: the recipe that all arms change, as FILE:VARIANT.
      run: fields in which all arms differ from it.
      prepare: the command that makes its corpus, with {corpus} for the folder, where
        that of the recipe would make another.
      arms: name -> fields.
      order: their names; the others are compared with the first. None = by name, since
        a ConfigDict forgets how it was written.
      judges: name -> fields: how held-out rows are cut and masked for all arms.
      metrics: what is reported, as JUDGE/METRIC, `own/METRIC` or `probe/METRIC`; with
        /MEMBER behind it for one member of a mixture, with /* for the mean of all.
      tokens: real tokens that an arm reads.
      batch_tokens: of which in a step; an arm's own `data.batch_tokens` goes before.
      equal: what arms have in common: `tokens`; or `flops`, where the first arm reads
        so many tokens and the others take as many steps as have its arithmetic.
      warmup: share of the steps over which the learning rate rises.
      seeds: how many runs an arm has; run number n has seed n.
      rows: held-out rows that are measured; 0 = all there are.
      probe: a fine-tuning recipe (`config`) and its fields, run from every arm's end;
        None = none.
      paper: what was published.
    """

    name: str
    folder: Path
    title: str
    base: str
    run: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    prepare: str = ""
    arms: Mapping[str, Any]
    order: tuple[str, ...] | None = None
    judges: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    metrics: tuple[str, ...]
    tokens: int
    batch_tokens: int
    equal: Literal["tokens", "flops"] = "tokens"
    warmup: float = 0.1
    seeds: int = 3
    rows: int = 0
    probe: Mapping[str, Any] | None = None
    paper: Paper

    def __post_init__(self):
        for name in ("tokens", "batch_tokens", "seeds"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)} must be at least 1")
        if self.tokens < self.batch_tokens:
            raise UserError(
                f"tokens={self.tokens} is less than batch_tokens={self.batch_tokens}: "
                "there would be no step"
            )
        if self.rows < 0:
            raise UserError(f"rows={self.rows} must be at least 0 (0: all there are)")
        if not 0.0 <= self.warmup <= 1.0:
            raise UserError(f"warmup={self.warmup} must be in [0, 1]")
        order = tuple(self.arms) if self.order is None else self.order
        if sorted(order) != sorted(self.arms):
            raise UserError(
                f"order={order} must name every arm once: {', '.join(self.arms)}"
            )
        object.__setattr__(self, "arms", {name: self.arms[name] for name in order})
        if len(self.arms) < 2:
            raise UserError(f"arms={list(self.arms)}: there must be two at least")
        for name in self.arms:
            if not _NAME.fullmatch(name):
                raise UserError(
                    f"arms.{name}: names of arms are folders; use letters, digits, "
                    "'_', '-' and '.'"
                )
        for name in self.judges:
            if name in (OWN, PROBE):
                raise UserError(f"judges.{name}: this name is taken; choose another")
        self._check_metrics()
        for claim in self.claims:
            for arm in (claim.one, claim.other):
                if arm not in self.arms:
                    raise UserError(
                        f"paper.claims: {arm!r} is not an arm"
                        f"{did_you_mean(arm, list(self.arms))}"
                    )

    def _check_metrics(self) -> None:
        if not self.metrics:
            raise UserError("metrics is empty: name at least one, such as own/mlm_loss")
        known = [OWN, *self.judges] + [PROBE] * (self.probe is not None)
        for metric in self.metrics:
            who, slash, _ = metric.partition("/")
            if not slash or who not in known:
                raise UserError(
                    f"metrics: {metric!r} does not begin with a judge and a slash "
                    f"(known: {', '.join(known)})"
                )

    @property
    def claims(self) -> list[Claim]:
        """What the paper says of our arms."""
        return [Claim.of(text) for text in self.paper.claims]

    @classmethod
    def load(cls, path: str, overrides: Mapping[str, Any] | None = None) -> "Ablation":
        """Reads a file in `configs/ablations/`, with overrides `a.b`: c."""
        values = recipe_values(path, overrides)
        folder = Path(path.partition(":")[0]).parent
        return cls.from_dict({"name": config_name(path), "folder": folder, **values})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Ablation":
        """Builds and checks an experiment from nested plain values."""
        return build(cls, typed(values), "")

    def recipe(self, name: str) -> str:
        """Returns where a recipe is that is named from the file's folder."""
        return str(self.folder / name)

    def values(self, arm: str, seed: int) -> Values:
        """Returns the run of an arm that reads so many tokens."""
        values = merged(recipe_values(self.recipe(self.base)), self.run)
        values = merged(values, self.arms[arm])
        data, tokens = values["data"], self.step_tokens(arm)
        # Filled up, so that the nearest number of rows is taken and not of eights.
        batch = {"batch_size": None, "batch_tokens": tokens, "fill_batch": True}
        form = FORMS.get(data.get("form", ""))
        if form is not None and form.in_streams:  # rows are full, and counted
            batch = {"batch_size": tokens // data["length"], "batch_tokens": None}
        values |= {"seed": seed, "phases": {}, "data": data | batch}
        return self._lasting(values, self.tokens // tokens, tokens)

    def step_tokens(self, arm: str) -> int:
        """Returns how many real tokens a step of an arm reads."""
        return self.arms[arm].get("data", {}).get("batch_tokens") or self.batch_tokens

    def _lasting(self, values: Values, steps: int, tokens: int) -> Values:
        """Returns a run with so many steps, measured and saved as it suits them."""
        optimizer = {"warmup_steps": round(self.warmup * steps)}
        measured = self.rows * values["data"]["length"]  # in tokens
        return values | {
            "steps": steps,
            "log_every": max(1, steps // 20),
            "optimizer": values["optimizer"] | optimizer,
            "checkpoint": {"every": max(1, steps // 3), "keep": 1},
            "eval": {"every": 0, "batches": -(-measured // tokens)},
        }

    def planned(self, report) -> dict[str, Values]:
        """Returns the run of each arm, with as many steps as it is given."""
        plans = {arm: self.values(arm, 0) for arm in self.arms}
        if self.equal == "tokens":
            return plans
        flops = {arm: self._flops(values, report) for arm, values in plans.items()}
        first = next(iter(flops.values()))
        return {
            arm: self._lasting(
                values,
                max(1, round(values["steps"] * first / flops[arm])),
                self.step_tokens(arm),
            )
            for arm, values in plans.items()
        }

    def _flops(self, values: Values, report) -> float:
        return open_stages(RunConfig.from_dict(values), report, None)[0].flops_per_step

    def judge_values(self, judge: str) -> Values:
        """Returns the first arm's run with the fields of a judge."""
        return merged(self.values(next(iter(self.arms)), 0), self.judges[judge])

    def judging(self, judge: str) -> RunConfig:
        """Returns the run whose held-out rows and losses a judge measures."""
        return RunConfig.from_dict(self.judge_values(judge))

    def probing(self, model: str, seed: int) -> FinetuneConfig:
        """Returns the fine-tuning run that begins with a model."""
        assert self.probe is not None
        fields = dict(self.probe)
        if "config" not in fields:
            raise UserError("probe.config is missing: the fine-tuning recipe")
        recipe = recipe_values(self.recipe(fields.pop("config")))
        values = merged(recipe, fields) | {"init_from": model, "seed": seed}
        return FinetuneConfig.from_dict(values)
