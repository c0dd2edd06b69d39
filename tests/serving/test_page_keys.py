"""The keys of the page: where they lead, and where they lead back."""

import re

from serving.fake_native import OTHERS
from serving.opened_page import FILE, THREE


def test_escape_leads_back_to_the_word_that_one_left(page):
    """From the list of words and from the text, until the caret is moved; a candidate
    that is taken meanwhile leaves it there.
    """
    page.translate(THREE)
    page.script("arguments[0].focus()", page.words(1)[4])
    page.press("ENTER")
    page.wait_for_words()
    for wanted in ("ein", "text", "ein", "text"):
        page.press("ESCAPE")
        assert page.focused == wanted
    page.press("2", held=("ALT",))
    page.press("ESCAPE")
    assert page.focused == page.words(1)[4].text
    page.press("TAB", held=("SHIFT",))
    page.press("TAB")
    assert page.focused == page.words(1)[4].text
    page.press("ESCAPE")
    page.press("HOME", held=("CONTROL",))
    page.press("ESCAPE")
    assert page.focused == "Das"


def test_letters_find_a_word_of_the_list(page):
    """The next word that begins with what is typed in quick succession, and round."""
    page.translate(FILE)
    page.script("arguments[0].focus()", page.words()[1])
    page.press("ENTER")
    page.wait_for_words()
    words = page.texts("[role=option] b")
    assert words == ["das", *OTHERS[:7]]
    page.script(  # the pause ends when the test says so
        "const set = window.setTimeout; window.setTimeout = (run, delay) =>"
        " delay === 700 ? (window.endPause = run, 0) : set(run, delay);"
    )
    for letters, wanted in (
        ("a", "andere"),
        ("A", "alle"),
        ("al", "alle"),
        ("d", "das"),
        ("di", "dies"),
        ("ke", "kein"),
        ("x", "kein"),
    ):
        page.press(*letters)
        assert page.texts(".active b") == [wanted]
        page.script("window.endPause()")
    page.press("ENTER")
    page.wait(lambda: page.output.startswith("Öffnen kein"))


def test_the_active_word_of_a_list_stands_out(page, browse):
    """By a line with a contrast of 3:1 to the list, in light and dark."""
    for scheme in ("light", "dark"):
        browse(page.url, scheme)
        page.wait(lambda: page.find("#source option"))
        page.translate(FILE)
        page.words()[1].click()
        page.wait_for_words()
        colours = page.script(
            "const style = each => getComputedStyle(document.querySelector(each));"
            "return [style('.active').outlineColor, style('#others').backgroundColor]"
        )
        light, dark = sorted(map(luminance, colours))[::-1]
        assert (light + 0.05) / (dark + 0.05) >= 3
        assert page.find(".active")[0].value_of_css_property("outline-width") == "2px"


def luminance(colour: str) -> float:
    """Return the relative luminance of an rgb() colour, as WCAG defines it."""
    values = [int(value) / 255 for value in re.findall(r"\d+", colour)[:3]]
    linear = [
        v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values
    ]
    return sum(w * v for w, v in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_help_has_every_key(page):
    """Of the page, its lists, tabs and maps."""
    page.press("TAB", "?")
    listed = page.text("#help dl")
    found = {"Enter", "Space", "Home", "End", "Esc", "Tab", "?", "A–Z", "Alt+1 … 9"}
    found |= {"←", "→", "↑", "↓", "Ctrl+Enter", "Ctrl+Shift+S", "Ctrl+Z", "Ctrl+Y"}
    found.add("Ctrl+Shift+Z")
    assert {key for key in found if key not in listed} == set()
