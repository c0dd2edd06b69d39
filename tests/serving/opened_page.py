"""The page of a server, open in the browser, and texts to translate on it."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from serving.fake_native import Fake

ANIMAL = "The animal did not cross the street because it was too tired."
FILE = "Open the file in a new window."
THREE = f"{ANIMAL} {FILE}\n\nPlease save the changes before you quit."
GERMAN = "Das Tier hat nicht überquert das Straße weil es war zu müde."
TABS = ("Candidates", "Attention", "Steps", "API")
THREE_GERMAN = (
    f"{GERMAN} Öffnen das Datei in ein neues Fenster.\n\n"
    "Bitte speichern das Änderungen bevor Sie beenden."
)


def resize(command: Callable, width: int = 1200, height: int = 900) -> None:
    """Set the size of the window."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1}
    command("Emulation.setDeviceMetricsOverride", metrics | {"mobile": width < 600})


class Page:
    """The open page: what a reader does and sees."""

    def __init__(self, driver, fake: Fake | None, url: str) -> None:
        self.driver, self.fake, self.url = driver, fake, url

    def find(self, selector: str) -> list:
        return self.driver.find_elements("css selector", selector)

    def text(self, selector: str) -> str:
        return self.script(
            "return document.querySelector(arguments[0])?.innerText ?? ''", selector
        )

    def texts(self, selector: str) -> list[str]:
        return self.script(
            "return [...document.querySelectorAll(arguments[0])]"
            ".map(each => each.textContent)",
            selector,
        )

    def script(self, code: str, *arguments):
        return self.driver.execute_script(code, *arguments)

    def wait(self, condition: Callable, seconds: float = 20) -> None:
        """Wait until a condition holds."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                pytest.fail(
                    f"not within {seconds} s; the page says {self.text('body')}"
                )
            time.sleep(0.01)

    @property
    def actions(self):
        from selenium.webdriver.common.action_chains import ActionChains

        return ActionChains(self.driver, duration=0)

    def press(self, *keys: str, held: tuple[str, ...] = ()) -> None:
        """Press keys one after the other, while others are held."""
        from selenium.webdriver.common.keys import Keys

        actions = self.actions
        for key in held:
            actions.key_down(getattr(Keys, key))
        actions.send_keys(*(getattr(Keys, key, key) for key in keys))
        for key in held:
            actions.key_up(getattr(Keys, key))
        actions.perform()

    def write(self, text: str) -> None:
        """Replace the text at once, as pasting does."""
        self.script(
            "const area = document.getElementById('text'); area.focus();"
            " area.value = arguments[0]; area.dispatchEvent(new Event('input'));",
            text,
        )

    def translate(self, text: str) -> None:
        """Write a text and wait for the end of its translation, which begins without
        the pause.
        """
        self.script(
            "document.getElementById('status').textContent = '';"
            "const area = document.getElementById('text'); area.value = arguments[0];"
            "area.focus(); area.dispatchEvent(new KeyboardEvent("
            "'keydown', {key: 'Enter', ctrlKey: true, bubbles: true}));",
            text,
        )
        self.wait(lambda: "in the queue" in self.text("#status"))
        self.wait(lambda: self.find("#tab-API"))  # its module is loaded when needed

    @property
    def output(self) -> str:
        return self.script("return document.getElementById('output').textContent")

    def words(self, index: int = 0) -> list:
        return self.find(f"#output [role=button][data-sentence='{index}']")

    def described(self, element) -> str:
        """Return what a screen reader says of an element after its name."""
        self.script("window.described = arguments[0]", element)
        ask = self.driver.execute_cdp_cmd
        found = ask("Runtime.evaluate", {"expression": "window.described"})
        how = {"objectId": found["result"]["objectId"], "fetchRelatives": False}
        (node,) = ask("Accessibility.getPartialAXTree", how)["nodes"]
        return node.get("description", {}).get("value", "")

    def wait_for_words(self) -> None:
        """Wait for the list of other words, which then has the focus."""
        self.wait(lambda: self.focused == "options")

    def linked(self) -> tuple[list[str], list[str]]:
        """Return the marked words of the source and of the translation."""
        return self.texts("#mirror .linked"), self.texts("#output .linked")

    def open_tab(self, name: str) -> None:
        self.find(f"#tab-{name}")[0].click()
        shown = {"Attention": "#heads", "Steps": "#Steps li", "API": "pre"}
        self.wait(lambda: self.find(shown.get(name, "#Candidates li")))

    @property
    def focused(self) -> str:
        """Return the id of what has the focus, else its text."""
        return self.script(
            "const here = document.activeElement; return here.id || here.textContent"
        )


def set_offline(page: Page, offline: bool) -> None:
    """Cut the browser from the network, or connect it."""
    conditions = {"offline": offline, "latency": 0}
    conditions |= {"downloadThroughput": -1, "uploadThroughput": -1}
    page.driver.execute_cdp_cmd("Network.enable", {})
    page.driver.execute_cdp_cmd("Network.emulateNetworkConditions", conditions)
