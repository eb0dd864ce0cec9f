"""The tables of docs/scaling.md are filled by their scripts."""

import pytest

from encoderjax.interop.weights import write_json
from encoderjax.recipes import load_recipe

tables = load_recipe("docs/scaling_tables.py")
speeds = load_recipe("docs/family_speeds.py")

MEASURED = {
    "length": 512,
    "rows": 2,
    "turns": {"read": 5, "train": 3},
    "machine": "a machine",
    "versions": {"jax": "1"},
    "families": {"XLNet": {"read_speed": 0.8123, "train_speed": 0.5}},
}


def test_measured_speeds_stand_beside_those_by_flops(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "SPEEDS", tmp_path / "speeds.json")
    some = {name: tables.BASES[name] for name in ("BERT", "XLNet")}
    monkeypatch.setattr(tables, "BASES", some)
    bert, xlnet = tables.families().splitlines()[2:]
    assert bert.startswith("| BERT | 110 M | 189 M | 1.00 |  | 588 M | 512 | 1.00 |  |")
    assert tables.measured_with() == ""

    write_json(tmp_path / "speeds.json", MEASURED)
    same, measured = tables.families().splitlines()[2:]
    assert same == bert
    cells = [cell.strip() for cell in measured.split("|")]
    assert (cells[5], cells[9]) == ("0.81", "0.50")
    cells[5] = cells[9] = ""
    assert cells == [cell.strip() for cell in xlnet.split("|")]
    line = tables.measured_with().splitlines()[-1]
    assert line == (
        "| a machine | 2 rows of 512 | 5 of reading, 3 of training | jax 1 |"
    )


def test_tables_go_behind_their_marks_however_often():
    page = tables.PAGE.read_text()
    for mark in ("compiled", "by chip", "families", "measured with"):
        full = tables.put(page, mark, "| a | b |\n| c\\1 | d |")
        assert f"<!-- {mark} -->\n| a | b |\n| c\\1 | d |\n\n" in full
        assert tables.put(full, mark, "| a | b |\n| c\\1 | d |") == full
        empty = tables.put(full, mark, "")
        assert f"<!-- {mark} -->\n\n" in empty


def test_what_is_kept_of_the_families_is_in_the_page():
    kept, page = tables.measured()["families"], tables.PAGE.read_text()
    lines = [line.split(" | ") for line in page.splitlines()]
    shown = {cells[0].removeprefix("| "): cells for cells in lines if len(cells) == 9}
    assert kept
    for name, speed in kept.items():
        ours = [f"{speed[what]:.2f}" for what in ("read_speed", "train_speed")]
        assert [shown[name][4], shown[name][8].removesuffix(" |")] == ours


@pytest.mark.parametrize("name", speeds.BASES)
def test_all_networks_of_a_family_become_shallow_alike(name):
    config = speeds.config_of(name)
    assert (config.data.length, config.data.batch_size) == (512, 2)
    assert config.model.encoder.num_layers == {"DistilBERT": 6, "ModernBERT": 22}.get(
        name, 12
    )
    for layers in speeds.DEPTHS.get(name, speeds.DEPTH):
        shallow = speeds.shallow(config, layers)
        generator, teacher = shallow.generator, shallow.teacher_model
        assert shallow.encoder.num_layers == layers
        whole = config.model.encoder.num_layers
        if generator is not None:
            of_base = {"ELECTRA": 12, "DeBERTa v3": 6}[name]
            assert generator.config.num_layers * whole == of_base * layers
        if teacher is not None:
            assert teacher.config.num_layers == 2 * layers
        batch = speeds.random_batch(shallow)
        assert batch["ids"].shape == (2, 512)
        assert len(set(batch["ids"].ravel().tolist())) > 500
        assert batch["ids"].max() < shallow.encoder.vocab_size


def test_the_base_size_lies_on_the_line_through_two_depths():
    assert speeds.on_line({1: 3.0, 3: 5.0}, 12) == 14.0
    assert speeds.medians([{1: 2.0}, {1: 9.0}, {1: 3.0}]) == {1: 3.0}
