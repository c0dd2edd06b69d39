"""Cleaning takes whole pairs, counts each that it takes, and does the same in chunks
as in one piece.
"""

import dataclasses
import json
import math
import pickle
import sys
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.data import Cleaning, DataConfig, Pair, load
from jaxformer.data import languages as languages_module
from jaxformer.data.cleaning import (
    STEPS,
    Counts,
    clean,
    find_duplicates,
    has_other_language,
    is_empty,
    is_identical,
    normalize,
    table,
    why_nothing_is_left,
)
from jaxformer.data.languages import check_language, is_foreign
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
    max_length_ratio=st.none() | st.floats(1, 4),
    drop_identical=st.booleans(),
    drop_duplicates=st.booleans(),
    unicode_normalization=st.sampled_from(["none", "NFC", "NFKC"]),
)


def run(pairs, cleaning, languages=LANGUAGES):
    """Clean a corpus in one piece."""
    counts = Counts()
    duplicates = find_duplicates(iter(pairs), cleaning)
    return (
        list(
            clean(
                iter(pairs),
                cleaning,
                counts,
                languages=languages,
                duplicates=duplicates,
            )
        ),
        counts,
    )


def oracle(pairs, cleaning):
    """Clean in plain loops: what stays, and which key took what."""
    kept, dropped, seen = [], [], set()
    for pair in pairs:
        if cleaning.unicode_normalization != "none":
            pair = Pair(
                *(
                    unicodedata.normalize(cleaning.unicode_normalization, text)
                    for text in pair
                )
            )
        bare = source, target = tuple(text.strip() for text in pair)
        lengths = sorted([len(source), len(target)])
        if any(not set(text) - set(" \u200b\u3000\u0308") for text in bare):
            dropped.append("empty")
        elif cleaning.max_words and any(
            len(text.split()) > cleaning.max_words for text in bare
        ):
            dropped.append("max_words")
        elif cleaning.max_characters and lengths[1] > cleaning.max_characters:
            dropped.append("max_characters")
        elif (
            cleaning.max_length_ratio
            and lengths[1] > cleaning.max_length_ratio * lengths[0]
        ):
            dropped.append("max_length_ratio")
        elif cleaning.drop_identical and source == target:
            dropped.append("drop_identical")
        elif cleaning.drop_duplicates and bare in seen:
            dropped.append("drop_duplicates")
        else:
            kept.append(pair)
            seen.add(bare)
    return kept, dropped


@settings(deadline=None)
@given(pairs=CORPORA, cleaning=CLEANINGS)
def test_every_pair_is_kept_or_counted(pairs, cleaning):
    """Each pair stays, whole and in its place, or counts once, under the first step
    to take it.
    """
    kept, counts = run(pairs, cleaning)
    expected, dropped = oracle(pairs, cleaning)
    assert kept == expected
    assert {name: number for name, number in counts.dropped.items() if number} == {
        name: dropped.count(name) for name in dropped
    }
    assert counts.read == len(pairs)
    assert counts.kept == len(kept)
    assert counts.read == counts.kept + sum(counts.dropped.values())


@settings(deadline=None)
@given(pairs=CORPORA, cleaning=CLEANINGS, size=st.integers(1, 9))
def test_chunks_give_what_the_whole_gives(pairs, cleaning, size):
    """Workers may clean chunks: the same pairs, and counts that add up."""
    kept, counts = run(pairs, cleaning)
    duplicates = pickle.loads(pickle.dumps(find_duplicates(pairs, cleaning)))
    parts, total = [], Counts()
    for first in range(0, len(pairs), size):
        part = Counts()
        chunk = pairs[first : first + size]
        parts += clean(
            chunk,
            cleaning,
            part,
            languages=LANGUAGES,
            duplicates=duplicates,
            first=first,
        )
        total += pickle.loads(pickle.dumps(part))
    assert parts == kept
    if pairs:
        assert total == counts


def test_nothing_is_cut():
    """A side beyond a limit takes its pair along; what stays has every character of
    it.
    """
    pairs = [
        Pair(" one two three ", "eins zwei drei\r"),
        Pair("one two three four", "eins"),
        Pair("one", "1 2 3 4"),
    ]
    kept, counts = run(pairs, Cleaning(max_words=3))
    assert kept == pairs[:1]
    assert counts == Counts(3, {}, {"empty": 0, "max_words": 2})


@pytest.mark.parametrize(
    "nothing",
    [
        "",
        " ",
        "\t\r\n",
        "\u00a0\u2003",
        "\u200b\u200d\ufeff",
        "\x00\x1f\x7f\x85",
        "\u2028\u2029",
        "\u3164",
        "\u0301",
    ]
    + ["\u2800", "\u00ad", "\u202e\u2069", "\ud800"],
)
def test_what_cannot_be_seen_is_empty(nothing):
    """White space, control, format and filling characters are no sentence, on either
    side.
    """
    assert is_empty(Pair(nothing, "ein Baum"))
    assert is_empty(Pair("a tree", nothing))
    assert is_empty(Pair(nothing, nothing))
    assert not is_empty(Pair(f"{nothing}.{nothing}", f"{nothing}木"))
    kept, counts = run([Pair("a", "b"), Pair(nothing, "c"), Pair("d", "e")], Cleaning())
    assert kept == [("a", "b"), ("d", "e")]
    assert counts.dropped == {"empty": 1}


@pytest.mark.parametrize("swap", [False, True])
def test_limits_hold_for_both_sides(swap):
    """A pair at the limit stays, one beyond it goes, whichever side is longer; outer
    white space does not count.
    """

    def pair(source, target):
        return Pair(target, source) if swap else Pair(source, target)

    def drops(given, **step):
        return run([given], Cleaning(**step))[0] == []

    assert not drops(pair(" a b\u00a0c ", "d"), max_words=3)
    assert drops(pair("a b c d", "d"), max_words=3)
    assert not drops(pair("  abc ", "d"), max_characters=3)
    assert drops(pair("abcd", "d"), max_characters=3)
    assert not drops(pair("abc ", "de"), max_length_ratio=1.5)
    assert drops(pair("abcd", "de"), max_length_ratio=1.5)
    assert not drops(pair("ab", "cd"), max_length_ratio=1)
    assert is_identical(pair("same ", " same"))
    assert not is_identical(pair("same", "Same"))


def test_a_duplicate_goes_and_its_first_stays():
    """Also when another step takes the first, and when normalisation makes them
    equal.
    """
    pairs = [
        Pair("\ufb01n", "x"),
        Pair("fin", "x"),
        Pair("too long", "y"),
        Pair("too long", "y"),
        Pair("fin", "z"),
    ]
    cleaning = Cleaning(drop_duplicates=True, unicode_normalization="NFKC", max_words=1)
    kept, counts = run(pairs, cleaning)
    assert kept == [("fin", "x"), ("fin", "z")]
    assert counts.dropped == {"empty": 0, "max_words": 2, "drop_duplicates": 1}
    assert counts.changed == {"unicode_normalization": 1}
    assert (
        len(run(pairs, dataclasses.replace(cleaning, unicode_normalization="none"))[0])
        == 3
    )


def test_normal_forms():
    """NFC joins letter and accent; NFKC also resolves ligatures and full-width
    letters.
    """
    pair = Pair("a\u0308 \ufb01", "\uff21 x\u00b2")
    assert normalize(pair, "none") is pair
    assert normalize(pair, "NFC") == ("ä \ufb01", "\uff21 x\u00b2")
    assert normalize(pair, "NFKC") == ("ä fi", "A x2")
    assert isinstance(normalize(pair, "NFC"), Pair)


def test_cleaning_is_lazy():
    """No more is read than was asked for, so that a corpus larger than memory
    streams.
    """
    read = []

    def endless():
        for number in range(10**9):
            read.append(number)
            yield Pair("" if number % 2 else f"a {number}", f"b {number}")

    counts = Counts()
    cleaned = clean(endless(), Cleaning(max_words=9), counts, languages=LANGUAGES)
    assert read == []
    assert [next(cleaned).source for _ in range(3)] == ["a 0", "a 2", "a 4"]
    assert len(read) == counts.read == 5


def test_duplicates_must_have_been_searched():
    """A pass that was forgotten, and a corpus that grew between the passes, do not
    go unnoticed.
    """
    cleaning, pairs = Cleaning(drop_duplicates=True), [Pair("a", "b")] * 3
    with pytest.raises(ValueError, match="find_duplicates"):
        clean(pairs, cleaning, Counts(), languages=LANGUAGES)
    duplicates = find_duplicates(pairs, cleaning)
    with pytest.raises(InputError, match=r"had 3 pairs .* has pair 4"):
        list(
            clean(
                [*pairs, Pair("c", "d")],
                cleaning,
                Counts(),
                languages=LANGUAGES,
                duplicates=duplicates,
            )
        )
    assert find_duplicates(iter(pairs), Cleaning()) is None


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("max_words", 0, "at least 1, or None, not 0"),
        ("max_characters", -1, "at least 1, or None, not -1"),
        ("max_length_ratio", 0.99, "at least 1, or None, not 0.99"),
        ("max_length_ratio", math.inf, "at most 1,000,000,000, or None, not inf"),
        ("max_length_ratio", math.nan, "at least 1, or None, not nan"),
        ("unicode_normalization", "nfc", "one of none, NFC, NFKC, not 'nfc'"),
    ],
)
def test_values_out_of_range_are_refused(key, value, rule):
    """By their key, as for every other key of the configuration."""
    for section in (Cleaning, DataConfig):
        with pytest.raises(InputError) as error:
            section(**{key: value})
        assert str(error.value) == f"data.{key} must be {rule}"


def test_counts_go_through_json():
    counts = Counts(9, {"unicode_normalization": 3}, {"empty": 2, "max_words": 0})
    assert Counts(**json.loads(json.dumps(dataclasses.asdict(counts)))) == counts
    assert counts + Counts() == counts
    assert sum([counts, counts], Counts()) == Counts(
        18, {"unicode_normalization": 6}, {"empty": 4, "max_words": 0}
    )
    assert counts + Counts(1, {}, {"max_length": 1}) == Counts(
        10, {"unicode_normalization": 3}, {"empty": 2, "max_words": 0, "max_length": 1}
    )


def test_the_report_is_a_table():
    """Each step that ran has a row in the order of the steps, with what it leaves."""
    counts = Counts(
        4000,
        {"unicode_normalization": 10},
        {"max_length": 30, "own step": 1, "drop_identical": 1969},
    )
    counts += Counts(dropped={"empty": 0})
    assert table(counts) == [
        "step             dropped    share   kept",
        "read                               4,000",
        "empty side             0   0.00 %  4,000",
        "identical sides    1,969  49.23 %  2,031",
        "too many tokens       30   0.75 %  2,001",
        "own step               1   0.03 %  2,000",
        "Unicode normalisation changed 10 pairs (0.25 %)",
    ]
    assert table(Counts())[1].split() == ["read", "0"]


def test_every_key_has_a_name_in_the_report():
    keys = {field.name for field in dataclasses.fields(Cleaning)}
    assert keys | {"empty", "max_length"} == set(STEPS)


def test_why_nothing_is_left():
    """What took the most comes first, by its key; one line."""
    counts = Counts(1000, {}, {"empty": 100, "max_words": 0, "drop_identical": 900})
    reason = why_nothing_is_left(counts)
    assert reason.startswith(
        "every one of 1,000 pairs was dropped, 900 by identical sides"
        " (data.drop_identical), 100 by empty side: "
    )
    assert "max_words" not in reason
    assert "\n" not in reason
    assert "no pair" in why_nothing_is_left(Counts())


@pytest.mark.parametrize("key", ["source", "target"])
def test_a_language_without_its_package(monkeypatch, key):
    """Asked for at once, not after the first million pairs; without the step nothing
    is needed.
    """
    monkeypatch.setattr(
        languages_module, "_identifier", languages_module._identifier.__wrapped__
    )
    for name in [name for name in sys.modules if name.split(".")[0] == "py3langid"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "py3langid", None)
    with pytest.raises(
        InputError,
        match=r"py3langid, which is not installed: pip install 'jaxformer\[langid\]'",
    ):
        clean([], Cleaning(detect_languages=True), Counts(), languages=LANGUAGES)
    assert run([Pair("a", "b")], Cleaning())[1].kept == 1


class TestLanguages:
    """What py3langid identifies."""

    @pytest.fixture(autouse=True)
    def _package(self):
        pytest.importorskip("py3langid")

    def test_foreign_sides_take_their_pair(self):
        """A sentence left untranslated, one in a third language and a pair the wrong
        way round go.
        """
        english, german = (
            "The children were playing in the garden.",
            "Die Kinder haben im Garten gespielt.",
        )
        french = "Les enfants jouaient dans le jardin de leur voisine."
        right = [
            Pair(english, german),
            Pair("OK", "In Ordnung"),
            Pair("1,234.5 km", "1.234,5 km"),
        ]
        wrong = [
            Pair(english, "The children played outside in the garden."),
            Pair(french, german),
            Pair(english, french),
        ]
        kept, counts = run(
            [right[0], *wrong, Pair(german, english), *right[1:]],
            Cleaning(detect_languages=True),
        )
        assert kept == right
        assert counts.dropped == {"empty": 0, "detect_languages": 4}
        assert run([right[0]], Cleaning(detect_languages=True), ("de", "en"))[0] == []

    def test_hardly_any_good_pair_goes(self):
        """Of short labels and product names, which are hard, fewer than one in 200
        goes; swapped, most do.
        """
        pairs = list(load("bundled:en-de/valid", "en", "de"))
        assert (
            sum(has_other_language(pair, ("en", "de")) for pair in pairs)
            < len(pairs) / 200
        )
        long = [pair for pair in pairs if min(map(len, pair)) > 60]
        assert (
            sum(has_other_language(pair, ("de", "en")) for pair in long)
            > 0.9 * len(long)
            > 50
        )

    @pytest.mark.parametrize(
        ("language", "text"),
        [
            ("no", "Vi skal gå en tur i skogen i morgen hvis været er bra."),
            ("da", "Vi skal gå en tur i skoven i morgen hvis vejret er godt."),
            ("sr", "Sutra ćemo ići u šumu ako bude lepo vreme."),
            ("hr", "Sutra ćemo ići u šumu ako bude lijepo vrijeme."),
            ("ms", "Esok kita akan pergi ke hutan jika cuaca baik."),
            ("zh", "我們明天會去市場買一些新鮮的水果和蔬菜。"),
        ],
    )
    def test_next_of_kin_are_not_foreign(self, language, text):
        """Where the model wavers between kin the sentence stays; as English it is
        foreign.
        """
        assert not is_foreign(text, language)
        assert is_foreign(text, "en")

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "Bonjour",
            "Monsieur le maire",
            "123 456 789 000 111 222 333",
            "我们明天会去",
        ],
    )
    def test_short_text_is_never_foreign(self, text):
        """Fewer than 20 letters tell too little."""
        assert not is_foreign(text, "de")

    @pytest.mark.parametrize(
        ("code", "known"),
        [("de", "de"), ("de-AT", "de"), ("zh_TW", "zh"), ("EN", "en"), ("nb", "no")],
    )
    def test_regions_do_not_matter(self, code, known):
        assert check_language(code, "data.source_language") == known

    def test_unknown_languages(self):
        """The key and a cure are named, before anything is read."""
        with pytest.raises(
            InputError, match=r"^data\.target_language='dee' .* did you mean de\?$"
        ) as caught:
            clean(
                [], Cleaning(detect_languages=True), Counts(), languages=("en", "dee")
            )
        assert "set data.detect_languages=False" in str(caught.value)
        with pytest.raises(InputError, match=r"^data\.source_language='tlh' .*False"):
            clean(
                [], Cleaning(detect_languages=True), Counts(), languages=("tlh", "de")
            )
