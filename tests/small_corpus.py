"""Invented text with a little structure, so that a model has something to learn."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from encoderjax.data.corpus import Corpus, ShardSplit, Split, write_shard
from encoderjax.data.preparation import prepare_corpus

_TOPICS = {
    "sea": "ship wave sailor harbour storm anchor captain island tide whale",
    "law": "court judge statute appeal verdict lawyer witness clause treaty justice",
    "farm": "field harvest barn horse plough orchard shepherd grain meadow cattle",
    "war": "army general siege cannon retreat soldier fortress battle flag truce",
}
_VERBS = "sees finds keeps loses wants follows remembers describes praises fears"


def documents(count: int = 40, seed: int = 0) -> list[str]:
    """Returns documents, each about one topic, a sentence a line."""
    rng = np.random.default_rng(seed)
    topics = [words.split() for words in _TOPICS.values()]
    texts = []
    for _ in range(count):
        nouns = topics[rng.integers(len(topics))]
        lines = []
        for _ in range(rng.integers(8, 30)):
            a, b, c = rng.choice(nouns, 3)
            verb = rng.choice(_VERBS.split())
            line = f"The {a} {verb} the old {b}"
            line += f" near the {c}." if rng.random() < 0.5 else "."
            lines.append(line)
        texts.append("\n".join(lines))
    return texts


def prepare_small_corpus(
    folder: Path,
    count: int = 40,
    spell: Callable[[str], str] = str,
    tokenizer: str | None = None,
) -> Corpus:
    """Writes and prepares the documents; `spell` changes every line."""
    if tokenizer is None:
        tokenizer = "wordpiece:180" if count >= 20 else "wordpiece:100"
    texts = [
        "\n".join(spell(line) for line in text.splitlines())
        for text in documents(count)
    ]
    (folder / "text.txt").write_text("\n\n".join(texts))
    return prepare_corpus(
        source=str(folder / "text.txt"),
        out=folder / "prepared",
        tokenizer=tokenizer,
        validation=0.2,
        report=lambda text: None,
    )


def prepare_group(folder: Path, sizes: dict[str, int]) -> Path:
    """Prepares a group of corpora with so many documents, and one tokenizer."""
    texts = folder / "texts"
    group = folder / "group"
    texts.mkdir()
    tokenizer = "wordpiece:180"
    for seed, (name, count) in enumerate(sizes.items()):
        (texts / f"{name}.txt").write_text("\n\n".join(documents(count, seed)))
        prepare_corpus(
            source=str(texts / f"{name}.txt"),
            out=group / name,
            tokenizer=tokenizer,
            validation=0.1,
            report=lambda text: None,
        )
        tokenizer = str(group / name)
    described = {"format": 1, "members": sorted(sizes)}
    (group / "mixture.json").write_text(json.dumps(described))
    return group


def split_of(folder: Path, shards: list[list[list[int]]]) -> Split:
    """Returns a split whose documents have sentences of the given lengths.

    `shards[s][d]` lists the lengths of the sentences of document d of shard s. The
    tokens count up from 0 through the whole split, so a token tells its position.
    """
    position, counts = 0, {}
    folder.mkdir(parents=True, exist_ok=True)
    for number, shard in enumerate(shards):
        written = []
        for lengths in shard:
            bounds = np.cumsum([position, *lengths])
            position = int(bounds[-1])
            sentences = [
                np.arange(a, b, dtype="u4") for a, b in itertools.pairwise(bounds)
            ]
            written.append(sentences)
        part = ShardSplit.from_documents(written, np.dtype("u4"))
        name, unigrams_V = f"{number:05d}-0000", np.zeros(0, np.int64)
        record = write_shard(folder, name, {"train": part}, unigrams_V)
        counts[name] = record["counts"]["train"]
    return Split(folder, "train", counts)
