import collections
import json
import re

import numpy as np
import pytest

from encoderjax.config_loading import load_config
from encoderjax.data.preparation import prepare_corpus
from encoderjax.preview import main, run
from tests.small_corpus import prepare_small_corpus
from tests.small_runs import overrides, small_config


def preview(corpus, rows=3, **changes):
    config = small_config(corpus.folder, **changes)
    return run(config, rows=rows, batches=30, report=lambda text: None)


def test_statistics_are_those_of_bert(corpus):
    stats = preview(corpus)["stats"]
    assert stats["masked_share"] == pytest.approx(0.8, abs=0.03)
    assert stats["random_share"] == pytest.approx(0.1, abs=0.03)
    assert stats["kept_share"] == pytest.approx(0.1, abs=0.03)
    assert stats["selected_share"] == pytest.approx(0.15, abs=0.02)
    assert stats["special_selected"] == 0
    assert stats["fill"] == pytest.approx(1 - stats["padding_share"])
    assert set(stats["labels"]) == {"next", "random"}
    assert sum(stats["labels"].values()) == pytest.approx(1)
    selected = sum(int(n) * count for n, count in stats["span_lengths"].items())
    assert selected == pytest.approx(stats["selected_share"] * stats["tokens"])
    assert (
        1 <= stats["predictions_per_row"]["min"] <= stats["predictions_per_row"]["max"]
    )


def test_whole_words_stay_whole(corpus):
    assert preview(corpus)["stats"]["split_words"] > 0
    words = preview(corpus, objectives__mlm__select="words")["stats"]
    assert words["split_words"] == 0


def test_rows_show_text_and_what_was_done_to_it(corpus):
    for row in preview(corpus)["rows"]:
        assert len(row["ids"]) == len(row["tokens"]) == len(row["segments"])
        masked = [p for p in row["predictions"] if p["kind"] == "masked"]
        for prediction in masked:
            assert row["tokens"][prediction["position"]] == "[MASK]"
            assert f"[MASK]({prediction['label']})" in row["text"]


def test_marked_tokens_stand_apart_and_others_form_words(corpus):
    marked_pieces = 0
    for row in preview(corpus, rows=200)["rows"]:
        text, tokens = f" {row['text']} ", list(row["tokens"])
        for prediction in row["predictions"]:
            label, token = prediction["label"], tokens[prediction["position"]]
            mark = {
                "masked": f"[MASK]({label})",
                "replaced": f"{token}(was {label})",
                "kept": f"{token}(kept)",
            }[prediction["kind"]]
            assert f" {mark} " in text
            marked_pieces += token.startswith("##")
            tokens[prediction["position"]] = mark
        assert text.count(" [CLS] ") == 1
        assert text.count(" [SEP] ") == tokens.count("[SEP]") == 2
        # A piece that stands by itself is marked, or follows what stands by itself.
        assert not re.search(r"[^])] ##[^ ()]+ ", text)
        assert "".join(text.split()).replace("##", "") == "".join(
            "".join(token.split()) for token in tokens
        ).replace("##", "")
    assert marked_pieces > 0


def test_rows_are_those_of_training(corpus):
    """The preview of a step is the batch of that step."""
    from encoderjax.experiment import Experiment

    config = small_config(corpus.folder)
    rows = run(config, rows=2, batches=1, step=5, report=lambda text: None)["rows"]
    batch = Experiment.open(config, lambda text: None).train_source().batch(5)
    for i, row in enumerate(rows):
        length = len(row["ids"])
        assert np.array_equal(batch["ids"][i, :length], row["ids"])


def test_json_is_one_object(corpus, capsys):
    flags = [f"--config.{k}={v}" for k, v in overrides(corpus.folder).items()]
    main(["--config=configs/bert_tiny.py", "--json", "--rows=1", "--batches=2", *flags])
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"rows", "stats"}
    assert {"text", "ids"} <= set(found["rows"][0])


def test_rows_of_a_phase_are_shown_at_its_steps(corpus):
    from encoderjax.phases import open_stages

    quiet = lambda text: None
    config = small_config(
        corpus.folder,
        phases__long__after=2,
        phases__long__data__length=64,
        phases__long__data__batch_size=24,
    )
    found = run(config, rows=99, batches=2, step=1, report=quiet)["rows"]
    expected = []
    for stage, step in zip(open_stages(config, quiet, None), (1, 2), strict=True):
        batch = stage.source.batch(step)
        pairs = zip(batch["ids"], batch["mask"], strict=True)
        expected += [ids[real].tolist() for ids, real in pairs]
    assert [row["ids"] for row in found] == expected
    assert len(expected) == 16 + 24
    assert max(map(len, expected[:16])) == 32
    assert max(map(len, expected[16:])) == 64


def test_words_of_rows_that_are_read_backwards_are_spelled_forwards(tmp_path):
    corpus = prepare_small_corpus(tmp_path, tokenizer="unigram/xlnet:60")
    sizes = {"data.length": 64, "data.batch_size": 4, "data.reuse_length": 32}
    sizes |= {"model.reuse_length": 32, "objectives.plm.permute_within": 32}
    sizes |= {"data.corpus": str(corpus.folder)}
    config = load_config("configs/xlnet_base.py", sizes)
    found = run(config, rows=40, batches=10, report=lambda text: None)
    checked = collections.Counter()
    for row in found["rows"]:
        marked = {prediction["position"] for prediction in row["predictions"]}
        places = range(len(row["tokens"]))
        shown = row["text"].split()
        words: list[list[int]] = []
        for place in reversed(places) if row["reversed"] else places:
            token = row["tokens"][place]
            if not words or not token.isalpha():  # a word begins, or no word at all
                words.append([])
            words[-1].append(place)
        for word in words[1:-1]:  # the outer ones may be cut
            tokens = [row["tokens"][place] for place in word]
            if len(word) > 1 and tokens[0][0] == "▁" and not marked & set(word):
                assert "".join(tokens)[1:] in shown
                checked[row["reversed"]] += 1
    assert min(checked[True], checked[False]) > 20


def test_a_span_under_one_mask_is_shown_with_its_text(tmp_path, capsys):
    """我 在 北 京 大 学 读 书, as the notes on SpanBERT mask it."""
    (tmp_path / "text.txt").write_text("我在北京大学读书\n")
    prepare_corpus(
        source=str(tmp_path / "text.txt"),
        out=tmp_path / "corpus",
        tokenizer="wordpiece_cased:13",
        validation=0.0,
        report=lambda text: None,
    )
    flags = [
        "--config=configs/spanbert_base.py:notes",
        f"--config.data.corpus={tmp_path / 'corpus'}",
        "--config.data.batch_tokens=1_000",
        "--rows=40",
        "--batches=1",
    ]
    main(flags)
    shown = capsys.readouterr().out
    assert "  [CLS] 我 在 [MASK](北 京) 大 学 读 书 [SEP]\n" in shown
    assert "  is read as: [CLS] 我 在 [MASK] 大 学 读 书 [SEP]\n" in shown
    main([*flags, "--json"])
    found = json.loads(capsys.readouterr().out)
    rows = [row for row in found["rows"] if "[MASK](北 京)" in row["text"]]
    assert rows
    for row in rows:
        assert row["tokens"] == ["[CLS]", *"我在", "[MASK]", *"大学读书", "[SEP]"]
        assert row["predictions"] == [
            {"position": 3, "label": "北", "kind": "masked"},
            {"position": 3, "label": "京", "kind": "masked", "offset": 1},
        ]
    stats = found["stats"]
    # What is selected is counted in the text, which is longer than the rows.
    assert stats["selected_share"] == pytest.approx(2 / 10)
    text = stats["tokens"] / (1 - stats["collapsed_share"])
    lengths = {int(n): count for n, count in stats["span_lengths"].items()}
    assert sum(n * count for n, count in lengths.items()) == pytest.approx(text / 5)


def test_noise_is_shown_and_counted(corpus):
    noise = {
        "objectives__deletion__rate": 0.1,
        "objectives__insertion__rate": 0.05,
        "objectives__reordering__rate": 0.2,
    }
    assert preview(corpus)["stats"]["noise"] == {}
    found = preview(corpus, rows=100, **noise)
    shares = found["stats"]["noise"]
    # The ends of texts stay, and of texts this short windows take more or less.
    assert shares["deleted"] == pytest.approx(0.1, abs=0.01)
    assert shares["inserted"] == pytest.approx(0.05, abs=0.005)
    assert shares["moved"] == pytest.approx(0.2, abs=0.02)
    assert shares["cut"] < 0.01
    assert 0.5 * shares["deleted"] < shares["gaps"] < shares["deleted"]
    for row in found["rows"]:
        text, tokens = f" {row['text']} ", row["tokens"]
        for place in row["inserted"]:
            assert f" {tokens[place]}(inserted)" in text
        for moved in row["moved"]:
            mark = f"{tokens[moved['position']]}(moved, {moved['label']} here)"
            assert f" {mark} " in text
        for gap in row["gaps"]:
            assert f" (missing {gap['label']}) " in text
        assert text.count("(missing ") == len(row["gaps"])
        assert text.count("(inserted)") == len(row["inserted"])
        assert text.count("(moved, ") == len(row["moved"])
        touched = {*row["inserted"], *(moved["position"] for moved in row["moved"])}
        assert touched.isdisjoint(p["position"] for p in row["predictions"])


def test_substitution_is_shown_as_what_was_replaced(corpus):
    replace = "objectives__mlm__replace"
    stats = preview(corpus, **{f"{replace}__mask": 0.0, f"{replace}__random": 1.0})
    shares = [stats["stats"][f"{kind}_share"] for kind in ("masked", "random", "kept")]
    assert shares == [0.0, 1.0, 0.0]
    assert all("(was " in row["text"] for row in stats["rows"])
