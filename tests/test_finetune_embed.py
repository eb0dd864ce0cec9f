"""Training of texts' vectors: from a folder to vectors that others compute as well."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from sentence_transformers import SentenceTransformer

from encoderjax import export, finetune
from encoderjax.embed import main as embed
from encoderjax.errors import UserError
from encoderjax.finetuning import FinetuneConfig
from encoderjax.interop.sentence_loading import load_sentence
from encoderjax.interop.weights import leaves_of, read_json
from encoderjax.models.dropout import DropoutKey
from encoderjax.task_run import TaskRun
from encoderjax.tasks.embedding import Embedder
from encoderjax.tasks.sts import evaluate_sts, read_pairs
from encoderjax.training.checkpoint import restore_params
from tests.small_runs import all_lines, metrics
from tests.small_tasks import (
    finetune_config,
    sentences,
    write_bert,
    write_csv,
    write_pairs,
)

TEXTS = ["The sailor fears the storm.", "The judge keeps the old law.", "The barn."]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory, corpus):
    return write_bert(tmp_path_factory.mktemp("encoder"), corpus.tokenizer)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Returns the path of a file for each loss, and of pairs with scores."""
    folder = tmp_path_factory.mktemp("files")
    given = sentences(400)
    topics = {topic: [t for t, x in given if x == topic] for _, topic in given}
    others = [t for text, x in given for t, y in given[7:] if x != y][: len(given)]
    rows = [
        (text, topics[x][i % len(topics[x])], other)
        for i, ((text, x), other) in enumerate(zip(given, others, strict=False))
    ]
    labelled = [
        (a, b, "same" if x == y else "other")
        for (a, x), (b, y) in zip(given[::2], given[1::2], strict=True)
    ]
    return {
        "cosine": write_pairs(folder / "pairs.csv", count=480),
        "triplet": write_csv(
            folder / "triplets.csv", ["text", "positive", "negative"], rows[:96]
        ),
        "softmax": write_csv(
            folder / "labelled.csv", ["text", "pair", "label"], labelled
        ),
        "simcse": write_csv(folder / "texts.csv", ["text"], [(t,) for t, _ in given]),
    }


def config_for(loss, encoder, path, **changes):
    return finetune_config(
        f"embed.py:{loss}",
        init_from=encoder,
        data__train=path,
        data__length=16,
        **changes,
    )


def run(loss, encoder, path, workdir, **changes):
    workdir.mkdir(exist_ok=True)
    return finetune.run(config_for(loss, encoder, path, **changes), workdir)


PAIRS = {"data__columns__pair": "other", "task__loss__highest": 1.0}
CLASSIFIED = {"keep": 9, "eval__every": 6, "steps": 12}
SCORED = {f"data__validation_columns__{x}": x for x in ("text", "score")}
SCORED |= {"data__validation_columns__pair": "other"}


@pytest.fixture(scope="module")
def trained(encoder, files, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("trained") / "run"
    settings = PAIRS | {"epochs": 5, "eval__every": 15}
    found = run("cosine", encoder, files["cosine"], workdir, **settings)
    return workdir, found


def test_the_cosine_of_held_out_pairs_comes_to_follow_their_scores(
    trained, encoder, files, tmp_path
):
    workdir, found = trained
    assert found["validation/spearman_cosine"] > 0.5
    curve = [
        line["spearman_cosine"]
        for _, line in sorted(metrics(workdir, "validation").items())
    ]
    assert max(curve) == pytest.approx(found["validation/spearman_cosine"], abs=1e-6)
    lines = (workdir / "predictions/validation.jsonl").read_text().splitlines()
    examples = TaskRun.open(
        config_for("cosine", encoder, files["cosine"], **PAIRS), tmp_path
    ).examples["validation"]
    cosines = [json.loads(line)["cosine"] for line in lines]
    theirs = scipy.stats.spearmanr(cosines, [x.score for x in examples]).statistic
    assert found["validation/spearman_cosine"] == pytest.approx(theirs, abs=1e-9)
    # The encoder as it was tells less.
    before = Embedder(load_sentence(encoder).changed(length=16))
    u, v = (before.vectors([x.texts[i] for x in examples]) for i in (0, 1))
    norms = np.linalg.norm(u, axis=1) * np.linalg.norm(v, axis=1)
    old = scipy.stats.spearmanr((u * v).sum(1) / norms, [x.score for x in examples])
    assert found["validation/spearman_cosine"] > old.statistic + 0.2


def test_an_export_says_what_fewer_bits_change(trained, files, tmp_path, capsys):
    """On the run's held-out pairs, and on those of a file with its columns."""
    workdir, found = trained
    flags = [f"--workdir={workdir}", "--dtype=bfloat16", f"--out={tmp_path / 'st'}"]
    export.main(flags)
    before = found["validation/spearman_cosine"]
    said = capsys.readouterr().out
    assert f"examples: spearman_cosine {before:.4f} -> " in said
    export.main([*flags, f"--examples={files['cosine']}"])
    said = capsys.readouterr().out
    names = {"text": "text", "pair": "other", "score": "score"}
    written = Embedder(load_sentence(tmp_path / "st"))
    after = evaluate_sts(written, read_pairs(files["cosine"], names))
    assert "float32 -> bfloat16 on 480 examples: spearman_cosine " in said
    assert f" -> {after['spearman_cosine']:.4f}, pearson_cosine " in said


def test_the_workdir_embeds_and_sentence_transformers_gives_the_same(trained, tmp_path):
    """Of the best step, with the length that it was trained with."""
    workdir, _ = trained
    loaded = load_sentence(workdir)
    assert loaded.step == read_json(workdir / "best.json")["step"]
    assert (loaded.description.head.pooling, loaded.description.length) == ("mean", 16)
    texts = [*TEXTS, "The ship sees the old wave. " * 20]
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    embed(
        [
            f"--model={workdir}",
            f"--input={tmp_path / 'texts.txt'}",
            f"--out={tmp_path / 'v.npy'}",
        ]
    )
    ours = np.load(tmp_path / "v.npy")
    export.run(workdir, tmp_path / "st")
    model = SentenceTransformer(str(tmp_path / "st"), device="cpu")
    np.testing.assert_allclose(ours, model.encode(texts), atol=1e-4)


@pytest.fixture(scope="module")
def classified(encoder, files, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("classified") / "run"
    return workdir, run("softmax", encoder, files["softmax"], workdir, **CLASSIFIED)


def test_a_run_goes_on_bit_for_bit(classified, encoder, files, tmp_path):
    """With the encoder's folder gone; the classifier goes on as well."""
    workdir, _ = classified
    shutil.copytree(workdir, tmp_path / "b")
    shutil.rmtree(tmp_path / "b/checkpoints/12")
    gone, path = tmp_path / "nowhere", files["softmax"]
    run("softmax", gone, path, tmp_path / "b", **CLASSIFIED)
    clock = ("seconds", "tokens_per_second", "mfu")
    exact = [
        [{k: v for k, v in line.items() if k not in clock} for line in all_lines(w)]
        for w in (workdir, tmp_path / "b")
    ]
    assert exact[0] == exact[1]
    changed = CLASSIFIED | {"task__pooling": "cls"}
    with pytest.raises(UserError, match="does not fit the checkpoint"):
        run("softmax", encoder, path, tmp_path / "b", **changed)


def test_the_classifier_is_trained_and_left_out_of_the_export(
    classified, encoder, files, tmp_path
):
    workdir, found = classified
    config = config_for("softmax", encoder, files["softmax"], **CLASSIFIED)
    start, _ = TaskRun.open(config, tmp_path / "none").initial_params()
    assert start["task"]["score"]["kernel"].shape == (3 * 32, 2)  # same, other
    assert {"validation/loss", "validation/accuracy"} <= set(found)
    params, _ = restore_params(workdir, 12)
    moved = params["task"]["score"]["kernel"] - start["task"]["score"]["kernel"]
    assert np.abs(moved).max() > 1e-3
    export.run(workdir, tmp_path / "params", format="params", step=12)
    kept = read_json(tmp_path / "params/params.json")
    assert "sentence" in kept
    assert "task" not in kept
    exported = leaves_of(load_sentence(tmp_path / "params").params)
    assert exported.keys() == leaves_of({"encoder": params["encoder"]}).keys()


def test_simcse_is_the_formula_of_two_passes(encoder, files, tmp_path):
    """Each text under two masks of dropout; its own is found among those of all."""
    changes = {"data__batch_size": 8, "model__dropout_rate": 0.3}
    config = config_for("simcse", encoder, files["simcse"], **changes)
    task_run = TaskRun.open(config, tmp_path)
    finetuner = task_run.finetuner()
    params, _ = task_run.initial_params()
    batch = {k: jnp.asarray(v) for k, v in task_run.source().batch(0).items()}
    dropout = DropoutKey.create(3, jnp.asarray(5), batch["row"])
    counts = finetuner.counts(batch)
    sums, _ = jax.jit(finetuner.sums)(params, {}, {}, batch, dropout)
    ours = float(sums["embed_loss"] / counts["embed_loss"])

    inputs = [batch[name][:, 0] for name in ("ids", "mask", "segments")]
    passes = []
    for number in (0, 1):
        rows = (2 * batch["row"] + number).astype(jnp.uint32)
        own = dataclasses.replace(dropout, rows_B=rows)
        vectors = finetuner.model.apply({"params": params}, *inputs, dropout=own)
        passes.append(np.asarray(vectors, np.float64))
    u, v = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in passes)
    assert np.abs(u - v).max() > 0.01
    scores = u @ v.T / 0.05
    chances = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    assert ours == pytest.approx(-np.diag(chances).mean(), rel=1e-4)


def test_other_losses_are_measured_on_pairs_with_scores(encoder, files, tmp_path):
    settings = {"data__validation": files["cosine"], "steps": 30, "eval__every": 30}
    settings |= {"eval__metric": "spearman_cosine"}
    found = run(
        "triplet", encoder, files["triplet"], tmp_path / "run", **settings, **SCORED
    )
    # Without a loss: pairs are no triplets.
    assert next(iter(found)) == "validation/spearman_cosine"
    assert "validation/loss" not in found
    assert found["validation/spearman_cosine"] > 0.3
    settled = read_json(tmp_path / "run/config.json")
    again = FinetuneConfig.from_dict(settled["finetune"])
    assert again.task.loss.margin == 1.0


def test_positives_are_found_among_those_of_the_batch(encoder, files, tmp_path):
    """With no column of negatives an example has two rows, else three."""
    path = files["triplet"]
    config = config_for("in_batch", encoder, path)
    task_run = TaskRun.open(config, tmp_path)
    assert task_run.source().batch(0)["ids"].shape == (16, 2, 16)
    config = config_for("in_batch", encoder, path, data__columns__negative="negative")
    batch = TaskRun.open(config, tmp_path).source().batch(0)
    assert batch["ids"].shape == (16, 3, 16)
    assert batch["present"].all()


@pytest.mark.parametrize(
    ("loss", "changes", "metrics"),
    [
        ("triplet", {}, "loss, accuracy"),
        ("simcse", {}, "loss, accuracy"),
        (
            "cosine",
            PAIRS,
            "spearman_cosine, pearson_cosine, spearman_euclidean, pearson_euclidean, "
            "spearman_dot, pearson_dot, loss",
        ),
    ],
)
def test_a_metric_that_is_not_there_is_missed_before_training(
    loss, changes, metrics, encoder, files, tmp_path
):
    message = rf"eval\.metric='f7' is not measured \(metrics: {metrics}\); name"
    config = config_for(loss, encoder, files[loss], eval__metric="f7", **changes)
    with pytest.raises(UserError, match=message):
        TaskRun.open(config, tmp_path)


def test_the_loss_of_a_batch_is_of_one_size(encoder, files, tmp_path):
    """Where examples are compared, more rows at once make it another measure."""

    def identity(loss, size):
        path = files["triplet" if loss == "in_batch" else loss]
        config = config_for(loss, encoder, path, eval__batch_size=size)
        return TaskRun.open(config, tmp_path).identity()

    assert identity("triplet", 8) == identity("triplet", 16)
    assert identity("in_batch", 8) != identity("in_batch", 16)


@pytest.mark.parametrize(
    ("loss", "changes", "message"),
    [
        ("in_batch", {"optimizer__microbatches": 2}, "optimizer.microbatches=2 must"),
        ("simcse", {"optimizer__microbatches": 2}, "optimizer.microbatches=2 must"),
        ("softmax", {"task__loss__name": "cosin"}, "did you mean 'cosine'"),
        ("triplet", {"task__loss__scale": 3}, "task.loss.scale is not a field"),
        ("triplet", {"data__columns__label": "x"}, "not a role of task.loss.name="),
        ("triplet", {"task__head__layers": "last"}, "use task.pooling"),
        ("triplet", {"data__cut": "windows"}, "data.cut='windows' does not go"),
        ("triplet", SCORED, "data.validation_columns needs a file"),
        ("triplet", {"task__labels": "('a','b')"}, "task.labels does not go with"),
        ("triplet", {"task__layers": "last_four"}, "needs at least 4 layers"),
        ("softmax", {"task__loss__num_labels": 3}, "there are 2 labels"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    loss, changes, message, encoder, files, tmp_path
):
    path = files["triplet" if loss == "in_batch" else loss]
    with pytest.raises(UserError, match=message) as caught:
        TaskRun.open(config_for(loss, encoder, path, **changes), tmp_path)
    assert "\n" not in str(caught.value)


def test_a_score_of_another_scale_is_refused_with_its_place(encoder, files, tmp_path):
    changes = PAIRS | {"task__loss__highest": 0.5}
    with pytest.raises(UserError, match=r"pairs.csv:\d+: score=1.0 is not between"):
        TaskRun.open(
            config_for("cosine", encoder, files["cosine"], **changes), tmp_path
        )
    columns = {"data__columns__score": "score", "data__columns__pair": "other"}
    config = config_for("softmax", encoder, files["cosine"], **columns)
    with pytest.raises(UserError, match=r"name it in data\.validation_columns"):
        TaskRun.open(config, tmp_path)
