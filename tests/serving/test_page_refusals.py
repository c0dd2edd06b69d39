"""The page of a server that refuses, warms up or cannot be reached."""

import pytest
from serving.fake_native import refusal
from serving.opened_page import ANIMAL, FILE, GERMAN, set_offline


def test_text_too_long_says_limit_and_length(page):
    """On the page before it is sent, and from the server; the page works on."""
    page.fake.limit = 100
    page.translate(FILE)
    page.write("x" * 101)
    refused = "Text has 101 characters; the limit is 100"
    page.wait(lambda: refused in page.text("#problem"))
    page.translate(FILE)
    assert not page.find("#problem")[0].is_displayed()
    page.driver.refresh()
    page.wait(lambda: page.find("#source option"))
    page.write("x" * 130)
    page.wait(lambda: "30 characters too long" in page.text("#problem"))
    assert "at most 100" in page.text("#problem")
    assert page.text("#count") == "130 of 100 characters"
    page.translate(FILE)
    assert not page.find("#problem")[0].is_displayed()


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_asked_again_after_a_countdown(page, status):
    """After the seconds that it names, or at once by a button."""
    page.fake.refusals = [refusal(status, "rate", "Too many sentences a minute.", 1)]
    page.script(  # whoever looks a second later sees no notice
        "const box = document.getElementById('problem'); window.said = '';"
        "new MutationObserver(() => { said += box.textContent; })"
        ".observe(box, {childList: true, subtree: true});"
    )
    page.write(FILE)
    page.wait(lambda: "Fenster" in page.output)
    said = page.script("return said")
    assert "Too many sentences a minute. Next try in 1 s." in said
    assert not page.find("#problem")[0].is_displayed()
    page.fake.refusals = [refusal(status, "rate", "Too many sentences a minute.", 60)]
    page.write(ANIMAL)
    page.wait(lambda: page.find("#problem")[0].is_displayed())
    page.fake.refusals = [refusal(status, "rate", "Still too many.", 60)]
    page.script("document.querySelector('#problem button').focus()")
    page.press("ENTER")
    page.wait(lambda: "Still too many. Next try in" in page.text("#problem"))
    assert page.focused == "text"  # the button that had the focus is gone
    page.find("#problem button")[0].click()
    page.wait(lambda: page.output == GERMAN)


def test_a_lost_server_is_found_again(page):
    """Offline, the text stays and is translated when the server is back; an answer that
    breaks off counts as lost.
    """
    set_offline(page, True)
    page.write(FILE)
    page.wait(lambda: "cannot be reached" in page.text("#problem"))
    set_offline(page, False)
    page.wait(lambda: "Fenster" in page.output)
    page.fake.break_off = True
    page.write(ANIMAL)
    page.wait(lambda: "broke off" in page.text("#problem"))
    page.fake.break_off = False
    page.script("document.querySelector('#problem button')?.click()")
    page.wait(lambda: page.output == GERMAN)
    page.fake.refusals = [refusal(500, "internal", "Something failed: id 7.")]
    page.write(FILE)
    page.wait(lambda: "id 7" in page.text("#problem"))
    page.find("#problem button")[0].click()
    page.wait(lambda: "Fenster" in page.output)


def test_a_silent_server_is_waited_for(page):
    """One that accepts requests and answers none: the page says so until it answers,
    also to what is written meanwhile, and goes on by itself.
    """
    page.script(  # three seconds take a tenth of that
        "for (const name of ['setInterval', 'setTimeout']) {"
        " const set = window[name]; window[name] = (run, delay) =>"
        " set(run, delay === 3000 ? 300 : delay); }"
    )
    page.fake.delays = {"slow": 1}  # a server that takes its time is not silent
    page.script(
        "const box = document.getElementById('problem'); window.said = '';"
        "new MutationObserver(() => { said += box.textContent; })"
        ".observe(box, {childList: true, subtree: true});"
    )
    page.translate("slow file")
    assert page.script("return said") == ""
    page.fake.silent = True
    page.write(FILE)
    page.wait(lambda: "does not answer" in page.text("#problem"))
    page.write(ANIMAL)
    page.wait(lambda: page.text("#status") == "Translating…")
    assert "does not answer" in page.text("#problem")
    page.fake.silent = False
    page.wait(lambda: page.output == GERMAN)
    page.wait(lambda: not page.find("#problem")[0].is_displayed())
    # So is one that falls silent while a word is looked at.
    page.fake.silent = True
    page.script("arguments[0].focus()", page.words()[1])
    page.press("ENTER")
    page.wait(lambda: "does not answer" in page.text("#problem"))
    page.fake.silent = False
    page.wait_for_words()
    page.wait(lambda: not page.find("#problem")[0].is_displayed())


def test_a_sentence_too_long_to_link_is_translated_without_links(page):
    """The server refuses to link its words, and the page asks again without."""
    message = "words are linked in sentences of at most 1,024 tokens"
    page.fake.refusals = [refusal(422, "too_many_tokens", message, field="alignment")]
    page.translate(FILE)
    assert "Fenster" in page.output
    asked = page.fake.asked("translate/stream")
    assert [body["alignment"] for body in asked] == [True, False]
    assert "too long to link" in page.text("#status")
    assert not page.find("#problem")[0].is_displayed()
    page.open_tab("API")
    assert '"alignment": false' in page.text("#API pre")
    assert '"alignment": False' in page.texts("#API pre")[1]
    page.translate(ANIMAL)
    assert page.fake.asked("translate/stream")[-1]["alignment"] is True


def test_a_server_that_warms_up_is_followed(page):
    """The page shows how far it is, and translates when it is ready."""
    page.fake.warm = (7, 18)
    page.write(FILE)
    page.wait(lambda: page.find("progress[value]"))
    assert page.find("progress")[0].get_property("value") == 7
    page.fake.warm = (18, 18)
    page.wait(lambda: "Fenster" in page.output)
    assert not page.find("#problem")[0].is_displayed()


def test_a_key_is_asked_for(page):
    """Where the server wants one; it is sent as a header and stored nowhere."""
    page.fake.key = "secret"
    page.write(FILE)
    page.wait(lambda: "Write your key above" in page.text("#problem"))
    page.press("TAB", held=("SHIFT",))
    page.press("wrong", "ENTER")
    page.wait(lambda: "missing or wrong" in page.text("#problem"))
    page.press("a", held=("CONTROL",))
    page.press("secret", "ENTER")
    page.wait(lambda: "Fenster" in page.output)
    stored = page.script("return JSON.stringify([{...localStorage}, location.href])")
    assert "secret" not in stored
