"""The command embed: files of vectors, whole or not there at all."""

import gzip
import json

import numpy as np
import pytest

from encoderjax import embed
from encoderjax.errors import UserError
from encoderjax.interop.sentence_loading import load_sentence
from encoderjax.tasks import vector_files
from encoderjax.tasks.embedding import Embedder
from encoderjax.tasks.whitening import Whitening
from tests.sentence_folders import TEXTS, small_sentence, write_exported

RNG = np.random.default_rng(0)
WORDS = [*"abcdefgh", "the", "of", "day", "king", "rain"]
MANY = [" ".join(RNG.choice(WORDS, n % 11)) for n in range(60)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_exported(tmp_path_factory.mktemp("m") / "own", small_sentence("bert"))


@pytest.fixture(scope="module")
def wanted(folder):
    return Embedder(load_sentence(folder)).vectors(MANY)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(vector_files, "_TEXTS", 7)
    monkeypatch.setattr(vector_files.text_blocks, "__defaults__", (7,))
    monkeypatch.setattr(vector_files, "_TOKEN_TEXTS", 7)


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("".join(f"{text}\n" for text in MANY))
    return path


def run(folder, *flags):
    embed.main([f"--model={folder}", "--batch_size=8", *map(str, flags)])


@pytest.mark.parametrize("form", ["txt", "csv", "tsv", "jsonl", "txt.gz"])
def test_rows_are_in_the_order_of_the_texts(form, folder, wanted, tmp_path):
    path = tmp_path / f"texts.{form}"
    rows = [f"{i},{text}" for i, text in enumerate(MANY)]
    if form == "csv":
        path.write_text("\n".join(["n,body", *rows]))
    elif form == "tsv":
        path.write_text("\n".join(["n\tbody", *(r.replace(",", "\t") for r in rows)]))
    elif form == "jsonl":
        path.write_text("\n".join(json.dumps({"body": text}) for text in MANY))
    elif form == "txt":
        path.write_text("\n".join(MANY))  # the last line has no end
    else:
        path.write_bytes(gzip.compress("".join(f"{t}\n" for t in MANY).encode()))
    column = [] if form.startswith("txt") else ["--column=body"]
    run(folder, f"--input={path}", f"--out={tmp_path / 'v.npy'}", *column)
    found = np.load(tmp_path / "v.npy")
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert [p.name for p in tmp_path.iterdir() if "partial" in p.name] == []


def test_a_whitening_is_fitted_kept_and_used(folder, texts, wanted, tmp_path, capsys):
    out, kept = tmp_path / "v.npy", tmp_path / "w.npz"
    flags = [f"--input={texts}", f"--out={out}", "--normalise=l2"]
    run(folder, *flags, "--whiten=fit", "--components=5", f"--save_whitening={kept}",
        "--anisotropy", "--dtype=float16")  # fmt: skip
    found = np.load(out)
    assert (found.dtype, found.shape) == (np.float16, (60, 5))
    expected = Whitening.fit(wanted, 5).apply(wanted)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(found, expected, atol=2e-3)
    lines = capsys.readouterr().out.strip().split("\n")
    assert [line.split()[0] for line in lines] == ["mean", "before", "after", "wrote"]
    unit = wanted / np.linalg.norm(wanted, axis=1, keepdims=True)
    cosines = (unit @ unit.T)[~np.eye(60, dtype=bool)]
    assert float(lines[1].split()[1]) == pytest.approx(cosines.mean(), abs=1e-3)
    assert lines[1].split()[3:] != lines[2].split()[3:]
    assert set(lines[2].split()[3:]) == {"1.00"}  # of length 1, whatever the token
    run(folder, *flags, f"--whiten={kept}")
    np.testing.assert_allclose(np.load(out), expected, atol=1e-4)


def test_tokens_of_all_texts(folder, texts, tmp_path):
    out = tmp_path / "t.npz"
    run(folder, f"--input={texts}", f"--out={out}", "--level=tokens")
    found = Embedder(load_sentence(folder)).tokens(MANY)
    with np.load(out) as arrays:
        assert arrays["rows"].tolist() == [
            0, *np.cumsum([len(text.ids) for text in found])
        ]  # fmt: skip
        for number in (0, 9, 59):
            own = slice(*arrays["rows"][number : number + 2])
            np.testing.assert_array_equal(arrays["ids"][own], found[number].ids)
            vectors = arrays["vectors"][own]
            np.testing.assert_allclose(vectors, found[number].vectors, atol=1e-5)
            text = MANY[number]
            spans = zip(arrays["starts"][own], arrays["ends"][own], strict=True)
            pieces = [text[start:end] for start, end in spans]
            tokens = arrays["vocabulary"][arrays["ids"][own]]
            assert pieces == [token.removeprefix("##") for token in tokens]


def test_nearest_rows_are_printed(folder, texts, tmp_path, capsys):
    queries = tmp_path / "q.txt"
    queries.write_text(f"{MANY[9]}\n")
    run(folder, f"--input={texts}", f"--nearest={MANY[20]}", f"--queries={queries}",
        "--top=2")  # fmt: skip
    lines = capsys.readouterr().out.strip().split("\n")
    assert lines[0] == MANY[20]
    assert lines[1] == f"  1.0000  row 20: {MANY[20]}"
    assert lines[3:5] == [MANY[9], f"  1.0000  row 9: {MANY[9]}"]
    assert len(lines) == 6
    assert not list(tmp_path.glob("*.npy"))


def test_bytes_that_are_no_text_are_replaced_as_in_files(folder, texts, capsys):
    run(folder, f"--input={texts}", "--nearest=\udcff king", "--top=1")
    query, _ = capsys.readouterr().out.splitlines()
    assert query == "\ufffd king"


def test_a_table_of_pairs(folder, tmp_path, capsys):
    path = tmp_path / "pairs.csv"
    scores = RNG.uniform(0, 5, 30)
    rows = zip(MANY[1:31], MANY[30:60], scores, strict=True)
    path.write_text("\n".join(f"{a},{b},{score:.2f}" for a, b, score in rows))
    run(folder, f"--sts={path}", "--similarity=dot", "--pooling=max")
    lines = capsys.readouterr().out.strip().split("\n")
    assert [line.split()[0] for line in lines[2:6]] == ["cls", "mean", "max", "last"]
    as_it_is = [line.split()[1] for line in lines if "spearman_dot" in line]
    assert as_it_is == [lines[4].split()[1]]


def test_an_interrupted_run_leaves_what_was_there(folder, texts, tmp_path, monkeypatch):
    out = tmp_path / "v.npy"
    out.write_bytes(b"earlier")
    pooled = Embedder.pooled
    calls = []

    def stopped(self, block):
        calls.append(block)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return pooled(self, block)

    monkeypatch.setattr(Embedder, "pooled", stopped)
    with pytest.raises(KeyboardInterrupt):
        run(folder, f"--input={texts}", f"--out={out}")
    assert out.read_bytes() == b"earlier"
    assert {path.name for path in tmp_path.iterdir()} == {"texts.txt", "v.npy"}


def test_what_is_asked_of_vectors_comes_after_them(
    folder, texts, wanted, tmp_path, monkeypatch
):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(embed, "nearest", stopped)
    with pytest.raises(KeyboardInterrupt):
        run(folder, f"--input={texts}", f"--out={tmp_path / 'v.npy'}", "--nearest=a")
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), wanted, atol=1e-5)


FITTED = ["--out=v.npy", "--whiten=fit"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "give the texts, --input=FILE"),
        (["--input={texts}"], "give --out=FILE.npy"),
        (["--input={texts}", "--out=v.txt"], "must end in .npy"),
        (["--input={texts}", "--out=v.npy", "--level=tokens"], "must end in .npz"),
        (["--input={texts}", "--out=v.npy", "--components=3"], "goes with --whiten"),
        (["--input={texts}", "--out=v.npy", "--whiten=no.npz"], "holds no whitening"),
        (["--input={texts}", "--out=v.npy", "--length=99"], "more than the 40 posit"),
        (["--input={texts}", "--out=v.npy", "--layers=last_two"], "at least 2 layers"),
        (["--input={texts}", "--out=v.npy", "--column=body"], "no column 'body'"),
        (["--input=nothing.txt", "--out=v.npy"], "cannot read nothing.txt"),
        (["--input={empty}", "--out=v.npy"], "has no texts"),
        (["--input={empty}", "--out=v.npz", "--level=tokens"], "has no texts"),
        (["--input={latin}", "--out=v.npy"], "latin.txt:1: not UTF-8"),
        # Before any text is read:
        (["--input=no.txt", "--nearest=a", "--top=0"], "top=0 must be at least 1"),
        (["--input=no.txt", *FITTED, "--components=25"], "from 1 to 24, the columns"),
        (["--input=no.txt", *FITTED, "--save_whitening={texts}/w"], "w' cannot be wri"),
        (["--sts={texts}", "--columns=0,1"], "must name three"),
        (["--input={texts}", "--out=v.npy", "--poling=cls"], "did you mean"),
    ],
)
def test_one_line_says_what_is_wrong(
    flags, words, folder, texts, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    names = {name: tmp_path / f"{name}.txt" for name in ("empty", "latin", "texts")}
    with pytest.raises(UserError, match=words) as error:
        run(folder, *(flag.format(**names) for flag in flags))
    assert "\n" not in str(error.value)
    assert not list(tmp_path.glob("v.*"))


def test_texts_of_every_kind_have_a_vector(folder, tmp_path):
    path = tmp_path / "odd.jsonl"
    odd = [*TEXTS, "", "\x00\x01", "word " * 10_000, "🙂" * 50, "a\u2028b\r"]
    path.write_text("\n".join(json.dumps({"text": text}) for text in odd))
    run(folder, f"--input={path}", f"--out={tmp_path / 'v.npy'}", "--cut=windows")
    found = np.load(tmp_path / "v.npy")
    assert found.shape == (len(odd), 24)
    assert np.isfinite(found).all()
