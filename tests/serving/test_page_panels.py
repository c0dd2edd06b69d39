"""The panels below a translation on the page: candidates, attention, steps, API."""

import contextlib
import io
import json
import re
import shutil
import subprocess

from serving.opened_page import ANIMAL, FILE, GERMAN, THREE


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
    """Cross attention of the words that were chosen, its heads as threads of different
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
    page.press("HOME", "ARROW_RIGHT")
    assert page.text("#chosen") == "Cross-attention, layer 2, head 1"
    page.press("END")
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


def run_code_of_api_tab(page) -> tuple[str, str]:
    """Return what the shown Python and JavaScript print."""
    _, python, javascript, *_ = page.texts("#API pre")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(python, {})
    said = page.driver.execute_async_script(
        "const done = arguments[0]; console.log = done; (async () => {"
        + javascript
        + "})();"
    )
    return printed.getvalue().removesuffix("\n"), said


def test_the_request_shown_has_the_choices(page):
    """Words, candidates of several sentences and a word in a candidate: sent, it gives
    the text that the page shows. What has more sentences than a request may have texts
    says that it does not.
    """
    page.translate(THREE)
    page.open_tab("API")
    page.press("3", held=("ALT",))
    page.script("arguments[0].focus()", page.words(2)[0])
    page.press("2", held=("ALT",))
    page.script("arguments[0].focus()", page.words(2)[3])
    page.press("ENTER")
    page.wait_for_words()
    page.press("ENTER")
    page.wait(lambda: "rest translated again" in page.text("#status"))
    assert len(page.texts("#trail button")) == 3
    assert run_code_of_api_tab(page) == (page.output, page.output)
    curl = page.texts("#API pre")[0]
    body = json.loads(curl[curl.index("{") : curl.rindex("}") + 1])
    assert body["prefixes"][:2] == ["", ""]
    assert page.texts("#output .sentence")[2].startswith(body["prefixes"][2])
    assert page.texts("#API h2") == ["curl", "Python", "JavaScript"]
    page.translate("A. " * 51)
    page.press("2", held=("ALT",))
    assert "This translation, without your choices, as" in page.text("#API p")


def test_the_code_of_the_api_tab_works(page):
    """The request as Python, JavaScript and curl prints the translation on the page.
    The answer is that of the server.
    """
    page.translate('The "tired" animal: don\'t $x `y` \\ 東京')
    page.open_tab("API")
    curl, *_, answer = page.texts("#API pre")
    assert page.texts("#API h2") == ["curl", "Python", "JavaScript", "Answer"]
    assert run_code_of_api_tab(page) == (page.output, page.output)
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
