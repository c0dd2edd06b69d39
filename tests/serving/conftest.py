"""Servers, and the page of one, which several files of tests ask for."""

from collections import Counter
from collections.abc import Iterator

import jax
import pytest
from serving.fake_native import Fake, serve
from serving.fake_service import FakeService, served
from serving.opened_page import Page, resize

from jaxformer.translation import models


@pytest.fixture(scope="module")
def one_device() -> Iterator[None]:
    """Programs for the eight devices of the tests compile far longer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "mesh_of_devices", lambda: None)
        yield


@pytest.fixture
def compiled() -> Iterator[Counter[str]]:
    """Count the programs that are compiled from now on."""
    counts: Counter[str] = Counter()

    def note(event: str, *_: object, **__: object) -> None:
        counts[event] += event.endswith("backend_compile_duration")

    jax.monitoring.register_event_duration_secs_listener(note)
    yield counts
    jax.monitoring.unregister_event_duration_listener(note)


@pytest.fixture(scope="module")
def service():
    """A service of two languages both ways, and of a language with a region."""
    return FakeService(("en", "de"), ("de", "en"), ("en", "pt_BR"))


@pytest.fixture(scope="module")
def url(service):
    """Serve the application, once for each file of tests."""
    with served(service) as url:
        yield url


@pytest.fixture(scope="module")
def server():
    """Serve the page from one address, with canned answers."""
    fake = Fake()
    with serve(fake) as url:
        yield fake, url


@pytest.fixture
def page(server, browse):
    """Open the page; nothing is remembered for the next test."""
    fake, url = server
    fake.reset()
    page = Page(browse(url), fake, url)
    resize(page.driver.execute_cdp_cmd)
    page.wait(lambda: page.find("#source option"))
    yield page
    fake.reset()
    page.script("localStorage.clear(); sessionStorage.clear()")
    page.driver.get("about:blank")  # ends the requests of the page
