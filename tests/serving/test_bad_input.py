"""What programs should not send: never a 500, never a hang, never HTML, and the next
request works.
"""

from __future__ import annotations

import pytest
from serving import bad_input
from serving.bad_input import check_error, exchange, send
from serving.fake_service import FakeService, served

PROTOCOLS = (bad_input.LIBRETRANSLATE, bad_input.DEEPL, bad_input.NATIVE)


@pytest.fixture(scope="module")
def url():
    with served(FakeService()) as url:
        yield url


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda own: own.path)
def test_each_bad_request_has_an_answer_in_the_form_of_its_protocol(url, protocol):
    """And a good request after each is answered."""
    wrong = {}
    for bad in bad_input.bad_requests(protocol):
        status, found = send(url, bad.method, bad.path, bad.body, bad.headers)
        if status not in bad.allowed:
            wrong[bad.name] = status, found
        if status != 200:
            check_error(bad.path, found)
        assert send(url, "POST", protocol.path, protocol.body())[0] == 200, bad.name
    assert not wrong


@pytest.mark.parametrize("name", bad_input.RAW)
def test_what_is_no_http_is_answered_or_closed(url, name):
    """Without HTML, and the next request works."""
    for data in {bad_input.raw(name, own.path) for own in PROTOCOLS}:
        found = exchange(url, data)
        assert b" 500 " not in found
        assert b"<html" not in found.lower()
        assert send(url, "GET", "/languages")[0] == 200


@pytest.mark.parametrize(("method", "path", "status"), bad_input.WRONG_PLACES)
def test_wrong_paths_and_methods_are_answered_in_json(url, method, path, status):
    """404 and 405."""
    found, body = send(url, method, path)
    assert found == status
    check_error(path, body)
