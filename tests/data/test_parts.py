"""The parts of a source hold, in their order, what one reading of the whole gives."""

import gzip
import itertools
import json
import pickle
import random

import pyarrow as pa
import pyarrow.parquet
import pytest

from encoderjax.data.sources import Reading, Trouble, read_part, source_parts
from encoderjax.errors import UserError

WHOLE = 10**12


def through_parts(source, part_bytes, **options):
    reading = Reading(**options)
    trouble = Trouble()
    found = []
    parts = source_parts(str(source), reading, part_bytes)
    for part in parts:
        own = Trouble()
        found += read_part(*pickle.loads(pickle.dumps((part, reading))), own)
        trouble.merge(own)
    return found, trouble, parts


def write_json_lines(path):
    """Lines of many lengths, some of them broken, blank, or as long as a part."""
    draw = random.Random(0)
    lines = []
    for number in range(60):
        text = f"Number {number}. " * draw.choice([0, 1, 3, 9, 99])
        line = json.dumps({"text": text, "language": draw.choice("ab")})
        lines.append(draw.choice([line] * 8 + ["", line[:-2], '{"body": 1}']))
    path.write_bytes(b"\xef\xbb\xbf" + "\n".join(lines).encode() + b"\n\xff\n")


@pytest.mark.parametrize("part_bytes", [17, 100, 1000, 5000])
def test_ranges_of_json_lines(tmp_path, part_bytes):
    write_json_lines(tmp_path / "a.jsonl")
    size = (tmp_path / "a.jsonl").stat().st_size
    whole, trouble, (one,) = through_parts(tmp_path, WHOLE, language_key="language")
    found, also, parts = through_parts(tmp_path, part_bytes, language_key="language")
    assert found == whole
    assert also == trouble
    assert trouble
    assert len(found) > 20
    assert {document.language for document in found} == {"a", "b"}
    assert len(parts) == size // part_bytes
    assert sum(part.size for part in parts) == one.size == size
    assert all(part.names == (str(tmp_path / "a.jsonl"),) for part in parts)


def test_the_form_is_that_of_the_whole_file(tmp_path):
    """The first records have a sentence a line; later ones alone would be prose."""
    texts = ["One line.\nAnother one.\nA third.\n"] * 99 + ["words " * 9] * 30
    lines = [json.dumps({"text": text}) for text in texts]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    whole, _, _ = through_parts(tmp_path, WHOLE)
    found, _, parts = through_parts(tmp_path, 500)
    assert len(parts) > 5
    assert found == whole
    assert {document.origin.sentences for document in found} == {"lines"}


def test_a_range_without_the_field_is_broken_and_not_a_mistake(tmp_path):
    lines = ['{"text": "words here"}'] * 10 + ['{"body": "words here"}'] * 90
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    found, trouble, _ = through_parts(tmp_path, 100)
    assert len(found) == 10
    assert sum(trouble.counts().values()) == 90
    (tmp_path / "a.jsonl").write_text("\n".join(lines[10:]))
    with pytest.raises(UserError, match="--text_key=text"):
        through_parts(tmp_path, 100)


def test_row_groups_of_parquet(tmp_path):
    texts = [f"Document {i} has words. " * (i % 7) for i in range(1000)]
    table = pa.table({"text": texts, "tongue": ["x", "y"] * 500})
    pa.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=130)
    whole, trouble, (one,) = through_parts(tmp_path, WHOLE, language_key="tongue")
    assert [document.text for document in whole] == [text for text in texts if text]
    for part_bytes, number in ((1, 8), (one.size // 4, 4)):
        found, also, parts = through_parts(tmp_path, part_bytes, language_key="tongue")
        assert found == whole
        assert also == trouble
        assert len(parts) in (number - 1, number)


def test_small_files_share_a_part_and_others_are_never_divided(tmp_path):
    for number in range(30):
        (tmp_path / f"{number:02d}.txt").write_text(f"File {number}. " * 10)
    content = "\n".join('{"text": "words"}' for _ in range(999)).encode()
    (tmp_path / "30.jsonl.gz").write_bytes(gzip.compress(content))
    (tmp_path / "31.txt").write_text("A long file. " * 500)
    whole, _, (one,) = through_parts(tmp_path, WHOLE)
    found, _, parts = through_parts(tmp_path, 1000)
    assert found == whole
    names = [part.names for part in parts]
    assert tuple(itertools.chain(*names)) == one.names
    assert names[-1] == (str(tmp_path / "31.txt"),)
    for part, following in itertools.pairwise(parts):
        assert part.size <= 1000 or len(part.names) == 1
        assert part.size + following.pieces[0].size > 1000


def test_languages_by_file_and_folder(tmp_path):
    for name in ("de/a.b.txt", "fr/c.jsonl"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text('{"text": "Words."}')
    for key, expected in (("file", ["a", "c"]), ("folder", ["de", "fr"])):
        found, _, _ = through_parts(tmp_path, WHOLE, language_key=key)
        assert [document.language for document in found] == expected
    assert {d.language for d in through_parts(tmp_path, WHOLE)[0]} == {""}
    with pytest.raises(UserError, match=r"a.b.txt is text; use 'file' or 'folder'"):
        through_parts(tmp_path, WHOLE, language_key="lang")
    with pytest.raises(UserError, match=r"--language_key=lang \(its fields: text\)"):
        through_parts(tmp_path / "fr", WHOLE, language_key="lang")


def test_several_fields_are_paragraphs_of_one_document(tmp_path):
    record = {"premise": "A dog runs", "empty": "", "hypothesis": "It moves."}
    (tmp_path / "a.jsonl").write_text(json.dumps(record))
    found, _, _ = through_parts(tmp_path, WHOLE, text_key="premise,empty,hypothesis")
    assert [d.sentences() for d in found] == [["A dog runs", "It moves."]]
