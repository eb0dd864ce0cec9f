"""Small data sets of every task, from invented text, and a BERT to start from."""

import csv
import json
from pathlib import Path

import numpy as np
import torch
import transformers

from encoderjax.config_loading import recipe_values
from encoderjax.fields import Override
from encoderjax.finetuning import FinetuneConfig
from tests.small_corpus import _TOPICS, _VERBS

TOPICS = {name: words.split() for name, words in _TOPICS.items()}
VERBS = _VERBS.split()


def write_bert(
    folder: Path, tokenizer, model=transformers.BertModel, **changes
) -> Path:
    """Writes a small random BERT of Hugging Face; `model` is its class."""
    torch.manual_seed(0)
    sizes = {
        "vocab_size": tokenizer.vocabulary.size,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
        "initializer_range": 0.1,
    }
    config = transformers.BertConfig(**sizes | changes)
    model(config).save_pretrained(folder)
    tokenizer.save(folder)
    return folder


def sentences(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Returns sentences, each about one topic, and the topics."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        topic = rng.choice(list(TOPICS))
        one, two = rng.choice(TOPICS[topic], 2)
        found.append((f"The {one} {rng.choice(VERBS)} the old {two}.", str(topic)))
    return found


def write_csv(path: Path, header: list[str], rows: list) -> str:
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
    return str(path)


def write_classify(path: Path, count: int = 240, seed: int = 0) -> str:
    """Writes texts whose topic is the label."""
    return write_csv(path, ["text", "label"], sentences(count, seed))


def write_pairs(path: Path, count: int = 240) -> str:
    """Writes pairs; the number is 1 where both have one topic, else 0."""
    given = sentences(2 * count)
    rows = [
        (a, b, float(x == y))
        for (a, x), (b, y) in zip(given[:count], given[count:], strict=True)
    ]
    return write_csv(path, ["text", "other", "score"], rows)


def write_tag(path: Path, count: int = 240) -> str:
    """Writes CoNLL's columns; nouns are entities of their topic."""
    kinds = {noun: name.upper() for name, nouns in TOPICS.items() for noun in nouns}
    blocks = []
    for text, _ in sentences(count):
        words = text.replace(".", " .").split()
        tags = [f"B-{kinds[word]}" if word in kinds else "O" for word in words]
        blocks.append("\n".join(f"{w}\t{t}" for w, t in zip(words, tags, strict=True)))
    path.write_text("\n\n".join(blocks) + "\n")
    return str(path)


def write_answer(path: Path, count: int = 160, no_answer: bool = False) -> str:
    """Writes SQuAD's form: what does the ... do the old ...?"""
    rng = np.random.default_rng(1)
    paragraphs = []
    for number in range(count):
        (first, _), (second, _) = sentences(2, seed=number)
        context = f"{first} {second}"
        _, noun, verb, *_ = first.split()
        missing = no_answer and rng.random() < 0.4
        asked = "whale" if missing else noun
        answers = (
            [] if missing else [{"text": verb, "answer_start": context.index(verb)}]
        )
        question = {"id": f"q{number}", "question": f"what does the {asked} do?"}
        paragraphs.append(
            {"context": context, "qas": [{**question, "answers": answers}]}
        )
    path.write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}))
    return str(path)


def write_choose(path: Path, count: int = 200) -> str:
    """Writes beginnings; the right ending is of the same topic."""
    rng = np.random.default_rng(2)
    lines = []
    for text, topic in sentences(count):
        others = [name for name in TOPICS if name != topic]
        ends = [rng.choice(TOPICS[name]) for name in rng.choice(others, 2, False)]
        label = int(rng.integers(3))
        ends.insert(label, rng.choice(TOPICS[topic]))
        choices = [f"The {end} praises it." for end in ends]
        lines.append(json.dumps({"text": text, "choices": choices, "label": label}))
    path.write_text("\n".join(lines))
    return str(path)


def finetune_config(recipe: str, **changes) -> FinetuneConfig:
    """Returns a small run; `changes` has `__` for the dots."""
    settings = {
        "epochs": 4,
        "log_every": 1,
        "data__length": 32,
        "data__batch_size": 16,
        "data__validation_share": 0.2,
        "optimizer__learning_rate": 3e-3,
        "eval__batch_size": 32,
        **changes,
    }
    overrides = {k.replace("__", "."): Override(str(v)) for k, v in settings.items()}
    return FinetuneConfig.from_dict(
        recipe_values(f"configs/finetune/{recipe}", overrides)
    )
