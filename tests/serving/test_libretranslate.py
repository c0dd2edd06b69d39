"""The protocol of LibreTranslate: what each request gets, to the letter."""

from __future__ import annotations

import http.client
import json
from urllib.parse import urlencode, urlsplit

import pytest
from serving.bad_input import FORM, JSON, part, send
from serving.fake_service import FakeService, served

from jaxformer.serving.errors import ServingError
from jaxformer.serving.languages import write_code
from jaxformer.serving.protocols.libretranslate import error

PAIRS = ("en", "de"), ("de", "en"), ("eng_Latn", "zho_Hant")


@pytest.fixture(scope="module")
def service():
    return FakeService(("en", "de"), ("de", "en"), ("en", "zho_Hant"))


def post(url, **fields):
    return send(url, "POST", "/translate", json.dumps(fields).encode())


def test_a_text_gets_its_translation(url):
    """In JSON, a form, a multipart form, and the query of a request without a body."""
    fields = {"q": "a ä", "source": "en", "target": "de"}
    found = 200, {"translatedText": "A Ä"}
    form = urlencode(fields)
    multipart = b"".join(part(f'name="{name}"', own) for name, own in fields.items())
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    assert post(url, **fields) == found
    assert send(url, "POST", "/translate", form.encode(), FORM) == found
    assert send(url, "POST", "/translate", multipart + b"--b--", headers) == found
    assert send(url, "POST", f"/translate?{form}", b"", {}) == found


def test_a_list_gets_lists(url, service):
    """Of translations, alternatives and languages, in one call of the service."""
    before = len(service.asked)
    status, found = post(
        url, q=["a", "b"], source="auto", target="de", alternatives=2, format=""
    )
    language = {"confidence": 90.0, "language": "en"}
    assert status == 200
    assert found == {
        "translatedText": ["A", "B"],
        "alternatives": [["A!", "A!!"], ["B!", "B!!"]],
        "detectedLanguage": [language, language],
    }
    assert next(iter(found)) == "translatedText"
    assert len(service.asked) == before + 1


def test_a_text_in_the_target_language_comes_back(url, service):
    """As LibreTranslate has it, nothing is searched."""
    before = [*service.engines["en", "de"].batches]
    found = post(url, q="Tür", source="auto", target="de", alternatives=1)[1]
    assert found == {
        "translatedText": "Tür",
        "alternatives": [],
        "detectedLanguage": {"confidence": 90.0, "language": "de"},
    }
    assert service.engines["en", "de"].batches == before


def test_codes_of_a_language_may_be_written_in_several_ways(url, service):
    """In any case, with a region, and by LibreTranslate's older codes."""
    for source, target in (("EN", "zt"), ("en-GB", "zh-Hant"), ("eng", "zh_TW")):
        assert post(url, q="a", source=source, target=target)[0] == 200
        query = service.asked[-1][0]
        assert (query.source, query.target) == ("en", "zho_Hant")
    assert write_code("pt-br") == "pt-BR"


def test_languages_and_settings(url):
    """As the page of LibreTranslate reads them."""
    assert send(url, "GET", "/languages")[1] == [
        {"code": "de", "name": "German", "targets": ["de", "en"]},
        {"code": "en", "name": "English", "targets": ["de", "en", "zh-Hant"]},
        {"code": "zh-Hant", "name": "Chinese (traditional)", "targets": ["zh-Hant"]},
    ]
    assert send(url, "GET", "/frontend/settings")[1] == {
        "apiKeys": False,
        "charLimit": 5000,
        "filesTranslation": False,
        "frontendTimeout": 500,
        "keyRequired": False,
        "language": {
            "source": {"code": "en", "name": "English"},
            "target": {"code": "de", "name": "German"},
        },
        "suggestions": False,
        "supportedFilesFormat": [],
    }


def test_the_old_address_of_the_document_leads_to_the_new_one(url):
    """By a relative address, so under a path too."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname, address.port)
    connection.request("GET", "/spec")
    response = connection.getresponse()
    assert (response.status, response.getheader("location")) == (302, "openapi.json")
    connection.close()


def test_other_errors_have_its_words_too(url):
    """Of what this server refuses before it reads the fields."""
    found = send(url, "POST", "/translate", b"{", JSON)
    assert found == (400, {"error": "Invalid JSON format"})
    refused = error(ServingError(403, "key", "the key is wrong"))
    assert refused == {"error": "Invalid API key"}
    slow = error(ServingError(429, "rate", "slower", limit=20, retry_after=3))
    assert slow == {"error": "Slowdown: 20 per 1 minute"}


def test_without_a_detector_the_language_of_the_only_pair_is_taken():
    """With several, and at /detect, the error names the package."""
    with served(FakeService(max_characters=0, detector=False)) as url:
        language = {"confidence": 0.0, "language": "en"}
        found = {"translatedText": "A", "detectedLanguage": language}
        assert post(url, q="a", source="auto", target="de") == (200, found)
        assert send(url, "POST", "/detect", b'{"q":"a"}')[0] == 501
        assert send(url, "GET", "/frontend/settings")[1]["charLimit"] == -1
    with served(FakeService(*PAIRS, detector=False)) as url:
        status, found = post(url, q="a", source="auto", target="de")
        assert (status, "py3langid" in found["error"]) == (400, True)
