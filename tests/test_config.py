import dataclasses

import pytest

from encoderjax.command import Parser
from encoderjax.config import RunConfig
from encoderjax.config_loading import (
    add_config_flag,
    config_name,
    load_config,
    parse_with_config,
)
from encoderjax.errors import UserError

TINY = "configs/bert_tiny.py"


def parse(*arguments):
    parser = Parser(command="train", description="", examples=())
    add_config_flag(parser)
    return parse_with_config(parser, [f"--config={TINY}", *arguments])[1]


def test_overrides_take_the_type_of_their_field():
    config = parse(
        "--config.data.batch_size=16",
        "--config.optimizer.learning_rate=1e-4",
        "--config.optimizer.decay_exclude=('norm',)",
        "--config.optimizer.bias_correction=False",
        "--config.objectives.mlm.replace.distribution=unigram",
        "--config.model.num_layers=3",
        "--config.data.corpus=2024",
        "--config.init_from",
        "None",
    )
    assert config.data.batch_size == 16
    assert config.optimizer.learning_rate == 1e-4
    assert config.optimizer.decay_exclude == ("norm",)
    assert config.optimizer.bias_correction is False
    assert config.objectives[0].replace.distribution == "unigram"
    assert config.objectives[0].replace.mask == 0.8
    assert config.model.encoder.num_layers == 3
    assert config.data.corpus == "2024"  # text stays text
    assert config.init_from is None


def test_groups_take_the_types_of_their_fields():
    groups = parse(
        "--config.optimizer.groups.heads.learning_rate=1e-3"
    ).optimizer.groups
    assert groups == {"heads": {"learning_rate": 1e-3}}


def test_an_objective_can_be_switched_off():
    assert [o.name for o in parse("--config.objectives.nsp=None").objectives] == ["mlm"]


def test_a_kernel_that_cannot_compute_the_model_is_refused_at_once():
    with pytest.raises(UserError, match=r"but model.attention_dropout_rate=0.1; set"):
        load_config("configs/bert_base.py", {"compute.attention": "splash"})
    config = load_config("configs/modernbert_base.py", {"compute.attention": "splash"})
    assert RunConfig.from_dict(config.to_dict()).compute == config.compute


def test_batch_tokens_take_the_place_of_batch_size():
    data = parse(
        "--config.data.batch_size=None", "--config.data.batch_tokens=4096"
    ).data
    assert (data.batch_size, data.batch_tokens) == (None, 4096)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        # Misspelt: the nearest right name, or the whole list.
        (
            "data.batchsize=3",
            r"data.batchsize is not a field.*did you mean 'batch_size'",
        ),
        ("model.num_layer=3", r"model.num_layer .*did you mean 'num_layers'"),
        ("optimiser.b1=0.9", r"optimiser is not a field.*did you mean 'optimizer'"),
        ("objectives.mlmm.rate=0.1", r"objectives.mlmm.*did you mean 'mlm'"),
        ("objectives.mlm.rat=0.1", r"objectives.mlm.rat .*did you mean 'rate'"),
        ("model.size=tinny", r"model.size='tinny'.*did you mean 'tiny'"),
        ("model.family=bart", r"model.family='bart'.*did you mean 'bert'"),
        # Of the wrong type or outside a closed set.
        ("steps=many", r"steps='many' must be a whole number"),
        ("steps=1.5", r"steps=1.5 must be a whole number"),
        ("data.length=True", r"data.length=True must be a whole number"),
        ("data.second=sometimes", r"data.second='sometimes' must be one of"),
        ("optimizer.schedule=bret", r"optimizer.schedule='bret'.*did you mean 'bert'"),
        ("data=3", r"data='3' must be a group of fields"),
        # Impossible, alone or together.
        ("steps=0", r"steps=0 must be at least 1"),
        ("data.length=1024", r"data.length=1024.*model.max_length=512"),
        ("model.num_heads=3", r"model.width=128 is not divisible by model.num_heads=3"),
        ("optimizer.warmup_steps=100000", r"optimizer.warmup_steps=100000 exceeds"),
        ("optimizer.microbatches=7", r"data.batch_size=\d+ is not divisible by.*=7"),
        ("data.second=next", r"objectives.nsp needs data.second='random'"),
        ("model.pooler=False", r"objectives.nsp needs model.pooler=True"),
        ("model.dropout_rate=1.0", r"model.dropout_rate=1.0 must be in"),
        ("objectives.mlm=None", None),
        ("mesh.data=-2", r"mesh.data=-2"),
        ("compute.remat=all", r"compute.remat='all' must be one of"),
        ("seed=-1", r"seed=-1"),
        (
            "optimizer.groups={'generator':{'lr':1}}",
            r"optimizer.groups.generator.lr is not a field",
        ),
        ("optimizer.groups.heads=3", r"optimizer.groups.heads='3' must be a group"),
        ("optimizer.groups.heads.microbatches=2", r"cannot differ between groups"),
        ("optimizer.groups.heads.warmup_steps=99999", r"warmup_steps=99999 exceeds"),
        ("model=tiny", r"model='tiny' must be a group"),
        ("objectives=None", r"objectives=None must be a group"),
        ("optimizer.eps=-1", r"optimizer.eps=-1"),
        ("optimizer.learning_rate=1e999", r"learning_rate=inf"),
        ("optimizer.schedule=wsd", r"needs optimizer.decay_steps"),
        ("objectives.nsp.weight=-1", r"objectives.nsp.weight=-1"),
    ],
)
def test_what_cannot_be_is_refused_by_name(override, message):
    if message is None:
        parse(f"--config.{override}")
        message = r"objectives is empty"
        with pytest.raises(UserError, match=message):
            parse(f"--config.{override}", "--config.objectives.nsp=None")
        return
    with pytest.raises(UserError, match=message) as error:
        parse(f"--config.{override}")
    assert "\n" not in str(error.value)


def test_scores_that_read_another_document_are_refused():
    packed = {"objectives.insertion.rate": 0.1, "model.detection_head": "with_cls"}
    with pytest.raises(UserError, match=r"insertion does not go with .*form='packed'"):
        load_config("configs/modernbert_base.py", packed)
    load_config("configs/modernbert_base.py", {"objectives.insertion.rate": 0.1})


def test_unknown_flags_files_and_variants_are_refused():
    with pytest.raises(UserError, match=r"unknown argument '--workdirr'"):
        parse("--workdirr=x")
    with pytest.raises(UserError, match=r"--config.steps needs a value"):
        parse("--config.steps")
    with pytest.raises(UserError, match=r"did you mean 'configs/bert_tiny.py'"):
        load_config("configs/bert_tinny.py")
    with pytest.raises(UserError, match=r"'tin' is not a variant.*did you mean 'tiny'"):
        load_config(f"{TINY}:tin")


def test_a_run_survives_its_description():
    config = parse("--config.model.num_layers=3", "--config.objectives.mlm.rate=0.3")
    again = RunConfig.from_dict(config.to_dict())
    assert dataclasses.replace(again, model=config.model) == config
    assert again.model.encoder == config.model.encoder


def test_names_of_workdirs():
    assert config_name("configs/bert_base.py") == "bert_base"
    assert config_name("configs/bert_base.py:tiny") == "bert_base-tiny"
