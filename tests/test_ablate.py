"""Ablations: equal budgets, one judge for all, and what is said of differences."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from encoderjax import ablate
from encoderjax.ablation import Ablation, Claim
from encoderjax.ablation_results import difference, table, verdict
from encoderjax.config import RunConfig
from encoderjax.data.corpus import Corpus
from encoderjax.errors import UserError
from encoderjax.evaluate import run as evaluate
from encoderjax.interop.weights import read_json, write_json
from encoderjax.phases import open_stages
from encoderjax.provenance import machine, made_with, said
from encoderjax.recipes import load_recipe
from encoderjax.spread import Measured
from tests.small_runs import metrics as metrics_of
from tests.small_runs import overrides
from tests.small_tasks import write_classify

SILENT = lambda text: None
RARER = {"objectives": {"mlm": {"rate": 0.1}}}
FILES = sorted(Path("configs/ablations").glob("*.py"))
EXPERIMENTS = [
    f"{path}:{variant}" if variant else str(path)
    for path in FILES
    for variant in getattr(load_recipe(path), "VARIANTS", ("",))
]
OWN, PAPER = ("own/mlm_loss",), {"source": "a paper", "finding": "x"}
# Another way of masking, and another tree of parameters.
MASKED = {
    "objectives": {"mlm": {"replace": {"mask": 1.0, "random": 0.0}}},
    "model": {"sharing": "all"},
}


def nested(flat: dict) -> dict:
    values: dict = {}
    for name, value in flat.items():
        *groups, field = name.split(".")
        node = values
        for group in groups:
            node = node.setdefault(group, {})
        node[field] = value
    return values


def small_ablation(corpus, **changes) -> Ablation:
    """Two arms of a small run; `bert` is trained on what the judge asks for."""
    run = {name: _typed(value) for name, value in overrides(corpus.folder).items()}
    fields = {
        "name": "small",
        "folder": Path("configs/ablations"),
        "title": "a small one",
        "base": "../bert_tiny.py",
        "run": nested(run),
        "arms": {"bert": {}, "masked": MASKED},
        "judges": {"all": {}},
        "metrics": ("all/mlm_loss", "own/nsp_accuracy"),
        "tokens": 4_000,
        "batch_tokens": 400,
        "seeds": 2,
        "paper": PAPER | {"claims": ("bert > masked",)},
    }
    return Ablation.from_dict(fields | changes)


def _typed(text: str):
    try:
        return json.loads(text)
    except ValueError:
        return text


@pytest.fixture(scope="module")
def done(corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("ablation")
    results = ablate.run(small_ablation(corpus), out, command="again", report=SILENT)
    return out, results


def copied(out: Path, copy: Path) -> Path:
    """Returns a copy without the parameters, which is all that tables need."""
    return shutil.copytree(out, copy, ignore=shutil.ignore_patterns("checkpoints"))


def found(out: Path, arm: str, seed: int) -> dict[str, float]:
    return json.loads((out / arm / str(seed) / "found.json").read_text())["metrics"]


def test_all_arms_are_measured_by_one_judge(done):
    out, results = done
    for arm in ("bert", "masked"):
        values = [found(out, arm, seed)["all/mlm_loss"] for seed in (0, 1)]
        assert results["arms"][arm]["values"]["all/mlm_loss"] == values
        assert len(set(values)) == 2  # seeds differ
    # The first arm is trained on what the judge asks for, the second is not.
    bert, masked = found(out, "bert", 0), found(out, "masked", 0)
    assert bert["all/mlm_loss"] == pytest.approx(bert["own/mlm_loss"], abs=1e-5)
    assert abs(masked["all/mlm_loss"] - masked["own/mlm_loss"]) > 1e-4
    assert "all/mlm_loss_kept" in masked
    assert "own/mlm_loss_kept" not in masked
    # What evaluate says of that workdir, with its own settings.
    own = evaluate(out / "masked" / "0", report=SILENT)
    assert own["mlm_loss"] == pytest.approx(masked["own/mlm_loss"], abs=1e-5)


def test_the_table_says_what_was_found(done):
    out, results = done
    text = (out / "table.md").read_text()
    assert text.rstrip("\n") == table(results)
    values = results["arms"]["bert"]["values"]["all/mlm_loss"]
    assert f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}" in text
    assert "| bert > masked |" in text
    assert "2 seeds an arm" in text
    assert (out / "picture.png").stat().st_size > 10_000


def test_what_is_finished_stays_and_what_is_missing_goes_on(corpus, done, tmp_path):
    out, results = done
    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    (copy / "masked" / "1" / "found.json").unlink()  # killed while it was judged
    shutil.rmtree(copy / "bert" / "1")  # never begun
    said: list[str] = []
    times = [(copy / "bert" / "0" / "metrics.jsonl").stat().st_mtime_ns]
    again = ablate.run(small_ablation(corpus), copy, report=said.append)
    times.append((copy / "bert" / "0" / "metrics.jsonl").stat().st_mtime_ns)
    assert again is not None
    assert times[0] == times[1]
    # By the clock of the run that was killed, not of the one that only judged it.
    judged_again = again["arms"]["masked"]["training_seconds"]
    assert judged_again == results["arms"]["masked"]["training_seconds"]
    assert read_json(copy / "masked" / "1" / "found.json")["seconds"] > judged_again[1]
    for arm in results["arms"]:
        expected = results["arms"][arm]["values"]
        for metric, values in again["arms"][arm]["values"].items():
            assert values == pytest.approx(expected[metric], abs=1e-6)
    for folder in copy.glob("*/*/checkpoints"):  # to have their space again
        shutil.rmtree(folder)
    with pytest.raises(UserError, match=r"tokens=8000 does not fit .* made with 4000"):
        ablate.run(small_ablation(corpus, tokens=8_000), copy, report=SILENT)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"arms": {"bert": RARER, "masked": MASKED}},
            r"judges.all.objectives.mlm.rate=0.1 does not fit .*masked.0, .* with 0.15",
        ),
        (
            {"arms": {"bert": {"data": {"length": 16}}, "masked": MASKED}},
            r"judges.all.data.length=16 does not fit .*masked.0, .* with 32",
        ),
        (
            {"order": ("masked", "bert")},
            r"judges.all.objectives.mlm.replace.mask=1.0 does not fit .*masked.0",
        ),
    ],
)
def test_a_judge_has_the_rows_and_masks_that_it_had(
    corpus, done, tmp_path, changes, message
):
    copy = copied(done[0], tmp_path / "copy")
    shutil.rmtree(copy / "bert")  # to be trained again, as the first arm now is
    with pytest.raises(UserError, match=message):
        ablate.run(small_ablation(corpus, **changes), copy, report=SILENT)
    assert not (copy / "bert").exists()  # nothing was trained before that was said


def test_rows_are_judged_alike_whatever_the_batches_of_the_first_arm(corpus):
    arms = {"bert": {"data": {"batch_tokens": 100}}, "masked": MASKED}
    ablations = small_ablation(corpus), small_ablation(corpus, arms=arms)
    settings = [ablate._settings(a, a.values("masked", 0)) for a in ablations]
    assert settings[0] == settings[1]
    assert "judges.all.data.length" in settings[0]


def test_texts_may_move_and_must_hold_the_same(corpus, done, tmp_path):
    out, copy = copied(done[0], tmp_path / "copy"), tmp_path / "corpus"
    shutil.copytree(corpus.folder, copy)
    moved = small_ablation(Corpus.open(copy))
    assert ablate.run(moved, out, report=SILENT) is not None
    path = out / "bert" / "0" / "settings.json"
    settings = read_json(path)
    (read,) = (
        name for name in settings if name.endswith("run.read.corpus.fingerprint")
    )
    write_json(path, settings | {read: "others"})
    with pytest.raises(UserError, match=f"{read}=.* does not fit .*bert.0"):
        ablate.run(moved, out, report=SILENT)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"arms": {"a": {}, "b": {"data": {"length": 4}}}, "paper": PAPER},
            "^arms.b: ",
        ),
        ({"judges": {"all": {"objectives": {"mlm": {"rate": 7}}}}}, "^judges.all: "),
        ({"run": {"data": {"corpus": "nowhere"}}}, "^arms.bert: .*nowhere does not"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_trained(
    corpus, tmp_path, changes, message
):
    ablation = small_ablation(corpus, **changes)
    with pytest.raises(UserError, match=message):
        ablate.run(ablation, tmp_path / "out", report=SILENT)
    assert not (tmp_path / "out").exists()


def test_an_experiment_says_how_its_own_corpus_is_made(tmp_path):
    masks = Ablation.load("configs/ablations/masks.py", {"run.data.corpus": "none"})
    with pytest.raises(UserError, match=r"make it with .*--sample=0.06 .*--out=none"):
        ablate.run(masks, tmp_path / "out", report=SILENT)


def test_every_run_keeps_what_it_was_made_with(corpus, done, tmp_path):
    copy = copied(done[0], tmp_path / "copy")
    (here,) = done[1]["made_with"]
    assert here == f"{machine()}; {said(made_with())}"
    elsewhere = copy / "bert" / "1" / "found.json"
    write_json(elsewhere, read_json(elsewhere) | {"machine": "99 cores"})
    before = copy / "masked" / "0" / "found.json"
    kept = ("metrics", "seconds", "training_seconds")  # as runs of before have them
    write_json(before, {name: read_json(before)[name] for name in kept})
    again = ablate.run(small_ablation(corpus), copy, report=SILENT)
    assert again is not None
    expected = {here, f"99 cores; {said(made_with())}", "an unknown machine"}
    assert set(again["made_with"]) == expected
    assert len(again["made_with"]) == 3
    text = (copy / "table.md").read_text()
    assert all(kind in text for kind in expected)


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (None, "probe: data.train=None must be .* --config.probe.data.train=FILE"),
        ("nothing.csv", r"probe: .*nothing\.csv"),
    ],
)
def test_a_probe_without_examples_is_refused_before_anything_is_trained(
    corpus, tmp_path, train, message
):
    probe = {"config": "../finetune/classify.py", "data": {"train": train}}
    ablation = small_ablation(
        corpus, probe=probe, judges={}, metrics=("probe/validation/loss",), paper=PAPER
    )
    with pytest.raises(UserError, match=message):
        ablate.run(ablation, tmp_path / "out", report=SILENT)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_each_run_is_fine_tuned_to_be_compared_by_a_task(corpus, tmp_path):
    probe = {
        "config": "../finetune/classify.py",
        "epochs": 1.0,
        "data": {
            "train": write_classify(tmp_path / "train.csv", count=80),
            "length": 32,
            "batch_size": 16,
        },
    }
    metric = "probe/validation/accuracy"
    ablation = small_ablation(
        corpus, probe=probe, judges={}, metrics=(metric,), seeds=1, paper=PAPER
    )
    results = ablate.run(ablation, tmp_path / "out", report=SILENT)
    assert results is not None
    for arm, of_arm in results["arms"].items():
        workdir = tmp_path / "out" / arm / "0"
        own = read_json(workdir / "probe" / "config.json")["finetune"]
        assert (own["init_from"], own["seed"]) == (str(workdir), 0)
        best = read_json(workdir / "probe" / "best.json")["step"]
        lines = metrics_of(workdir / "probe", "validation")
        assert of_arm["values"][metric] == pytest.approx([lines[best]["accuracy"]])


def test_arms_read_the_same_tokens_in_as_many_steps(corpus):
    arms = {"wide": {}, "short": {"data": {"length": 16}}}
    ablation = small_ablation(corpus, arms=arms, judges={}, metrics=OWN, paper=PAPER)
    read = {}
    for arm, values in ablation.planned(SILENT).items():
        stage = open_stages(RunConfig.from_dict(values), SILENT, None)[0]
        batches = [stage.source.batch(step) for step in range(values["steps"])]
        read[arm] = sum(int(batch["mask"].sum()) for batch in batches)
        assert values["steps"] == 10
        assert values["optimizer"]["warmup_steps"] == 1
    # Rows are counted whole, and have their tokens in the mean.
    assert read["short"] == pytest.approx(4_000, rel=0.05)
    assert read["wide"] == pytest.approx(4_000, rel=0.05)


def test_an_arm_may_have_smaller_batches_and_so_more_steps(corpus):
    arms = {"whole": {}, "quarter": {"data": {"batch_tokens": 100}}}
    ablation = small_ablation(corpus, arms=arms, judges={}, metrics=OWN, paper=PAPER)
    plans = ablation.planned(SILENT)
    assert [plans[arm]["steps"] for arm in arms] == [10, 40]
    assert [plans[arm]["optimizer"]["warmup_steps"] for arm in arms] == [1, 4]
    for arm, values in plans.items():
        stage = open_stages(RunConfig.from_dict(values), SILENT, None)[0]
        batches = [stage.source.batch(step) for step in range(values["steps"])]
        read = sum(int(batch["mask"].sum()) for batch in batches)
        assert read == pytest.approx(4_000, rel=0.15)  # rows of 32 are coarse
        assert ablation.step_tokens(arm) * values["steps"] == 4_000


def test_the_tokens_of_an_arm_are_those_that_it_read(corpus, done):
    # One or two rows are far from the tokens asked for.
    arms = {"whole": {}, "coarse": {"data": {"batch_tokens": 45}}}
    ablation = small_ablation(corpus, arms=arms, judges={}, metrics=OWN, paper=PAPER)
    for values in ablation.planned(SILENT).values():
        stage = open_stages(RunConfig.from_dict(values), SILENT, None)[0]
        batches = [stage.source.batch(step) for step in range(values["steps"])]
        read = sum(int(batch["mask"].sum()) for batch in batches)
        assert ablate.tokens_read(values) == pytest.approx(read, rel=0.1)
    out, results = done
    for arm, of_arm in results["arms"].items():
        runs = [read_json(out / arm / str(s) / "found.json")["tokens"] for s in (0, 1)]
        assert of_arm["tokens"] == pytest.approx(np.mean(runs), abs=1)
        values = small_ablation(corpus).values(arm, 1)
        assert runs[1] == pytest.approx(ablate.tokens_read(values))


def test_equal_arithmetic_gives_a_costly_arm_fewer_steps(corpus):
    arms = {"one": {}, "two": {"model": {"num_layers": 6}}}
    ablation = small_ablation(
        corpus, arms=arms, equal="flops", tokens=40_000, judges={},
        metrics=OWN, paper=PAPER,
    )  # fmt: skip
    spent = {}
    for arm, values in ablation.planned(SILENT).items():
        stage = open_stages(RunConfig.from_dict(values), SILENT, None)[0]
        spent[arm] = stage.flops_per_step, values["steps"]
    assert spent["one"][1] == 100 > spent["two"][1]
    totals = [flops * steps for flops, steps in spent.values()]
    assert abs(totals[0] - totals[1]) <= spent["two"][0] / 2  # but for half a step


@pytest.mark.parametrize("config", EXPERIMENTS)
def test_every_experiment_can_be_run(config):
    ablation = Ablation.load(config)
    path, _, variant = config.partition(":")
    assert ablation.name == Path(path).stem + (f"-{variant}" if variant else "")
    assert f"--config={path}" in load_recipe(path).__doc__
    for arm in ablation.arms:
        config = RunConfig.from_dict(ablation.values(arm, seed=1))
        assert config.seed == 1
        assert config.steps * ablation.step_tokens(arm) <= ablation.tokens
    for judge in ablation.judges:
        objectives = ablation.judging(judge).objectives
        assert {"mlm", "plm"} & {objective.name for objective in objectives}
    assert set(ablation.paper.figures) <= set(ablation.arms)
    assert ablation.seeds >= 3


# ---- what counts as a difference ----


@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_the_spread_is_a_bound_on_students_t(count):
    rng = np.random.default_rng(count)
    for shift in (0.0, 0.5, 1.0, 2.0, 4.0):
        a, b = rng.normal(0, 1, count), rng.normal(shift, 1, count)
        t = scipy.stats.ttest_ind(a, b).statistic
        one, other = Measured.of(a.tolist()), Measured.of(b.tolist())
        assert one.within_spread_of(other) == (abs(t) <= 2 * np.sqrt(count / 2))


def made_up(**values) -> dict:
    arms = {arm: {"values": {"all/mlm_loss": v}} for arm, v in values.items()}
    return {"metrics": ["all/mlm_loss"], "arms": arms}


CLOSE, FAR, NEAR = [2.0, 2.1, 2.2], [3.0, 3.1, 3.2], [2.05, 2.1, 2.25]


@pytest.mark.parametrize(
    ("claim", "one", "two", "expected"),
    [
        ("one > two", CLOSE, FAR, "agrees"),
        ("one > two", FAR, CLOSE, "disagrees"),
        ("one > two", CLOSE, NEAR, "within the spread"),
        ("one ~ two", CLOSE, NEAR, "no difference seen"),
        ("one ~ two", CLOSE, FAR, "differs"),
        ("one > two", CLOSE[:1], FAR[:1], "one seed: no spread to compare with"),
        ("one > two", CLOSE, [], "not measured"),
    ],
)
def test_verdicts(claim, one, two, expected):
    found = verdict(made_up(one=one, two=two), Claim.of(claim))
    assert found.partition(":")[0] == expected.partition(":")[0]


def test_an_accuracy_is_better_when_higher():
    arms = {
        "one": {"values": {"all/mlm_accuracy": FAR}},
        "two": {"values": {"all/mlm_accuracy": CLOSE}},
    }
    results = {"metrics": ["all/mlm_accuracy"], "arms": arms}
    assert verdict(results, Claim.of("one > two")) == "agrees"


def test_differences_say_whether_they_count():
    near, far = (
        difference(Measured.of(NEAR), Measured.of(CLOSE)),
        difference(Measured.of(FAR), Measured.of(CLOSE)),
    )
    assert near == "+0.033 (within the spread)"
    assert far == "+1.000"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"order": ("bert", "mask")}, "must name every arm once: bert, masked"),
        ({"metrics": ("al/mlm_loss",)}, "does not begin with a judge .*: own, all"),
        ({"arms": {"a/b": {}, "c": {}}}, "arms.a/b: names of arms are folders"),
        ({"tokens": 100}, "tokens=100 is less than batch_tokens=400"),
        ({"metric": ("own/loss",)}, "metric is not a field.*did you mean 'metrics'"),
        (
            {"paper": {"source": "s", "finding": "f", "claims": ("bert > maskd",)}},
            "'maskd' is not an arm; did you mean 'masked'",
        ),
        (
            {"paper": {"source": "s", "finding": "f", "claims": ("bert beats",)}},
            "'bert beats' is not 'ARM > ARM'",
        ),
    ],
)
def test_mistakes_are_named(corpus, changes, message):
    with pytest.raises(UserError, match=message):
        small_ablation(corpus, **changes)


def test_a_metric_that_no_run_has_is_named_with_those_there_are(corpus, done, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(done[0], copy)
    ablation = small_ablation(corpus, metrics=("all/sop_loss",))
    with pytest.raises(UserError, match=r"no run has 'all/sop_loss' .*all/mlm_loss,"):
        ablate.run(ablation, copy, report=SILENT)
