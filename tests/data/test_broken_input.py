"""What is broken is skipped, counted by file, and fatal when strict."""

import bz2
import functools
import gzip
import json
import lzma
import pickle
import random
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet
import pytest
import zstandard

from encoderjax.data.sources import Reading, Trouble, read_source
from encoderjax.data.trouble import Kind
from encoderjax.errors import UserError

COMPRESSORS = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
    ".bz2": functools.partial(bz2.compress, compresslevel=1),
    ".xz": functools.partial(lzma.compress, preset=0),
}
GOOD = "good.txt"


def read(folder, **options):
    """Returns the texts of a folder, and the troubles by file name and kind."""
    (folder / GOOD).write_text("Good.")
    trouble = Trouble()
    found = list(read_source(str(folder), Reading(**options), trouble))
    assert found.pop().text == "Good."  # the last file is read, whatever came before
    counts = {
        (path.rpartition("/")[2], kind.name): count
        for (path, kind), count in trouble.counts().items()
    }
    return [document.text for document in found], counts


def test_every_kind_is_skipped_and_counted(tmp_path):
    lines = [
        b'{"text": "one"}',
        b'{"text": "tw\xff"}',
        b'{"text": "thr',
        b'{"body": "four"}',
        b"[5]",
        b'{"text": 6}',
        b'{"text": " "}',
        b'{"text": "se\\u0000ven"}',
        b"[" * 100_000,
        b"",
        b'{"text": "last"}',
    ]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    texts, counts = read(tmp_path)
    assert texts == ["one", "seven", "last"]
    assert counts == {
        ("a.jsonl", "NOT_UTF8"): 1,
        ("a.jsonl", "NOT_JSON"): 2,
        ("a.jsonl", "NO_TEXT"): 3,
        ("a.jsonl", "EMPTY"): 1,
        ("a.jsonl", "NUL"): 1,
    }


def test_text_loses_its_bad_lines_only(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"First one.\nA b\xe4d line.\nNu\0l here.\nEnd.\n")
    texts, counts = read(tmp_path, documents="file")
    assert texts == ["First one.\nNul here.\nEnd.\n"]
    assert counts == {("a.txt", "NOT_UTF8"): 1, ("a.txt", "NUL"): 1}


def test_empty_files_and_files_in_utf16_are_named(tmp_path):
    for suffix, compress in COMPRESSORS.items():
        (tmp_path / f"a.txt{suffix}").write_bytes(compress(b""))
        (tmp_path / f"b.txt{suffix}").write_bytes(compress(b" \n\n"))
        (tmp_path / f"c.jsonl{suffix}").write_bytes(compress(b"\n"))
    (tmp_path / "d.txt").write_bytes("Привет, мир.".encode("utf-16"))
    texts, counts = read(tmp_path)
    assert not texts
    assert counts.pop(("d.txt", "UTF16")) == 1
    assert set(counts.values()) == {1}
    assert {kind for _, kind in counts} == {"EMPTY_FILE"}
    assert len(counts) == 3 * len(COMPRESSORS)


@pytest.mark.parametrize("suffix", [suffix for suffix in COMPRESSORS if suffix])
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_what_comes_before_damage_is_kept(tmp_path, suffix, name, damage):
    draw = random.Random(0)
    words = [
        " ".join(f"wé{draw.randrange(10**6)}" for _ in range(99)) for _ in range(1000)
    ]
    lines = words
    if name == "a.jsonl":
        lines = [json.dumps({"text": line}, ensure_ascii=False) for line in words]
    data = COMPRESSORS[suffix]("\n".join(lines).encode())
    place = len(data) * 2 // 3
    changed = data[:place] + bytes(999) + data[place + 999 :]
    content = {"cut": data[:place], "changed": changed}[damage]
    (tmp_path / (name + suffix)).write_bytes(content)
    texts, counts = read(tmp_path, documents="line" if name == "a.txt" else "auto")
    assert counts.pop((name + suffix, "DAMAGED")) == 1
    texts = [text.removesuffix("\n") for text in texts]
    whole = next(i for i, text in enumerate([*texts, ""]) if text != words[i])
    # Compressors work in blocks: zeros may be found some way behind their place.
    assert whole > (len(words) // 2 if damage == "cut" else 10)
    if damage == "cut":
        assert not counts
        assert len(texts) - whole == (name == "a.txt")
        assert name != "a.txt" or words[whole].startswith(texts[whole])


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_long_lines_take_bounded_memory(tmp_path, suffix):
    """Lines of 100 MB, in files that a few kilobytes can hold."""
    compress = COMPRESSORS[suffix]
    long = b"words and " * 10**7
    (tmp_path / f"a.txt{suffix}").write_bytes(compress(long + b"\nEnd.\n"))
    record = b'{"text": "' + long + b'"}\n{"text": "after"}\n'
    (tmp_path / f"b.jsonl{suffix}").write_bytes(compress(record))
    program = f"""
import resource
from encoderjax.data.sources import Reading, Trouble, read_source
trouble = Trouble()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
size = 0
for document in read_source({str(tmp_path)!r}, Reading(sentences="split"), trouble):
    text = document.text
    size += len(text)
    assert len(text) <= 8 * 2**20
    assert text.endswith((" ", "\\nEnd.\\n", "after")), text[-99:]
assert size == {len(long)} + len("\\nEnd.\\n") + len("after"), size
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
print(sorted((kind.name, count) for (_, kind), count in trouble.counts().items()))
"""
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    grown, kinds = result.stdout.splitlines()
    assert int(grown) < 150_000  # kilobytes; the two lines have 200,000
    assert kinds == "[('CUT', 1), ('TOO_LONG', 1)]"


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("a.txt", b"", ["a.txt", "empty file"]),
        ("a.txt", b"fine\nb\xe4d", ["a.txt, line 2", "position 1", "UTF-8"]),
        ("a.txt", b"fine\nb\0d", ["a.txt, line 2", "NUL"]),
        ("a.jsonl", b'{"text": "a"}\n{"body": "b"}', ["line 2", "text_key", "body"]),
        ("a.jsonl", b'{"text": "a"}\n\n{"text": "b', ["line 3", "not JSON"]),
        ("a.jsonl", b'{"text": ""}\n', ["line 1", "empty document"]),
        ("a.txt.gz", gzip.compress(b"text " * 999)[:-20], ["a.txt.gz", "end-of-str"]),
        ("a.txt.zst", zstandard.compress(b"text")[:-1], ["a.txt.zst", "no end"]),
        ("a.parquet", b"PAR1 and so on", ["a.parquet", "damaged"]),
    ],
)
def test_strict_reading_ends_with_one_line(tmp_path, name, content, parts):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as caught:
        read(tmp_path, strict=True)
    assert "\n" not in str(caught.value)
    for part in (*parts, "leave out --strict"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.jsonl", b'{"body": "a"}\n{"title": "b"}\n'), ("a.jsonl", b"[1]\n[2]\n")],
)
def test_a_file_where_no_record_has_the_field_is_a_mistake(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=r"a.jsonl: no line has .* --text_key=text"):
        read(tmp_path)


def test_a_source_without_documents_is_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": ""}\n')
    with pytest.raises(UserError, match=r"no documents; skipped: 1 empty document$"):
        list(read_source(str(tmp_path), Reading(), Trouble()))


# ---- parquet ----


def write_parquet(path, texts, **options):
    table = pa.table({"text": texts, "number": list(range(len(texts)))})
    pa.parquet.write_table(table, path, **options)


def test_broken_rows_of_parquet(tmp_path):
    texts = [b"one", b"tw\xff", None, b" ", b"fi\0ve", "sécs".encode()]
    strings = pa.array(texts, pa.binary()).view(pa.string())
    write_parquet(tmp_path / "a.parquet", strings)
    found, counts = read(tmp_path)
    assert found == ["one", "five", "sécs"]
    assert counts == {
        ("a.parquet", kind): 1 for kind in ("NOT_UTF8", "NO_TEXT", "EMPTY", "NUL")
    }


def test_damaged_parquet_loses_the_rest_of_a_row_group(tmp_path):
    texts = [f"text {i} of many" for i in range(1000)]
    options = {"row_group_size": 100, "use_dictionary": False, "compression": "gzip"}
    write_parquet(tmp_path / "a.parquet", texts, **options)
    metadata = pa.parquet.read_metadata(tmp_path / "a.parquet")
    place = metadata.row_group(3).column(0).data_page_offset
    content = bytearray((tmp_path / "a.parquet").read_bytes())
    content[place + 60 : place + 160] = bytes(100)
    (tmp_path / "a.parquet").write_bytes(content)
    (tmp_path / "b.parquet").write_bytes(bytes(content[:-99]))
    found, counts = read(tmp_path)
    assert found[:300] == texts[:300]
    assert found[-600:] == texts[400:]
    assert counts == {("a.parquet", "DAMAGED"): 1, ("b.parquet", "DAMAGED"): 1}


@pytest.mark.parametrize(
    ("key", "part"), [("body", "its columns: text, number"), ("number", "is int64")]
)
def test_a_column_that_holds_no_text_is_a_mistake(tmp_path, key, part):
    write_parquet(tmp_path / "a.parquet", ["a"])
    with pytest.raises(UserError, match=part):
        read(tmp_path, text_key=key)


# ---- counts ----


def test_troubles_add_up_and_travel_between_processes():
    first, second, both = Trouble(), Trouble(), Trouble()
    assert not first
    for trouble, path, kind in (
        (first, "a", Kind.EMPTY),
        (second, "a", Kind.EMPTY),
        (second, "b", Kind.NUL),
    ):
        trouble.add(path, kind)
        both.add(path, kind)
    first.merge(pickle.loads(pickle.dumps(second)))
    assert first
    assert first == both


def test_a_report_is_as_short_for_many_files_as_for_a_few():
    trouble = Trouble()
    for number in range(1000):
        for _ in range(number):
            trouble.add(f"{number}.txt", Kind.NOT_UTF8)
        trouble.add(f"{number}.txt", Kind.EMPTY)
    lines = trouble.lines()
    assert lines[0] == (
        "skipped: 499,500 texts that are not UTF-8, 1,000 empty documents"
    )
    assert lines[1] == "  999.txt: 999 texts that are not UTF-8, 1 empty document"
    assert lines[-1] == "  and 995 more files"
    assert len(lines) == 7
