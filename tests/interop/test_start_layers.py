"""A run that begins with some of the layers of a model."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers import BertModel

from encoderjax.errors import UserError
from encoderjax.interop.huggingface import params_to_hf
from encoderjax.interop.start import Start
from encoderjax.models.families import preset
from encoderjax.models.heads import EncoderModel
from encoderjax.objectives import Distillation, MaskedLM
from encoderjax.objectives.pretrainer import Pretrainer, divide
from tests.families import random_batch, random_model, torch_inputs
from tests.torch_models import random_bert, save_folder
from tests.training_batches import random_pretraining_batch

DISTILBERT = (0, 2, 4, 7, 9, 11)
STUDENT = dataclasses.replace(
    preset("distilbert", "base"),
    vocab_size=99,
    width=48,
    num_heads=4,
    mlp_width=80,
    max_length=40,
)
# What DistilBERT calls the tensors of a layer, and what BERT does.
LAYER = {
    "attention.q_lin": "attention.self.query",
    "attention.k_lin": "attention.self.key",
    "attention.v_lin": "attention.self.value",
    "attention.out_lin": "attention.output.dense",
    "sa_layer_norm": "attention.output.LayerNorm",
    "ffn.lin1": "intermediate.dense",
    "ffn.lin2": "output.dense",
    "output_layer_norm": "output.LayerNorm",
}
REST = {
    "distilbert.embeddings.word_embeddings.weight": (
        "bert.embeddings.word_embeddings.weight"
    ),
    "distilbert.embeddings.position_embeddings.weight": (
        "bert.embeddings.position_embeddings.weight"
    ),
    "distilbert.embeddings.LayerNorm.weight": "bert.embeddings.LayerNorm.weight",
    "distilbert.embeddings.LayerNorm.bias": "bert.embeddings.LayerNorm.bias",
    "vocab_transform.weight": "cls.predictions.transform.dense.weight",
    "vocab_transform.bias": "cls.predictions.transform.dense.bias",
    "vocab_layer_norm.weight": "cls.predictions.transform.LayerNorm.weight",
    "vocab_layer_norm.bias": "cls.predictions.transform.LayerNorm.bias",
    "vocab_projector.bias": "cls.predictions.bias",
}


@pytest.fixture(scope="module")
def bert():
    return random_bert(num_hidden_layers=12)


@pytest.fixture(scope="module")
def folder(bert, tmp_path_factory):
    """A BERT of twelve layers, with both of its heads."""
    return save_folder(bert, tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def starts(folder):
    """Returns what `init_layers` makes of it, for DistilBERT's and for all."""
    every = (DISTILBERT, None)
    return {
        layers: Start.open(str(folder), ("mlm",), layers=layers) for layers in every
    }


def test_a_student_begins_as_layers_of_its_teacher(bert, folder, starts):
    start = starts[DISTILBERT]
    assert start.config.num_layers == 6
    tokenizer = start.loaded.need_tokenizer()
    start.check(STUDENT, tokenizer, folder)
    model = EncoderModel(STUDENT, ("mlm",))
    params, lines = start.params_for(model, tokenizer, seed=0)

    ours, homeless = params_to_hf(params, "distilbert", STUDENT)
    assert not homeless
    theirs = bert.state_dict()
    names = dict(REST)
    for number, layer in enumerate(DISTILBERT):
        for name, other in LAYER.items():
            for kind in ("weight", "bias"):
                names[f"distilbert.transformer.layer.{number}.{name}.{kind}"] = (
                    f"bert.encoder.layer.{layer}.{other}.{kind}"
                )
    assert set(ours) == set(names)
    for name, other in names.items():
        np.testing.assert_array_equal(ours[name], theirs[other].numpy(), err_msg=name)

    taken = sum(theirs[other].numel() for other in names.values())
    assert f"{taken:,} of {taken:,} parameters loaded" in lines[0]
    assert "encoder/layers are 0, 2, 4, 7, 9, 11 of its 12" in lines
    for part in ("encoder/segment_embed", "encoder/pooler", "heads/nsp"):
        assert f"{part} is there and not used by this run" in lines


def test_what_the_teacher_lacks_is_made_anew(tmp_path):
    model = random_bert(BertModel, num_hidden_layers=3)
    start = Start.open(str(save_folder(model, tmp_path / "m")), ("mlm",), layers=(2, 0))
    student = dataclasses.replace(STUDENT, num_layers=2)
    tokenizer = start.loaded.need_tokenizer()
    params, lines = start.params_for(EncoderModel(student, ("mlm",)), tokenizer, 0)
    assert "heads/mlm is not there: made anew, UNTRAINED" in lines
    assert params["heads"]["mlm"]["dense"]["kernel"].std() > 0
    kernel = params["encoder"]["layers"]["mlp"]["up"]["kernel"]
    for number, layer in enumerate((2, 0)):
        theirs = model.encoder.layer[layer].intermediate.dense.weight
        np.testing.assert_array_equal(kernel[number], theirs.detach().numpy().T)


def test_a_student_with_all_layers_agrees_with_its_teacher(tmp_path):
    bert = random_bert(num_hidden_layers=2)
    start = Start.open(str(save_folder(bert, tmp_path / "m")), ("mlm",), layers=(0, 1))
    teacher, frozen = start.loaded.with_heads("mlm")
    objectives = (MaskedLM(max_predictions=5), Distillation(teacher="there"))
    pretrainer = Pretrainer.create(start.config, objectives, jnp.float32, teacher)
    tokenizer = start.loaded.need_tokenizer()
    params, _ = start.params_for(pretrainer.model, tokenizer, seed=0)
    batch = random_pretraining_batch(rows=4, length=16, slots=5, vocab_size=99)

    @jax.jit
    def means(params, frozen):
        terms, _ = pretrainer.sums(params, {"teacher": frozen}, {}, batch, None)
        return divide(terms, pretrainer.counts(batch))

    found = means(params, frozen)
    assert found["distillation_soft_loss"] == pytest.approx(0, abs=1e-6)
    assert found["distillation_cosine_loss"] == pytest.approx(0, abs=1e-6)
    assert found["distillation_agreement"] == 1
    other = jax.tree.map(lambda leaf: leaf * 1.1, params)
    found = means(other, frozen)
    assert found["distillation_soft_loss"] > 1e-3
    assert found["distillation_cosine_loss"] > 1e-4


# ---- any model without some of its layers ----


@pytest.mark.parametrize(
    ("name", "where", "layers", "changes"),
    [
        ("bert", "bert.encoder", (2, 0, 2), {}),
        ("deberta_v2", "deberta.encoder", (0, 2), {}),  # its first has a convolution
        ("xlnet", "transformer", (1, 2), {}),
        (
            "modernbert",
            "model",
            (0, 3, 2),
            {"layer_types": ["full_attention"] * 4, "num_hidden_layers": 4},
        ),
    ],
    ids=["bert", "deberta_v2", "xlnet", "modernbert_all_global"],
)
def test_a_model_without_some_layers_computes_as_in_pytorch(
    name, where, layers, changes, tmp_path, starts
):
    theirs = random_model(name, **changes)
    theirs.save_pretrained(tmp_path / "model")
    start = Start.open(str(tmp_path / "model"), (), layers=layers)
    model = EncoderModel(start.config)
    tokenizer = starts[None].loaded.need_tokenizer()  # any: no vocabulary changes
    params, _ = start.params_for(model, tokenizer, seed=0)

    holder = theirs.get_submodule(where)
    attribute = "layers" if hasattr(holder, "layers") else "layer"
    kept = torch.nn.ModuleList(getattr(holder, attribute)[i] for i in layers)
    setattr(holder, attribute, kept)
    batch = random_batch(theirs, padded=True)
    with torch.no_grad():
        inputs = torch_inputs(theirs, batch)
        expected = theirs(**inputs, output_hidden_states=True).hidden_states[-1]
    inputs = batch["ids"], batch["mask"], batch["segments"]
    run = jax.jit(lambda params: model.apply({"params": params}, *inputs).hidden)
    hidden = np.asarray(run(params))
    mask = batch["mask"]
    np.testing.assert_allclose(hidden[mask], expected.numpy()[mask], atol=2e-5)


# ---- what is refused ----


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ((), r"init_layers=\(\) names no layer; name some of 0 to 11, or None"),
        ((0, 12), r"init_layers=\(0, 12\): the layers of init_from=.* are 0 to 11"),
        ((-1,), r"init_layers=\(-1,\): the layers of init_from=.* are 0 to 11"),
    ],
)
def test_layers_that_are_not_there_are_refused(folder, layers, words):
    with pytest.raises(UserError, match=words):
        Start.open(str(folder), ("mlm",), layers=layers)


@pytest.mark.parametrize(
    ("name", "layers", "words"),
    [
        ("albert", (0, 1), r"share their weights \(model.sharing='all'"),
        ("modernbert", (0, 3), r"look through a window .*global_every=3"),
        ("deberta_v2", (1, 2), r"layer 0 of .* alone has a convolution"),
        ("deberta_v2", (0, 1, 0), r"it must be the first and no other"),
    ],
)
def test_layers_that_do_not_stand_alone_are_refused(name, layers, words, tmp_path):
    random_model(name).save_pretrained(tmp_path / "model")
    with pytest.raises(UserError, match=words) as error:
        Start.open(str(tmp_path / "model"), ("mlm",), layers=layers)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("layers", "changes", "words"),
    [
        (
            DISTILBERT,
            {"num_layers": 5},
            r"num_layers=5 .*init_layers=\(0, 2, .* 6; name",
        ),
        (DISTILBERT, {"width": 32}, r"model.width=32 does not fit init_from=.* 48"),
        (DISTILBERT, {"num_segments": 3}, r"num_segments=3 does not fit .* has 2"),
        (DISTILBERT, {"activation": "relu"}, r"activation='relu' does not fit"),
        (DISTILBERT, {"max_length": 32}, r"max_length=32 does not fit .* 40"),
        # Without a choice of layers the whole encoder is meant.
        (None, {"num_layers": 12}, r"num_segments=0 does not fit init_from=.* has 2"),
        (None, {"num_segments": 2}, r"num_layers=6 does not fit init_from=.* has 12"),
    ],
)
def test_a_student_that_differs_elsewhere_is_refused(starts, layers, changes, words):
    start = starts[layers]
    folder = start.loaded.source
    tokenizer = start.loaded.need_tokenizer()
    with pytest.raises(UserError, match=words) as error:
        start.check(dataclasses.replace(STUDENT, **changes), tokenizer, folder)
    assert "\n" not in str(error.value)
