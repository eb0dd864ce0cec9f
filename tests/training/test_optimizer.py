"""Optimisers against PyTorch, optax and float64 walks of the published formulas.

The references see separate tensors, one a layer; ours lie stacked.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

from encoderjax.errors import UserError
from encoderjax.training.mesh import (
    MeshConfig,
    make_mesh,
    map_with_names,
    parameter_shardings,
)
from encoderjax.training.optimizer import OptimizerConfig, make_optimizer

STEPS, LAYERS, PEAK = 12, 3, 0.01


def draw(rng, layers=LAYERS):
    """Returns a tree as a model's, whose layers differ in scale."""
    normal = lambda *shape: rng.normal(size=shape).astype(np.float32)
    scale = np.float32([1.0, 8.0, 0.1][:layers])
    stacked = lambda *shape: (normal(layers, *shape).T * scale).T
    return {
        "encoder": {
            "token_embed": {"embedding": normal(8, 4)},
            "layers": {
                "attention": {"query": {"kernel": stacked(4, 2, 2)}},
                "attention_norm": {"scale": stacked(4)},
                "mlp": {"up": {"kernel": stacked(4, 6), "bias": stacked(6)}},
            },
            "decoder_layers": {"mlp": {"down": {"kernel": stacked(6, 4)}}},
            "final_norm": {"scale": normal(4)},
        },
        "heads": {"mlm": {"dense": {"kernel": normal(4, 4)}, "bias": normal(8)}},
    }


def tensors(tree):
    """Returns {path or path:layer: array in float64}, with the layers apart."""
    found = {}

    def add(name, leaf):
        leaf = np.asarray(leaf, np.float64)
        if "layers/" in name:
            found.update({f"{name}:{i}": entry for i, entry in enumerate(leaf)})
        else:
            found[name] = leaf

    map_with_names(add, tree)
    return found


def start(layers=LAYERS):
    """Returns parameters, of which a layer's kernel and a bias are 0."""
    params = draw(np.random.default_rng(0), layers)
    params = jax.tree.map(lambda x: np.float32(0.1) * x, params)
    params["encoder"]["layers"]["mlp"]["up"]["kernel"][-1] = 0.0
    params["heads"]["mlm"]["bias"][:] = 0.0
    return params


def gradients(layers=LAYERS):
    """Yields trees with quiet steps and leaps; one tensor never has a gradient."""
    rng = np.random.default_rng(1)
    for scale in 0.02, 0.01, 1.0, 0.03, 3.0, 0.02:
        gradient = jax.tree.map(lambda x, s=scale: np.float32(s) * x, draw(rng, layers))
        gradient["encoder"]["layers"]["attention"]["query"]["kernel"][0] = 0.0
        yield gradient


def rate(t, warmup=2):
    """Returns the linear schedule's rate."""
    return PEAK * (t / warmup if t < warmup else (STEPS - t) / (STEPS - warmup))


def ours(layers=LAYERS, **settings):
    """Returns the parameters after all gradients."""
    defaults = {"learning_rate": PEAK, "warmup_steps": 2}
    optimizer, _ = make_optimizer(OptimizerConfig(**defaults | settings), STEPS)
    params = start(layers)
    state, update = optimizer.init(params), jax.jit(optimizer.update)
    for gradient in gradients(layers):
        updates, state = update(gradient, state, params)
        params = optax.apply_updates(params, updates)
    return tensors(params)


def walk(step, clip=1.0):
    """Returns the parameters after `step(name, p, g, m, v, t, lr) -> p, m, v`."""
    params = tensors(start())
    m = v = {name: np.zeros_like(p) for name, p in params.items()}
    for t, gradient in enumerate(gradients()):
        g = tensors(gradient)
        norm = np.sqrt(sum((x * x).sum() for x in g.values()))
        if clip:
            g = {name: x * min(1.0, clip / norm) for name, x in g.items()}
        new = {n: step(n, params[n], g[n], m[n], v[n], t, rate(t)) for n in params}
        params, m, v = ({name: x[i] for name, x in new.items()} for i in range(3))
    return params


def agree(found, expected, tolerance=1e-6):
    assert found.keys() == expected.keys()
    for name in found:
        assert np.abs(found[name] - expected[name]).max() < tolerance, name


def is_decayed(name):
    return not ("norm" in name or "bias" in name)


def moments(g, m, v, t, b1=0.9, b2=0.999, corrected=True):
    """Returns new moments, and what they are divided by."""
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
    return (m, v, 1 - b1 ** (t + 1), 1 - b2 ** (t + 1)) if corrected else (m, v, 1, 1)


def test_googles_adam_has_no_correction_and_spares_norms_and_biases():
    def step(name, p, g, m, v, t, lr):
        m, v, _, _ = moments(g, m, v, t, corrected=False)
        update = m / (np.sqrt(v) + 1e-6)
        if is_decayed(name):
            update = update + 0.01 * p
        return p - lr * update, m, v

    agree(ours(bias_correction=False), walk(step))


def follow_torch(groups_of, **settings):
    """Returns the parameters after torch's AdamW; `groups_of(name)` are its options."""
    params = {
        n: torch.tensor(p, requires_grad=True) for n, p in tensors(start()).items()
    }
    groups = [{"params": [p], **groups_of(name)} for name, p in params.items()]
    optimizer = torch.optim.AdamW(groups, lr=PEAK, eps=1e-6, **settings)
    peaks = [group["lr"] for group in optimizer.param_groups]
    for t, gradient in enumerate(gradients()):
        for name, g in tensors(gradient).items():
            params[name].grad = torch.tensor(g)
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak * rate(t) / PEAK
        optimizer.step()
    return {name: p.detach().numpy() for name, p in params.items()}


def test_fairseqs_adam_is_torchs_and_decays_all():
    found = ours(b2=0.98, weight_decay=0.1, decay_exclude=(), clip_norm=0)
    expected = follow_torch(lambda name: {}, betas=(0.9, 0.98), weight_decay=0.1)
    agree(found, expected)


def test_composers_decay_is_not_times_the_learning_rate():
    def step(name, p, g, m, v, t, lr):
        m, v, first, second = moments(g, m, v, t, b2=0.98)
        p = p * (1 - 1e-3 * lr / PEAK)
        return p - lr * (m / first) / (np.sqrt(v / second) + 1e-6), m, v

    settings = dict(b2=0.98, weight_decay=1e-3, decay_exclude=(), clip_norm=0)
    agree(ours(decoupled_decay=True, **settings), walk(step, clip=0))


def lamb_step(trusted, corrected, weight_decay=0.01):
    """Returns a step of LAMB for `walk`."""

    def step(name, p, g, m, v, t, lr):
        m, v, first, second = moments(g, m, v, t, corrected=corrected)
        update = (m / first) / (np.sqrt(v / second) + 1e-6)
        if is_decayed(name):
            update = update + weight_decay * p
        weights, length = np.linalg.norm(p), np.linalg.norm(update)
        ratio = weights / length if trusted(name) and weights and length else 1.0
        return p - lr * ratio * update, m, v

    return step


def test_alberts_lamb():
    found = ours(name="lamb", bias_correction=False)
    agree(found, walk(lamb_step(is_decayed, corrected=False)))
    # Without any decay it scales the same parameters.
    found = ours(name="lamb", bias_correction=False, weight_decay=0.0)
    agree(found, walk(lamb_step(is_decayed, corrected=False, weight_decay=0.0)))


def test_nvidias_lamb():
    settings = dict(name="lamb", trust_ratio="decayed")
    agree(ours(**settings), walk(lamb_step(is_decayed, corrected=True)))
    # Without any decay it is Adam; with use_nvlamb it scales all parameters.
    adam = lamb_step(lambda name: False, corrected=True, weight_decay=0.0)
    agree(ours(**settings, weight_decay=0.0), walk(adam))
    settings["trust_ratio"] = "all"
    agree(ours(**settings), walk(lamb_step(lambda name: True, corrected=True)))


def test_lamb_equals_optax_where_no_layers_are_stacked():
    config = OptimizerConfig(
        name="lamb",
        learning_rate=PEAK,
        schedule="constant",
        weight_decay=0.1,
        decay_exclude=(),
        clip_norm=0,
    )
    reference = optax.lamb(PEAK, eps=1e-6, weight_decay=0.1)
    follow_optax(make_optimizer(config, STEPS)[0], reference)


def test_adamw_equals_optax_over_many_steps():
    config = OptimizerConfig(
        learning_rate=PEAK, schedule="constant", weight_decay=0.1, decay_exclude=()
    )
    reference = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(PEAK, eps=1e-6, weight_decay=0.1)
    )
    follow_optax(make_optimizer(config, STEPS)[0], reference)


def follow_optax(optimizer, reference):
    rng = np.random.default_rng(0)
    params = [{"kernel": jnp.asarray(rng.normal(size=(5, 4)), jnp.float32)}] * 2
    states = [optimizer.init(params[0]), reference.init(params[1])]
    for _ in range(20):
        gradient = {"kernel": jnp.asarray(rng.normal(size=(5, 4)), jnp.float32)}
        for i, each in enumerate((optimizer, reference)):
            updates, states[i] = each.update(gradient, states[i], params[i])
            params[i] = optax.apply_updates(params[i], updates)
    assert np.allclose(params[0]["kernel"], params[1]["kernel"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("decoupled", [True, False])
def test_stable_adamw_divides_the_learning_rate_by_the_rms(decoupled):
    clipped = set()

    def step(name, p, g, m, v, t, lr):
        m, v, first, second = moments(g, m, v, t, b2=0.98)
        rms = np.sqrt(np.mean(g * g / np.maximum(v / second, 1e-12)))
        clipped.add(rms > 1.001)
        lr = lr / max(1.0, rms)
        decay = 1e-3 * (lr / PEAK if decoupled else lr) * is_decayed(name)
        p = p * (1 - decay)
        return p - lr * (m / first) / (np.sqrt(v / second) + 1e-6), m, v

    settings = dict(b2=0.98, weight_decay=1e-3, decoupled_decay=decoupled)
    agree(ours(name="stable_adamw", clip_norm=0, **settings), walk(step, clip=0))
    assert clipped == {True, False}


def factor(name):
    """Returns the learning rate of a parameter, three layers and a factor of 0.5."""
    if "encoder/layers/" in name:
        return {"0": 0.125, "1": 0.25, "2": 0.5}[name[-1]]
    return 0.0625 if "token_embed" in name else 1.0


def test_layers_have_the_learning_rates_of_torchs_groups():
    settings = dict(b2=0.98, weight_decay=0.1, decay_exclude=(), clip_norm=0)
    expected = follow_torch(
        lambda name: {"lr": PEAK * factor(name)}, betas=(0.9, 0.98), weight_decay=0.1
    )
    agree(ours(layer_decay=0.5, **settings), expected)
    # However the parameters are grouped.
    grouped = ours(layer_decay=0.5, groups={"token_embed": {"b1": 0.9}}, **settings)
    agree(grouped, expected)


def test_layer_decay_may_differ_between_groups():
    in_group = lambda name: "encoder/layers/mlp" in name
    expected = follow_torch(
        lambda name: {"lr": PEAK * (factor(name) if in_group(name) else 1.0)},
        weight_decay=0.1,
    )
    settings = dict(weight_decay=0.1, decay_exclude=(), clip_norm=0)
    agree(ours(groups={"mlp": {"layer_decay": 0.5}}, **settings), expected)


def test_layers_that_share_weights_stand_below_the_heads():
    updates = update_of({"encoder/layers/mlp/up/kernel": (1, 2), **SINGLE}, 0.5)
    assert updates == pytest.approx([0.5, 0.25, 1.0, 1.0], rel=1e-4)


def test_two_networks_have_depths_of_their_own():
    shapes = {
        "generator/encoder/layers/mlp/up/kernel": (1, 2),
        "generator/encoder/token_embed/embedding": (2,),
        "encoder/layers/mlp/up/kernel": (2, 2),
        "encoder/layers/attention_norm/scale": (1, 2),  # of the last layer
        **SINGLE,
    }
    updates = update_of(shapes, 0.5)
    expected = [0.5, 0.25, 0.25, 0.5, 0.5, 0.125, 1.0, 1.0]
    assert updates == pytest.approx(expected, rel=1e-4)


SINGLE = {
    "encoder/token_embed/embedding": (2,),
    "encoder/pooler/kernel": (2,),
    "heads/mlm/dense/kernel": (2,),
}


def update_of(shapes, layer_decay):
    """Returns the first step of each tensor, in learning rates."""
    config = OptimizerConfig(
        learning_rate=PEAK,
        schedule="constant",
        weight_decay=0.0,
        clip_norm=0,
        layer_decay=layer_decay,
    )
    optimizer, _ = make_optimizer(config, STEPS)
    params = {name: jnp.ones(shape) for name, shape in shapes.items()}
    updates, _ = optimizer.update(params, optimizer.init(params), params)
    means = [np.mean(updates[n].reshape(-1, 2), axis=1) / -PEAK for n in shapes]
    return np.concatenate(means).tolist()


@pytest.mark.parametrize("name", ["adamw", "lamb", "stable_adamw"])
def test_groups_and_meshes_change_no_update(name):
    settings = dict(name=name, learning_rate=PEAK, layer_decay=0.9, clip_norm=0)
    groups = {"token_embed": {"weight_decay": 0.01}, "layers": {"eps": 1e-6}}
    one, _ = make_optimizer(OptimizerConfig(**settings), STEPS)
    other, _ = make_optimizer(OptimizerConfig(**settings, groups=groups), STEPS)
    params, gradient = start(), next(gradients())
    expected, _ = one.update(gradient, one.init(params), params)

    mesh = make_mesh(MeshConfig(data=1, fsdp=2, model=2), jax.devices()[:4])
    place = lambda tree: jax.device_put(tree, parameter_shardings(mesh, tree))
    with jax.set_mesh(mesh):
        state = place(other.init(params))
        found, _ = jax.jit(other.update)(place(gradient), state, place(params))
    agree(tensors(found), tensors(expected))


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


def test_what_has_no_learning_rate_is_not_decayed():
    groups = {"mlp": {"learning_rate": 0.0}}
    updates = first_update(weight_decay=0.5, decoupled_decay=True, groups=groups)
    assert not np.any(updates["mlp"]["kernel"])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("b2", 1.0),
        ("microbatches", 0),
        ("warmup_steps", -1),
        ("layer_decay", 0.0),
        ("layer_decay", 1.1),
        ("power", 0.0),
    ],
)
def test_impossible_settings_are_refused(field, value):
    with pytest.raises(UserError, match=f"optimizer.{field}={value}"):
        OptimizerConfig(**{"learning_rate": 1.0, field: value})


def test_lamb_cannot_decouple_its_decay():
    with pytest.raises(UserError, match=r"decoupled_decay=True does not go with"):
        OptimizerConfig(name="lamb", learning_rate=1.0, decoupled_decay=True)


@pytest.mark.parametrize(
    "unread",
    [
        {"power": 2.0},
        {"power": 2.0, "schedule": "wsd", "decay_steps": 5},
        {"power": 2.0, "schedule": "inverse_sqrt", "warmup_steps": 2},
        {"end_share": 0.1},
        {"decay_steps": 5, "schedule": "linear"},
        {"trust_ratio": "all", "name": "stable_adamw"},
    ],
)
def test_settings_that_nothing_reads_are_refused(unread):
    field, value = next(iter(unread.items()))
    settings = {"learning_rate": 1.0, "schedule": "constant"} | unread
    message = f"optimizer.{field}={value!r} is (not )?read by"
    with pytest.raises(UserError, match=message):
        make_optimizer(OptimizerConfig(**settings), STEPS)


def test_groups_read_what_belongs_to_the_settings_of_the_run():
    """So that they may differ in it alone; what they take over must be read, too."""
    run = dict(learning_rate=PEAK, schedule="wsd", decay_steps=5)
    longer = {"mlp": {"decay_steps": 8}}
    make_optimizer(OptimizerConfig(**run, groups=longer), STEPS)
    lamb = {"name": "lamb", "groups": {"mlp": {"trust_ratio": "all"}}}
    make_optimizer(OptimizerConfig(learning_rate=PEAK, **lamb), STEPS)
    constant = {"mlp": {"schedule": "constant"}}
    with pytest.raises(UserError, match=r"groups\.mlp: optimizer\.decay_steps=5 is"):
        make_optimizer(OptimizerConfig(**run, groups=constant), STEPS)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"groups": {"atention/": {"b1": 0.8}}},
            r"groups\.atention/ is found.*did you mean 'attention'",
        ),
        (
            {"groups": {"mlp": {"b1": 0.8}, "mlp/up": {"b1": 0.7}}},
            r"groups\.mlp/up is found.*only as an earlier group",
        ),
        (
            {"decay_exclude": ("norm", "final_nrom")},
            r"decay_exclude has 'final_nrom'.*did you mean 'final_norm'",
        ),
        (
            {"groups": {"mlp": {"decay_exclude": ("scales",)}}},
            r"decay_exclude has 'scales'.*did you mean 'scale'",
        ),
    ],
)
def test_patterns_without_parameters_are_refused(settings, message):
    config = OptimizerConfig(learning_rate=PEAK, **settings)
    optimizer, _ = make_optimizer(config, STEPS)
    with pytest.raises(UserError, match=message):
        jax.eval_shape(optimizer.init, start())


def test_the_usual_exclusions_need_no_parameters():
    config = OptimizerConfig(learning_rate=PEAK)
    make_optimizer(config, STEPS)[0].init({"mlp": {"kernel": jnp.ones(3)}})


@pytest.mark.parametrize("groups", [{}, {"mlp": {"weight_decay": 0.1}}])
def test_numbers_do_not_change_what_the_state_consists_of(groups):
    """Phases that differ in them go on with the state of each other."""

    def structure(**numbers):
        config = OptimizerConfig(learning_rate=PEAK, groups=groups, **numbers)
        optimizer, _ = make_optimizer(config, STEPS)
        return jax.tree.structure(jax.eval_shape(optimizer.init, start()))

    others = {"clip_norm": 0.0, "layer_decay": 0.9, "weight_decay": 0.0}
    others |= {"bias_correction": False, "decay_exclude": (), "eps": 1e-8}
    found = {name: structure(**{name: value}) for name, value in others.items()}
    assert found == dict.fromkeys(others, structure())
