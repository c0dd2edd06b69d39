"""The page of the server in a real browser, against a server of canned answers."""

import contextlib
import io
import json
import re
import shutil
import subprocess

import pytest
from browser import emulate, violations
from serving.fake_native import PAGE, Fake, refusal, serve
from serving.opened_page import Page, resize

ANIMAL = "The animal did not cross the street because it was too tired."
FILE = "Open the file in a new window."
THREE = f"{ANIMAL} {FILE}\n\nPlease save the changes before you quit."
GERMAN = "Das Tier hat nicht überquert das Straße weil es war zu müde."
TABS = ("Candidates", "Attention", "Steps", "API")


@pytest.fixture(scope="module")
def server():
    """Serve the page from one address."""
    fake = Fake()
    with serve(fake) as url:
        yield fake, url


@pytest.fixture
def page(server, browse):
    """Open the page; nothing is remembered for the next."""
    fake, url = server
    fake.reset()
    page = Page(browse(url), fake, url)
    resize(page.driver.execute_cdp_cmd)
    page.wait(lambda: page.find("#source option"))
    yield page
    fake.reset()
    page.script("localStorage.clear()")
    page.driver.get("about:blank")  # nothing of the page goes on


def test_typing_translates_after_a_pause_and_aborts_the_older_request(page):
    """No button is needed: a pause in typing sends a request, and more text ends it."""
    page.find("#text")[0].send_keys("Open the file.")
    page.wait(lambda: page.output == "Öffnen das Datei.")
    assert [body["text"] for body in page.fake.asked("translate/stream")] == [
        "Open the file."
    ]
    page.fake.delays = {"slow": 5}
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
    on request, and opens it. Nothing but the languages is remembered.
    """
    page.translate(ANIMAL)
    page.words()[1].click()
    page.wait(lambda: page.find("[role=option]"))
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


def test_another_word_continues_the_search_from_there(page):
    """By keyboard: the list, a word of it, the rest again, the trail, undo."""
    page.translate(THREE)
    page.script("arguments[0].focus()", page.words()[0])
    page.press("ARROW_RIGHT", "ARROW_RIGHT", "ENTER")
    page.wait(lambda: page.find("[role=option]"))
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
    page.wait(lambda: page.find("[role=option]"))
    page.press("ARROW_UP", "ARROW_UP", "ENTER")  # round to the last
    page.wait(lambda: len(page.texts("#trail button")) == 2)
    page.wait(lambda: len(page.fake.asked("translate")) == 2)
    assert page.output.startswith("Das Tier jenes kein")
    page.press("z", held=("CONTROL",))
    assert page.output.startswith(changed)
    page.find("#trail button")[0].click()
    assert (page.output, page.texts("#trail button")) == (THREE_GERMAN, [])


THREE_GERMAN = (
    f"{GERMAN} Öffnen das Datei in ein neues Fenster.\n\n"
    "Bitte speichern das Änderungen bevor Sie beenden."
)


def test_undo_without_a_choice_leaves_the_text(page):
    """The browser alone would take back what was typed, unseen from the translation."""
    page.find("#text")[0].send_keys("Open the file.")
    page.wait(lambda: page.output == "Öffnen das Datei.")
    page.script("arguments[0].focus()", page.words()[0])
    page.press("z", held=("CONTROL",))
    assert page.script("return document.getElementById('text').value") == (
        "Open the file."
    )


def test_choices_last_while_the_text_grows(page):
    """A sentence whose source is unchanged keeps the words that were chosen in it."""
    page.translate(FILE)
    page.words()[1].click()
    page.wait(lambda: page.find("[role=option]"))
    page.find("[role=option]")[2].click()
    page.wait(lambda: "rest translated again" in page.text("#status"))
    page.translate(FILE + " " + ANIMAL)
    assert page.output == f"Öffnen jenes Datei in ein neues Fenster. {GERMAN}"
    page.find("#clear")[0].click()
    page.translate(FILE)
    assert page.output == "Öffnen das Datei in ein neues Fenster."


def test_a_cleared_text_comes_back(page):
    """As any edit, by the undo of the browser."""
    page.find("#text")[0].send_keys(FILE)
    page.find("#clear")[0].click()
    assert (page.focused, page.find("#text")[0].get_property("value")) == ("text", "")
    page.press("z", held=("CONTROL",))
    assert page.find("#text")[0].get_property("value") == FILE


def test_the_list_of_words_closes(page):
    """By Escape, by Tab and by a click outside; the focus returns to the word."""
    page.translate(FILE)
    for close in ("ESCAPE", "TAB"):
        page.words()[1].click()
        page.wait(lambda: page.find("[role=option]"))
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
    page.script(  # the mirror lies exactly under the text
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
    """Marks lie where the words are, and the arrow keys go where they point."""
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


def test_candidates_show_their_differences(page):
    """Each candidate has its rank, score and probability; what differs from the chosen
    one is marked. Alt and a digit takes one, also while the text has the focus.
    """
    page.translate(FILE)
    page.wait(lambda: page.find("#Candidates mark"))
    assert page.texts("#Candidates mark") == ["jenes", "ein.", "andere"]
    numbers = page.texts("#Candidates button small:last-child")
    assert all(re.match(r"score −\d\.\d{3}", number) for number in numbers)
    assert len(numbers) == 4
    page.press("2", held=("ALT",))
    assert page.output == page.texts("#Candidates button > span")[1]
    assert page.find("#Candidates button")[1].get_attribute("aria-pressed") == "true"
    assert page.texts("#Candidates li:nth-child(2) mark") == []
    page.find("#Candidates button")[3].click()
    assert page.output == page.texts("#Candidates button > span")[3]
    assert page.focused == page.texts("#Candidates button")[3]


def test_attention_of_any_sentence_and_translation_is_shown(page):
    """Cross attention of the words that were chosen, its heads as threads of their own
    colours; every kind, layer and head, the matrix, and the mean.
    """
    page.translate(THREE)
    page.press("2", held=("ALT",))
    page.open_tab("Attention")
    (asked,) = page.fake.asked("attention")
    assert (asked["text"], asked["k"]) == (ANIMAL, 8)
    assert asked["translation"] == page.texts("#output .sentence")[0] != GERMAN
    assert page.texts(".tokens.side1 button")[:2] == ["▁The", "▁animal"]
    colours = page.script(
        "return [...new Set([...document.querySelectorAll('.threads line')]"
        ".map(line => getComputedStyle(line).stroke))]"
    )
    assert len(colours) == 4
    page.find("#heads td button")[-1].click()
    assert page.text("#chosen") == "Cross-attention, layer 2, mean of all heads"
    page.find("[aria-label=View] button")[1].click()
    assert page.find("#map svg rect")
    # What was chosen stays for the next sentence.
    page.script("arguments[0].focus()", page.words(1)[0])
    page.wait(lambda: len(page.fake.asked("attention")) == 2)
    page.wait(lambda: "▁Open" in page.texts("#map text"))
    assert page.text("#chosen") == "Cross-attention, layer 2, mean of all heads"
    page.find("#kinds button")[0].click()
    assert page.text("#chosen").startswith("Encoder self-attention, layer 2")
    # Asked once for both tabs, and not again for what is known.
    page.open_tab("Steps")
    page.open_tab("Attention")
    assert len(page.fake.asked("attention")) == 2


def test_steps_show_what_else_was_probable(page):
    """At each place the eight best tokens with their probabilities."""
    page.translate(FILE)
    page.open_tab("Steps")
    tokens = page.texts("#Steps li > b")
    assert tokens[:2] == ["▁Öffnen", "▁das"]
    assert tokens[-1] == "</s>"
    first = page.texts("#Steps li:first-child .tops span")
    assert len(first) == 8
    assert first[:2] == ["▁Öffnen 55 %", "dies 20 %"]
    assert page.texts("#Steps li .taken")[1] == "▁das 55 %"


def test_the_code_of_the_api_tab_works(page):
    """The request as Python, JavaScript and curl gives the translation on the page, and
    the answer is that of the server.
    """
    page.translate('The "tired" animal: don\'t $x `y` \\ 東京')
    page.open_tab("API")
    curl, python, javascript, answer = page.texts("#API pre")
    assert page.texts("#API h2") == ["curl", "Python", "JavaScript", "Answer"]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(python, {})
    assert printed.getvalue().strip() == page.output
    said = page.driver.execute_async_script(
        "const done = arguments[0]; console.log = done; (async () => {"
        + javascript
        + "})();"
    )
    assert said == page.output
    if shutil.which("curl"):
        result = subprocess.run(
            ["sh", "-c", curl.replace("curl ", "curl -s ", 1)],
            capture_output=True,
            check=True,
            text=True,
            timeout=60,
        )
        assert (
            json.loads(result.stdout)["translations"]
            == json.loads(answer)["translations"]
        )


def test_an_answer_comes_sentence_by_sentence(page):
    """The first sentence is there before the last; white space is the text's own, and
    signs of two halves before a sentence shift nothing.
    """
    page.fake.delays = {"each sentence": 0.25}
    text = f"  😀 {FILE}\n\n\tClose it!  \n"
    page.write(text)
    page.wait(lambda: page.texts("#output .sentence:not(.pending)"))
    assert page.find("#output .pending")
    page.wait(lambda: "2 sentences" in page.text("#status"))
    wanted = "  😀 Öffnen das Datei in ein neues Fenster.\n\n\tSchließen es!  \n"
    assert page.output == wanted
    assert page.texts("#mirror [data-sentence='1']") == ["Close", "it!"]
    page.script("navigator.clipboard.writeText = text => { window.copied = text; }")
    page.find("#copy")[0].click()
    assert page.script("return window.copied") == wanted
    page.wait(lambda: page.text("#copy") == "Copied")


def test_text_too_long_says_limit_and_length(page):
    """On the page before it is sent, and from the server; the page works on."""
    page.fake.limit = 100
    page.translate(FILE)
    page.write("x" * 101)
    refused = "text has 101 characters; the limit is 100"
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
    page.write(FILE)
    page.wait(lambda: "Too many sentences a minute." in page.text("#problem"))
    assert "Next try in" in page.text("#problem")
    page.wait(lambda: "Fenster" in page.output)
    assert not page.find("#problem")[0].is_displayed()
    page.fake.refusals = [refusal(status, "rate", "Too many sentences a minute.", 60)]
    page.write(ANIMAL)
    page.wait(lambda: page.find("#problem")[0].is_displayed())
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
    page.find("#problem button")[0].click()
    page.wait(lambda: page.output == GERMAN)
    page.fake.refusals = [refusal(500, "internal", "Something failed: id 7.")]
    page.write(FILE)
    page.wait(lambda: "id 7" in page.text("#problem"))
    page.find("#problem button")[0].click()
    page.wait(lambda: "Fenster" in page.output)


def set_offline(page: Page, offline: bool) -> None:
    """Cut the browser from the network, or connect it."""
    conditions = {"offline": offline, "latency": 0}
    conditions |= {"downloadThroughput": -1, "uploadThroughput": -1}
    page.driver.execute_cdp_cmd("Network.enable", {})
    page.driver.execute_cdp_cmd("Network.emulateNetworkConditions", conditions)


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
    page.press("wrong", "ENTER")
    page.wait(lambda: "missing or wrong" in page.text("#problem"))
    page.find("#key")[0].clear()
    page.press("secret", "ENTER")
    page.wait(lambda: "Fenster" in page.output)
    stored = page.script("return JSON.stringify([{...localStorage}, location.href])")
    assert "secret" not in stored


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
    """The translation becomes the text; without the other pair nothing is swapped."""
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


def test_by_keyboard_alone(page):
    """From an empty page to a chosen word, a candidate, every tab and the help, and
    back, without a trap.
    """
    assert page.focused == "text"
    page.press("Open the file.")
    page.press("ENTER", held=("CONTROL",))  # now, without the pause
    page.wait(lambda: "in the queue" in page.text("#status"))
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
    page.wait(lambda: page.find("[role=option]"))
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
    emulate(page.driver, media="print")
    assert page.script(style, "#output", "display") == "block"
    assert page.script(style, "[role=tablist]", "display") == "none"


def test_works_under_a_path(page, browse):
    """Every address of the page is relative."""
    driver = browse(page.url + "mt/")
    page.wait(lambda: page.find("#source option"))
    page.translate(FILE)
    page.open_tab("Attention")
    asked = page.script(
        "return performance.getEntriesByType('resource').map(e => e.name)"
    )
    assert all(address.startswith(page.url + "mt/") for address in asked)
    page.open_tab("API")
    assert page.url + "mt/v1/translate" in page.text("#API pre")
    assert driver.current_url == page.url + "mt/"


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


def violations_of_states(page: Page) -> dict[str, list[str]]:
    """Return what axe-core finds in each state of the page."""
    found = {"empty": violations(page.driver)}

    def check(name: str) -> None:
        found[name] = violations(page.driver)

    page.fake.delays = {"slow": 30}
    page.write("slow file")
    page.wait(lambda: page.find("#result.waiting"))
    check("waiting")
    page.fake.delays = {"each sentence": 1.5}
    page.write(THREE)
    page.wait(lambda: page.texts("#output .sentence:not(.pending)"))
    check("stream")
    page.fake.reset()
    page.translate(THREE + " An endless file. An impossible file.")
    for tab in TABS:
        page.open_tab(tab)
        check(tab)
    page.open_tab("Attention")
    page.find("[aria-label=View] button")[1].click()
    check("matrix")
    page.open_tab("Candidates")
    page.words()[2].click()
    page.wait(lambda: page.find("[role=option]"))
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
@pytest.mark.parametrize("width", [1200, 360])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_state_is_accessible(page, browse, scheme, width):
    """axe-core finds nothing to mend."""
    browse(page.url, scheme)
    resize(page.driver.execute_cdp_cmd, width)
    page.wait(lambda: page.find("#source option"))
    assert violations_of_states(page) == {}


def test_a_translation_is_accessible(page):
    """As in every state, but quick."""
    page.translate(THREE)
    page.words()[2].click()
    page.wait(lambda: page.find("[role=option]"))
    assert violations(page.driver) == []
