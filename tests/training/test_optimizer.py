import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from encoderjax.errors import UserError
from encoderjax.training.optimizer import OptimizerConfig, make_optimizer
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


def test_polynomial_of_lamb_jumps_at_the_crossover():
    # NVIDIA's phase 1 warms up over 28.43 % and goes on at (1 - 0.2843)^0.5 = 0.846.
    schedule = learning_rate_schedule(
        "polynomial", peak=6e-3, steps=7038, warmup_steps=2001, power=0.5
    )
    assert float(schedule(2001)) / 6e-3 == pytest.approx(0.846, abs=5e-4)
    assert float(schedule(2000)) / 6e-3 == pytest.approx(2000 / 2001, abs=1e-6)


def test_warmup_stable_decay_ends_with_a_square_root():
    settings = dict(warmup_steps=10, decay_steps=40)
    assert rates("wsd", [5, 10, 60, 70, 100], **settings) == pytest.approx(
        [0.5, 1.0, 1.0, 0.5, 0.0]
    )


def first_update(**settings):
    config = OptimizerConfig(
        **{"learning_rate": 1e-3, "schedule": "constant", "weight_decay": 0.0}
        | settings
    )
    optimizer, _ = make_optimizer(config, 10)
    params = {"mlp": {"kernel": jnp.ones(3)}, "norm": {"bias": jnp.ones(3)}}
    gradient = jax.tree.map(lambda x: 0.01 * x, params)
    updates, _ = optimizer.update(gradient, optimizer.init(params), params)
    return updates


def test_googles_first_step_is_three_times_as_large():
    # Without bias correction: 0.1 / sqrt(0.001) = 3.16 learning rates.
    plain = first_update(bias_correction=False, eps=1e-12)["mlp"]["kernel"][0]
    corrected = first_update(bias_correction=True, eps=1e-12)["mlp"]["kernel"][0]
    assert float(plain) == pytest.approx(-3.1623e-3, rel=1e-3)
    assert float(corrected) == pytest.approx(-1e-3, rel=1e-4)


def test_adamw_equals_optax_over_many_steps():
    config = OptimizerConfig(
        learning_rate=1e-2, schedule="constant", weight_decay=0.1, decay_exclude=()
    )
    ours, _ = make_optimizer(config, 100)
    reference = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(1e-2, eps=1e-6, weight_decay=0.1)
    )
    rng = np.random.default_rng(0)
    params = [{"kernel": jnp.asarray(rng.normal(size=(5, 4)), jnp.float32)}] * 2
    states = [ours.init(params[0]), reference.init(params[1])]
    for _ in range(20):
        gradient = {"kernel": jnp.asarray(rng.normal(size=(5, 4)), jnp.float32)}
        for i, optimizer in enumerate((ours, reference)):
            updates, states[i] = optimizer.update(gradient, states[i], params[i])
            params[i] = optax.apply_updates(params[i], updates)
    assert np.allclose(params[0]["kernel"], params[1]["kernel"], atol=1e-6)


def test_decay_leaves_norms_and_biases_out():
    updates = first_update(weight_decay=0.5, decay_exclude=("norm", "bias"))
    undecayed = first_update(weight_decay=0.0)
    kernel, bias = updates["mlp"]["kernel"], updates["norm"]["bias"]
    assert np.allclose(bias, undecayed["norm"]["bias"])
    assert np.allclose(kernel, undecayed["mlp"]["kernel"] - 1e-3 * 0.5)


def test_groups_have_their_own_settings():
    updates = first_update(groups={"norm": {"learning_rate": 5e-3}})
    assert float(updates["mlp"]["kernel"][0]) == pytest.approx(-1e-3, rel=1e-3)
    assert float(updates["norm"]["bias"][0]) == pytest.approx(-5e-3, rel=1e-3)


@pytest.mark.parametrize(
    ("field", "value"), [("b2", 1.0), ("microbatches", 0), ("warmup_steps", -1)]
)
def test_impossible_settings_are_refused(field, value):
    with pytest.raises(UserError, match=f"optimizer.{field}={value}"):
        OptimizerConfig(**{"learning_rate": 1.0, field: value})
