"""The page by keyboard, on narrow screens, in dark and print, and by axe-core."""

import pytest
from browser import emulate, violations
from serving.fake_native import PAGE, refusal
from serving.opened_page import ANIMAL, FILE, TABS, THREE, Page, resize, set_offline


def test_by_keyboard_alone(page):
    """From an empty page to a chosen word, a candidate, every tab and the help, and
    back, without a trap.
    """
    assert page.focused == "text"
    page.press("Open the file.")
    page.press("ENTER", held=("CONTROL",))  # now, without the pause
    page.wait(lambda: page.output == "Öffnen das Datei." and page.find("#tab-API"))
    seen = []
    for _ in range(9):
        page.press("TAB")
        seen.append(page.focused)
    assert seen[:3] == ["clear", "link", "Öffnen"]  # the translation is one stop
    assert seen[3:5] == ["copy", "tab-Candidates"]
    page.press("TAB", held=("SHIFT",))
    page.script("document.getElementById('tab-Candidates').focus()")
    page.press("ARROW_RIGHT")
    page.wait(lambda: page.find("#heads"))
    page.press("ARROW_RIGHT", "ARROW_RIGHT")
    assert page.focused == "tab-API"
    page.press("HOME")
    assert page.focused == "tab-Candidates"
    page.press("?")
    assert page.find("dialog[open]")
    page.press("ESCAPE")
    assert not page.find("dialog[open]")
    # Round the whole page and into the text again.
    for _ in range(30):
        page.press("TAB")
        if page.focused == "text":
            break
    assert page.focused == "text"


def test_help_has_every_key(page):
    """Of the page, its lists, tabs and maps."""
    page.press("TAB", "?")
    listed = page.text("#help dl")
    found = {"Enter", "Space", "Home", "End", "Esc", "Tab", "?", "A–Z", "Alt+1 … 9"}
    found |= {"←", "→", "↑", "↓", "Ctrl+Enter", "Ctrl+Shift+S", "Ctrl+Z", "Ctrl+Y"}
    found.add("Ctrl+Shift+Z")
    assert {key for key in found if key not in listed} == set()


def test_narrow_screens_need_no_side_scroll(page):
    """At 360 pixels, with every tab and the list of words."""
    resize(page.driver.execute_cdp_cmd, 360, 740)
    page.translate(THREE + " " + "Donaudampfschifffahrtsgesellschaft" * 3)
    wide = "const {scrollWidth, clientWidth} = document.documentElement;"
    wide += "return scrollWidth - clientWidth;"
    for tab in TABS:
        page.open_tab(tab)
        assert page.script(wide) == 0, tab
    page.open_tab("Attention")
    page.find("[aria-label=View] button")[1].click()
    assert page.script(wide) == 0
    page.script("arguments[0].click()", page.words()[3])
    page.wait_for_words()
    assert page.script(wide) == 0
    page.press("ESCAPE")
    page.find("#open-help")[0].click()
    assert page.script(wide) == 0


def test_looks_follow_the_reader(page, browse):
    """Dark from the first paint on; no motion, high contrast and print as asked."""
    style = (
        "return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]"
    )
    assert page.script(style, "body", "backgroundColor") == "rgb(255, 255, 255)"
    browse(page.url, "dark")
    assert page.script(style, "body", "backgroundColor") == "rgb(18, 22, 28)"
    # The browser paints its own background dark before any style sheet is there.
    assert '<meta name="color-scheme" content="light dark">' in (
        PAGE / "index.html"
    ).read_text("utf-8")
    page.wait(lambda: page.find("#source option"))
    page.translate(FILE)
    page.script("document.getElementById('result').classList.add('waiting')")
    progress = (
        "const bar = document.getElementById('progress');"
        "return getComputedStyle(bar, '::before').animationName;"
    )
    assert page.script(progress) == "run"
    emulate(page.driver, motion="reduce")
    assert page.script(progress) == "none"
    emulate(page.driver, colors="active")
    page.actions.move_to_element(page.words()[1]).perform()
    assert page.script(style, "#output .linked", "outlineStyle") == "solid"
    page.open_tab("Steps")
    taken = page.script(style, "#Steps .taken", "borderColor")
    assert taken != page.script(style, "#Steps .tops span:not(.taken)", "borderColor")
    emulate(page.driver, media="print")
    assert page.script(style, "#output", "display") == "block"
    assert page.script(style, "[role=tablist]", "display") == "none"


def violations_of_states(page: Page) -> dict[str, list[str]]:
    """Return what axe-core finds in each state of the page."""
    found = {"empty": violations(page.driver)}

    def check(name: str) -> None:
        found[name] = violations(page.driver)

    page.fake.delays = {"slow": 60}
    page.write("slow file")
    page.wait(lambda: page.find("#result.waiting"))
    check("waiting")
    page.fake.delays, page.fake.held = {}, True
    page.write(THREE)
    page.wait(lambda: page.texts("#output .sentence:not(.pending)"))
    check("stream")
    page.fake.reset()
    page.translate(THREE + " An endless file. An impossible file.")
    page.script("arguments[0].focus()", page.words()[0])
    for tab in TABS:
        page.open_tab(tab)
        check(tab)
    page.open_tab("Attention")
    page.find("[aria-label=View] button")[1].click()
    check("matrix")
    page.open_tab("Candidates")
    page.words()[2].click()
    page.wait_for_words()
    check("words")
    page.press("ARROW_DOWN", "ENTER")
    page.wait(lambda: page.find("#trail button"))
    check("chosen")
    page.find("#open-help")[0].click()
    check("help")
    page.press("ESCAPE")
    page.fake.refusals = [refusal(429, "rate", "Too many sentences a minute.", 60)]
    page.write(FILE)
    page.wait(lambda: page.find("#problem")[0].is_displayed())
    check("refused")
    page.fake.warm = (7, 18)
    page.find("#problem button")[0].click()
    page.wait(lambda: page.find("progress[value]"))
    check("warming")
    page.fake.reset()
    page.fake.silent = True
    page.write(FILE)
    page.wait(lambda: "does not answer" in page.text("#problem"))
    check("silent")
    page.fake.reset()
    page.fake.key = "k"
    page.write(ANIMAL)
    page.wait(lambda: page.find("#key")[0].is_displayed())
    check("key")
    set_offline(page, True)
    page.write(FILE)
    page.wait(lambda: "cannot be reached" in page.text("#problem"))
    check("offline")
    set_offline(page, False)
    return {name: rules for name, rules in found.items() if rules}


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 360)])
def test_every_state_is_accessible(page, browse, scheme, width):
    """axe-core finds no violation."""
    browse(page.url, scheme)
    resize(page.driver.execute_cdp_cmd, width)
    page.wait(lambda: page.find("#source option"))
    assert violations_of_states(page) == {}


def test_a_translation_is_accessible(page):
    """As in every state, but quick."""
    page.translate(THREE)
    page.words()[2].click()
    page.wait_for_words()
    assert violations(page.driver) == []
