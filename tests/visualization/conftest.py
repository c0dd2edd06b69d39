"""A real browser for the tests of pages."""

from __future__ import annotations

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
    """Open a file in the browser; the console must stay empty to the end."""

    def open_page(page: Path, scheme: str = "light"):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        chromium.get(page.resolve().as_uri())
        return chromium

    yield open_page
    assert chromium.get_log("browser") == []
