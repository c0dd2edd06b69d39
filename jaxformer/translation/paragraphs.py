"""Paragraphs: cutting them into sentences, and joining the translations."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from unicodedata import bidirectional

from jaxformer.data.language_codes import short_code
from jaxformer.translation.results import (
    Hypothesis,
    concatenate,
    concatenate_hypotheses,
)

_WORD_BEGIN = "▁"
# Marks that end a sentence before white space; and full-width ones, which need none.
_MARKS = ".!?…‽⁇⁈⁉‼\u037e؟۔।॥։።፧။។៕།༎᙮᠃᠉᱾᱿꓿"
_FULL_WIDTH = "。！？｡"
# Marks to cut after, in order of preference; then any two words.
_ENDS = (_MARKS + _FULL_WIDTH, ",;:–—、，；：،")


def split(pieces: Sequence[str], limit: int) -> list[tuple[int, int]]:
    """Cut the pieces of a sentence into runs ``(start, stop)`` of at most ``limit``.

    A run ends in the second half of its limit: before the last word that follows the
    end of a sentence, or else another mark, or else before the last word, or else at
    the limit.

    Example:
        >>> split(["▁One", ".", "▁Two", "▁and", "▁three", "."], 4)
        [(0, 4), (4, 6)]
    """
    runs, start = [], 0
    while len(pieces) - start > limit:
        stop = start + _length(pieces[start : start + limit + 1], limit)
        runs.append((start, stop))
        start = stop
    runs.append((start, len(pieces)))
    return runs


def _length(pieces: Sequence[str], limit: int) -> int:
    """Return the length of a run, given one piece more than ``limit``."""
    places = range(limit, limit // 2, -1)
    words = [index for index in places if pieces[index].startswith(_WORD_BEGIN)]
    # In scripts without spaces a mark ends a sentence anywhere.
    for ends, allowed in ((_FULL_WIDTH, places), *((ends, words) for ends in _ENDS)):
        for index in allowed:
            if pieces[index - 1].endswith(tuple(ends)):
                return index
    return words[0] if words else limit


# Letters of scripts without spaces between words, for a class of a regular expression:
# Han; kana; from Thai to Tibetan and Burmese, Khmer, Tai, Balinese or Javanese.
HAN = r"\u2e80-\u2fdf\u3005-\u3007\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
KANA = r"\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9d"
SOUTHEASTERN = r"\u0e00-\u109f\u1780-\u17ff\u1950-\u1aaf\u1b00-\u1b7f\ua980-\uaadf"
UNSPACED = HAN + KANA + SOUTHEASTERN

# Han, kana and their marks, which have no spaces between sentences.
_UNSPACED = re.compile(
    "[\u3001-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff01-\uff65\U00020000-\U0003ffff]"
)


def is_unspaced(character: str) -> bool:
    """Return whether a character is of a script without spaces between words."""
    return _UNSPACED.match(character) is not None


def spacing(left: str, right: str, source: str) -> str:
    """Return the white space between two translated parts, given that of the source.

    It is the source's, on one line; a space if the source has none, as between
    sentences of Chinese; nothing if the translation is in a script without spaces, or
    one side is empty.

    Example:
        >>> spacing("Eins.", "Zwei.", "  "), spacing("One.", "Two.", "")
        ('  ', ' ')
    """
    if not left or not right or (is_unspaced(left[-1]) and is_unspaced(right[0])):
        return ""
    return re.sub(r"[\r\n]", " ", source) or " "


def join(
    parts: Sequence[Sequence[Hypothesis]], spaces: Sequence[str]
) -> list[Hypothesis]:
    """Join the translations of the parts of a line, the best with the best.

    Scores and log-probabilities are summed; pieces are concatenated, with the end of
    sentence of each part.

    Args:
        parts: hypotheses of each part, the best first; if a part has none, so has the
            line.
        spaces: white space before each part in the source.
    """
    return [join_row(row, spaces) for row in zip(*parts, strict=False)]


def join_row(
    row: Sequence[Hypothesis],
    spaces: Sequence[str],
    spacing: Callable[[str, str, str], str] = spacing,
) -> Hypothesis:
    """Join translations of the parts of a line.

    Args:
        row: one of each part.
        spaces: white space before each part in the source.
        spacing: returns the white space between two of them, as :func:`spacing` does.
    """
    text, alignments = "", []
    sources: list[int | None] = []
    targets: list[int | None] = []
    for part, space in zip(row, spaces, strict=True):
        between = spacing(text, part.text, space)
        if part.alignment is not None:
            alignments.append(part.alignment)
            sources = _join_words(sources, part.alignment.source_words, bool(space))
            targets = _join_words(targets, part.alignment.target_words, bool(between))
        text += between + part.text
    whole = None
    if alignments and len(alignments) == len(row):
        whole = dataclasses.replace(
            concatenate(alignments), source_words=sources, target_words=targets
        )
    return concatenate_hypotheses(row, text, whole)


def _join_words(
    left: list[int | None], right: list[int | None], spaced: bool
) -> list[int | None]:
    """Number the words of a part after those on the left; without a space between
    them, the last word continues.
    """
    last = max((word for word in left if word is not None), default=None)
    first = 0 if last is None else last + spaced
    return [*left, *(None if word is None else word + first for word in right)]


# Closing and opening marks between a sentence and the next; a straight quote is
# either.
_CLOSING = "\"'”’“‘»›«‹)]}」』）】》〉"
_OPENING = "\"'“‘”„‚«‹»›([{「『（【《〈¿¡-–—*•"
# Closing marks that may have a space before them: no opening mark is followed by one.
_SPACED = r"[ \u00a0\u202f][»›”’)\]}」』）】》〉](?=[\s,;:.!?)]|\Z)"


def _class(characters: str) -> str:
    return f"[{re.escape(characters)}]"


# Marks that end a sentence in one language only.
_OWN_MARKS = {"el": ";", "hy": ":"}

# Ends of sentences: marks before white space, but not the semicolon of a character
# reference; full-width marks; and characters that break a line, which end a sentence
# without a mark. No line contains a line feed.
_PLACES = re.compile(
    rf"(?<!{_class(_MARKS)})(?P<end>{_class(_MARKS)}++|(?<!&..)(?<!&...)(?<!&....)[;:])"
    rf"(?:{_class(_CLOSING)}|{_SPACED})*+(?=\s)"
    rf"|(?P<wide>{_class(_FULL_WIDTH)}++){_class(_CLOSING)}*+"
    r"|(?P<line>[\u2028\u2029\x85\x0b\x0c])"
)

# Words before a full stop that ends no sentence, by language. Single letters and words
# with inner stops ("z. B.", "i.e.", "J. S.") need no list; words that often end a
# sentence ("etc.", "Inc.") are not listed.
_ABBREVIATIONS = {
    "en": (
        "Mr Mrs Ms Dr Prof Rev Hon Gen Col Capt Lt Sgt Gov Sen Rep St Mt vs cf al"
        " approx"
    ),
    "de": (
        "Dr Prof Hr Fr Frl Hrn Dipl Ing Mag St med bzw ca evtl ggf inkl exkl insb sog"
        " vgl zzgl zzt Tel Str lt Mio Mrd"
    ),
    "fr": "MM Mme Mmes Mlle Mlles Dr Pr St Ste cf env av apr",
    "es": (
        "Sr Sra Sres Sras Srta Dr Dra Prof Ud Uds Gral Lic Av Avda aprox pág cf sr sra"
        " dr dra prof"
    ),
    "it": "Sig Sigg Dott Prof Avv Ing On cfr ca sig sigg dott prof avv ing",
    "pt": "Sr Sra Srs Sras Dr Dra Prof Profa Exmo Av cf aprox sr sra dr dra prof",
    "nl": "Dhr Mevr dhr mevr mw dr prof ir ing bijv ca resp incl excl",
    "da": "Dr Prof Hr Fr Skt St dr prof hr fr ca jf kl",
    "nb": "Dr Prof dr prof ca jf kl",
    "no": "Dr Prof dr prof ca jf kl",
    "sv": "Dr Prof dr prof ca jfr kl",
    "fi": "Dr Prof esim ks prof",
    "pl": "Dr Prof dr prof mgr inż hab ks św ul al np tzn tj ok por zob tys mln mld",
    "cs": "Dr Prof Ing Mgr dr prof doc ing mgr sv ul nám tzv tj např popř resp",
    "sk": "Dr Prof Ing Mgr dr prof doc ing mgr sv ul nám tzv tj napr popr resp",
    "hr": "Dr Prof dr prof sv ul tzv npr",
    "sr": "Др Проф др проф св ул тзв нпр Dr Prof dr prof sv ul tzv npr",
    "sl": "Dr Prof dr prof sv ul tj npr",
    "hu": "Dr Prof dr prof ifj id özv pl ún ill kb",
    "ro": "Dr Prof dr prof str bd sf dl dna",
    "tr": "Dr Prof Doç Av Sn",
    "el": "Δρ δρ κα κκ βλ σελ λεωφ",
    "ru": "Ул См Проф ул им см стр гл рис табл тыс млн млрд проф акад просп пл обл пгт",
    "uk": "Вул Див Проф вул ім див гл рис табл тис млн млрд проф акад просп пл обл",
    "bg": "Проф Ул Бул ул бул гр стр рис табл хил млн млрд проф доц",
    "hi": "डॉ प्रो श्री सं",
    "bn": "ডা ড মো প্রফেসর",
}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


ABBREVIATIONS = {language: _words(words) for language, words in _ABBREVIATIONS.items()}

# Words before a full stop that ends no sentence if a number follows ("No. 5"), in any
# language.
_BEFORE_NUMBERS = _words(
    "no nos nr nrn num núm nº fig figs abb tab art arts abs kap cap bd sec sect ch vol"
    " p pp pág págs eq eqs ref refs ziff rn jan feb mar apr jun jul aug sep sept oct"
    " okt nov dec dez"
)

# Languages that write "the 3rd" as "3.".
_ORDINALS = _words("de lb da nb nn no is fo fi et lv cs sk sl hr bs sr pl hu tr")

# Vowel signs of Indic scripts are no \w.
_WORD = re.compile(r"[\w\u0900-\u0963\u0980-\u0dff.\-]*\Z")
_LETTERS = r"(?:[^\W\d_][\u0900-\u0963\u0980-\u0dff]*){1,3}"
_INNER_STOPS = re.compile(rf"(?:{_LETTERS}\.)+{_LETTERS}")
_ROMAN = re.compile(r"[IVXLC]+")
_SPACE = re.compile(r"\s*")
_NEXT = re.compile(rf"(?:\s|{_class(_OPENING)})*(\S?)")
# No abbreviation is longer.
_LOOK_BACK = 24


def split_sentences(text: str, language: str = "") -> list[tuple[str, str]]:
    """Cut a paragraph into its sentences, each with the white space before it.

    A sentence ends at ``.``, ``!``, ``?``, ``…`` or similar marks of other scripts, in
    Greek also at ``;``, in Armenian at ``:``. Closing quotes and brackets belong to it.
    White space must follow, and then neither a lower-case letter nor another mark;
    after a full-width mark anything may follow. A single full stop does not end a
    sentence after an initial, an abbreviation, the number of an item, or an ordinal
    number in languages that write them so. In doubt two sentences stay together: a
    model translates two sentences well, and halves of a sentence badly.

    Args:
        text: of one line; white space at its ends is removed.
        language: of the text, as a code such as ``de``, for its abbreviations; empty:
            only the rules without a list.

    Example:
        >>> split_sentences("Mr. Hill paid 3.50. Why?  Nobody knows.", "en")
        [('', 'Mr. Hill paid 3.50.'), (' ', 'Why?'), ('  ', 'Nobody knows.')]
    """
    text, language = text.strip(), short_code(language)
    sentences, start, space = [], 0, ""
    for found in _PLACES.finditer(text):
        if found.start() < start:
            continue  # inside the space after the last sentence
        following = _space_end(text, found.end())
        if following == len(text):
            break
        if found["line"] is None and not _ends(text, start, found, language):
            continue
        stop = (
            found.end()
            if found["line"] is None
            else start + len(text[start : found.start()].rstrip())
        )
        sentences.append((space, text[start:stop]))
        start, space = following, text[stop:following]
    return [*sentences, (space, text[start:])]


def _ends(text: str, start: int, found: re.Match[str], language: str) -> bool:
    """Return whether the sentence from ``start`` ends with the marks found."""
    if found["wide"]:
        # After a quote within a sentence, the sentence continues at once.
        return (
            found.end() == found.end("wide")
            or text[found.end()].isspace()
            or text[found.end()] in _OPENING
        )
    next_character = _NEXT.match(text, found.end())
    following = next_character[1] if next_character else ""
    # Georgian has lower-case letters, but no sentence begins with a capital.
    if following.title() != following or following in _MARKS:
        return False
    if found["end"] in ";:":
        return found["end"] == _OWN_MARKS.get(language)
    return found["end"] != "." or not _is_abbreviated(
        text, start, found.start(), following, language
    )


def _is_abbreviated(
    text: str, start: int, stop: int, following: str, language: str
) -> bool:
    """Return whether a single full stop at ``stop`` belongs to the word before it."""
    before = _WORD.search(text, max(start, stop - _LOOK_BACK), stop)
    word = before[0] if before else ""
    if word.isdigit():
        item = stop - start < _LOOK_BACK and not text[start : stop - len(word)].strip(
            _OPENING
        )
        return item or (language in _ORDINALS and len(word) <= 3)
    # Of the scripts without case, Arabic and Hebrew have initials.
    initial = len(word) == 1 and word.isalpha()
    if initial and word.lower() == word.upper():
        initial = bidirectional(word) in ("R", "AL")
    if (
        initial
        or word in ABBREVIATIONS.get(language, ())
        or _INNER_STOPS.fullmatch(word)
    ):
        return True
    if language in _ORDINALS and _ROMAN.fullmatch(word):
        return True
    return word.lower() in _BEFORE_NUMBERS and following.isdigit()


def _space_end(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    return found.end() if found else place
