"""Clean a parallel corpus in explicit steps, each of which counts what it drops.

Every pair passes the steps in this order. The first step that refuses a pair counts it
and drops both sides; the others keep their order. A step runs if its key is set; empty
sides are always dropped.

========================= ==========================================================
key                       drops pairs in which
========================= ==========================================================
``unicode_normalization`` (none: both sides are brought to a normal form of Unicode)
``drop_invalid``          a side was not UTF-8
(always)                  a side shows nothing: no text, white space, control characters
``max_words``             a side has more words (what white space separates)
``max_characters``        a side has more characters
``max_length_ratio``      one side has more than this many times the other's characters
``drop_identical``        both sides are the same: untranslated text
``drop_duplicates``       both texts are those of an earlier pair, which stays
``detect_languages``      a side is surely in another language than its own
========================= ==========================================================

White space around a sentence is ignored. Each step judges a pair by its own text, so
workers may clean a corpus in chunks and add up their counts. Only duplicates need the
whole corpus, which :func:`find_duplicates` reads first.

Example:
    >>> from jaxformer.data.records import Pair
    >>> counts = Counts()
    >>> pairs = [Pair("a tree", "ein Baum"), Pair("a tree", ""), Pair("OK", "OK")]
    >>> cleaning = Cleaning(drop_identical=True)
    >>> list(clean(pairs, cleaning, counts, languages=("en", "de")))
    [Pair(source='a tree', target='ein Baum')]
    >>> counts
    Counts(read=3, changed={}, dropped={'empty': 1, 'drop_identical': 1})
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxformer.data.config import Cleaning, UnicodeNormalization
from jaxformer.data.files import can_be_seen, is_valid

if TYPE_CHECKING:
    from jaxformer.data.duplicates import Duplicates
    from jaxformer.data.records import Pair


@dataclass
class Counts:
    """What cleaning read, changed and dropped. The counts of chunks add up.

    ``dataclasses.asdict`` makes a JSON record of it, and ``Counts(**record)`` reads it.
    A step that ran and dropped nothing counts 0; a step that did not run is missing.
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
    """Yield the pairs that every step lets pass, in order.

    Args:
        pairs: a corpus, or a chunk of it; read as the result is read.
        cleaning: the steps to run.
        counts: is updated with each pair.
        languages: the codes of the source and the target language.
        duplicates: the result of :func:`find_duplicates` for the whole corpus, which
            ``drop_duplicates`` needs.
        first: the index in the corpus of the first of ``pairs``.

    Raises:
        InputError: at once, ``detect_languages`` without py3langid or for a language
            that it does not know; while reading, the corpus grew since its duplicates
            were searched.
    """
    settings = _settings(cleaning, languages, duplicates)
    for name in settings:
        counts.dropped.setdefault(name, 0)
    if cleaning.unicode_normalization != "none":
        counts.changed.setdefault("unicode_normalization", 0)
    return _clean(pairs, cleaning.unicode_normalization, settings, counts, first)


def find_duplicates(pairs: Iterable[Pair], cleaning: Cleaning) -> Duplicates | None:
    """Find the pairs of a whole corpus that repeat an earlier one, once normalised.

    Args:
        pairs: the corpus before cleaning, read once.
        cleaning: the steps that :func:`clean` will run; without ``drop_duplicates`` the
            result is None.
    """
    if not cleaning.drop_duplicates:
        return None
    from jaxformer.data.duplicates import find_repeated

    form = cleaning.unicode_normalization
    return find_repeated(normalize(pair, form) for pair in pairs)


def normalize(pair: Pair, form: UnicodeNormalization) -> Pair:
    """Bring both sides to a normal form of Unicode (Standard Annex 15).

    NFC composes letters and their accents; nothing visible changes. NFKC also replaces
    compatibility characters (ligatures, full-width letters, superscripts, no-break
    spaces), and with them some meaning: the square of x becomes x2.
    """
    if form == "none":
        return pair
    return pair._replace(
        source=unicodedata.normalize(form, pair.source),
        target=unicodedata.normalize(form, pair.target),
    )


def is_empty(pair: Pair) -> bool:
    """Return whether a side has only white space, control or invisible characters."""
    return not (can_be_seen(pair.source) and can_be_seen(pair.target))


def is_identical(pair: Pair) -> bool:
    """Return whether both sides are the same text."""
    return pair.source.strip() == pair.target.strip()


def has_other_language(pair: Pair, languages: tuple[str, str]) -> bool:
    """Return whether a side is surely in another language than its own.

    Args:
        pair: the pair.
        languages: of source and target, as
            :func:`jaxformer.data.language_identification.check_language` returns them.
    """
    from jaxformer.data.language_identification import is_foreign

    return any(map(is_foreign, pair, languages))


def _lengths(pair: Pair) -> tuple[int, int]:
    return len(pair.source.strip()), len(pair.target.strip())


class CleaningStep(NamedTuple):
    """A step of cleaning.

    Attributes:
        title: what a report calls it.
        drops: whether a pair, with its index in the corpus, is dropped by the step's
            setting; None for steps that are elsewhere or change text only.
    """

    title: str
    drops: Callable[[Pair, int, Any], bool] | None = None


STEPS = {
    "unicode_normalization": CleaningStep("Unicode normalisation"),
    "drop_invalid": CleaningStep(
        "not UTF-8", lambda pair, _, always: not all(map(is_valid, pair))
    ),
    "empty": CleaningStep("empty", lambda pair, _, always: is_empty(pair)),
    "max_words": CleaningStep(
        "too many words",
        lambda pair, _, most: max(len(side.split()) for side in pair) > most,
    ),
    "max_characters": CleaningStep(
        "too many characters", lambda pair, _, most: max(_lengths(pair)) > most
    ),
    "max_length_ratio": CleaningStep(
        "length ratio",
        # In binary 1.15 times 100 is below 115.
        lambda pair, _, most: (
            max(_lengths(pair)) > round(most * min(_lengths(pair)), 9)
        ),
    ),
    "drop_identical": CleaningStep(
        "identical sides", lambda pair, _, always: is_identical(pair)
    ),
    "drop_duplicates": CleaningStep(
        "duplicate", lambda _, index, duplicates: index in duplicates
    ),
    "detect_languages": CleaningStep(
        "another language", lambda pair, _, codes: has_other_language(pair, codes)
    ),
    "max_length": CleaningStep("too many tokens"),
    "cut": CleaningStep("cutting to data.max_length"),
}
"""Every step by its key, in their order. The last two belong to the tokenizer."""


def table(counts: Counts) -> list[str]:
    r"""Format the counts as lines: each step, the pairs it dropped, their share of
    all, and what was left.

    Example:
        >>> counts = Counts(read=2000, dropped={"empty": 5, "max_words": 0})
        >>> print("\n".join(table(counts)))
        step            dropped   share   kept
        read                             2,000
        empty                 5  0.25 %  1,995
        too many words        0  0.00 %  1,995
    """
    from jaxformer.table import align

    rows = [("step", "dropped", "share", "kept"), ("read", "", "", f"{counts.read:,}")]
    kept = counts.read
    for name, dropped in counts.dropped.items():
        kept -= dropped
        share = f"{100 * dropped / max(counts.read, 1):.2f} %"
        rows.append((STEPS[name].title, f"{dropped:,}", share, f"{kept:,}"))
    changed = [
        f"{STEPS[name].title} changed {number:,} pairs"
        f" ({100 * number / max(counts.read, 1):.2f} %)"
        for name, number in counts.changed.items()
    ]
    return [*align(rows), *changed]


def summary(counts: Counts) -> str:
    """Summarise what was dropped in a few words.

    Example:
        >>> summary(Counts(read=2000, dropped={"empty": 5, "max_words": 0}))
        '5 dropped: 5 by empty'
        >>> summary(Counts(read=2000, dropped={"max_length": 165}))
        '165 dropped: 165 by too many tokens (data.max_length)'
    """
    cut = counts.changed.get("cut")
    more = f", {cut:,} cut to data.max_length" if cut else ""
    if not (dropped := counts.read - counts.kept):
        return f"none dropped{more}"
    return f"{dropped:,} dropped: {_reasons(counts)}{more}"


def _reasons(counts: Counts) -> str:
    return ", ".join(
        f"{dropped:,} by {STEPS[name].title}" + f" (data.{name})" * (name != "empty")
        for name, dropped in Counter(counts.dropped).most_common()
        if dropped
    )


def why_nothing_is_left(counts: Counts) -> str:
    """Explain in one line why no pair is left, with the cure."""
    if not counts.read:
        return "the data holds no pair: name files that are not empty"
    return (
        f"every one of {counts.read:,} pairs was dropped, {_reasons(counts)}: loosen"
        " what drops the most, and check that source and target are not swapped"
    )


def _settings(
    cleaning: Cleaning, languages: tuple[str, str], duplicates: Duplicates | None
) -> dict[str, Any]:
    """Return the setting of each step that may drop a pair."""
    settings = {
        name: getattr(cleaning, name, True) for name in STEPS if STEPS[name].drops
    }
    settings["drop_duplicates"] = duplicates
    if cleaning.detect_languages:
        from jaxformer.data.language_identification import check_language

        settings["detect_languages"] = (
            check_language(languages[0], "data.source_language"),
            check_language(languages[1], "data.target_language"),
        )
    return {
        name: value for name, value in settings.items() if value not in (None, False)
    }


def _clean(
    pairs: Iterable[Pair],
    form: UnicodeNormalization,
    settings: dict[str, Any],
    counts: Counts,
    first: int,
) -> Iterator[Pair]:
    steps = [(name, STEPS[name].drops, value) for name, value in settings.items()]
    for index, raw in enumerate(pairs, first):
        counts.read += 1
        pair = normalize(raw, form)
        if pair != raw:
            counts.changed["unicode_normalization"] += 1
        for name, drops, value in steps:
            if drops and drops(pair, index, value):
                counts.dropped[name] += 1
                break
        else:
            yield pair
