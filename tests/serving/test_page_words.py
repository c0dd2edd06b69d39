"""The words of a translation on the page: other words, links, confidence."""

import re

from serving.opened_page import ANIMAL, FILE, GERMAN, THREE, THREE_GERMAN


def test_another_word_continues_the_search_from_there(page):
    """By keyboard: the list, a word of it, the rest again, the trail, undo."""
    page.translate(THREE)
    page.script("arguments[0].focus()", page.words()[0])
    page.press("ARROW_RIGHT", "ARROW_RIGHT", "ENTER")
    page.wait_for_words()
    asked = {
        "text": ANIMAL,
        "prefix": "Das Tier",
        "k": 8,
        "source": "en",
        "target": "de",
    }
    assert page.fake.asked("alternatives") == [asked]
    assert page.texts("[role=option] b")[:3] == ["hat", "dies", "jenes"]
    assert page.texts("[role=option][aria-selected=true] b") == ["hat"]
    assert page.texts("[role=option].active b") == ["dies"]
    assert page.focused == "options"
    page.press("ARROW_DOWN", "ENTER")
    page.wait(lambda: "rest translated again" in page.text("#status"))
    (body,) = page.fake.asked("translate")
    assert (body["text"], body["prefix"]) == (ANIMAL, "Das Tier jenes")
    assert (body["split_sentences"], body["n_best"]) == (False, 4)
    changed = GERMAN.replace("hat", "jenes")
    assert page.output == THREE_GERMAN.replace(GERMAN, changed)
    assert page.focused == "jenes"
    assert page.texts("#trail button") == ["hat jenes ↶"]
    # A second choice, after which one undo takes it back, and the next one the first.
    page.press("ARROW_RIGHT", "ARROW_DOWN")
    page.wait_for_words()
    page.press("ARROW_UP", "ARROW_UP", "ENTER")  # round to the last
    page.wait(lambda: len(page.texts("#trail button")) == 2)
    page.wait(lambda: len(page.fake.asked("translate")) == 2)
    assert page.output.startswith("Das Tier jenes kein")
    page.press("z", held=("CONTROL",))
    assert page.output.startswith(changed)
    page.find("#trail button")[0].click()
    assert (page.output, page.texts("#trail button")) == (THREE_GERMAN, [])


def test_readers_hear_names_once_and_source_words(page):
    """A screen reader is told what the marks show: the words of the source, and the
    probability; the name of a button is not its description as well.
    """
    page.translate(FILE)
    page.press("2", held=("ALT",))
    page.press("3", held=("ALT",))
    described = [page.described(word) for word in page.words()]
    assert described[2] == "from file"
    assert any(re.fullmatch(r"from \S+, probability \d+ %", x) for x in described)
    buttons = page.find("#trail button") + page.find("#swap")
    names = [button.accessible_name for button in buttons]
    assert names[:2] == ["Undo candidate 1 to 2", "Undo candidate 2 to 3"]
    assert "Ctrl+Shift+S" in names[2]
    described = [page.described(button) for button in buttons]
    assert described == ["Undoes the choices after it as well", "", ""]


def test_choices_last_while_the_text_grows(page):
    """A sentence whose source is unchanged keeps the words that were chosen in it."""
    page.translate(FILE)
    page.words()[1].click()
    page.wait_for_words()
    page.find("[role=option]")[2].click()
    page.wait(lambda: "rest translated again" in page.text("#status"))
    page.translate(FILE + " " + ANIMAL)
    assert page.output == f"Öffnen jenes Datei in ein neues Fenster. {GERMAN}"
    page.find("#clear")[0].click()
    page.translate(FILE)
    assert page.output == "Öffnen das Datei in ein neues Fenster."


def test_the_list_of_words_closes(page):
    """By Escape, by Tab and by a click outside; the focus returns to the word."""
    page.translate(FILE)
    for close in ("ESCAPE", "TAB"):
        page.words()[1].click()
        page.wait_for_words()
        page.press(close)
        assert not page.find("#others")[0].is_displayed()
        assert page.focused == "das"
    page.words()[1].click()
    page.find("h1")[0].click()
    assert not page.find("#others")[0].is_displayed()
    assert page.words()[1].get_attribute("aria-expanded") == "false"
    page.press("ESCAPE")  # from a word back to the text
    page.script("arguments[0].focus()", page.words()[1])
    page.press("ESCAPE")
    assert page.focused == "text"


def test_the_caret_leads_into_the_translation(page):
    """The sentence that is written is the current one; Escape and Tab lead from a word
    of the text to its translation.
    """
    page.find("#text")[0].send_keys(FILE)
    page.wait(lambda: page.output)
    page.press(*f" {ANIMAL}")
    page.wait(lambda: page.output.endswith(GERMAN) and page.find("#tab-API"))
    assert page.text("#current") == f"Of: {ANIMAL}"
    page.press("HOME", held=("CONTROL",))
    page.press(*["ARROW_RIGHT"] * 5)
    page.wait(lambda: page.linked() == (["the"], ["das"]))
    assert page.text("#current") == f"Of: {FILE}"
    page.press("ESCAPE")
    assert page.focused == "das"
    page.press("ESCAPE")
    assert page.focused == "text"
    page.press("TAB", "TAB", "TAB")
    assert page.focused == "das"
    # What is written now has no links, also not on the other side.
    page.script("document.getElementById('text').focus()")
    page.fake.delays = {"x": 60}
    page.press("x")
    page.wait(lambda: page.linked() == ([], []))


def test_words_are_linked_both_ways(page):
    """Hover and focus mark a word's counterparts, in the text field as well."""
    page.translate(THREE)
    page.actions.move_to_element(page.words()[4]).perform()
    assert page.linked() == (["cross"], ["überquert"])
    page.script("arguments[0].focus()", page.words(1)[1])
    assert page.linked() == (["the"], ["das"])
    page.press("ARROW_RIGHT")
    assert page.linked() == (["file"], ["Datei"])
    page.script("document.getElementById('text').focus()")
    assert page.linked() == ([], [])
    x, y = page.script(
        "const {left, top} = document.querySelector("
        '\'#mirror [data-sentence="2"][data-word="1"]\').getBoundingClientRect();'
        "return [left + 5, top + 5]"
    )
    page.script(  # the mirror is exactly under the text
        "const area = document.getElementById('text'), layer = document.getElementById("
        "'mirror'); window.apart = [area.clientWidth - layer.clientWidth,"
        " area.scrollHeight - layer.scrollHeight]"
    )
    assert page.script("return window.apart") == [0, 0]
    move = page.actions
    move.w3c_actions.pointer_action.move_to_location(int(x), int(y))
    move.perform()
    assert page.linked() == (["save"], ["speichern"])
    # The caret in the text does the same.
    page.actions.move_to_element(page.find("h1")[0]).perform()
    page.press("HOME", held=("CONTROL",))
    page.press("ARROW_RIGHT")
    page.wait(lambda: page.linked() == (["The"], ["Das"]))
    # Text that is not yet translated has no marks.
    page.press("x")
    assert page.linked()[0] == []


def test_words_without_spaces_are_linked_by_their_tokens(page):
    """In Chinese the units are the tokens."""
    page.fake.pairs = [("en", "English", "zh", "Chinese")]
    page.fake.canned = {
        "I drink tea.": {
            "text": "我喝茶。",
            "tokens": ["▁我", "喝", "茶", "。"],
            "token_log_probabilities": [-0.01, -1.2, -0.01, -0.01, -0.01],
            "source_tokens": ["▁I", "▁dr", "ink", "▁tea", ".", "</s>"],
            "alignment": "0-0 2-1 3-2 4-3",
            "word_alignment": "0-0 1-0 2-0",
            "score": -0.3,
            "log_probability": -1.25,
            "finished": True,
        }
    }
    page.driver.refresh()
    page.wait(lambda: page.find("#source option"))
    page.translate("I drink tea.")
    assert [word.text for word in page.words()] == ["我", "喝", "茶", "。"]
    page.actions.move_to_element(page.words()[1]).perform()
    assert page.linked() == (["drink"], ["喝"])
    assert page.texts(".sure1[role=button]") == ["喝"]


def test_right_to_left_text(page):
    """Marks are at the words, and arrow keys move the way they point."""
    page.translate("افتح الملف من فضلك.")
    edges = (
        "return [...document.querySelectorAll(arguments[0])]"
        ".map(each => each.getBoundingClientRect().right)"
    )
    (pane,) = page.script(edges, "#text")
    for words in ("#mirror span", "#output [role=button]"):
        right = page.script(edges, words)
        assert right == sorted(right, reverse=True)
    assert pane - page.script(edges, "#mirror span")[0] < 25  # the padding
    page.script("arguments[0].focus()", page.words()[0])
    page.press("ARROW_LEFT")
    assert page.linked() == (["الملف"], ["الملف"])


def test_confidence_is_shown_by_patterns(page):
    """Words under 80, 50 and 20 % have underlines of different shapes, and their
    probability in words.
    """
    page.translate(FILE)
    shown = {
        name: page.find(f"#output .{name}") for name in ("sure0", "sure1", "sure2")
    }
    probabilities = {
        name: [word.get_attribute("title") for word in words]
        for name, words in shown.items()
    }
    assert {title for titles in probabilities.values() for title in titles} <= {
        "probability 12 %",
        "probability 42 %",
        "probability 71 %",
    }
    styles = {
        words[0].value_of_css_property("text-decoration-style")
        for words in shown.values()
        if words
    }
    assert len(styles) == sum(bool(words) for words in shown.values()) >= 2
    assert not page.find("#output [title='probability 90 %']")
