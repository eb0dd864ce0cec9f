"""A small tokenizer of every kind that can be trained."""

import functools

from encoderjax.data.tokenizers import make_tokenizer
from tests.small_corpus import documents

TEXTS = [line for text in documents(12) for line in text.splitlines()]
TEXTS += [
    "Naïve café owners don't sleep: 中文 日本 Über 1,234.56 £5 (yes) [no] <oh>!"
] * 3
_SYLLABLES = ["ba", "co", "du", "fe", "gi", "ho", "ju", "ki", "lo", "mu", "ne", "pa"]
TEXTS += [" ".join(a + b for b in _SYLLABLES) for a in _SYLLABLES] * 2
SIZE = 250
BYTES = 310  # of byte-level vocabularies, which need 256 for the bytes alone

# The spec, the model_type that goes with it, the first special tokens and the last.
KINDS = {
    "wordpiece_likelihood": ("bert", "[PAD] [UNK] [CLS] [SEP] [MASK]", ""),
    "wordpiece_cased": ("bert", "[PAD] [UNK] [CLS] [SEP] [MASK]", ""),
    "bbpe": ("roberta", "<s> <pad> </s> <unk>", "<mask>"),
    "bbpe/deberta": ("deberta", "[PAD] [CLS] [SEP] [UNK]", "[MASK]"),
    "bbpe/modernbert": ("modernbert", "", "[UNK] [CLS] [SEP] [PAD] [MASK]"),
    "unigram": ("albert", "<pad> <unk> [CLS] [SEP] [MASK]", ""),
    "unigram_cased": ("albert", "<pad> <unk> [CLS] [SEP] [MASK]", ""),
    "unigram/xlnet": (
        "xlnet",
        "<unk> <s> </s> <cls> <sep> <pad> <mask> <eod> <eop>",
        "",
    ),
    "unigram/xlm_roberta": ("xlm-roberta", "<s> <pad> </s> <unk>", "<mask>"),
    "unigram/deberta_v2": ("deberta-v2", "[PAD] [CLS] [SEP] [UNK]", "[MASK]"),
}


def size_of(kind):
    return BYTES if kind.startswith("bbpe") else SIZE


@functools.cache
def tokenizer_of(kind):
    return make_tokenizer(f"{kind}:{size_of(kind)}", lambda: TEXTS)
