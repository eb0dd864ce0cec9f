import json
import re

import numpy as np
import pytest

from encoderjax.preview import main, run
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
