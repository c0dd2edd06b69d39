"""Text to sentences and back, byte for byte around them."""

from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.translation.text.layout import Layout

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
    """Newlines, CRLF, blank lines, indents and all else stay, byte for byte."""
    layout = Layout(text, language, sentences=sentences, split_newlines=split_newlines)
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
    assert not any(character.isalpha() for character in outside)


def translate(text, *translations, language="en", **options):
    return Layout(text, language, **options).join(translations)


def test_line_ends_may_be_white_space():
    """Then a sentence may have several lines, and ends only at its mark."""
    pieces = Layout("A dog\nbarks. A\r\ncat\n", "en", split_newlines=False).pieces
    assert [piece.text for piece in pieces] == ["A dog\nbarks.", "A\r\ncat"]


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
