"""The protocol of DeepL: fields and answers."""

from __future__ import annotations

import json
from urllib.parse import urlencode

import pytest
from serving.bad_input import FORM, send
from serving.fake_service import FakeService, served


def post(url, **fields):
    return send(url, "POST", "/v2/translate", json.dumps(fields).encode())


def test_texts_in_json_a_form_and_the_query(url):
    """A form and a query repeat the field."""
    found = [
        {"detected_source_language": "EN", "text": "A", "billed_characters": 1},
        {"detected_source_language": "EN", "text": "BB", "billed_characters": 2},
    ]
    answer = 200, {"translations": found}
    fields = {"text": ["a", "bb"], "source_lang": "EN", "target_lang": "DE"}
    form = urlencode(fields, doseq=True)
    assert post(url, **fields) == answer
    assert send(url, "POST", "/v2/translate", form.encode(), FORM) == answer
    assert send(url, "GET", f"/v2/translate?{form}&auth_key=k", b"", {}) == answer
    single = {"text": "a", "target_lang": "de"}
    assert post(url, **single) == (200, {"translations": found[:1]})


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, ("text", True, True)),
        ({"split_sentences": "0"}, ("text", False, True)),
        ({"split_sentences": "nonewlines"}, ("text", True, False)),
        ({"tag_handling": "xml"}, ("html", True, True)),
        ({"formality": "prefer_less", "context": "c"}, ("text", True, True)),
        ({"model_type": "quality_optimized", "unknown": {}}, ("text", True, True)),
    ],
)
def test_options_become_those_of_a_query(url, service, options, found):
    """What has no effect here is passed over."""
    assert post(url, text=["a"], target_lang="PT-BR", **options)[0] == 200
    query = service.asked[-1][0]
    assert (query.format, query.sentences, query.split_newlines) == found
    assert (query.source, query.target) == ("en", "pt_BR")


def test_usage_counts_characters():
    """From the beginning of the server."""
    with served(FakeService()) as url:
        post(url, text=["abc", "ä"], target_lang="DE")
        assert send(url, "GET", "/v2/usage", b"", {}) == (
            200,
            {"character_count": 4, "character_limit": 10**12},
        )
