"""Learning-rate curves against tables of the published formulas."""

import numpy as np
import pytest

from encoderjax.errors import UserError
from encoderjax.training.schedules import learning_rate_schedule


def rates(shape, steps, **settings):
    schedule = learning_rate_schedule(shape, peak=1.0, steps=100, **settings)
    return [float(schedule(t)) for t in steps]


def test_bert_drops_when_the_warmup_ends():
    # Decay is counted from step 0: 0.09 at t = 9 of 100, then 1 - 10/100.
    assert rates("bert", [0, 5, 9, 10, 50, 100], warmup_steps=10) == pytest.approx(
        [0.0, 0.5, 0.9, 0.9, 0.5, 0.0]
    )
    assert rates("bert", [19, 20], warmup_steps=20) == pytest.approx([0.95, 0.8])


def test_the_published_run_of_bert():
    # 1e-4, 10k of 1M steps: 0.9999e-4 before the crossover, 0.99e-4 after it.
    schedule = learning_rate_schedule(
        "bert", peak=1e-4, steps=1_000_000, warmup_steps=10_000
    )
    table = {5_000: 0.5e-4, 9_999: 0.9999e-4, 10_000: 0.99e-4, 500_000: 0.5e-4}
    for t, rate in table.items():
        assert float(schedule(t)) == pytest.approx(rate, rel=1e-6)
    assert float(schedule(1_000_000)) == 0.0


def test_electra_multiplies_warmup_and_decay():
    assert rates("electra", [5, 10, 50, 100], warmup_steps=10) == pytest.approx(
        [0.5 * 0.95, 0.9, 0.5, 0.0]
    )


def test_linear_reaches_the_peak_and_its_end():
    assert rates("linear", [5, 10, 55, 100], warmup_steps=10) == pytest.approx(
        [0.5, 1.0, 0.5, 0.0]
    )
    assert rates(
        "linear", [100, 150], warmup_steps=10, end_share=0.02
    ) == pytest.approx([0.02, 0.02])


def test_xlnet_ends_at_a_thousandth():
    # min + (lr - min) (1 - (t - warmup) / (steps - warmup)), min = 0.001 lr.
    schedule = learning_rate_schedule(
        "linear", peak=4e-4, steps=500_000, warmup_steps=40_000, end_share=0.001
    )
    table = {20_000: 2e-4, 40_000: 4e-4, 270_000: 2.002e-4, 500_000: 4e-7}
    for t, rate in table.items():
        assert float(schedule(t)) == pytest.approx(rate, rel=1e-5)


def test_nvidias_adam_is_the_line_from_the_peak():
    # It raises the rate so that BERT's line passes the peak at the crossover.
    steps, warmup = 100, 20
    raised = 1.0 / (1 - warmup / steps)
    expected = [raised * (1 - t / steps) for t in (20, 60, 99)]
    assert rates("linear", [20, 60, 99], warmup_steps=20) == pytest.approx(expected)


def test_polynomial_of_lamb_jumps_at_the_crossover():
    # NVIDIA's phase 1 warms up over 28.43 % and goes on at (1 - 0.2843)^0.5 = 0.846.
    schedule = learning_rate_schedule(
        "polynomial", peak=6e-3, steps=7038, warmup_steps=2001, power=0.5
    )
    assert float(schedule(2001)) / 6e-3 == pytest.approx(0.846, abs=5e-4)
    assert float(schedule(2000)) / 6e-3 == pytest.approx(2000 / 2001, abs=1e-6)
    assert float(schedule(3519)) / 6e-3 == pytest.approx(np.sqrt(0.5), rel=1e-5)
    assert float(schedule(7038)) == 0.0


def test_a_power_of_the_other_lines():
    # fairseq's polynomial_decay and ELECTRA's lr_decay_power.
    settings = dict(warmup_steps=10, power=2.0)
    assert rates("linear", [10, 55], **settings) == pytest.approx([1.0, 0.25])
    assert rates("linear", [55, 100], **settings, end_share=0.1) == pytest.approx(
        [0.1 + 0.9 * 0.25, 0.1]
    )
    assert rates("electra", [5, 50], **settings) == pytest.approx([0.5 * 0.9025, 0.25])


def test_warmup_stable_decay_ends_with_a_square_root():
    settings = dict(warmup_steps=10, decay_steps=40)
    assert rates("wsd", [5, 10, 60, 70, 100], **settings) == pytest.approx(
        [0.5, 1.0, 1.0, 0.5, 0.0]
    )
    assert rates("wsd", [70, 100], **settings, end_share=0.1) == pytest.approx(
        [0.55, 0.1]
    )


def test_the_inverse_square_root_does_not_know_the_end():
    found = rates("inverse_sqrt", [5, 10, 40, 90], warmup_steps=10)
    assert found == pytest.approx([0.5, 1.0, 0.5, 1 / 3])
    with pytest.raises(UserError, match=r"needs optimizer\.warmup_steps above 0"):
        rates("inverse_sqrt", [], warmup_steps=0)


def test_constant_stays_at_the_peak():
    assert rates("constant", [5, 10, 100], warmup_steps=10) == [0.5, 1.0, 1.0]


def test_a_decay_that_begins_in_the_warmup_is_refused():
    with pytest.raises(UserError, match=r"decay_steps=95 together exceed steps=100"):
        rates("wsd", [], warmup_steps=10, decay_steps=95)
