"""Splits prose into sentences by rule, for any script that marks their ends.

Lines. A blank line always ends a sentence, and so do a heading of Markdown and the
line before a list item. What any other newline means is decided once for a text: when
its median line is longer than 120 characters every line is a paragraph; otherwise
the newline is a soft wrap, joined by a space, or by nothing between two
characters of a script that is written without spaces.

Ends. The marks of Chinese, Japanese, Devanagari, Arabic and the like end a sentence
wherever they stand. The marks . ! ? and the ellipsis end one only before a space
and something that can begin a sentence (a capital, a digit, a letter of a script
without case), and a full stop only when it is not that of an abbreviation, an
initial or a number in a list. Where a full stop may be both, as in "the U.S. The"
and "the U.S. Congress", the next word decides.
"""

# ruff: noqa: RUF001, SIM905 (marks of many scripts; word lists read best as text)
import re
import statistics

_WRAP_LENGTH = 120  # wrapped text stays below, paragraphs on one line are above

# Marks that end a sentence with no regard to what follows.
_HARD = "。！？｡؟۔।॥։።፧။។"
_HAN_KANA = "\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff"
_CLOSING = "\"'”’»)\\]}*_`）」』】》〉］｝"
_OPENING = "\"'“‘«(\\[{*_`¿¡—–„‚（「『【《〈［"

_HEADING = re.compile(r"^(#{1,6}[ \t][^\n]*\n)", re.MULTILINE)  # of Markdown
_BLANK_LINES = re.compile(r"\n\s*\n")
# Besides bullets: headings and quotations of Markdown, "1." or "a)" of lists.
_ITEM = re.compile(r"\n(?=[ \t]*(?:[-*+•‣·>–—]|#{1,6}|\d{1,3}[.)]|[a-z]\))[ \t])")
_UNSPACED_WRAP = re.compile(rf"(?<=[{_HAN_KANA}])[ \t]*\n\s*(?=[{_HAN_KANA}])")
# A mark or several, what closes with it (also a reference such as [12]); then,
# not consumed: the space, what opens, and the word after it.
_CANDIDATE = re.compile(
    rf"([.!?…．{_HARD}]+)((?:\[\d{{1,3}}\]|[{_CLOSING}])*)"
    rf"(?=( ?)[{_OPENING}]*(\w+(?:['’]\w+)?|))"
)
_HARD_MARKS = frozenset(_HARD)
_UNSPACED = re.compile(f"[{_HAN_KANA}]")
_DOTTED = re.compile(r"(?:[^\W\d_]{1,2}\.)+[^\W\d_]{1,2}")  # U.S, e.g, Ph.D, p.m
_ENUMERATOR = re.compile(r"\d{1,3}|[IVXLivxl]+|[A-Za-z]")
_NUMERAL = re.compile(r"\d|[IVXLCDM]+\b")
_TIME = frozenset({"a.m", "p.m", "A.M", "P.M"})

# Never the last word of a sentence: something always follows.
_LEADING = frozenset(
    """Mr Mrs Ms Messrs Mme Mlle Dr Drs Prof Gen Maj Col Capt Cpt Cmdr Comdr Lt Lieut
    Sgt Corp Cpl Pvt Adm Rev Revd Hon Sen Reps Rep Gov Supt Insp Esqr Mt Ft Fr Pres
    Ald Atty Amb Sig Sra Srta Dra Hr Fr Mgr Msgr Ste Bl Visc vs cf viz ca e.g i.e
    eg ie z.B d.h u.a bzw ibid approx tel Tel""".split()
)
# The last word unless a number follows: No. 5, Vol. II, Dec. 25, p. 12.
_NUMBERED = frozenset(
    """No Nos no nos Nr nr N Vol Vols vol vols Fig Figs fig figs Eq Eqs Sec Secs sec
    Sect sect Art art Arts Ch ch Chap chap Par par Para para Pt pt p pp Bk Cap cap
    Ex ex Lib lib Tab Stat stat Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec
    App app Op op Bd S art núm num стр рис гл""".split()
)
# Either: the last word when the next one is seldom part of a name.
_UNSURE = frozenset(
    """St Sts Ave Blvd Rd Sq Bldg Inc Ltd Co Cos Corp Bros Jr Sr Esq Dept Dist Univ
    Assn Assoc Ala Ariz Ark Calif Colo Conn Del Fla Ga Ill Ind Kan Ky La Md Mass
    Mich Minn Miss Mo Mont Neb Nev Okla Ore Pa Penn Tenn Tex Va Vt Wash Wis Wyo
    Mon Tue Tues Wed Thu Thur Thurs Fri Sat Sun Thos Wm Chas Geo Jas Jno Robt
    Alex Benj Saml Edw Wm Ed Eds ed eds trans Trans et al resp incl""".split()
)
# Words that begin sentences often and names hardly ever.
_STARTERS = frozenset(
    """A After All Also Although An And Another Any Are As At Because Before Besides
    Both But By Can Could Despite Did Do Does During Each Either Even Every Few
    Finally First For From Further Had Has Have He Hence Her Here His How However I
    If In Indeed Instead Is It Its It's Just Last Later Let Like Many May Maybe
    Meanwhile More Moreover Most Much Must My Neither Never Nevertheless No Nor Not
    Nothing Now Of On Once One Only Or Other Others Our Out Over Perhaps Please
    Several Shall She Should Since So Some Soon Still Such Than That The Their Them
    Then There Therefore These They This Those Though Through Thus To Today
    Together Too Two Under Unless Until Upon Very Was We Well Were What When
    Whenever Where Whether Which While Who Whose Why Will With Within Without Would
    Yes Yet You Your""".split()
)


def split_sentences(text: str) -> list[str]:
    """Returns the sentences of `text`, stripped, with single spaces inside."""
    sentences: list[str] = []
    for paragraph in _paragraphs(text):
        _split_paragraph(paragraph, sentences)
    return sentences


def _paragraphs(text: str) -> list[str]:
    """Returns pieces that no sentence reaches across, on one line each."""
    if any(mark in text for mark in "\r\v\f\x85\u2028\u2029"):
        text = "\n".join(text.splitlines())  # every kind of line end becomes \n
    if "\n" not in text:
        return [" ".join(text.split())]
    lengths = [len(line) for line in text.split("\n") if line and not line.isspace()]
    if lengths and statistics.median_low(lengths) > _WRAP_LENGTH:
        return [" ".join(line.split()) for line in text.split("\n")]
    if "# " in text:
        text = _HEADING.sub(r"\1\n", text)
    pieces = []
    for block in _BLANK_LINES.split(text):
        for piece in _ITEM.split(block) if "\n" in block else (block,):
            if "\n" in piece and not piece.isascii():
                piece = _UNSPACED_WRAP.sub("", piece)
            pieces.append(" ".join(piece.split()))
    return pieces


def _split_paragraph(text: str, sentences: list[str]) -> None:
    """Appends the sentences of one paragraph, whose only white space is spaces."""
    start = 0
    for match in _CANDIDATE.finditer(text):
        marks, closing, space, word = match.groups()
        if not _ends_sentence(text, start, match.start(), marks, closing, space, word):
            continue
        end = match.end()
        sentences.append(text[start:end])
        start = end + len(space)
    if start < len(text):
        sentences.append(text[start:])


def _ends_sentence(
    text: str,
    start: int,
    position: int,
    marks: str,
    closing: str,
    space: str,
    word: str,
) -> bool:
    """Says whether the marks at `position` end the sentence begun at `start`."""
    if not _HARD_MARKS.isdisjoint(marks):
        # Japanese quotes a whole sentence and goes on with a particle.
        return not (closing and word[:1] in ("と", "っ") and not space)
    if not word:
        return False
    first = word[0]
    if not space:  # only ! and ? typed for their wide forms
        return (
            marks[-1] in "!?．" and not first.isascii() and bool(_UNSPACED.match(first))
        )
    if first.islower() or not first.isalnum():
        return False
    if marks != "." or closing:
        return True
    return not _is_abbreviation(text, start, position, word)


def _is_abbreviation(text: str, start: int, position: int, following: str) -> bool:
    """Says whether the full stop at `position` belongs to the word before it."""
    space = text.rfind(" ", start, position)
    before = text[max(space + 1, start) : position].lstrip("\"'“‘«([{*_`—–-")
    if space < start and _ENUMERATOR.fullmatch(before):
        return True  # "1. Scope" and "IV. The Court": the number opens the sentence
    if before in _LEADING:
        return True
    if before in _NUMBERED:
        return _NUMERAL.match(following) is not None
    if len(before) == 1 and before.lower() != before.upper():
        return _is_initial(text, start, space, before, following)
    if before in _UNSURE:
        return following not in _STARTERS
    if before in _TIME:
        return following[0].isdigit()
    return bool(_DOTTED.fullmatch(before)) and following not in _STARTERS


def _is_initial(text: str, start: int, space: int, letter: str, following: str) -> bool:
    """Says whether a single letter and its stop abbreviate, as in J. F. Kennedy."""
    if letter == "I":  # the pronoun, unless a name comes before it
        previous = text[text.rfind(" ", start, max(space, start)) + 1 : space]
        return previous[:1].isupper() and following not in _STARTERS
    return following not in _STARTERS
