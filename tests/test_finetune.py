"""Fine-tuning from a folder to metrics, predictions and an export."""

import json
import shutil

import numpy as np
import pytest
import torch
import transformers

from encoderjax import export, finetune, predict
from encoderjax.errors import UserError
from encoderjax.interop.weights import read_json
from tests.small_runs import all_lines, metrics
from tests.small_tasks import (
    finetune_config,
    write_answer,
    write_bert,
    write_choose,
    write_classify,
    write_csv,
    write_pairs,
    write_tag,
)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory, corpus):
    return write_bert(tmp_path_factory.mktemp("encoder"), corpus.tokenizer)


def run(recipe, encoder, workdir, **changes):
    config = finetune_config(recipe, init_from=encoder, **changes)
    workdir.mkdir(exist_ok=True)
    return finetune.run(config, workdir)


@pytest.fixture(scope="module")
def classified(encoder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("classified")
    path = write_classify(folder / "train.csv")
    settings = {"data__train": path, "data__test": path, "epochs": 12}
    return folder, run("classify.py", encoder, folder / "run", **settings)


def test_a_classifier_learns_and_is_used_elsewhere(classified, tmp_path, capsys):
    folder, found = classified
    assert found["validation/accuracy"] > 0.9
    best = read_json(folder / "run" / "best.json")["step"]
    assert metrics(folder / "run", "validation")[best]["accuracy"] == pytest.approx(
        found["validation/accuracy"]
    )
    lines = (folder / "run/predictions/test.jsonl").read_text().splitlines()
    assert len(lines) == 240
    assert {"where", "label", "scores"} <= set(json.loads(lines[0]))
    for name in ("curves.png", "confusion_validation.png"):
        assert (folder / "run" / name).read_bytes().startswith(b"\x89PNG")

    # Predictions of the workdir, of its export, and of transformers agree.
    texts = ["The sailor fears the storm.", "The judge keeps the old law."]
    ours = predict.Predictor.load(folder / "run")
    expected = ours(ours.of_texts(texts))
    assert [p["label"] for p in expected] == ["sea", "law"]
    export.run(folder / "run", tmp_path / "hf")
    again = predict.Predictor.load(tmp_path / "hf")
    assert again(again.of_texts(texts)) == expected
    pipeline = transformers.pipeline("text-classification", str(tmp_path / "hf"))
    for prediction, theirs in zip(expected, pipeline(texts), strict=True):
        assert theirs["label"] == prediction["label"]
        assert theirs["score"] == pytest.approx(
            max(prediction["scores"].values()), 1e-4
        )


def test_the_command_predicts_files_and_measures_them(classified, tmp_path, capsys):
    folder, found = classified
    model = f"--model={folder / 'run'}"
    predict.main([model, f"--input={folder / 'train.csv'}", "--evaluate"])
    measured = json.loads(capsys.readouterr().out)
    assert measured["accuracy"] == pytest.approx(found["test/accuracy"])
    # Whatever is in a line, only its end ends it.
    (tmp_path / "new.txt").write_text(
        "The whale follows the tide. \u2028 \nThe barn.\n"
    )
    out = tmp_path / "made" / "out.jsonl"
    predict.main([model, f"--input={tmp_path / 'new.txt'}", f"--out={out}"])
    first, second = map(json.loads, out.read_text().strip().split("\n"))
    assert (first["label"], second["label"]) == ("sea", "farm")
    assert second["where"].endswith("new.txt:2")
    with pytest.raises(UserError, match=r"new\.txt/a' cannot be written"):
        predict.main([model, "a text", f"--out={tmp_path / 'new.txt' / 'a'}"])
    with pytest.raises(UserError, match="made' cannot be written"):
        predict.main([model, "a text", f"--out={out.parent}"])
    assert {path.name for path in tmp_path.iterdir()} == {"new.txt", "made"}
    with pytest.raises(UserError, match="no column 'review'"):
        predict.main(
            [model, f"--input={folder / 'train.csv'}", "--columns.text=review"]
        )


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_an_export_says_what_fewer_bits_change(dtype, classified, tmp_path, capsys):
    """What it says is measured again with the folder that was written."""
    folder, found = classified
    (tmp_path / "test.csv").write_text((folder / "train.csv").read_text())
    examples = f"--examples={tmp_path / 'test.csv'}"
    flags = [f"--workdir={folder / 'run'}", f"--dtype={dtype}"]
    export.main([*flags, f"--out={tmp_path / 'hf'}", examples])
    said = capsys.readouterr().out
    predictor = predict.Predictor.load(tmp_path / "hf")
    read = predictor.read(str(tmp_path / "test.csv"), {}, None, answered=True)
    after = predictor.metrics(read)
    assert f"float32 -> {dtype} on 240 examples: accuracy " in said
    for name, value in after.items():
        assert f"{name} {found[f'test/{name}']:.4f} -> {value:.4f}" in said
    with pytest.raises(UserError, match=r"cannot read nope\.csv"):
        export.main([*flags, f"--out={tmp_path / 'no'}", "--examples=nope.csv"])
    assert not (tmp_path / "no").exists()


METRICS = {
    "classify": "accuracy, macro_f1, matthews, loss",
    "tag": "f1, precision, recall, accuracy, loss",
    "answer": "f1, exact_match, has_answer_f1, has_answer_exact, no_answer_f1, "
    "no_answer_exact, best_f1, best_f1_threshold, best_exact, best_exact_threshold, "
    "loss",
    "choose": "accuracy, loss",
}


@pytest.mark.parametrize("kind", METRICS)
def test_a_metric_that_is_not_there_is_missed_before_training(kind, encoder, tmp_path):
    recipe, write, name, _ = CURVES[kind]
    changes = {"no_answer": True} if kind == "answer" else {}
    settings = {"data__train": write(tmp_path / name, **changes), "data__length": 64}
    message = rf"eval\.metric='f7' is not measured \(metrics: {METRICS[kind]}\); name"
    with pytest.raises(UserError, match=message):
        run(recipe, encoder, tmp_path / "run", eval__metric="f7", **settings)
    assert not list((tmp_path / "run").iterdir())
    settings |= {"init_from": encoder, "eval__metric": "loss"}
    finetune.TaskRun.open(finetune_config(recipe, **settings), tmp_path / "run")


def test_a_run_keeps_the_encoder_that_it_began_with(
    encoder, classified, corpus, tmp_path
):
    """Wherever that is by now; another one is refused."""
    folder, _ = classified
    workdir = shutil.copytree(folder / "run", tmp_path / "run")
    path = str(folder / "train.csv")
    settings = {"data__train": path, "data__test": path, "epochs": 12}
    other = write_bert(tmp_path / "other", corpus.tokenizer, initializer_range=0.2)
    with pytest.raises(UserError, match=rf"{other} is another encoder than {encoder},"):
        run("classify.py", other, workdir, **settings)
    shutil.copytree(encoder, tmp_path / "moved")
    for name in ("moved", "nowhere"):
        config = finetune_config("classify.py", init_from=tmp_path / name, **settings)
        described = finetune.TaskRun.open(config, workdir).described()
        assert json.loads(json.dumps(described)) == read_json(workdir / "config.json")


def test_what_the_best_step_depends_on_may_not_change(encoder, tmp_path):
    train = write_classify(tmp_path / "train.csv", 48)
    dev, other = (write_classify(tmp_path / f"{i}.csv", 48, seed=i) for i in (1, 2))
    settings = {"data__train": train, "data__validation": dev, "steps": 1}
    run("classify.py", encoder, tmp_path / "run", **settings)
    changed = settings | {"data__validation": other, "steps": 2}
    with pytest.raises(UserError, match=r"the validation examples='\w+' does not fit"):
        run("classify.py", encoder, tmp_path / "run", **changed)
    changed = settings | {"task__class_weights": "balanced"}
    with pytest.raises(UserError, match=r"task\.class_weights\.farm=.* does not fit"):
        run("classify.py", encoder, tmp_path / "run", **changed)


def test_what_examples_decide_may_be_said_or_not(encoder, tmp_path):
    """And files may move: what a checkpoint must agree with is the same."""
    rows = [(f"A ship {i}.", "sea") for i in range(6)]
    rows += [(f"A barn {i}.", "farm") for i in range(2)]
    train = write_csv(tmp_path / "train.csv", ["text", "label"], rows)
    shutil.copy(train, tmp_path / "moved.csv")
    settings = {"data__train": train, "data__validation": train}

    def identity(**changes):
        config = finetune_config("classify.py", init_from=encoder, **settings | changes)
        return finetune.TaskRun.open(config, tmp_path / "run").identity()

    moved = str(tmp_path / "moved.csv")
    assert identity() == identity(data__train=moved, data__validation=moved)
    assert identity() == identity(task__labels="['farm','sea']")
    assert identity() == identity(eval__metric="matthews")
    balanced = identity(task__class_weights="balanced")
    weights = {"sea": 8 / 12, "farm": 8 / 4}
    assert balanced == identity(task__class_weights=weights) != identity()


@pytest.mark.slow
def test_a_run_resumes_bit_for_bit(encoder, classified, tmp_path):
    """With the encoder's folder gone, after the checkpoint of the first epoch."""
    folder, _ = classified
    path = str(folder / "train.csv")
    settings = {"data__train": path, "keep": 9, "model__dropout_rate": 0.1}
    run("classify.py", encoder, tmp_path / "a", **settings)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    first, *later = sorted(int(p.name) for p in (tmp_path / "a/checkpoints").iterdir())
    for step in later:
        shutil.rmtree(tmp_path / "b/checkpoints" / str(step))
    run("classify.py", tmp_path / "nowhere", tmp_path / "b", **settings)
    clock = ("seconds", "tokens_per_second", "mfu")
    exact = [
        [{k: v for k, v in line.items() if k not in clock} for line in all_lines(w)]
        for w in (tmp_path / "a", tmp_path / "b")
    ]
    assert exact[0] == exact[1]
    assert any(line["step"] > first for line in exact[1])
    best = [read_json(tmp_path / w / "best.json") for w in ("a", "b")]
    assert best[0] == best[1]
    with pytest.raises(UserError, match="seed=3 does not fit the checkpoint"):
        run("classify.py", encoder, tmp_path / "a", seed=3, **settings)


@pytest.mark.slow
def test_tags_become_entities_with_places_in_the_text(encoder, tmp_path):
    path = write_tag(tmp_path / "train.conll")
    found = run("tag.py", encoder, tmp_path / "run", data__train=path, epochs=12)
    assert found["validation/f1"] > 0.9
    predictor = predict.Predictor.load(tmp_path / "run")
    text = "The captain   praises the old harbour."
    (prediction,) = predictor(predictor.of_texts([text]))
    spans = [(e["type"], e["text"], e["start"]) for e in prediction["entities"]]
    assert spans == [("SEA", "captain", 4), ("SEA", "harbour", 30)]
    for entity in prediction["entities"]:
        assert text[entity["start"] : entity["end"]] == entity["text"]


@pytest.mark.parametrize("no_answer", [False, True])
@pytest.mark.slow
def test_answers_are_found_in_windows(encoder, tmp_path, no_answer):
    path = write_answer(tmp_path / "train.json", no_answer=no_answer)
    settings = {"data__train": path, "data__length": 24, "data__stride": 6, "epochs": 8}
    found = run("answer.py", encoder, tmp_path / "run", **settings)
    (tmp_path / "a.txt").write_text("The sailor fears the storm.\nThe old barn.\n")
    predictor = predict.Predictor.load(tmp_path / "run")
    asked = predictor.read(
        str(tmp_path / "a.txt"), {}, None, answered=False, question="what?"
    )
    assert [x.question for x in asked] == ["what?", "what?"]
    with pytest.raises(UserError, match="has questions of its own; leave it out"):
        predictor.read(path, {}, None, answered=False, question="what?")
    assert found["validation/f1"] > 60.0
    assert ("validation/no_answer_f1" in found) == no_answer
    line = json.loads(
        (tmp_path / "run/predictions/validation.jsonl").read_text().splitlines()[0]
    )
    assert {"id", "answer", "start", "end", "nbest"} <= set(line)


@pytest.mark.slow
def test_the_right_choice_is_learned(encoder, tmp_path):
    path = write_choose(tmp_path / "train.jsonl", count=400)
    found = run("choose.py", encoder, tmp_path / "run", data__train=path, epochs=15)
    assert found["validation/accuracy"] > 0.5  # a third by chance


@pytest.mark.slow
def test_numbers_of_pairs_are_learned(encoder, tmp_path):
    path = write_pairs(tmp_path / "train.csv", count=800)
    columns = {"data__columns__pair": "other", "data__columns__label": "score"}
    found = run(
        "classify.py:regression",
        encoder,
        tmp_path / "run",
        data__train=path,
        epochs=12,
        **columns,
    )
    # Targets are 0 and 1: ranks of numbers can follow them in part only.
    assert found["validation/pearson"] > 0.4
    assert found["validation/mse"] == pytest.approx(found["validation/loss"], rel=1e-4)


@pytest.mark.slow
def test_a_run_ends_when_it_gets_no_better(encoder, classified, tmp_path):
    """Without learning, the first evaluation is the best; two more end the run."""
    folder, _ = classified
    run(
        "classify.py",
        encoder,
        tmp_path / "run",
        data__train=str(folder / "train.csv"),
        optimizer__learning_rate=0.0,
        eval__patience=2,
        eval__every=3,
        epochs=9,
    )
    measured = sorted(metrics(tmp_path / "run", "validation"))
    assert measured == [3, 6, 9]
    assert read_json(tmp_path / "run/best.json") == {"step": 3}
    kept = sorted(int(p.name) for p in (tmp_path / "run/checkpoints").iterdir())
    assert kept == [3, 9]  # the best, and the newest


@pytest.mark.slow
def test_frozen_layers_stay_and_the_rest_moves(encoder, classified, tmp_path):
    folder, _ = classified
    start = predict.load_task  # of the same form
    settings = {"data__train": str(folder / "train.csv"), "steps": 4, "keep": 9}
    run("classify.py", encoder, tmp_path / "a", freeze=1, **settings)
    after = start(tmp_path / "a").params["encoder"]
    before = finetune.TaskRun.open(
        finetune_config("classify.py", init_from=encoder, **settings), tmp_path / "none"
    ).start.params["encoder"]
    tables = (tree["token_embed"]["embedding"] for tree in (before, after))
    np.testing.assert_array_equal(*tables)
    kernels = [t["layers"]["mlp"]["up"]["kernel"] for t in (before, after)]
    np.testing.assert_array_equal(kernels[0][0], kernels[1][0])
    assert np.abs(kernels[0][1] - kernels[1][1]).max() > 1e-5


# ---- beside PyTorch ----


def torch_batch(batch):
    as_long = lambda x: torch.tensor(np.asarray(x), dtype=torch.long)
    return {
        "input_ids": as_long(batch["ids"]),
        "attention_mask": as_long(batch["mask"]),
        "token_type_ids": as_long(batch["segments"]),
    }


def labels_of(kind, batch):
    as_long = lambda x: torch.tensor(np.asarray(x), dtype=torch.long)
    if kind == "answer":
        return {
            "start_positions": as_long(batch["task/start"]),
            "end_positions": as_long(batch["task/end"]),
        }
    labels = as_long(batch["task/labels"])
    return {"labels": torch.where(labels < 0, -100, labels)}


CURVES = {
    "classify": ("classify.py", write_classify, "train.csv", 300),
    "tag": ("tag.py", write_tag, "train.conll", 100),
    "answer": ("answer.py", write_answer, "train.json", 100),
    "choose": ("choose.py", write_choose, "train.jsonl", 60),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", CURVES)
def test_the_loss_follows_pytorch_step_by_step(kind, encoder, tmp_path):
    """From the same weights, on the same batches, without dropout."""
    recipe, write, name, steps = CURVES[kind]
    settings = {
        "data__train": write(tmp_path / name),
        "steps": steps,
        "keep": 9,
        "eval__every": steps,
        "model__dropout_rate": 0.0,
        "model__attention_dropout_rate": 0.0,
        "optimizer__learning_rate": 1e-3,
    }
    config = finetune_config(recipe, init_from=encoder, **settings)
    task_run = finetune.TaskRun.open(config, tmp_path / "run")
    (tmp_path / "start").mkdir()
    params, _ = task_run.initial_params()
    theirs = exported_start(task_run, params, tmp_path)
    (tmp_path / "run").mkdir()
    finetune.run(config, tmp_path / "run")
    ours = [line["loss"] for _, line in sorted(metrics(tmp_path / "run").items())]

    groups = [{"params": [], "weight_decay": w} for w in (0.01, 0.0)]
    for parameter, tensor in theirs.named_parameters():
        plain = parameter.endswith("bias") or "LayerNorm" in parameter
        groups[plain]["params"].append(tensor)
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.999), eps=1e-6)
    schedule = transformers.get_linear_schedule_with_warmup(
        optimizer, round(0.1 * steps), steps
    )
    source, expected = task_run.source(), []
    for step in range(steps):
        batch = source.batch(step)
        loss = theirs(**torch_batch(batch), **labels_of(kind, batch)).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        expected.append(float(loss.detach()))
    assert expected[-1] < 0.7 * expected[0]  # it does learn
    assert ours == pytest.approx(expected, abs=1e-3)


def exported_start(task_run, params, folder):
    """Returns the class of transformers with the parameters that a run begins with."""
    from encoderjax.interop.task_loading import LoadedTask
    from encoderjax.interop.writing import write_task_hf

    loaded = LoadedTask(
        family=task_run.family,
        config=task_run.encoder,
        description=task_run.description(),
        params=params,
        tokenizer=task_run.tokenizer,
        source=folder,
    )
    write_task_hf(folder / "start", loaded, "float32")
    config = read_json(folder / "start/config.json")
    model_class = getattr(transformers, config["architectures"][0])
    model = model_class.from_pretrained(folder / "start").train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(module, torch.nn.Embedding):
            # PyTorch leaves the row of padding as it is, though the places of padding
            # are among those that an answer is looked for at.
            module.padding_idx = None
    return model


# ---- broken input ----


def test_an_unknown_label_is_named_with_its_place(encoder, classified, tmp_path):
    folder, _ = classified
    (tmp_path / "dev.csv").write_text("text,label\nThe ship.,sea\nThe moon.,sky\n")
    with pytest.raises(UserError, match=r"dev.csv:3: label 'sky' is not one of farm"):
        run(
            "classify.py",
            encoder,
            tmp_path / "run",
            data__train=str(folder / "train.csv"),
            data__validation=str(tmp_path / "dev.csv"),
        )


def test_another_label_set_than_the_checkpoints_is_refused(classified, tmp_path):
    folder, _ = classified
    (tmp_path / "other.csv").write_text(
        "text,label\n" + "A ship.,wet\nA barn.,dry\n" * 9
    )
    with pytest.raises(UserError, match=r"labels \['dry', 'wet'\].*new_head=True"):
        run(
            "classify.py",
            folder / "run",
            tmp_path / "run",
            data__train=str(tmp_path / "other.csv"),
        )


def test_a_text_of_ten_thousand_words_is_cut_or_read_in_windows(
    encoder, classified, tmp_path
):
    folder, _ = classified
    long = "The ship sees the old wave. " * 2000
    text = (folder / "train.csv").read_text()
    (tmp_path / "long.csv").write_text(f"{text}{long},sea\n")
    for cut in ("both", "windows"):
        config = finetune_config(
            "classify.py",
            init_from=encoder,
            data__train=str(tmp_path / "long.csv"),
            data__cut=cut,
            data__validation_share=0.0,
            data__stride=16,
        )
        encoded = finetune.TaskRun.open(config, tmp_path).items["train"].encoded
        rows = sum(encoded.examples == 240)
        assert (rows > 400) == (cut == "windows")
        assert max(len(row) for (row,) in encoded.items) == 32


@pytest.mark.parametrize(
    ("recipe", "changes", "message"),
    [
        ("classify.py", {"data__train": None}, "data.train is missing"),
        ("classify.py", {"init_from": None}, "init_from is missing"),
        (
            "classify.py",
            {"data__columns__label": "topic"},
            "no column 'topic' for label",
        ),
        (
            "classify.py",
            {"data__columns__lable": "x"},
            "lable is not a role of task.kind='classify'; did you mean 'label'",
        ),
        ("classify.py", {"data__length": 100}, "longer than the encoder can read, 64"),
        ("classify.py", {"task__kind": "classifi"}, "did you mean 'classify'"),
        ("classify.py", {"task__class_weights": "{'sea': 2}"}, "'farm' is missing"),
        ("classify.py:regression", {}, "'sea' is not a number|is not a number"),
        ("classify.py", {"eval__metric": "f7"}, "eval.metric='f7' is not measured"),
        (
            "classify.py",
            {"data__validation_share": 0.0, "eval__patience": 2},
            "eval.patience=2 needs validation examples; give data.validation or a",
        ),
        ("classify.py", {"freeze": 7}, "freeze=7: the encoder has 2 layers; -1 freez"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    recipe, changes, message, encoder, classified, tmp_path
):
    folder, _ = classified
    settings = {"data__train": str(folder / "train.csv"), "init_from": encoder}
    settings |= {"steps": 2} | changes
    with pytest.raises(UserError, match=message) as refused:
        finetune.run(finetune_config(recipe, **settings), tmp_path / "run")
    assert "\n" not in str(refused.value)
