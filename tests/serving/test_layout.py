"""Text to sentences and back, byte for byte around them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.serving.layout import count_lines, divide

TEXTS = {
    "blank lines": "A dog.\n\n\nA cat.\n\n",
    "CRLF": "A dog.\r\n\r\nA cat.\r\n",
    "old line ends": "A dog.\rA cat.\r",
    "mixed line ends": "A dog.\n\r\n\rA cat.",
    "indents": "  A dog.\n\tA cat.\n    - A bird. A fish.  \n",
    "spaces between": "A dog.   A cat.\tA bird.",
    "no-break spaces": "\u00a0A dog.\u00a0\u202fA cat.\u3000",
    "line separators": "A dog.\u2028A cat.\u2029\u2028 A bird\x85A fish\x0bA cow\x0c",
    "only spaces": "  \t \u3000 ",
    "only line ends": "\n\r\n\n",
    "nothing": "",
    "emoji": "😀 A dog. 🐕‍🦺\n👩‍👩‍👧‍👦\nA cat 😺. 😺 😺",
    "signs": "a < b & c > d\n&amp; &lt;b&gt; <b>A dog.</b>",
    "rules": "A dog.\n* * *\n-----\n\n> A cat.",
    "right to left": "\u200fكلب.\u200f قطة؟\n\u202aA dog.\u202c",
    "separators that end no line": "A dog.\x1cA cat\x1dand\x1ea bird.",
    "NUL": "A\x00dog.\n\x00\nA cat.",
    "Chinese": "一只狗。一只猫！ 一只鸟。Dog. 他说：“好。”他走了。",
    "no space": "x" * 10_000,
    "many lines": "A dog.\n" * 1000,
    "many empty lines": "\n" * 10_000,
    "byte order mark": "\ufeffA dog.",
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_counted_line_has_a_sentence(name):
    lines = count_lines(TEXTS[name])
    assert lines == len(divide(TEXTS[name], "en", sentences=False).pieces)


@pytest.mark.parametrize("split_newlines", [True, False])
@pytest.mark.parametrize("sentences", [True, False])
@pytest.mark.parametrize("name", TEXTS)
def test_an_identical_translation_is_the_text(name, sentences, split_newlines):
    """Newlines, CRLF, blank lines, indents and all else stay, byte for byte."""
    check_identity(TEXTS[name], "en", sentences, split_newlines)


CHARACTERS = st.sampled_from(
    list("aB1.!?…-\"'») \t\n\r\x0b\x0c\x85\u2028\u2029\u00a0\u3000。！”」一ا؟😀\x00")
)


@settings(deadline=None)
@given(
    text=st.text() | st.text(CHARACTERS, max_size=60),
    language=st.sampled_from(["", "en", "de", "zh"]),
    sentences=st.booleans(),
    split_newlines=st.booleans(),
)
def test_an_identical_translation_is_any_text(
    text, language, sentences, split_newlines
):
    """Of any characters, in any order."""
    check_identity(text, language, sentences, split_newlines)


def check_identity(text, language, sentences, split_newlines):
    layout = divide(text, language, sentences=sentences, split_newlines=split_newlines)
    pieces = layout.pieces
    assert layout.join([piece.text for piece in pieces]) == text
    for piece in pieces:
        assert text[piece.start : piece.stop] == piece.text == piece.text.strip()
    places = [place for piece in pieces for place in (piece.start, piece.stop)]
    assert places == sorted(places)
    outside = "".join(
        text[stop:start]
        for stop, start in zip(
            [0, *places[1::2]], [*places[::2], len(text)], strict=True
        )
    )
    assert not any(character.isalnum() for character in outside)


def translate(text, *translations, language="en", **options):
    return divide(text, language, **options).join(translations)


def test_a_newline_stays_a_newline():
    """Blank lines and indents too, with any translation."""
    assert (
        translate("A dog.\n\n  A cat. A bird.\n", "Ein Hund.", "Eine Katze.", "Vogel.")
        == "Ein Hund.\n\n  Eine Katze. Vogel.\n"
    )


def test_crlf_comes_back_as_crlf():
    """And a single CR or LF as that."""
    text = "A dog.\r\nA cat.\nA bird.\rA fish.\r\n\r\n"
    assert translate(text, *"ABCD") == "A\r\nB\nC\rD\r\n\r\n"


def test_text_keeps_its_signs():
    """No entities are made or resolved."""
    text = "a < b & c\n&amp; x > y"
    layout = divide(text, "en")
    assert [piece.text for piece in layout.pieces] == ["a < b & c", "&amp; x > y"]
    assert layout.join(["a < b & c", "&amp;"]) == "a < b & c\n&amp;"


def test_nothing_is_added_to_a_translation():
    """No stop is added and no case is changed."""
    assert translate("IT RAINS", "ES REGNET") == "ES REGNET"
    assert translate("it rains.", "es regnet") == "es regnet"
    assert translate("no stop", "kein Punkt.") == "kein Punkt."


def test_a_text_is_cut_by_the_abbreviations_of_its_language():
    """As a line of `jaxformer translate` is."""
    text = "Das gilt bzw. Hunde. Und Katzen."
    assert [piece.text for piece in divide(text, "de").pieces] == [
        "Das gilt bzw. Hunde.",
        "Und Katzen.",
    ]


def test_line_ends_may_be_white_space():
    """Then a sentence may have several lines, and ends only at its mark."""
    pieces = divide("A dog\nbarks. A\r\ncat\n", "en", split_newlines=False).pieces
    assert [piece.text for piece in pieces] == ["A dog\nbarks.", "A\r\ncat"]


def test_a_text_may_be_one_sentence():
    """Of one line, or of several that are white space."""
    lines = divide(" One. Two.\nThree.", "en", sentences=False).pieces
    assert [piece.text for piece in lines] == ["One. Two.", "Three."]
    (whole,) = divide(
        " One. Two.\nThree.", "en", sentences=False, split_newlines=False
    ).pieces
    assert whole.text == "One. Two.\nThree."


def test_what_has_no_letter_or_digit_is_not_translated():
    """Rules, bullets and emoji are layout, on their own line or as a sentence."""
    text = "* * *\n😀 😀\nA dog. 😀! A cat.\n42"
    pieces = divide(text, "en").pieces
    assert [piece.text for piece in pieces] == ["A dog.", "A cat.", "42"]
    assert translate(text, "Hund.", "Katze.", "42") == (
        "* * *\n😀 😀\nHund. 😀! Katze.\n42"
    )


def test_spaces_follow_the_script_of_the_translation():
    """Chinese has none between sentences, German has."""
    assert (
        translate("一只狗。一只猫。", "Hund.", "Katze.", language="zh")
        == "Hund. Katze."
    )
    assert translate("A dog. A cat.\nA bird.", "一只狗。", "一只猫。", "一只鸟。") == (
        "一只狗。一只猫。\n一只鸟。"
    )
    assert (
        translate("A dog. 😀! A cat.", "一只狗。", "一只猫。")
        == "一只狗。 😀! 一只猫。"
    )


def test_an_empty_translation_leaves_no_double_space():
    """Wherever it is in its line; the ends of lines stay."""
    text = "  One.  Two. Three.\nFour."
    assert translate(text, "", "B.", "C.", "D.") == "  B. C.\nD."
    assert translate(text, "A.", "", "C.", "") == "  A. C.\n"
    assert translate(text, "A.", "B.", "", "D.") == "  A.  B.\nD."


def test_translations_must_be_as_many_as_sentences():
    """None is lost silently."""
    with pytest.raises(ValueError, match="2 translations of 1 sentences"):
        translate("One.", "A", "B")
