"""The encoder and its heads compute what PyTorch computes with the same weights."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from transformers import BertConfig, BertForPreTraining, BertModel

import encoderjax
from encoderjax.interop.huggingface import params_to_hf
from encoderjax.interop.loading import load_model
from encoderjax.models.heads import EncoderModel
from tests.torch_models import random_batch, random_bert, save_folder, torch_outputs

TOLERANCE = 1e-5


def apply(model, params, *batch, layers=False):
    run = jax.jit(lambda params: model.apply({"params": params}, *batch, layers=layers))
    return run(params)


def largest_difference(ours, theirs) -> float:
    return float(np.max(np.abs(np.asarray(ours) - theirs.detach().numpy())))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"hidden_act": "gelu_new"},
        {"layer_norm_eps": 1e-2, "type_vocab_size": 3, "num_attention_heads": 3},
    ],
    ids=["bert", "gelu_tanh", "other_sizes"],
)
def test_outputs_equal_pytorch(tmp_path, changes):
    theirs = random_bert(**changes)
    folder = save_folder(theirs, tmp_path)
    batch = random_batch()
    expected = torch_outputs(theirs, *batch, output_hidden_states=True)
    pooled = torch_outputs(theirs.bert, *batch).pooler_output

    model, params = encoderjax.load(folder)
    out = apply(model, params, *batch, layers=True)
    assert out.logits is None
    assert out.layers.shape[0] == len(expected.hidden_states) == 4
    for ours, reference in zip(out.layers, expected.hidden_states, strict=True):
        assert largest_difference(ours, reference) < TOLERANCE
    assert largest_difference(out.hidden, expected.hidden_states[-1]) < TOLERANCE
    assert largest_difference(out.pooled, pooled) < TOLERANCE

    for head, logits in (
        ("mlm", expected.prediction_logits),
        ("nsp", expected.seq_relationship_logits),
    ):
        model, params = encoderjax.load(folder, head=head)
        out = apply(model, params, *batch)
        assert largest_difference(out.logits, logits) < TOLERANCE


def test_the_two_gelus_differ_by_more_than_the_tolerance(tmp_path):
    batch = random_batch()
    exact, tanh = random_bert(), random_bert(hidden_act="gelu_new")
    logits = [torch_outputs(m, *batch).prediction_logits for m in (exact, tanh)]
    assert (logits[0] - logits[1]).abs().max() > 2 * TOLERANCE


def test_gradient_of_every_parameter_equals_pytorch(tmp_path):
    theirs = random_bert(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    ids_BL, mask_BL, segments_BL = random_batch()
    rng = np.random.default_rng(1)
    chosen_BL = mask_BL & (rng.random(mask_BL.shape) < 0.3)
    labels_BL = rng.integers(0, 99, ids_BL.shape)
    pairs_B = np.array([0, 1, 1, 0])

    theirs(
        input_ids=torch.tensor(ids_BL, dtype=torch.long),
        attention_mask=torch.tensor(mask_BL),
        token_type_ids=torch.tensor(segments_BL, dtype=torch.long),
        labels=torch.tensor(np.where(chosen_BL, labels_BL, -100)),
        next_sentence_label=torch.tensor(pairs_B),
    ).loss.backward()

    loaded = load_model(save_folder(theirs, tmp_path))
    model, params = loaded.with_heads("mlm", "nsp")

    def loss(model: EncoderModel):
        outputs = model(ids_BL, mask_BL, segments_BL)
        cross_entropy = optax.softmax_cross_entropy_with_integer_labels
        mlm_BL = cross_entropy(model.mlm_logits(outputs), labels_BL)
        nsp_B = cross_entropy(model.pair_logits("nsp", outputs), pairs_B)
        return jnp.sum(mlm_BL * chosen_BL) / chosen_BL.sum() + jnp.mean(nsp_B)

    gradient = jax.grad(lambda params: model.apply({"params": params}, method=loss))
    ours, _ = params_to_hf(jax.jit(gradient)(params), "bert", loaded.config)
    reference = {name: tensor.grad for name, tensor in theirs.named_parameters()}
    assert ours.keys() == reference.keys()
    for name, tensor in reference.items():
        difference = largest_difference(ours[name], tensor)
        # A key's bias adds one number to all scores of a query: its true gradient
        # is 0, and both sides hold rounding only. It is measured by its query's.
        scale = reference[name.replace("self.key.bias", "self.query.bias")]
        assert difference / scale.abs().max() < TOLERANCE, name


def test_a_published_size_equals_pytorch(tmp_path):
    tiny = BertConfig(
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=512,
    )
    theirs = BertForPreTraining(tiny).eval()
    theirs.save_pretrained(tmp_path)
    batch = random_batch(tiny.vocab_size)
    expected = torch_outputs(theirs, *batch)
    for head, logits in (
        ("mlm", expected.prediction_logits),
        ("nsp", expected.seq_relationship_logits),
    ):
        model, params = encoderjax.load(tmp_path, head=head)
        out = apply(model, params, *batch)
        assert largest_difference(out.logits, logits) < TOLERANCE


def test_without_mask_and_segments_equals_pytorch(tmp_path):
    theirs = random_bert(BertModel)
    ids_BL = random_batch()[0]
    with torch.no_grad():
        expected = theirs(torch.tensor(ids_BL, dtype=torch.long))
    model, params = encoderjax.load(save_folder(theirs, tmp_path))
    out = apply(model, params, ids_BL)
    assert largest_difference(out.hidden, expected.last_hidden_state) < TOLERANCE
