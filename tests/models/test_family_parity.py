"""Every family computes what PyTorch computes with the same weights, both ways."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
import transformers

from encoderjax import export
from encoderjax.interop.huggingface import params_to_hf
from encoderjax.interop.loading import load_model
from encoderjax.models.heads import EncoderModel
from tests.families import MODELS, random_batch, random_model, torch_inputs

TOLERANCE = 2e-5
HEADS = {
    "prediction_logits": "mlm",
    "sop_logits": "sop",
    "seq_relationship_logits": "nsp",
    "logits": "mlm",
}


def difference(ours, theirs, mask_BL) -> float:
    """Returns the largest difference where there are tokens."""
    apart = np.abs(np.asarray(ours) - theirs.detach().numpy())
    if apart.shape[:2] == mask_BL.shape:
        apart = apart[mask_BL]
    return float(apart.max())


def expected_logits(theirs, outputs) -> dict[str, torch.Tensor]:
    names = HEADS
    if isinstance(theirs, transformers.ElectraForPreTraining):
        names = {"logits": "rtd"}
    return {names[key]: outputs[key] for key in outputs if key in names}


@pytest.mark.parametrize("name", MODELS)
def test_outputs_and_the_way_back_equal_pytorch(name, tmp_path):
    theirs = random_model(name)
    theirs.save_pretrained(tmp_path / "theirs")
    batches = [random_batch(theirs, padded=padded) for padded in (True, False)]
    loaded = load_model(tmp_path / "theirs")
    assert loaded.report == ()
    model, params = loaded.with_heads(*loaded.head_names)

    def everything(model: EncoderModel, batch):
        outputs = model(batch["ids"], batch["mask"], batch["segments"], layers=True)
        heads = {head: model._logits(head, outputs) for head in loaded.head_names}
        return outputs.layers, heads

    run = jax.jit(
        lambda params, batch: model.apply({"params": params}, batch, method=everything)
    )
    export.run(tmp_path / "theirs", tmp_path / "ours")
    again, info = type(theirs).from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    for batch in batches:
        inputs = torch_inputs(theirs, batch)
        with torch.no_grad():
            outputs = theirs(**inputs, output_hidden_states=True)
            returned = again(**inputs, output_hidden_states=True)
        layers, heads = run(params, batch)
        for ours, layer in zip(layers, outputs.hidden_states, strict=True):
            assert difference(ours, layer, batch["mask"]) < TOLERANCE
        expected = expected_logits(theirs, outputs)
        assert expected.keys() == set(loaded.head_names)
        for head, logits in expected.items():
            assert difference(heads[head], logits, batch["mask"]) < TOLERANCE
        # The way back leaves nothing out: equal to the bit.
        back = expected_logits(theirs, returned)
        for head, logits in expected.items():
            np.testing.assert_array_equal(back[head], logits)


def test_attention_matters_in_the_models_compared():
    """A model that ignored all other tokens would not pass for one that does not."""
    for name in MODELS:
        theirs = random_model(name)
        batch = random_batch(theirs, padded=False)
        changed = batch | {"ids": batch["ids"].copy()}
        changed["ids"][:, 5] = 7
        with torch.no_grad():
            first, second = (
                theirs(**torch_inputs(theirs, b), output_hidden_states=True)
                for b in (batch, changed)
            )
        apart = (first.hidden_states[-1] - second.hidden_states[-1]).abs()
        assert apart[:, 6].max() > 100 * TOLERANCE, name


BASES = {
    "roberta": transformers.RobertaModel,
    "albert": transformers.AlbertModel,
    "electra_discriminator": transformers.ElectraModel,
    "distilbert": transformers.DistilBertModel,
    "modernbert": transformers.ModernBertModel,
    "xlnet": transformers.XLNetModel,
    "deberta": transformers.DebertaModel,
    "deberta_v2": transformers.DebertaV2Model,
}


@pytest.mark.parametrize("name", BASES)
def test_models_without_heads_come_and_go(name, tmp_path):
    torch.manual_seed(0)
    theirs = BASES[name](MODELS[name][1]).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    loaded = load_model(tmp_path / "theirs")
    assert loaded.head_names == ()
    assert loaded.report == ()
    export.run(tmp_path / "theirs", tmp_path / "ours")
    again, info = BASES[name].from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    state = again.state_dict()
    for path, tensor in theirs.state_dict().items():
        np.testing.assert_array_equal(state[path], tensor, path)


@pytest.mark.parametrize(
    "name", ["roberta", "albert", "xlnet", "deberta_v2", "modernbert"]
)
def test_gradient_of_every_parameter_equals_pytorch(name, tmp_path):
    theirs = random_model(name, dropout=False)
    compare_gradients(theirs, random_batch(theirs, padded=True), tmp_path)


@pytest.mark.parametrize("name", ["bert", "xlnet", "deberta_v3"])
def test_gradients_equal_pytorch_where_rows_are_taken_in_blocks(name, tmp_path):
    """In four blocks of 130 queries."""
    changes = {"num_hidden_layers": 1, "max_position_embeddings": 520}
    if name == "xlnet":
        changes = {"n_layer": 1}
    theirs = random_model(name, dropout=False, **changes)
    batch = random_batch(theirs, padded=True, rows=2, length=520)
    compare_gradients(theirs, batch, tmp_path)


def compare_gradients(theirs, batch: dict[str, np.ndarray], tmp_path) -> None:
    """Compares the gradient of a masked LM loss for every parameter."""
    theirs.save_pretrained(tmp_path)
    rng = np.random.default_rng(1)
    chosen_BL = batch["mask"] & (rng.random(batch["mask"].shape) < 0.3)
    labels_BL = rng.integers(0, 99, chosen_BL.shape)

    outputs = theirs(**torch_inputs(theirs, batch))
    logits = expected_logits(theirs, outputs)["mlm"]
    torch.nn.functional.cross_entropy(
        logits[torch.tensor(chosen_BL)], torch.tensor(labels_BL[chosen_BL])
    ).backward()

    loaded = load_model(tmp_path)
    model, params = loaded.with_heads("mlm")

    def loss(model: EncoderModel):
        outputs = model(batch["ids"], batch["mask"], batch["segments"])
        cross_entropy = optax.softmax_cross_entropy_with_integer_labels
        loss_BL = cross_entropy(model.mlm_logits(outputs), labels_BL)
        return jnp.sum(loss_BL * chosen_BL) / chosen_BL.sum()

    gradient = jax.grad(lambda params: model.apply({"params": params}, method=loss))
    tree = jax.jit(gradient)(params)
    ours, homeless = params_to_hf(tree, loaded.family, loaded.config)
    assert all("pooler" in path for path in homeless)  # the loss does not read it
    reference = {
        path: tensor.grad
        for path, tensor in theirs.named_parameters()
        if tensor.grad is not None
    }
    assert len(reference) > 18
    for path, gradient in reference.items():
        apart = float(np.abs(ours[path] - gradient.numpy()).max())
        # A key's bias may add one number to all scores of a query: its true gradient
        # is 0, and both sides hold rounding only. It is measured by its query's.
        scale = reference[path.replace("key.bias", "query.bias")].abs().max()
        assert apart / float(scale) < 1e-4, path
