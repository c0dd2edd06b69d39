"""A real browser for the tests of pages, and axe-core, which finds what people with
disabilities cannot use.
"""

from __future__ import annotations

import functools
import importlib.util
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

CHROMIUM, DRIVER = "/usr/bin/chromium", "/usr/bin/chromedriver"  # of Debian
SWITCHES = (
    "--headless=new",
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--window-size=1200,1000",
)


@pytest.fixture(scope="session")
def chromium(tmp_path_factory) -> Iterator:
    """Start the browser once; skip where it is not installed."""
    missing = [path for path in (CHROMIUM, DRIVER) if shutil.which(path) is None]
    if importlib.util.find_spec("selenium") is None:
        missing.append("the package selenium")
    if missing:
        pytest.skip(f"a page needs {' and '.join(missing)}")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for switch in SWITCHES:
        options.add_argument(switch)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('chromium')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=DRIVER)
    driver = webdriver.Chrome(options=options, service=service)
    yield driver
    driver.quit()


@pytest.fixture
def browse(chromium) -> Iterator[Callable]:
    """Open a file or an address in the browser. The console must stay empty to the
    end, except for answers that are refusals.
    """

    def open_page(page: Path | str, scheme: str = "light"):
        emulate(chromium, scheme=scheme)
        address = page if isinstance(page, str) else page.resolve().as_uri()
        chromium.get(address)
        return chromium

    yield open_page
    log = chromium.get_log("browser")
    assert [entry for entry in log if entry["source"] != "network"] == []


def emulate(driver, media: str = "", **features: str) -> None:
    """Set the medium and features such as ``scheme``; the others return to normal."""
    names = {"scheme": "prefers-color-scheme", "motion": "prefers-reduced-motion"}
    names |= {"colors": "forced-colors"}
    found = [{"name": names[name], "value": value} for name, value in features.items()]
    settings = {"media": media, "features": found}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", settings)


@functools.cache
def _axe() -> str:
    """Return the source of axe-core, the newest that is installed."""
    for package in ("axe_playwright_python", "axe_core_python"):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            return Path(spec.origin).with_name("axe.min.js").read_text("utf-8")
    pytest.skip("needs axe-core, of the package axe-playwright-python")


def violations(driver) -> list[str]:
    """Return the rules of axe-core that the page violates, with the elements."""
    if not driver.execute_script("return Boolean(window.axe)"):
        driver.execute_script(_axe())
    return driver.execute_async_script(
        "const done = arguments[arguments.length - 1];"
        "axe.run(document).then(({violations}) => done(violations.map(each =>"
        " `${each.id}: ${each.nodes.map(node => node.html + ' ' + node.failureSummary)"
        ".join(', ')}`)));"
    )


def find(driver, selector: str) -> list:
    """Return the elements of a selector."""
    return driver.find_elements("css selector", selector)


def text(element, selector: str | None = None) -> str:
    """Return the text of an element, or of the one with this selector, as it is in the
    tree.
    """
    found = element if selector is None else find(element, selector)[0]
    return found.get_property("textContent")


def act(driver):
    """Return what performs actions of a pointer and a keyboard."""
    from selenium.webdriver.common.action_chains import ActionChains

    return ActionChains(driver)


def press(driver, *keys: str) -> None:
    """Press keys, by their names in selenium or as text."""
    from selenium.webdriver.common.keys import Keys

    act(driver).send_keys(*(getattr(Keys, key, key) for key in keys)).perform()
