"""What a finished run shows: masks filled in held-out text, and what to do next."""

import re
from pathlib import Path

import numpy as np

from encoderjax.data.random import Draws
from encoderjax.data.tokenizers import Tokenizer
from encoderjax.evaluate import unigram_entropy
from encoderjax.experiment import EVAL_SEED, Experiment
from encoderjax.fill_mask import fill_masks
from encoderjax.interop.loading import load_model

_TEXTS, _MASKS, _LONGEST = 3, 2, 24


def masked_texts(experiment: Experiment) -> list[tuple[str, list[str]]]:
    """Returns held-out sentences with some words masked, and those words."""
    corpus = experiment.corpus
    split = corpus.split("validation")
    if not split.num_documents:
        split = corpus.split("train")
    vocabulary = corpus.tokenizer.vocabulary
    room = experiment.encoder.max_length - corpus.tokenizer.layout.num_special(1)
    longest = min(_LONGEST, room)
    found: list[tuple[str, list[str]]] = []
    order = np.random.default_rng(EVAL_SEED).permutation(split.num_sentences)
    for sentence in order[:1000]:
        first, stop = split.sentence_starts.take(np.arange(sentence, sentence + 2))
        ids = split.tokens.slice(first, stop).astype(np.int64)
        # Words of one piece, with room on both sides, make the clearest examples.
        whole = ~vocabulary.continues_word_V[ids] & ~vocabulary.special_V[ids]
        whole[:-1] &= ~vocabulary.continues_word_V[ids[1:]]
        words = np.flatnonzero(whole)
        words = [w for w in words if _spelling(corpus.tokenizer, ids[w]).isalpha()]
        if not 10 <= len(ids) <= longest or len(words) < 2 * _MASKS:
            continue
        draws = Draws(EVAL_SEED, np.zeros(1, int), np.asarray([sentence]))
        keys = draws.bits("demonstration", len(words))[0]
        chosen = sorted(words[i] for i in np.argsort(keys)[:_MASKS])
        hidden = [_spelling(corpus.tokenizer, i) for i in ids[chosen]]
        ids[chosen] = vocabulary.mask_id
        found.append((_spaced_masks(corpus.tokenizer, ids), hidden))
        if len(found) == _TEXTS:
            break
    return found


def _spelling(tokenizer: Tokenizer, i: int) -> str:
    """Returns a piece without the mark of a word's start."""
    return tokenizer.decode([i]).strip()


def _spaced_masks(tokenizer: Tokenizer, ids: np.ndarray) -> str:
    """Returns the text of `ids`, a space before every mask.

    A mask has no mark of a word's start, so that some decoders join it to the word
    before. Those tokenizers take the space for a part of the mask.
    """
    mask = re.escape(tokenizer.mask_token)
    return re.sub(
        rf"\s*{mask}", f" {tokenizer.mask_token}", tokenizer.decode(ids)
    ).strip()


def demonstration(workdir: Path, experiment: Experiment) -> str:
    """Returns a few masks of held-out text with the model's best guesses."""
    if "mlm" not in {objective.name for objective in experiment.objectives}:
        return ""
    lines = []
    if experiment.corpus.split("validation").num_tokens:
        entropy = unigram_entropy(experiment.corpus)
        lines.append(f"(token frequencies alone reach an mlm loss of {entropy:.3f})")
    examples = masked_texts(experiment)
    if not examples:  # no sentence is short and plain enough to show
        return "\n".join(lines)
    model, tokenizer = load_model(workdir), experiment.corpus.tokenizer
    lines += ["", "masks filled in held-out text:"]
    filled = fill_masks(model, [text for text, _ in examples], top=4)
    for (text, hidden), result in zip(examples, filled, strict=True):
        lines.append(f"  {text}")
        for word, guesses in zip(hidden, result.masks, strict=True):
            shown = ", ".join(
                f"{_spelling(tokenizer, guess.id)} {guess.probability:.2f}"
                for guess in guesses
            )
            lines.append(f"    was {word!r}: {shown}")
    return "\n".join(lines)


def next_commands(workdir: Path, experiment: Experiment) -> str:
    """Returns what to try next."""
    return "\n".join(
        (
            "",
            "next:",
            f"  python -m encoderjax.fill_mask --model={workdir} "
            '"The [MASK] of the union"',
            f"  python -m encoderjax.evaluate --model={workdir} "
            f"--corpus={experiment.corpus.folder}",
            f"  python -m encoderjax.export --workdir={workdir} "
            f"--out={workdir}/huggingface",
            "  python -m encoderjax.prepare --source='my/texts/*.txt' --out=my_corpus",
        )
    )
