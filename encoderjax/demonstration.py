"""What a finished run shows: masks filled in held-out text, and what to do next."""

import re
from pathlib import Path

import numpy as np

from encoderjax.data.corpus import Corpus
from encoderjax.data.random import Draws, permuted
from encoderjax.data.tokenizers import Tokenizer
from encoderjax.evaluate import unigram_entropy
from encoderjax.experiment import EVAL_SEED, Experiment
from encoderjax.fill_mask import fill_masks
from encoderjax.interop.loading import load_model

_TEXTS, _MASKS, _LONGEST = 3, 2, 24
_TRIED = 1000  # sentences that are looked at, drawn from all


def masked_texts(experiment: Experiment) -> list[tuple[str, list[str]]]:
    """Returns held-out sentences with some words masked, and those words.

    Of a mixture they come from the members with the largest shares, one of each.
    """
    members = [m for m in experiment.corpus.members if _has_held_out(m.corpus)]
    members.sort(key=lambda member: -member.share)
    longest = experiment.encoder.max_length
    if len(members) == 1:
        return _masked_texts(members[0].corpus, longest, _TEXTS)
    corpora = (member.corpus for member in members[:_TEXTS])
    return [text for c in corpora for text in _masked_texts(c, longest, 1)]


def _has_held_out(corpus: Corpus) -> bool:
    return corpus.split("validation").num_documents > 0


def _masked_texts(
    corpus: Corpus, max_length: int, count: int
) -> list[tuple[str, list[str]]]:
    split = corpus.split("validation")
    vocabulary = corpus.tokenizer.vocabulary
    room = max_length - corpus.tokenizer.layout.num_special(1)
    longest = min(_LONGEST, room)
    found: list[tuple[str, list[str]]] = []
    tried = np.arange(min(_TRIED, split.num_sentences))
    for sentence in permuted(tried, split.num_sentences, EVAL_SEED, epochs=0):
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
        if len(found) == count:
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
    if any(_has_held_out(member.corpus) for member in experiment.corpus.members):
        entropy = unigram_entropy(experiment.corpus)
        lines.append(f"(token frequencies alone reach an mlm loss of {entropy:.3f})")
    # A model that is told languages would be asked without one.
    examples = [] if experiment.encoder.languages else masked_texts(experiment)
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
            f"--corpus={experiment.corpus.name}",
            f"  python -m encoderjax.export --workdir={workdir} "
            f"--out={workdir}/huggingface",
            "  python -m encoderjax.prepare --source='my/texts/*.txt' --out=my_corpus",
        )
    )
