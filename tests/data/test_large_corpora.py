"""What grows with a corpus is neither read nor held: opening is a matter of counts."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from encoderjax.data.pipeline import DataConfig, rows_for_tokens
from encoderjax.data.records import ROW
from encoderjax.data.rows import open_row_index
from tests.small_corpus import split_of

DATA = DataConfig(corpus="x", form="contiguous", length=64, batch_tokens=4096)


def open_index(corpus, folder):
    settings = DATA.row_settings(0)
    return open_row_index(
        corpus, "train", settings, cache_dir=str(folder), report=lambda text: None
    )


def blow_up(folder, rows):
    """Makes the row index in `folder` one of so many rows, all of them a hole."""
    (inner,) = folder.iterdir()
    with open(inner / "pass-000.npy", "wb") as file:
        header = {"descr": ROW.descr, "fortran_order": False, "shape": (rows,)}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + rows * ROW.itemsize)
        size = os.fstat(file.fileno()).st_size
    described = json.loads((inner / "index.json").read_bytes())
    described["files"]["pass-000.npy"]["bytes"] = size
    np.save(inner / "tokens.npy", np.array([50 * rows]))
    (inner / "index.json").write_text(json.dumps(described))


def resident_bytes():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_index_of_many_rows_takes_no_memory(corpus, tmp_path):
    open_index(corpus, tmp_path)
    for rows in (10**6, 10**8):  # 22 MB and 2.2 GB
        blow_up(tmp_path, rows)
        before = resident_bytes()
        index = open_index(corpus, tmp_path)
        assert index.num_rows == rows
        assert rows_for_tokens(4096, index) == 80  # of 50 tokens each
        assert resident_bytes() - before < 4 * 2**20
        epochs, numbers = index.order(0).at(10**12 + np.arange(256))
        assert len(index.take(epochs, numbers)[0]) == 256


def test_the_mean_of_tokens_is_that_of_the_rows(corpus, tmp_path):
    cut = open_index(corpus, tmp_path)
    again = open_index(corpus, tmp_path)
    lengths = cut.passes[0].pieces_S["length"][:, 0].astype(int) + 2  # [CLS], [SEP]
    assert cut.mean_tokens == again.mean_tokens == pytest.approx(lengths.mean())


def test_a_split_maps_only_what_is_asked_for(tmp_path):
    """Offsets are needed to cut rows, not to read them."""
    split = split_of(tmp_path, [[[4, 3]], [[5, 1], [2]]])
    for kind in ("sentences", "documents"):
        for path in tmp_path.glob(f"*.{kind}.npy"):
            path.unlink()
    assert split.tokens.slice(0, split.num_tokens).tolist() == list(range(15))
    with pytest.raises(FileNotFoundError):
        split.sentence_starts.slice(0, 1)
