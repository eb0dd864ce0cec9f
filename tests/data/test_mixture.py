"""Rows of several corpora in one stream: shares, places, hosts."""

import dataclasses
import subprocess
import sys
import time

import numpy as np
import pytest

from encoderjax.data import random
from encoderjax.data.corpus import Corpus
from encoderjax.data.mixture import MixedIndex, Pattern
from encoderjax.data.rows import EpochOrder
from encoderjax.errors import UserError
from encoderjax.experiment import Experiment
from encoderjax.phases import open_stages
from tests.small_runs import small_config

SILENT = lambda text: None
FORMS = {
    "pairs": {},
    "packed": {
        "data__form": "packed",
        "data__second": None,
        "data__short_rate": None,
        "objectives__nsp": None,
    },
    "separators": {
        "data__form": "full_sentences",
        "data__separators": "sentences",
        "data__second": None,
        "data__short_rate": None,
        "objectives__nsp": None,
    },
    "bucketed": {"data__buckets": "(20, 26)", "data__short_rate": 0.8},
    "bucketed pairs of sentences": {
        "data__buckets": "(20, 26)",
        "data__form": "sentence_pair",
    },
}


def experiment(folder, **changes):
    return Experiment.open(small_config(folder, **changes), SILENT)


def equal(first, second):
    return first.keys() == second.keys() and all(
        np.array_equal(first[name], second[name]) for name in first
    )


# ---- the pattern ----


@pytest.mark.parametrize(
    "shares", [[1.0], [0.5, 0.5], [0.7, 0.2, 0.1], np.arange(1, 101) ** 2.0]
)
def test_a_pattern_counts_the_places_of_each_member(shares):
    """Against counting them one after the other, past the end of a period."""
    pattern = Pattern.of(shares)
    members, numbers = pattern.at(np.arange(600_000))
    for member in range(len(shares)):
        own = numbers[members == member]
        assert np.array_equal(own, np.arange(len(own)))
    for place in (0, 7, 5_000, 600_000):
        counted = np.bincount(members[:place], minlength=len(shares))
        assert np.array_equal(pattern.before(place), counted)


def test_a_pattern_spreads_its_members_evenly():
    shares = np.asarray([0.4, 0.3, 0.15, 0.1, 0.05])
    members, _ = Pattern.of(shares.tolist()).at(np.arange(100_000))
    for size in (20, 256, 8_192):
        for first in range(0, 100_000 - size, 3_001):
            found = np.bincount(members[first : first + size], minlength=5)
            # A random draw would have deviations of sqrt(size x q x (1 - q)).
            assert np.abs(found - size * shares).max() <= 3


def test_members_with_equal_shares_take_turns():
    """Batches of a few rows have their shares, too, and not one clump of members."""
    shares = [0.2, *[0.01] * 80]
    members, _ = Pattern.of(shares).at(np.arange(100_000))
    found = (members.reshape(-1, 20) == 0).sum(axis=1)
    assert found.min() >= 3
    assert found.max() <= 5


def test_a_tiny_share_still_comes():
    pattern = Pattern.of([1.0, 1e-9])
    assert pattern.before(10**7)[1] > 0
    assert pattern.counts_M.sum() == len(pattern.members)


def test_a_far_place_is_found_by_arithmetic():
    pattern = Pattern.of([0.6, 0.3, 0.1])
    place = 10**12 + 12_345
    members, numbers = pattern.at(np.arange(place, place + 1_000))
    before = pattern.before(place)
    assert before.sum() == place
    for member in range(3):
        own = numbers[members == member]
        assert np.array_equal(own, before[member] + np.arange(len(own)))


# ---- rows ----


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.7, 1.0])
def test_batches_have_the_shares_of_the_formula(group, alpha):
    run = experiment(group, data__alpha=alpha)
    source, names = run.train_source(), ("de", "en", "sw")
    counts = [Corpus.open(group / n).split("train").num_sentences for n in names]
    expected = np.asarray(counts) ** alpha / np.sum(np.asarray(counts) ** alpha)
    rows = np.concatenate([source.places(s, slice(None))[1] for s in range(200)])
    found = np.bincount(run.train_index.members_of(rows), minlength=3) / len(rows)
    deviations = np.sqrt(expected * (1 - expected) / len(rows))
    assert np.all(np.abs(found - expected) < 0.1 * deviations + 2 / len(rows))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("hosts", [1, 2, 4])
@pytest.mark.parametrize("mixed", [False, True])
def test_batches_are_the_same_for_any_number_of_hosts(group, form, hosts, mixed):
    folder = group if mixed else group / "de"
    source = experiment(folder, **FORMS[form]).train_source()
    part = source.batch_size // hosts
    for step in (0, 1, 2, 3, 1_000_000):
        whole = source.batch(step)
        parts = [
            source.batch(step, slice(host * part, (host + 1) * part))
            for host in range(hosts)
        ]
        joined = {name: np.concatenate([p[name] for p in parts]) for name in whole}
        assert equal(whole, joined)


@pytest.mark.parametrize("form", FORMS)
def test_one_member_alone_gives_the_batches_of_a_plain_run(group, form):
    changes = FORMS[form]
    plain = experiment(group / "de", **changes).train_source()
    alone = experiment(f"{group / 'de'}:2.5", **changes).train_source()
    for step in (0, 5, 100):
        assert equal(alone.batch(step), plain.batch(step))


@pytest.mark.parametrize("form", ["pairs", "packed", "separators"])
def test_rows_of_a_mixture_are_those_of_its_members(group, form):
    """The same text in the same order; only the draws tell members apart."""
    changes = FORMS[form] | {"objectives__mlm__replace__mask": 0.0}
    changes |= {"objectives__mlm__replace__random": 0.0}
    names = ("de", "en", "sw")
    run = experiment(group, data__alpha=0.7, **changes)
    source, mixed = run.train_source(), {name: [] for name in names}
    for step in range(40):
        batch, (_, rows) = source.batch(step), source.places(step, slice(None))
        for row, member in enumerate(run.train_index.members_of(rows)):
            mixed[names[member]].append(batch["ids"][row].tolist())
    for name in names:
        plain = experiment(group / name, **changes).train_source()
        steps = range(-(-len(mixed[name]) // 16))
        rows = [ids for step in steps for ids in plain.batch(step)["ids"].tolist()]
        assert mixed[name] == rows[: len(mixed[name])]
    assert min(map(len, mixed.values())) > 20


def test_epochs_are_each_members_own_and_rows_have_one_number(group):
    run = experiment(group, data__alpha=0.0, data__dupe_factor=1)
    index, order = run.train_index, run.train_index.order(0)
    assert isinstance(index, MixedIndex)
    sizes = [len(member.passes[0]) for member in index.indexes]
    epochs, rows = order.at(np.arange(3 * max(sizes)))
    members = index.members_of(rows)
    for member, size in enumerate(sizes):
        own = members == member
        assert sorted(rows[own & (epochs == 0)]) == list(
            range(sum(sizes[:member]), sum(sizes[: member + 1]))
        )
        assert epochs[own].max() == (own.sum() - 1) // size
    # Of one mask for each row and epoch, none is drawn twice.
    pairs = set(zip(epochs.tolist(), rows.tolist(), strict=True))
    assert len(pairs) == len(rows)


def test_masks_of_members_are_not_alike(group, tmp_path):
    """Row 3 of two corpora with the same text is masked differently."""
    (tmp_path / "twin").symlink_to(group / "en")
    setting = f"{group / 'en'}:1,{tmp_path / 'twin'}:1"
    source = experiment(setting, objectives__mlm__count="bernoulli").train_source()
    index = source.index
    rows = np.concatenate([np.arange(8), np.arange(8) + index.first_M[1]])
    batch = source.rows(np.zeros(16, int), rows)
    assert np.array_equal(batch["segments"][:8], batch["segments"][8:])
    assert not np.array_equal(batch["mlm/positions"][:8], batch["mlm/positions"][8:])


@pytest.mark.parametrize("form", ["pairs", "packed", "bucketed"])
def test_step_a_million_costs_no_more_than_step_zero(group, form):
    source = experiment(group, **FORMS[form]).train_source()

    def seconds(steps):
        times = []
        for step in steps:
            start = time.perf_counter()
            source.batch(step)
            times.append(time.perf_counter() - start)
        return min(times)

    seconds(range(8))
    assert seconds(range(10**6, 10**6 + 16)) < 5 * seconds(range(8, 24))


def test_batch_tokens_follow_the_mean_of_the_mixture(group):
    run = experiment(group, data__batch_size=None, data__batch_tokens=1000)
    source = run.train_source()
    real = np.mean([source.batch(step)["mask"].sum() for step in range(40)])
    assert real == pytest.approx(source.batch_size * run.train_index.mean_tokens, 0.03)
    assert abs(real - 1000) < 4 * run.train_index.mean_tokens


@pytest.mark.parametrize("form", ["pairs", "packed", "bucketed"])
def test_a_growing_batch_of_a_mixture_reads_every_row_once(group, form):
    changes = {
        "steps": 9,
        "data.batch_size": 16,
        "phases.a.after": 0,
        "phases.a.data.batch_size": 8,
        "phases.b.after": 5,
    }
    config = small_config(group, **changes, **FORMS[form])
    seen = []
    for stage in open_stages(config, SILENT, None):
        for step in range(stage.phase.first, stage.phase.last):
            places = stage.source.places(step, slice(None))
            seen += list(zip(*(part.tolist() for part in places), strict=True))
    assert len(seen) == 5 * 8 + 4 * 16
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize("form", ["pairs", "bucketed"])
@pytest.mark.parametrize("corpus", ["de:1,en:8", "en:8,sw:1,de:1", "en"])
def test_members_go_on_in_a_phase_with_other_shares(group, form, corpus):
    folders = [f"{group / part}" for part in corpus.split(",")]
    changes = {"phases.b.after": 5, "phases.b.data.corpus": ",".join(folders)}
    start = f"{group / 'de'}:1,{group / 'en'}:1"
    config = small_config(start, steps=9, **changes, **FORMS[form])
    seen = []
    for stage in open_stages(config, SILENT, None):
        run, steps = stage.experiment, range(stage.phase.first, stage.phase.last)
        first = getattr(run.train_index, "first_M", np.zeros(1, int))
        for step in steps:
            epochs, rows = stage.source.places(step, slice(None))
            members = run.train_index.members_of(rows)
            names = [run.corpus.members[member].corpus.folder for member in members]
            own = rows - first[members]
            seen += zip(names, epochs.tolist(), own.tolist(), strict=True)
    assert len(seen) == 9 * 16
    assert len(set(seen)) == len(seen)


def test_a_phase_with_rows_cut_otherwise_begins_anew(group):
    changes = {"phases.b.after": 5, "phases.b.data.length": 40}
    _, second = open_stages(small_config(group, **changes), SILENT, None)
    assert set(second.source.used(5).values()) == {0}


def test_epochs_of_tiny_members_are_not_shuffled_one_by_one(group):
    order = experiment(group, data__alpha=0.0).train_index.order(0)
    tiny = dataclasses.replace(order, orders=(EpochOrder((3, 5, 31), 0),) * 3)
    before = random._shuffled.cache_info()
    epochs, _ = tiny.at(np.arange(50_000))
    assert epochs.max() > 1_000
    assert random._shuffled.cache_info() == before


def test_rows_that_go_on_from_step_to_step_are_not_mixed(group):
    from encoderjax.config_loading import load_config

    sizes = {"data.length": 32, "data.batch_size": 4, "data.reuse_length": 16}
    sizes |= {"model.reuse_length": 16, "objectives.plm.permute_within": 16}
    config = load_config("configs/xlnet_base.py", {**sizes, "data.corpus": str(group)})
    with pytest.raises(UserError, match=r"data.form='reuse_pair': each place"):
        Experiment.open(config, SILENT).train_source()


def test_row_indexes_of_many_members_may_keep_many_files_open(group):
    """In a process of its own, whose limit is just above what is open."""
    script = (
        "import os, resource, sys; "
        "from encoderjax.data.corpus import Corpus; "
        "from encoderjax.data.pipeline import DataConfig; "
        "from encoderjax.data.rows import open_row_index; "
        "corpus = Corpus.open(sys.argv[1]); "
        "settings = DataConfig(corpus='x', batch_size=8).row_settings(0); "
        "open_row_index(corpus, 'train', settings); "
        "_, hard = resource.getrlimit(resource.RLIMIT_NOFILE); "
        "opened = len(os.listdir('/dev/fd')) + 4; "
        "resource.setrlimit(resource.RLIMIT_NOFILE, (opened, hard)); "
        "held = [open_row_index(corpus, 'train', settings) for _ in range(20)]"
    )
    command = [sys.executable, "-c", script, str(group / "de")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
