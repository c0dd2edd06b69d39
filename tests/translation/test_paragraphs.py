"""Paragraphs and long sentences are cut, and their translations become one line."""

import doctest
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxformer.translation import paragraphs, results
from jaxformer.translation.paragraphs import (
    ABBREVIATIONS,
    spacing,
    split,
    split_sentences,
)

KNOWN = Path(__file__).with_name("sentences.tsv").read_text("utf-8").splitlines()
PARTS = 'Mr.|z. B.|A.|12.|3.5|word|Word|...|…|!|?|.|。|」|"|(|)| |  |\u2028|\t|\u3000'
PARTS = st.sampled_from([*PARTS.split("|"), "他", "e.g.", "\x00", "🙂", " »", ";"])
PIECES = st.sampled_from(["▁a", "▁b", "c", "d", ".", ",", "▁(", "e."])


@given(
    text=st.lists(PARTS, max_size=40).map("".join),
    language=st.sampled_from(["", "en", "de", "ja", "xx"]),
)
def test_the_sentences_are_the_paragraph(text, language):
    """With their white space they are the text; none is blank but that of a blank
    text.
    """
    found = split_sentences(text, language)
    assert "".join(space + sentence for space, sentence in found) == text.strip()
    assert all(sentence.strip() == sentence for _, sentence in found)
    blank = not text.strip() and len(found) == 1
    assert blank or all(sentence for _, sentence in found)
    assert not any(space.strip() for space, _ in found)
    assert found[0][0] == ""


@pytest.mark.parametrize(
    ("language", "marked"),
    [
        ("en", "A line|\u2028Another line"),
        *(line.split("\t") for line in KNOWN[1:]),
    ],
)
def test_hard_cases(language, marked):
    """A bar marks the end of each sentence but the last."""
    expected = [part.strip(" \u2028") for part in marked.split("|")]
    found = split_sentences(marked.replace("|", ""), language)
    assert [sentence for _, sentence in found] == expected


def test_no_sentence_ends_with_an_abbreviation():
    for language, words in ABBREVIATIONS.items():
        for word in words:
            text = f"Ab {word}. Cd."
            assert split_sentences(text, language) == [("", text)]


@given(letter=st.characters(categories=["Ll"]))
def test_no_sentence_begins_with_a_small_letter(letter):
    """Of any script that has capitals, also after quotes and dashes."""
    following = letter if letter.title() != letter else "a"
    for between in (" ", " – ", "» ", "” — "):
        text = f"X yz!{between}{following}b."
        assert split_sentences(text) == [("", text)]


@pytest.mark.parametrize("mark", "។៕།༎\u037e؟।॥۔։።။…")
def test_marks_of_all_scripts_end_sentences(mark):
    assert len(split_sentences(f"Xy{mark} Zw{mark}» Xy.")) == 3


@pytest.mark.parametrize(
    "unit", [".", " ", '."', "1. ", "。", ". (", "a ", ".\u00a0»", ". » ", "; "]
)
def test_odd_paragraphs_take_no_longer(unit):
    """The time depends on the length of a line, not on its square."""
    text = f"a{unit * 100_000}b"
    assert "".join(map("".join, split_sentences(text, "de"))) == text


@given(pieces=st.lists(PIECES, max_size=60), limit=st.integers(1, 12))
def test_the_runs_are_the_sentence(pieces, limit):
    """None is empty but that of an empty sentence, and none is longer than the limit; a
    word is cut only if no word begins in the second half of the run.
    """
    runs = split(pieces, limit)
    assert [piece for start, stop in runs for piece in pieces[start:stop]] == pieces
    assert all(0 < stop - start <= limit for start, stop in runs) or not pieces
    for start, stop in runs[:-1]:
        half = pieces[start + limit // 2 + 1 : start + limit + 1]
        words = any(piece.startswith("▁") for piece in half)
        assert pieces[stop].startswith("▁") or not words


@pytest.mark.parametrize(
    ("text", "limit", "cuts"),
    [
        ("▁a ▁b . ▁c ▁d ▁e", 5, [3]),
        ("▁a ▁b , ▁c ▁d ▁e", 5, [3]),
        ("▁a , ▁b ▁b . ▁c , ▁d ▁e", 8, [5]),
        ("▁a ▁b ▁c ▁d ▁e", 4, [4]),
        ("▁a b c d e f", 4, [4]),
        ("▁a . ▁b ▁c ▁d ▁e ▁f ▁g ▁h", 8, [8]),
        ("▁a ▁b", 2, []),
        ("▁我 们 来 了 。 你 们 也 来 了 。", 8, [5]),
    ],
)
def test_the_best_place(text, limit, cuts):
    """After the end of a sentence, else another mark, else before a word."""
    assert [stop for _, stop in split(text.split(" "), limit)[:-1]] == cuts


@pytest.mark.parametrize(
    ("left", "right", "source", "between"),
    [
        ("Eins.", "Zwei.", "\u00a0 ", "\u00a0 "),
        ("Eins.", "Zwei.", "\r", " "),
        ("One.", "Two.", "", " "),
        ("一。", "二。", " ", ""),
        ("はい。", "「いいえ」", "  ", ""),
        ("네.", "아니요.", "", " "),
        ("", "Zwei.", " ", ""),
        ("Eins.", "", " ", ""),
    ],
)
def test_spacing(left, right, source, between):
    """The source's own white space; a space if it has none; nothing in scripts without
    spaces.
    """
    assert spacing(left, right, source) == between


@pytest.mark.parametrize("module", [paragraphs, results])
def test_the_examples_run(module):
    found = doctest.testmod(module)
    assert found.attempted
    assert not found.failed
