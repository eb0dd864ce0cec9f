"""How text is normalised before a unigram model splits its words, class by class.

transformers has this wired into each class. What it is there, it is here.
"""

import base64
import dataclasses

MARK = "▁"  # of a piece that begins a word


@dataclasses.dataclass(frozen=True)
class Cleaning:
    """How text is normalised before its words are split.

    Attributes:
      quotes: whether `` and '' become ".
      strip_accents: whether accents are removed.
      lowercase: whether capitals are made small.
      composed: DeBERTa v2's way: white space and NFC, without SentencePiece's map.
      split_punctuation: whether punctuation is always apart.
      prefix_space: whether the first word is marked as any other.
      options: what of these the class lets tokenizer_config.json decide.
    """

    quotes: bool = False
    strip_accents: bool = False
    lowercase: bool = False
    composed: bool = False
    split_punctuation: bool = False
    prefix_space: bool = True
    options: tuple[str, ...] = ()

    def steps(self, charsmap: bytes) -> list[dict]:
        """Returns the normalizers of tokenizer.json."""
        lowercase = [{"type": "Lowercase"}] * self.lowercase
        if self.composed:
            spaces = _replaced({"Regex": r"\s{2,}|[\n\r\t]"}, " ")
            strip = {"type": "Strip", "strip_left": False, "strip_right": True}
            return [*lowercase, spaces, {"type": "NFC"}, strip]
        quotes = [_replaced({"String": quote}, '"') for quote in ("``", "''")]
        accents = [{"type": "NFKD"}, {"type": "StripAccents"}]
        mapped = base64.b64encode(charsmap).decode()
        precompiled = {"type": "Precompiled", "precompiled_charsmap": mapped}
        return [
            *quotes * self.quotes,
            *accents * self.strip_accents,
            *lowercase,
            *[precompiled] * bool(charsmap),
        ]

    def parts(self, charsmap: bytes) -> dict:
        """Returns the parts of tokenizer.json round the model."""
        steps = self.steps(charsmap)
        normalizer = {"type": "Sequence", "normalizers": steps}
        if not (self.quotes or self.composed):  # XLM-R's has the map and no more
            normalizer = steps[0] if steps else None
        without = "first" if self.composed else "never"
        mark = {
            "type": "Metaspace",
            "replacement": MARK,
            "prepend_scheme": "always" if self.prefix_space else without,
            "split": True,
        }
        splitters: list[dict] = [] if self.composed else [{"type": "WhitespaceSplit"}]
        if self.split_punctuation:
            splitters.append({"type": "Punctuation", "behavior": "Isolated"})
        return {
            "normalizer": normalizer,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splitters, mark]},
            "decoder": mark,
        }


def _replaced(pattern: dict, content: str) -> dict:
    return {"type": "Replace", "pattern": pattern, "content": content}


CLEANINGS = {
    "albert": Cleaning(
        quotes=True,
        strip_accents=True,
        lowercase=True,
        options=("lowercase", "strip_accents", "prefix_space"),
    ),
    "xlnet": Cleaning(quotes=True, strip_accents=True, options=("lowercase",)),
    "xlm_roberta": Cleaning(options=("prefix_space",)),
    "deberta_v2": Cleaning(
        composed=True, options=("lowercase", "split_punctuation", "prefix_space")
    ),
}

# The fields above, as tokenizer_config.json calls them.
CONFIG_NAMES = {
    "lowercase": "do_lower_case",
    "strip_accents": "keep_accents",
    "split_punctuation": "split_by_punct",
    "prefix_space": "add_prefix_space",
}
CONTRARY = "strip_accents"  # is true where keep_accents is false
