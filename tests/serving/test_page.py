"""The page of the server in a real browser, against a server of canned answers."""

import re

from serving.fake_native import PAGE, refusal
from serving.opened_page import ANIMAL, FILE, GERMAN, TABS


def test_typing_translates_after_a_pause_and_aborts_the_older_request(page):
    """No button is needed: a pause in typing sends a request, and more text ends it."""
    page.script(  # the pause ends when the test says so, on a slow machine too
        "const set = window.setTimeout; window.setTimeout = (run, delay) =>"
        " delay === 250 ? (window.endPause = run, 0) : set(run, delay);"
        "window.restore = () => { window.setTimeout = set; };"
    )
    page.find("#text")[0].send_keys("Open the file.")
    assert page.fake.asked("translate/stream") == []
    page.script("window.endPause(); window.restore()")
    page.wait(lambda: page.output == "Öffnen das Datei.")
    assert [body["text"] for body in page.fake.asked("translate/stream")] == [
        "Open the file."
    ]
    page.fake.delays = {"slow": 60}
    page.write("slow file")
    page.wait(lambda: page.fake.asked("translate/stream")[-1]["text"] == "slow file")
    page.wait(lambda: page.find("#result.waiting.old"))  # shown after a while
    page.write("Close the file.")
    page.wait(lambda: page.output == "Schließen das Datei.")
    assert not page.find("#result.waiting, #result.old")
    page.wait(lambda: page.fake.aborted == 1)


def test_answers_out_of_order_never_overwrite_newer_ones(page):
    """Even where the browser cannot abort the older request."""
    page.script("AbortController.prototype.abort = () => {}")
    page.fake.delays = {"slow": 0.5}
    page.write("slow file")
    page.wait(lambda: page.fake.asked("translate/stream"))
    page.write("Close the file.")
    page.wait(lambda: page.output == "Schließen das Datei.")
    page.wait(lambda: page.fake.finished == 2)
    page.script("return new Promise(done => setTimeout(done, 100))")
    assert page.output == "Schließen das Datei."


def test_text_is_in_no_address_but_behind_the_hash(page):
    """Neither in the page's, nor in one that it asks for; a link to a text is made only
    on request, and opens it. Only the languages are remembered.
    """
    page.translate(ANIMAL)
    page.words()[1].click()
    page.wait_for_words()
    page.press("ESCAPE")
    for tab in TABS:
        page.open_tab(tab)
    asked = page.script(
        "return performance.getEntriesByType('resource').map(e => e.name)"
    )
    assert len(asked) > 5
    assert all(address.startswith(page.url) and "?" not in address for address in asked)
    assert "animal" not in " ".join([page.driver.current_url, *asked]).lower()
    assert page.script("return {...localStorage}") == {}
    page.script("navigator.clipboard.writeText = text => { window.copied = text; }")
    page.find("#link")[0].click()
    address = page.script("return window.copied")
    assert address.startswith(page.url + "#en/de/The%20animal")
    page.driver.get("about:blank")
    page.driver.get(address)
    page.wait(lambda: page.output == GERMAN)
    page.find("#swap")[0].click()
    assert page.script("return {...localStorage}") == {"jaxformer.languages": "de/en"}
    page.driver.get(page.url)
    page.wait(lambda: page.find("#source option"))
    assert page.script("return document.getElementById('source').value") == "de"
    assert page.output == ""


def test_a_reload_keeps_the_text(page):
    """In the tab until it is closed, and in no address; what was written since outlasts
    the text of a link, and a language chosen since the one of a link.
    """
    page.driver.get(page.url + "#de/en/Datei")
    page.driver.refresh()  # the address had only another hash
    page.wait(lambda: page.output == "File")
    page.write("Datei zu")
    page.wait(lambda: page.output == "File too")
    page.driver.refresh()
    page.wait(lambda: page.output == "File too")
    assert page.script("return {...sessionStorage}") == {"jaxformer.text": "Datei zu"}
    assert page.script("return {...localStorage}") == {}
    page.find("#swap")[0].click()
    page.wait(lambda: page.output == "Datei zu")
    assert page.driver.current_url == page.url
    page.driver.refresh()
    page.wait(lambda: page.output == "Datei zu")
    page.press("END", "!")  # the focus is in the text
    page.wait(lambda: page.output == "Datei zu!")
    page.find("#clear")[0].click()
    page.driver.refresh()
    page.wait(lambda: page.find("#source option"))
    assert page.find("#text")[0].get_property("value") == ""


def test_an_answer_comes_sentence_by_sentence(page):
    """The first sentence is there before the last; white space is the text's own, and
    signs of two halves before a sentence shift nothing.
    """
    page.fake.held = True
    text = f"  😀 {FILE}\n\n\tClose it!  \n"
    page.write(text)
    page.wait(lambda: page.texts("#output .sentence:not(.pending)"))
    assert page.find("#output .pending")
    page.fake.held = False
    page.wait(lambda: "2 sentences" in page.text("#status"))
    wanted = "  😀 Öffnen das Datei in ein neues Fenster.\n\n\tSchließen es!  \n"
    assert page.output == wanted
    assert page.texts("#mirror [data-sentence='1']") == ["Close", "it!"]
    page.script("navigator.clipboard.writeText = text => { window.copied = text; }")
    page.find("#copy")[0].click()
    assert page.script("return window.copied") == wanted
    page.wait(lambda: page.text("#copy") == "Copied")
    page.find("#copy")[0].click()
    page.wait(lambda: page.text("#copy") == "Copy")


def test_unfinished_and_impossible_sentences_say_so(page):
    """Marks outside the text that is copied."""
    page.translate(f"An endless file. {FILE} An impossible file.")
    assert page.texts("#output .lost") == ["unfinished", "nothing possible"]
    assert "1 unfinished" in page.text("#status")
    page.script("navigator.clipboard.writeText = text => { window.copied = text; }")
    page.find("#copy")[0].click()
    assert "unfinished" not in page.script("return window.copied")
    page.script("arguments[0].focus()", page.words(1)[0])
    page.find("#output .lost")[1].click()


def test_languages_are_swapped_with_the_texts(page):
    """The translation becomes the text, if the other pair is served."""
    page.translate(FILE)
    page.press("s", held=("CONTROL", "SHIFT"))
    page.wait(lambda: page.output == "Open the File in a new Window.")
    assert page.script("return document.getElementById('text').value").startswith("Öff")
    assert page.fake.asked("translate/stream")[-1]["source"] == "de"
    attributes = [
        page.find(f"#{name}")[0].get_attribute("lang") for name in ("text", "output")
    ]
    assert attributes == ["de", "en"]
    page.fake.pairs = page.fake.pairs[:1]
    page.driver.refresh()
    page.wait(lambda: page.find("#source option"))
    assert not page.find("#swap")[0].is_enabled()
    page.press("s", held=("CONTROL", "SHIFT"))
    assert "not translate the other way" in page.text("#status")


def test_text_stays_text(page):
    """Markup in texts, names and errors is shown as it is; a script in the page would
    not run.
    """
    hostile = '<img src=x onerror="document.body.remove()">'
    page.fake.pairs = [("en", hostile, "de", hostile)]
    page.driver.refresh()
    page.wait(lambda: page.texts("#source option") == [hostile])
    page.fake.refusals = [refusal(400, "bad", hostile)]
    page.write(hostile)
    page.wait(lambda: page.text("#problem p") == hostile)
    page.translate(hostile)
    for tab in TABS:
        page.open_tab(tab)
    assert not page.find("img")
    page.script(
        "const script = document.createElement('script');"
        "script.textContent = 'window.ran = true'; document.head.append(script);"
    )
    assert not page.script("return window.ran")
    entries = page.driver.get_log("browser")
    assert any("Content Security Policy" in entry["message"] for entry in entries)


def test_the_page_is_small(page):
    """Under 60 kB without a library; eight requests until one can type."""
    sizes = [path.stat().st_size for path in PAGE.iterdir()]
    assert sum(sizes) < 60_000
    asked = page.script(
        "return performance.getEntriesByType('resource').map(e => e.name)"
    )
    assert 1 + len(asked) <= 8
    sources = "".join(path.read_text("utf-8") for path in PAGE.iterdir())
    outside = sources.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(
        r"https?://|@import|innerHTML|\beval\(| on\w+=| style=", outside
    )
