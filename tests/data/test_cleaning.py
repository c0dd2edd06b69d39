"""Cleaning drops whole pairs, counts each, and does the same in chunks."""

import dataclasses
import math
import pickle
import sys
import unicodedata
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.data import language_identification as module
from jaxformer.data.cleaning import (
    Counts,
    clean,
    find_duplicates,
    is_empty,
)
from jaxformer.data.config import Cleaning
from jaxformer.data.duplicates import find_repeated
from jaxformer.data.language_identification import check_language, is_foreign
from jaxformer.data.records import Pair
from jaxformer.data.sources import load
from jaxformer.errors import InputError

LANGUAGES = ("en", "de")
# A few letters, so that equal, identical and empty sides are frequent; "ﬁ" and the two
# spellings of "ä" change form.
TEXTS = st.text("ab \u200b\u3000\ufb01äa\u0308", max_size=6)
CORPORA = st.lists(st.builds(Pair, TEXTS, TEXTS), max_size=40)
CLEANINGS = st.builds(
    Cleaning,
    max_words=st.none() | st.integers(1, 3),
    max_characters=st.none() | st.integers(1, 6),
    max_length_ratio=st.none() | st.decimals(1, 4, places=2).map(float),
    drop_identical=st.booleans(),
    drop_duplicates=st.booleans(),
    unicode_normalization=st.sampled_from(["none", "NFC", "NFKC"]),
)


def run(pairs, cleaning, languages=LANGUAGES):
    """Clean a corpus in one piece."""
    counts, found = Counts(), find_duplicates(iter(pairs), cleaning)
    given = {"languages": languages, "duplicates": found}
    return list(clean(iter(pairs), cleaning, counts, **given)), counts


def multiply(ratio, number):
    """Return the product of the decimal number that was written."""
    return math.inf if ratio is None else Fraction(str(ratio)) * number


def oracle(pairs, cleaning):
    """Clean in plain loops: what stays, and which key took what."""
    kept, dropped, seen = [], [], set()
    form, most = cleaning.unicode_normalization, math.inf
    for pair in pairs:
        if form != "none":
            pair = Pair(*(unicodedata.normalize(form, text) for text in pair))
        bare = source, target = tuple(text.strip() for text in pair)
        words, lengths = [len(text.split()) for text in bare], sorted(map(len, bare))
        wrong = {
            "empty": any(not set(text) - set(" \u200b\u3000\u0308") for text in bare),
            "max_words": max(words) > (cleaning.max_words or most),
            "max_characters": lengths[1] > (cleaning.max_characters or most),
            "max_length_ratio": lengths[1]
            > multiply(cleaning.max_length_ratio, lengths[0]),
            "drop_identical": cleaning.drop_identical and source == target,
            "drop_duplicates": cleaning.drop_duplicates and bare in seen,
        }
        if first := next((name for name in wrong if wrong[name]), None):
            dropped.append(first)
        else:
            kept.append(pair)
            seen.add(bare)
    return kept, dropped


@settings(deadline=None)
@given(pairs=CORPORA, cleaning=CLEANINGS, size=st.integers(1, 9))
def test_every_pair_is_kept_or_counted(pairs, cleaning, size):
    """Each pair stays, whole and in its place, or counts once, under the first step
    that drops it. Workers may clean chunks and add up the counts.
    """
    kept, counts = run(pairs, cleaning)
    expected, dropped = oracle(pairs, cleaning)
    assert kept == expected
    found = {name: number for name, number in counts.dropped.items() if number}
    assert found == {name: dropped.count(name) for name in dropped}
    assert counts.read == len(pairs)
    assert counts.kept == len(kept)
    duplicates = pickle.loads(pickle.dumps(find_duplicates(pairs, cleaning)))
    given = {"languages": LANGUAGES, "duplicates": duplicates}
    parts, total = [], Counts()
    for first in range(0, len(pairs), size):
        chunk, part = pairs[first : first + size], Counts()
        parts += clean(chunk, cleaning, part, first=first, **given)
        total += pickle.loads(pickle.dumps(part))
    assert parts == kept
    assert total == counts or not pairs


def test_a_ratio_of_lengths_is_a_decimal_number():
    """A pair at the limit is kept and one beyond is not, for ratios of two digits."""
    for ratio in (1.01, 1.1, 1.15, 1.3, 2.3, 2.55, 4.35):
        for length in range(1, 250):
            longest = math.floor(multiply(ratio, length))
            pairs = [Pair("a" * length, "a" * more) for more in (longest, longest + 1)]
            kept, _ = run(pairs, Cleaning(max_length_ratio=ratio))
            assert kept == pairs[:1], (ratio, length)


@pytest.mark.parametrize(
    "nothing",
    ["", "\t\r\n\u00a0\u2003", "\u200b\ufeff\u202e", "\x00\x7f\x85\u2028"]
    + ["\u3164", "\u0301", "\u2800", "\ud800"],
)
def test_what_cannot_be_seen_is_empty(nothing):
    """White space, control, format and filling characters are no sentence."""
    assert is_empty(Pair(nothing, "ein Baum"))
    assert is_empty(Pair("a tree", nothing))
    assert not is_empty(Pair(f"{nothing}.{nothing}", f"{nothing}木"))


def test_a_duplicate_goes_and_its_first_stays():
    """Also when another step drops the first, and when normalisation makes them
    equal.
    """
    long = Pair("too long", "y")
    pairs = [Pair("\ufb01n", "x"), Pair("fin", "x"), long, long, Pair("fin", "z")]
    cleaning = Cleaning(drop_duplicates=True, unicode_normalization="NFKC", max_words=1)
    kept, counts = run(pairs, cleaning)
    assert kept == [("fin", "x"), ("fin", "z")]
    assert counts.dropped == {"empty": 0, "max_words": 2, "drop_duplicates": 1}
    assert counts.changed == {"unicode_normalization": 1}
    plain = dataclasses.replace(cleaning, unicode_normalization="none")
    assert len(run(pairs, plain)[0]) == 3


def test_where_the_source_ends_matters():
    """No separator is needed, so none can be spelled; white space around a text does
    not count.
    """
    texts = [("ab", "c"), ("a", "bc"), ("ab\0", "c"), ("ab", "\0c"), ("ab\tc", "")]
    texts += [("ab", "\tc"), ("c", "ab")]
    duplicates = find_repeated(Pair(*pair) for pair in texts)
    assert [index for index in range(7) if index in duplicates] == [5]


def test_a_language_without_its_package(monkeypatch):
    """The package is asked for at once; without the step it is not needed."""
    monkeypatch.setattr(module, "_identifier", module._identifier.__wrapped__)
    for name in [name for name in sys.modules if name.split(".")[0] == "py3langid"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "py3langid", None)
    message = r"py3langid, which is not installed: pip install 'jaxformer\[data\]'"
    with pytest.raises(InputError, match=message):
        clean([], Cleaning(detect_languages=True), Counts(), languages=LANGUAGES)
    assert run([Pair("a", "b")], Cleaning())[1].kept == 1


class TestLanguages:
    """What py3langid identifies."""

    @pytest.fixture(autouse=True)
    def _package(self):
        pytest.importorskip("py3langid")

    def test_foreign_sides_drop_their_pair(self):
        """An untranslated sentence, a third language and swapped sides are found."""
        english = "The children were playing in the garden."
        german = "Die Kinder haben im Garten gespielt."
        french = "Les enfants jouaient dans le jardin de leur voisine."
        right = [Pair(english, german), Pair("OK", "In Ordnung"), Pair("1,2", "1.2 km")]
        wrong = [Pair(english, english[:-7]), Pair(french, german)]
        wrong += [Pair(english, french), Pair(german, english)]
        cleaning = Cleaning(detect_languages=True)
        kept, counts = run([right[0], *wrong, *right[1:]], cleaning)
        assert kept == right
        assert counts.dropped == {"empty": 0, "detect_languages": 4}
        assert run([right[0]], cleaning, ("de", "en"))[0] == []

    def test_hardly_any_good_pair_is_dropped(self):
        """Of short labels and product names, which are hard, fewer than one in 200;
        swapped, most are.
        """
        pairs = list(load("bundled:en-de/valid", "en", "de"))
        cleaning = Cleaning(detect_languages=True)
        assert len(run(pairs, cleaning)[0]) > 0.995 * len(pairs)
        long = [pair for pair in pairs if min(map(len, pair)) > 60]
        assert len(run(long, cleaning, ("de", "en"))[0]) < 0.1 * len(long)
        assert len(long) > 55

    @pytest.mark.parametrize(
        ("language", "text"),
        [
            ("no", "Vi skal gå en tur i skogen i morgen hvis været er bra."),
            ("ms", "Esok kita akan pergi ke hutan jika cuaca baik."),
            ("zh", "我們明天會去市場買一些新鮮的水果和蔬菜。"),
        ],
    )
    def test_related_languages_are_not_foreign(self, language, text):
        """As English the text is; short text never is."""
        assert not is_foreign(text, language)
        assert is_foreign(text, "en")
        for short in ("", "Monsieur le maire", "123 456 789", "我们明天会去"):
            assert not is_foreign(short, language)

    def test_codes_of_languages(self):
        """Regions do not matter; an unknown code is refused by its key, at once."""
        codes = ["de", "de-AT", "zh_TW", "EN", "nb"]
        known = [check_language(code, "key") for code in codes]
        assert known == ["de", "de", "zh", "en", "no"]
        for *languages, message in (
            ("en", "dee", r"^data\.target_language='dee' .*; did you mean de\?$"),
            ("tlh", "de", r"^data\.source_language='tlh' .*False"),
        ):
            with pytest.raises(InputError, match=message):
                run([], Cleaning(detect_languages=True), languages)
