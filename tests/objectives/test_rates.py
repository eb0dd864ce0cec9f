"""The share of tokens to predict: schedules over steps, and by density."""

import dataclasses
import json
import math

import numpy as np
import pytest

from encoderjax.config import RunConfig
from encoderjax.data.pipeline import DataConfig
from encoderjax.errors import UserError
from encoderjax.fields import Override
from encoderjax.models.families import preset
from encoderjax.objectives.mlm import MaskedLM
from encoderjax.objectives.rates import RateSchedule, checked_rate, row_rates
from tests.objectives.masking_cases import (
    CLS,
    SEP,
    draws,
    make_batch,
    make_lexicon,
    mixed_batch,
)

PLAIN = {"first": 0.3, "last": 0.15, "steps": 1000}


def at_step(number, rows=2):
    return dataclasses.replace(draws(rows), step=number)


def test_a_schedule_is_a_straight_line_and_then_stays():
    objective = MaskedLM(rate=PLAIN, max_predictions=300)
    batch, lexicon = make_batch([1000, 400], width=1000), make_lexicon()
    for step, rate in (
        (0, 0.3),
        (1, 0.29985),
        (500, 0.225),
        (999, 0.15015),
        (1000, 0.15),
        (10**6, 0.15),
        (None, 0.15),  # evaluation
    ):
        found = row_rates(checked_rate(PLAIN), batch, at_step(step), lexicon)
        assert found == pytest.approx(rate, abs=1e-12)
        out = objective.corrupt(batch, at_step(step), lexicon)
        counts = out["mlm/weights"].sum(axis=1).tolist()
        assert counts == [round(rate * 1000), round(rate * 400)]


def test_a_rising_schedule_has_slots_for_its_last_rate():
    data = DataConfig(corpus="x", length=512, batch_size=8)
    for first, last in ((0.15, 0.4), (0.4, 0.15)):
        objective = MaskedLM(rate={"first": first, "last": last, "steps": 10})
        resolved = objective.resolved(data, preset("bert", "tiny"))
        assert resolved.max_predictions == round(0.4 * 512)


def run_with(rate):
    return {
        "steps": 5,
        "model": {"family": "bert", "size": "tiny"},
        "data": {"corpus": "x", "batch_size": 8},
        "objectives": {"mlm": {"rate": rate}},
        "optimizer": {"learning_rate": 1e-3},
    }


@pytest.mark.parametrize(
    "rate",
    [
        0.2,
        (0.1, 0.3),
        "density",
        PLAIN,
        Override(str(PLAIN)),
        {name: Override(str(value)) for name, value in PLAIN.items()},
    ],
    ids=str,
)
def test_every_rate_survives_a_config_file(rate):
    config = RunConfig.from_dict(run_with(rate))
    again = RunConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config
    (objective,) = again.objectives
    if not isinstance(rate, float | tuple) and rate != "density":
        assert objective.rate == RateSchedule(**PLAIN)
        assert config.to_dict()["objectives"]["mlm"]["rate"] == PLAIN
    else:
        assert objective.rate == rate


@pytest.mark.parametrize(
    ("rate", "message"),
    [
        ({"first": 0.3, "last": 0.15}, "must have exactly the fields first, last, st"),
        (PLAIN | {"shape": "cosine"}, "must have exactly the fields"),
        (PLAIN | {"first": 0.0}, "rate.first=0.0 must be in"),
        (PLAIN | {"last": 1.1}, "rate.last=1.1 must be in"),
        (PLAIN | {"steps": 0}, "rate.steps=0 must be a whole number"),
        (PLAIN | {"steps": 2.5}, "rate.steps=2.5 must be a whole number"),
        (PLAIN | {"steps": "many"}, "rate.steps=many must be a whole number"),
        ((0.3, 0.2), "must be in"),
        (0.0, "rate=0.0 must be in"),
    ],
)
def test_other_rates_are_refused(rate, message):
    with pytest.raises(UserError, match=message):
        MaskedLM(rate=rate)


def test_density_goes_by_the_mean_surprisal_of_the_row():
    lexicon, batch = make_lexicon(), mixed_batch()
    rates = row_rates("density", batch, draws(len(batch["ids"])), lexicon)
    counts = [int(count) + 1 for count in lexicon.unigrams_V]
    surprisal = [-math.log(count / sum(counts)) for count in counts]
    entropy = sum(c / sum(counts) * s for c, s in zip(counts, surprisal, strict=True))
    for row, ids in enumerate(batch["ids"]):
        real = [
            surprisal[token]
            for token, is_real in zip(ids, batch["mask"][row], strict=True)
            if is_real and token not in (CLS, SEP)
        ]
        mean = sum(real) / len(real) if real else 0.0
        expected = min(max(0.15 * entropy / mean, 0.1), 0.225) if real else 0.225
        assert rates[row] == pytest.approx(expected, abs=1e-9)
    assert len(np.unique(rates)) > 10
