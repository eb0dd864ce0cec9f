"""The special tokens of each family of tokenizers, and what goes by the family.

A family is a row of FAMILIES: the kind of its pieces, how its special tokens are
spelled and numbered, where they stand round one or two segments, and the names that
it has in the published files. A row is what its class in transformers 5.22 builds,
because an exported folder is read by that class: it takes the pieces from
tokenizer.json and has all else wired in.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Literal

Kind = Literal["wordpiece", "bytelevel", "unigram"]
# The class that takes a tokenizer.json as it is.
VERBATIM = "PreTrainedTokenizerFast"
ROLES = ("pad", "unk", "cls", "sep", "mask")

# Entries that only fill a vocabulary: BERT's, fairseq's, and those of SentencePiece.
UNUSED = re.compile(r"\[unused\d+\]|madeupword\d+|<unused_?\d+>|<extra_id_\d+>")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """A family of tokenizers.

    Attributes:
      names: the spelling of the special tokens, by role.
      first: the special tokens that have the ids from 0 on.
      last: those that have the last ids, in order.
      pair: where special tokens stand, as role:segment, round the texts A and B. One
        text has the same with what stands between A and B left out, in segment 0.
      hf_class: the class in transformers that gives the same ids; VERBATIM where the
        family has none of its own.
      model_types: the `model_type` of config.json that takes this tokenizer.
      model_file: the name under which a SentencePiece model is published.
      renumbers: whether `first` replaces the <unk> <s> </s> of the SentencePiece
        model, and `last` follows it, as fairseq numbers its dictionaries.
      mask_takes_space: whether the mask swallows the white space before it.
      composes: whether text is brought to Unicode's composed form first (NFC); for
        byte-level families.
      pads_left: whether padding stands before the text.
      pad_segment: the segment of padding.
      asks_for_segments: whether its files have to name the segments among a model's
        inputs, because its class would leave them out.
    """

    name: str
    kind: Kind
    names: Mapping[str, str]
    first: tuple[str, ...] = ()
    last: tuple[str, ...] = ()
    pair: str = "cls:0 A:0 sep:0 B:1 sep:1"
    hf_class: str
    model_types: tuple[str, ...]
    model_file: str | None = None
    renumbers: bool = False
    mask_takes_space: bool = True
    composes: bool = False
    pads_left: bool = False
    pad_segment: int = 0
    asks_for_segments: bool = False

    @property
    def specials(self) -> tuple[str, ...]:
        """All special tokens, those with the first ids first."""
        return tuple(dict.fromkeys((*self.first, *self.last, *self.names.values())))

    def places(self, segments: int) -> list[tuple[str, int]]:
        """Returns what stands in a row of 1 or 2 segments: role or text, segment."""
        pair = [part.split(":") for part in self.pair.split()]
        places = [(role, int(segment)) for role, segment in pair]
        if segments == 2:
            return places
        a, b = places.index(("A", 0)), [role for role, _ in places].index("B")
        second = places[b][1]
        after = [(role, 0 if at == second else at) for role, at in places[b + 1 :]]
        return places[: a + 1] + after

    def renamed(self, names: Mapping[str, str]) -> "Family":
        """Returns the family with other spellings for the roles in `names`."""
        changed = {self.names[role]: name for role, name in names.items()}
        return dataclasses.replace(
            self,
            names={**self.names, **names},
            first=tuple(changed.get(name, name) for name in self.first),
            last=tuple(changed.get(name, name) for name in self.last),
        )


def _names(form: str, **others: str) -> dict[str, str]:
    return {role: form.format(role) for role in ROLES} | others


_BRACKETS = {role: f"[{role.upper()}]" for role in ROLES}
_ANGLES = _names("<{}>", cls="<s>", sep="</s>")

FAMILIES = {
    family.name: family
    for family in (
        Family(
            name="bert",
            kind="wordpiece",
            names=_BRACKETS,
            first=("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
            hf_class="BertTokenizer",
            model_types=("bert", "electra", "distilbert"),
            mask_takes_space=False,
        ),
        Family(
            name="roberta",
            kind="bytelevel",
            names=_ANGLES,
            first=("<s>", "<pad>", "</s>", "<unk>"),
            last=("<mask>",),
            pair="cls:0 A:0 sep:0 sep:0 B:0 sep:0",
            hf_class="RobertaTokenizer",
            model_types=("roberta",),
        ),
        Family(
            name="deberta",
            kind="bytelevel",
            names=_BRACKETS,
            first=("[PAD]", "[CLS]", "[SEP]", "[UNK]"),
            last=("[MASK]",),
            pair="cls:0 A:0 sep:0 sep:0 B:0 sep:0",
            hf_class="DebertaTokenizer",
            model_types=("deberta",),
        ),
        Family(
            name="modernbert",
            kind="bytelevel",
            names=_BRACKETS,
            last=("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"),
            hf_class=VERBATIM,
            model_types=("modernbert",),
            composes=True,
        ),
        Family(
            name="albert",
            kind="unigram",
            names={**_BRACKETS, "pad": "<pad>", "unk": "<unk>"},
            first=("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"),
            hf_class="AlbertTokenizer",
            model_types=("albert",),
            model_file="spiece.model",
            asks_for_segments=True,
        ),
        Family(
            name="xlnet",
            kind="unigram",
            names=_names("<{}>"),
            first=(
                *("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>"),
                *("<eod>", "<eop>"),
            ),
            pair="A:0 sep:0 B:1 sep:1 cls:2",
            hf_class="XLNetTokenizer",
            model_types=("xlnet",),
            model_file="spiece.model",
            pads_left=True,
            pad_segment=3,
            asks_for_segments=True,
        ),
        Family(
            name="xlm_roberta",
            kind="unigram",
            names=_ANGLES,
            first=("<s>", "<pad>", "</s>", "<unk>"),
            last=("<mask>",),
            pair="cls:0 A:0 sep:0 sep:0 B:0 sep:0",
            hf_class="XLMRobertaTokenizer",
            model_types=("xlm-roberta",),
            model_file="sentencepiece.bpe.model",
            renumbers=True,
        ),
        Family(
            name="deberta_v2",
            kind="unigram",
            names=_BRACKETS,
            first=("[PAD]", "[CLS]", "[SEP]", "[UNK]"),
            last=("[MASK]",),
            hf_class="DebertaV2Tokenizer",
            model_types=("deberta-v2",),
            model_file="spm.model",
            mask_takes_space=False,
        ),
    )
}


def find_family(
    kind: Kind, ids: Mapping[str, int], hf_class: str = "", model_type: str = ""
) -> Family | None:
    """Returns the family of a vocabulary.

    Args:
      ids: the vocabulary.
      hf_class: the `tokenizer_class` of a tokenizer_config.json; decides.
      model_type: that of a config.json; decides where no class is named.

    Where neither is known, the family is the one whose special tokens are in the
    vocabulary, first of all in their usual places.
    """
    rows = [family for family in FAMILIES.values() if family.kind == kind]
    hf_class = hf_class.removesuffix("Fast")
    # Published for BERT's tokenizer under these names.
    if hf_class in ("ElectraTokenizer", "DistilBertTokenizer"):
        hf_class = "BertTokenizer"
    chosen = [family for family in rows if family.hf_class == hf_class]
    chosen += [family for family in rows if model_type in family.model_types]
    fitting = [f for f in rows if all(name in ids for name in f.names.values())]
    chosen += [
        f for f in fitting if all(ids.get(n) == i for i, n in enumerate(f.first))
    ]
    return next(iter(chosen + fitting), rows[0] if len(rows) == 1 else None)
