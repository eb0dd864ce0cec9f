"""The page of what was measured is filled by its script."""

import pytest

from encoderjax.errors import UserError
from encoderjax.expected import Curve
from encoderjax.interop.weights import write_json
from encoderjax.recipes import load_recipe

script = load_recipe("docs/reproducing.py")

CURVE = Curve(
    "configs/a.py:tiny",
    {},
    {
        step: {"loss": [9 - step / 100, 9.2 - step / 100], "mlm_accuracy": [0.1, 0.2]}
        for step in (100, 200, 300, 400)
    },
    {"seconds": [60.0, 120.0], "machine": "a machine", "versions": {"jax": "1"}},
)


def test_parts_go_between_their_marks_however_often():
    page = script.PAGE.read_text()
    names = ("curves", "ablations", "time to quality")
    empty = script.filled(page, dict.fromkeys(names, ""))
    full = script.filled(empty, dict.fromkeys(names, "a table\\1"))
    assert full.count("\na table\\1\n") == 3
    assert script.filled(full, dict.fromkeys(names, "a table\\1")) == full
    assert script.filled(full, dict.fromkeys(names, "")) == empty
    with pytest.raises(ValueError, match="must have the marks of 'nothing' once"):
        script.filled(page, {"nothing": "x"})


def test_curves_are_told_by_quarters(tmp_path):
    head, _, line = script.curves_table([CURVE]).splitlines()
    assert "| `configs/a.py:tiny` | 100, 200, 300, 400 | 8.100 ± 0.141 |" in line
    assert "mlm accuracy 0.150 ± 0.071 | 1.5 | 2 |" in line
    assert head.count("|") == line.count("|")
    assert script.made_with([CURVE, CURVE]) == "a machine; jax 1."
    script.draw_curves([CURVE], tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 5_000


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([500, 1000, 1500], [500, 1000, 1500]),  # each once
        ([60, 100, 200, 300, 400], [100, 200, 300, 400]),
        ([150, 300, 450, 600, 750, 900, 1350, 1500], [300, 750, 900, 1500]),
        ([7], [7]),
    ],
)
def test_quarters_are_the_nearest_steps_there_are(steps, expected):
    assert script.quarters(steps) == expected


def test_results_that_are_not_there_are_told(tmp_path):
    with pytest.raises(UserError, match=r"results.json does not exist"):
        script.take(tmp_path / "results.json", tmp_path / "kept.json")
    with pytest.raises(UserError, match="has no results"):
        script.results_by_name(tmp_path)


def test_an_experiment_has_its_title_table_and_picture(tmp_path, monkeypatch):
    monkeypatch.setattr(script, "MEASURED", tmp_path)
    monkeypatch.setattr(script, "PICTURES", tmp_path / "pictures")
    arm = {"steps": 10, "tokens": 1e6}
    results = {
        "title": "the ELECTRA way and masked LM",
        "metrics": ["probe/validation/accuracy"],
        "arms": {
            "mlm": arm | {"values": {"probe/validation/accuracy": [0.6, 0.7]}},
            "electra": arm | {"values": {"probe/validation/accuracy": [0.8, 0.9]}},
        },
        "paper": {
            "source": "a paper",
            "finding": "it is better",
            "columns": "GLUE",
            "figures": {"electra": "85.0"},
            "claims": ["electra > mlm"],
        },
        "seeds": 2,
        "seconds": 60.0,
        "machine": "a machine",
        "versions": {"jax": "1"},
        "command": "again",
    }
    (tmp_path / "ablations").mkdir()
    write_json(tmp_path / "ablations" / "electra.json", results)
    text = script.ablations_part()
    title, *_, picture = text.split("\n\n")
    assert title == "### The ELECTRA way and masked LM"
    assert "| electra | 10 | 1.00 M | 0.850 ± 0.071 | +0.200 | 85.0 |" in text
    assert "| electra > mlm | agrees |" in text
    assert "2 seeds an arm; 1 minutes on a machine; jax 1. `again`" in text
    assert picture.endswith("(pictures/electra.png)")
    assert (tmp_path / "pictures" / "electra.png").stat().st_size > 5_000


def test_results_of_one_name_do_not_overwrite_each_other(tmp_path):
    for folder, name in (("first", "masks"), ("other", "forms"), ("second", "masks")):
        (tmp_path / folder).mkdir()
        write_json(tmp_path / folder / "results.json", {"name": name})
    message = r"/first and \S*/second both have results of 'masks'"
    with pytest.raises(UserError, match=message):
        script.results_by_name(tmp_path)
    (tmp_path / "second" / "results.json").unlink()
    assert script.results_by_name(tmp_path) == {
        "masks": tmp_path / "first" / "results.json",
        "forms": tmp_path / "other" / "results.json",
    }
