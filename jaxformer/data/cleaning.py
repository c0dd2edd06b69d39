"""Leave out of a parallel corpus what does not serve training: in explicit steps, each
of which says what it took.

Every pair passes these steps in this order, and the first that refuses it counts it.
Both sides go, or both stay; what stays keeps its order. A step runs if its key is set;
empty sides always go.

========================= ==========================================================
key                       step
========================= ==========================================================
``unicode_normalization`` both sides get a normal form of Unicode; drops nothing
(always)                  a side is empty: only white space or control characters
``max_words``             a side has more words (separated by white space)
``max_characters``        a side has more characters; for scripts without spaces
``max_length_ratio``      one side has this many times the characters of the other
``drop_identical``        both sides are equal: untranslated text
``drop_duplicates``       an earlier pair has both texts; the first stays
``detect_languages``      a side is surely in another language than its own
========================= ==========================================================

White space around a sentence counts in no step. Each step judges a pair by its own text
alone, so that workers may clean a corpus in chunks and add up their counts; only
duplicates need the whole corpus, which :func:`find_duplicates` reads first. Equal pairs
meet the same end in every other step: which duplicate goes does not depend on the other
steps.

Example:
    >>> counts = Counts()
    >>> pairs = [Pair("a tree", "ein Baum"), Pair("a tree", ""), Pair("OK", "OK")]
    >>> list(clean(pairs, Cleaning(drop_identical=True), counts, languages=("en", "de")))
    [Pair(source='a tree', target='ein Baum')]
    >>> counts
    Counts(read=3, changed={}, dropped={'empty': 1, 'drop_identical': 1})
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from jaxformer.data.records import Pair
from jaxformer.errors import InputError
from jaxformer.table import align

if TYPE_CHECKING:
    from jaxformer.data.duplicates import Duplicates

UnicodeNormalization = Literal["none", "NFC", "NFKC"]
"""The form that text is brought to; see :func:`normalize`."""

UNICODE_NORMALIZATIONS: tuple[UnicodeNormalization, ...] = ("none", "NFC", "NFKC")

STEPS = {
    "unicode_normalization": "Unicode normalisation",
    "empty": "empty side",
    "max_words": "too many words",
    "max_characters": "too many characters",
    "max_length_ratio": "length ratio",
    "drop_identical": "identical sides",
    "drop_duplicates": "duplicate",
    "detect_languages": "another language",
    "max_length": "too many tokens",
}
"""What a report calls the steps, in their order; after ours, the limit in tokens
that whoever tokenises applies.
"""

# Letters and symbols by their category, and yet nothing to see: the Hangul fillers and
# the braille blank.
_BLANKS = frozenset("\u115f\u1160\u2800\u3164\uffa0")
# Separators, control and format characters (zero-width space, byte order mark), half
# surrogate pairs, and marks, which show nothing without a letter under them.
_UNSEEN = frozenset(("Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Mn", "Mc", "Me"))


@dataclass(frozen=True)
class Cleaning:
    """Say which steps clean a corpus; the default drops pairs with an empty side alone.

    The fields are keys of :class:`~jaxformer.data.config.DataConfig`, which describes
    their values.

    Raises:
        InputError: a value lies out of range.
    """

    max_words: int | None = None
    max_characters: int | None = None
    max_length_ratio: float | None = None
    drop_identical: bool = False
    drop_duplicates: bool = False
    unicode_normalization: UnicodeNormalization = "none"
    detect_languages: bool = False

    def __post_init__(self) -> None:
        for key in ("max_words", "max_characters"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise InputError(
                    f"data.{key} must be at least 1, not {value}; None sets no limit"
                )
        ratio = self.max_length_ratio
        if ratio is not None and not (1 <= ratio < math.inf):
            raise InputError(
                f"data.max_length_ratio must be a number from 1 up, not {ratio}; None"
                " sets no limit"
            )
        if self.unicode_normalization not in UNICODE_NORMALIZATIONS:
            choices = (
                ", ".join(UNICODE_NORMALIZATIONS[:-1])
                + f" or {UNICODE_NORMALIZATIONS[-1]}"
            )
            raise InputError(
                f"data.unicode_normalization must be {choices}, not"
                f" {self.unicode_normalization!r}"
            )


@dataclass
class Counts:
    """Count what cleaning read, changed and dropped; the counts of chunks add up to
    those of the corpus.

    ``dataclasses.asdict`` gives what JSON can hold, and ``Counts(**record)`` takes it
    back. A step that ran and took nothing counts 0; a step that did not run is missing.
    """

    read: int = 0
    """Pairs before any step."""
    changed: dict[str, int] = field(default_factory=dict)
    """Pairs that a step changed, by a name of :data:`STEPS`. They may be dropped
    later.
    """
    dropped: dict[str, int] = field(default_factory=dict)
    """Pairs that a step dropped, by a name of :data:`STEPS`."""

    @property
    def kept(self) -> int:
        """Pairs after every step."""
        return self.read - sum(self.dropped.values())

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.read + other.read,
            _added(self.changed, other.changed),
            _added(self.dropped, other.dropped),
        )


def _added(left: dict[str, int], right: dict[str, int]) -> dict[str, int]:
    return {name: left.get(name, 0) + right.get(name, 0) for name in left | right}


def clean(
    pairs: Iterable[Pair],
    cleaning: Cleaning,
    counts: Counts,
    *,
    languages: tuple[str, str],
    duplicates: Duplicates | None = None,
    first: int = 0,
) -> Iterator[Pair]:
    """Return the pairs that every step lets pass, one by one and in order.

    Args:
        pairs: a corpus, or a chunk of it; read as the result is read.
        cleaning: the steps to run.
        counts: what is read, changed and dropped is added here, pair by pair.
        languages: the codes of the source and the target language, as
            ``data.source_language`` and ``data.target_language`` have them.
        duplicates: what :func:`find_duplicates` gave for the whole corpus.
        first: the index in the corpus of the first of ``pairs``: 0 unless they are a
            later chunk.

    Raises:
        InputError: at once, ``detect_languages`` is asked for and py3langid is missing
            or does not know a language; while reading, the corpus grew since its
            duplicates were sought.
        ValueError: ``drop_duplicates`` is asked for without ``duplicates``.
    """
    steps = _steps(cleaning, languages, duplicates)
    for name in steps:
        counts.dropped.setdefault(name, 0)
    if cleaning.unicode_normalization != "none":
        counts.changed.setdefault("unicode_normalization", 0)
    return _clean(pairs, cleaning.unicode_normalization, steps, counts, first)


def find_duplicates(
    pairs: Iterable[Pair],
    cleaning: Cleaning,
    *,
    memory: int = 2**28,
    directory: Path | str | None = None,
) -> Duplicates | None:
    """Find the pairs of a whole corpus that repeat an earlier one, once normalised;
    None unless ``cleaning`` asks.

    Args:
        pairs: the corpus before cleaning, read once and never held.
        cleaning: the steps that :func:`clean` will run.
        memory: bytes to work in; one bit a pair comes on top.
        directory: where temporary files lie, 24 bytes a pair; None: where the system
            has them (``TMPDIR``).

    Raises:
        InputError: the temporary files cannot be written.
    """
    if not cleaning.drop_duplicates:
        return None
    from jaxformer.data.duplicates import find_repeated

    form = cleaning.unicode_normalization
    return find_repeated(
        (normalize(pair, form) for pair in pairs), memory=memory, directory=directory
    )


def normalize(pair: Pair, form: UnicodeNormalization) -> Pair:
    """Bring both sides to a normal form of Unicode (Standard Annex 15).

    NFC composes letters and their accents and changes nothing that can be seen. NFKC
    also replaces what stands for another character (ligatures, full-width letters,
    superscripts, no-break spaces), and with it some meaning: the square of x becomes
    x2.
    """
    if form == "none":
        return pair
    return Pair(
        unicodedata.normalize(form, pair.source),
        unicodedata.normalize(form, pair.target),
    )


def is_empty(pair: Pair) -> bool:
    """Return whether a side holds nothing that can be seen: no text, white space,
    control or invisible characters.
    """
    return not (_can_be_seen(pair.source) and _can_be_seen(pair.target))


def has_more_words(pair: Pair, limit: int) -> bool:
    """Return whether a side has more words than ``limit``, as white space separates
    them.
    """
    return len(pair.source.split()) > limit or len(pair.target.split()) > limit


def has_more_characters(pair: Pair, limit: int) -> bool:
    """Return whether a side has more characters than ``limit``, without the white space
    around it.
    """
    return max(len(pair.source.strip()), len(pair.target.strip())) > limit


def exceeds_ratio(pair: Pair, limit: float) -> bool:
    """Return whether the longer side has more than ``limit`` times the characters of
    the shorter.

    Characters, not words: every script has them.
    """
    shorter, longer = sorted((len(pair.source.strip()), len(pair.target.strip())))
    return longer > limit * shorter


def is_identical(pair: Pair) -> bool:
    """Return whether both sides are the same text."""
    return pair.source.strip() == pair.target.strip()


def has_other_language(pair: Pair, languages: tuple[str, str]) -> bool:
    """Return whether a side is surely in another language than its own.

    What is sure, and what is too short to tell, is the rule of
    :func:`jaxformer.data.languages.is_foreign`.

    Args:
        pair: the pair.
        languages: source and target, by codes that
            :func:`jaxformer.data.languages.check_language` gave.
    """
    from jaxformer.data.languages import is_foreign

    return any(
        is_foreign(text, language)
        for text, language in zip(pair, languages, strict=True)
    )


def table(counts: Counts) -> list[str]:
    r"""Lay the counts out as lines of plain text: each step, the pairs it dropped,
    their share of all, what was left.

    Example:
        >>> print("\n".join(table(Counts(read=2000, dropped={"empty": 5, "max_words": 0}))))
        step            dropped   share   kept
        read                             2,000
        empty side            5  0.25 %  1,995
        too many words        0  0.00 %  1,995
    """
    rows = [("step", "dropped", "share", "kept"), ("read", "", "", f"{counts.read:,}")]
    kept = counts.read
    for name in _ordered(counts.dropped):
        dropped = counts.dropped[name]
        kept -= dropped
        rows.append(
            (
                STEPS.get(name, name),
                f"{dropped:,}",
                _share(dropped, counts.read),
                f"{kept:,}",
            )
        )
    changed = [
        f"{STEPS.get(name, name)} changed {counts.changed[name]:,} pairs"
        f" ({_share(counts.changed[name], counts.read)})"
        for name in _ordered(counts.changed)
    ]
    return [*align(rows), *changed]


def summary(counts: Counts) -> str:
    """Word what was dropped in a few words.

    Example:
        >>> summary(Counts(read=2000, dropped={"empty": 5, "max_words": 0}))
        '5 dropped (empty side 5)'
    """
    dropped = {
        name: counts.dropped[name]
        for name in _ordered(counts.dropped)
        if counts.dropped[name]
    }
    if not dropped:
        return "none dropped"
    reasons = ", ".join(
        f"{STEPS.get(name, name)} {number:,}" for name, number in dropped.items()
    )
    return f"{sum(dropped.values()):,} dropped ({reasons})"


def why_nothing_is_left(counts: Counts) -> str:
    """Word the reason why no pair is left, in one line that ends with the cure."""
    if not counts.read:
        return "the data holds no pair: name files that are not empty"
    most_first = Counter(
        {name: dropped for name, dropped in counts.dropped.items() if dropped}
    ).most_common()
    reasons = [
        f"{dropped:,} by {STEPS.get(name, name)}"
        + (f" (data.{name})" if name != "empty" else "")
        for name, dropped in most_first
    ]
    return (
        f"every one of {counts.read:,} pairs was dropped, {', '.join(reasons)}: loosen"
        " what drops the most, and see that source and target are not mixed up"
    )


_Step: TypeAlias = Callable[[Pair, int], bool]
"""Says of a pair, normalised, and of its index in the corpus whether the pair goes."""


def _steps(
    cleaning: Cleaning, languages: tuple[str, str], duplicates: Duplicates | None
) -> dict[str, _Step]:
    """Return the steps that may drop a pair, by name and in their order: what is cheap
    comes before what is dear.
    """
    steps: dict[str, _Step] = {"empty": lambda pair, _: is_empty(pair)}
    if (words := cleaning.max_words) is not None:
        steps["max_words"] = lambda pair, _: has_more_words(pair, words)
    if (characters := cleaning.max_characters) is not None:
        steps["max_characters"] = lambda pair, _: has_more_characters(pair, characters)
    if (ratio := cleaning.max_length_ratio) is not None:
        steps["max_length_ratio"] = lambda pair, _: exceeds_ratio(pair, ratio)
    if cleaning.drop_identical:
        steps["drop_identical"] = lambda pair, _: is_identical(pair)
    if cleaning.drop_duplicates:
        if duplicates is None:
            raise ValueError(
                "drop_duplicates needs what find_duplicates gives for the whole corpus"
            )
        steps["drop_duplicates"] = lambda _, index: index in duplicates
    if cleaning.detect_languages:
        from jaxformer.data.languages import check_language

        source, target = languages
        known = (
            check_language(source, "data.source_language"),
            check_language(target, "data.target_language"),
        )
        steps["detect_languages"] = lambda pair, _: has_other_language(pair, known)
    return steps


def _clean(
    pairs: Iterable[Pair],
    form: UnicodeNormalization,
    steps: dict[str, _Step],
    counts: Counts,
    first: int,
) -> Iterator[Pair]:
    for index, raw in enumerate(pairs, first):
        counts.read += 1
        pair = normalize(raw, form)
        if pair != raw:
            counts.changed["unicode_normalization"] += 1
        reason = next(
            (name for name, drops in steps.items() if drops(pair, index)), None
        )
        if reason is None:
            yield pair
        else:
            counts.dropped[reason] += 1


def _can_be_seen(text: str) -> bool:
    return any(
        character not in _BLANKS and unicodedata.category(character) not in _UNSEEN
        for character in text
    )


def _ordered(names: Iterable[str]) -> list[str]:
    """Put the names of our steps in their order, and others behind."""
    order = list(STEPS)
    return sorted(
        names, key=lambda name: order.index(name) if name in order else len(order)
    )


def _share(part: int, whole: int) -> str:
    return f"{100 * part / max(whole, 1):.2f} %"
